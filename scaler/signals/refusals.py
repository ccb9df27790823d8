"""Requests that were turned away for lack of room, as requests that wait outside. PURE: time is an argument.

Whoever is refused is told to come again after a while, and waits outside until then. With r refusals a second, each of which
stays outside for W seconds, r · W stand there at any moment (Little's law: L = λ · W). With the W that the gateway tells them
(its Retry-After), one that is refused at each try counts once, and not once a try. One that never comes again counts for no
longer either: the number is a lower bound of what would be here, had there been room.
"""

from collections import deque
from typing import Final, NamedTuple

OUTSIDE_SECONDS: Final = 1.0
"""How long a refused request stays outside where nobody says: the least Retry-After of the gateway
(`scaler.gateway.settings.retry_after_seconds`)."""
LONGEST_OUTSIDE_SECONDS: Final = 60.0
"""How long one stays outside at most: clients of OpenAI's heed no longer Retry-After (openai-python, `_calculate_retry_timeout`)."""
_FINEST_SECONDS: Final = 0.05
_STEPS: Final = 200
"""Into so many parts at most the time outside is divided."""


class _Step(NamedTuple):
    """What was refused between two moments, and for how long each stays outside."""

    begin: float
    end: float
    refused: float
    outside: float

    def still_outside(self, at: float) -> float:
        """Return how many are outside at a moment; they are taken to have been refused evenly."""
        if self.end <= self.begin:
            return self.refused if at < self.end + self.outside else 0.0
        share = (self.end - (at - self.outside)) / (self.end - self.begin)
        return self.refused * max(0.0, min(1.0, share))

    def joined(self, end: float, refused: float, outside: float) -> "_Step":
        """Return this step with what was refused right after it."""
        every = self.refused + refused
        mean = (self.refused * self.outside + refused * outside) / every
        return _Step(self.begin, end, every, mean)


class Refusals:
    """What one instance has turned away of one policy over the last moments, by its totals."""

    def __init__(self, at: float, total: float, seconds: float | None = None) -> None:
        """Begin with first totals; how much of them is of late, nobody knows."""
        self._at = at
        self._total = total
        self._seconds = seconds
        self._seen_twice = False
        self._steps: deque[_Step] = deque()

    def add(self, at: float, total: float, seconds: float | None = None) -> None:
        """Take later totals; one that fell began again at zero.

        Args:
            at: when they were true.
            total: requests turned away.
            seconds: the seconds after which each was told to come again, added up; None where nobody says.
        """
        refused = _risen(self._total, total)
        if refused > 0.0:
            self._put(at, refused, self._outside(refused, seconds))
        while self._steps and self._steps[0].end + self._steps[0].outside <= at:
            self._steps.popleft()
        self._at, self._total, self._seconds, self._seen_twice = at, total, seconds, True

    def _outside(self, refused: float, seconds: float | None) -> float:
        if seconds is None or self._seconds is None:
            return OUTSIDE_SECONDS
        return min(LONGEST_OUTSIDE_SECONDS, _risen(self._seconds, seconds) / refused)

    def _put(self, at: float, refused: float, outside: float) -> None:
        finest = max(_FINEST_SECONDS, outside / _STEPS)
        last = self._steps[-1] if self._steps else None
        if last is not None and last.end == self._at and at - last.begin <= finest:
            self._steps[-1] = last.joined(at, refused, outside)
        else:
            self._steps.append(_Step(self._at, at, refused, outside))

    @property
    def outside(self) -> float | None:
        """Requests outside when the last totals were true; None while there are none but the first."""
        if not self._seen_twice:
            return None
        return sum(step.still_outside(self._at) for step in self._steps)


def _risen(before: float, after: float) -> float:
    return after - before if after >= before else after
