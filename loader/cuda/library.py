"""The CUDA driver's library, called through ctypes: nothing has to be compiled, and no call holds the interpreter.

Names and numbers are those of the CUDA Driver API manual ("Virtual Memory Management", "Memory Management").
"""

import ctypes
import functools
import os

FILE = "libcuda.so.1"
"""The library's name for the dynamic linker."""
PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
READ_ONLY = 1  # CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
UUID_BYTES = 16
_SUCCESS = 0
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE
_MINIMUM = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM


class FunctionMissing(Exception):
    """The driver is too old to have a function; the text is its name."""


class CallFailed(Exception):
    """A function returned an error; the text tells which.

    Attributes:
        out_of_memory: whether it found no memory, on the device or, for calls that concern the host's, there.
    """

    def __init__(self, what: str, *, out_of_memory: bool) -> None:
        super().__init__(what)
        self.out_of_memory = out_of_memory


class Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationFlags(ctypes.Structure):
    """`CUmemAllocationProp.allocFlags`."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class AllocationProperties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", AllocationFlags),
    )


class AccessDescription(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


_SIZE, _INT, _POINTER, _ADDRESS = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_ulonglong
_TO = ctypes.POINTER
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (_TO(_INT),),
    "cuDeviceGet": (_TO(_INT), _INT),
    "cuDeviceGetAttribute": (_TO(_INT), _INT, _INT),
    "cuDeviceGetUuid": (_POINTER, _INT),
    "cuDevicePrimaryCtxRetain": (_TO(_POINTER), _INT),
    "cuCtxSetCurrent": (_POINTER,),
    "cuCtxSynchronize": (),
    "cuGetErrorName": (_INT, _TO(ctypes.c_char_p)),
    "cuMemGetInfo_v2": (_TO(_SIZE), _TO(_SIZE)),
    "cuMemGetAllocationGranularity": (_TO(_SIZE), _TO(AllocationProperties), _INT),
    "cuMemAddressReserve": (_TO(_ADDRESS), _SIZE, _SIZE, _ADDRESS, _ADDRESS),
    "cuMemAddressFree": (_ADDRESS, _SIZE),
    "cuMemCreate": (_TO(_ADDRESS), _SIZE, _TO(AllocationProperties), _ADDRESS),
    "cuMemExportToShareableHandle": (_POINTER, _ADDRESS, _INT, _ADDRESS),
    "cuMemImportFromShareableHandle": (_TO(_ADDRESS), _POINTER, _INT),
    "cuMemMap": (_ADDRESS, _SIZE, _SIZE, _ADDRESS, _ADDRESS),
    "cuMemSetAccess": (_ADDRESS, _SIZE, _TO(AccessDescription), _SIZE),
    "cuMemUnmap": (_ADDRESS, _SIZE),
    "cuMemRelease": (_ADDRESS,),
    "cuMemHostRegister_v2": (_POINTER, _SIZE, ctypes.c_uint),
    "cuMemHostUnregister": (_POINTER,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _POINTER),
    "cuStreamCreate": (_TO(_POINTER), ctypes.c_uint),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamWaitEvent": (_POINTER, _POINTER, ctypes.c_uint),
    "cuEventCreate": (_TO(_POINTER), ctypes.c_uint),
    "cuEventDestroy_v2": (_POINTER,),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventQuery": (_POINTER,),
    "cuStreamDestroy_v2": (_POINTER,),
}


@functools.cache
def open_library() -> ctypes.CDLL:
    """The library, opened once; where it can't be, it is tried again the next time.

    Raises:
        OSError: there is no CUDA driver.
        FunctionMissing: it is too old.
    """
    library = ctypes.CDLL(FILE)
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise FunctionMissing(name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    return library


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of the driver.

    Raises:
        CallFailed: it returned an error.
    """
    code = getattr(library, name)(*arguments)
    if code == _SUCCESS:
        return
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))
    raise CallFailed(
        f"{name}: {(text.value or b'error').decode()} ({code})", out_of_memory=code == _OUT_OF_MEMORY
    )


class DeviceContext:
    """One device's context, the one that torch uses too.

    Whoever derives from it makes the errors of `call` its own.

    Args:
        library: from `open_library`.
        ordinal: the device's number as CUDA counts those that this process sees.
    """

    def __init__(self, library: ctypes.CDLL, ordinal: int) -> None:
        self._library = library
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.device = device.value
        # It lives as long as the process, so it is never released.
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.device)

    @property
    def uuid(self) -> str:
        """The device's id, in hexadecimal: the same in every process, whatever devices each of them sees."""
        raw = ctypes.create_string_buffer(UUID_BYTES)
        self.call("cuDeviceGetUuid", raw, self.device)
        return raw.raw.hex()

    def export(self, handle: int) -> int:
        """A descriptor that stands for memory, for another process or this one; the caller's to close."""
        descriptor = ctypes.c_int(-1)
        self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, DESCRIPTOR, 0)
        os.set_inheritable(descriptor.value, False)
        return descriptor.value

    @property
    def number(self) -> int:
        """What the driver calls it."""
        return self._context.value or 0

    def enter(self) -> None:
        """Make the context the calling thread's."""
        self.call("cuCtxSetCurrent", self._context)

    def granularity(self, properties: AllocationProperties) -> int:
        """Sizes and addresses of such memory are multiples of it, in bytes."""
        found = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(properties), _MINIMUM)
        return found.value

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, in its exact size, so that devices copy at the speed of the link.

        An error means that nothing was locked.
        """
        self.call("cuMemHostRegister_v2", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int) -> None:
        """Undo it, for memory that was locked from `address` on."""
        self.call("cuMemHostUnregister", address)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            CallFailed: it returned an error.
        """
        call(self._library, name, *arguments)
