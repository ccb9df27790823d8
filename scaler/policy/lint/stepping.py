"""How long rates of change make a fleet take from one total to another, by the law's own rules in virtual time."""

import math
from dataclasses import dataclass
from typing import Final

from scaler.core.model import Pace
from scaler.core.pace import Changes, highest_total, lowest_total

MOST_CHANGES: Final = 1000
"""Changes that are followed; a fleet that needs more takes longer than anybody waits."""


@dataclass(frozen=True, slots=True)
class Way:
    """How far the rates let a total come.

    Attributes:
        seconds: how long it takes to get there.
        reached: the total that is reached; the goal, unless the rates never let it be or it takes too many changes.
    """

    seconds: float
    reached: int


def way(pace: Pace, start: int, goal: int, *, before: int | None = None) -> Way:
    """Return how long the rates take from one total to another, when it is asked for all the time.

    Windows and tolerance aren't counted here. Each change is as large as the rates allow at the first moment at which
    they allow any, which is what a loop does that looks again as soon as the answer may change.

    Args:
        pace: the rates of that direction.
        start: the total at first.
        goal: the total that is asked for.
        before: the total that there was just before, if that was another: the change from it counts, too.
    """
    total, now = start, 0.0
    changes = Changes() if before is None else Changes().add(now, before, start)
    periods = [limit.period for limit in pace.limits]
    for _ in range(MOST_CHANGES):
        last = total
        total = _step(pace, changes, last, goal, now)
        changes = changes.add(now, last, total)
        if total == goal:
            return Way(now, total)
        later = changes.frees_at(periods, now)
        if later == math.inf:
            return Way(now, total)
        now = later
    return Way(now, total)


def _step(pace: Pace, changes: Changes, total: int, goal: int, now: float) -> int:
    if goal > total:
        return min(goal, highest_total(pace, changes, total, now))
    return max(goal, lowest_total(pace, changes, total, now))


def ignored(total: int, tolerance_percent: int) -> int:
    """Return the largest change, in seats, that a tolerance swallows at a total.

    The HorizontalPodAutoscaler leaves a ratio alone with |wanted / present − 1| ≤ tolerance (Kubernetes' documentation of
    HorizontalPodAutoscaler, "Algorithm details"); ours is the same test, `scaler.core.pace.tolerated`. A change of k seats
    of n is such a ratio when k ≤ n · tolerance.
    """
    return total * tolerance_percent // 100


def dead_from(tolerance_percent: int) -> int | None:
    """Return the smallest total at which a change of one seat is ignored: 1/n ≤ tolerance. None if there is none."""
    return -(-100 // tolerance_percent) if tolerance_percent else None


def last_start(seats: int, *, concurrent: int, per_minute: int, start_seconds: float) -> float:
    """Return when the last of `seats` seats may begin to start, in seconds after the first.

    A seat waits until one of `concurrent` that are starting is done and until fewer than `per_minute` were started within
    the last 60 s (`scaler.core.windows.Starts`): s(i) = max(s(i − concurrent) + start, s(i − per_minute) + 60).

    Args:
        seats: how many; at least one.
        concurrent: seats that may be starting at once.
        per_minute: seats that may be started within any 60 s.
        start_seconds: how long one takes.
    """
    begun: list[float] = []
    for index in range(seats):
        at = 0.0
        if index >= concurrent:
            at = begun[index - concurrent] + start_seconds
        if index >= per_minute:
            at = max(at, begun[index - per_minute] + 60.0)
        begun.append(at)
    return begun[-1]
