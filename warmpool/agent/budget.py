"""When a failed engine is started again, and when it is given up. PURE: no I/O, `now` is passed."""

from collections import deque

FAILURES = 5
"""So many failures within the window and it is given up: a pool that refills a failing engine for ever hides the fault."""
WINDOW_SECONDS = 300.0
"""The window; a failure-free window also ends a streak."""
LONGEST_WAIT_SECONDS = 30.0
"""The longest wait before a restart."""


class FailureBudget:
    """The failures of one resident: waits of 1, 2, 4 … 30 s between restarts, and an end to them."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque()
        self._streak = 0
        self._last = float("-inf")

    def failed(self, now: float) -> float | None:
        """Record a failure.

        Returns:
            Seconds to wait before the restart, or None if it is to be given up.
        """
        self._streak = 1 if now - self._last > WINDOW_SECONDS else self._streak + 1
        self._last = now
        self._failures.append(now)
        while now - self._failures[0] > WINDOW_SECONDS:
            self._failures.popleft()
        if len(self._failures) >= FAILURES:
            return None
        return min(LONGEST_WAIT_SECONDS, 2.0 ** (self._streak - 1))
