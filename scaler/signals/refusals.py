"""Requests that were turned away for lack of room, as requests that wait outside. PURE: time is an argument.

Whoever is refused is told to come again after a while, and waits outside until then. With r refusals a second, each of which
stays outside for W seconds, r · W stand there at any moment (Little's law: L = λ · W). With the W that the gateway tells them
(its Retry-After), one that is refused at each try counts once, and not once a try. One that never comes again counts for no
longer either: the number is a lower bound of what would be here, had there been room.
"""

from collections import deque
from typing import Final

OUTSIDE_SECONDS: Final = 1.0
"""How long a refused request stays outside: the gateway's Retry-After (`scaler.gateway.settings.retry_after_seconds`)."""


class Refusals:
    """What one instance has turned away of one policy over the last moments, by its total."""

    def __init__(self, at: float, total: float) -> None:
        """Begin with a first total; how much of it is of late, nobody knows."""
        self._at = at
        self._total = total
        self._seen_twice = False
        self._steps: deque[tuple[float, float, float]] = deque()

    def add(self, at: float, total: float) -> None:
        """Take a later total; one that fell began again at zero."""
        refused = total - (self._total if total >= self._total else 0.0)
        if refused > 0.0:
            self._steps.append((self._at, at, refused))
        while self._steps and self._steps[0][1] <= at - OUTSIDE_SECONDS:
            self._steps.popleft()
        self._at, self._total, self._seen_twice = at, total, True

    @property
    def outside(self) -> float | None:
        """Requests outside when the last total was true; None while there is only one.

        What was refused between two totals is taken to have been refused evenly.
        """
        if not self._seen_twice:
            return None
        since = self._at - OUTSIDE_SECONDS
        return sum(
            refused * (min(1.0, (end - since) / (end - begin)) if end > begin else 1.0)
            for begin, end, refused in self._steps
        )
