"""A device without a GPU, behind the same port: its memory is memory files, whose descriptors and mappings act as a driver's do.

Its memory is this machine's, so processes share it as they share a device's, and it goes with the last of them.
"""

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path

import torch

from loader.cuda.port import Mapped
from loader.errors import DeviceUnavailable, OutOfMemory

UUID = "0123456789abcdef" * 2
GRANULARITY = 2 * 2**20
_PREFIX = "emberpool-device"
_FAILED = ctypes.c_void_p(-1).value
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def used_bytes(*processes: int | str) -> int:
    """The stand-in's memory that these processes have, mapped or by descriptor."""
    files: dict[int, int] = {}
    for process in processes:
        try:
            files |= _mapped(process) | _open(process)
        except OSError:
            continue  # it has ended
    return sum(files.values())


def _mapped(process: int | str) -> dict[int, int]:
    found = {}
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        if _PREFIX in line:
            addresses, _, _, _, inode, *_ = line.split()
            first, last = (int(address, 16) for address in addresses.split("-"))
            found[int(inode)] = last - first
    return found


def _open(process: int | str) -> dict[int, int]:
    found = {}
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if _PREFIX in str(link.readlink()):
                about = link.stat()
                found[about.st_ino] = about.st_size
    return found


class MemoryFileDevice:
    """A device of `capacity` bytes, of which this process's memory counts."""

    uuid = UUID

    def __init__(self, capacity: int = 2**28) -> None:
        self._capacity = capacity
        self._locked: dict[int, int] = {}

    def enter(self) -> None:
        """Any thread may call it."""

    def free_bytes(self) -> int:
        return self._capacity - used_bytes("self")

    def shared_granularity(self) -> int:
        return GRANULARITY

    def create(self, nbytes: int) -> int:
        if nbytes > self.free_bytes():
            raise OutOfMemory(f"{nbytes} bytes are more than there are")
        if nbytes % GRANULARITY:
            raise DeviceUnavailable(f"{nbytes} bytes aren't a multiple of {GRANULARITY}")
        descriptor = os.memfd_create(_PREFIX, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, nbytes)
        return descriptor

    def export(self, handle: int) -> int:
        return os.dup(handle)

    def take(self, descriptor: int) -> int:
        if _PREFIX not in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise DeviceUnavailable("that is no memory of this device")
        return os.dup(descriptor)

    def release(self, handle: int) -> None:
        os.close(handle)

    def map(self, handle: int, nbytes: int, *, writable: bool = True) -> int:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            if nbytes != os.fstat(handle).st_size:
                raise DeviceUnavailable("memory is mapped as a whole")
            address: int = _LIBC.mmap(None, nbytes, access, mmap.MAP_SHARED, handle, 0)
        finally:
            os.close(handle)
        if address == _FAILED:
            raise DeviceUnavailable(os.strerror(ctypes.get_errno()))
        return address

    def protect(self, address: int, nbytes: int) -> None:
        assert _LIBC.mprotect(address, nbytes, mmap.PROT_READ) == 0

    def unmap(self, address: int, nbytes: int) -> None:
        assert _LIBC.munmap(address, nbytes) == 0

    def lock_pages(self, address: int, nbytes: int) -> None:
        if address in self._locked:
            raise DeviceUnavailable("locked already")
        self._locked[address] = nbytes

    def unlock_pages(self, address: int) -> None:
        if self._locked.pop(address, None) is None:
            raise DeviceUnavailable("not locked")

    def copy_to_device(self, moves: list[tuple[int, int, int]]) -> None:
        for target, source, nbytes in moves:
            if not any(
                start <= source and source + nbytes <= start + size for start, size in self._locked.items()
            ):
                raise DeviceUnavailable("a copy from pages that aren't locked, or not at once")
            ctypes.memmove(target, source, nbytes)

    def reach(self, address: int, nbytes: int) -> None:
        """All memory here is this machine's."""

    def copy_between(self, moves: list[tuple[int, int, int]]) -> None:
        for target, source, nbytes in moves:
            ctypes.memmove(target, source, nbytes)

    def wait(self) -> None:
        """Nothing is ever queued."""

    def tensor(self, memory: Mapped) -> torch.Tensor:
        data = (ctypes.c_char * memory.nbytes).from_address(memory.address)
        data.kept = memory  # type: ignore[attr-defined]
        return torch.frombuffer(data, dtype=torch.uint8)

    def trim(self) -> None:
        """Nothing is kept."""
