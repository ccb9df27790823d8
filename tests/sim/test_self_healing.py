"""Seats whose engines don't start as they should are replaced by the whole controller, in virtual time, and nothing that serves is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.sim.world import World, world
from tests.unit.scaler.core.world import fleet, policy
from warmpool.healing import BUDGET, Rule
from warmpool.seats import FleetName, PolicyName, SeatName
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime

CHAT = PolicyName("chat")
RULE = Rule(init_seconds=60.0, consecutive=3)


@asynccontextmanager
async def healed(rule: Rule = RULE, *, serving: int = 0, spare: int = 1) -> AsyncIterator[World]:
    """A fleet of spare seats, all up."""
    one = policy(CHAT, serving_min=serving)
    of = fleet(max_seats=4, spare_target=spare)
    async with world([one], [of], healing={FleetName(of.name): rule}) as on:
        await on.until(lambda: up(on) == serving + spare, 120)
        yield on


def up(on: World) -> int:
    usable = {ResidentState.PAUSED, ResidentState.SERVING}
    return sum(all(each.state in usable for each in seat.residents) for seat in on.cluster.seats())


async def crash(on: World, name: SeatName, times: int) -> None:
    """Kill a seat's engine, and again each time that it is back."""
    for _ in range(times):
        seat = on.cluster.seat(name)
        if seat is None:
            return
        await on.until(lambda: on.cluster.seat(name) is None or up(on) == len(on.cluster.seats()))
        if on.cluster.seat(name) is None:
            return
        on.cluster.kill_engine(name, CHAT)
        await on.until(lambda: on.cluster.seat(name) is None or up(on) != len(on.cluster.seats()))


async def test_a_seat_whose_engine_fails_again_and_again_is_replaced_by_another() -> None:
    async with healed() as on:
        (bad,) = on.cluster.seats()
        await crash(on, bad.name, 3)
        await on.until(lambda: on.cluster.seat(bad.name) is None)
        await on.until(lambda: up(on) == 1)
        told = on.events("healing")
        outcomes = [each["outcome"] for each in told if each["seat"] == bad.name]
        assert outcomes in (["Replaced"], ["HeldBack", "Replaced"])
        (replaced,) = on.events("replace")
        assert str(replaced["why"]).startswith("3 starts of chat in a row were bad")


async def test_two_failures_are_borne() -> None:
    async with healed() as on:
        (seat,) = on.cluster.seats()
        await crash(on, seat.name, 2)
        await on.until(lambda: up(on) == 1)
        assert not on.events("healing")
        assert on.cluster.seat(seat.name) is not None


async def test_what_is_only_reported_stays() -> None:
    async with healed(Rule(consecutive=1, replaces=False)) as on:
        (seat,) = on.cluster.seats()
        await crash(on, seat.name, 1)
        await on.until(lambda: bool(on.events("healing")))
        await on.until(lambda: up(on) == 1)
        assert [each["outcome"] for each in on.events("healing")] == ["Reported"]
        assert on.cluster.seat(seat.name) is not None
        assert not on.events("replace")


async def test_a_fault_that_all_seats_share_ends_with_the_budget() -> None:
    async with healed(Rule(consecutive=1)) as on:

        def held_back() -> bool:
            for seat in on.cluster.seats():
                if all(each.state is ResidentState.PAUSED for each in seat.residents):
                    on.cluster.kill_engine(seat.name, CHAT)
            return any("none has started soundly" in str(each["heldBack"]) for each in on.events("healing"))

        await on.until(held_back, 3600)
        assert len(on.events("replace")) == BUDGET


async def test_a_seat_that_serves_is_never_replaced_for_its_starts() -> None:
    async with healed(Rule(consecutive=1), serving=1, spare=1) as on:
        await on.until(lambda: on.serving(CHAT) == 1)
        (serving,) = [seat for seat in on.cluster.seats() if seat.serving]
        (spare,) = [seat for seat in on.cluster.seats() if not seat.serving]
        on.cluster.kill_engine(spare.name, CHAT)
        await on.until(lambda: on.cluster.seat(spare.name) is None)
        await on.until(lambda: up(on) == 2)
        assert on.cluster.seat(serving.name) is not None
        assert {each["seat"] for each in on.events("replace")} == {spare.name}
