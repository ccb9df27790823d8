"""A cap on each sequence's token rate, as servers have it that stream at reading speed.

Time is cut into ticks of one period, the same for all sequences, counted from the clock's own zero. A sequence gets at most one
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
    """

    tokens_per_second: float = 0.0

    @property
    def is_off(self) -> bool:
        """Whether there is no cap: every sequence is due always."""
        return self.tokens_per_second <= 0

    def due_after_first(self, now: float) -> int:
        """The tick of a sequence's second token, when its first came at `now` (seconds)."""
        return 0 if self.is_off else math.ceil(now * self.tokens_per_second + 1 - _SLACK)

    def due_after(self, now: float) -> int:
        """The tick of the next token of a sequence that is stepped at `now` (seconds)."""
        return 0 if self.is_off else math.floor(now * self.tokens_per_second + _SLACK) + 1

    def is_due(self, tick: int, now: float) -> bool:
        """Whether `tick` has come at `now` (seconds)."""
        return self.is_off or now * self.tokens_per_second + _SLACK >= tick

    def time_of(self, tick: int) -> float:
        """When `tick` comes, in seconds of the same clock."""
        return 0.0 if self.is_off else tick / self.tokens_per_second
