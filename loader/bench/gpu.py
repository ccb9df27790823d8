"""Everything that is measured on a GPU, in one command: `python -m loader.bench.gpu DIR --out FILE`.

Writes the layouts of `loader.bench.shapes` below DIR (tmpfs, say) where they aren't yet, takes turns over all ways and limits for
each, times digests and the first load's page-locking, and writes one JSON document. `--device cpu --scale 0.001` tries the
script itself where no GPU is.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer

import loader
from loader.bench.shapes import make, shapes
from loader.digest import digest_tensors
from loader.errors import LoaderError

_ROUNDS = 3

app = typer.Typer(add_completion=False)


def figures_of(path: Path, device: str, rounds: int) -> Mapping[str, object]:
    """What `python -m loader bench` measures of a checkpoint."""
    command = [sys.executable, "-m", "loader", "bench", str(path), "--device", device]
    run = subprocess.run(
        [*command, "--rounds", str(rounds), "-o", "json"], stdout=subprocess.PIPE, check=True, text=True
    )
    figures: Mapping[str, object] = json.loads(run.stdout)
    return figures


def memory_of_loads(path: Path, device: str) -> Mapping[str, float]:
    """Two loads in one process: the first page-locks memory, neither may take device memory besides the tensors."""
    checkpoint = loader.open_checkpoint(path)
    first = loader.load(checkpoint, device=device)
    del first
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    second = loader.load(checkpoint, device=device)
    extra = 0
    if device != "cpu":
        allocated = sum(-(-tensor.nbytes // 512) * 512 for tensor in second.tensors.values())
        extra = torch.cuda.max_memory_allocated() - allocated
    return {
        "secondSeconds": second.seconds,
        "stagingBytes": second.staging_bytes,
        "extraDeviceBytes": extra,
        "digestSeconds": _digest_seconds(second.tensors, device),
    }


def _digest_seconds(tensors: Mapping[str, torch.Tensor], device: str) -> float:
    """The best of three, for the first loads kernels."""
    seconds = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        digest_tensors(tensors)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the checkpoints are, or shall be.")],
    *,
    out: Annotated[Path, typer.Option(help="The JSON document.")],
    device: Annotated[str, typer.Option(help="cuda, cuda:N or cpu.")] = "cuda",
    scale: Annotated[float, typer.Option(min=0.0001, help="Share of the full sizes.")] = 1.0,
    only: Annotated[list[str] | None, typer.Option(help="Only this layout; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Fresh processes per way.")] = _ROUNDS,
) -> None:
    """Measure everything on this machine's GPU."""
    document: dict[str, object] = {"device": _name_of(device), "torch": torch.__version__}
    for name, layout in shapes(scale).items():
        if only and name not in only:
            continue
        path = directory / f"{name}-{scale:g}"
        try:
            loader.open_checkpoint(path)
        except LoaderError:
            make(path, layout)
        document[name] = {
            "ways": figures_of(path, device, rounds),
            "inProcess": memory_of_loads(path, device),
        }
        # After each layout, so that a run that is cut short has what it measured.
        out.write_text(json.dumps(document, indent=1), encoding="utf-8")
    typer.echo(out.read_text(encoding="utf-8"))


def _name_of(device: str) -> str:
    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


if __name__ == "__main__":
    app(prog_name="python -m loader.bench.gpu")
