"""Everything that is measured on a GPU, in one command and a time that is set: `python -m loader.bench.gpu DIR --out FILE`.

Each part writes the checkpoint that it needs, takes turns over limits and ways in fresh processes, and takes the files away.
Every figure is in the JSON document as soon as it is there, so a run that is cut off keeps what it has; what a part has no time
left for is named. `--device cpu --scale 0.01` tries it all where no GPU is.
"""

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, cast

import torch
import typer

from loader.bench import child, fresh, limits, names, places, process, report, shapes, ways
from loader.bench.fresh import Facts
from loader.errors import LoaderError

_SLOW_SECONDS = 5.0
"""A way that takes longer is measured once."""
_FIRST_SECONDS = 4.0
"""What a measurement is taken to last before one of its kind was seen, its process included."""
_LONGEST_SECONDS = 60.0
_COLD_SHARE = 0.25
"""Of the full size: a disk's speed shows in less than what memory needs."""
_REPEATED = "safetensors, copied into parameters"

Work = Callable[[Path, str], Facts]


class Part(StrEnum):
    """What can be asked for."""

    TMPFS = "tmpfs"
    PROCESS = "process"
    TUNING = "tuning"
    HUGE_PAGES = "hugepages"
    EXPERTS = "experts"
    ONE = "one"
    PAGE_CACHE = "pagecache"
    COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How a part is measured.

    Attributes:
        layout: of `loader.bench.shapes`.
        memory: whether its files are in tmpfs.
        huge: whether that one has pages of 2 MiB.
        share: of the whole time, against the other parts'.
        rounds: processes per way.
        cold: whether files are taken out of the page cache before each.
        ours_only: leaves the peers out.
        reads: threads of the limits of reading.
        scale: share of the full size.
    """

    layout: str
    memory: bool
    share: float
    huge: bool = False
    rounds: int = 3
    cold: bool = False
    ours_only: bool = False
    reads: tuple[int, ...] = ()
    scale: float = 1.0


_PLANS: Mapping[Part, _Plan] = {
    Part.TMPFS: _Plan(layout="dense", memory=True, share=95, reads=(8, 12, 16, 24, 32)),
    Part.PROCESS: _Plan(layout="dense", memory=True, share=20),
    Part.TUNING: _Plan(layout="dense", memory=True, share=25, rounds=2, ours_only=True),
    Part.EXPERTS: _Plan(layout="experts", memory=True, share=35, rounds=2, ours_only=True),
    Part.ONE: _Plan(layout="one", memory=True, share=35, rounds=2, ours_only=True),
    Part.PAGE_CACHE: _Plan(layout="dense", memory=False, share=85, reads=(8, 16, 24, 32)),
    Part.HUGE_PAGES: _Plan(
        layout="dense", memory=True, huge=True, share=20, reads=(8, 16, 24), ours_only=True
    ),
    Part.COLD: _Plan(
        layout="dense", memory=False, share=45, rounds=2, cold=True, reads=(16, 32), scale=_COLD_SHARE
    ),
}
_TRIED = ((16, 2), (16, 1), (8, 2), (12, 2), (24, 2), (32, 2))
"""Threads, and MiB that each reads at once."""

app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class _Bench:
    """The document, and the time that is left for it.

    Attributes:
        out: where the document is written.
        device: ``cpu`` or ``cuda:N``.
        deadline: when nothing more is begun, in seconds of the monotonic clock.
        document: all figures so far.
        seconds: what the last measurement of each name took, its process included.
        write_seconds: what writing a byte of files took at the most.
    """

    out: Path
    device: str
    deadline: float
    document: dict[str, object]
    seconds: dict[str, float] = field(default_factory=dict)
    write_seconds: float = 0.0

    def until(self, share: float) -> float:
        """When a share of the time that is left is over."""
        now = time.monotonic()
        return now + share * max(0.0, self.deadline - now)

    def part(self, part: Part) -> dict[str, dict[str, object]]:
        parts = self.document.setdefault("parts", {})
        assert isinstance(parts, dict)
        made: dict[str, dict[str, object]] = parts.setdefault(part.value, {})
        return made

    def measure(self, part: Part, name: str, work: Callable[[], Facts], until: float) -> Facts | None:
        """One measurement, where there is time for it; None where there is not, or it failed."""
        begun = time.monotonic()
        expected = self.seconds.get(f"{part}/{name}", _FIRST_SECONDS)
        about = self.part(part)
        if begun + expected > until:
            about.setdefault("leftOut", {})[name] = f"{until - begun:.0f} s were left"
            return None
        try:
            facts = fresh.call(work, limit_seconds=min(_LONGEST_SECONDS, self.deadline - begun))
        except fresh.MeasurementFailed as error:
            about.setdefault("failed", {})[name] = str(error)
            _say(f"{part}: {name} failed: {error}")
            return None
        finally:
            self.seconds[f"{part}/{name}"] = time.monotonic() - begun
            self.save()
        runs = about.setdefault("runs", {}).setdefault(name, [])
        assert isinstance(runs, list)
        runs.append({**facts, "processSeconds": time.monotonic() - begun})
        self.save()
        return facts

    def save(self) -> None:
        unfinished = self.out.with_name(f".{self.out.name}.new")
        unfinished.write_text(json.dumps(self.document, indent=1), encoding="utf-8")
        unfinished.replace(self.out)


@app.command()
def main(  # noqa: PLR0913 - the options of a command
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory on the disk to measure.")],
    *,
    out: Annotated[Path, typer.Option(help="The JSON document.")],
    memory: Annotated[Path, typer.Option(help="A tmpfs; one is mounted where it is too small.")] = Path(
        "/dev/shm"  # noqa: S108 - where Linux has its tmpfs
    ),
    device: Annotated[str, typer.Option(help="cuda, cuda:N or cpu.")] = "cuda",
    seconds: Annotated[float, typer.Option(min=1, help="Time for the whole of it.")] = 330.0,
    scale: Annotated[float, typer.Option(min=0.0001, help="Share of the full sizes.")] = 1.0,
    part: Annotated[list[Part] | None, typer.Option(help="Only this part; may be repeated.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fresh processes per way.")] = None,
) -> None:
    """Measure everything on this machine's GPU, and compare it with what the project promises."""
    begun = time.monotonic()
    device = "cuda:0" if device == "cuda" else device
    bench = _Bench(out, device, begun + seconds, _about(device, scale))
    bench.document["disk"] = {"path": str(directory), "fileSystem": places.kind(directory)}
    bench.save()
    wanted = [each for each in Part if not part or each in part]
    shares = sum(_PLANS[each].share for each in wanted)
    for group in _groups(wanted):
        with _files(bench, group, directory, memory, scale) as path:
            for each in group:
                if path is not None:
                    _carry_out(bench, each, path, bench.until(_PLANS[each].share / shares), rounds)
                shares -= _PLANS[each].share
    bench.document["seconds"] = time.monotonic() - begun
    bench.save()
    typer.echo(report.render(bench.document))


