"""Checkpoints that several tests on a device compute with, each made once, for the larger ones take long; and who comes first."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

_COUNTS_PROCESSES = "test_node_memory.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who else holds memory is looked at first: later this process itself does, since others compute in it."""
    items.sort(key=lambda item: item.path.name != _COUNTS_PROCESSES)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the checkpoint of a shape."""
    from warmpool.reference.checkpoints import make_checkpoint  # noqa: PLC0415 (torch, which others here do without)

    folder = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda shape: make_checkpoint(folder / shape, shape, seed=1))
