"""What the law remembers of the past: rings of one-second buckets, sliding maxima, and a log of starts.

All are immutable and small. Time may stand still or leap; a second without a reading has no bucket, because a gap is
unknown and not zero. Every expiry is tested as `now >= then + window`, the form in which the wake-up is computed too,
so that a wake-up never comes a rounding error early.
"""

import math
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import NamedTuple

from scaler.core.values import frozen

BUCKET_SECONDS = 1.0
"""Width of a bucket."""
MAX_WINDOW_SECONDS = 3600.0
"""Longest window that a ring remembers; a longer one is cut to it."""
START_PERIOD_SECONDS = 60.0
"""Period over which starts of seats are counted (`Replenish.per_minute`)."""


def window_seconds(window: float) -> float:
    """Return `window` as a ring can use it: between one bucket and an hour, also for NaN and infinity."""
    if not window > BUCKET_SECONDS:
        return BUCKET_SECONDS
    return min(window, MAX_WINDOW_SECONDS)


class Bucket(NamedTuple):
    """One second of readings.

    Attributes:
        second: which second of the clock.
        mean: mean of the readings that count in both directions.
        readings: how many these were; 0 when only peaks are known.
        peak: highest value that any reading reported.
    """

    second: int
    mean: float
    readings: int
    peak: float


@frozen()
class Ring:
    """Buckets of the last seconds, oldest first; seconds without a reading are absent.

    Each second weighs the same, however many readings fell into it: event-driven ticks come thick when much happens,
    and a mean over readings would lean towards the busy moments.
    """

    buckets: tuple[Bucket, ...] = ()
    _closed: "_Closed | None" = field(default=None, init=False, repr=False, compare=False)

    def add(self, now: float, value: float | None, peak: float, window: float) -> "Ring":
        """Return the ring with one more reading, without the buckets that left `window`.

        Args:
            now: time of the reading.
            value: what counts into means; None when the reading may only raise.
            peak: what counts into maxima.
            window: seconds to remember.
        """
        index = math.floor(now / BUCKET_SECONDS)
        last = self.buckets[-1] if self.buckets else None
        if last is not None and last.second >= index:
            return _knowing(Ring((*self.buckets[:-1], _merged(last, value, peak))), self._closed)
        kept = _since(self.buckets, _first_index(now, window))
        fresh = Bucket(index, 0.0, 0, peak) if value is None else Bucket(index, value, 1, peak)
        return Ring((*kept, fresh))

    def mean(self, now: float, window: float) -> float | None:
        """Return the mean over the known seconds of `window`; None when none is known."""
        first = _first_index(now, window)
        if not self.buckets or self.buckets[-1].second < first:
            return None
        closed, last = self._closed, self.buckets[-1]
        if closed is None or closed.first != first:
            closed = _closed(self.buckets, first)
            _knowing(self, closed)
        total, known = closed.total, closed.known
        if last.readings:
            total += last.mean
            known += 1
        return total / known if known else None

    def peak(self, now: float, window: float) -> float | None:
        """Return the highest value in `window`; None when nothing is known of it."""
        first = _first_index(now, window)
        highest: float | None = None
        for bucket in reversed(self.buckets):
            if bucket.second < first:
                break
            if highest is None or bucket.peak > highest:
                highest = bucket.peak
        return highest

    @property
    def flat(self) -> bool:
        """Whether all seconds agree, so that time alone changes neither mean nor peak."""
        if not self.buckets:
            return True
        level = self.buckets[-1].peak
        for bucket in self.buckets:  # noqa: SIM110 - a generator for `all` takes twice as long
            if bucket.peak != level or bucket.mean != level:
                return False
        return True


class _Closed(NamedTuple):
    """The sum over all seconds of a window but the last, added up from the oldest on.

    Attributes:
        first: the window's first second.
        total: of the means that are known.
        known: how many these are.
    """

    first: int
    total: float
    known: int


def _since(buckets: tuple[Bucket, ...], first: int) -> tuple[Bucket, ...]:
    """Return the buckets from a second on; few have to be left out, and these come first."""
    start, count = 0, len(buckets)
    while start < count and buckets[start].second < first:
        start += 1
    return buckets[start:]