def _about(device: str, scale: float) -> dict[str, object]:
    about: dict[str, object] = {"scale": scale, "python": platform.python_version()}
    about["torch"] = torch.__version__
    about["peers"] = {package: _version(package) for package in ways.PEERS}
    about["machine"] = dict(places.machine())
    try:
        about["device"] = dict(fresh.call(partial(_describe, device), limit_seconds=_LONGEST_SECONDS))
    except fresh.MeasurementFailed as error:
        about["device"] = {"name": device, "failed": str(error)}
        _say(f"the device can't be used: {error}")
    return about


def _describe(device: str) -> Facts:
    if device == "cpu":
        return {"name": "cpu"}
    about = torch.cuda.get_device_properties(device)
    return {"name": about.name, "bytes": about.total_memory, "cuda": torch.version.cuda}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _groups(wanted: Sequence[Part]) -> list[list[Part]]:
    """Parts that follow each other and measure the same files."""
    groups: list[list[Part]] = []
    for part in wanted:
        if groups and _same_files(_PLANS[groups[-1][0]], _PLANS[part]):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _same_files(one: _Plan, other: _Plan) -> bool:
    return (one.layout, one.memory, one.huge, one.scale) == (
        other.layout,
        other.memory,
        other.huge,
        other.scale,
    )


