"""How fast one engine wakes up from each depth at which it can sleep: paused, its KV memory released, parked.

`python -m warmpool.reference.bench.depths OUT --shape llama-8b --gigabytes 40`

The engine is a process of its own, driven through the agent's adapter. It is laid to sleep and woken again and again; a wake-up is timed
from the order to the first token of a prompt sent to its public port. Every answer is compared with what the same weights compute
without serving, batching, KV memory and parking (`expect.py`). What the link to the device can do is measured in the same run, and
a neighbour's tokens are watched while the engine parks for the first time, which page-locks its copy. A small model goes through
all of it first, so that a fault shows in seconds.
"""

import asyncio
import json
import mmap
import random
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.reference.bench.device import card, used_mebibytes
from warmpool.reference.bench.figures import Spread
from warmpool.reference.bench.fleet import ORDER_SECONDS, Resident, fleet
from warmpool.reference.bench.limits import pinned_copy_per_second
from warmpool.reference.bench.questions import SEQUENCES, Question, length_for, questions
from warmpool.reference.checkpoints import make_checkpoint
from warmpool.reference.options import ModelOptions
from warmpool.states import Depth

PARKED_TARGET_SECONDS = 0.6
"""Parked to first token of 16 GB of weights, over a link that copies 55 GB/s."""
GROWTH_MEBIBYTES = 64
"""More growth of used memory than this from the first to the last cycle counts as a leak."""
_WATCHED_TOKENS = 96
_REST_SECONDS = 1.0
_CHECKED_CYCLES = 3
_CHECKED_GIGABYTES = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One sleep and one wake-up, in seconds.

    Attributes:
        sleep: from the order to sleep until it sleeps as deep as it was told.
        unpark: bringing the weights back; 0 unless it was parked.
        resume: taking its KV memory as far as it answers before, and starting the scheduler.
        first: opening its guard and sending the prompt, until the first token.
        wake: from the order to the first token.
        right: whether all tokens were right.
        asleep_mebibytes: used memory of the device while it slept; None without a device.
    """

    sleep: float
    unpark: float
    resume: float
    first: float
    wake: float
    right: bool
    asleep_mebibytes: float | None


@dataclass(slots=True)
class Results:
    """What has been measured so far, as it is written to depths.json.

    Attributes:
        machine: the card and versions.
        setting: the model's and the KV memory's size.
        link: the pinned copy's limit, and what waking up from parking reaches of it.
        depths: by depth, the spreads of a cycle's steps and what memory did.
        neighbour: gaps between a neighbour's tokens while an engine parks and unparks.
        fault: what ended the run early; empty if nothing did.
    """

    machine: dict[str, str] = field(default_factory=dict)
    setting: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] = field(default_factory=dict)
    depths: dict[str, Any] = field(default_factory=dict)
    neighbour: dict[str, Any] = field(default_factory=dict)
    fault: str = ""

    @property
    def wrong(self) -> int:
        """Cycles with a wrong token."""
        return sum(entry["wrong"] for entry in self.depths.values())

    @property
    def growth(self) -> float:
        """The most by which used memory grew in one depth, in MiB."""
        return max((entry["growthMebibytes"] for entry in self.depths.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        cycles: of each depth but parked.
        parked_cycles: of that.
        watched: whether a neighbour's tokens are watched while the engine parks.
    """

    cycles: int
    parked_cycles: int
    watched: bool


async def lay_to_sleep(resident: Resident, depth: Depth) -> None:
    """Bring an engine that serves to a depth."""
    await resident.engine.close_guard(deadline=Deadline.after(ORDER_SECONDS))
    await resident.pause(KvWhenPaused.KEEP if depth is Depth.PAUSED else KvWhenPaused.RELEASE)
    if depth is Depth.PARKED:
        await resident.park()


