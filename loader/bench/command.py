"""`bench`: takes turns over all ways and limits, each in fresh processes, and prints ratios."""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from loader.cli.output import CheckpointPath, Output, OutputOption, console, failing, print_json

_GIGABYTE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured of one way, over all rounds.

    Attributes:
        load: median seconds until the call returned and the device was done.
        used: median seconds until every byte was used once.
        best: the least of the latter.
        nbytes: bytes moved.
    """

    load: float
    used: float
    best: float
    nbytes: int

    @property
    def rate(self) -> float:
        """GB per second until loaded, by the median."""
        return self.nbytes / self.load / _GIGABYTE


def bench(
    path: CheckpointPath,
    *,
    device: Annotated[str, typer.Option(help="Where to: cpu, cuda or cuda:N.")] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Fresh processes per way.")] = 5,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop the files from the page cache before each measurement.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure this loader, the peers that are installed, and what the hardware can do, on the same files."""
    from loader.bench import limits, ways  # noqa: PLC0415 - the rest of the commands works without torch

    with failing(output):
        names = [*limits.available(device), *ways.available(device)]
        figures = _measure(names, path, device, _Rounds(rounds, ways.files_of(path), cold=cold))
    if output is Output.JSON:
        print_json({name: _document(figure) for name, figure in figures.items()})
    else:
        _print(figures)


@dataclass(frozen=True, slots=True)
class _Rounds:
    count: int
    files: list[str]
    cold: bool

    def prepare(self) -> None:
        """Bring the files into the page cache, or out of it."""
        for file in self.files:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                if self.cold:
                    os.fsync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while os.read(descriptor, 2**24):
                        pass
            finally:
                os.close(descriptor)


def _measure(names: list[str], path: Path, device: str, rounds: _Rounds) -> dict[str, Figure]:
    runs: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    rounds.prepare()
    # The ways take turns, so that a busy machine is busy for all of them.
    for _ in range(rounds.count):
        for name in names:
            if rounds.cold:
                rounds.prepare()
            command = [sys.executable, "-m", "loader.bench.child", name, str(path), device]
            run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
            if run.returncode:
                typer.echo(f"note: {name} failed and is left out", err=True)
                continue
            runs[name].append(json.loads(run.stdout))
    if len({run["sum"] for each in runs.values() for run in each if "sum" in run}) > 1:
        typer.echo(
            "error: the ways disagree on the bytes\n\nhint: does anybody write to these files?", err=True
        )
        raise typer.Exit(1)
    return {name: _figure(each) for name, each in runs.items()}


def _figure(runs: list[Mapping[str, float]]) -> Figure:
    used = [run["all"] for run in runs]
    return Figure(
        load=statistics.median(run["load"] for run in runs),
        used=statistics.median(used),
        best=min(used),
        nbytes=int(runs[0]["bytes"]),
    )


def _document(figure: Figure) -> dict[str, float]:
    return {
        "loadedSeconds": figure.load,
        "usedSeconds": figure.used,
        "bestSeconds": figure.best,
        "bytes": figure.nbytes,
        "gigabytesPerSecond": figure.rate,
    }


def _print(figures: Mapping[str, Figure]) -> None:
    ours = [figure.used for name, figure in figures.items() if name.startswith("loader")]
    best = min(ours, default=0.0)
    table = Table(
        "WAY",
        "LOADED ms",
        "ALL BYTES USED ms",
        "BEST ms",
        "GB/s LOADED",
        "TIMES OUR BEST",
        box=None,
        header_style="",
    )
    for name, figure in figures.items():
        times = f"{figure.used / best:.2f}" if best else ""
        milliseconds = [f"{1000 * seconds:.1f}" for seconds in (figure.load, figure.used, figure.best)]
        table.add_row(name, *milliseconds, f"{figure.rate:.2f}", times)
    console().print(table)
