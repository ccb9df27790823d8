"""Keeps Python's garbage collector from holding streams up.

A full collection looks at every object that there is; with ten thousand connections that takes a tenth of a second. Nearly all
of what a gateway makes goes as soon as nobody refers to it, and what is left lives long. So full collections are kept for
moments in which nothing is answered, or for every tenth minute, and what has survived one isn't looked at again until the next.
"""

import asyncio
import gc
import math
from collections.abc import Callable
from typing import Final

_INTERVAL_SECONDS: Final = 600.0
"""All garbage is collected at least this often: what leaks by cycles leaks slowly."""
_QUIET_SECONDS: Final = 60.0
"""And this often while nothing is answered."""
_LOOK_SECONDS: Final = 5.0
_THRESHOLDS: Final = (20_000, 20, 1_000_000)
"""Allocations after which the young are looked at, and how many times until the next older generation is."""


async def keep_garbage_quiet(idle: Callable[[], bool]) -> None:
    """Collect garbage when it costs least, until cancelled.

    Args:
        idle: returns whether nothing is answered just now.
    """
    waited, thresholds = math.inf, gc.get_threshold()
    try:
        while True:
            if waited >= _INTERVAL_SECONDS or (waited >= _QUIET_SECONDS and idle()):
                gc.unfreeze()
                gc.collect()
                gc.freeze()
                gc.set_threshold(*_THRESHOLDS)
                waited = 0.0
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
