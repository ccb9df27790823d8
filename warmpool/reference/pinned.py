"""A copy of device memory in page-locked host memory: made in pieces, and brought back as one stream at the speed of the link.

Locking pages is the slow part, several times slower than copying, and falls to the first parking alone: the copy stays, because
weights don't change. Pieces are made ready by threads in calls that don't hold the interpreter, and each first sees that
the host can give it, since neighbours take memory meanwhile.
"""

import ctypes
import errno
import mmap
import os
import resource
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Final, Protocol

import torch
from torch import Tensor

from warmpool.reference import host_memory
from warmpool.reference.copies import Reach
from warmpool.reference.driver import CudaDriver, DriverError
from warmpool.reference.errors import NotEnoughHostMemory
from warmpool.reference.sums import block_sums

PIECE_BYTES: Final = 256 << 20
"""Memory that is locked and copied at once; what is mapped at once on the device, too."""
THREADS: Final = 4
"""Threads that make pieces ready: enough to be several times as fast as one, and cores are left to a neighbour that serves."""
_HUGE_PAGE_BYTES: Final = 2 << 20
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; the mmap module has no name for it
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Link(Protocol):
    """Copies between host and device, in the order in which they are asked for, and doesn't wait for them."""

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock host memory. Any thread may call it.

        Raises:
            DriverError: it is refused.
        """

    def unlock(self, address: int) -> None:
        """Undo it."""

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy bytes from one side to the other."""

    def then(self, work: Callable[[], Tensor]) -> Tensor:
        """Have the device compute something once all copies up to now are done, beside those that follow."""

    def finish(self) -> None:
        """Wait until everything is done."""


class CudaLink:
    """The link of a CUDA device: a stream for copies, and one for what follows them.

    Args:
        device: with its index.
        driver: for the same device.
    """

    def __init__(self, device: torch.device, driver: CudaDriver) -> None:
        self._driver = driver
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._after = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock host memory."""
        self._driver.enter()
        self._driver.lock_pages(address, nbytes)

    def unlock(self, address: int) -> None:
        """Undo it."""
        self._driver.enter()
        self._driver.unlock_pages(address)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy bytes from one side to the other."""
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)

    def then(self, work: Callable[[], Tensor]) -> Tensor:
        """Compute something once the copies up to now are done, while others go on."""
        self._after.wait_stream(self._copies)
        with torch.cuda.stream(self._after):
            return work()

    def finish(self) -> None:
        """Wait until everything is done."""
        self._copies.synchronize()
        self._after.synchronize()


class _GivenUp(Exception):
    """Another piece couldn't be made ready."""


@dataclass(frozen=True, slots=True)
class _Piece:
    begin: int
    end: int
    address: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class PinnedCopy:
    """A copy in page-locked memory.

    Args:
        whole: the device's bytes to keep.
        link: to that device.
        piece_bytes: memory that is locked and copied at once, a multiple of `BLOCK_BYTES`.

    Raises:
        NotEnoughHostMemory: the host can't give the memory, or doesn't let it be locked; nothing was kept.
    """

    def __init__(self, whole: Tensor, link: Link, piece_bytes: int = PIECE_BYTES) -> None:
        self.nbytes = whole.nbytes
        self._link = link
        host_memory.require(self.nbytes, "a page-locked copy of the weights")
        mapping = _reserve(self.nbytes)
        entire = torch.frombuffer(mapping, dtype=torch.uint8)
        start = -entire.data_ptr() % _HUGE_PAGE_BYTES
        self._bytes = entire[start : start + self.nbytes]
        self._pieces = [
            _Piece(begin, min(begin + piece_bytes, self.nbytes), self._bytes.data_ptr() + begin)
            for begin in range(0, self.nbytes, piece_bytes)
        ]
        self._fill(whole)

    def fetch(self, whole: Tensor, reach: Reach) -> Tensor:
        """Bring the bytes back, piece after piece as the memory for them comes; their sums are computed beside the copying."""
        sums = []
        try:
            for piece in self._pieces:
                reach(piece.end)
                target = whole[piece.begin : piece.end]
                self._link.copy(target, self._bytes[piece.begin : piece.end])
                sums.append(self._link.then(partial(block_sums, target)))
        finally:
            self._link.finish()  # also after an error: nothing may be on its way when the memory is given back
        return torch.cat(sums)

    def _fill(self, whole: Tensor) -> None:
        """Make pieces ready and copy into them, one behind the other."""
        stop = Event()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="page-lock") as threads:
            ready: list[Future[None]] = [
                threads.submit(_make_ready, piece, self._link, stop) for piece in self._pieces
            ]
            try:
                for piece, made in zip(self._pieces, ready, strict=True):
                    made.result()
                    self._link.copy(self._bytes[piece.begin : piece.end], whole[piece.begin : piece.end])
            except BaseException:
                stop.set()
                raise
            finally:
                self._link.finish()
                if stop.is_set():
                    self._undo(ready)

    def _undo(self, ready: list[Future[None]]) -> None:
        """Unlock whatever has been locked, so that the mapping can go."""
        for piece, made in zip(self._pieces, ready, strict=True):
            if not made.cancel() and made.exception() is None:
                with suppress(DriverError):
                    self._link.unlock(piece.address)


def _make_ready(piece: _Piece, link: Link, stop: Event) -> None:
    """Take a piece's memory and lock it."""
    if stop.is_set():
        raise _GivenUp
    host_memory.require(piece.nbytes, "a piece of the page-locked copy of the weights")
    _populate(piece)
    try:
        link.lock(piece.address, piece.nbytes)
    except DriverError as error:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        shown = "none" if limit == resource.RLIM_INFINITY else f"{limit / 2**20:.0f} MiB"
        raise NotEnoughHostMemory(
            f"the driver refuses to page-lock {piece.end / 2**20:.0f} MiB for the weights: {error} (ulimit -l: {shown})",
            hint="raise the container's memory limit and `ulimit -l`, or park fewer residents here",
        ) from error


def _reserve(nbytes: int) -> mmap.mmap:
    """Map addresses for it, from which memory is taken later."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mapping = mmap.mmap(-1, nbytes + _HUGE_PAGE_BYTES, flags=flags)
    except (OSError, MemoryError) as error:
        raise NotEnoughHostMemory(
            f"{nbytes / 2**20:.0f} MiB of addresses can't be mapped: {error}",
            hint="raise `ulimit -v`, or park fewer residents here",
        ) from error
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTFORK):
        with suppress(OSError):  # what it is for works without, more slowly
            mapping.madvise(advice)
    return mapping


def _populate(piece: _Piece) -> None:
    """Have the kernel put memory behind a piece."""
    if _LIBC.madvise(piece.address, piece.nbytes, _MADV_POPULATE_WRITE) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EINVAL:  # a kernel before 5.14: pages come when they are written to
        ctypes.memset(piece.address, 0, piece.nbytes)
        return
    raise NotEnoughHostMemory(
        f"host memory for the weights can't be taken: {os.strerror(code)}",
        hint="raise the memory limit, or park fewer residents here",
    )