async def cycle(resident: Resident, depth: Depth, question: Question) -> Cycle:
    """Lay an engine that serves to sleep, wake it, and ask it something."""
    began = time.perf_counter()
    await lay_to_sleep(resident, depth)
    slept = time.perf_counter() - began
    asleep = used_mebibytes()
    times = [time.perf_counter()]
    if depth is Depth.PARKED:
        await resident.unpark()
    times.append(time.perf_counter())
    await resident.resume()
    times.append(time.perf_counter())
    await resident.engine.open_guard(deadline=Deadline.after(ORDER_SECONDS))
    answer = await resident.answer(question.prompt, len(question.answer))
    times.append(answer.first_at)
    await resident.until_whole()
    unpark, resume, first = (after - before for before, after in pairwise(times))
    return Cycle(
        sleep=slept,
        unpark=unpark,
        resume=resume,
        first=first,
        wake=times[-1] - times[0],
        right=answer.tokens == question.answer,
        asleep_mebibytes=asleep,
    )


async def measure_depth(
    resident: Resident, depth: Depth, count: int, asked: Sequence[Question], seed: int
) -> dict[str, Any]:
    """Go through so many cycles, and say what came of them."""
    choose = random.Random(seed)
    serving = _mebibytes(resident)
    cycles = [await cycle(resident, depth, choose.choice(asked)) for _ in range(count)]
    after = _mebibytes(resident)
    steps = ("wake", "unpark", "resume", "first")
    return {
        "cycles": count,
        "wrong": sum(not entry.right for entry in cycles),
        **{f"{name}Seconds": asdict(Spread.of([getattr(entry, name) for entry in cycles])) for name in steps},
        "firstSleepSeconds": cycles[0].sleep,
        "sleepSeconds": asdict(Spread.of([entry.sleep for entry in cycles[1:] or cycles])),
        "servingMebibytes": {"before": serving, "after": after},
        "asleepMebibytes": {"first": cycles[0].asleep_mebibytes, "last": cycles[-1].asleep_mebibytes},
        # The first parking makes the copy; what grows after that is a leak.
        "growthMebibytes": _growth(cycles, serving, after),
    }


def _growth(cycles: Sequence[Cycle], serving: float, after: float) -> float:
    asleep = [entry.asleep_mebibytes for entry in cycles if entry.asleep_mebibytes is not None]
    return max(after - serving, asleep[-1] - asleep[0] if asleep else 0.0)


def _mebibytes(resident: Resident) -> float:
    """Used memory of the device, or without one of the process."""
    used = used_mebibytes()
    return resident.process.memory_info().rss / 2**20 if used is None else used


# ---------------------------------------------------------------- the neighbour


class Watch:
    """Streams tokens from an engine that serves, and notes the gaps between them."""

    def __init__(self, resident: Resident, prompt: Sequence[int]) -> None:
        self._resident = resident
        self._prompt = prompt
        self._at: list[list[float]] = []

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        """Watch until the context is left."""
        ending = asyncio.Event()

        async def go_on() -> None:
            while not ending.is_set():
                self._at.append((await self._resident.answer(self._prompt, _WATCHED_TOKENS)).at)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(go_on())
            yield
            ending.set()

    def gaps(self, began: float, ended: float) -> dict[str, Any]:
        """Return the spread of gaps that ended between two moments."""
        found = [
            after - before
            for stream in self._at
            for before, after in pairwise(stream)
            if began <= after <= ended + 0.05
        ]
        spread = asdict(Spread.of(found)) if found else None
        return {"seconds": ended - began, "tokens": len(found), "gapSeconds": spread}


async def watch_neighbour(serving: Resident, parking: Resident, question: Question) -> dict[str, Any]:
    """Let one engine serve while another, paused with its KV memory released, parks, comes back and parks again."""
    watch = Watch(serving, question.prompt)
    spans: dict[str, tuple[float, float]] = {}

    async def during(name: str, work: Callable[[], Awaitable[None]]) -> None:
        began = time.perf_counter()
        await work()
        spans[name] = (began, time.perf_counter())

    async def rest() -> None:
        await asyncio.sleep(_REST_SECONDS)

    async with watch.on():
        await asyncio.sleep(_REST_SECONDS / 2)
        await during("alone", rest)
        await during("firstPark", parking.park)
        await during("unpark", parking.unpark)
        await during("park", parking.park)
        await during("aloneAgain", rest)
    return {name: watch.gaps(*span) for name, span in spans.items()}


# ---------------------------------------------------------------- the run


