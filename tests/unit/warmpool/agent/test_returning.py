"""Agents that go in the middle of something, and come back to engines as they are; in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.warmpool.agent.rig import (
    PROMPTS,
    FakeEngine,
    Machine,
    Rig,
    config,
    live,
    paused,
    resident,
    tokens,
)
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Startup
from warmpool.errors import (
    EngineLacksRoute,
    EngineRejected,
    NeedsWitness,
    StaleEpoch,
    WarmpoolError,
    WrongState,
)
from warmpool.expectations import Answer, Ownership, Recording
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime
GIB = 2**30
Do = Callable[[Rig], Coroutine[Any, Any, Any]]


async def nothing(_rig: Rig) -> None:
    pass


def orders(*kinds: str) -> Do:
    async def carry_out(rig: Rig) -> None:
        for kind in kinds:
            await rig.order(kind, "a", seconds=1000)

    return carry_out


async def until_stuck(rig: Rig, do: Do, state: str) -> None:
    """Begin something that doesn't end, and return once the resident is in a state."""

    async def begin() -> None:
        with suppress(WarmpoolError, asyncio.CancelledError):
            await do(rig)

    # Its end is the agent's: the orders are tasks of the seat.
    rig.seat._spawn(begin())
    await rig.until(a=state)
    await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("state", "slow", "do", "then", "engine_is"),
    [
        ("Starting", {"startup": 1}, nothing, "Paused", "parked=False"),
        ("Warming", {"complete": 500}, nothing, "Paused", None),
        ("Proving", {"probe": 500}, nothing, "Paused", None),
        ("Paused", {}, nothing, "Paused", "kv_released=True parked=False"),
        ("Promoting", {"resume": 500}, orders("resume"), "Paused", None),
        ("Serving", {}, orders("resume"), "Serving", "kv_released=False parked=False"),
        ("Draining", {}, orders("resume", "drain"), "Draining", "kv_released=False parked=False"),
        ("Parking", {"park": 500}, orders("park"), "Paused", "parked=True"),
        ("Parked", {}, orders("park"), "Parked", "parked=True"),
        ("Unparking", {"unpark": 500}, orders("park", "unpark"), "Paused", "parked=True"),
    ],
)
async def test_an_agent_that_is_gone_in_any_state_is_followed_by_one_that_finds_the_same_engine(
    tmp_path: Path, state: str, slow: dict[str, float], do: Do, then: str, engine_is: str | None
) -> None:
    engine = FakeEngine(in_flight=0)
    machine = Machine(engines={"a": [engine]})
    given = config(tmp_path, [resident("a", warmup={"prompts": ["w"]})])
    async with live(given, machine) as first:
        if state in {"Starting", "Warming", "Proving"}:
            engine.takes |= slow
        else:
            await first.until(a="Paused")
            engine.takes |= slow
        if state == "Draining":
            engine.in_flight = 1
        await until_stuck(first, do, state)
    assert not machine.process("a").exited
    engine.calls.clear()
    engine.takes.clear()
    async with live(given, machine) as second:
        await second.until(a=then)
        assert machine.starts("a") == 1
        assert second.told("a")["restarts"] == 0
        if engine_is is not None and state != "Starting":
            assert engine.calls[0].endswith(engine_is)
        if state in {"Serving", "Draining", "Paused", "Parked"}:
            assert "complete" not in engine.calls  # nothing is proven again
        engine.in_flight = 0
        if then != "Draining":
            assert (await second.order("resume", "a")).state == "Serving"


async def test_weights_that_are_still_on_their_way_are_let_arrive(tmp_path: Path) -> None:
    engine = FakeEngine()
    machine, given = Machine(engines={"a": [engine]}), config(tmp_path, [resident("a")])
    async with live(given, machine) as first:
        await first.until(a="Paused")
        engine.takes["park"] = 500
        await until_stuck(first, orders("park"), "Parking")
    engine.parked, engine.takes = True, {}  # it went on without the agent
    engine.fails["unpark"] = EngineRejected("its weights are on their way")
    async with live(given, machine) as second:
        await second.until(a="Paused")
        assert machine.starts("a") == 1
        assert engine.calls.count("unpark") == 2
        assert not engine.parked


