"""`inspect` and `verify`: look at a checkpoint, or see that it is whole, without loading it."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from loader.checkpoint import Checkpoint
from loader.cli.output import (
    CheckpointPath,
    FollowLinks,
    Output,
    OutputOption,
    console,
    counted,
    failing,
    opened,
    print_json,
    progress_bar,
)
from loader.errors import ManifestInvalid
from loader.loading import Run
from loader.manifest import MANIFEST_FILE, check_headers, compare
from loader.sources.files import read_manifest


def inspect(
    path: CheckpointPath, *, output: OutputOption = Output.TABLE, follow_links: FollowLinks = False
) -> None:
    """List a checkpoint's tensors, totals and dtypes."""
    checkpoint = opened(path, follow_links=follow_links, output=output)
    if output is Output.JSON:
        print_json(_document(checkpoint))
    else:
        _print_tables(checkpoint)


def verify(
    path: CheckpointPath,
    *,
    values: Annotated[
        bool, typer.Option("--values", help=f"Read every tensor and compare it with {MANIFEST_FILE}, too.")
    ] = False,
    manifest: Annotated[
        Path | None, typer.Option(exists=True, help="The manifest, if it isn't beside the shards.")
    ] = None,
    output: OutputOption = Output.TABLE,
    follow_links: FollowLinks = False,
) -> None:
    """Check headers, index and sizes, and the manifest where there is one; tensors are read with --values only."""
    checkpoint = opened(path, follow_links=follow_links, output=output)
    with failing(output):
        read = read_manifest(checkpoint, manifest)
        if read is not None:
            check_headers(checkpoint, read)
        elif values:
            raise ManifestInvalid(
                "there is no manifest to compare values with",
                file=f"{checkpoint.root}/{MANIFEST_FILE}",
                hint=f"write one from a copy that you trust: `python -m loader digest {path}`",
            )
        if values and read is not None:
            from loader.proof import digest_source  # noqa: PLC0415 - the rest works without torch

            with progress_bar("reading") as progress:
                digests = digest_source(checkpoint, run=Run(progress=progress))
            compare(digests, checkpoint, read)
    _report(checkpoint, output, manifest=read is not None, values=values)


def _report(checkpoint: Checkpoint, output: Output, *, manifest: bool, values: bool) -> None:
    total = checkpoint.total_bytes
    if output is Output.JSON:
        counts = {"tensors": len(checkpoint.tensors), "bytes": total, "files": len(checkpoint.shards)}
        print_json({"ok": True, **counts, "manifest": manifest, "values": values})
        return
    if checkpoint.declared_bytes not in {None, total}:
        typer.echo(
            f"note: the index declares {checkpoint.declared_bytes} bytes and the tensors have {total}; "
            "many writers get this figure wrong, so it is no error",
            err=True,
        )
    checked = ", as in the manifest" if manifest else ""
    checked += ", every value read" if values else ""
    tensors, files = counted(len(checkpoint.tensors), "tensor"), counted(len(checkpoint.shards), "file")
    typer.echo(f"ok: {tensors}, {total} bytes, {files}{checked}")


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
    out = console()
    tensors = Table("NAME", "DTYPE", "SHAPE", "SIZE", "FILE", box=None, header_style="")
    for entry in checkpoint.tensors.values():
        # repr where a name holds control characters: a file must not be able to drive the terminal.
        name = entry.name if entry.name.isprintable() else repr(entry.name)
        tensors.add_row(
            Text(name), entry.dtype, Text(str(list(entry.shape))), decimal(entry.nbytes), Text(entry.file)
        )
    out.print(tensors)
    dtypes = Table("DTYPE", "TENSORS", "SIZE", box=None, header_style="")
    for dtype, count, nbytes in _dtype_totals(checkpoint):
        dtypes.add_row(dtype, str(count), decimal(nbytes))
    out.print()
    out.print(dtypes)
    summary = f"{counted(len(checkpoint.tensors), 'tensor')}, {decimal(checkpoint.total_bytes)}"
    out.print(f"\n{summary} in {counted(len(checkpoint.shards), 'file')}", highlight=False)
