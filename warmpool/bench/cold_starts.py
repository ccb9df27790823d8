"""Cold starts of one engine on this machine, one after the other in one run: as it is, forked, with staged weights, and after a crash.

    python -m warmpool.bench.cold_starts --shape llama-8b --directory /dev/shm/cold-starts --out cold-starts.json

Each start is a real process with real weights and a real first request. Arms, in this order:

- `first`: the first start of all, with whatever compile caches there are; `plain`: the same again, with what that one has compiled;
- `zygote`: forked from a process that has imported everything;
- `staged`: forked, and the weights are in the stage daemon's host memory; `deferred`: the same, and graphs are captured later;
- `crash`: an engine that computes with the stage daemon's copy on the device is killed while it answers; from the kill to the first token
  of the next one, which attaches to the same copy. Where there is no device it takes the staged weights. `crash-deferred`: the same, and
  both capture their graphs later;
- `neighbour`: an engine serves requests at random intervals, alone and while other engines start on the same device again and again: from the
  files, from the files with a bandwidth cap, and with staged weights. Requests are told for whole starts, and for those alone that waited
  while weights were read.

Every row is printed as a line of JSON as soon as it is there; then come a table and the targets. Exit code 1: a target was missed, or
time ran out.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from loader.errors import LoaderError
from loader.stage.connection import StageClient
from warmpool.bench.neighbour import Answered, tail
from warmpool.coldstart.measure import MODEL, Setup, Started, started, surroundings
from warmpool.coldstart.steps import Step
from warmpool.engines.deadline import Deadline
from warmpool.errors import EngineError, StartFailed, WarmpoolError
from warmpool.lifeline import die_with_parent
from warmpool.standins import stood_for
from warmpool.timeline import Phase, phase_of

ARMS: Final = ("first", "plain", "zygote", "staged", "deferred", "crash", "crash-deferred", "neighbour")
TARGETS: Final[Mapping[str, float]] = {"staged": 2.5, "crash": 1.5, "crash-deferred": 1.5}
"""Seconds from the order to start, or from the kill, to the first token: this project's own, for 16 GB of weights on one H200."""
AIMS: Final[Mapping[str, float]] = {"staged": 1.5}

