"""How fast a load may go, and whether at all: for whoever loads while neighbours serve.

A `Control` is passed to one load or several and may be used from any thread. A load asks it before each chunk that a thread takes,
64 MiB at the most, so a change takes effect within one chunk per thread: some 20 ms at full speed.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from threading import Condition, Event, get_native_id

from loader.errors import LoadCancelled

_NICENESS = 10


class Priority(IntEnum):
    """Who goes first where several loads run in one process."""

    BACKGROUND = 0
    """Waits while a load of higher priority reads; its threads give way to others' (nice)."""
    NORMAL = 1
    URGENT = 2


class Rate:
    """A bandwidth cap: tells when each read may start so that the bytes up to then keep to it.

    Args:
        bytes_per_second: the cap.
    """

    def __init__(self, bytes_per_second: float) -> None:
        if bytes_per_second <= 0:
            raise ValueError(f"a bandwidth cap of {bytes_per_second} bytes per second")
        self.bytes_per_second = bytes_per_second
        self._due = 0.0

    def reserve(self, nbytes: int, now: float) -> float:
        """When a read of this many bytes may start, in seconds of the caller's clock; idle time isn't saved up."""
        start = max(self._due, now)
        self._due = start + nbytes / self.bytes_per_second
        return start


_CHANGED = Condition()
"""Notified whenever a waiting thread should look again: something was paused, resumed, called off, or has ended."""
_READING: "Counter[Control]" = Counter()
"""The loads that read in this process."""


class Control:
    """The reins of a load.

    Args:
        bytes_per_second: bandwidth cap; None for none.
        priority: against other loads of this process.
    """

    def __init__(
        self, *, bytes_per_second: float | None = None, priority: Priority = Priority.NORMAL
    ) -> None:
        self.priority = priority
        self._rate = Rate(bytes_per_second) if bytes_per_second is not None else None
        self._paused = False
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def limited(self) -> bool:
        """Whether it has a bandwidth cap."""
        return self._rate is not None

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self._paused

    def cancel(self) -> None:
        """Call the load off: it ends with `LoadCancelled` once the reads under way are done. For good."""
        self._cancelled = True
        self.wake()

    def pause(self) -> None:
        """Have the load stop reading until `resume`; it keeps its memory, and lets others of lower priority read."""
        self._paused = True
        self.wake()

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = False
        self.wake()

    def limit(self, bytes_per_second: float | None) -> None:
        """Set the bandwidth cap anew; None takes it away."""
        self._rate = Rate(bytes_per_second) if bytes_per_second is not None else None
        self.wake()

    def wake(self) -> None:
        """Have waiting threads look again."""
        with _CHANGED:
            _CHANGED.notify_all()

    def admit(self, nbytes: int, stop: Event) -> None:
        """Wait until the next read may start. For the load's own threads.

        Args:
            nbytes: bytes that it reads.
            stop: set when the load ends for another reason; ends the wait.

        Raises:
            LoadCancelled: the load was called off.
        """
        with _CHANGED:
            self._wait_for_turn(stop)
            rate = self._rate
            start = rate.reserve(nbytes, time.monotonic()) if rate is not None else 0.0
            while rate is not None and rate is self._rate and not stop.is_set() and not self._cancelled:
                ahead = start - time.monotonic()
                if ahead <= 0:
                    break
                _CHANGED.wait(ahead)
            self._wait_for_turn(stop)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count as a load that reads, for others of lower priority."""
        with _CHANGED:
            _READING[self] += 1
        try:
            yield
        finally:
            with _CHANGED:
                _READING[self] -= 1
                if not _READING[self]:
                    del _READING[self]
                _CHANGED.notify_all()

    def settle_thread(self) -> None:
        """Give the calling thread the scheduling that the priority asks for."""
        if self.priority is Priority.BACKGROUND:
            # Linux keeps niceness per thread; elsewhere a thread's id names nothing, and nothing happens.
            try:
                os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)
            except OSError:
                return

    def _wait_for_turn(self, stop: Event) -> None:
        while not stop.is_set():
            if self._cancelled:
                raise LoadCancelled("the load was called off", hint="load again, should it still be wanted")
            if not self._paused and not self._gives_way():
                return
            _CHANGED.wait()

    def _gives_way(self) -> bool:
        return any(other.priority > self.priority and not other.paused for other in _READING)
