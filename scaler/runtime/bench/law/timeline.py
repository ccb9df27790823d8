"""Simulated time: a heap of what happens when. The same events give the same run, to the last bit."""

import heapq
from collections.abc import Callable
from typing import Any


class Timeline:
    """Runs actions in order of their times; of equal times in the order in which they were asked for."""

    def __init__(self, begin: float) -> None:
        """Begin at a time, in seconds."""
        self.now = begin
        self._events: list[tuple[float, int, Callable[[Any], None], object]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[Any], None], argument: object = None) -> None:
        """Have `action` called with `argument` at a time; one that has passed means now."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, action, argument))

    def run(self, until: float) -> None:
        """Run everything that is due before `until`, and stand there."""
        events, pop = self._events, heapq.heappop
        while events and events[0][0] < until:
            self.now, _, action, argument = pop(events)
            action(argument)
        self.now = until


class Meter:
    """GPU-seconds by what the seats were: every seat counts from its creation until it is gone."""

    def __init__(self, timeline: Timeline) -> None:
        """Begin with no seats."""
        self._timeline = timeline
        self._since = timeline.now
        self._counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    def move(self, before: str | None, after: str | None) -> None:
        """Count one seat in another kind; None before it exists, and after it is gone."""
        if before == after:
            return
        self._settle()
        if before is not None:
            self._counts[before] -= 1
        if after is not None:
            self._counts[after] = self._counts.get(after, 0) + 1

    @property
    def all(self) -> int:
        """Seats that there are at present."""
        return sum(self._counts.values())

    def restart(self) -> None:
        """Forget the seconds that have passed: measuring begins."""
        self._settle()
        self.seconds = {}

    def read(self) -> dict[str, float]:
        """Return the seconds per kind until now."""
        self._settle()
        return dict(self.seconds)

    def _settle(self) -> None:
        passed = self._timeline.now - self._since
        if passed > 0.0:
            for kind, number in self._counts.items():
                if number:
                    self.seconds[kind] = self.seconds.get(kind, 0.0) + number * passed
            self._since = self._timeline.now
