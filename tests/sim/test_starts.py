"""Engines that died behind somebody else's serving come back in their turn, with the whole controller in virtual time."""

import asyncio

import pytest

from scaler.core.explain import explain_policy
from tests.sim.world import world
from tests.unit.scaler.core.world import fleet, policy
from warmpool.seats import PolicyName
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime

CHAT, CODE = PolicyName("chat"), PolicyName("code")
START = 5.0
STABLE = 10.0


@pytest.mark.parametrize(
    ("priority", "patience"),
    [
        pytest.param(9, START + 5.0, id="at once, of a higher priority"),
        pytest.param(0, STABLE + START + 10.0, id="after a turn, among equals"),
    ],
)
async def test_an_engine_that_died_behind_another_comes_back_in_its_turn(
    priority: int, patience: float
) -> None:
    two = [policy(CHAT, serving_min=0, priority=priority), policy(CODE, serving_min=0)]
    async with world(two, [fleet(max_seats=1, spare_target=1)]) as on:
        await on.until(lambda: any(seat.admitted for seat in on.cluster.seats()), 60)
        await on.constant(CODE, 4.0, 1.5, 3)
        await on.until(lambda: on.serving(CODE) == 1)
        (seat,) = on.cluster.seats()
        on.cluster.kill_engine(seat.name, CHAT)
        request = on.traffic.arrive(CHAT, 1.0)
        told: set[str] = set()

        def answered() -> bool:
            last = on.controller.last
            assert last is not None
            told.update(explain_policy(last.decision.policies[CHAT]))
            return request.started is not None

        async with asyncio.TaskGroup() as tasks:
            busy = tasks.create_task(on.constant(CODE, 4.0, 1.5, 60))
            await on.until(answered, patience)
            busy.cancel()
        assert any("kept free until one has started" in line for line in told)
        assert on.cluster.seats()[0].resident(CHAT).state is ResidentState.SERVING
