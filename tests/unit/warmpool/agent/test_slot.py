"""Who may have the slot."""

import asyncio

import pytest

from warmpool.agent.orders import Order, OrderKind
from warmpool.agent.slot import Slot
from warmpool.errors import AgentBusy


def order(kind: OrderKind, policy: str = "a", claim: str = "c") -> Order:
    return Order.model_validate(
        {"kind": kind, "policy": policy, "claim": claim, "epoch": 1, "deadlineSeconds": 1}
    )


@pytest.mark.parametrize("first", list(OrderKind))
@pytest.mark.parametrize("second", list(OrderKind))
async def test_only_a_resume_cuts_and_only_a_drain_or_proof_of_its_own_resident(
    first: OrderKind, second: OrderKind
) -> None:
    slot = Slot()
    running = await slot.acquire(order(first))
    with pytest.raises(AgentBusy, match=f"{first} of a is under way"):
        await slot.acquire(order(second, policy="b"))
    if second is not OrderKind.RESUME or first not in {OrderKind.DRAIN, OrderKind.PROVE}:
        with pytest.raises(AgentBusy):
            await slot.acquire(order(second))
        return
    async with asyncio.TaskGroup() as tasks:
        next_one = tasks.create_task(slot.acquire(order(second, claim="recall")))
        await asyncio.sleep(0)
        assert running.interruption.requested
        with pytest.raises(AgentBusy):  # one successor is enough
            await slot.acquire(order(second, claim="another"))
        slot.release(running)
        assert slot.running is not None
        assert slot.running.order.claim == "recall"
    slot.release(next_one.result())
    assert slot.running is None


async def test_a_closed_slot_takes_nothing() -> None:
    slot = Slot()
    slot.closed = "the agent is ending"
    with pytest.raises(AgentBusy, match="ending"):
        await slot.acquire(order(OrderKind.RESUME))
