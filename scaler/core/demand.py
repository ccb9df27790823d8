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

from scaler.core.memory import Seen, seen_of
from scaler.core.model import MISSING, Load, Quality, Reading
from scaler.core.values import frozen

PLAUSIBLE_MAX = 1e9
"""Requests, seconds or requests per second above which a reading is a fault of its source and not a load."""
FORGOTTEN_AFTER_SECONDS = 600.0
"""How long a part of the demand that fell silent is still expected. After that its source counts as removed."""
_FRESH, _STALE, _MISSING = Quality.FRESH, Quality.STALE, Quality.MISSING
"""By names of their own: twenty look-ups of an enum's members take as long as all else that is done here."""
_ENDLESS = math.inf


@frozen()
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


def known_value(reading: Reading) -> float | None:
    """Return the number of a reading that is known and believable, fresh or stale; else None."""
    if reading.quality is _MISSING:
        return None
    value = reading.value
    return value if 0.0 <= value <= PLAUSIBLE_MAX and reading.age < _ENDLESS else None  # NaN fails both


def fresh_value(reading: Reading) -> float | None:
    """Return the number of a fresh, believable reading, else None."""
    value = reading.value
    if reading.quality is _FRESH and 0.0 <= value <= PLAUSIBLE_MAX and reading.age < _ENDLESS:
        return value
    return None


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
    queued, in_flight = known_value(load.queued), known_value(load.in_flight)
    engines = None if load.engines is MISSING else known_value(load.engines)
    backlog = None if load.backlog is MISSING else known_value(load.backlog)
    silent: list[str] = []
    if (queued is None or load.queued.quality is not _FRESH) and _silent(queued, seen.queued, now):
        silent.append("gateway queue")
    if (in_flight is None or load.in_flight.quality is not _FRESH) and _silent(
        in_flight, seen.in_flight, now
    ):
        silent.append("gateway in flight")
    awaited = serving if engines is None else load.engines.quality is not _FRESH
    if awaited and _silent(engines, seen.engines, now):
        silent.append("engines")
    if (backlog is None or load.backlog.quality is not _FRESH) and _silent(backlog, seen.backlog, now):
        silent.append("work queue")
    if load.absent:
        silent += [f"signal {name}" for name in load.absent]
    known = queued is not None or in_flight is not None or engines is not None or backlog is not None
    waiting, busy = queued or 0.0, in_flight or 0.0
    if engines is not None and engines > busy:
        busy = engines
    value = waiting + busy if known else None
    late = None if load.late_share is MISSING else fresh_value(load.late_share)
    demand = (
        Demand(  # by place: by name it would take a microsecond more, which makes a dictionary of names first
            value,
            0.0 if value is None else _peak(value, load.peak),
            _MISSING if not known else _STALE if silent else _FRESH,
            ", ".join(silent) if silent else "",
            waiting,  # queued
            busy,
            known_value(load.oldest_wait) or 0.0,  # wait
            fresh_value(load.completions),
            fresh_value(load.arrivals),
            backlog or 0.0,
            0.0 if load.backlog_age is MISSING else known_value(load.backlog_age) or 0.0,
            late if late is not None and late <= 1.0 else None,  # what is above 1 is no share
            0.0 if load.refused is MISSING else fresh_value(load.refused) or 0.0,
        )
    )
    return demand, seen_of(
        (
            seen.queued if queued is None else now,
            seen.in_flight if in_flight is None else now,
            seen.engines if engines is None else now,
            seen.backlog if backlog is None else now,
        )
    )


def _peak(value: float, reported: Reading) -> float:
    """Return the highest demand since the last look: what is there, or what was reported in between."""
    peak = fresh_value(reported)
    return value if peak is None or peak <= value else peak


def _silent(value: float | None, seen_at: float, now: float) -> bool:
    """Whether a part that isn't fresh is expected: it is known, or was a while ago."""
    return value is not None or now < seen_at + FORGOTTEN_AFTER_SECONDS
