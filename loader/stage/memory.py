"""Memory for one shard: a file that has no name, filled through a mapping, and then read-only for everybody else.

A memory file is sealed. A file in a tmpfs that is mounted for large pages can't be: it is given out by a descriptor that only reads, and
its mode lets nobody but its owner open it anew.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from loader.checkpoint import FileIdentity
from loader.copiers import host
from loader.copiers.destinations import memory_of
from loader.errors import LoadError, OutOfMemory
from loader.stage.pages import HUGE_BYTES, SMALL_BYTES, Pages, Supply, Way, choose, huge_bytes, padded

_F_ADD_SEALS = 1033
# No other process can write, grow or shrink the file, and nobody can take that back. Linux 5.1.
_SEALS = 0x1 | 0x2 | 0x4 | 0x10  # SEAL | SHRINK | GROW | FUTURE_WRITE
_MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it
_POPULATED_AT_ONCE_BYTES = 2**28
_NEARLY_ALL = 0.9
"""Share of a shard from which on it counts as lying in large pages: its end needn't."""
_NO_MEMORY = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT})
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedShard:
    """A shard in memory.

    Attributes:
        file: its name in the checkpoint.
        descriptor: the shard's bytes, header and all, with zeros behind them where pages are large; nobody can write through it.
        identity: the file that it was read from.
        data: the same bytes, mapped; whoever wants them locked keeps the mapping.
        pages: what the memory comes in.
    """

    file: str
    descriptor: int
    identity: FileIdentity
    data: torch.Tensor
    pages: Pages


class ShardMemory:
    """Memory of a shard's size, mapped for filling.

    Args:
        file: the shard.
        nbytes: its size.
        supply: what pages the machine has.

    Raises:
        OutOfMemory: there is no memory for it.
        LoadError: there can't be any.
    """

    def __init__(self, file: str, nbytes: int, supply: Supply) -> None:
        self._file = file
        self.descriptor = -1
        self.data: torch.Tensor
        self.memory: memoryview
        choice = choose(supply, nbytes)
        refused = dict(choice.refused)
        for way in choice.ways:
            try:
                self._take(way, nbytes, supply)
            except OSError as error:
                if way is Way.SMALL:  # the last
                    raise _failure(file, nbytes, error) from error
                refused[way] = error.strerror or str(error)
            else:
                self._way, self._refused = way, refused
                return

    def seal(self, identity: FileIdentity, *, lock: bool) -> StagedShard:
        """Make it read-only for good. What was filled is in `memory`.

        Raises:
            LoadError: it can't be locked.
        """
        if lock and _LIBC.mlock(self.data.data_ptr(), self.data.numel()):
            raise LoadError(
                f"the memory can't be locked: {os.strerror(ctypes.get_errno())}",
                file=self._file,
                hint="raise `ulimit -l`, or start the daemon without --lock",
            )
        if self._way is Way.TMPFS:
            reading = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(self.descriptor)
            self.descriptor = reading
        else:
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEALS)
        return StagedShard(
            file=self._file,
            descriptor=self.descriptor,
            identity=identity,
            data=self.data,
            pages=self._had(),
        )

    def close(self) -> None:
        """Give it up; the mapping goes with its last view."""
        os.close(self.descriptor)

    def _take(self, way: Way, nbytes: int, supply: Supply) -> None:
        self.descriptor = _OPEN[way](self._file, supply)
        try:
            advised = way is Way.TRANSPARENT and supply.transparent == "advise"
            size = padded(nbytes) if way is Way.RESERVED else nbytes
            if advised:
                os.ftruncate(self.descriptor, size)
            else:
                # Memory that isn't there is refused here, instead of killing whoever touches it first.
                os.posix_fallocate(self.descriptor, 0, size)
            mapping = mmap.mmap(self.descriptor, size)
            self.data = torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes)
            if advised:
                mapping.madvise(mmap.MADV_HUGEPAGE)
                _populate(self.data.data_ptr(), nbytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.memory = memory_of(self.data)

    def _had(self) -> Pages:
        """What the memory really lies in, now that all of it has been touched."""
        refused = dict(self._refused)
        if self._way is not Way.SMALL:
            with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as smaps:  # noqa: PTH123 - no path
                huge = huge_bytes(self.data.data_ptr(), smaps.read())
            if huge >= _NEARLY_ALL * self.data.numel():
                better = list(Way)[: list(Way).index(self._way)]
                return Pages(nbytes=HUGE_BYTES, way=self._way, refused={way: refused[way] for way in better})
            refused[self._way] = f"the kernel gave {huge >> 20} of {self.data.numel() >> 20} MiB"
        return Pages(nbytes=SMALL_BYTES, way=Way.SMALL, refused=refused)


def _failure(file: str, nbytes: int, error: OSError) -> LoadError:
    if error.errno in _NO_MEMORY:
        return OutOfMemory(
            f"no memory for {nbytes} bytes: {error.strerror}",
            file=file,
            hint="lower the daemon's budget, or raise its memory limit",
        )
    return LoadError(f"no memory file can be made: {error.strerror}", file=file)


def _memory_file(flags: int) -> Callable[[str, Supply], int]:
    def make(file: str, supply: Supply) -> int:
        del supply
        name = f"emberpool:{file}"[:200]
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)

    return make


def _unnamed_file(file: str, supply: Supply) -> int:
    del file
    return os.open(supply.mounts[0], os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o400)


_OPEN: dict[Way, Callable[[str, Supply], int]] = {
    Way.RESERVED: _memory_file(os.MFD_HUGETLB | os.MFD_HUGE_2MB),
    Way.TMPFS: _unnamed_file,
    Way.TRANSPARENT: _memory_file(0),
    Way.SMALL: _memory_file(0),
}


def _populate(address: int, nbytes: int) -> None:
    """Have all pages come now, so that what isn't there is an error and not a signal later."""

    def populate(start: int) -> None:
        size = min(_POPULATED_AT_ONCE_BYTES, nbytes - start)
        if _LIBC.madvise(address + start, size, _MADV_POPULATE_WRITE):
            code = ctypes.get_errno()
            if code != errno.EINVAL:  # a kernel before 5.14: they come when they are first touched
                raise OSError(errno.ENOMEM if code == errno.EFAULT else code, os.strerror(code))

    with ThreadPoolExecutor(host.default_threads(), thread_name_prefix="loader-stage-pages") as threads:
        list(threads.map(populate, range(0, nbytes, _POPULATED_AT_ONCE_BYTES)))