_PROMPT: Final = "An engine that comes back answers as the one before it"
_ANSWER_TOKENS: Final = 24
_LONG_ANSWER_TOKENS: Final = 400
_REQUEST_SECONDS: Final = 60.0
_STAGE_SECONDS: Final = 120.0
_MAKE_SECONDS: Final = 180.0
_HOLD_SECONDS: Final = 60.0
_ANSWERING_SECONDS: Final = 0.2
"""How long an engine answers before it is killed."""
_LOOK_SECONDS: Final = 0.1
_CASE_SECONDS: Final = 45.0
"""How long engines are started beside a neighbour while too few requests have waited for their weights."""
_ENDING_SECONDS: Final = 10.0
"""Left for what is under way to end."""
_GIGABYTE: Final = 1e9
_CRASH_ARMS: Final = frozenset({"crash", "crash-deferred"})
_STAGE_ARMS: Final = frozenset({"staged", "deferred", "neighbour"}) | _CRASH_ARMS
_ZYGOTE_ARMS: Final = frozenset({"zygote"}) | _STAGE_ARMS

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        arms: which of `ARMS`.
        setup: how engines are started; each arm changes it.
        repeat: starts of each arm.
        requests: of the neighbour, at least, in each of its cases.
        per_second: its requests per second.
        cap: bandwidth cap, in GB per second.
        end: when all of it has to be over, in seconds of the machine's monotonic clock.
    """

    arms: frozenset[str]
    setup: Setup
    repeat: int
    requests: int
    per_second: float
    cap: float
    end: float

    @property
    def gpu(self) -> bool:
        """Whether it computes on one."""
        return self.setup.device != "cpu"


@dataclass(slots=True)
class Found:
    """What has been measured by now: a row for each start and for each of the neighbour's cases."""

    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Take a row, and print it."""
        self.rows.append(row)
        _say(json.dumps(row))

    def seconds(self, arm: str) -> list[float]:
        """What the starts of an arm took."""
        return [row["seconds"] for row in self.rows if row["arm"] == arm and "phases" in row]


async def measure(plan: Plan, found: Found) -> None:
    """Measure every arm of the plan.

    Raises:
        WarmpoolError: an engine, or what it needs, can't be started.
    """
    plain = replace(plan.setup, zygote=False)
    async with surroundings(plain) as environment:
        if "first" in plan.arms:
            await _starts("first", plain, environment, 1, found)
        if "plain" in plan.arms:
            await _starts("plain", plain, environment, plan.repeat, found)
    if not plan.arms & _ZYGOTE_ARMS:
        return
    forked = replace(plan.setup, zygote=True)
    began = time.monotonic()
    async with surroundings(forked) as environment:
        found.add({"arm": "zygote", "imported": round(time.monotonic() - began, 3)})
        if "zygote" in plan.arms:
            await _starts("zygote", forked, environment, plan.repeat, found)
        if plan.arms & _STAGE_ARMS:
            await _with_stage(replace(plan, setup=forked), environment, found)


async def _with_stage(plan: Plan, environment: Mapping[str, str], found: Found) -> None:
    began = time.monotonic()
    async with _stage_daemon(plan) as socket:
        found.add({"arm": "staged", "staging": round(time.monotonic() - began, 3)})
        staged = _with(plan.setup, "--stage", f"unix://{socket}")
        if "staged" in plan.arms:
            await _starts("staged", staged, environment, plan.repeat, found)
        deferred = _with(staged, "--defer-capture")
        if "deferred" in plan.arms:
            await _starts("deferred", deferred, environment, plan.repeat, found)
        if plan.arms & _CRASH_ARMS:
            async with _held(plan, socket, found):
                if "crash" in plan.arms:
                    await _crashes("crash", staged, environment, plan.repeat, found)
                if "crash-deferred" in plan.arms:
                    await _crashes("crash-deferred", deferred, environment, plan.repeat, found)
        if "neighbour" in plan.arms:
            await _neighbours(plan, staged, environment, found)


def _with(setup: Setup, *options: str) -> Setup:
    return replace(setup, options=(*setup.options, *options))


# ---------------------------------------------------------------- starts


async def _starts(arm: str, setup: Setup, environment: Mapping[str, str], count: int, found: Found) -> None:
    for _ in range(count):
        async with started(setup, environment) as running:
            found.add({"arm": arm, "seconds": _rounded(running.measured.seconds[Step.TOTAL])} | _row(running))


def _row(running: Started) -> Row:
    load, measured = running.startup.load, running.measured
    row: Row = {
        "phases": {name: _rounded(seconds) for name, seconds in running.startup.phases.items()},
        "firstRequest": _rounded(measured.seconds[Step.FIRST_REQUEST]),
        "steps": {str(step): _rounded(seconds) for step, seconds in measured.seconds.items()},
    }
    if load is not None:
        row |= {
            "tier": load.tier,
            "bytes": load.nbytes,
            "loadSeconds": _rounded(load.seconds),
            "passedOver": [f"{each.tier}: {each.code}" for each in load.passed_over],
        }
    if measured.notes.get(Step.IMPORT):
        row["note"] = measured.notes[Step.IMPORT]
    return row


def _rounded(seconds: float) -> float:
    return round(seconds, 4)


# ---------------------------------------------------------------- crashes


async def _crashes(arm: str, setup: Setup, environment: Mapping[str, str], count: int, found: Found) -> None:
    for _ in range(count):
        async with started(setup, environment) as first, asyncio.TaskGroup() as tasks:
            expected = await _answer(first)
            answering = tasks.create_task(_cut_off(first))
            await asyncio.wait([answering], timeout=_ANSWERING_SECONDS)
            (engine,) = stood_for(first.process.pid) or (first.process.pid,)
            began = time.monotonic()
            os.kill(engine, signal.SIGKILL)
            ended = await first.process.wait()
            noticed = time.monotonic() - began
            async with started(setup, environment) as again:
                seconds = noticed + again.measured.seconds[Step.TOTAL]
                row = {"arm": arm, "seconds": _rounded(seconds), "noticed": _rounded(noticed)}
                row |= _row(again) | {"cutOff": await answering, "ended": ended.partition(";")[0]}
                found.add(row | {"sameAnswer": await _answer(again) == expected})


async def _cut_off(running: Started) -> bool:
    """Ask for a long answer; whether the engine ended meanwhile."""
    try:
        await _answer(running, _LONG_ANSWER_TOKENS)
    except EngineError:
        return True
    return False


async def _answer(running: Started, tokens: int = _ANSWER_TOKENS) -> Sequence[int]:
    deadline = Deadline.after(_REQUEST_SECONDS)
    return await running.engine.complete(_PROMPT, tokens=tokens, deadline=deadline)


@asynccontextmanager
async def _held(plan: Plan, socket: Path, found: Found) -> AsyncIterator[None]:
    """Have the checkpoint held on the device until the block ends; where there is no device nothing can be held."""
    if not plan.gpu:
        yield
        return
    path = str(plan.setup.checkpoint)
    began = time.monotonic()
    await asyncio.to_thread(_ask_stage, socket, "hold", path)
    found.add({"arm": "crash", "holding": round(time.monotonic() - began, 3)})
    try:
        yield
    finally:
        await asyncio.to_thread(_ask_stage, socket, "release", path)


def _ask_stage(socket: Path, what: str, path: str) -> None:
    """Have the stage daemon hold or release.

    Raises:
        StartFailed: it refuses.
    """
    try:
        with StageClient(socket, timeout_seconds=_HOLD_SECONDS) as client:
            if what == "hold":
                client.hold(path, "0")
            else:
                client.release(path, "0")
    except LoaderError as error:
        raise StartFailed(f"stage {what}: {error}") from error


# ---------------------------------------------------------------- a serving neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """One start beside the neighbour, in seconds of the machine's monotonic clock."""

    begin: float
    weights: tuple[float, float]
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What starts beside the neighbour, and for how many seconds at the most."""

    case: str
    setup: Setup
    seconds: float


async def _neighbours(plan: Plan, staged: Setup, environment: Mapping[str, str], found: Found) -> None:
    """Have one engine serve, alone and beside others that start."""
    cap = ("--load-gigabytes-per-second", str(plan.cap))
    cases = {
        "files": plan.setup,
        f"files, {plan.cap:g} GB/s": _with(plan.setup, *cap),
        "staged": staged,
    }
    async with started(_with(staged, "--guard", "open"), environment) as serving:
        await _alone(plan, serving, found)
        for left, (case, setup) in zip(range(len(cases), 0, -1), cases.items(), strict=True):
            share = (plan.end - time.monotonic() - _ENDING_SECONDS) / left
            beside = _Beside(case=case, setup=setup, seconds=min(share, _CASE_SECONDS))
            await _load_beside(beside, plan, environment, serving, found)


async def _alone(plan: Plan, serving: Started, found: Found) -> None:
    async with _client(plan, serving) as asked:
        await _until(lambda: len(asked()) >= plan.requests)
    found.add({"arm": "neighbour", "loading": "nothing", "ttft": _tail(asked())})


async def _load_beside(
    beside: _Beside, plan: Plan, environment: Mapping[str, str], serving: Started, found: Found
) -> None:
    windows: list[_Window] = []
    rates: list[float] = []
    until = time.monotonic() + beside.seconds
    async with _client(plan, serving) as asked:
        while not windows or (
            time.monotonic() < until and len(_during_weights(asked(), windows)) < plan.requests
        ):
            begin = time.monotonic()
            async with started(beside.setup, environment) as other:
                windows.append(_window(begin, time.monotonic(), other))
                if (load := other.startup.load) is not None and load.rate is not None:
                    rates.append(load.rate / _GIGABYTE)
    during = [each for each in asked() if any(each.overlaps(one.begin, one.end) for one in windows)]
    found.add(
        {
            "arm": "neighbour",
            "loading": beside.case,
            "starts": len(windows),
            "weightsSeconds": _rounded(median(one.weights[1] - one.weights[0] for one in windows)),
            "gigabytesPerSecond": round(median(rates), 2) if rates else None,
            "ttft": _tail(during),
            "ttftDuringWeights": _tail(_during_weights(asked(), windows)),
        }
    )


def _during_weights(asked: Sequence[Answered], windows: Sequence[_Window]) -> list[Answered]:
    return [each for each in asked if any(each.overlaps(*one.weights) for one in windows)]


def _window(begin: float, end: float, other: Started) -> _Window:
    """Where in a start the weights were read; its phases follow each other from its beginning."""
    passed = begin
    weights = (begin, begin)
    for name, seconds in other.startup.phases.items():
        if phase_of(name) is Phase.WEIGHTS:
            weights = (passed, passed + seconds)
        passed += seconds
    return _Window(begin=begin, weights=weights, end=end)


@asynccontextmanager
async def _client(plan: Plan, serving: Started) -> AsyncIterator[Callable[[], list[Answered]]]:
    """Have a process ask the neighbour until the block ends; yields what returns the answers up to now, of which there is one already.

    Raises:
        StartFailed: no answer came.
    """
    answers = plan.setup.directory / f"answers-{time.monotonic_ns()}.jsonl"
    command = (sys.executable, "-m", "warmpool.bench.neighbour", serving.process.ports.public_url)
    with answers.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(*command, "--model", MODEL, "--per-second", str(plan.per_second)),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
        )
    assert process.stdin is not None
    try:
        if not await _until(lambda: bool(_read(answers)) or process.returncode is not None):
            raise StartFailed(f"the neighbour answers nothing within {_REQUEST_SECONDS:.0f} s")
        yield lambda: _read(answers)
        process.stdin.close()
        async with asyncio.timeout(_REQUEST_SECONDS):
            await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until(seen: Callable[[], bool]) -> bool:
    """Look until something is so, which nobody tells; whether it came in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_REQUEST_SECONDS):
            while not seen():  # noqa: ASYNC110 (a file has nothing to wait for)
                await asyncio.sleep(_LOOK_SECONDS)
            return True
    return False


