"""Graphs are captured once a resident could be promoted already, and nobody waits for them: in virtual time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.warmpool.agent.rig import FakeEngine, Machine, Rig, config, live, paused, resident
from warmpool.agent.starting import CALM_SECONDS
from warmpool.errors import EngineLost, EngineRejected

pytestmark = pytest.mark.looptime

LATER = {"graphCapture": "WhilePaused"}


def captures(rig: Rig, policy: str = "a") -> int:
    started = policy in rig.machine.environments
    return rig.machine.engine(policy).calls.count("capture") if started else 0


def later(policy: str = "a", **others: Any) -> dict[str, Any]:
    return resident(policy, **LATER, **others)


async def capturing(rig: Rig, policy: str = "a", times: int = 1) -> None:
    """Wait until an engine captures, or has."""
    async with asyncio.timeout(10_000):
        while captures(rig, policy) < times:
            await asyncio.sleep(0.01)


async def test_it_could_be_promoted_before_and_is_proven_with_its_graphs_and_paused_again(
    tmp_path: Path,
) -> None:
    engine = FakeEngine(takes={"capture": 2.0})
    async with live(config(tmp_path, [later()]), Machine(engines={"a": [engine]})) as rig:
        await rig.until(**paused("a"))
        began = asyncio.get_running_loop().time()
        await capturing(rig)
        assert rig.seen["a"][-2:] == ["Paused", "Proving"]
        assert asyncio.get_running_loop().time() - began == pytest.approx(CALM_SECONDS, abs=0.1)
        phases, asked = dict(rig.told("a")["phases"]), len(engine.asked)
        assert "late-capture" not in phases
        await rig.until(**paused("a"))
        assert len(engine.asked) > asked
        assert engine.paused
        told = dict(rig.told("a")["phases"])
        assert told.pop("late-capture") == pytest.approx(2.0, abs=0.1)
        assert told == phases
        await asyncio.sleep(60)
        assert captures(rig) == 1


async def test_an_engine_that_is_not_to_capture_later_never_does(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await rig.until(**paused("a"))
        await asyncio.sleep(60)
        assert captures(rig) == 0


async def test_its_own_promotion_takes_it_over_at_once_and_the_rest_is_captured_later(tmp_path: Path) -> None:
    engine = FakeEngine(takes={"capture": 30.0})
    async with live(config(tmp_path, [later()]), Machine(engines={"a": [engine]})) as rig:
        await capturing(rig)
        await asyncio.sleep(5.0)
        assert rig.states()["a"] == "Proving"
        began = asyncio.get_running_loop().time()
        assert (await rig.order("resume", "a")).state == "Serving"
        assert asyncio.get_running_loop().time() - began < 0.2
        await asyncio.sleep(60)
        assert captures(rig) == 1  # it serves
        await rig.order("drain", "a")
        await rig.order("pause", "a")
        await capturing(rig, times=2)
        await rig.until(**paused("a"))


async def test_a_neighbour_s_promotion_has_it_paused_at_once(tmp_path: Path) -> None:
    engines = {"a": [FakeEngine(takes={"capture": 30.0})], "b": [FakeEngine()]}
    async with live(config(tmp_path, [later(), resident("b")]), Machine(engines=engines)) as rig:
        await rig.until(a="Paused", b="Paused")
        await capturing(rig)
        await asyncio.sleep(5.0)
        assert rig.states()["a"] == "Proving"
        began = asyncio.get_running_loop().time()
        assert (await rig.order("resume", "b")).state == "Serving"
        assert asyncio.get_running_loop().time() - began < 0.2
        assert rig.states()["a"] == "Paused"
        assert rig.told("a")["kvReleased"]
        await asyncio.sleep(60)
        assert captures(rig) == 1
        await rig.order("drain", "b")
        await rig.order("pause", "b")
        await capturing(rig, times=2)
        await rig.until(a="Paused")


async def test_one_that_says_no_goes_on_without_graphs(tmp_path: Path) -> None:
    engine = FakeEngine(fails={"capture": EngineRejected("POST /emberpool/capture: answered 500: no room")})
    async with live(config(tmp_path, [later()]), Machine(engines={"a": [engine]})) as rig:
        await rig.until(**paused("a"))
        await asyncio.sleep(60)
        assert (captures(rig), rig.told("a")["restarts"]) == (1, 0)
        assert (await rig.order("resume", "a")).state == "Serving"


async def test_one_that_dies_of_it_is_started_anew(tmp_path: Path) -> None:
    engines = {"a": [FakeEngine(fails={"capture": EngineLost("connection reset")}), FakeEngine()]}
    async with live(config(tmp_path, [later()]), Machine(engines=engines)) as rig:
        await rig.until(a="Failed")
        await rig.until(a="Paused")
        assert rig.told("a")["restarts"] == 1


async def test_one_that_no_longer_answers_with_its_graphs_is_started_anew(tmp_path: Path) -> None:
    engine = FakeEngine(takes={"capture": 2.0})
    async with live(config(tmp_path, [later()]), Machine(engines={"a": [engine, FakeEngine()]})) as rig:
        await capturing(rig)
        engine.fails["complete"] = EngineRejected("POST /v1/completions: answered 500: illegal access")
        await rig.until(a="Failed")
        assert "illegal access" in rig.told("a")["failure"]


async def test_whoever_cannot_be_promoted_yet_comes_first(tmp_path: Path) -> None:
    engines = {"a": [FakeEngine()], "b": [FakeEngine(load_seconds=100.0)]}
    async with live(config(tmp_path, [later(), resident("b")]), Machine(engines=engines)) as rig:
        await rig.until(a="Paused", b="Paused")
        assert captures(rig) == 0
        await capturing(rig)


async def test_the_reference_engine_is_told_and_others_are_not(tmp_path: Path) -> None:
    machine = Machine()
    settings = config(tmp_path, [later(), later("b", type="VLLM", guard="Middleware"), resident("c")])
    async with live(settings, machine) as rig:
        await rig.until(**paused("c"))
        told = {name: each.get("EMBERPOOL_DEFER_CAPTURE") for name, each in machine.environments.items()}
        assert told == {"a": "1", "b": None, "c": None}
