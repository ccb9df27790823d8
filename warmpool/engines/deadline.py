"""A moment by which something must have ended, on the running event loop's clock.

Calls that make up one step share one deadline, so that none of them can use up more than the step has left.
"""

import asyncio
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the running loop's clock.

    Attributes:
        at: the loop's time, in seconds.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the moment that is `seconds` from now."""
        return cls(asyncio.get_running_loop().time() + seconds)

    @property
    def left_seconds(self) -> float:
        """Seconds until then; negative once it has passed."""
        return self.at - asyncio.get_running_loop().time()

    def at_most(self, seconds: float) -> "Deadline":
        """Return this deadline or the moment `seconds` from now, whichever comes first."""
        return min(self, Deadline.after(seconds), key=lambda deadline: deadline.at)

    def earlier(self, seconds: float) -> "Deadline":
        """Return the moment `seconds` before this one: what is left for the work when the rest is kept back for undoing it."""
        return Deadline(self.at - seconds)
