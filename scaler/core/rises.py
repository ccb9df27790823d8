"""How fast demand rises: the history from which a fleet with automatic spares learns how many it needs.

A spare seat is there for what rises before a new seat has started. So the law watches, per fleet, the demand of all its
policies together, what was refused for lack of room included, in its seats, and notes for every stretch of one replenish
time by how much it rose within so long. The spare target is a quantile of these notes over the look-back: enough spares
for that share of the stretches.

The history is bounded: one histogram a day, whose bins are exact up to 64 seats and at most an eighth too wide above.
"""

import math
from collections import Counter
from dataclasses import replace
from typing import Final, NamedTuple

from scaler.core.placement import COUNT_MAX
from scaler.core.values import frozen

DAY_SECONDS: Final = 86_400.0
MOST_DAYS: Final = 60
"""Days that are remembered at most."""
UNMEASURED_REPLENISH_SECONDS: Final = 60.0
"""Replenish time until one has been measured."""
SHORTEST_SECONDS: Final = 1.0
_BUCKETS: Final = 32
_EXACT: Final = 64


class Low(NamedTuple):
    """The lowest demand of a part of a replenish time.

    Attributes:
        part: which part, counted from the clock's zero.
        seats: the lowest demand in it.
    """

    part: int
    seats: float


class Day(NamedTuple):
    """How far demand rose in the stretches of one day.

    Attributes:
        number: which day of the clock.
        bins: rises in seats, ascending.
        counts: how many stretches rose by each.
    """

    number: int
    bins: tuple[int, ...]
    counts: tuple[int, ...]


@frozen(kw_only=True)
class Rises:
    """What is remembered of a fleet's rises.

    Attributes:
        since: when the history began; None before the first demand.
        lows: the lowest demand in each part of the last replenish time, oldest first.
        stretch: number of the stretch that is on.
        highest: how far demand has risen in it so far, in seats.
        days: finished stretches by day, oldest first.
    """

    since: float | None = None
    lows: tuple[Low, ...] = ()
    stretch: int = 0
    highest: float = 0.0
    days: tuple[Day, ...] = ()

    def add(self, now: float, seats: float, replenish: float) -> "Rises":
        """Return the history with one more look at the demand.

        Args:
            now: the time.
            seats: demand of all policies of the fleet together, in its seats.
            replenish: seconds that a seat takes to start; 0 while that isn't known.
        """
        seconds = max(SHORTEST_SECONDS, replenish if replenish > 0.0 else UNMEASURED_REPLENISH_SECONDS)
        part = seconds / _BUCKETS
        index, stretch = math.floor(now / part), math.floor(now / seconds)
        lows = tuple(low for low in self.lows if index - _BUCKETS <= low.part <= index)
        rise = max(0.0, seats - min((low.seats for low in lows), default=seats))
        if lows and lows[-1].part == index:
            lows = (*lows[:-1], Low(index, min(lows[-1].seats, seats)))
        else:
            lows = (*lows, Low(index, seats))
        if self.since is not None and stretch == self.stretch:
            return replace(self, lows=lows, highest=max(self.highest, rise))
        days = self.days if self.since is None else _noted(self.days, self.highest, now)
        since = now if self.since is None else self.since
        return Rises(since=since, lows=lows, stretch=stretch, highest=rise, days=days)

    def quantile(self, percent: int, now: float, lookback: float) -> int | None:
        """Return the rise, in seats, that so many percent of the stretches stayed within.

        Args:
            percent: from 1 to 100.
            now: the time.
            lookback: seconds of history that count.

        Returns:
            None until there is a day of history.
        """
        if self.since is None or now - self.since < DAY_SECONDS:
            return None
        first = math.floor((now - min(lookback, MOST_DAYS * DAY_SECONDS)) / DAY_SECONDS)
        counts = Counter[int]()
        for day in self.days:
            if day.number >= first:
                counts.update(dict(zip(day.bins, day.counts, strict=True)))
        wanted, seen = math.ceil(sum(counts.values()) * percent / 100), 0
        for rise in sorted(counts):
            seen += counts[rise]
            if seen >= wanted:
                return rise
        return None

    def moved(self, seconds: float) -> "Rises":
        """Return the history as another clock has it, which shows so many seconds more: after a restart.

        The stretch that was on is forgotten.
        """
        days = tuple(day._replace(number=day.number + round(seconds / DAY_SECONDS)) for day in self.days)
        return Rises(since=None if self.since is None else self.since + seconds, days=days)


NO_RISES: Final = Rises()


def _noted(days: tuple[Day, ...], rise: float, now: float) -> tuple[Day, ...]:
    number, seats = math.floor(now / DAY_SECONDS), _bin(rise)
    today = days[-1] if days and days[-1].number == number else Day(number, (), ())
    counts = dict(zip(today.bins, today.counts, strict=True))
    counts[seats] = counts.get(seats, 0) + 1
    bins = tuple(sorted(counts))
    noted = Day(number, bins, tuple(counts[one] for one in bins))
    kept = [day for day in days if number - MOST_DAYS < day.number < number]
    return (*kept, noted)


def _bin(rise: float) -> int:
    """Return the seats that a rise takes, rounded up to few distinct numbers."""
    seats = min(COUNT_MAX, math.ceil(rise - 1e-9)) if rise < COUNT_MAX else COUNT_MAX
    if seats <= _EXACT:
        return max(0, seats)
    step = 1 << (seats.bit_length() - 4)
    return -(-seats // step) * step
