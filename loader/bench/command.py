"""`bench`: takes turns over all ways and limits, each in fresh processes, and prints ratios."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from loader.bench import fresh, places
from loader.bench.figures import Figure, figure_of
from loader.bench.fresh import Facts
from loader.cli.output import CheckpointPath, Output, OutputOption, console, failing, print_json

_LIMIT_SECONDS = 600.0


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

    device = "cuda:0" if device == "cuda" else device  # some peers want the number
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
        (places.evict if self.cold else places.warm)(self.files)


def _measure(names: list[str], path: Path, device: str, rounds: _Rounds) -> dict[str, Figure]:
    from loader.bench.child import measure  # noqa: PLC0415 - the rest of the commands works without torch

    runs: dict[str, list[Facts]] = defaultdict(list)
    rounds.prepare()
    # The ways take turns, so that a busy machine is busy for all of them.
    for _ in range(rounds.count):
        for name in names:
            if rounds.cold:
                rounds.prepare()
            try:
                facts = fresh.call(partial(measure, name, path, device), limit_seconds=_LIMIT_SECONDS)
            except fresh.MeasurementFailed as error:
                typer.echo(f"note: {name} failed and is left out: {error}", err=True)
                continue
            runs[name].append(facts)
    if len({run["sum"] for each in runs.values() for run in each if "sum" in run}) > 1:
        typer.echo(
            "error: the ways disagree on the bytes\n\nhint: does anybody write to these files?", err=True
        )
        raise typer.Exit(1)
    return {name: figure_of(each) for name, each in runs.items()}


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
