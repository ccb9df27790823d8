"""`python -m loader`: look at a checkpoint, or check one, without loading it.

Results go to standard output, everything else to standard error. Exit status: 0 fine, 1 the checkpoint is not usable,
2 wrong usage.
"""

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from loader.checkpoint import Checkpoint
from loader.errors import LoaderError
from loader.sources.files import open_checkpoint

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Inspect and verify safetensors checkpoints."
)

CheckpointPath = Annotated[
    Path,
    typer.Argument(exists=True, metavar="PATH", help="A checkpoint's directory, or one .safetensors file."),
]


class Output(StrEnum):
    """Form of the output."""

    TABLE = "table"
    JSON = "json"


@app.command()
def inspect(
    path: CheckpointPath,
    output: Annotated[Output, typer.Option("--output", "-o", help="Form of the output.")] = Output.TABLE,
) -> None:
    """List a checkpoint's tensors, totals and dtypes."""
    checkpoint = _open(path)
    if output is Output.JSON:
        typer.echo(json.dumps(_document(checkpoint), indent=2))
    else:
        _print_tables(checkpoint)


@app.command()
def verify(path: CheckpointPath) -> None:
    """Check headers, index and sizes; the tensors' values are not read."""
    checkpoint = _open(path)
    total = checkpoint.total_bytes
    if checkpoint.declared_bytes not in {None, total}:
        typer.echo(
            f"note: the index declares {checkpoint.declared_bytes} bytes and the tensors have {total}; "
            "many writers get this figure wrong, so it is no error",
            err=True,
        )
    typer.echo(
        f"ok: {_count(len(checkpoint.tensors), 'tensor')}, {total} bytes, {_count(len(checkpoint.shards), 'file')}"
    )


def _open(path: Path) -> Checkpoint:
    try:
        return open_checkpoint(path)
    except LoaderError as error:
        _fail(error)


def _fail(error: LoaderError) -> NoReturn:
    typer.echo(str(error), err=True)
    raise typer.Exit(1)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _dtype_totals(checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
    """Per dtype its name, tensors and bytes, most bytes first."""
    tensors: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for entry in checkpoint.tensors.values():
        tensors[entry.dtype] += 1
        nbytes[entry.dtype] += entry.nbytes
    return [(dtype, tensors[dtype], total) for dtype, total in nbytes.most_common()]


def _document(checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "root": checkpoint.root,
        "files": list(checkpoint.shards),
        "totalBytes": checkpoint.total_bytes,
        "metadata": dict(checkpoint.metadata),
        "dtypes": [
            {"dtype": dtype, "tensors": tensors, "bytes": nbytes}
            for dtype, tensors, nbytes in _dtype_totals(checkpoint)
        ],
        "tensors": [
            {
                "name": entry.name,
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "file": entry.file,
                "begin": entry.begin,
                "end": entry.end,
            }
            for entry in checkpoint.tensors.values()
        ],
    }


def _print_tables(checkpoint: Checkpoint) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width; wrapped names would be hard to search
    tensors = Table("NAME", "DTYPE", "SHAPE", "SIZE", "FILE", box=None, header_style="")
    for entry in checkpoint.tensors.values():
        # repr where a name holds control characters: a file must not be able to drive the terminal.
        name = entry.name if entry.name.isprintable() else repr(entry.name)
        tensors.add_row(
            Text(name), entry.dtype, Text(str(list(entry.shape))), decimal(entry.nbytes), Text(entry.file)
        )
    console.print(tensors)
    dtypes = Table("DTYPE", "TENSORS", "SIZE", box=None, header_style="")
    for dtype, count, nbytes in _dtype_totals(checkpoint):
        dtypes.add_row(dtype, str(count), decimal(nbytes))
    console.print()
    console.print(dtypes)
    summary = f"{_count(len(checkpoint.tensors), 'tensor')}, {decimal(checkpoint.total_bytes)}"
    console.print(f"\n{summary} in {_count(len(checkpoint.shards), 'file')}", highlight=False)


if __name__ == "__main__":
    app(prog_name="python -m loader")
