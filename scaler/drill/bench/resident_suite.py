"""What residents on one GPU are held to, piece after piece, each within a limit: for a machine that is lent by the minute.

`python -m scaler.drill.bench.resident_suite OUT --budget-seconds 580 --piece paused --piece kv-released`

Each piece is a process of its own with a folder and a log in OUT. One that takes too long is ended in order; one for which
too little is left isn't begun, and is said to be missing.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scaler.drill.bench.checkpoint import CACHE, made
from scaler.drill.bench.ending import end
from scaler.drill.bench.machine import machine
from scaler.drill.interruptible import run
from scaler.drill.scenario import Shape

_TAIL_CHARACTERS = 2_600
"""Of each piece's output; the output of all of them has to fit where 12,000 characters are kept."""
_END_SECONDS = 40.0
"""What a piece may take over SIGTERM: its engines drain."""
_MISSING = -1


class Piece(StrEnum):
    """What can be run."""

    PAUSED = "paused"
    KV_RELEASED = "kv-released"
    PARKED = "parked"
    FIVE_MODELS = "five-models"
    KILLS = "kills"
    KILLS_PARKED = "kills-parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """How a piece is run.

    Attributes:
        module: what runs.
        arguments: its own.
        setup_seconds: what it takes before it measures, and for its end, on one H200.
        work_seconds: what it measures for at most.
        counts: takes `--count`.
        stops: takes `--seconds`, after which it begins nothing more.
    """

    module: str
    arguments: tuple[str, ...]
    setup_seconds: float
    work_seconds: float
    counts: bool = False
    stops: bool = True


_RECIPES = {
    Piece.PAUSED: _Recipe(
        module="promotions", arguments=("--depth", "Paused"), setup_seconds=80, work_seconds=150, counts=True
    ),
    Piece.KV_RELEASED: _Recipe(
        module="promotions",
        arguments=("--depth", "KvReleased"),
        setup_seconds=80,
        work_seconds=250,
        counts=True,
    ),
    Piece.PARKED: _Recipe(
        module="promotions", arguments=("--depth", "Parked"), setup_seconds=100, work_seconds=300, counts=True
    ),
    Piece.FIVE_MODELS: _Recipe(
        module="five_models", arguments=(), setup_seconds=110, work_seconds=140, stops=False
    ),
    Piece.KILLS: _Recipe(module="kills", arguments=(), setup_seconds=110, work_seconds=360),
    Piece.KILLS_PARKED: _Recipe(
        module="kills",
        arguments=("--state", "Parked", "--parked-mebibytes", "33000"),
        setup_seconds=110,
        work_seconds=120,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a piece.

    Attributes:
        piece: which one.
        exit_code: its own; −1 if it wasn't begun or had to be ended.
        seconds: how long it ran.
        said: why it wasn't begun, or had to be ended; empty otherwise.
    """

    piece: Piece
    exit_code: int
    seconds: float = 0.0
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What all pieces share.

    Attributes:
        out: folder for everything.
        arguments: options of all pieces.
        count: promotions of each depth.
        until: `time.monotonic()` at which everything must be over.
    """

    out: Path
    arguments: Sequence[str]
    count: int
    until: float

    async def run(self, piece: Piece) -> Done:
        """Run one piece, if there is time for it."""
        recipe = _RECIPES[piece]
        left = self.until - time.monotonic() - _END_SECONDS
        if left < recipe.setup_seconds:
            return Done(piece=piece, exit_code=_MISSING, said=f"not begun: {left:.0f} s were left")
        folder = self.out / piece
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        code, said = await _within(self._command(piece, folder, left), folder / "log.txt", left)
        return Done(piece=piece, exit_code=code, seconds=round(time.monotonic() - begun, 1), said=said)

    def _command(self, piece: Piece, folder: Path, left: float) -> list[str]:
        recipe = _RECIPES[piece]
        command = [sys.executable, "-m", f"scaler.drill.bench.{recipe.module}", str(folder)]
        command += [*recipe.arguments, *self.arguments]
        if recipe.counts:
            command += ["--count", str(self.count)]
        if recipe.stops:
            work = min(recipe.work_seconds, left - recipe.setup_seconds)
            command += ["--seconds", f"{max(1.0, work):.0f}"]
        return command


async def _within(command: Sequence[str], log: Path, seconds: float) -> tuple[int, str]:
    """Run a command; its exit code, and what had to be done to it."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(seconds):
                return await process.wait(), ""
        except TimeoutError:
            return _MISSING, f"ended after {seconds:.0f} s"
        finally:
            await end(process, _END_SECONDS)


def main(  # noqa: PLR0913 (one parameter per command-line option)
    out: Annotated[Path, typer.Argument(help="Folder for everything; created.")],
    *,
    budget_seconds: Annotated[float, typer.Option(min=1, help="Everything is over by then.")] = 580.0,
    piece: Annotated[list[Piece] | None, typer.Option(help="Only these; repeatable.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Promotions of each depth.")] = 200,
    shape: Annotated[Shape, typer.Option(help="Of the checkpoint that is made.")] = Shape.LLAMA_8B,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    checkpoints: Annotated[
        Path, typer.Option(metavar="DIR", help="Where checkpoints are kept; memory is best.")
    ] = CACHE,
) -> None:
    """Run the pieces one after another; exit code 1 unless all of them passed."""
    begun = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    described = machine()
    typer.echo(json.dumps(described))
    run(made(shape, checkpoints))
    typer.echo(f"the checkpoint is there after {time.monotonic() - begun:.0f} s")
    suite = Suite(
        out=out,
        arguments=("--shape", str(shape), "--device", device, "--checkpoints", str(checkpoints)),
        count=count,
        until=begun + budget_seconds,
    )
    done = []
    for each in piece or Piece:
        done.append(run(suite.run(each)))
        _tell(done[-1], out)
    kept = {"machine": described, "pieces": [asdict(each) for each in done]}
    (out / "suite.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    typer.echo(f"{sum(each.exit_code == 0 for each in done)} of {len(done)} pieces passed")
    raise typer.Exit(0 if all(each.exit_code == 0 for each in done) else 1)


def _tell(done: Done, out: Path) -> None:
    result = "passed" if done.exit_code == 0 else done.said or f"failed with exit code {done.exit_code}"
    typer.echo(f"\n=== {done.piece}: {result} ({done.seconds:.0f} s)")
    log = out / done.piece / "log.txt"
    if log.is_file():
        said = log.read_text("utf-8", "replace").strip()
        typer.echo(said if len(said) <= _TAIL_CHARACTERS else f"…{said[-_TAIL_CHARACTERS:]}")


if __name__ == "__main__":
    typer.run(main)
