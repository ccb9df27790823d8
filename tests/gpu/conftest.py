"""Checkpoints that several tests on a device compute with: each is made once, for the larger ones take long."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the checkpoint of a shape."""
    from warmpool.reference.checkpoints import make_checkpoint  # noqa: PLC0415 (torch, which others here do without)

    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda shape: make_checkpoint(folder / shape, shape, seed=1))
