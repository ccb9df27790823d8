"""Parking, unparking and making room, in virtual time."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.warmpool.agent.rig import FakeEngine, Machine, Rig, config, live, paused, resident
from warmpool.engines.port import Completion
from warmpool.errors import (
    AgentBusy,
    AgentError,
    DeadlineExceeded,
    EngineError,
    EngineLost,
    EngineRejected,
    NoRoom,
    WrongState,
)

pytestmark = pytest.mark.looptime
GIB = 2**30


async def ready(rig: Rig, policies: str = "ab") -> None:
    await rig.until(**paused(policies))
    for policy in policies:
        rig.machine.engine(policy).calls.clear()
    rig.seen.clear()


async def test_weights_go_to_host_memory_and_back(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a"), resident("b")]), machine) as rig:
        await ready(rig)
        before = machine.used()
        parked = await rig.order("park", "a")
        assert (parked.state, parked.phases.keys()) == ("Parked", {"park"})
        assert machine.used() == before - 10 * GIB
        assert rig.told("a")["parkedBytes"] == 10 * GIB
        assert rig.seen["a"] == ["Parking", "Parked"]
        unparked = await rig.order("unpark", "a")
        assert (unparked.state, unparked.phases.keys()) == ("Paused", {"unpark"})
        assert machine.used() == before
        assert rig.seen["a"][2:] == ["Unparking", "Paused"]
        assert rig.told("a")["kvReleased"]
        assert rig.told("a")["provenAt"] is not None


async def test_what_is_already_so_is_done_at_once(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a"), resident("b")]), Machine()) as rig:
        await ready(rig)
        assert (await rig.order("unpark", "a")).phases == {}
        await rig.order("park", "a")
        assert (await rig.order("park", "a")).phases == {}
        assert (await rig.order("drain", "a")).state == "Parked"
        assert rig.machine.engine("a").calls.count("park") == 1


async def test_a_parked_resident_is_unparked_and_promoted_in_one_order(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a"), resident("b")]), Machine()) as rig:
        await ready(rig)
        await rig.order("park", "a")
        rig.machine.engine("a").takes |= {"unpark": 2.0, "resume": 0.5}
        promoted = await rig.order("resume", "a")
        assert promoted.state == "Serving"
        assert list(promoted.phases) == ["unpark", "kv", "canary", "open"]
        assert rig.seen["a"][2:] == ["Unparking", "Promoting", "Serving"]
        assert rig.told("a")["wakeSeconds"] == {"Parked": pytest.approx(2.5, abs=0.1)}
        await rig.order("drain", "a")
        await rig.order("pause", "a")
        await rig.order("resume", "a")
        assert rig.told("a")["wakeSeconds"].keys() == {"Parked", "KvReleased"}


async def test_wake_times_are_medians_of_the_last_sixteen(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")], kvWhenPaused="Keep"), Machine()) as rig:
        await ready(rig, "a")
        for turn in range(20):
            rig.machine.engine("a").takes["resume"] = 100.0 if turn < 4 else 1.0 + turn % 2
            await rig.order("resume", "a", seconds=1000)
            await rig.order("drain", "a")
            await rig.order("pause", "a")
        assert rig.told("a")["wakeSeconds"] == {"Paused": pytest.approx(1.5, abs=0.1)}


async def test_a_seat_that_keeps_kv_memory_resumes_an_unparked_resident_without_it(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")], kvWhenPaused="Keep"), Machine()) as rig:
        await ready(rig, "a")
        assert not rig.told("a")["kvReleased"]
        await rig.order("park", "a")
        await rig.order("unpark", "a")
        assert rig.told("a")["kvReleased"]
        assert (await rig.order("resume", "a")).state == "Serving"


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "state", "words"),
    [
        ("park", "Serving", "only a paused resident can be parked"),
        ("unpark", "Serving", "only a parked resident can be unparked"),
        ("prove", "Parked", "only a paused resident can be proven"),
        ("pause", "Parked", "only a drained resident can be paused"),
    ],
)
async def test_orders_that_make_no_sense_are_refused(
    tmp_path: Path, kind: str, state: str, words: str
) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        await rig.order({"Serving": "resume", "Parked": "park"}[state], "a")
        with pytest.raises(WrongState, match=words):
            await rig.order(kind, "a")
        assert rig.states() == {"a": state}


@pytest.mark.parametrize(
    ("memory", "engine", "error", "words"),
    [
        pytest.param({"hostMiB": 0}, {}, WrongState, "memory.hostMiB is 0", id="nobody is parked here"),
        pytest.param(
            {"hostMiB": 9 * 1024},
            {},
            NoRoom,
            "weights take 10240 MiB of host memory, and memory.hostMiB is 9216",
            id="too little host memory",
        ),
        pytest.param(
            {"hostMiB": 99 * 1024},
            {"parks": False},
            WrongState,
            r"WeightsParking is refused \(SwitchedOff\): scripted",
            id="the engine can't",
        ),
    ],
)
async def test_what_can_not_be_parked_stays_paused(
    tmp_path: Path, memory: Any, engine: Any, error: type[AgentError], words: str
) -> None:
    machine = Machine(engines={"a": [FakeEngine(**engine)]})
    async with live(config(tmp_path, [resident("a")], memory=memory), machine) as rig:
        await ready(rig, "a")
        with pytest.raises(error, match=words):
            await rig.order("park", "a")
        assert rig.states() == {"a": "Paused"}
        assert "park" not in machine.engine("a").calls


async def test_a_refused_parking_may_be_tried_again_under_the_same_claim(tmp_path: Path) -> None:
    memory = {"hostMiB": 10 * 1024}
    async with live(config(tmp_path, [resident("a"), resident("b")], memory=memory), Machine()) as rig:
        await ready(rig)
        await rig.order("park", "b")
        with pytest.raises(NoRoom):
            await rig.order("park", "a", claim="patient")
        rig.machine.process("b").end("killed")
        await rig.until(b="Paused")
        assert (await rig.order("park", "a", claim="patient")).state == "Parked"


@pytest.mark.parametrize(
    ("kind", "error", "state"), [("park", WrongState, "Paused"), ("unpark", NoRoom, "Parked")]
)
async def test_an_engine_that_says_no_is_where_it_was(
    tmp_path: Path, kind: str, error: type[AgentError], state: str
) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        if kind == "unpark":
            await rig.order("park", "a")
        rig.machine.engine("a").fails[kind] = EngineRejected("not now")
        with pytest.raises(error, match=f"{kind}: not now; a is {state.lower()} as before"):
            await rig.order(kind, "a")
        assert rig.states() == {"a": state}
        assert (await rig.order("resume", "a")).state == "Serving"


# -------------------------------------------------------------------- deadlines


@pytest.mark.parametrize(("kind", "state"), [("park", "Paused"), ("unpark", "Parked")])
async def test_a_move_that_is_late_is_undone_within_its_deadline(
    tmp_path: Path, kind: str, state: str
) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        if kind == "unpark":
            await rig.order("park", "a")
        back = {"park": "unpark", "unpark": "park"}[kind]
        rig.machine.engine("a").takes |= {kind: 1000.0, back: 1.0}
        began = asyncio.get_running_loop().time()
        with pytest.raises(DeadlineExceeded, match=f"a is {state.lower()} again"):
            await rig.order(kind, "a", seconds=10)
        assert asyncio.get_running_loop().time() - began < 10
        assert rig.states() == {"a": state}
        assert rig.machine.engine("a").parked is (state == "Parked")
        assert (await rig.order("resume", "a")).state == "Serving"


async def test_an_undoing_is_tried_until_the_weights_have_arrived(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        engine = rig.machine.engine("a")
        engine.takes["park"] = 1000.0
        engine.fails["unpark"] = EngineRejected("its weights are on their way")
        with pytest.raises(DeadlineExceeded):
            await rig.order("park", "a", seconds=10)
        assert rig.states() == {"a": "Paused"}
        assert engine.calls.count("unpark") == 2


async def test_a_move_that_can_not_be_undone_ends_the_engine(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        process = rig.machine.process("a")
        process.engine.takes |= {"park": 1000.0, "unpark": 1000.0}
        with pytest.raises(EngineError, match="undoing it failed too"):
            await rig.order("park", "a", seconds=10)
        assert process.exited
        await rig.until(a="Paused")
        assert rig.told("a")["restarts"] == 1


async def test_a_promotion_of_a_parked_resident_that_is_late_leaves_it_parked(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        await rig.order("park", "a")
        rig.machine.engine("a").takes |= {"unpark": 1000.0, "park": 1.0}
        with pytest.raises(DeadlineExceeded, match="a is parked again"):
            await rig.order("resume", "a", seconds=10)
        assert rig.states() == {"a": "Parked"}


# -------------------------------------------------------------------- promotions come first


@pytest.mark.parametrize("kind", ["park", "unpark"])
async def test_a_promotion_follows_a_move_of_the_same_resident(tmp_path: Path, kind: str) -> None:
    async with live(config(tmp_path, [resident("a"), resident("b")]), Machine()) as rig:
        await ready(rig)
        if kind == "unpark":
            await rig.order("park", "a")
        rig.machine.engine("a").takes[kind] = 3.0
        async with asyncio.TaskGroup() as tasks:
            move = tasks.create_task(rig.order(kind, "a"))
            await rig.until(a={"park": "Parking", "unpark": "Unparking"}[kind])
            with pytest.raises(AgentBusy):
                await rig.order("resume", "b")
            promotion = tasks.create_task(rig.order("resume", "a"))
        assert move.result().policy == "a"
        assert promotion.result().state == "Serving"


async def test_a_promotion_whose_time_ends_while_weights_move_has_begun_nothing(tmp_path: Path) -> None:
    async with live(config(tmp_path, [resident("a")]), Machine()) as rig:
        await ready(rig, "a")
        rig.machine.engine("a").takes["park"] = 20.0
        async with asyncio.TaskGroup() as tasks:
            move = tasks.create_task(rig.order("park", "a", seconds=100))
            await rig.until(a="Parking")
            with pytest.raises(AgentBusy, match="park of a has not ended in time; nothing was begun"):
                await rig.order("resume", "a", seconds=5)
        assert move.result().state == "Parked"
        assert (await rig.order("resume", "a")).state == "Serving"  # the slot is free again


# -------------------------------------------------------------------- room


def four() -> list[dict[str, Any]]:
    """Residents of whom three fit paused: 3 x 11 + 21 + 2 of 60 GiB."""
    return [resident(policy) for policy in "abcd"]


async def test_tiers_fill_in_the_config_s_order(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB)
    async with live(config(tmp_path, four()), machine) as rig:
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Paused", "d": "Parked"}
        assert rig.seen["c"][-4:] == [
            "Parking",
            "Parked",
            "Unparking",
            "Paused",
        ]  # it made room for the last one
        assert [rig.told(policy)["waiting"] for policy in "abcd"] == [""] * 4
        assert machine.peak <= 60 * GIB
        memory = rig.seat.state()["memory"]
        assert memory == {
            "deviceBytes": 60 * GIB,
            "pausedBytes": 34 * GIB,  # a parked one's context is still there
            "largestComputeBytes": 21 * GIB,
            "reserveBytes": -(-60 * GIB * 2 // 100),
            "freeBytes": 5 * GIB - -(-60 * GIB * 2 // 100),
            "hostBytes": 100 * GIB,
            "parkedBytes": 20 * GIB,  # and the copy of the one that made room
            "verified": True,
            "stageBytes": 0,
            "stageReason": "",
            "gpus": [],
        }


async def test_without_host_memory_the_last_one_stays_cold_and_says_why(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB)
    async with live(config(tmp_path, four(), memory={}), machine) as rig:
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Paused", "d": "Starting"}
        assert machine.starts("d") == 0
        told = rig.told("d")
        assert told["pid"] is None
        assert told["waiting"].startswith(
            "no room for d: with it 45056 MiB held + 21504 MiB for computing + 1229 MiB reserve of 61440 MiB device memory, "
            "6349 MiB too much; nobody there may be parked"
        )
        with pytest.raises(WrongState, match="d is Starting: no room for d"):
            await rig.order("resume", "d")


async def test_a_cold_one_starts_when_somebody_was_parked_for_it(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB)
    memory = {"hostMiB": 10 * 1024}  # enough for one, and so for nobody who has to swap
    async with live(config(tmp_path, four(), memory=memory), machine) as rig:
        await rig.calm()
        assert rig.states()["d"] == "Starting"
        await rig.order("park", "b")
        await rig.until(d="Paused")
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Parked", "c": "Paused", "d": "Paused"}


@pytest.mark.parametrize(
    ("others", "parked"),
    [
        pytest.param({}, "c", id="the least needed"),
        pytest.param({"displace": ["b", "a"]}, "b", id="the first that was named"),
        pytest.param({"displace": ["nobody", "d", "a"]}, "a", id="strangers and itself are passed over"),
    ],
)
@pytest.mark.parametrize("kind", ["unpark", "resume"])
async def test_room_is_made_by_parking_others(tmp_path: Path, kind: str, others: Any, parked: str) -> None:
    async with live(config(tmp_path, four()), Machine(total=60 * GIB)) as rig:
        await rig.calm()
        done = await rig.order(kind, "d", **others)
        assert list(done.phases)[:2] == ["displace", "unpark"]
        assert done.state == {"unpark": "Paused", "resume": "Serving"}[kind]
        assert rig.states() == {**dict.fromkeys("abc", "Paused"), "d": done.state, parked: "Parked"}
        await rig.calm()  # and nobody brings it back: whoever ordered this wanted it so
        assert rig.states()[parked] == "Parked"


@pytest.mark.parametrize(
    ("prepare", "order", "words"),
    [
        pytest.param([], [], "nobody there may be parked", id="nobody was named"),
        pytest.param(
            [("resume", "a")], ["a"], "nobody there may be parked", id="the one that was named computes"
        ),
    ],
)
async def test_an_unparking_without_room_is_refused_with_figures(
    tmp_path: Path, prepare: Sequence[tuple[str, str]], order: Sequence[str], words: str
) -> None:
    async with live(config(tmp_path, four()), Machine(total=60 * GIB)) as rig:
        await rig.calm()
        for kind, policy in prepare:
            await rig.order(kind, policy)
        with pytest.raises(NoRoom, match=r"no room for d: with it .* MiB device memory") as refused:
            await rig.order("unpark", "d", displace=list(order))
        assert refused.value.status == 507
        assert words in str(refused.value)
        assert rig.states()["d"] == "Parked"


async def test_one_that_fails_while_it_is_parked_for_another_has_left_its_room_all_the_same(
    tmp_path: Path,
) -> None:
    async with live(config(tmp_path, four()), Machine(total=60 * GIB)) as rig:
        await rig.calm()
        rig.machine.engine("c").fails["park"] = EngineLost("it died")
        assert (await rig.order("resume", "d")).state == "Serving"
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Failed", "d": "Serving"}


async def test_one_that_can_not_be_parked_in_time_refuses_the_promotion(tmp_path: Path) -> None:
    async with live(config(tmp_path, four()), Machine(total=60 * GIB)) as rig:
        await rig.calm()
        rig.machine.engine("c").takes |= {"park": 1000.0}
        with pytest.raises(DeadlineExceeded, match=r"displace: .*c is paused again; d is Parked as before"):
            await rig.order("resume", "d", seconds=10)
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Paused", "d": "Parked"}


async def test_a_failed_resident_displaces_the_least_needed_while_it_starts_again(tmp_path: Path) -> None:
    async with live(config(tmp_path, four()), Machine(total=60 * GIB)) as rig:
        await rig.calm()
        rig.machine.process("d").end("killed")
        await rig.until(d="Failed")
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Paused", "d": "Parked"}
        assert rig.machine.starts("d") == 2


async def test_an_engine_that_never_starts_gives_those_that_it_displaced_their_room_back(
    tmp_path: Path,
) -> None:
    class Broken(FakeEngine):
        async def complete(self, *_: Any, **__: Any) -> Completion:
            raise EngineLost("it dies whenever it computes")

    machine = Machine(total=60 * GIB, engines={"d": [Broken() for _ in range(9)]})
    async with live(config(tmp_path, four()), machine) as rig:
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Paused", "d": "Failed"}
        assert "given up after 5 failures" in rig.told("d")["failure"]


async def test_an_engine_that_does_not_take_its_arguments_is_given_up_at_once_with_its_words(
    tmp_path: Path,
) -> None:
    machine = Machine(total=60 * GIB, engines={"d": [FakeEngine(load_seconds=50)]})
    async with live(config(tmp_path, four()), machine) as rig:
        await rig.until(d="Loading")
        process = rig.machine.process("d")
        process.status = 2
        process.end("engine process 7 exited with status 2; log: error: --max-model-len is too large")
        await rig.calm()
        assert rig.machine.starts("d") == 1
        failure = rig.told("d")["failure"]
        assert failure.startswith("given up, ")
        assert "--max-model-len is too large" in failure
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Paused", "d": "Failed"}


async def test_a_start_up_whose_memory_a_promotion_needs_gives_way_and_begins_again(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB, engines={"c": [FakeEngine(load_seconds=50)]})
    residents = [resident(policy) for policy in "abc"]
    async with live(config(tmp_path, residents), machine) as rig:
        await rig.until(a="Paused", b="Paused", c="Loading")
        assert (
            await rig.order("resume", "a")
        ).state == "Serving"  # 3 x 11 GiB and 21 for each of two are too much
        assert machine.process("c").exited
        assert "its start-up gave way: a is promoted" in rig.told("c")["failure"]
        await asyncio.sleep(100)
        assert machine.starts("c") == 1
        await rig.order("drain", "a")
        await rig.order("pause", "a")
        await rig.until(c="Paused")
        assert machine.starts("c") == 2


async def test_a_promotion_beside_a_start_up_for_which_there_is_room_disturbs_nobody(tmp_path: Path) -> None:
    machine = Machine(total=100 * GIB, engines={"b": [FakeEngine(load_seconds=50)]})
    async with live(config(tmp_path, [resident("a"), resident("b")]), machine) as rig:
        await rig.until(a="Paused", b="Loading")
        assert (await rig.order("resume", "a")).state == "Serving"
        assert not machine.process("b").exited


async def test_a_promotion_waits_for_one_that_is_displaced_for_a_start_up(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB, engines={"c": [FakeEngine(takes={"park": 4.0})]})
    async with live(config(tmp_path, four()), machine) as rig:
        await rig.until(c="Parking")
        promoted = await rig.order("resume", "c")
        assert promoted.state == "Serving"
        assert list(promoted.phases) == ["preempt", "unpark", "kv", "canary", "open"]
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Serving", "d": "Starting"}


async def test_one_that_was_displaced_and_then_parked_by_order_stays_parked(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB)
    async with live(config(tmp_path, four()), machine) as rig:
        await rig.until(c="Parked")
        assert (await rig.order("park", "c")).phases == {}
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Paused", "c": "Parked", "d": "Paused"}


async def test_memory_that_somebody_else_holds_is_told_with_figures(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB)
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await ready(rig, "a")
        machine.foreign = 40 * GIB
        with pytest.raises(
            NoRoom, match=r"it takes \d+ MiB more, and 9216 MiB of 61440 MiB .* somebody else holds it"
        ):
            await rig.order("resume", "a")
        assert rig.states() == {"a": "Paused"}
        machine.foreign = 0
        assert (await rig.order("resume", "a")).state == "Serving"


async def test_a_start_waits_for_memory_that_somebody_else_holds(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB, foreign=40 * GIB)
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await asyncio.sleep(100)
        assert "somebody else holds it" in rig.told("a")["waiting"]
        assert machine.starts("a") == 0
        machine.foreign = 0
        await rig.until(a="Paused")
        assert rig.told("a")["waiting"] == ""


async def test_without_figures_nothing_is_refused(tmp_path: Path) -> None:
    machine = Machine(total=60 * GIB, measures=False)
    bare = [
        {key: value for key, value in each.items() if not key.endswith("MiB")}
        for each in (resident("a"), resident("b"))
    ]
    async with live(config(tmp_path, bare), machine) as rig:
        await ready(rig)
        assert (await rig.order("resume", "a")).state == "Serving"
        memory = rig.seat.state()["memory"]
        assert (memory["deviceBytes"], memory["pausedBytes"], memory["verified"]) == (60 * GIB, 0, False)


async def test_an_engine_that_turns_out_too_large_for_the_seat_goes_cold(tmp_path: Path) -> None:
    """Its config says 11 GiB and it holds 31; there is no host memory to park anybody."""
    machine = Machine(total=60 * GIB, engines={"b": [FakeEngine(weights=30 * GIB, kv=10 * GIB)]})
    async with live(config(tmp_path, [resident("a"), resident("b", kv=10)], memory={}), machine) as rig:
        await rig.calm()
        assert rig.states() == {"a": "Paused", "b": "Starting"}
        assert machine.process("b").exited
        assert "no room for b" in rig.told("b")["waiting"]
        assert machine.starts("b") == 1
