"""`python -m loader.bench FILE`: this loader and safetensors' own on the CPU, until every byte was used once.

Each figure is the median over fresh processes, because a second load in one process reuses memory that the first had
to fault in. The ways take turns, so that a busy machine is busy for all of them. Reading before summing doesn't
count as done: a mapped file costs nothing until it is touched.
"""

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import safetensors.torch
import torch
import typer
from rich.console import Console
from rich.table import Table

import loader
from loader.copiers.destinations import allocate
from loader.torch import load_file

Tensors = Mapping[str, torch.Tensor]
app = typer.Typer(add_completion=False)


def _parameters(path: Path) -> dict[str, torch.Tensor]:
    tensors = allocate(loader.open_checkpoint(path), torch.device("cpu"))
    for tensor in tensors.values():
        tensor.zero_()
    return tensors


def _reference(path: Path, _: Tensors) -> Tensors:
    return safetensors.torch.load_file(path)


def _reference_into(path: Path, parameters: Tensors) -> Tensors:
    for name, tensor in safetensors.torch.load_file(path).items():
        parameters[name].copy_(tensor)
    return parameters


def _load_file(path: Path, _: Tensors) -> Tensors:
    return load_file(path)


def _load(path: Path, _: Tensors) -> Tensors:
    return loader.load(loader.open_checkpoint(path)).tensors


def _load_into(path: Path, parameters: Tensors) -> Tensors:
    return loader.load(loader.open_checkpoint(path), into=parameters).tensors


WAYS: Mapping[str, Callable[[Path, Tensors], Tensors]] = {
    "safetensors load_file": _reference,
    "loader.torch.load_file": _load_file,
    "loader.load": _load,
    "safetensors load_file, copied into parameters": _reference_into,
    "loader.load into parameters": _load_into,
}


def _measure(path: Path, way: str) -> dict[str, float]:
    """Seconds of one load and of one pass over its bytes; and their sum, which must be the same for all ways."""
    parameters = _parameters(path) if "into" in way else {}
    torch.ones(2**20, dtype=torch.int64).sum()  # starts torch's threads
    begun = time.perf_counter()
    tensors = WAYS[way](path, parameters)
    loaded = time.perf_counter()
    total = sum(_use(tensor) for tensor in tensors.values())
    return {"load": loaded - begun, "all": time.perf_counter() - begun, "sum": total}


def _use(tensor: torch.Tensor) -> int:
    """Read every byte once, as 64-bit words, which torch adds at about the speed of memory."""
    data = tensor.reshape(-1).view(torch.uint8)
    words = data.numel() // 8 * 8
    return int(data[:words].view(torch.int64).sum()) + int(data[words:].sum())


@app.command()
def main(
    path: Annotated[
        Path, typer.Argument(exists=True, metavar="FILE", help="A .safetensors file, in the page cache.")
    ],
    rounds: Annotated[int, typer.Option(help="Fresh processes per way.")] = 5,
    way: Annotated[str, typer.Option(hidden=True, help="Measure one way in this process.")] = "",
) -> None:
    """Compare this loader with safetensors' own on the CPU."""
    if way:
        typer.echo(json.dumps(_measure(path, way)))
        return
    figures = defaultdict(list)
    path.read_bytes()
    for _ in range(rounds):
        for name in WAYS:
            command = [sys.executable, "-m", "loader.bench", str(path), "--way", name]
            run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            figures[name].append(json.loads(run.stdout))
    if len({figure["sum"] for runs in figures.values() for figure in runs}) != 1:
        raise SystemExit("the ways disagree on the bytes")
    table = Table("WAY", "LOADED ms", "ALL BYTES USED ms", "BEST ms", box=None, header_style="")
    for name, runs in figures.items():
        loaded, used = ([1000 * figure[step] for figure in runs] for step in ("load", "all"))
        table.add_row(
            name, f"{statistics.median(loaded):.1f}", f"{statistics.median(used):.1f}", f"{min(used):.1f}"
        )
    Console().print(table)


if __name__ == "__main__":
    app(prog_name="python -m loader.bench")
