"""Threads for calls that may never return, and a watchdog for whoever waits.

A lane is one thread, and one call at a time. A caller waits as long as it likes and then gives up; the lane stays busy until
the call returns, and until then refuses further calls at once. So a device that hangs costs one thread and no more, however
often it is asked for, and the event loop never waits. Nothing can end a thread that hangs in the driver: it is a daemon, and
the process ends without it.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from warmpool.errors import WarmpoolError

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")

HANG_SECONDS = 5.0
"""A call that has taken this long hangs, as far as anyone can tell: NVML's slowest takes 0.07 s on an H200 with driver 580. One
that only waits for another process to pin memory returns later, and the lane is free again."""


class LaneBusy(WarmpoolError):
    """The lane's call hasn't returned; what it would say is unknown.

    Attributes:
        hangs: whether that is longer than calls take.
    """

    def __init__(self, name: str, seconds: float, *, hangs: bool) -> None:
        super().__init__(f"{name}: a call has not returned for {seconds:.2f} s")
        self.hangs = hangs


@dataclass(slots=True)
class _Job:
    """A call under way."""

    work: Callable[[], Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    began_at: float
    watchdog: asyncio.TimerHandle | None = None
    hangs: bool = False
    outcome: tuple[Any, BaseException | None] | None = None


class Lane:
    """One thread, which is started with the first call.

    Args:
        name: what it asks, for logs and for the thread's name.
        hang_seconds: when a call counts as hanging.
        hung: called in the loop when one does, once for each.
    """

    def __init__(self, name: str, hung: Callable[[], None], *, hang_seconds: float = HANG_SECONDS) -> None:
        self.name = name
        self._hung = hung
        self._hang_seconds = hang_seconds
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._job is not None

    @property
    def hangs(self) -> bool:
        """Whether a call is under way that should have returned."""
        return self._job is not None and self._job.hangs

    async def call(self, work: Callable[[], _Result], *, seconds: float) -> _Result:
        """Make a call in the lane's thread.

        Args:
            work: what to call there. It goes on when its caller gives up, and its result is dropped.
            seconds: how long to wait.

        Raises:
            LaneBusy: it hasn't returned by then, or an earlier call hasn't, and then this one wasn't begun.
            Exception: whatever the call raises.
        """
        if self._job is not None:
            raise self._is_busy(self._job)
        job = self._begin(work)
        await asyncio.wait({job.done}, timeout=seconds)
        self._end(job)  # in a busy loop the time may run out with the result waiting to be taken
        if not job.done.done():
            raise self._is_busy(job)
        return cast("_Result", job.done.result())

    def close(self) -> None:
        """Let the thread end once its call has returned."""
        self._jobs.put(None)

    def _begin(self, work: Callable[[], Any]) -> _Job:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"lane {self.name}", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop, loop.time())
        job.watchdog = loop.call_later(self._hang_seconds, self._give_up, job)
        self._job = job
        self._jobs.put(job)
        return job

    def _is_busy(self, job: _Job) -> LaneBusy:
        return LaneBusy(self.name, job.loop.time() - job.began_at, hangs=job.hangs)

    def _give_up(self, job: _Job) -> None:
        job.hangs = True
        _LOG.warning("%s: a call hangs; nothing more is asked there until it returns", self.name)
        self._hung()

    def _end(self, job: _Job) -> None:
        """Take a call's result, if it has returned and nobody has."""
        if job.outcome is None or self._job is not job:
            return
        self._job = None
        result, error = job.outcome
        if job.watchdog is not None:
            job.watchdog.cancel()
        if job.hangs:
            seconds = job.loop.time() - job.began_at
            _LOG.info("%s: the call that hung has returned after %.1f s", self.name, seconds)
        if job.done.cancelled():
            return
        if error is None:
            job.done.set_result(result)
        else:
            job.done.set_exception(error)
            job.done.exception()  # whoever gave up doesn't ask for it

    def _work(self) -> None:
        """Make calls, in the thread."""
        while (job := self._jobs.get()) is not None:
            try:
                job.outcome = job.work(), None
            except BaseException as failure:  # noqa: BLE001 (it belongs to whoever waits, whatever it is)
                job.outcome = None, failure
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                job.loop.call_soon_threadsafe(self._end, job)
