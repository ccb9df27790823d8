"""The C part's other side: a chunk goes from its file to the device in one call that doesn't hold the interpreter.

Sixteen threads that each take the interpreter's lock twice for every read leave a link of 55 GB/s idle half of the time, and
reads that are large enough to make up for it don't stay in the processor's cache until they are copied on. In C both are had:
small windows, and nobody waits for a lock. What it can't do, read files that aren't plain ones, convert, leave gaps out, is done in
Python, as is everything where the library wasn't built.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from loader.cuda import library
from loader.errors import LoadError
from loader.native.build import WINDOWS

WINDOW_BYTES = 4 * 2**20
"""What is read at once. On one H200 windows of 1, 2 and 4 MiB, two for each of 16 threads, brought 42, 45 and 46 GB/s."""
_VERSION = 1
_WORD, _ADDRESS = ctypes.c_uint64, ctypes.c_void_p


class Outcome(IntEnum):
    """What became of a chunk."""

    DONE = 0
    READ_FAILED = 1
    ENDED_EARLY = 2
    LOCK_REFUSED = 3
    COPY_FAILED = 4


class Driver(ctypes.Structure):
    """Functions of the CUDA driver, and the stream that everything goes over; `struct driver` of windows.c, as the others here."""

    _fields_ = (
        ("lock", _ADDRESS),
        ("copy", _ADDRESS),
        ("record", _ADDRESS),
        ("query", _ADDRESS),
        ("stream", _ADDRESS),
    )


class _Slot(ctypes.Structure):
    _fields_ = (("memory", _ADDRESS), ("nbytes", _WORD), ("event", _ADDRESS), ("locked", _WORD))


class _Worker(ctypes.Structure):
    _fields_ = (
        ("driver", _ADDRESS),
        ("slots", _ADDRESS),
        ("slot_count", _WORD),
        ("turn", _WORD),
        ("window_bytes", _WORD),
        ("done", _WORD),
        ("code", ctypes.c_int64),
    )


class _Copy(ctypes.Structure):
    _fields_ = (("target", _WORD), ("begin", _WORD), ("nbytes", _WORD))


class _Stretch(ctypes.Structure):
    _fields_ = (
        ("begin", _WORD),
        ("nbytes", _WORD),
        ("copies", _ADDRESS),
        ("copy_count", _WORD),
        ("descriptor", ctypes.c_int64),
    )


class Room(NamedTuple):
    """A slot as the C part sees it.

    Attributes:
        address: of its memory.
        nbytes: of it, which are page-locked at once.
        event: the number of an event of the driver's, its own.
        locked: whether it is page-locked already.
    """

    address: int
    nbytes: int
    event: int
    locked: bool


class Stretch(NamedTuple):
    """Bytes of a file, and where they belong.

    Attributes:
        descriptor: of the open file.
        begin: the first of them.
        nbytes: how many.
        copies: addresses on the device, the first byte of the file that belongs there, and how many do; in the file's order.
    """

    descriptor: int
    begin: int
    nbytes: int
    copies: Sequence[tuple[int, int, int]]


@cache
def open_windows() -> ctypes.CDLL | None:
    """The library; None where it wasn't built, or was built from another version of its source."""
    try:
        windows = ctypes.CDLL(str(WINDOWS))
        version = windows.emberpool_windows_version
        version.restype = ctypes.c_uint32
        if version() != _VERSION:
            return None
        windows.emberpool_windows_bring.argtypes = (_ADDRESS, _ADDRESS)
    except (OSError, AttributeError):
        return None
    return windows


def cuda_driver(stream: int) -> Driver:
    """The real driver's functions.

    Args:
        stream: number of a stream, of the driver that `library.open_library` has opened.
    """
    opened = library.open_library()
    names = ("cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventQuery")
    return Driver(*(ctypes.cast(getattr(opened, name), _ADDRESS).value for name in names), stream)


class Windows:
    """One thread's way through the C part.

    Args:
        driver: whose functions are called.
        rooms: its slots.
        window_bytes: what is read at once, a multiple of a page, at most a slot.
    """

    def __init__(self, driver: Driver, rooms: Sequence[Room], window_bytes: int) -> None:
        windows = open_windows()
        if windows is None:
            raise RuntimeError("the C part isn't built")
        self._bring = windows.emberpool_windows_bring
        self._slots = (_Slot * len(rooms))(*(_Slot(*room) for room in rooms))
        self._worker = _Worker(
            driver=ctypes.addressof(driver),
            slots=ctypes.addressof(self._slots),
            slot_count=len(rooms),
            window_bytes=window_bytes,
        )
        self._driver = driver  # kept alive

    @property
    def locked(self) -> list[bool]:
        """Which slots are page-locked by now."""
        return [bool(slot.locked) for slot in self._slots]

    def bring(self, stretch: Stretch, read_again: Callable[[int], None]) -> None:
        """Read a stretch and queue its copies.

        Args:
            stretch: what.
            read_again: called where reading failed, with the first byte of the file that is missing: it reads from there in Python,
                which explains what is wrong.

        Raises:
            LoadError: the driver refuses, or the same read fails here and not in Python, twice.
            BaseException: whatever `read_again` raises.
        """
        copies = (_Copy * len(stretch.copies))(*(_Copy(*copy) for copy in stretch.copies))
        begin, end = stretch.begin, stretch.begin + stretch.nbytes
        failed_at: int | None = None
        while begin < end:
            given = _Stretch(begin, end - begin, ctypes.addressof(copies), len(copies), stretch.descriptor)
            outcome = Outcome(self._bring(ctypes.byref(self._worker), ctypes.byref(given)))
            begin += self._worker.done
            match outcome:
                case Outcome.LOCK_REFUSED:
                    raise lock_refused(self._slots[0].nbytes, self._worker.code)
                case Outcome.COPY_FAILED:
                    raise _refused(f"{stretch.nbytes} bytes of device memory", self._worker.code)
                case Outcome.READ_FAILED | Outcome.ENDED_EARLY if begin == failed_at:
                    raise _unreadable(begin, self._worker.code)
                case Outcome.READ_FAILED | Outcome.ENDED_EARLY:
                    failed_at = begin
                    read_again(begin)


def lock_refused(nbytes: int, code: int) -> LoadError:
    """What is said where memory can't be page-locked."""
    return LoadError(
        f"the CUDA driver refuses to page-lock {nbytes} bytes (cudaError {code})",
        hint="check the memory limit of the container and `ulimit -l`, or load with fewer threads",
    )


def _refused(what: str, code: int) -> LoadError:
    return LoadError(
        f"a copy to {what} failed: CUDA error {code}",
        hint="check the kernel's log for an Xid; the device may have to be reset",
    )


def _unreadable(begin: int, code: int) -> LoadError:
    what = os.strerror(code) if code else "it ends there"
    return LoadError(
        f"byte {begin} of a shard can't be read ({what}), and at other times can",
        hint="check the disk or the mount it is on, then load again",
    )