def _read(answers: Path) -> list[Answered]:
    """Read what the client has told; a line that isn't whole yet is left for later."""
    lines = answers.read_text().rpartition("\n")[0].splitlines()
    return [Answered(**json.loads(line)) for line in lines]


def _tail(asked: Sequence[Answered]) -> Row:
    summed = tail(asked)
    times = {name: value for name, value in asdict(summed).items() if isinstance(value, float)}
    return {"requests": summed.requests, "failed": summed.failed} | {
        f"{name}Milliseconds": round(value * 1000, 2) if summed.requests else None
        for name, value in times.items()
    }


# ---------------------------------------------------------------- what it takes


@asynccontextmanager
async def _stage_daemon(plan: Plan) -> AsyncIterator[Path]:
    """Have a stage daemon with the checkpoint in host memory, and on a GPU with room to hold it there; yields its socket."""
    checkpoint, socket = plan.setup.checkpoint, plan.setup.directory / "stage.sock"
    budget = f"{_weights_bytes(checkpoint) * 1.1 / _GIGABYTE + 0.1:.3f}"
    command = [sys.executable, "-m", "loader", "stage", "run", str(checkpoint), "--budget", budget]
    command += ["--socket", str(socket)]
    if plan.gpu:
        command += ["--cuda", "--hold-budget", budget]
    parent = os.getpid()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent, signal.SIGKILL),
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(_STAGE_SECONDS):
            await _staged(process.stderr)
        yield socket
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _staged(errors: asyncio.StreamReader) -> None:
    """Wait until the stage daemon has staged what it was started with.

    Raises:
        StartFailed: it hasn't.
    """
    said = [""]
    while not said[-1].startswith("ready:"):
        line = (await errors.readline()).decode(errors="replace")
        if not line:
            break
        said.append(line.strip())
    if said[-1] != "ready: 1 staged":
        raise StartFailed(f"the stage daemon has not staged the checkpoint: {' | '.join(said[-5:])}")


