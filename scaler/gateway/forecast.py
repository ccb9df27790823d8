"""How long a request will wait, from what the gateway has seen of one policy. PURE: time is an argument (monotonic seconds).

While residents are in rotation, what stands in front goes at the pace of the last seconds (Little's law for the queue alone:
wait = length / rate). While none is, the last waits for one say how long this one takes, unless the controller knows better.
"""

from collections import deque
from typing import Final

_RATE_SECONDS: Final = 10.0
"""Span over which the pace is taken: long enough for streams of some seconds, short enough to follow a promotion."""
_POINT_SECONDS: Final = 0.5
_COLD_WAITS: Final = 3
"""How many waits for a first resident are remembered."""


class Forecast:
    """What one policy's requests have waited for so far."""

    def __init__(self) -> None:
        self._freed: deque[tuple[float, int]] = deque()
        self._cold_waits: deque[float] = deque(maxlen=_COLD_WAITS)
        self._cold_since: float | None = None
        self._coming_at: float | None = None

    def freed(self, now: float) -> None:
        """A slot was given back."""
        if self._freed and now - self._freed[-1][0] < _POINT_SECONDS:
            at, count = self._freed.pop()
            self._freed.append((at, count + 1))
        else:
            self._freed.append((now, 1))
        self._forget(now)

    def waits_cold(self, now: float) -> None:
        """A request waits, and no resident is in rotation."""
        if self._cold_since is None:
            self._cold_since = now

    def warm(self, now: float) -> None:
        """A resident is in rotation."""
        if self._cold_since is not None:
            self._cold_waits.append(now - self._cold_since)
            self._cold_since = None

    def coming(self, seconds: float | None, now: float) -> None:
        """Take what the controller says: in how many seconds one more resident will be in rotation."""
        self._coming_at = now + seconds if seconds is not None else None

    def wait(self, ahead: int, now: float, *, cold: bool) -> float | None:
        """Return how many seconds a request will wait with so many in front of it; None when nothing tells."""
        told = max(0.0, self._coming_at - now) if self._coming_at is not None else None
        if cold:
            return told if told is not None else self._cold(now)
        self._forget(now)
        count = sum(count for _, count in self._freed)
        if not count:
            return told
        paced = (ahead + 1) * max(_POINT_SECONDS, now - self._freed[0][0]) / count
        return paced if told is None else min(paced, told)

    def _cold(self, now: float) -> float | None:
        if not self._cold_waits:
            return None
        usual = sum(self._cold_waits) / len(self._cold_waits)
        left = usual - (now - self._cold_since if self._cold_since is not None else 0.0)
        return left if left > 0.0 else None  # it takes longer than usual, so nobody knows

    def _forget(self, now: float) -> None:
        while self._freed and self._freed[0][0] < now - _RATE_SECONDS:
            self._freed.popleft()
