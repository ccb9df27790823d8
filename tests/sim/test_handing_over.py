"""Seats that are about to go, in the whole controller: others serve first; and fleets on which nothing may be done."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scaler.core.model import FleetShare, FleetSpec, PolicySpec
from tests.fakes.loop_clock import LoopClock
from tests.sim.world import World, world
from warmpool.claim import Errand, Term, new_claim
from warmpool.seats import FleetName, Operation, PolicyName, Seat, SeatValue

pytestmark = pytest.mark.looptime
SPARES, CHAT = FleetName("spares"), PolicyName("chat")
POLICY = PolicySpec(name=CHAT, fleets=(FleetShare(fleet=SPARES, target_in_flight=8),), serving_min=1)
FLEET = FleetSpec(name=SPARES, max_seats=4, spare_target=1)


async def settled(on: World) -> Seat:
    """Return the seat that serves, once another is spare and the restart's caution has passed."""
    await on.until(lambda: on.serving("chat") == 1 and len(on.cluster.seats()) == 2)
    await on.constant("chat", 2.0, 1.0, 80)
    await on.until(lambda: sorted(seat.value for seat in on.cluster.seats()) == ["Serving", "Spare"])
    return next(seat for seat in on.cluster.seats() if seat.serving)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"node_leaving": "cordoned"}, id="its node is emptied"),
        pytest.param({"terminating": True, "leaves_by": 60.0}, id="it is deleted"),
    ],
)
async def test_a_seat_that_is_about_to_go_is_handed_over_and_nobody_waits(facts: dict[str, Any]) -> None:
    async with world([POLICY], [FLEET]) as on:
        going = await settled(on)
        begun = len(on.traffic.requests)
        leaves_by = None if "leaves_by" not in facts else LoopClock().wall() + facts["leaves_by"]
        on.cluster.objects.add(
            replace(on.cluster.objects.get(going.name), **{**facts, "leaves_by": leaves_by})
        )
        on.mailbox.wake("cluster", urgent=True, fleets=())
        least = on.serving("chat")
        for _ in range(200):
            on.traffic.arrive(CHAT, 1.0)
            await asyncio.sleep(0.25)
            least = min(least, on.serving("chat"))
        assert least == 1
        assert CHAT not in on.cluster.objects.get(going.name).serving
        since = on.traffic.requests[begun:]
        assert not any(request.lost for request in since)
        assert max(request.waited for request in since if request.started is not None) < 0.5
        promoted = on.events("promotion")[-1]
        demoted = on.events("demotion")[-1]
        assert (promoted["outcome"], demoted["outcome"]) == ("Promoted", "Demoted")
        assert promoted["rotation"] <= demoted["at"]  # type: ignore[operator]


async def test_a_spare_on_a_node_that_is_emptied_gets_a_successor_and_no_promotion() -> None:
    async with world([POLICY], [FLEET]) as on:
        serving = await settled(on)
        spare = next(seat for seat in on.cluster.seats() if seat.name != serving.name)
        on.cluster.objects.add(replace(spare, node_leaving="cordoned"))
        await on.until(lambda: len(on.cluster.seats()) == 3)
        await on.until(lambda: [s.value for s in on.cluster.seats()].count(SeatValue.SPARE) == 1)
        for _ in range(12):
            on.traffic.arrive(CHAT, 5.0)
        await on.until(lambda: on.serving("chat") >= 2)
        assert not on.cluster.objects.get(spare.name).serving


@pytest.mark.parametrize(("observe", "left"), [(True, True), (False, False)])
async def test_a_claim_that_nobody_carries_out_is_left_where_nothing_may_be_done(
    observe: bool,  # noqa: FBT001 - a case's value
    left: bool,  # noqa: FBT001 - likewise
) -> None:
    async with world([replace(POLICY, serving_min=0)], [replace(FLEET, observe=observe)]) as on:
        await on.cluster.resize(SPARES, 1)
        await on.until(lambda: [seat.value for seat in on.cluster.seats()] == [SeatValue.SPARE])
        errand = Errand(operation=Operation.PROVE, policy=CHAT)
        term, now = Term(holder="earlier", epoch=0), LoopClock().wall()
        claim = new_claim(errand, term, number=1, now=now, seconds=1.0)
        await on.cluster.claim(on.cluster.seats()[0], claim)
        await asyncio.sleep(10)
        (seat,) = [seat for seat in on.cluster.seats() if seat.name == "spares-0"]
        assert (seat.claim == claim) is left
