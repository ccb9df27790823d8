"""Loads beside other work: awaited in an event loop, or taken tensor by tensor as they arrive."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread

import torch

from loader.checkpoint import Checkpoint
from loader.copiers import choice as _choice  # noqa: F401 - with torch, so that no first load waits for it
from loader.copiers.destinations import target_device
from loader.errors import LoadCancelled
from loader.loading import LoadResult, Run, load
from loader.manifest import Manifest

WINDOW_BYTES = 2**30
"""Tensors that are loaded at once, besides those that the caller works with."""
_WINDOWS = 2


async def aload(
    checkpoint: Checkpoint,
    *,
    device: str | int | torch.device = "cpu",
    into: Mapping[str, torch.Tensor] | None = None,
    convert: bool = False,
    manifest: Manifest | None = None,
    run: Run | None = None,
) -> LoadResult:
    """`loader.load` on a thread of its own; cancelling calls the load off and waits for its end.

    Args:
        checkpoint: as for `load`, like all others.
        device: where to allocate the tensors.
        into: the tensors to fill.
        convert: whether another floating-point dtype is fine.
        manifest: what headers and tensors must be.
        run: its progress callback is called on the load's thread; its control is called off by cancelling.

    Raises:
        LoaderError: as `load`.
    """
    how = run or Run()
    loop = asyncio.get_running_loop()
    done: asyncio.Future[LoadResult] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not done.done():
            outcome()

    def work() -> None:
        try:
            result = load(checkpoint, device=device, into=into, convert=convert, manifest=manifest, run=how)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            loop.call_soon_threadsafe(settle, partial(done.set_exception, error))
        else:
            loop.call_soon_threadsafe(settle, partial(done.set_result, result))

    thread = Thread(target=work, name="loader-async")
    thread.start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        how.control.cancel()
        # The tensors must not be written to once the caller goes on, so the end is waited for.
        await asyncio.wait([done])
        if not done.cancelled():
            done.exception()
        raise
    finally:
        thread.join()


def arrivals(
    checkpoint: Checkpoint,
    *,
    device: str | int | torch.device = "cpu",
    window_bytes: int = WINDOW_BYTES,
    manifest: Manifest | None = None,
    run: Run | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors as they arrive, in the order of the files, while the next ones are being read.

    Whoever copies each into its place and lets go of it never holds more than two windows, or the largest tensor twice.
    Closing the iterator, or an exception in its loop, calls the load off; then neither thread nor memory is left.

    Args:
        checkpoint: from `open_checkpoint`.
        device: where to allocate the tensors; an int is a CUDA device. They may be used on the stream that is current
            when the first is asked for.
        window_bytes: tensors that are read together.
        manifest: what headers and tensors must be.
        run: progress is told per window; its control is called off when the iterator is closed early.

    Raises:
        LoaderError: as `load`; tensors that came before it are right.
    """
    how = run or Run()
    producer = _Producer(checkpoint, target_device(device, None), how, manifest)
    batches = _batches(checkpoint, window_bytes)
    with closing(producer):
        producer.start(batches)
        for _ in batches:
            tensors = producer.take()
            for name in list(tensors):
                yield name, tensors.pop(name)
            producer.release()
        producer.finish()


class _Producer:
    """Loads batch after batch on a thread of its own, a bounded number ahead."""

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, run: Run, manifest: Manifest | None
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._run = run
        self._manifest = manifest
        self._loaded: SimpleQueue[dict[str, torch.Tensor] | BaseException] = SimpleQueue()
        self._room = Semaphore(_WINDOWS)
        self._closed = False
        self._finished = False
        self._thread: Thread | None = None

    def start(self, batches: list[list[str]]) -> None:
        # Memory that the caller lets go of is used again by later batches, in the order of the caller's own stream.
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._thread = Thread(target=self._work, args=(batches, stream), name="loader-arrivals")
        self._thread.start()

    def take(self) -> dict[str, torch.Tensor]:
        """The next batch.

        Raises:
            LoaderError: it couldn't be loaded.
        """
        loaded = self._loaded.get()
        if isinstance(loaded, BaseException):
            try:
                raise loaded
            finally:
                del loaded
        return loaded

    def release(self) -> None:
        """The caller is done with a batch."""
        self._room.release()

    def finish(self) -> None:
        """The caller has had every batch."""
        self._finished = True

    def close(self) -> None:
        """Call off what is left, and wait for its end."""
        self._closed = True
        self._room.release()
        if not self._finished:
            self._run.control.cancel()
        if self._thread is not None:
            self._thread.join()

    def _work(self, batches: list[list[str]], stream: torch.cuda.Stream | None) -> None:
        try:
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                for names in batches:
                    self._room.acquire()
                    if self._closed:
                        return
                    self._loaded.put(self._load(names))
        except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
            self._loaded.put(error)

    def _load(self, names: list[str]) -> dict[str, torch.Tensor]:
        if self._run.control.cancelled:
            raise LoadCancelled("the load was called off")
        part = self._checkpoint.only(names)
        result = load(part, device=self._device, manifest=self._manifest, run=self._run)
        return dict(result.tensors)


def _batches(checkpoint: Checkpoint, window_bytes: int) -> list[list[str]]:
    batches: list[list[str]] = []
    room = 0
    for name, entry in checkpoint.tensors.items():
        if not batches or entry.nbytes > room:
            batches.append([])
            room = window_bytes
        batches[-1].append(name)
        room -= entry.nbytes
    return batches
