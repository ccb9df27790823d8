"""The share of first tokens that came too late, from one instance's totals. PURE: time is an argument.

It is taken over the same seconds, and told of as many first tokens at least, as that of the engines' own histograms
(`scaler.signals.engine_sum`), so that either can stand in for the other.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from scaler.signals import engine_sum

_POINT_SECONDS: Final = 0.25
"""Totals are kept this finely; samples may come a hundred times a second."""


class Lateness:
    """One instance's first tokens of one policy over the last seconds, from totals that may begin anew."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float, float]] = deque()
        self._last: tuple[float, float] | None = None
        self._late = 0.0
        self._every = 0.0

    def add(self, at: float, late: float, every: float) -> None:
        """Take totals, as they were at a moment: first tokens that were late, and all of them."""
        if self._last is not None:
            before_late, before_every = self._last
            again = late < before_late or every < before_every  # begun anew: all that it shows has come since
            self._late += late if again else late - before_late
            self._every += every if again else every - before_every
        self._last = late, every
        if len(self._points) > 1 and at - self._points[-2][0] < _POINT_SECONDS:
            self._points.pop()
        self._points.append((at, self._late, self._every))
        while len(self._points) > 1 and self._points[1][0] <= at - engine_sum.LATE_WINDOW_SECONDS:
            self._points.popleft()

    def within(self) -> tuple[float, float]:
        """Return (late, all) of the window that ends with the last totals; (0, 0) of single ones."""
        if not self._points:
            return 0.0, 0.0
        (_, late, every), (_, last_late, last_every) = self._points[0], self._points[-1]
        return last_late - late, last_every - every


def late_share(of: Iterable[Lateness]) -> float | None:
    """Return the share over several instances, from 0 to 1; None of too few first tokens."""
    share = engine_sum.late_share(each.within() for each in of)
    return None if share is None else min(1.0, share)
