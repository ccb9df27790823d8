"""Who may have the slot."""

import asyncio

import pytest

from warmpool.agent.orders import Order, OrderKind
from warmpool.agent.slot import Slot
from warmpool.engines.deadline import Deadline
from warmpool.errors import AgentBusy

K = OrderKind
CUT = {
    K.RESUME: {K.DRAIN, K.PROVE, K.PARK, K.UNPARK},
    K.DRAIN: {K.DRAIN, K.PAUSE},
    K.PAUSE: {K.PAUSE},
}


def order(kind: OrderKind, policy: str = "a", claim: str = "c") -> Order:
    return Order.model_validate(
        {"kind": kind, "policy": policy, "claim": claim, "epoch": 1, "deadlineSeconds": 1}
    )


@pytest.mark.parametrize("first", list(OrderKind))
@pytest.mark.parametrize("second", list(OrderKind))
async def test_an_order_cuts_what_it_may_and_only_on_its_own_resident(
    first: OrderKind, second: OrderKind
) -> None:
    slot, deadline = Slot(), Deadline.after(5)
    running = await slot.acquire(order(first), deadline)
    with pytest.raises(AgentBusy, match=f"{first} of a is under way"):
        await slot.acquire(order(second, policy="b"), deadline)
    if first not in CUT.get(second, set()):
        with pytest.raises(AgentBusy):
            await slot.acquire(order(second), deadline)
        return
    async with asyncio.TaskGroup() as tasks:
        next_one = tasks.create_task(slot.acquire(order(second, claim="recall"), deadline))
        await asyncio.sleep(0)
        assert running.interruption.requested
        with pytest.raises(AgentBusy):  # one successor is enough
            await slot.acquire(order(second, claim="another"), deadline)
        slot.release(running)
        assert slot.running is not None
        assert slot.running.order.claim == "recall"
    slot.release(next_one.result())
    assert slot.running is None


async def test_a_closed_slot_takes_nothing() -> None:
    slot = Slot()
    slot.closed = "the agent is ending"
    with pytest.raises(AgentBusy, match="ending"):
        await slot.acquire(order(OrderKind.RESUME), Deadline.after(5))


@pytest.mark.looptime
async def test_one_that_waits_in_vain_leaves_its_place_to_another() -> None:
    slot = Slot()
    running = await slot.acquire(order(OrderKind.PARK), Deadline.after(100))
    with pytest.raises(AgentBusy, match="park of a has not ended in time; nothing was begun"):
        await slot.acquire(order(OrderKind.RESUME), Deadline.after(2))
    assert asyncio.get_running_loop().time() == pytest.approx(2, abs=0.1)
    async with asyncio.TaskGroup() as tasks:
        later = tasks.create_task(slot.acquire(order(OrderKind.RESUME, claim="later"), Deadline.after(5)))
        await asyncio.sleep(1)
        slot.release(running)
    assert slot.running is later.result()
