"""How long a request will wait, from what the gateway has seen of one policy. PURE: time is an argument (monotonic seconds).

While residents are in rotation, what stands in front goes as fast as their slots become free: the slot-seconds that a request has
taken of late, over the slots that there are. Those go on counting while nothing ends, so an estimate grows in a stall and is
never forgotten; an idle hour doesn't count, and a promotion shortens it at once. Who was in flight when the stretch began that is
looked at counts with what he had taken before, as far as those in flight now haven't taken as much: else a burst's last requests
would seem to have been short. A resident that is to come takes as many as it has slots for when it comes, and is one more for those
behind. While none is in rotation, the last waits for one say how long this one takes, unless the controller knows better.
"""

from collections import deque
from typing import Final, NamedTuple

_WINDOW_SECONDS: Final = 10.0
"""Span over which a request's slot-seconds are taken, at least: short enough to follow a change of what is asked."""
_LEAST_ENDS: Final = 8
"""How many requests have ended in it, at least, and never fewer than are in flight: the short ones alone would say too little."""
_MARK_SECONDS: Final = 0.5
_COLD_WAITS: Final = 3
"""How many waits for a first resident are remembered."""
_OVERDUE_SECONDS: Final = 1.0
"""For so long what the controller foretold may be late; after that it says nothing."""


class _Mark(NamedTuple):
    """A moment at which the window may begin: what there was until then, and how old those in flight were together."""

    at: float
    slot_seconds: float
    ends: int
    ages: float


class Forecast:
    """What one policy's requests have waited for so far."""

    def __init__(self) -> None:
        self._busy = 0
        self._taken = 0.0
        self._now = _Mark(0.0, 0.0, 0, 0.0)
        self._marks: deque[_Mark] = deque()
        self._cold_waits: deque[float] = deque(maxlen=_COLD_WAITS)
        self._cold_since: float | None = None
        self._coming_at: float | None = None

    def taken(self, now: float) -> None:
        """A request got a slot."""
        self._pass(now)
        if not self._marks:
            self._marks.append(self._now)
        self._busy += 1
        self._taken += now

    def freed(self, now: float, *, since: float, ended: bool) -> None:
        """A slot was given back that was taken then; the request has ended, or it didn't and will want another one."""
        self._pass(now, ends=int(ended))
        self._busy -= 1
        self._taken = self._taken - since if self._busy else 0.0
        if ended and now - self._marks[-1].at >= _MARK_SECONDS:
            self._marks.append(self._now._replace(ages=self._ages(now)))
            self._forget()

    def waits_cold(self, now: float) -> None:
        """A request waits, and no resident is in rotation."""
        if self._cold_since is None:
            self._cold_since = now

    def warm(self, now: float) -> None:
        """A resident is in rotation."""
        if self._cold_since is not None:
            self._cold_waits.append(now - self._cold_since)
            self._cold_since = None

    def coming(self, seconds: float | None, now: float) -> None:
        """Take what the controller says: in how many seconds one more resident will be in rotation."""
        self._coming_at = now + seconds if seconds is not None else None

    def wait(self, ahead: int, now: float, *, slots: int, more: int) -> float | None:
        """Return how many seconds a request will wait; None when nothing tells.

        Args:
            ahead: how many go before it.
            now: monotonic seconds.
            slots: those of all residents in rotation; 0: there is none.
            more: those that the next resident will have; 0: nobody knows.
        """
        coming = self.soonest(now)
        if coming is None and not slots:
            coming = self._cold(now)
        held, wanted = self._held(now), ahead + 1
        if not slots + more:
            return coming
        if held is None:
            return coming if wanted <= more else None
        if slots and (coming is None or wanted * held <= coming * slots):
            return wanted * held / slots
        if coming is None:
            return None
        left = wanted - more - (coming * slots / held if held else wanted)
        return coming + max(0.0, left) * held / (slots + more)

    def soonest(self, now: float) -> float | None:
        """Return in how many seconds one more resident will be in rotation, as the controller says; None where it doesn't."""
        if self._coming_at is None or now > self._coming_at + _OVERDUE_SECONDS:
            return None
        return max(0.0, self._coming_at - now)

    def _held(self, now: float) -> float | None:
        """Return how many seconds a request has held its slot of late; None when none has ended."""
        self._pass(now)
        self._forget()
        first = self._marks[0] if self._marks else self._now
        ends = self._now.ends - first.ends
        before = max(0.0, first.ages - self._ages(now))
        return (self._now.slot_seconds - first.slot_seconds + before) / ends if ends else None

    def _cold(self, now: float) -> float | None:
        if not self._cold_waits:
            return None
        usual = sum(self._cold_waits) / len(self._cold_waits)
        left = usual - (now - self._cold_since if self._cold_since is not None else 0.0)
        return left if left > 0.0 else None  # it takes longer than usual, so nobody knows

    def _pass(self, now: float, ends: int = 0) -> None:
        last = self._now
        slot_seconds = last.slot_seconds + self._busy * (now - last.at)
        self._now = _Mark(now, slot_seconds, last.ends + ends, 0.0)

    def _ages(self, now: float) -> float:
        """Return for how long those in flight have had their slots, added up."""
        return self._busy * now - self._taken

    def _forget(self) -> None:
        """Let the window begin as late as it may."""
        now, least = self._now, max(_LEAST_ENDS, self._busy)
        while (
            len(self._marks) > 1
            and now.at - self._marks[1].at >= _WINDOW_SECONDS
            and now.ends - self._marks[1].ends >= least
        ):
            self._marks.popleft()
