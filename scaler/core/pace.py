"""How fast a fleet's total may change: windows, rates and tolerance, with HorizontalPodAutoscaler's words and meaning.

The rules are those of `autoscaling/v2`'s `behavior`. A rate is counted from what the fleet had when the period began:
what it has, less what was added since, plus what was removed since. Up, the lowest total of the window counts; down, the
highest. (kubernetes/kubernetes, pkg/controller/podautoscaler/horizontal.go: `calculateScaleUpLimitWithScalingRules`,
`stabilizeRecommendationWithBehaviors`.)
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from scaler.core.model import ChangeLimit, Pace, Select
from scaler.core.placement import COUNT_MAX
from scaler.core.values import frozen
from scaler.core.windows import Mark, mark_of

LONGEST_PERIOD_SECONDS = 1800.0
"""Longest period of a rate; changes older than that are forgotten."""


class Change(NamedTuple):
    """Seats added and removed within one second."""

    second: int
    added: int
    removed: int


@frozen()
class Changes:
    """How the total changed over the longest period, oldest first, a second at a time."""

    log: tuple[Change, ...] = ()

    def add(self, now: float, before: int, after: int) -> "Changes":
        """Return the log with one more change, without what no period reaches any more."""
        if before == after:
            return self
        second, added, removed = math.floor(now), max(0, after - before), max(0, before - after)
        log = tuple(one for one in self.log if one.second > now - LONGEST_PERIOD_SECONDS - 1.0)
        if log and log[-1].second == second:
            last = log[-1]
            return Changes((*log[:-1], Change(second, last.added + added, last.removed + removed)))
        return Changes((*log, Change(second, added, removed)))

    def start_of(self, period: float, total: int, now: float) -> int:
        """Return the total that there was when the period began.

        Args:
            period: seconds.
            total: the total that there is.
            now: the time.
        """
        recent = [one for one in self.log if one.second > now - period]
        return total - sum(one.added for one in recent) + sum(one.removed for one in recent)

    def frees_at(self, periods: Iterable[float], now: float) -> float:
        """Return when the next change leaves one of the periods; infinity if none does."""
        ends = [one.second + period for period in periods for one in self.log if one.second + period > now]
        return min(ends, default=math.inf)


@frozen()
class Minima:
    """The lowest value of a sliding window, kept as the strictly rising sequence that may still become it."""

    marks: tuple[Mark, ...] = ()

    def add(self, now: float, value: int, window: float) -> "Minima":
        """Return the minima with `value` asked for at `now`, without what has left `window`."""
        marks = self.marks
        if not marks or marks[0].value >= value:
            return Minima((mark_of((now, value)),))  # as nearly always
        start, end = 0, len(marks)
        while marks[end - 1].value >= value:  # the first isn't
            end -= 1
        while start < end and now >= marks[start].at + window:
            start += 1
        return Minima((*marks[start:end], mark_of((now, value))))

    @property
    def lowest(self) -> int:
        """The lowest value still in the window; no limit when nothing was ever asked for."""
        return self.marks[0].value if self.marks else COUNT_MAX

    def rises_at(self, window: float) -> float:
        """Return when the lowest value leaves the window; infinity if nothing is held."""
        return self.marks[0].at + window if len(self.marks) > 1 else math.inf


def highest_total(pace: Pace, changes: Changes, total: int, now: float) -> int:
    """Return the total up to which the rates let a fleet of `total` grow now."""
    if pace.select is Select.DISABLED:
        return total
    if not pace.limits:
        return COUNT_MAX
    reached = [_grown(limit, changes.start_of(limit.period, total, now)) for limit in pace.limits]
    return max(total, max(reached) if pace.select is Select.MAX else min(reached))


def lowest_total(pace: Pace, changes: Changes, total: int, now: float) -> int:
    """Return the total down to which the rates let a fleet of `total` shrink now."""
    if pace.select is Select.DISABLED:
        return total
    if not pace.limits:
        return 0
    reached = [_shrunk(limit, changes.start_of(limit.period, total, now)) for limit in pace.limits]
    return max(0, min(total, min(reached) if pace.select is Select.MAX else max(reached)))


def tolerated(pace: Pace, total: int, target: int) -> bool:
    """Whether the change from `total` to `target` is too small to be worth it."""
    return total > 0 and target != total and abs(target - total) <= pace.tolerance * total + 1e-9


def _grown(limit: ChangeLimit, start: int) -> int:
    if limit.percent:
        return min(COUNT_MAX, -(-start * (100 + limit.value) // 100))
    return min(COUNT_MAX, start + limit.value)


def _shrunk(limit: ChangeLimit, start: int) -> int:
    if limit.percent:
        return start * (100 - limit.value) // 100
    return start - limit.value
