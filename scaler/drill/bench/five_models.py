"""Five 8B models on one GPU that burst in turn: `policies/drills/five-models-gpu.yaml`, with one checkpoint for all of them.

`python -m scaler.drill.bench.five_models OUT`

Five checkpoints of 16 GB would have to be made and held in memory to no purpose: each engine has weights of its own on the
device whichever file they come from. On a machine without a GPU (`--device cpu --shape tiny`) sequences are shorter, so that
the KV memory fits; all else is the same.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from ruamel.yaml import YAML

from scaler.drill.bench.checkpoint import CACHE, made
from scaler.drill.bench.machine import machine
from scaler.drill.interruptible import run
from scaler.drill.scenario import Shape

SCENARIO = Path("policies/drills/five-models-gpu.yaml")
_CPU_LENGTH = 256


def scenario(written: Path, device: str) -> dict[str, Any]:
    """Return the scenario for a device, its policy files by their whole paths."""
    document: dict[str, Any] = YAML(typ="safe", pure=True).load(written.read_text("utf-8"))
    spec = document["spec"]
    files = [str((written.parent / file).resolve()) for file in spec["policies"]["files"]]
    spec["policies"]["files"] = files
    spec["machine"]["device"] = "Cuda" if device == "cuda" else "Cpu"
    if device == "cpu":
        spec["engine"]["maxModelLen"] = _CPU_LENGTH
    return document


def main(
    out: Annotated[Path, typer.Argument(help="Folder for the drill's report and machine.json; created.")],
    *,
    shape: Annotated[Shape, typer.Option(help="Of the checkpoint that is made.")] = Shape.LLAMA_8B,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    checkpoints: Annotated[
        Path, typer.Option(metavar="DIR", help="Where checkpoints are kept; memory is best.")
    ] = CACHE,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the load (default: the scenario's).")] = None,
) -> None:
    """Become the drill: its output, its exit code."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "machine.json").write_text(json.dumps(machine(), indent=1), "utf-8")
    checkpoint = run(made(shape, checkpoints))
    document = scenario(SCENARIO, device)
    path = out / "scenario.yaml"
    path.write_text(json.dumps(document, indent=1), "utf-8")
    command = [sys.executable, "-m", "scaler", "drill", "run", str(path), "--arm", "warm"]
    command += ["--out", str(out / "drill")]
    for model in document["spec"]["models"]:
        command += ["--checkpoint", f"{model['policy']}={checkpoint}"]
    if seed is not None:
        command += ["--seed", str(seed)]
    os.execv(command[0], command)  # noqa: S606 (its own words and exit code, and its own answer to SIGTERM)


if __name__ == "__main__":
    typer.run(main)
