"""How much slower than asked engines are read when one core can't keep up: `effective interval = interval × stretch`.

The loop that reads the engines also decides. So once a second it is measured how long it was on the processor and how late
readings began. It is overloaded by a factor of

    load = max(busy / 0.75, lateness / 0.2)

where `busy` is the share of the second that the loop's thread ran, whatever for, and `lateness` is by what share of their
interval readings began late, on average (a processor that others use shows only there). `stretch` is multiplied by `load`, by
0.8 at least and 2 at most, and stays between 1 and 40: it doubles each second while that is needed, and goes back to 1 when
there is room. All sources of one loop share one pace.
"""

import time
from typing import Final

import structlog

log = structlog.get_logger(__name__)

BUSIEST: Final = 0.75
"""Share of a core that the loop may use before readings are stretched: the rest is for answering at once."""
LATEST: Final = 0.2
"""Share of the interval by which readings may begin late, on average."""
LONGEST_STRETCH: Final = 40.0
"""A quarter of a second becomes ten at most."""
MEASURED_SECONDS: Final = 1.0
_TOLD_FROM: Final = 1.25
"""Stretches are logged from here on; below, they come and go."""


def stretched(stretch: float, busy: float, lateness: float) -> float:
    """Return the next stretch.

    Args:
        stretch: the present one.
        busy: share of the time for which the loop's thread ran.
        lateness: by what share of their present interval readings began late, on average.
    """
    load = max(busy / BUSIEST, lateness / LATEST)
    return min(LONGEST_STRETCH, max(1.0, stretch * min(2.0, max(0.8, load))))


class ScrapePace:
    """The stretch that holds at present. Belongs to the event loop in whose thread it is made.

    Attributes:
        stretch: what intervals are multiplied by.
    """

    def __init__(self) -> None:
        self.stretch = 1.0
        self._told = False
        self._begin_measuring()

    def began(self, late: float, interval: float) -> None:
        """Count a reading that begins, and measure anew if it is time.

        Args:
            late: seconds after it was due.
            interval: seconds between two readings of one engine, as stretched.
        """
        self._begun += 1
        self._lateness += min(1.0, late / interval)
        seconds = time.monotonic() - self._since
        if seconds >= MEASURED_SECONDS:
            busy = (time.thread_time() - self._ran) / seconds
            lateness = self._lateness / self._begun
            self.stretch = stretched(self.stretch, busy, lateness)
            self._tell(busy, lateness)
            self._begin_measuring()

    def _begin_measuring(self) -> None:
        self._since, self._ran = time.monotonic(), time.thread_time()
        self._begun, self._lateness = 0, 0.0

    def _tell(self, busy: float, lateness: float) -> None:
        """Log that readings have become slower, and that they are at the interval again."""
        if not self._told and self.stretch >= _TOLD_FROM:
            self._told = True
            log.warning(
                "engine readings stretched",
                stretch=round(self.stretch, 2),
                loop_busy_percent=round(busy * 100),
                begun_late_percent=round(lateness * 100),
            )
        elif self._told and self.stretch == 1.0:
            self._told = False
            log.info("engine readings at their interval again")