@pytest.mark.parametrize(
    ("state", "slow", "do"),
    [
        ("Loading", {}, nothing),
        ("Warming", {"complete": 500}, nothing),
        ("Proving", {"probe": 500}, nothing),
        ("Paused", {}, nothing),
        ("Promoting", {"resume": 500}, orders("resume")),
        ("Serving", {}, orders("resume")),
        ("Draining", {}, orders("resume", "drain")),
        ("Parking", {"park": 500}, orders("park")),
        ("Parked", {}, orders("park")),
        ("Unparking", {"unpark": 500}, orders("park", "unpark")),
    ],
)
async def test_an_engine_that_is_killed_in_any_state_is_told_at_once_and_replaced(
    tmp_path: Path, state: str, slow: dict[str, float], do: Do
) -> None:
    engine = FakeEngine()
    machine = Machine(engines={"a": [engine]})
    given = config(tmp_path, [resident("a", warmup={"prompts": ["w"]}), resident("b")])
    async with live(given, machine) as rig:
        if state not in {"Loading", "Warming", "Proving"}:
            await rig.until(**paused("ab"))
        engine.takes |= slow
        engine.in_flight = int(state == "Draining")
        await until_stuck(rig, do, state)
        began = asyncio.get_running_loop().time()
        machine.process("a").end("killed by somebody")
        await rig.until(a="Failed")
        assert asyncio.get_running_loop().time() - began < 0.01
        assert rig.told("a")["failure"] == "killed by somebody"
        await asyncio.sleep(0.9)  # an order that was under way has ended by now
        if state not in {"Loading", "Warming", "Proving"}:
            assert (await rig.order("resume", "b")).state == "Serving"
            await rig.order("drain", "b")
            await rig.order("pause", "b")
        await rig.until(**paused("ab"))
        assert (rig.told("a")["restarts"], rig.told("b")["restarts"]) == (1, 0)
        assert rig.told("a")["parkedBytes"] == 0
        assert rig.seat.state()["operation"] is None


class PausedLooksUnready(FakeEngine):
    """As SGLang: `/ready` says 503 while it is paused, and nothing else tells."""

    async def startup(self, *, deadline: Deadline) -> Startup:
        if self.paused:
            return Startup(ready=False, phase="loading")
        return await super().startup(deadline=deadline)


class TellsNothing(PausedLooksUnready):
    """And an older one has no `/ready`."""

    async def is_paused(self, *, deadline: Deadline) -> bool:
        del deadline
        raise EngineLacksRoute("GET /ready: no such route")


@pytest.mark.parametrize("kind", [PausedLooksUnready, TellsNothing])
@pytest.mark.parametrize("state", [ResidentState.PAUSED, ResidentState.PARKED])
async def test_an_engine_that_calls_itself_unready_while_it_is_paused_is_taken_up_as_it_is(
    tmp_path: Path, kind: type[FakeEngine], state: ResidentState
) -> None:
    machine = Machine(engines={"a": [kind()]})
    given = config(tmp_path, [resident("a")])
    async with live(given, machine) as first:
        await first.until(a="Paused")
        if state is ResidentState.PARKED:
            await first.order("park", "a")
        await asyncio.sleep(0.1)
    async with live(given, machine) as second:
        await second.until(a=state)
        assert second.record("a").kv_bytes == 20 * GIB
        assert second.record("a").usual["KvReleased"] == 11 * GIB
        assert (await second.order("resume", "a")).state == "Serving"


# -------------------------------------------------------------------- what is remembered


async def test_an_agent_that_comes_back_knows_the_highest_term(tmp_path: Path) -> None:
    machine, given = Machine(), config(tmp_path, [resident("a")])
    async with live(given, machine) as first:
        await first.until(a="Paused")
        await first.order("resume", "a", epoch=7)
    async with live(given, machine) as second:
        await second.until(a="Serving")
        assert second.seat.state()["epoch"] == 7
        with pytest.raises(StaleEpoch, match="term 7 has begun"):
            await second.order("drain", "a", epoch=6)
        assert (await second.order("drain", "a", epoch=7)).state == "Draining"
    async with live(config(tmp_path, [resident("a")], uid="uid-2"), Machine()) as third:
        assert third.seat.state()["epoch"] == 0


@pytest.mark.parametrize(
    ("told", "takes"),
    [pytest.param(20.0, 17.5, id="a launcher says how long"), pytest.param(None, 8, id="else ten seconds")],
)
async def test_draining_at_the_end_has_its_time(tmp_path: Path, told: float | None, takes: float) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await rig.until(a="Paused")
        await rig.order("resume", "a")
        rig.machine.engine("a").in_flight = 1
        began = asyncio.get_running_loop().time()
        if told is not None:
            rig.seat.drain_within(["a"], told)
        await rig.seat.shut_down()
        assert asyncio.get_running_loop().time() - began == pytest.approx(takes, abs=0.5)
        assert rig.machine.process("a").exited


@pytest.mark.parametrize(("launcher", "lives"), [(True, True), (False, False)])
async def test_an_agent_that_breaks_leaves_a_launcher_s_engines_alone(
    tmp_path: Path,
    *,
    launcher: bool,
    lives: bool,
) -> None:
    others = {} if launcher else {"launcher": None, "logDirectory": str(tmp_path)}
    async with live(config(tmp_path, [resident("a")], **others), Machine()) as rig:
        await rig.until(a="Paused")
        process = rig.machine.process("a")
        await rig.seat.abandon()
        assert process.exited is not lives
        assert process.engine.closed >= 1


