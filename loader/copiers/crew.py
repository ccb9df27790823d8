"""Threads that share out chunks: none outlives the load, and the first error stops them all.

Progress is reported on the caller's own thread, so a callback needs no locks and may raise to stop the load. That thread also makes
ready what chunks need, a few ahead of the others. How many threads there are may change meanwhile, as `loader.depth` finds what
a store wants.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Protocol

from loader.control import Control
from loader.depth import Depth
from loader.plan import Chunk

CopyChunk = Callable[[Chunk], None]
OpenWorker = Callable[[], AbstractContextManager[CopyChunk]]
"""Makes one thread's own state (buffers, stream); leaving it waits for what that thread has in flight."""
_HANDED_OUT = 3
"""Chunks for each thread: one that it copies and two that lie ready. So none waits, and whoever makes chunks ready doesn't hold the
interpreter for long, which threads need between two of them."""


class Chunks(Protocol):
    """Chunks in order, and how many there are."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Chunk]: ...


def run(
    chunks: Chunks,
    *,
    threads: int,
    open_worker: OpenWorker,
    report: Callable[[Chunk], None],
    control: Control,
    depth: Depth | None = None,
) -> None:
    """Copy all chunks, in about the order given; return when all are done and every thread has ended.

    Args:
        chunks: what to copy; taken one by one on the caller's thread, a few ahead of the others, so that what they need can be made ready
            then.
        threads: how many do so, to begin with.
        open_worker: called on each thread.
        report: called with every chunk that is done.
        control: pauses, slows and calls off.
        depth: changes the number of threads, up to its bound; None leaves it.

    Raises:
        LoadCancelled: it was called off.
        BaseException: whatever the first failing worker, `report` or `chunks` raises.
    """
    crew = _Crew(chunks, open_worker, control)
    with control.reading():
        crew.work(threads, report, depth)
    crew.raise_first_error()


class _Crew:
    def __init__(self, chunks: Chunks, open_worker: OpenWorker, control: Control) -> None:
        self._coming = iter(chunks)
        self._left = len(chunks)  # of those
        self._handed_out = 0  # not seen again as done yet
        self._waiting: SimpleQueue[Chunk | None] = SimpleQueue()  # None, which stays: nothing more comes
        self._done: SimpleQueue[Chunk | None] = SimpleQueue()  # None: a thread ended
        self._errors: SimpleQueue[BaseException] = SimpleQueue()
        self._stop = Event()
        self._open_worker = open_worker
        self._control = control
        self._threads: list[Thread] = []
        self._running = 0  # threads whose end hasn't been seen yet; the caller's thread alone counts
        self._lock = Lock()
        self._most = 0  # workers that may be open at once
        self._wanted = 0  # threads that shall be there
        self._staying = 0  # threads that haven't left for being too many

    def work(self, threads: int, report: Callable[[Chunk], None], depth: Depth | None) -> None:
        try:
            self._most = min(depth.most if depth else threads, self._left)
            self._resize(threads)
            self._follow(report, depth)
        finally:
            self._halt()
            for thread in self._threads:
                thread.join()

    def raise_first_error(self) -> None:
        try:
            error = self._errors.get_nowait()
        except Empty:
            return
        # An error whose traceback leads back to itself would keep the load's tensors until the garbage collector runs.
        self._errors = SimpleQueue()
        try:
            raise error
        finally:
            del error

    def _halt(self) -> None:
        self._stop.set()
        self._waiting.put(None)
        self._control.wake()

    def _supply(self) -> bool:
        """Hand out one more chunk where too few are; whether that was so."""
        if not self._left or self._handed_out >= _HANDED_OUT * self._wanted or self._stop.is_set():
            return False
        self._waiting.put(next(self._coming))
        self._handed_out += 1
        self._left -= 1
        if not self._left:
            self._waiting.put(None)
        return True

    def _hire(self, count: int) -> None:
        for _ in range(count):
            thread = Thread(target=self._work, name=f"loader-{len(self._threads)}")
            thread.start()
            self._running += 1
            self._threads.append(thread)
            with self._lock:
                self._staying += 1

    def _follow(self, report: Callable[[Chunk], None], depth: Depth | None) -> None:
        while self._running:
            if self._supply() and self._done.empty():
                continue
            chunk = self._done.get()
            if chunk is None:
                self._running -= 1
            elif not self._stop.is_set():
                self._handed_out -= 1
                report(chunk)
                if depth is not None:
                    self._resize(depth.done(chunk.nbytes, time.monotonic()))

    def _resize(self, wanted: int) -> None:
        """Have as many threads as are wanted, and no more than there is work for, with those that are leaving."""
        with self._lock:
            self._wanted = wanted
            missing = wanted - self._staying
        untaken = self._left + self._waiting.qsize() - (not self._left)
        self._hire(min(missing, untaken, self._most - self._running))

    def _leaves(self) -> bool:
        """Whether this thread is one too many. Those that are wanted stay until nothing is left to do."""
        with self._lock:
            leaves = self._staying > self._wanted
            self._staying -= leaves
            return leaves

    def _work(self) -> None:
        try:
            self._control.settle_thread()
            with self._open_worker() as copy:
                self._copy_all(copy)
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            self._errors.put(error)
            self._halt()
        finally:
            self._done.put(None)

    def _copy_all(self, copy: CopyChunk) -> None:
        while not self._leaves():
            chunk = self._waiting.get()
            if chunk is None or self._stop.is_set():
                self._waiting.put(None)  # for the others
                return
            self._control.admit(chunk.nbytes, self._stop)
            if self._stop.is_set():
                return
            copy(chunk)
            self._done.put(chunk)
