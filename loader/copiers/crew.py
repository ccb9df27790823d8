"""Threads that share out chunks: none outlives the load, and the first error stops them all.

Progress is reported on the caller's own thread, so a callback needs no locks and may raise to stop the load.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from threading import Event, Thread

from loader.control import Control
from loader.plan import Chunk

CopyChunk = Callable[[Chunk], None]
OpenWorker = Callable[[], AbstractContextManager[CopyChunk]]
"""Makes one thread's own state (buffers, stream); leaving it waits for what that thread has in flight."""


def run(
    chunks: Iterable[Chunk],
    *,
    threads: int,
    open_worker: OpenWorker,
    report: Callable[[Chunk], None],
    control: Control,
) -> None:
    """Copy all chunks, in about the order given; return when all are done and every thread has ended.

    Raises:
        LoadCancelled: it was called off.
        BaseException: whatever the first failing worker or `report` raises.
    """
    crew = _Crew(chunks, open_worker, control)
    with control.reading():
        crew.work(threads, report)
    crew.raise_first_error()


class _Crew:
    def __init__(self, chunks: Iterable[Chunk], open_worker: OpenWorker, control: Control) -> None:
        self._waiting: SimpleQueue[Chunk] = SimpleQueue()
        for chunk in chunks:
            self._waiting.put(chunk)
        self._done: SimpleQueue[Chunk | None] = SimpleQueue()  # None: a thread ended
        self._errors: SimpleQueue[BaseException] = SimpleQueue()
        self._stop = Event()
        self._open_worker = open_worker
        self._control = control

    def work(self, threads: int, report: Callable[[Chunk], None]) -> None:
        count = min(threads, self._waiting.qsize())
        started: list[Thread] = []
        try:
            for number in range(count):
                thread = Thread(target=self._work, name=f"loader-{number}")
                thread.start()
                started.append(thread)
            self._follow(count, report)
        finally:
            self._stop.set()
            self._control.wake()
            for thread in started:
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

    def _follow(self, workers: int, report: Callable[[Chunk], None]) -> None:
        while workers:
            chunk = self._done.get()
            if chunk is None:
                workers -= 1
            elif not self._stop.is_set():
                report(chunk)

    def _work(self) -> None:
        try:
            self._control.settle_thread()
            with self._open_worker() as copy:
                self._copy_all(copy)
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            self._errors.put(error)
            self._stop.set()
            self._control.wake()
        finally:
            self._done.put(None)

    def _copy_all(self, copy: CopyChunk) -> None:
        while not self._stop.is_set():
            try:
                chunk = self._waiting.get_nowait()
            except Empty:
                return
            self._control.admit(chunk.nbytes, self._stop)
            if self._stop.is_set():
                return
            copy(chunk)
            self._done.put(chunk)
