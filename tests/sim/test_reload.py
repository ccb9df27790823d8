"""Other policies in mid-run, in virtual time: what stays keeps its past, and what goes leaves its seats as they are."""

import asyncio
from collections.abc import Sequence

import pytest

from scaler.core.model import Burst, FleetShare, FleetSpec, Pace, PolicySpec
from scaler.runtime.controller import PolicyTable
from tests.sim.world import World, world
from warmpool.seats import FleetName, PolicyName, SeatValue, seat_value

pytestmark = pytest.mark.looptime

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
SPARES = FleetSpec(name=FLEET, max_seats=3, spare_target=1, scale_down=Pace(window=5.0))


def policy(name: PolicyName, floor: int = 1) -> PolicySpec:
    return PolicySpec(
        name=name,
        fleets=(FleetShare(fleet=FLEET, target_in_flight=8),),
        serving_min=floor,
        burst=Burst(window=2.0, stable_window=5.0, demote_after=3.0),
    )


def table(
    policies: Sequence[PolicySpec], fleets: Sequence[FleetSpec] = (SPARES,), of: str = "new"
) -> PolicyTable:
    return PolicyTable(policies=policies, fleets=fleets, hash=of)


def values(on: World) -> list[SeatValue]:
    return sorted(seat_value(seat) for seat in on.cluster.seats())


async def both_serve(on: World) -> None:
    await on.until(lambda: on.serving("chat") == 1 and on.serving("code") == 1)
    await on.until(lambda: SeatValue.SPARE in values(on))


async def test_another_floor_is_followed_from_the_next_tick_on() -> None:
    async with world([policy(CHAT), policy(CODE)], [SPARES]) as on:
        await both_serve(on)
        began = asyncio.get_running_loop().time()
        on.controller.adopt(table([policy(CHAT, 2), policy(CODE)]))
        await asyncio.sleep(0.001)
        assert on.controller.table.hash == "new"
        assert on.controller.last is not None
        assert on.controller.last.decision.policies[CHAT].serving == {FLEET: 2}
        await on.until(lambda: on.serving("chat") == 2)
        assert asyncio.get_running_loop().time() - began < 0.5
        assert on.ledger[-1]["policyHash"] == "new"


async def test_what_shows_the_last_tick_shows_its_policies_until_there_is_another() -> None:
    async with world([policy(CHAT), policy(CODE)], [SPARES]) as on:
        await both_serve(on)
        before = on.controller.table
        on.controller.adopt(table([policy(CHAT)]))
        assert on.controller.table is before
        assert on.controller.coming.hash == "new"
        await on.until(lambda: on.controller.table.hash == "new")


async def test_a_policy_that_goes_leaves_its_seat_and_the_spare_one_as_they_are() -> None:
    async with world([policy(CHAT), policy(CODE)], [SPARES]) as on:
        await both_serve(on)
        seats = {seat.name: seat.serving for seat in on.cluster.seats()}
        request = on.traffic.arrive(CODE, 8.0)
        on.controller.adopt(table([policy(CHAT)]))
        await asyncio.sleep(60)  # longer than any window: nothing may be deleted or demoted late either
        assert {seat.name: seat.serving for seat in on.cluster.seats()} == seats
        assert request.finished is not None
        assert on.controller.last is not None
        assert set(on.controller.last.decision.policies) == {CHAT}
        view = on.controller.last.snapshot.fleets[FLEET]
        assert (view.serving, view.held, view.spare) == (1, 1, 1)


async def test_a_policy_that_comes_back_finds_its_seat_and_has_no_past() -> None:
    async with world([policy(CHAT), policy(CODE)], [SPARES]) as on:
        await both_serve(on)
        await asyncio.sleep(30)
        assert on.controller.last is not None
        assert str(on.controller.last.decision.policies[CODE].mode) == "Stable"
        on.controller.adopt(table([policy(CHAT)]))
        await asyncio.sleep(10)
        on.controller.adopt(table([policy(CHAT), policy(CODE)], of="third"))
        await on.until(lambda: on.controller.table.hash == "third")
        modes = {name: str(each.mode) for name, each in on.controller.last.decision.policies.items()}
        assert modes == {CHAT: "Stable", CODE: "Burst"}  # as at a restart: nothing is known of its demand yet
        assert on.serving("code") == 1
        await asyncio.sleep(10)
        assert [event["policy"] for event in on.events("promotion")].count(CODE) == 1  # it never left


async def test_a_fleet_that_goes_is_left_alone_with_its_claims_and_its_size() -> None:
    async with world([policy(CHAT), policy(CODE)], [SPARES]) as on:
        claimed = asyncio.Event()
        on.cluster.subscribe(
            lambda: claimed.set() if any(seat.claim for seat in on.cluster.seats()) else None
        )
        await claimed.wait()
        size = on.cluster.replicas(FLEET)
        on.controller.adopt(table([], []))
        await asyncio.sleep(30)
        assert not any(seat.claim for seat in on.cluster.seats())  # what had begun was finished
        assert on.cluster.replicas(FLEET) == size
        assert len(on.cluster.seats()) == size
