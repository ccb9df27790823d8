"""When a failed engine is started again, and when it is given up. PURE: no I/O, `now` is passed.

One that a pre-flight kept from starting is no failed engine: the fault is its GPU's or a neighbour's, and may be gone the next time.
One that didn't take its arguments takes them no better the next time, and is given up at once.
"""

from collections import deque

FAILURES = 5
"""So many failures within the window and it is given up: a pool that refills a failing engine for ever hides the fault."""
WINDOW_SECONDS = 300.0
"""The window; a failure-free window also ends a streak."""
LONGEST_WAIT_SECONDS = 30.0
"""The longest wait before a restart."""


MISUSED = 2
"""Exit status of engines whose arguments are wrong (Python's argparse and click, and by them vLLM, SGLang and the reference engine)."""
REFUSED_SECONDS = (15.0, 300.0)
"""The first wait and the longest after a pre-flight that found something; each is twice the one before."""


class FailureBudget:
    """The failures of one resident: waits of 1, 2, 4 … 30 s between restarts, and an end to them."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque()
        self._streak = 0
        self._last = float("-inf")
        self._refusals = 0
        self._refused_at = float("-inf")

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

    def refused(self, now: float) -> float:
        """Record that a pre-flight kept it from starting; return the seconds to wait. It is never given up for that."""
        first, longest = REFUSED_SECONDS
        if now - self._refused_at > 2 * longest:  # it has run meanwhile
            self._refusals = 0
        self._refused_at = now
        wait = min(longest, first * 2.0**self._refusals)
        self._refusals += wait < longest
        return wait
