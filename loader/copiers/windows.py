"""The C part's other side: a stretch of a file goes to the device in one call that doesn't hold the interpreter.

Sixteen threads that each take the interpreter's lock twice for every read leave a link of 55 GB/s idle half of the time, and
reads that are large enough to make up for it don't stay in the processor's cache until they are copied on. In C both are had, and
more: a team of threads fills one block together, so that a copy is as large as the link wants (one of 2 MiB reaches 50 of 55 GB/s, one of
16 MiB 54.6) and all that waits for its copy fits in the cache. What it can't do, read files that aren't plain ones, convert, leave gaps
out, is done in Python, as is everything where the library wasn't built.
"""

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from itertools import chain
from types import TracebackType
from typing import NamedTuple, Self

from loader.cuda import library
from loader.errors import LoadError, OutOfMemory
from loader.native.build import WINDOWS

WINDOW_BYTES = 2 * 2**20
"""What a thread reads at once."""
TEAM_READERS = 8
"""Threads that fill a block together, where there are as many."""
TEAM_SLOTS = 3
"""Blocks of a team: one is filled while another is copied from, and one lies ready when a copy has taken its time."""
BLOCK_BYTES = TEAM_READERS * WINDOW_BYTES
"""What is copied at once."""
_VERSION = 3
_WORD, _ADDRESS = ctypes.c_uint64, ctypes.c_void_p


class Outcome(IntEnum):
    """What became of a stretch."""

    DONE = 0
    READ_FAILED = 1
    ENDED_EARLY = 2
    LOCK_REFUSED = 3
    COPY_FAILED = 4


class Driver(ctypes.Structure):
    """Functions of the CUDA driver, and the stream that everything goes over; `struct driver` of windows.c, as the others here."""

    _fields_ = tuple(
        (name, _ADDRESS) for name in ("enter", "lock", "copy", "record", "query", "context", "stream")
    )


class _Slot(ctypes.Structure):
    _fields_ = (("memory", _ADDRESS), ("nbytes", _WORD), ("event", _ADDRESS), ("locked", _WORD))


class _Stretch(ctypes.Structure):
    _fields_ = (
        ("begin", _WORD),
        ("nbytes", _WORD),
        ("copies", _ADDRESS),
        ("copy_count", _WORD),
        ("descriptor", ctypes.c_int64),
    )


class _Ended(ctypes.Structure):
    _fields_ = (("done", _WORD), ("failed_at", _WORD), ("code", ctypes.c_int64), ("outcome", ctypes.c_int64))


class Room(NamedTuple):
    """A slot as the C part sees it.

    Attributes:
        address: of its memory, on a page boundary.
        nbytes: of it, which are page-locked at once: whole windows, and the same of all slots of a team.
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
        windows.emberpool_windows_begin.argtypes = (_ADDRESS, _ADDRESS, _WORD, _WORD, _WORD)
        windows.emberpool_windows_begin.restype = _ADDRESS
        windows.emberpool_windows_bring.argtypes = (_ADDRESS, _ADDRESS, _ADDRESS)
        windows.emberpool_windows_bring.restype = None
        windows.emberpool_windows_touch.argtypes = (_ADDRESS, _WORD)
        windows.emberpool_windows_touch.restype = None
        windows.emberpool_windows_end.argtypes = (_ADDRESS,)
        windows.emberpool_windows_end.restype = None
    except (OSError, AttributeError):
        return None
    return windows


def touch(address: int, nbytes: int) -> None:
    """Have writable memory be there, without holding the interpreter; without the C part it comes as it is used."""
    windows = open_windows()
    if windows is not None:
        windows.emberpool_windows_touch(address, nbytes)


def cuda_driver(context: int, stream: int) -> Driver:
    """The real driver's functions.

    Args:
        context: number of the device's context, of the driver that `library.open_library` has opened.
        stream: number of a stream of it.
    """
    opened = library.open_library()
    names = (
        *("cuCtxSetCurrent", "cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2", "cuEventRecord"),
        "cuEventQuery",
    )
    addresses = (ctypes.cast(getattr(opened, name), _ADDRESS).value for name in names)
    return Driver(*addresses, context, stream)


class Team:
    """Threads of the C part that bring one stretch after the other, all of them at the same one.

    A context manager. They inherit cores and priority of the thread that makes them, and end when it is left; copies may still be
    under way then.

    Args:
        driver: whose functions are called.
        rooms: the team's slots.
        readers: how many threads; fewer where there can't be as many.
        window_bytes: what each reads at once, a multiple of a page.

    Raises:
        OutOfMemory: there can be no thread.
    """

    def __init__(self, driver: Driver, rooms: Sequence[Room], readers: int, window_bytes: int) -> None:
        windows = open_windows()
        if windows is None:
            raise RuntimeError("the C part isn't built")
        self._windows = windows
        self._driver = driver  # kept alive
        self._slots = (_Slot * len(rooms))(*(_Slot(*room) for room in rooms))
        self._team: int | None = windows.emberpool_windows_begin(
            ctypes.addressof(driver), ctypes.addressof(self._slots), len(rooms), readers, window_bytes
        )
        if self._team is None:
            raise OutOfMemory(
                "no thread can be started to read with", hint="check the container's limit of processes"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._windows.emberpool_windows_end(self._team)
        self._team = None

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
        # Numbers in a row, as `struct copy` has them: an object of ctypes for each would take several times as long.
        copies = array("Q", chain.from_iterable(stretch.copies))
        where, _ = copies.buffer_info()
        begin, end = stretch.begin, stretch.begin + stretch.nbytes
        failed_at: int | None = None
        while begin < end:
            given = _Stretch(begin, end - begin, where, len(stretch.copies), stretch.descriptor)
            ended = _Ended()
            self._windows.emberpool_windows_bring(self._team, ctypes.byref(given), ctypes.byref(ended))
            begin += ended.done
            match Outcome(ended.outcome):
                case Outcome.LOCK_REFUSED:
                    raise lock_refused(self._slots[0].nbytes, ended.code)
                case Outcome.COPY_FAILED:
                    raise _refused(f"{stretch.nbytes} bytes of device memory", ended.code)
                case Outcome.READ_FAILED | Outcome.ENDED_EARLY if ended.failed_at == failed_at:
                    raise _unreadable(ended.failed_at, ended.code)
                case Outcome.READ_FAILED | Outcome.ENDED_EARLY:
                    failed_at = ended.failed_at
                    read_again(failed_at)


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
