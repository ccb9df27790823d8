"""What every test gets."""

import asyncio
import os

import pytest
from hypothesis import settings

# Importing some libraries leaves the main thread a default event loop that nobody closes; with warnings as errors the
# garbage collector then fails a test that has nothing to do with it.
asyncio.set_event_loop(None)

# Tests start many processes. Where Python is told to keep no compiled files, each of them compiles all of this project anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("default", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile("default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole drills run last: what is quick to fail should fail first."""
    items.sort(key=lambda item: item.get_closest_marker("drill") is not None)
