"""How long promotions took, by how deep the resident slept: what the controller reckons with for the next one."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Final

from warmpool.states import Depth

REMEMBERED: Final = 16
"""Promotions from each depth that count; with fewer, one slow one would rule, with more, an old engine's would."""


class Wakes:
    """The last promotions of one resident."""

    def __init__(self) -> None:
        self._seconds: dict[Depth, deque[float]] = {}

    def note(self, depth: Depth, seconds: float) -> None:
        """Note one that took `seconds` from its order's arrival to the canary's answer."""
        self._seconds.setdefault(depth, deque(maxlen=REMEMBERED)).append(seconds)

    def seconds(self) -> Mapping[Depth, Sequence[float]]:
        """Return what counts, the oldest first, as the next agent is told it."""
        return {depth: tuple(seconds) for depth, seconds in self._seconds.items()}

    def medians(self) -> Mapping[Depth, float]:
        """Return the median for each depth from which it has been promoted."""
        return MappingProxyType({depth: median(seconds) for depth, seconds in self._seconds.items()})
