"""How requests come and how long they take: the averages by which all else is predicted.

One average for both what waits and what seats are ordered for. It is the mean of ten minutes in which something was in
flight, for how long a request takes changes slowly and may be longer than any other window. That a server stalls is told
sooner by the age of what waits.

A moment is judged by the averages from before it. So a reading that says more is in flight changes no rate that it is
judged by, and more demand never gives less.
"""

import math
from typing import Final

from scaler.core.demand import Demand
from scaler.core.memory import Service, service_of
from scaler.core.model import Quality

SERVICE_SECONDS: Final = 600.0
"""Over so long the time that a request takes is averaged."""
_NOTHING: Final = Service(0.0, 0.0)
_FRESH: Final = Quality.FRESH
"""By a name of its own: looking an enum's members up takes long (`scaler.core.demand`)."""


def watch(before: Service | None, demand: Demand, elapsed: float, window: float) -> Service | None:
    """Bring the averages up to date.

    Seconds in which nothing is in flight say nothing of how long a request takes, and are left out (0/0 is idle, and not
    unknown); in flight without completions is a stall and lowers the rate.

    Args:
        before: the averages so far.
        demand: what was just measured.
        elapsed: seconds since the averages were last brought up to date.
        window: seconds of the window for arrivals.
    """
    served, told = demand.completions if demand.busy > 0.0 else None, demand.arrivals
    if demand.quality is not _FRESH or not 0.0 <= elapsed < math.inf:
        return before
    if served is None and told is None:
        return before
    completions, busy, seconds, _, arrivals, heard = before or _NOTHING
    if served is not None:
        weight = _weight(elapsed, seconds, SERVICE_SECONDS)
        completions += weight * (served - completions)
        busy += weight * (demand.busy - busy)
        seconds += elapsed
    if told is not None:
        arrivals += _weight(elapsed, heard, window) * (told - arrivals)
        heard += elapsed
    return service_of((completions, busy, seconds, demand.busy, arrivals, heard))


def _weight(elapsed: float, before: float, window: float) -> float:
    """Return the weight of one more reading: its part of the time so far, of the window at most."""
    length = before + elapsed
    if window < length:
        length = window
    return elapsed / length if 0.0 < length > elapsed else 1.0
