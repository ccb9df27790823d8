"""Keeps Python's garbage collector from holding the loop up.

A full collection looks at every object that there is; with ten thousand connections, or seats, that takes a tenth of a second, in the
middle of whatever happens. Nearly all of what is made goes as soon as nobody refers to it, and what is left lives long. So full
collections are kept for moments in which nobody waits, and what has survived one is taken out of the collector's sight until the
next (`gc.freeze`).
"""

import asyncio
import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

INTERVAL_SECONDS: Final = 600.0
"""All garbage is collected about this often: what leaks by cycles leaks slowly."""
_QUIET_SECONDS: Final = 60.0
"""And this often while nothing is answered."""
_LOOK_SECONDS: Final = 5.0
_YOUNG: Final = 4_000
"""All streams wait while the collector looks at the young: 0.15 ms for so many, and 1.3 for five times as many (the best of eight,
simple objects), and ten times that on a machine that has other work."""


async def keep_garbage_quiet(idle: Callable[[], bool]) -> None:
    """Collect a gateway's garbage when it costs least, until cancelled.

    Args:
        idle: returns whether nothing is answered just now.
    """
    waited = math.inf
    with collector_lent():
        while True:
            if waited >= INTERVAL_SECONDS or (waited >= _QUIET_SECONDS and idle()):
                freeze_what_there_is(_YOUNG)
                waited = 0.0
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS


@contextmanager
def collector_lent() -> Iterator[None]:
    """Give the collector back as it was on leaving."""
    thresholds = gc.get_threshold()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def freeze_what_there_is(young: int) -> None:
    """Collect all garbage and take what is left out of the collector's sight; full collections are ours to call from then on.

    Args:
        young: objects more than there were from which on the collector looks at the young by itself.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, 20, 1_000_000)
