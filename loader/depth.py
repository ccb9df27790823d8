"""How many reads a load keeps in flight: as many as a store's bandwidth times its latency holds. PURE.

Neither is known beforehand, but their product shows: below it more reads in flight bring more bytes per second, above it the same
bytes later. So the number is doubled as long as that pays, and halved once it doesn't.
"""

from enum import Enum

_PAYS = 1.15
"""Times the bandwidth that twice as many reads must bring. Below this the rest is noise."""
_ROUNDS = 2
"""Reads of each reader that a bandwidth is taken from."""


class _Phase(Enum):
    SETTLING = "reads that were begun before the last change come in"
    MEASURING = "reads are counted"
    DONE = "the number stays"


class Depth:
    """The number of reads in flight of one load.

    Args:
        first: to begin with.
        most: bound of what is tried.
    """

    def __init__(self, *, first: int, most: int) -> None:
        if not 1 <= first <= most:
            raise ValueError(f"first {first}, most {most}")
        self.wanted = first
        self.most = most
        self._phase = _Phase.SETTLING
        self._before: tuple[int, float] | None = None  # a number that was measured, and its bytes per second
        self._left = first
        self._nbytes = 0
        self._since = 0.0

    def done(self, nbytes: int, now: float) -> int:
        """A read has ended; how many are wanted in flight from now on.

        Args:
            nbytes: what it brought.
            now: seconds of the caller's clock.
        """
        if self._phase is _Phase.DONE:
            return self.wanted
        self._left -= 1
        if self._phase is _Phase.MEASURING:
            self._nbytes += nbytes
        if self._left:
            return self.wanted
        if self._phase is _Phase.SETTLING:
            self._begin(_Phase.MEASURING, _ROUNDS * self.wanted)
            self._nbytes, self._since = 0, now
        else:
            self._judge(self._nbytes / max(1e-9, now - self._since))
        return self.wanted

    def _judge(self, rate: float) -> None:
        if self._before is not None and rate < _PAYS * self._before[1]:
            self.wanted = self._before[0]
            self._phase = _Phase.DONE
        elif self.wanted == self.most:
            self._phase = _Phase.DONE
        else:
            self._before = (self.wanted, rate)
            self.wanted = min(2 * self.wanted, self.most)
            # As many as were in flight before, and the first of those that were added.
            self._begin(_Phase.SETTLING, self.wanted)

    def _begin(self, phase: _Phase, reads: int) -> None:
        self._phase, self._left = phase, reads
