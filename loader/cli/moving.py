"""`digest` and `load`: commands that read every byte."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

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
from loader.control import Control
from loader.errors import ReadFailed
from loader.loading import LoadResult, Run, load
from loader.manifest import MANIFEST_FILE, describe, render_manifest
from loader.sources.files import read_manifest

if TYPE_CHECKING:
    from loader.checkpoint import Checkpoint

_GIGABYTE = 1e9


def digest(
    path: CheckpointPath,
    *,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Where to write it, if not {MANIFEST_FILE} beside the shards."),
    ] = None,
    output: OutputOption = Output.TABLE,
    follow_links: FollowLinks = False,
) -> None:
    """Read every tensor and write the manifest that proves it later: what headers and tensors must be."""
    from loader.proof import digest_source  # noqa: PLC0415 - the rest works without torch

    checkpoint = opened(path, follow_links=follow_links, output=output)
    target = to or Path(checkpoint.root) / MANIFEST_FILE
    with failing(output):
        with progress_bar("reading") as progress:
            digests = digest_source(checkpoint, run=Run(progress=progress))
        _write(target, render_manifest(describe(checkpoint, digests)))
    if output is Output.JSON:
        print_json({"ok": True, "manifest": str(target), "tensors": len(digests)})
    else:
        typer.echo(f"ok: {counted(len(digests), 'tensor')} in {target}")


def load_command(  # noqa: PLR0913 - one parameter per command-line option
    path: CheckpointPath,
    *,
    device: Annotated[str, typer.Option(help="Where to: cpu, cuda or cuda:N.")] = "cpu",
    tensors: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only tensors with such names, as model.layers.0.*"),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Bandwidth cap, in GB per second.")] = None,
    gds: Annotated[bool, typer.Option("--gds", help="Use GPUDirect Storage where it works.")] = False,
    output: OutputOption = Output.TABLE,
    follow_links: FollowLinks = False,
) -> None:
    """Load a checkpoint, prove it where it has a manifest, say where the time went, and let go of it."""
    checkpoint = opened(path, follow_links=follow_links, output=output)
    with failing(output):
        wanted = checkpoint.matching(tensors) if tensors else checkpoint
        control = Control(bytes_per_second=rate * _GIGABYTE if rate is not None else None)
        with progress_bar("loading") as progress:
            result = load(
                wanted,
                device=device,
                manifest=read_manifest(checkpoint),
                run=Run(progress=progress, control=control, gds=gds),
            )
    if output is Output.JSON:
        print_json(_document(result))
    else:
        _print(wanted, result)


def _write(target: Path, text: str) -> None:
    """Write a file as a whole or not at all: whoever reads it meanwhile sees the old one or the new one."""
    unfinished = target.with_name(f".{target.name}.new")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        with suppress(OSError):  # the same that was in the way: a file system that is read-only, say
            unfinished.unlink()
        raise ReadFailed(
            f"cannot be written: {error.strerror}", file=str(target), hint="write it elsewhere: --to FILE"
        ) from error


def _document(result: LoadResult) -> dict[str, object]:
    return {
        "ok": True,
        "tier": result.tier,
        "cachedShare": result.cached_share,
        "fallbacks": sorted(result.fallbacks),
        "bytes": result.nbytes,
        "stagingBytes": result.staging_bytes,
        "tensors": len(result.tensors),
        "proven": len(result.proven),
        "seconds": result.seconds,
        "secondsByStep": dict(result.seconds_by_step),
    }


def _print(checkpoint: "Checkpoint", result: LoadResult) -> None:
    table = Table("STEP", "SECONDS", box=None, header_style="")
    for step, seconds in result.seconds_by_step.items():
        table.add_row(step, f"{seconds:.4f}")
    console().print(table)
    rate = result.nbytes / result.seconds / _GIGABYTE
    slower = f", fell back: {', '.join(sorted(result.fallbacks))}" if result.fallbacks else ""
    typer.echo(
        f"\n{counted(len(result.tensors), 'tensor')}, {decimal(checkpoint.total_bytes)} from {result.tier} "
        f"in {result.seconds:.3f} s ({rate:.2f} GB/s), {len(result.proven)} proven{slower}"
    )
