"""Lent seats in a closed loop: they come back in time, and what borrows them never makes one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scaler.core.model import Pace, PolicySpec
from scaler.runtime.actuator import Deadlines
from tests.sim.test_loop import three_seats
from tests.sim.world import World, world
from tests.unit.scaler.core.world import fleet, policy
from warmpool.seats import FleetName, PolicyName, SeatValue

pytestmark = pytest.mark.looptime

CHAT, CODE, FLEET = PolicyName("chat"), PolicyName("code"), FleetName("spares")
SERVICE = 1.5
"""Seconds of one request of the chat."""
SWITCH_DRAIN = Deadlines().promote / 2
"""What a switch gives the requests of whoever leaves."""
AFTER_THE_DRAIN = 1.0
"""To see the burst, to end what is left, and to promote."""


def batch(*, at_once: bool) -> PolicySpec:
    return policy(CODE, preemptible=True, ended_at_once=at_once, serving_min=0)


@asynccontextmanager
async def all_lent(borrower: PolicySpec) -> AsyncIterator[World]:
    """Three seats: the chat has one, and both others are lent to work that never ends."""
    async with world([policy(CHAT), borrower], [fleet(spare_target=0)], calendar=three_seats()) as on:
        await on.until(lambda: on.serving(CHAT) == 1 and len(on.cluster.seats()) == 3, 60)
        await on.constant(CHAT, 2.5, SERVICE, 20)
        for _ in range(40):
            on.traffic.arrive(CODE, 3600.0)
        await on.until(lambda: on.serving(CODE) == 2)
        yield on


@pytest.mark.parametrize("at_once", [pytest.param(True, id="Abort"), pytest.param(False, id="Wait")])
async def test_lent_seats_are_back_within_the_drain_of_a_switch_however_long_their_requests_take(
    *, at_once: bool
) -> None:
    async with all_lent(batch(at_once=at_once)) as on:
        burst = [on.traffic.arrive(CHAT, 60.0) for _ in range(18)]
        patience = AFTER_THE_DRAIN + (0.0 if at_once else SWITCH_DRAIN)
        await on.until(lambda: all(request.started is not None for request in burst), patience)
        assert (on.serving(CHAT), on.serving(CODE)) == (3, 0)


async def test_a_burst_in_two_steps_has_the_second_seat_as_soon_as_the_first() -> None:
    """A lent seat was given back when the first step had taken the idle one, and drained while the second waited for it."""
    async with world(
        [policy(CHAT), batch(at_once=True)], [fleet(spare_target=1)], calendar=three_seats()
    ) as on:
        await on.until(lambda: on.serving(CHAT) == 1 and len(on.cluster.seats()) == 3, 60)
        await on.constant(CHAT, 2.5, SERVICE, 20)
        for _ in range(40):
            on.traffic.arrive(CODE, 3600.0)
        await on.until(lambda: on.serving(CODE) == 1)
        for number in (8, 10):
            burst = [on.traffic.arrive(CHAT, 60.0) for _ in range(number)]
            await on.until(lambda: all(r.started is not None for r in burst), AFTER_THE_DRAIN)  # noqa: B023
            await asyncio.sleep(2.0)
        assert on.serving(CHAT) == 3


@pytest.mark.parametrize(
    ("at_once", "patience"),
    [
        pytest.param(True, AFTER_THE_DRAIN, id="Abort"),
        pytest.param(False, Deadlines().drain + AFTER_THE_DRAIN, id="Wait"),
    ],
)
async def test_a_lent_seat_that_drains_already_is_had_back_on_the_same_terms(
    *, at_once: bool, patience: float
) -> None:
    """Its work was over but for one long request: with Abort a burst had to wait until that drain had ended."""
    async with world(
        [policy(CHAT), batch(at_once=at_once)], [fleet(spare_target=0)], calendar=three_seats()
    ) as on:
        await on.until(lambda: on.serving(CHAT) == 1 and len(on.cluster.seats()) == 3, 60)
        await on.constant(CHAT, 2.5, SERVICE, 20)
        for seconds in (3600.0, 3600.0, *[20.0] * 14):
            on.traffic.arrive(CODE, seconds)
        await on.until(lambda: on.serving(CODE) == 2)
        await on.until(lambda: any(seat.value is SeatValue.DRAINING for seat in on.cluster.seats()))
        burst = [on.traffic.arrive(CHAT, 60.0) for _ in range(18)]
        await on.until(lambda: all(request.started is not None for request in burst), patience)
        assert (on.serving(CHAT), on.serving(CODE)) == (3, 0)


@pytest.mark.parametrize(
    "borrowers",
    [
        pytest.param([], id="nobody borrows", marks=pytest.mark.long),
        pytest.param([batch(at_once=True)], id="Abort", marks=pytest.mark.long),
        pytest.param([batch(at_once=False)], id="Wait"),
    ],
)
async def test_what_borrows_makes_no_seat(borrowers: list[PolicySpec]) -> None:
    """Nor does its leaving: lent seats that drained when a burst came had others ordered in their place."""
    soon = fleet(max_seats=9, spare_target=1, scale_down=Pace(window=5.0))
    async with world([policy(CHAT), *borrowers], [soon]) as on:
        await on.until(lambda: on.serving(CHAT) == 1 and len(on.cluster.seats()) == 2)
        sizes = [on.cluster.replicas(FLEET)]
        end = on.cluster.subscribe(lambda: sizes.append(on.cluster.replicas(FLEET)))
        for _ in range(24 if borrowers else 0):
            on.traffic.arrive(CODE, 3600.0)
        await on.constant(CHAT, 9.0, SERVICE, 6)
        await on.constant(CHAT, 4.0, SERVICE, 35)  # so long that the total has fallen again
        await on.constant(CHAT, 9.0, SERVICE, 10)
        end()
        assert max(sizes) == 3
