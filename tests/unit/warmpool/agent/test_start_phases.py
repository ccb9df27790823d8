"""What a resident tells of its start: phases that add up to it, in virtual time."""

from pathlib import Path

import pytest

from tests.unit.warmpool.agent.rig import FakeEngine, Machine, config, live, paused, resident

pytestmark = pytest.mark.looptime

WARM = {"warmup": {"prompts": ["one", "another"], "maxTokens": 1}}
LOG = (
    "INFO [loader.py:447] Loading weights took 1.5 seconds",
    "INFO [runner.py:1] Model loading took 10.0 GiB and 2.0 seconds",
    "INFO [backends.py:1] Compiling a graph for dynamic shape takes 1.0 s",
    "INFO [runner.py:2] Graph capturing finished in 1 secs, took 0.48 GiB",
)


async def test_an_engine_that_only_logs_is_understood_and_the_rest_is_other(tmp_path: Path) -> None:
    engine = FakeEngine(load_seconds=5.0, logged=LOG, takes={"complete": 0.5})
    async with live(config(tmp_path, [resident("a", **WARM)]), Machine(engines={"a": [engine]})) as rig:
        await rig.until(**paused("a"))
        told = rig.told("a")
    phases = told["phases"]
    assert (phases["weights"], phases["compile"], phases["capture"]) == (2.0, 1.0, 1.0)
    assert phases["other"] == pytest.approx(1.0, abs=0.1)  # how often it is asked
    assert phases["warm-up"] == pytest.approx(0.5, abs=0.05)
    assert {"proof", "paused"} <= phases.keys()
    assert told["start"]["weights"] == {
        "tier": "",
        "bytes": 10 * 2**30,
        "seconds": 1.5,
        "passedOver": [],
    }
    assert told["start"]["compileCache"] == {"hits": 0, "misses": 1}
    assert told["start"]["firstRequestSeconds"] == pytest.approx(0.5)
    assert not told["start"]["told"]


async def test_waiting_for_a_neighbour_is_a_phase_and_all_of_them_add_up(tmp_path: Path) -> None:
    engines = {each: [FakeEngine(load_seconds=5.0)] for each in "ab"}
    both = [resident("a", **WARM), resident("b", **WARM)]
    async with live(config(tmp_path, both), Machine(engines=engines)) as rig:
        await rig.until(a="Paused")
        first = sum(rig.told("a")["phases"].values())
        assert not rig.told("b")["phases"], "not before it is over"
        await rig.until(**paused("ab"))
        phases = rig.told("b")["phases"]
    assert phases["waiting"] == pytest.approx(first, abs=0.1)
    assert sum(phases.values()) == pytest.approx(2 * first, abs=0.2)


async def test_what_belonged_to_an_earlier_life_is_forgotten(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a", **WARM)]), Machine()) as rig:
        await rig.until(**paused("a"))
        before = rig.told("a")["start"]["at"]
        rig.machine.process("a").end("crashed")
        await rig.until(a="Loading")
        assert (rig.told("a")["phases"], rig.told("a")["start"]) == ({}, None)
        await rig.until(**paused("a"))
        assert rig.told("a")["start"]["at"] >= before
        assert "warm-up" in rig.told("a")["phases"]


async def test_an_agent_that_comes_back_still_tells_of_the_start(tmp_path: Path) -> None:
    machine, given = Machine(), config(tmp_path, [resident("a", **WARM)])
    async with live(given, machine) as first:
        await first.until(**paused("a"))
        await first.calm()
        told = first.told("a")
    async with live(given, machine) as second:
        await second.until(**paused("a"))
        again = second.told("a")
    assert again["start"] == told["start"]
    assert again["phases"] == pytest.approx(told["phases"], abs=0.001)
