"""Threads that share out chunks: none outlives the load, and the first error stops them all.

Progress is reported on the caller's own thread, so a callback needs no locks and may raise to stop the load.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from threading import Event

from loader.plan import Chunk

CopyChunk = Callable[[Chunk], None]
OpenWorker = Callable[[], AbstractContextManager[CopyChunk]]
"""Makes one thread's own state (buffers, stream); leaving it waits for what that thread has in flight."""


def run(
    chunks: Iterable[Chunk], *, threads: int, open_worker: OpenWorker, report: Callable[[Chunk], None]
) -> None:
    """Copy all chunks, in about the order given; return when all are done and every thread has ended.

    Raises:
        Whatever the first failing worker or `report` raises.
    """
    waiting: SimpleQueue[Chunk] = SimpleQueue()
    expected = 0
    for chunk in chunks:
        waiting.put(chunk)
        expected += 1
    done: SimpleQueue[Chunk | None] = SimpleQueue()  # None: a worker ended
    stop = Event()
    count = min(threads, expected)
    if count == 0:
        return
    with ThreadPoolExecutor(count, thread_name_prefix="loader") as pool:
        try:
            futures = [pool.submit(_work, waiting, done, stop, open_worker) for _ in range(count)]
            _follow(done, count, stop, report)
        finally:
            stop.set()
    _raise_first(futures)


def _work(
    waiting: SimpleQueue[Chunk], done: SimpleQueue[Chunk | None], stop: Event, open_worker: OpenWorker
) -> None:
    try:
        with open_worker() as copy:
            while not stop.is_set():
                try:
                    chunk = waiting.get_nowait()
                except Empty:
                    break
                copy(chunk)
                done.put(chunk)
    except BaseException:
        stop.set()
        raise
    finally:
        done.put(None)


def _follow(
    done: SimpleQueue[Chunk | None], workers: int, stop: Event, report: Callable[[Chunk], None]
) -> None:
    while workers:
        chunk = done.get()
        if chunk is None:
            workers -= 1
        elif not stop.is_set():
            report(chunk)


def _raise_first(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        error = future.exception()
        if error is not None:
            raise error