# -------------------------------------------------------------------- witnesses


def agreeing(policy: str) -> dict[str, Any]:
    return resident(
        policy, proof={"prompts": [{"prompt": each} for each in PROMPTS], "agree": True, "maxTokens": 3}
    )


def recording(*witnesses: str, seed: int = 1, version: str = "1") -> Recording:
    return Recording(
        ownership=Ownership(engine_version=version),
        answers=tuple(Answer(prompt=each, tokens=tokens(seed, each, 3)) for each in PROMPTS),
        witnesses=frozenset(witnesses),
    )


async def test_a_resident_without_a_witness_waits_unproven_and_tells_what_it_answers(tmp_path: Path) -> None:
    async with live(config(tmp_path, [agreeing("a"), resident("b")]), Machine()) as rig:
        await rig.until(b="Paused")  # it holds nobody up
        told = rig.told("a")
        assert (told["state"], told["provenAt"], told["kvReleased"]) == ("Loading", None, True)
        assert told["waiting"].startswith("NeedsWitness: ")
        proof = rig.seat.proof("a")
        assert proof["recording"] is None
        assert proof["missing"] == told["waiting"]
        assert proof["statement"] == {
            "uid": "uid-1",
            "ownership": {
                "weightsDigest": "",
                "engineVersion": "1",
                "dtype": "bfloat16",
                "tensorParallelSize": 0,
            },
            "answers": [
                {"prompt": each, "tokens": list(tokens(1, each, 3)), "logprobs": []} for each in PROMPTS
            ],
        }
        with pytest.raises(WrongState, match="a is Loading: NeedsWitness"):
            await rig.order("resume", "a")
        with pytest.raises(NeedsWitness, match="its only witness is this resident itself"):
            rig.seat.take_recording("a", recording("uid-1"), epoch=1)
        assert rig.told("a")["state"] == "Loading"


async def test_a_witness_brings_it_on_and_the_next_agent_remembers(tmp_path: Path) -> None:
    machine, given = Machine(), config(tmp_path, [agreeing("a")])
    async with live(given, machine) as first:
        await first.until(a="Loading")
        await first.calm()
        first.seat.take_recording("a", recording("uid-1", "uid-2"), epoch=1)
        await first.until(a="Paused")
        assert first.told("a")["waiting"] == ""
        assert (await first.order("prove", "a")).state == "Paused"
    async with live(given, machine) as second:
        await second.until(a="Paused")
        assert (
            await second.order("resume", "a")
        ).state == "Serving"  # its canary has something to compare with


async def test_a_resident_that_answers_otherwise_than_its_witnesses_fails(tmp_path: Path) -> None:
    async with live(config(tmp_path, [agreeing("a")]), Machine()) as rig:
        await rig.calm()
        rig.seat.take_recording("a", recording("uid-2", "uid-3", seed=2), epoch=1)
        await rig.until(a="Failed")
        assert "token 0 is" in rig.told("a")["failure"]


async def test_a_recording_of_a_stale_term_or_another_engine_is_refused(tmp_path: Path) -> None:
    async with live(config(tmp_path, [agreeing("a"), resident("b")]), Machine()) as rig:
        await rig.calm()
        rig.seat.take_recording("a", recording("uid-2"), epoch=5)
        with pytest.raises(StaleEpoch):
            rig.seat.take_recording("a", recording("uid-2"), epoch=4)
        with pytest.raises(WrongState, match="engine version 1 where 9 was recorded"):
            rig.seat.take_recording("a", recording("uid-2", version="9"), epoch=5)
        with pytest.raises(WrongState, match="the config has recorded tokens"):
            rig.seat.take_recording("b", recording("uid-2"), epoch=5)


async def test_an_engine_of_another_version_fails_for_that_and_not_for_its_tokens(tmp_path: Path) -> None:
    owned = resident("a")
    owned["proof"] |= {"ownership": {"engineVersion": "0.32", "dtype": "bfloat16"}}
    for seed in (1, 2):  # whether or not its tokens are other ones
        machine = Machine(engines={"a": [FakeEngine(seed=seed, version="0.33")]})
        async with live(config(tmp_path, [owned]), machine) as rig:
            await rig.until(a="Failed")
            assert (
                "the proof belongs to another engine (engine version 0.33 where 0.32 was recorded)"
                in rig.told("a")["failure"]
            )


async def test_a_promotion_that_takes_over_from_a_probe_resumes_the_engine_first(tmp_path: Path) -> None:
    engine = FakeEngine(takes={"probe": 500})
    async with live(config(tmp_path, [resident("a")]), Machine(engines={"a": [engine]})) as rig:
        await rig.until(a="Proving")
        await asyncio.sleep(1)
        engine.paused, engine.kv_held = True, False  # as a probe leaves it that is cut short
        rig.record("a").kv_released = True
        assert (await rig.order("resume", "a")).state == "Serving"