def _closed(buckets: tuple[Bucket, ...], first: int) -> _Closed:
    total, known = 0.0, 0
    for bucket in _since(buckets, first)[:-1]:  # unpacking a named tuple would take half as long again
        if bucket.readings:
            total += bucket.mean
            known += 1
    return _Closed(first, total, known)


def _knowing(ring: Ring, closed: _Closed | None) -> Ring:
    """Keep the sum over the seconds that are over: many looks fall into one second, in which only the last one changes."""
    object.__setattr__(ring, "_closed", closed)
    return ring


def _merged(last: Bucket, value: float | None, peak: float) -> Bucket:
    highest = max(last.peak, peak)
    if value is None:
        return Bucket(last.second, last.mean, last.readings, highest)
    readings = last.readings + 1
    return Bucket(last.second, last.mean + (value - last.mean) / readings, readings, highest)


def _first_index(now: float, window: float) -> int:
    """Index of the oldest bucket that still touches the window: it covers the window wholly, and up to 1 s more."""
    if not BUCKET_SECONDS <= window <= MAX_WINDOW_SECONDS:
        window = window_seconds(window)
    return math.floor((now - window) / BUCKET_SECONDS)


def next_slide(now: float, window: float) -> float:
    """Return when the next bucket leaves the window."""
    return (_first_index(now, window) + 1) * BUCKET_SECONDS + window_seconds(window)


class Mark(NamedTuple):
    """A value and when it was last asked for."""

    at: float
    value: int


mark_of: Callable[[tuple[float, int]], Mark] = partial(tuple.__new__, Mark)
"""Makes a mark in a third of the time that calling its class takes; three are made per policy and look."""


@frozen()
class Maxima:
    """The highest value of a sliding window, kept as the strictly falling sequence that may still become it."""

    marks: tuple[Mark, ...] = ()

    def add(self, now: float, value: int, window: float) -> "Maxima":
        """Return the maxima with `value` asked for at `now`, without what has left `window`."""
        marks = self.marks
        start, end = 0, len(marks)
        while end and marks[end - 1].value <= value:
            end -= 1
        while start < end and now >= marks[start].at + window:
            start += 1
        if start == end:
            return Maxima((mark_of((now, value)),))
        return Maxima((*marks[start:end], mark_of((now, value))))

    @property
    def highest(self) -> int:
        """The highest value still in the window; 0 when nothing was ever asked for."""
        return self.marks[0].value if self.marks else 0

    def within(self, now: float, window: float) -> int:
        """Return the highest value of a shorter window; 0 when nothing was asked for in it."""
        for mark in self.marks:  # the first nearly always
            if now < mark.at + window:
                return mark.value
        return 0

    def falls_within_at(self, now: float, window: float) -> float:
        """Return when the highest value of a shorter window leaves it; infinity if nothing is held."""
        return next((m.at + window for m in self.marks[:-1] if now < m.at + window), math.inf)

    def falls_at(self, window: float) -> float:
        """Return when the highest value leaves the window if it isn't asked for again; infinity if nothing is held."""
        return self.marks[0].at + window if len(self.marks) > 1 else math.inf


@frozen()
class Starts:
    """How many seats were started when, over the last minute: the strict form of a token bucket.

    A bucket that refills steadily would let twice its size through within one minute; the log lets through
    `per_minute` in any minute.
    """

    marks: tuple[Mark, ...] = ()

    def at(self, now: float) -> "Starts":
        """Return the log without what is older than a minute."""
        if self.marks and now >= self.marks[0].at + START_PERIOD_SECONDS:
            return Starts(tuple(mark for mark in self.marks if now < mark.at + START_PERIOD_SECONDS))
        return self

    def add(self, now: float, count: int) -> "Starts":
        """Return the log with `count` seats started at `now`."""
        return Starts((*self.marks, Mark(now, count))) if count > 0 else self

    @property
    def count(self) -> int:
        """Seats started within the period."""
        return sum(mark.value for mark in self.marks)

    @property
    def frees_at(self) -> float:
        """When the oldest start leaves the period; infinity when there is none."""
        return self.marks[0].at + START_PERIOD_SECONDS if self.marks else math.inf
