"""The checkpoint that a bench serves: made once per shape, and kept where reading costs least."""

import sys
from pathlib import Path

import typer

from scaler.drill.checkpoints import Maker, prepare
from scaler.drill.scenario import Model, Shape

CACHE = Path("/dev/shm/emberpool-bench")  # noqa: S108 (a cache: a folder there is whole or absent)
"""Memory: what is measured is the product, not the disk."""
_NAME = "bench"


async def made(shape: Shape, cache: Path) -> Path:
    """Return a checkpoint with random weights, made unless it is there.

    Raises:
        CheckpointFailed: it can't be made.
    """
    command = (sys.executable, "-m", "warmpool.reference", "make-checkpoint", "--shards", "8")
    maker = Maker(command=command, cache=cache, given={})
    model = Model(policy=_NAME, shape=shape, seed=1, requests_per_minute=1)
    return (await prepare([model], maker, typer.echo))[_NAME]