async def measure(
    options: ModelOptions, asked: Sequence[Sequence[Question]], plan: Plan, results: Results, out: Path
) -> None:
    """Fill `results`, and write them as they come.

    Args:
        options: what the engines are told.
        asked: prompts with answers, for the engine and for its neighbour.
        plan: how much is measured.
        results: where it goes.
        out: directory for depths.json and the engines' logs.
    """
    names = ["sleeper", "neighbour"] if plan.watched else ["sleeper"]
    async with fleet(names, options, out) as residents:
        sleeper = residents[0]
        await sleeper.resume()
        await sleeper.engine.open_guard(deadline=Deadline.after(ORDER_SECONDS))
        await sleeper.until_whole()
        if plan.watched:
            results.neighbour = await watch_neighbour(sleeper, residents[1], asked[0][0])
            _write(results, out)
        for depth in Depth:
            count = plan.parked_cycles if depth is Depth.PARKED else plan.cycles
            results.depths[depth] = await measure_depth(sleeper, depth, count, asked[0], seed=1)
            _write(results, out)
        startup = await sleeper.engine.startup(deadline=Deadline.after(ORDER_SECONDS))
        results.setting |= {
            "weightsBytes": startup.weights_bytes,
            "kvBytes": startup.kv_bytes,
            "parkedBytes": startup.parked_bytes,
        }


def _options(directory: Path, shape: str, gigabytes: float, device: str) -> ModelOptions:
    length, _ = length_for(shape, gigabytes, device)
    return ModelOptions(checkpoint=directory, device=device, max_num_seqs=SEQUENCES, max_model_len=length)


def _run(options: ModelOptions, prompt_tokens: int, plan: Plan, results: Results, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    asked = questions(replace(options, max_model_len=2), 1, prompt_tokens, seed=1)
    results.setting |= {"checkpoint": options.checkpoint.name, "maxModelLen": options.max_model_len}
    asyncio.run(measure(options, asked, plan, results, out))


def _pinned_limit() -> float:
    """Bytes per second of the link, measured in a process that ends with its memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(pinned_copy_per_second).result()


def _machine(device: str) -> dict[str, str]:
    try:
        return card() if device != "cpu" else {}
    except Exception as error:  # noqa: BLE001 (it is good to know, and no reason to measure nothing)
        return {"card": f"not told: {error}"}


def _touch(gibibytes: int) -> None:
    """Take host memory and give it back, in a process that ends with it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_fill, gibibytes).result()


