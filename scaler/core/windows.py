"""What the law remembers of the past: rings of one-second buckets, sliding maxima, and a log of starts.

All are immutable and small. Time may stand still or leap; a second without a reading has no bucket, because a gap is
unknown and not zero. Every expiry is tested as `now >= then + window`, the form in which the wake-up is computed too,
so that a wake-up never comes a rounding error early.
"""

import math
import operator
from collections.abc import Callable
from dataclasses import field
from functools import partial, reduce
from itertools import islice
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


bucket_of: Callable[[tuple[int, float, int, float]], Bucket] = partial(tuple.__new__, Bucket)
"""Makes a bucket in half of the time that calling its class takes: one is made per policy and look."""


@frozen()
class Ring:
    """Buckets of the last seconds, oldest first; seconds without a reading are absent.

    Each second weighs the same, however many readings fell into it: event-driven ticks come thick when much happens,
    and a mean over readings would lean towards the busy moments.
    """

    buckets: tuple[Bucket, ...] = ()
    _past: "_Past | None" = field(default=None, init=False, repr=False, compare=False)

    def add(self, now: float, value: float | None, peak: float, window: float) -> "Ring":
        """Return the ring with one more reading, without the buckets that left `window`.

        Args:
            now: time of the reading.
            value: what counts into means; None when the reading may only raise.
            peak: what counts into maxima.
            window: seconds to remember.
        """
        index, buckets = math.floor(now / BUCKET_SECONDS), self.buckets
        last = buckets[-1] if buckets else None
        if last is not None and last.second >= index:
            merged = _merged(last, value, peak)
            return _knowing(Ring(buckets[:-1] + (merged,)), self._past)  # noqa: RUF005 - unpacking copies once more
        kept = _since(buckets, _first_index(now, window))
        fresh = bucket_of((index, 0.0, 0, peak) if value is None else (index, value, 1, peak))
        return Ring(kept + (fresh,))  # noqa: RUF005 - as above

    def mean(self, now: float, window: float) -> float | None:
        """Return the mean over the known seconds of `window`; None when none is known."""
        first, buckets = _first_index(now, window), self.buckets
        if not buckets:
            return None
        last = buckets[-1]
        if last.second < first:
            return None
        past = self._past or self._look_back()
        if past.first != first:
            past.add_up(buckets, first)
        if last.readings:
            return (past.total + last.mean) / (past.known + 1)
        return past.total / past.known if past.known else None

    def peak(self, now: float, window: float) -> float | None:
        """Return the highest value in `window`; None when nothing is known of it."""
        first, buckets = _first_index(now, window), self.buckets
        if not buckets:
            return None
        last = buckets[-1]
        if last.second < first:
            return None
        past = self._past or self._look_back()
        if past.peak_first != first:
            past.find_peak(buckets, first)
        return past.highest if past.highest > last.peak else last.peak

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

    def _look_back(self) -> "_Past":
        past = _Past()
        _knowing(self, past)
        return past


class _Past:
    """What all seconds but the last come to. Many looks fall into one second, in which nothing of this changes.

    Attributes:
        first: first second of the window that was added up; None before.
        total: sum of the means that are known in it, added up from the oldest on.
        known: how many these are.
        peak_first: first second of the window of which the peak is known; None before.
        highest: the peak; minus infinity where that window has no other second.
    """

    __slots__ = ("first", "highest", "known", "peak_first", "total")

    def __init__(self) -> None:
        self.first: int | None = None
        self.total = 0.0
        self.known = 0
        self.peak_first: int | None = None
        self.highest = -math.inf

    def add_up(self, buckets: tuple[Bucket, ...], first: int) -> None:
        """Add up the means from second `first` on; a second without a mean has 0 there, which adds nothing."""
        over = _since(buckets, first)[:-1]
        self.first, self.total, self.known = first, 0.0, 0
        if over:
            _seconds, means, readings, _peaks = zip(*over)  # noqa: B905 - all have four
            self.total = reduce(operator.add, means, 0.0)  # `sum` rounds as the release of Python has it
            self.known = len(over) - readings.count(0)

    def find_peak(self, buckets: tuple[Bucket, ...], first: int) -> None:
        """Find the highest peak from second `first` on."""
        highest = -math.inf
        for bucket in islice(reversed(buckets), 1, None):
            if bucket.second < first:
                break
            if bucket.peak > highest:
                highest = bucket.peak
        self.peak_first, self.highest = first, highest


def _since(buckets: tuple[Bucket, ...], first: int) -> tuple[Bucket, ...]:
    """Return the buckets from a second on; few have to be left out, and these come first."""
    start, count = 0, len(buckets)
    while start < count and buckets[start].second < first:
        start += 1
    return buckets[start:]


def _knowing(ring: Ring, past: _Past | None) -> Ring:
    """Keep what the seconds that are over come to."""
    object.__setattr__(ring, "_past", past)
    return ring


def _merged(last: Bucket, value: float | None, peak: float) -> Bucket:
    highest = last.peak if last.peak > peak else peak
    if value is None:
        return Bucket(last.second, last.mean, last.readings, highest)
    readings = last.readings + 1
    return bucket_of((last.second, last.mean + (value - last.mean) / readings, readings, highest))


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
        if not marks or marks[0].value <= value:
            return Maxima((mark_of((now, value)),))  # as nearly always
        start, end = 0, len(marks)
        while marks[end - 1].value <= value:  # the first isn't
            end -= 1
        while start < end and now >= marks[start].at + window:
            start += 1
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
