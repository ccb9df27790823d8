"""How much work there is: each request counted once, and unknown never read as zero.

Demand = queued + max(in flight as gateways see it, running + waiting as engines see it). A request that a gateway has
sent is in both of the latter, hence the maximum; one that a gateway still holds is in neither. So the same load gives
the same demand whether gateways, engines or both report it.

A request that was turned away for lack of room is not here, and no part of that. Whatever turned it away was full, and what
fills a queue counts and puts the objective at risk; it comes again and counts then; and a client that comes again at once,
over and over, must not take seats from others. It counts for how many spares a fleet should have had (`rises`).

What waits in a work queue has not asked for anything yet. It is work and not concurrency, and kept apart.

Readings that are no finite number between 0 and `PLAUSIBLE_MAX` are Missing. A part of the demand that was known
before and is not now leaves only a lower bound: it may raise the answer, and never lowers it.
"""

import math
from dataclasses import dataclass

from scaler.core.memory import Seen
from scaler.core.model import MISSING, Load, Quality, Reading

PLAUSIBLE_MAX = 1e9
"""Requests, seconds or requests per second above which a reading is a fault of its source and not a load."""
FORGOTTEN_AFTER_SECONDS = 600.0
"""How long a part of the demand that fell silent is still expected. After that its source counts as removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a policy's readings amount to.

    Attributes:
        value: requests, each counted once; a lower bound unless `quality` is Fresh; None when nothing is known.
        peak: highest demand that was reported since the last look; at least `value`.
        quality: Fresh only if every part that is expected is fresh.
        silent: the parts that are expected and stale or missing, in words; empty when none.
        queued: requests that wait at gateways, as far as known.
        busy: requests in flight, as far as known.
        wait: seconds that the oldest of the queue has waited, as far as known.
        completions: requests finished per second; None when unknown.
        arrivals: requests that arrived per second; None when unknown.
        backlog: entries that wait in work queues, as far as known. They are work and not concurrency: no part of `value`.
        backlog_age: seconds that the oldest of those has waited, as far as known.
        late: share of the requests whose first token came too late; None when unknown.
        refused: requests that were turned away of late for lack of room; 0 when unknown. No part of `value` either.
    """

    value: float | None
    peak: float
    quality: Quality
    silent: str
    queued: float
    busy: float
    wait: float
    completions: float | None
    arrivals: float | None
    backlog: float = 0.0
    backlog_age: float = 0.0
    late: float | None = None
    refused: float = 0.0


def believable(reading: Reading) -> Reading:
    """Return the reading, or Missing if its number or its age cannot be one."""
    if 0.0 <= reading.value <= PLAUSIBLE_MAX and reading.age < math.inf:  # NaN fails both
        return reading
    return MISSING


def fresh_value(reading: Reading) -> float | None:
    """Return the number of a fresh, believable reading, else None."""
    if reading.quality is not Quality.FRESH:
        return None
    return reading.value if believable(reading) is reading else None


def measure(load: Load, seen: Seen, *, serving: bool, now: float) -> tuple[Demand, Seen]:
    """Count the demand of one policy.

    Args:
        load: its readings.
        seen: when each part was last known.
        serving: whether any resident serves; without one, engines have nothing to say and are not waited for.
        now: the time.

    Returns:
        the demand, and when each part was last known, this moment included.
    """
    queued, in_flight, engines = believable(load.queued), believable(load.in_flight), believable(load.engines)
    silent = _silent(queued, seen.queued, now, "gateway queue")
    silent += _silent(in_flight, seen.in_flight, now, "gateway in flight")
    if serving or engines.known:
        silent += _silent(engines, seen.engines, now, "engines")
    backlog = believable(load.backlog)
    silent += _silent(backlog, seen.backlog, now, "work queue")
    silent += tuple(f"signal {name}" for name in load.absent)
    known = queued.known or in_flight.known or engines.known or backlog.known
    busy = max(_known(in_flight), _known(engines))
    value = _known(queued) + busy if known else None
    quality = Quality.MISSING if not known else Quality.STALE if silent else Quality.FRESH
    wait = believable(load.oldest_wait)
    demand = Demand(
        value=value,
        peak=max(value or 0.0, fresh_value(load.peak) or 0.0) if known else 0.0,
        quality=quality,
        silent=", ".join(silent),
        queued=_known(queued),
        busy=busy,
        wait=_known(wait),
        completions=fresh_value(load.completions),
        arrivals=fresh_value(load.arrivals),
        backlog=_known(backlog),
        backlog_age=_known(believable(load.backlog_age)),
        late=_share(fresh_value(load.late_share)),
        refused=fresh_value(load.refused) or 0.0,
    )
    return demand, Seen(
        now if queued.known else seen.queued,
        now if in_flight.known else seen.in_flight,
        now if engines.known else seen.engines,
        now if backlog.known else seen.backlog,
    )


def _share(value: float | None) -> float | None:
    """Return a share; what is above 1 is none."""
    return value if value is not None and value <= 1.0 else None


def _known(reading: Reading) -> float:
    return reading.value if reading.known else 0.0


def _silent(reading: Reading, seen_at: float, now: float, name: str) -> tuple[str, ...]:
    """Name the part if it is expected and not fresh."""
    if reading.quality is Quality.FRESH:
        return ()
    if reading.known or now < seen_at + FORGOTTEN_AFTER_SECONDS:
        return (name,)
    return ()