def _fill(gibibytes: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return len([mmap.mmap(-1, 1 << 30, flags=flags) for _ in range(gibibytes)])


def _compare_with_link(results: Results, before: float, after: float) -> None:
    """Say how near to the link's limit the weights come back."""
    limit = max(before, after)
    nbytes = results.setting["weightsBytes"]
    unpark = results.depths[Depth.PARKED]["unparkSeconds"]["p50"]
    results.link = {
        "pinnedCopyBytesPerSecond": {"before": before, "after": after},
        "weightsSecondsAtLimit": nbytes / limit,
        "unparkBytesPerSecond": nbytes / unpark,
        "shareOfLimit": nbytes / unpark / limit,
    }


def _write(results: Results, out: Path) -> None:
    (out / "depths.json").write_text(json.dumps(asdict(results), indent=1) + "\n")


def _show(results: Results) -> None:
    typer.echo(
        "milliseconds      wake p50      p99      max |   unpark   resume    first |    sleep  first sleep"
    )
    for depth, entry in results.depths.items():
        wake = (entry["wakeSeconds"][name] * 1e3 for name in ("p50", "p99", "max"))
        steps = (entry[f"{name}Seconds"]["p50"] * 1e3 for name in ("unpark", "resume", "first", "sleep"))
        p50, p99, most = wake
        unpark, resume, first, sleep = steps
        typer.echo(
            f"{depth:16s} {p50:9.1f} {p99:8.1f} {most:8.1f} | {unpark:8.1f} {resume:8.1f} {first:8.1f} |"
            f" {sleep:8.1f} {entry['firstSleepSeconds'] * 1e3:12.1f}"
        )
        typer.echo(
            f"{'':16s} wrong {entry['wrong']} of {entry['cycles']}; MiB asleep"
            f" {entry['asleepMebibytes']['first']} then {entry['asleepMebibytes']['last']}, serving"
            f" {entry['servingMebibytes']['before']:.0f} then {entry['servingMebibytes']['after']:.0f}"
        )
    if results.link:
        link = results.link
        typer.echo(
            f"pinned copy {max(link['pinnedCopyBytesPerSecond'].values()) / 1e9:.1f} GB/s: the weights take"
            f" {link['weightsSecondsAtLimit'] * 1e3:.0f} ms at it; they came back at {link['shareOfLimit']:.2f} of it"
        )
    for name, span in results.neighbour.items():
        gaps = {key: f"{value * 1e3:.1f}" for key, value in (span["gapSeconds"] or {}).items()}
        typer.echo(
            f"neighbour's tokens, {name:10s} {span['seconds']:6.2f} s: {span['tokens']} gaps, ms: {gaps}"
        )


def _self_check(device: str, scratch: Path, out: Path) -> bool:
    """Go through everything with a small model; whether it went well."""
    results = Results()
    try:
        directory = make_checkpoint(scratch / "tiny", "tiny", seed=1)
        plan = Plan(_CHECKED_CYCLES, _CHECKED_CYCLES, watched=True)
        _run(_options(directory, "tiny", _CHECKED_GIGABYTES, device), 16, plan, results, out / "self-check")
    except Exception:  # noqa: BLE001 (whatever it is, it is shown)
        typer.echo(f"self check: failed\n{traceback.format_exc()}")
        _show_logs(out / "self-check")
        return False
    typer.echo(f"self check: {'passed' if not results.wrong else f'{results.wrong} wrong answers'}")
    return not results.wrong


def _show_logs(out: Path) -> None:
    for log in sorted(out.glob("*.log")):
        typer.echo(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def main(  # noqa: PLR0913 (one parameter per command-line option)
    out: Annotated[Path, typer.Argument(help="Directory for depths.json and the engines' logs; created.")],
    *,
    shape: Annotated[str, typer.Option(help="tiny, small, llama-1b or llama-8b.")] = "llama-8b",
    gigabytes: Annotated[float, typer.Option(help="KV memory, in 10^9 bytes.")] = 40.0,
    cycles: Annotated[int, typer.Option(min=2, help="Cycles of each depth but parked.")] = 200,
    parked_cycles: Annotated[int, typer.Option(min=2, help="Cycles of parking.")] = 50,
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a prompt.")] = 128,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    checkpoint: Annotated[Path | None, typer.Option(help="An existing one instead of a new one.")] = None,
    host_gibibytes: Annotated[
        int, typer.Option(min=0, help="Host memory to touch first, for machines that grow as it is used.")
    ] = 0,
    neighbour: Annotated[
        bool, typer.Option(help="Whether a neighbour's tokens are watched while an engine parks.")
    ] = True,
) -> None:
    """Print wake-up times from each depth, whether all tokens were right, and memory before and after."""
    out.mkdir(parents=True, exist_ok=True)
    results = Results()
    with tempfile.TemporaryDirectory() as scratch:
        if not _self_check(device, Path(scratch), out):
            raise typer.Exit(1)
        try:
            results.machine = _machine(device)
            if host_gibibytes:
                _touch(host_gibibytes)
            before = 0.0 if device == "cpu" else _pinned_limit()
            directory = checkpoint or make_checkpoint(Path(scratch) / shape, shape, seed=1, shards=8)
            options = _options(directory, shape, gigabytes, device)
            _run(options, prompt_tokens, Plan(cycles, parked_cycles, neighbour), results, out)
            if device != "cpu":
                _compare_with_link(results, before, _pinned_limit())
        except Exception:  # noqa: BLE001 (what was measured up to now is kept, and the fault shown)
            results.fault = traceback.format_exc()
            typer.echo(results.fault)
            _show_logs(out)
    _write(results, out)
    typer.echo(json.dumps(asdict(results)))
    _show(results)
    if results.fault or results.wrong or results.growth > GROWTH_MEBIBYTES:
        raise typer.Exit(1)
    parked = results.depths[Depth.PARKED]["wakeSeconds"]["p99"]
    met = "met" if parked <= PARKED_TARGET_SECONDS else "missed"
    typer.echo(
        f"parked to first token, p99 at most {PARKED_TARGET_SECONDS * 1e3:.0f} ms: {met} with {parked * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    typer.run(main)
