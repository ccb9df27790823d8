"""What all commands print alike: tables for people, JSON for programs, errors with their mend, a bar while bytes move."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar

from loader.checkpoint import Checkpoint
from loader.errors import LoaderError
from loader.loading import Progress
from loader.sources.files import open_checkpoint

_PIPE_COLUMNS = 200


class Output(StrEnum):
    """Form of the output."""

    TABLE = "table"
    JSON = "json"


CheckpointPath = Annotated[
    Path,
    typer.Argument(exists=True, metavar="PATH", help="A checkpoint's directory, or one .safetensors file."),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Form of the output.")]
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Take links that lead out of the directory, too.")
]


def console() -> Console:
    """Where tables go."""
    made = Console()
    if not made.is_terminal:
        made.width = _PIPE_COLUMNS  # a pipe has no width; wrapped names would be hard to search
    return made


def opened(path: Path, *, follow_links: bool, output: Output) -> Checkpoint:
    """The checkpoint, or the end of the program with status 1."""
    with failing(output):
        return open_checkpoint(path, follow_links=follow_links)


@contextmanager
def failing(output: Output = Output.TABLE) -> Iterator[None]:
    """Print an error of the loader in the form asked for, and end with status 1."""
    try:
        yield
    except LoaderError as error:
        if output is Output.JSON:
            print_json({"ok": False, "error": describe_error(error)})
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def describe_error(error: LoaderError) -> dict[str, object]:
    """An error's fields, for programs."""
    about: dict[str, object] = {
        "type": type(error).__name__,
        "message": error.what,
        "file": error.file,
        "tensor": error.tensor,
        "offset": error.offset,
        "hint": error.hint,
    }
    about.update(
        {name: getattr(error, name) for name in ("fault", "reasons", "tensors") if hasattr(error, name)}
    )
    return about


def print_json(document: object) -> None:
    """A JSON document on standard output."""
    typer.echo(json.dumps(document, indent=2))


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on standard error while bytes move; nothing where that is no terminal."""
    to = Console(stderr=True)
    columns = (
        "[progress.description]{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Bar(*columns, TimeRemainingColumn(), console=to, disable=not to.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.done_bytes, total=progress.total_bytes)

        yield show


def counted(number: int, noun: str) -> str:
    """Such as ``1 file`` or ``3 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