@contextmanager
def _files(
    bench: _Bench, group: Sequence[Part], directory: Path, memory: Path, scale: float
) -> Iterator[Path | None]:
    """The files of some parts, until the end of the block; None where there is no room for them."""
    plan = _PLANS[group[0]]
    layout = shapes.shapes(plan.scale * scale)[plan.layout]
    nbytes = shapes.total_bytes(layout)
    _grow(bench, nbytes)
    with ExitStack() as closing:
        path: Path | None = None
        try:
            if time.monotonic() + bench.write_seconds * nbytes + _FIRST_SECONDS > bench.deadline:
                raise places.NoRoom("no time was left to write the files")
            path = closing.enter_context(_place(plan, directory, memory, nbytes)) / plan.layout
            seconds = _write(path, layout, settled=not plan.memory)
        except (places.NoRoom, OSError, LoaderError) as error:
            path = None
            for part in group:
                bench.part(part)["failed"] = {"files": str(error)}
            _say(f"{', '.join(group)}: {error}")
        else:
            bench.write_seconds = max(bench.write_seconds, seconds / nbytes)
            for part in group:
                bench.part(part)["files"] = {"path": str(path), "bytes": nbytes, "writeSeconds": seconds}
            _say(f"{plan.layout}: {nbytes / 1e9:.1f} GB written to {path} in {seconds:.1f} s")
        bench.save()
        yield path


def _place(plan: _Plan, directory: Path, memory: Path, nbytes: int) -> AbstractContextManager[Path]:
    if plan.huge:
        return places.huge_folder(nbytes)
    return places.memory_folder(memory, nbytes) if plan.memory else places.folder(directory, nbytes)


def _write(path: Path, layout: Sequence[shapes.Shapes], *, settled: bool) -> float:
    """Write a checkpoint; the seconds that it took."""
    begun = time.monotonic()
    shapes.make(path, layout)
    if settled:
        places.settle(ways.files_of(path))
    return time.monotonic() - begun


def _grow(bench: _Bench, nbytes: int) -> None:
    """Once: use twice the memory that the files take, so that growing doesn't count with what is measured."""
    if "grown" in bench.document:
        return
    begun = time.monotonic()
    try:
        facts = fresh.call(partial(places.grow_memory, 2 * nbytes), limit_seconds=_LONGEST_SECONDS)
        bench.document["grown"] = {**facts, "seconds": time.monotonic() - begun}
    except fresh.MeasurementFailed as error:
        bench.document["grown"] = {"failed": str(error)}


def _carry_out(bench: _Bench, part: Part, path: Path, until: float, rounds: int | None) -> None:
    plan, device = _PLANS[part], bench.device
    if part is Part.PROCESS:
        works: Mapping[str, Work] = {"digests": process.digests}
        if device != "cpu":
            works = {"start-up": process.start_up, "page-locking": process.page_locking, **works}
            works = {**works, "queueing": process.queueing}
            works = {**works, "sibling": process.sibling}
        for name, work in works.items():
            bench.measure(part, name, partial(work, path, device), until)
        return
    _take_turns(bench, part, path, _names(part, device), until, rounds or plan.rounds)


def _names(part: Part, device: str) -> list[str]:
    plan = _PLANS[part]
    if part is Part.TUNING:
        return [names.tried(threads, mebibytes) for threads, mebibytes in _TRIED]
    read = limits.direct_reads if plan.cold else limits.reads
    copy = [names.COPY] if plan.reads and device != "cpu" else []
    chosen = [name for name in ways.available(device) if name not in {_REPEATED, "loader.load"}]
    ours = [name for name in chosen if not names.is_peer(name)]
    peers = [name for name in chosen if names.is_peer(name)] if not plan.ours_only else []
    # The slowest last, in case there is no time for all.
    return [*read(plan.reads), *copy, *ours, *reversed(peers)]


def _take_turns(
    bench: _Bench, part: Part, path: Path, wanted: Sequence[str], until: float, rounds: int
) -> None:
    """Round after round, so that a busy machine is busy for all ways; the slow and the failing only once."""
    plan = _PLANS[part]
    files = ways.files_of(path)
    left = list(wanted)
    for number in range(rounds):
        for name in list(left):
            if plan.cold:
                places.evict(files)
            facts = bench.measure(part, name, partial(child.measure, name, path, bench.device), until)
            load = cast("float", facts["load"]) if facts else math.inf
            if facts:
                _say(f"{part} {number + 1}: {name}: {load:.3f} s")
            if load > _SLOW_SECONDS:
                left.remove(name)


def _say(text: str) -> None:
    typer.echo(text, err=True)


if __name__ == "__main__":
    app(prog_name="python -m loader.bench.gpu")
