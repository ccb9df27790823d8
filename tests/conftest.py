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

# Always the same examples, so more of them find nothing that fewer don't, from one run to the next: HYPOTHESIS_PROFILE=long tries
# other ones, and many.
settings.register_profile("default", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


_CLOCK_TRIES = 3
"""How often a test that compares wall time may try. A fault is late each time, a machine that stalls is not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole drills run last: what is quick to fail should fail first."""
    for item in items:
        if item.get_closest_marker("wall_clock") is not None:
            item.add_marker(pytest.mark.flaky(reruns=_CLOCK_TRIES - 1, reruns_delay=1))
    items.sort(key=lambda item: item.get_closest_marker("drill") is not None)
