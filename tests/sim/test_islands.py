"""A controller over two islands, in virtual time: it looks at where something happens, and its ledger replays."""

import asyncio
import json
from typing import Any

import pytest

from scaler.core.comparison import verify, what_if
from scaler.core.ledger import Reader, Recorded
from scaler.core.model import Burst, FleetShare, FleetSpec, Pace, PolicySpec, ReasonCode
from tests.sim.world import World, world
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime

CHAT, CODE, EMBED = PolicyName("chat"), PolicyName("code"), PolicyName("embed")
LLM, SMALL = FleetName("llm"), FleetName("small")
SERVICE = 1.6
POLICIES = [
    PolicySpec(
        name=name,
        fleets=(FleetShare(fleet=fleet, target_in_flight=8),),
        serving_min=1,
        ttft_objective=0.5,
        burst=Burst(window=2.0, stable_window=10.0, demote_after=3.0),
    )
    for name, fleet in ((CHAT, LLM), (CODE, LLM), (EMBED, SMALL))
]
FLEETS = [
    FleetSpec(name=LLM, max_seats=4, spare_target=1, scale_down=Pace(window=10.0)),
    FleetSpec(name=SMALL, max_seats=3, spare_target=1, scale_down=Pace(window=10.0)),
]


async def warm(on: World) -> None:
    await on.until(lambda: all(on.serving(name) == 1 for name in (CHAT, CODE, EMBED)))


def written(on: World) -> list[dict[str, Any]]:
    return json.loads(json.dumps(on.ledger))


def looked(line: dict[str, Any]) -> set[str]:
    return set(line["looked"]["policies"]) if "looked" in line else {CHAT, CODE, EMBED}


async def test_a_burst_on_one_island_is_no_business_of_the_other() -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        began = len(on.ledger)
        await on.constant(CHAT, 7.5, SERVICE, 10)
        lines = written(on)[began:]
        of_chat = [line for line in lines if CHAT in looked(line)]
        of_embed = [line for line in lines if EMBED in looked(line)]
        assert all(CODE in looked(line) for line in of_chat)
        assert len(of_chat) > 70
        assert len(of_embed) < 30


async def test_what_nobody_tells_of_is_seen_within_a_second() -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        await asyncio.sleep(20.0)
        on.traffic.silent.add(EMBED)  # no event says so
        asking = asyncio.get_running_loop().time()
        await on.until(
            lambda: str(on.controller.last and on.controller.last.decision.policies[EMBED].mode) == "Hold"
        )
        assert asyncio.get_running_loop().time() - asking <= 3 + 1.0 + 0.1


async def test_whoever_asks_gets_all_policies_after_any_tick() -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        for _ in range(50):
            await on.constant(CHAT, 10.0, SERVICE, 0.1)
            tick = on.controller.last
            assert tick is not None
            assert tick.decision.policies.keys() == tick.snapshot.loads.keys() == {CHAT, CODE, EMBED}
            assert tick.decision.fleets.keys() == tick.snapshot.fleets.keys() == {LLM, SMALL}
            assert {seat.name for seat in tick.seats} == {seat.name for seat in on.cluster.seats()}


@pytest.mark.parametrize(
    "budget", [pytest.param(None, id="no-budget", marks=pytest.mark.long), pytest.param(5, id="budget")]
)
async def test_a_ledger_of_two_islands_replays(budget: int | None) -> None:
    async with world(POLICIES, FLEETS, budget=budget) as on:
        await warm(on)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(on.constant(CHAT, 7.5, SERVICE, 30))
            tasks.create_task(on.constant(EMBED, 9.0, SERVICE, 20))
        on.traffic.silent.add(CHAT)
        await asyncio.sleep(90)
        lines = written(on)
    assert any("looked" in line for line in lines)
    found = verify(Reader().steps(lines))
    assert (found.difference, found.ticks) == (None, len(lines))


async def test_a_ledger_that_was_cut_replays_each_island_from_its_next_start() -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(on.constant(CHAT, 5.0, SERVICE, 90))
            tasks.create_task(on.constant(EMBED, 3.0, SERVICE, 90))
        lines = written(on)[100:]
    reader = Reader()
    found = verify(reader.steps(lines))
    assert found.difference is None
    assert 0 < reader.skipped < len(lines) * 0.9
    assert found.ticks + reader.skipped == len(lines)


async def test_a_changed_input_of_one_island_is_found() -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(on.constant(CHAT, 5.0, SERVICE, 20))
            tasks.create_task(on.constant(EMBED, 3.0, SERVICE, 20))
        lines = written(on)
    changed = [line for line in lines if "looked" in line and "decision" in line and EMBED in looked(line)]
    changed[3]["inputs"]["loads"][EMBED]["inFlight"]["value"] = 500.0
    found = verify(Reader().steps(lines)).difference
    assert found is not None
    assert found.subject == "policy embed"


async def test_other_policies_that_join_two_islands_are_told_from_what_both_saw() -> None:
    async with world(POLICIES, FLEETS) as on:
        await warm(on)
        await on.constant(CHAT, 7.5, SERVICE, 20)
        lines = written(on)
    bridged = (FleetShare(fleet=SMALL, target_in_flight=8), FleetShare(fleet=LLM, target_in_flight=8))
    other = [POLICIES[0], POLICIES[1], PolicySpec(name=EMBED, fleets=bridged, serving_min=2)]
    rules = Recorded(policies=tuple(other), fleets=tuple(FLEETS), hash="other", law="2")
    effects = what_if(Reader().steps(lines), rules, lambda step: step.known)
    assert effects.policies[EMBED].most_more == 1
    assert effects.policies[CHAT].decisions > effects.policies[EMBED].decisions > 0
    assert not effects.unknown
    assert not effects.gone


async def test_under_a_budget_existing_seats_go_at_once_and_new_ones_within_a_second() -> None:
    async with world(POLICIES, FLEETS, budget=7) as on:
        await warm(on)
        await asyncio.sleep(20.0)
        began = asyncio.get_running_loop().time()
        for _ in range(60):
            on.traffic.arrive(CHAT, SERVICE)
        await on.until(lambda: on.serving(CHAT) == 2, 0.2)
        await on.until(lambda: on.cluster.replicas(LLM) == 4, 1.5)
        assert asyncio.get_running_loop().time() - began < 1.1
        codes = {
            reason["code"]
            for line in written(on)
            for fleet in line.get("decision", {"fleets": {}})["fleets"].values()
            for reason in fleet["reasons"]
        }
        assert ReasonCode.BUDGET_NOT_SHARED_OUT in codes
