"""Keeps Python's garbage collector from holding the loop up.

A full collection looks at every object that there is: with ten thousand seats that takes a tenth of a second and more, in
the middle of whatever happens. Nearly all of these objects live long and are in no cycle. So they are taken out of the
collector's sight once they are there (`gc.freeze`), and everything is looked at again now and then, when nothing is in burst, and
not when the collector thinks so.

A tick over everything makes some fifty thousand objects that stay, in place of as many of the tick before. A collector that looks
at the young by their number does so twice in each such tick, takes a fifth of its time, and finds nothing. So by itself it looks
only when far more have come than have gone; else the young are looked at between two ticks.
"""

import asyncio
import gc
from typing import Final

from scaler.core.model import Mode
from scaler.runtime.controller import Controller

_INTERVAL_SECONDS: Final = 600.0
"""How often everything is looked at: often enough for what leaks by cycles, seldom enough to be no cost."""
_LOOK_SECONDS: Final = 1.0
_YOUNG: Final = 20_000
"""Objects more than there were at the last look, from which on the young are looked at between two ticks: that takes some ten
milliseconds."""
_THRESHOLDS: Final = (100_000, 20, 1_000_000)
"""Objects more than there were from which on the collector looks at the young at once, and how many times until it looks at the
next older generation: full collections are ours to call."""


async def keep_garbage_quiet(controller: Controller) -> None:
    """Take long-lived objects out of the collector's sight, from the first decision on, until cancelled."""
    waited, before, thresholds = 0.0, False, gc.get_threshold()
    try:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
            if before and _in_burst(controller):
                continue
            if before and waited < _INTERVAL_SECONDS:
                if gc.get_count()[0] >= _YOUNG:
                    gc.collect(0)
            elif controller.last is not None:
                freeze_what_there_is()
                waited, before = 0.0, True
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def freeze_what_there_is() -> None:
    """Collect all garbage and take what is left out of the collector's sight."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _in_burst(controller: Controller) -> bool:
    tick = controller.last
    return tick is not None and any(p.mode is Mode.BURST for p in tick.decision.policies.values())