def _weights_bytes(checkpoint: Path) -> int:
    return sum(each.stat().st_size for each in checkpoint.glob("*.safetensors"))


async def _make(directory: Path, shape: str, shards: int) -> Path:
    """Make the checkpoint, or find the one that was made there before.

    Raises:
        StartFailed: it can't be made.
    """
    target = directory / shape
    command = (sys.executable, "-m", "warmpool.reference", "make-checkpoint", str(target))
    process = await asyncio.create_subprocess_exec(
        *(*command, "--shape", shape, "--shards", str(shards)), stdin=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_MAKE_SECONDS):
            status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        raise StartFailed(f"no checkpoint of the shape {shape} can be made in {directory}")
    return target


# ---------------------------------------------------------------- what is said


def judge(found: Found, arms: Collection[str]) -> list[Row]:
    """Hold the median of each of these arms against its target, as far as it has one."""
    judged = []
    for arm, target in ((arm, target) for arm, target in TARGETS.items() if arm in arms):
        seconds = found.seconds(arm)
        took = median(seconds) if seconds else None
        row: Row = {"arm": arm, "targetSeconds": target, "seconds": took}
        row["met"] = took is not None and took <= target
        if arm in AIMS:
            row |= {"aimSeconds": AIMS[arm], "aimMet": took is not None and took <= AIMS[arm]}
        judged.append(row)
    return judged


