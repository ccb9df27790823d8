"""Parked residents in a closed loop: whose demand rises has some stand paused ahead of need, and idle ones stay parked."""

import asyncio

import pytest

from tests.sim.world import World, world
from tests.unit.scaler.core.world import fleet, policy
from warmpool.seats import FleetName, PolicyName
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime

CHAT, CODE, FLEET = PolicyName("chat"), PolicyName("code"), FleetName("spares")
SEATS = 4


def park(on: World, policy: PolicyName) -> None:
    """Have all paused residents of a policy parked, as an agent does when its memory doesn't hold all."""
    for seat in on.cluster.seats():
        if on.cluster.engines.state(seat.name, policy) is ResidentState.PAUSED:
            for state in (ResidentState.PARKING, ResidentState.PARKED):
                on.cluster.engines.move(seat.name, policy, state)


def states(on: World, policy: PolicyName) -> list[ResidentState]:
    return [on.cluster.engines.state(seat.name, policy) for seat in on.cluster.seats()]


async def test_a_model_that_is_asked_again_has_one_more_stand_paused_and_one_that_is_not_stays_parked() -> (
    None
):
    both = [policy(CHAT, serving_min=0), policy(CODE, serving_min=0)]
    async with world(both, [fleet(max_seats=SEATS, spare_target=SEATS)]) as on:
        await on.until(
            lambda: [s for p in (CHAT, CODE) for s in states(on, p)] == [ResidentState.PAUSED] * 2 * SEATS
        )
        await asyncio.sleep(30.0)
        for name in (CHAT, CODE):
            park(on, name)
        await asyncio.sleep(20.0)
        assert states(on, CHAT) == states(on, CODE) == [ResidentState.PARKED] * SEATS
        request = on.traffic.arrive(CHAT, 5.0)
        await on.until(lambda: request.started is not None, 2.0)
        await on.until(lambda: states(on, CHAT).count(ResidentState.PAUSED) == 1, 5.0)
        await asyncio.sleep(3.0)
        assert sorted(states(on, CHAT)) == ["Parked", "Parked", "Paused", "Serving"]
        assert states(on, CODE) == [ResidentState.PARKED] * SEATS
