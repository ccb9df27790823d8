"""The two clocks: one that never jumps for deciding, one that people and other processes understand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the loop gets its time from."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never jumps; the law's `now`."""

    def wall(self) -> float:
        """Return Unix seconds; for records, claims' deadlines and ages shown."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()
