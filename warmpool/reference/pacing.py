"""A cap on each sequence's token rate, as servers have it that stream at reading speed.

Time is cut into ticks of one period, the same for all sequences of an engine. A sequence gets at most one
token per tick, so those that run together are due together and are computed as one batch; between ticks nothing is computed.
The first token is never held back: it comes as soon as the prompt is computed. The second comes at the first tick that is at
least one period later, so a cap is a cap from the start. A step that is late by more than a period doesn't catch up.
"""

import math
from dataclasses import dataclass

_SLACK = 1e-6
"""Fraction of a tick by which a clock reading may fall short of it: dividing and multiplying again doesn't round-trip."""


@dataclass(frozen=True, slots=True)
class Pacer:
    """The grid of ticks.

    Attributes:
        tokens_per_second: the cap per sequence; 0 for none.
        origin: a moment at which a tick comes, in seconds of the clock. Engines that share a machine's processors have one each: with
            the same ticks they would all want to compute at the same moments, and wait for each other.
    """

    tokens_per_second: float = 0.0
    origin: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether there is no cap: every sequence is due always."""
        return self.tokens_per_second <= 0

    def due_after_first(self, now: float) -> int:
        """The tick of a sequence's second token, when its first came at `now` (seconds)."""
        return 0 if self.is_off else math.ceil(self._ticks(now) + 1 - _SLACK)

    def due_after(self, now: float) -> int:
        """The tick of the next token of a sequence that is stepped at `now` (seconds)."""
        return 0 if self.is_off else math.floor(self._ticks(now) + _SLACK) + 1

    def is_due(self, tick: int, now: float) -> bool:
        """Whether `tick` has come at `now` (seconds)."""
        return self.is_off or self._ticks(now) + _SLACK >= tick

    def time_of(self, tick: int) -> float:
        """When `tick` comes, in seconds of the same clock."""
        return 0.0 if self.is_off else self.origin + tick / self.tokens_per_second

    def _ticks(self, now: float) -> float:
        return (now - self.origin) * self.tokens_per_second
