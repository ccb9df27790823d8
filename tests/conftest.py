"""What every test gets."""

import asyncio
import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fakes import engine_zygote, forked

# Importing some libraries leaves the main thread a default event loop that nobody closes; with warnings as errors the
# garbage collector then fails a test that has nothing to do with it.
asyncio.set_event_loop(None)

# Tests start many processes. Where Python is told to keep no compiled files, each of them compiles all of this project anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is started in the background of a script ignores what terminals send, and so would all that tests start; a signal that is
# handled here is none of theirs, and does to them what it does elsewhere.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else lambda *_: None)

# Collecting makes a million objects that stay: the garbage collector would look at them again and again.
gc.disable()

# Always the same examples, so more of them find nothing that fewer don't, from one run to the next: HYPOTHESIS_PROFILE=long tries
# other ones, and many.
settings.register_profile("default", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


_CLOCK_TRIES = 3
"""How often a test that compares wall time may try. A fault is late each time, a machine that stalls is not."""


_IDLE_TURNS = 1
"""How often a loop in virtual time looks once more, when nobody in it is ready, before the time moves. The library's 42 are for what
happens outside the loop; here nothing does, but in threads, which it waits for in another way."""


def pytest_configure(config: pytest.Config) -> None:
    """Start what all workers share while they collect."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):  # by xdist
        forked.share()
        engine_zygote.share()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and never among what was collected."""
    gc.enable()
    gc.freeze()


_TURNS = {"integration": 0, "contract": 0, "unit": 2}
"""When it is a folder's turn among several workers, any other's is 1: first the tests that start processes and wait for them, so that
those that compute fill the time in which the last of them come to an end; at last the shortest, so that all workers end together."""
_DRILLS = ("deploy", "drill")
"""Folders in which `make test` looks for whole drills: collecting all others would take a quarter of a minute once more."""
_ROOT = Path(__file__).parent


@cache
def _folder(path: Path) -> str:
    return path.relative_to(_ROOT).parts[0] if path.is_relative_to(_ROOT) else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whole drills run last: what is quick to fail should fail first."""
    turns = _TURNS if hasattr(config, "workerinput") else {}  # by xdist
    places: list[tuple[bool, int]] = []
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        folder = _folder(item.path)
        if "looptime" in markers:
            item.add_marker(pytest.mark.looptime(noop_cycles=_IDLE_TURNS))
        if "wall_clock" in markers:
            item.add_marker(pytest.mark.flaky(reruns=_CLOCK_TRIES - 1, reruns_delay=1))
        if "drill" in markers and folder not in _DRILLS:
            raise pytest.UsageError(
                f"{item.nodeid}: whole drills are kept in tests/{' and tests/'.join(_DRILLS)}"
            )
        places.append(("drill" in markers, turns.get(folder, 1)))
    order = sorted(range(len(items)), key=places.__getitem__)
    items[:] = [items[number] for number in order]
