"""Keeps Python's garbage collector from holding a controller's loop up: what `scaler.gateway.garbage` does, at a controller's moments.

Everything is looked at now and then, when nothing is in burst, and not when the collector thinks so. A tick over everything makes some
fifty thousand objects that stay, in place of as many of the tick before. A collector that looks at the young by their number does
so twice in each such tick, takes a fifth of its time, and finds nothing. So by itself it looks only when far more have come than have
gone; else the young are looked at between two ticks.
"""

import asyncio
import gc
import math
from typing import Final

from scaler.core.model import Mode
from scaler.gateway import garbage
from scaler.runtime.controller import Controller

_LOOK_SECONDS: Final = 1.0
_YOUNG: Final = 20_000
"""Objects more than there were at the last look, from which on the young are looked at between two ticks: that takes some ten
milliseconds."""
_AT_ONCE: Final = 100_000
"""Objects more than there were from which on the collector looks at the young at once."""


async def keep_garbage_quiet(controller: Controller) -> None:
    """Take long-lived objects out of the collector's sight, from the first decision on, until cancelled."""
    waited = math.inf
    with garbage.collector_lent():
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
            if controller.last is None or (_in_burst(controller) and waited < math.inf):
                continue
            if waited >= garbage.INTERVAL_SECONDS:
                freeze_what_there_is()
                waited = 0.0
            else:
                look_at_the_young()


def freeze_what_there_is() -> None:
    """Collect all garbage and take what is left out of the collector's sight."""
    garbage.freeze_what_there_is(_AT_ONCE)


def look_at_the_young() -> None:
    """Look at the young between two ticks, if there are many: else a tick is held up by that sooner or later."""
    if gc.get_count()[0] >= _YOUNG:
        gc.collect(0)


def _in_burst(controller: Controller) -> bool:
    tick = controller.last
    return tick is not None and any(p.mode is Mode.BURST for p in tick.decision.policies.values())