def unsound(found: Found) -> list[str]:
    """Return what makes figures worth nothing, in words: an arm that wasn't what it is called."""
    said = []
    for row in found.rows:
        if "phases" not in row:
            continue
        arm = row["arm"]
        if arm in _ZYGOTE_ARMS and row.get("note"):
            said.append(f"{arm}: {row['note']}")
        if arm in {"staged", "deferred"} and row.get("tier") != "Staged":
            said.append(f"{arm}: weights came from {row.get('tier')}: {row.get('passedOver')}")
        if arm in _CRASH_ARMS and not row["sameAnswer"]:
            said.append(f"{arm}: the next engine answers otherwise than the one before it")
        if arm in _CRASH_ARMS and not row["cutOff"]:
            said.append(f"{arm}: the engine had answered before it was killed")
    return said


def _draw(found: Found) -> None:
    steps = [step for step in Step if step not in {Step.DEVICE, Step.TOTAL}]
    _say(
        f"\n{'arm':15}{'starts':>7}{'best':>8}{'median':>8}{'worst':>8}   "
        + "".join(f"{step:>14}" for step in steps)
        + "  tier"
    )
    for arm in ARMS:
        rows = [row for row in found.rows if row["arm"] == arm and "phases" in row]
        if not rows:
            continue
        took = found.seconds(arm)
        told = "".join(f"{median(row['steps'][step] for row in rows):14.3f}" for step in steps)
        tiers = ", ".join(sorted({row.get("tier", "?") for row in rows}))
        _say(f"{arm:15}{len(rows):7}{min(took):8.3f}{median(took):8.3f}{max(took):8.3f}   {told}  {tiers}")
    for row in found.rows:
        if row["arm"] == "neighbour" and "ttft" in row:
            _say(f"neighbour, loading {row['loading']}: TTFT {_shown(row['ttft'])}")
            if "ttftDuringWeights" in row:
                _say(f"    while weights were read: {_shown(row['ttftDuringWeights'])}")


def _shown(ttft: Row) -> str:
    if not ttft["requests"]:
        return f"no answers, {ttft['failed']} failed"
    times = ", ".join(f"{name} {ttft[f'{name}Milliseconds']:.1f}" for name in ("p50", "p90", "p99", "worst"))
    return f"{times} ms of {ttft['requests']} requests, {ttft['failed']} failed"


