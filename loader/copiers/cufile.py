"""NVIDIA's cuFile, called through ctypes: reads from a file into device memory that the host's memory takes no part in.

Names and numbers are those of the cuFile API reference. The library is opened once per process, and only where the kernel has
its driver: without that, opening it is known to close a standard descriptor, and reads would go through the host anyway.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Protocol

_DEVICE_NODE = Path("/dev/nvidia-fs0")
_OPAQUE_DESCRIPTOR = 1  # CU_FILE_HANDLE_TYPE_OPAQUE_FD
_STANDARD_DESCRIPTORS = 3


class CuFileMissing(Exception):
    """The library can't be used in this process; the text says why.

    Attributes:
        has_driver: whether at least the kernel's driver is there.
    """

    def __init__(self, what: str, *, has_driver: bool) -> None:
        super().__init__(what)
        self.has_driver = has_driver


class CuFileRefused(Exception):
    """The library refuses a file or a read; the text says which, with its code."""


class CuFile(Protocol):
    """What a copier wants of cuFile."""

    def register(self, descriptor: int) -> int:
        """A handle for a file that is open with O_DIRECT.

        Raises:
            CuFileRefused: its file system doesn't take part.
        """
        ...

    def deregister(self, handle: int) -> None:
        """Give a handle up; the descriptor stays open."""
        ...

    def read(self, handle: int, address: int, nbytes: int, offset: int) -> int:
        """Read from a file into device memory; the bytes read, 0 at the file's end.

        Args:
            handle: of the file.
            address: where they go.
            nbytes: how many.
            offset: where in the file they begin.

        Raises:
            CuFileRefused: reading failed.
        """
        ...


class _Status(ctypes.Structure):
    """`CUfileError_t`."""

    _fields_ = (("code", ctypes.c_int), ("driver_code", ctypes.c_int))


class _Description(ctypes.Structure):
    """`CUfileDescr_t`, with a descriptor in its union."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("before_union", ctypes.c_int),
        ("descriptor", ctypes.c_int),
        ("rest_of_union", ctypes.c_int),
        ("operations", ctypes.c_void_p),
    )


class _Library:
    """The real one."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cuFileDriverOpen.restype = _Status
        library.cuFileHandleRegister.argtypes = (
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(_Description),
        )
        library.cuFileHandleRegister.restype = _Status
        library.cuFileHandleDeregister.argtypes = (ctypes.c_void_p,)
        library.cuFileHandleDeregister.restype = None
        library.cuFileRead.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int64,
            ctypes.c_int64,
        )
        library.cuFileRead.restype = ctypes.c_ssize_t

    def start(self) -> None:
        status = self._library.cuFileDriverOpen()
        if status.code:
            raise CuFileMissing(
                f"cuFileDriverOpen: {status.code}, driver {status.driver_code}", has_driver=True
            )

    def register(self, descriptor: int) -> int:
        handle = ctypes.c_void_p()
        about = _Description(type=_OPAQUE_DESCRIPTOR, descriptor=descriptor)
        status = self._library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(about))
        if status.code or not handle.value:
            raise CuFileRefused(f"cuFileHandleRegister: {status.code}, driver {status.driver_code}")
        return handle.value

    def deregister(self, handle: int) -> None:
        self._library.cuFileHandleDeregister(handle)

    def read(self, handle: int, address: int, nbytes: int, offset: int) -> int:
        count = int(self._library.cuFileRead(handle, address, nbytes, offset, 0))
        if count < 0:
            raise CuFileRefused(f"cuFileRead: {count}, errno {ctypes.get_errno()}")
        return count


@cache
def open_cufile() -> CuFile:
    """The library, its driver opened for the rest of the process.

    Raises:
        CuFileMissing: it can't be used here.
    """
    if not _DEVICE_NODE.exists():
        raise CuFileMissing(
            f"there is no {_DEVICE_NODE}: the kernel has no nvidia-fs driver", has_driver=False
        )
    try:
        library = _Library(ctypes.CDLL("libcufile.so.0", use_errno=True))
    except (OSError, AttributeError) as error:
        raise CuFileMissing(f"libcufile.so.0 can't be loaded: {error}", has_driver=True) from None
    _keep_standard_descriptors()
    library.start()
    return library


def _keep_standard_descriptors() -> None:
    """See that 0 to 2 are open, so that nothing else gets their numbers."""
    descriptor = 0
    while descriptor < _STANDARD_DESCRIPTORS:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
