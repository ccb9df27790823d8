"""What the node says of a seat's GPUs: nobody is promoted onto one that is Suspect or Bad, and what serves may finish."""

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.unit.warmpool.agent.rig import FakeEngine, Machine, config, live, paused, resident
from warmpool.errors import DeadlineExceeded, EngineError, EngineLost, EngineRejected, GpuUnfit, ProofFailed
from warmpool.nodehealth.client import SeatHealth
from warmpool.seats import GpuWord, Verdict
from warmpool.states import ResidentState

pytestmark = pytest.mark.looptime
WORD = "GPU-a is Bad: Xid 79"
NODE = "unix:///run/node.sock"


def said_of(word: str) -> SeatHealth:
    """What the node says of the one GPU."""
    told = GpuWord(uuid="GPU-a", word=word, reason="" if word == "Ok" else "Xid 79")
    return SeatHealth(Verdict(word), known=True, reason=WORD if told.reason else "", words=(told,))


def bad() -> SeatHealth:
    return said_of("Bad")


@pytest.mark.parametrize("verdict", [Verdict.SUSPECT, Verdict.BAD])
async def test_nobody_is_promoted_onto_an_unfit_gpu_and_somebody_is_when_it_is_well(
    tmp_path: Path, verdict: Verdict
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = SeatHealth(verdict, known=True, reason=WORD)
        calls = list(machine.engine("a").calls)
        with pytest.raises(GpuUnfit, match=WORD):
            await rig.order("resume", "a")
        assert (rig.told("a")["state"], machine.engine("a").calls) == ("Paused", calls)
        machine.gpu_health = SeatHealth(Verdict.OK, known=True)
        await rig.order("resume", "a")
        assert rig.told("a")["state"] == "Serving"


@pytest.mark.parametrize("order", [{}, {"gpuHealth": "Observe"}], ids=["enforced", "observed"])
async def test_a_gpu_that_falls_ill_in_the_promotion_is_given_up_before_anybody_is_served(
    tmp_path: Path, order: dict[str, str]
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig, asyncio.TaskGroup() as tasks:
        await rig.until(**paused("a"))
        engine = machine.engine("a")
        engine.takes["resume"] = 1.0

        async def fall_ill() -> None:
            await asyncio.sleep(0.5)
            machine.gpu_health = SeatHealth(Verdict.SUSPECT, known=True, reason=WORD)

        tasks.create_task(fall_ill())
        if order:
            await rig.order("resume", "a", **order)
            assert rig.told("a")["state"] == "Serving"
            return
        with pytest.raises(GpuUnfit, match=f"{WORD}; a is paused again"):
            await rig.order("resume", "a")
        assert (rig.told("a")["state"], engine.paused, engine.is_open) == ("Paused", True, False)
        assert machine.starts("a") == 1


async def test_a_promotion_onto_a_gpu_that_fell_ill_is_undone_once_and_says_if_that_fails(
    tmp_path: Path,
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig, asyncio.TaskGroup() as tasks:
        await rig.until(**paused("a"))
        engine = machine.engine("a")
        engine.takes["resume"] = 1.0
        engine.fails["pause"] = EngineRejected("it will not")
        before = engine.calls.count("pause")

        async def fall_ill() -> None:
            await asyncio.sleep(0.5)
            machine.gpu_health = SeatHealth(Verdict.BAD, known=True, reason=WORD)

        tasks.create_task(fall_ill())
        with pytest.raises(EngineError, match=f"{WORD}; undoing it failed too: it will not"):
            await rig.order("resume", "a")
        assert engine.calls.count("pause") == before + 1


async def test_unknown_is_no_reason(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = SeatHealth(Verdict.OK, known=False, reason="it hangs")
        await rig.order("resume", "a")
        assert rig.told("a")["state"] == "Serving"


async def test_what_serves_may_finish_and_pause(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        await rig.order("resume", "a")
        machine.gpu_health = SeatHealth(Verdict.BAD, known=True, reason=WORD)
        await rig.order("resume", "a")
        for kind in ("drain", "pause"):
            await rig.order(kind, "a")
        assert rig.told("a")["state"] == "Paused"


async def test_a_seat_that_only_observes_promotes_all_the_same(tmp_path: Path) -> None:
    machine = Machine(gpu_health=SeatHealth(Verdict.BAD, known=True, reason=WORD))
    async with live(config(tmp_path, [resident("a")], gpuHealth="Observe"), machine) as rig:
        await rig.until(**paused("a"))
        await rig.order("resume", "a")
        assert rig.told("a")["state"] == "Serving"


async def test_proofs_are_told_the_node_as_canaries(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        assert machine.canaries == [True]
        await rig.order("prove", "a")
        assert machine.canaries == [True, True]
        assert len(set(machine.proofs)) == 1


@pytest.mark.parametrize("order", ["prove", "resume"])
async def test_a_resident_that_answers_wrong_is_told_the_node_as_the_proof_that_it_has_passed_before(
    tmp_path: Path, order: str
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.engine("a").seed = 2
        with pytest.raises(ProofFailed):
            await rig.order(order, "a")
        assert machine.canaries == [True, False]
        assert len(set(machine.proofs)) == 1


async def test_a_first_proof_that_fails_is_told_with_the_engines_version(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.engines["a"] = [FakeEngine(seed=2)]
        machine.process("a").end("killed")
        await rig.seat.board.until(lambda: machine.canaries[:2] == [True, False])
        assert len(set(machine.proofs)) == 1


async def test_what_a_pre_flight_finds_of_a_gpu_is_told_the_node(tmp_path: Path) -> None:
    machine = Machine(engines={"a": [FakeEngine(load_seconds=1_000.0)]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        for outcome, faults in (
            ("TooLittleFree: GPU-1: 1 MiB are free", []),
            (
                "Passed: GPU-0: all | pre-flight: MemoryWrong: GPU-1: 2 words | and more",
                [("GPU-1", "a pre-flight found MemoryWrong: 2 words")],
            ),
        ):
            await rig.seat.board.until(lambda: bool(machine.processes) and not machine.process("a").exited)
            starts = machine.starts("a")
            machine.process("a").end(f"it ended with status 69: pre-flight: {outcome}")
            await rig.seat.board.until(lambda before=starts: machine.starts("a") > before)
            assert machine.faults == faults


async def test_a_pre_flight_that_finds_something_is_tried_again_ever_later_and_nobody_is_given_up_for_it(
    tmp_path: Path,
) -> None:
    machine = Machine(engines={"a": [FakeEngine(load_seconds=1_000.0)]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        began, loop = [0.0], asyncio.get_running_loop()
        for tries in range(1, 9):
            await rig.seat.board.until(lambda tries=tries: machine.starts("a") == tries)
            began.append(loop.time())
            await rig.seat.board.until(lambda: rig.record("a").process is machine.process("a"))
            machine.process("a").end("it ended with status 69: pre-flight: RowPending: GPU-1: a row waits")
            await rig.until(a=ResidentState.FAILED)
            assert "pre-flight: RowPending: GPU-1: a row waits" in rig.told("a")["failure"]
            assert rig.told("a")["refused"]
        waits = [round(after - before) for before, after in itertools.pairwise(began[1:])]
        assert waits == [15, 30, 60, 120, 240, 300, 300]


async def test_what_one_life_s_end_said_of_arguments_gives_up_no_later_one(tmp_path: Path) -> None:
    broken = FakeEngine(fails={"complete": EngineLost("connection reset")})
    machine = Machine(engines={"a": [FakeEngine(load_seconds=1_000.0), broken, FakeEngine()]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(a="Loading")
        machine.process("a").status = 2
        machine.process("a").end("it ended with status 2: pre-flight: RowPending: GPU-1: a row waits")
        await rig.until(a="Failed")
        await rig.until(**paused("a"))
        assert machine.starts("a") == 3


@pytest.mark.parametrize(
    "ended",
    ["it ended with status 1", "it ended with status 1: pre-flight: Passed: GPU-1: all | out of memory"],
)
async def test_a_failure_of_the_engine_itself_is_told_as_one(tmp_path: Path, ended: str) -> None:
    machine = Machine(engines={"a": [FakeEngine(load_seconds=1_000.0)]})
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.seat.board.until(lambda: bool(machine.processes))
        machine.process("a").end(ended)
        await rig.until(a=ResidentState.FAILED)
        assert not rig.told("a")["refused"]


async def test_nothing_is_loaded_onto_a_bad_gpu_until_it_is_well_and_the_reason_is_told(
    tmp_path: Path,
) -> None:
    machine = Machine(gpu_health=bad())
    async with live(config(tmp_path, [resident("a")], nodeAgent=NODE), machine) as rig:
        await rig.seat.board.until(lambda: bool(rig.record("a").waiting))
        await asyncio.sleep(60)
        assert (machine.processes, rig.told("a")["state"]) == ([], "Starting")
        assert (rig.told("a")["waiting"], rig.told("a")["restarts"]) == ("GPU GPU-a is Bad: Xid 79", 0)
        machine.gpu_health = said_of("Suspect")
        await rig.until(**paused("a"))
        assert (rig.told("a")["waiting"], machine.starts("a")) == ("", 1)


async def test_an_engine_that_dies_on_a_gpu_that_fell_ill_begins_again_when_that_is_well(
    tmp_path: Path,
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")], nodeAgent=NODE), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = bad()
        machine.process("a").end("killed by Xid 79")
        await asyncio.sleep(60)
        assert (machine.starts("a"), rig.told("a")["restarts"]) == (1, 1)
        assert "GPU-a is Bad" in rig.told("a")["waiting"]
        machine.gpu_health = said_of("Ok")
        await rig.until(**paused("a"))
        assert machine.starts("a") == 2


@pytest.mark.parametrize("why", ["observed", "silent"])
async def test_a_seat_that_only_observes_or_is_told_nothing_loads_all_the_same(
    tmp_path: Path, why: str
) -> None:
    health = bad() if why == "observed" else SeatHealth(Verdict.OK, known=False, reason="it hangs")
    settings = {"gpuHealth": "Observe"} if why == "observed" else {}
    async with live(config(tmp_path, [resident("a")], **settings), Machine(gpu_health=health)) as rig:
        await rig.until(**paused("a"))


async def test_an_engine_that_does_not_answer_in_time_says_nothing_of_its_gpu(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.engine("a").takes["complete"] = 60.0
        with pytest.raises(DeadlineExceeded):
            await rig.order("resume", "a")
        assert machine.canaries == [True]


async def test_what_the_node_says_is_told_within_a_second_and_unknown_once_it_is_silent(
    tmp_path: Path,
) -> None:
    machine = Machine()
    settings = config(tmp_path, [resident("a")], nodeAgent=NODE)
    async with live(settings, machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = bad()
        before = rig.seat.board.seq
        await asyncio.sleep(1.5)
        (word,) = rig.seat.state()["gpuHealth"]
        assert (word["uuid"], word["verdict"], word["reason"]) == ("GPU-a", "Bad", "Xid 79")
        assert word["ageMilliseconds"] <= 1500
        assert rig.seat.board.seq > before
        machine.gpu_health = SeatHealth(Verdict.OK, known=False, reason="no answer")
        await asyncio.sleep(12)
        assert [each["verdict"] for each in rig.seat.state()["gpuHealth"]] == ["Unknown"]


async def test_an_order_of_a_fleet_that_observes_promotes_all_the_same(tmp_path: Path) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")]), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = bad()
        await rig.order("resume", "a", gpuHealth="Observe")
        assert rig.told("a")["state"] == "Serving"


async def test_an_order_of_a_fleet_that_enforces_is_refused_whatever_the_seat_was_configured_to_do(
    tmp_path: Path,
) -> None:
    machine = Machine()
    async with live(config(tmp_path, [resident("a")], gpuHealth="Observe"), machine) as rig:
        await rig.until(**paused("a"))
        machine.gpu_health = bad()
        with pytest.raises(GpuUnfit):
            await rig.order("resume", "a", gpuHealth="Enforce")
