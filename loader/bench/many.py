"""What a load costs the processor for each tensor: ``python -m loader.bench.many``.

A checkpoint of ten thousand tensors, named and sharded as one of two thousand experts is, and of next to no bytes: what is left is Python.
Every figure is processor time of all threads, the least of several rounds.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

import loader
from loader.bench.shapes import Shapes, make, shapes
from loader.checkpoint import Checkpoint
from loader.cli.output import Output, OutputOption, console, print_json
from loader.copiers.destinations import Addresses, Allocation, Destination, match
from loader.plan import Chunk, plan_reads

CHUNK_BYTES = 128 * 2**20
_DIMENSION = 4
"""No dimension is larger; experts' matrices are, and are what they are for their bytes alone."""
_MICROSECONDS = 1e6


def experts() -> list[Shapes]:
    """The layout of 2,000 experts with as many tensors and dimensions, and a few elements in each."""
    return [
        {name: tuple(min(size, _DIMENSION) for size in shape) for name, shape in shard.items()}
        for shard in shapes()["experts"]
    ]


def costs(path: Path, device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds by part of a load; the parts are all of a load's that come to more with every tensor.

    Args:
        path: the checkpoint.
        device: where to allocate.
        rounds: each part is timed so often.
    """
    checkpoint = loader.open_checkpoint(path)
    chunks = plan_reads(checkpoint.tensors.values(), chunk_bytes=CHUNK_BYTES)
    tensors = _allocate(checkpoint, chunks, device)
    filled = match(checkpoint, tensors, convert=False)
    parts: dict[str, Callable[[], object]] = {
        "open": lambda: loader.open_checkpoint(path),
        "plan": lambda: plan_reads(checkpoint.tensors.values(), chunk_bytes=CHUNK_BYTES),
        "match": lambda: match(checkpoint, tensors, convert=False),
        "allocate": lambda: _allocate(checkpoint, chunks, device),
        "addresses": lambda: _addresses(chunks, filled),
        "load": lambda: loader.load(checkpoint, device=device),
        "loadInto": lambda: loader.load(checkpoint, into=tensors),
    }
    return {name: min(_timed(part) for _ in range(rounds)) for name, part in parts.items()}


def _allocate(
    checkpoint: Checkpoint, chunks: tuple[Chunk, ...], device: torch.device
) -> Mapping[str, torch.Tensor]:
    with Allocation(checkpoint, device) as allocation:
        for chunk in chunks:
            allocation.prepare(chunk)
        return allocation.complete()


def _addresses(chunks: tuple[Chunk, ...], filled: Mapping[str, Destination]) -> list[int]:
    addresses = Addresses(filled)
    return [addresses[piece.tensor] for chunk in chunks for piece in chunk.pieces]


def _timed(part: Callable[[], object]) -> float:
    begun = time.process_time()
    made = part()
    seconds = time.process_time() - begun
    del made  # giving back what was made isn't part of making it
    return seconds


def main(
    *,
    device: Annotated[str, typer.Option(help="Where to: cpu or cuda:N.")] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Each part is timed so often.")] = 15,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure what each part of a load of ten thousand tensors costs the processor."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "experts"
        layout = experts()
        make(path, layout)
        found = costs(path, torch.device(device), rounds)
    count = sum(map(len, layout))
    if output is Output.JSON:
        print_json({"tensors": count, "seconds": found})
        return
    table = Table("Part", "Milliseconds", "Microseconds per tensor")
    for name, seconds in found.items():
        table.add_row(name, f"{seconds * 1e3:.1f}", f"{seconds / count * _MICROSECONDS:.2f}")
    console().print(table)


if __name__ == "__main__":
    typer.run(main)