def _machine() -> Row:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 (the bench's output)


# ---------------------------------------------------------------- the command


async def _run(told: argparse.Namespace, found: Found) -> str:
    """Measure within the time there is; what cut it short, empty if nothing did."""
    cut_short = ""
    end = time.monotonic() + told.seconds
    with tempfile.TemporaryDirectory(prefix="cold-starts-") as directory:
        try:
            async with asyncio.timeout(told.seconds):
                began = time.monotonic()
                checkpoint = told.checkpoint or await _make(told.directory, told.shape, told.shards)
                nbytes = _weights_bytes(checkpoint)
                found.add({"arm": "checkpoint", "bytes": nbytes, "made": round(time.monotonic() - began, 3)})
                await measure(_plan(told, checkpoint.resolve(), Path(directory), end), found)
        except* TimeoutError:
            cut_short = f"not done within {told.seconds:g} s"
        except* WarmpoolError as errors:
            cut_short = "; ".join(_told(errors))
    return cut_short


def _told(errors: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _told(error)
        else:
            yield str(error)


def _plan(told: argparse.Namespace, checkpoint: Path, directory: Path, end: float) -> Plan:
    options = ("--max-num-seqs", str(told.max_num_seqs), "--max-model-len", str(told.max_model_len))
    setup = Setup(
        checkpoint=checkpoint, device=told.device, zygote=False, directory=directory, options=options
    )
    return Plan(
        arms=frozenset(told.arm or ARMS),
        setup=setup,
        repeat=told.repeat,
        requests=told.requests,
        per_second=told.per_second,
        cap=told.cap,
        end=end,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Cold starts of one engine, and what they do to a neighbour."
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--shape", default="llama-8b", help="of the random weights that are made")
    parser.add_argument("--shards", type=int, default=4, help="files that they are spread over")
    parser.add_argument("--checkpoint", type=Path, help="start this one instead")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("/dev/shm/cold-starts"),  # noqa: S108 (files in memory; whoever runs it chooses)
        help="where weights are made, and kept with --keep",
    )
    parser.add_argument("--keep", action="store_true", help="leave the weights that were made")
    parser.add_argument("--arm", action="append", choices=ARMS, help="only this one; repeatable")
    parser.add_argument("--repeat", type=int, default=3, help="starts of each arm")
    parser.add_argument("--requests", type=int, default=200, help="of the neighbour in each case, at least")
    parser.add_argument("--per-second", type=float, default=40.0, help="the neighbour's requests")
    parser.add_argument(
        "--cap", type=float, default=5.0, help="bandwidth cap beside the neighbour, in GB per second"
    )
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=340.0, help="end after this time, whatever is left")
    parser.add_argument("--out", type=Path, help="write everything to this file, as JSON")
    return parser


def main() -> None:
    """Run the bench."""
    told = _parser().parse_args()
    found = Found()
    began = time.monotonic()
    try:
        cut_short = asyncio.run(_run(told, found))
    finally:
        if told.checkpoint is None and not told.keep:
            shutil.rmtree(told.directory / told.shape, ignore_errors=True)
    targets = judge(found, (told.arm or ARMS) if told.device != "cpu" else ())
    wrong = unsound(found) + ([cut_short] if cut_short else [])
    _draw(found)
    for each in targets:
        _say(json.dumps(each))
    for why in wrong:
        _say(f"unsound: {why}")
    took = round(time.monotonic() - began, 1)
    document = {
        "machine": _machine(),
        "rows": found.rows,
        "targets": targets,
        "unsound": wrong,
        "seconds": took,
    }
    if told.out is not None:
        told.out.write_text(json.dumps(document, indent=1))
    _say(json.dumps({"seconds": took, "machine": document["machine"]}))
    sys.exit(1 if wrong or not all(each["met"] for each in targets) else 0)


if __name__ == "__main__":
    main()
