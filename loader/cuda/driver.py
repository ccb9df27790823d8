"""The driver's library and one device's context.

Names and numbers are those of the CUDA Driver API manual ("Virtual Memory Management", "Memory Management").
"""

import ctypes
import os

from loader.errors import DeviceUnavailable, LoadError, OutOfMemory

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_UUID_BYTES = 16


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_SIZE, _INT, _POINTER, _ADDRESS = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_ulonglong
_TO = ctypes.POINTER
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGetCount": (_TO(_INT),),
    "cuDeviceGet": (_TO(_INT), _INT),
    "cuDeviceGetUuid": (_POINTER, _INT),
    "cuDevicePrimaryCtxRetain": (_TO(_POINTER), _INT),
    "cuCtxSetCurrent": (_POINTER,),
    "cuGetErrorName": (_INT, _TO(ctypes.c_char_p)),
    "cuMemGetAllocationGranularity": (_TO(_SIZE), _TO(_Properties), _INT),
    "cuMemAddressReserve": (_TO(_ADDRESS), _SIZE, _SIZE, _ADDRESS, _ADDRESS),
    "cuMemAddressFree": (_ADDRESS, _SIZE),
    "cuMemCreate": (_TO(_ADDRESS), _SIZE, _TO(_Properties), _ADDRESS),
    "cuMemExportToShareableHandle": (_POINTER, _ADDRESS, _INT, _ADDRESS),
    "cuMemImportFromShareableHandle": (_TO(_ADDRESS), _POINTER, _INT),
    "cuMemMap": (_ADDRESS, _SIZE, _SIZE, _ADDRESS, _ADDRESS),
    "cuMemSetAccess": (_ADDRESS, _SIZE, _TO(_Access), _SIZE),
    "cuMemUnmap": (_ADDRESS, _SIZE),
    "cuMemRelease": (_ADDRESS,),
    "cuMemHostRegister_v2": (_POINTER, _SIZE, ctypes.c_uint),
    "cuMemHostUnregister": (_POINTER,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _POINTER, _SIZE, _POINTER),
    "cuStreamCreate": (_TO(_POINTER), ctypes.c_uint),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamDestroy_v2": (_POINTER,),
}


class Driver:
    """The driver, with the context that torch uses too for one device.

    Args:
        ordinal: the device's number as this process counts those that it sees.

    Raises:
        DeviceUnavailable: there is no driver, it is too old, or there is no such device.
    """

    def __init__(self, ordinal: int) -> None:
        self._library = _load_library()
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device.value
        # It lives as long as the process, so it is never released.
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        location = _Location(_ON_DEVICE, self._device)
        self._properties = _Properties(type=_PINNED, handle_types=_DESCRIPTOR, location=location)

    @property
    def uuid(self) -> str:
        """The device's id, in hexadecimal: the same in every process, whatever devices each of them sees."""
        return uuid_of(self._library, self._device)

    def enter(self) -> None:
        """Make the context the calling thread's."""
        self.call("cuCtxSetCurrent", self._context)

    def granularity(self) -> int:
        """Sizes of memory that can be shared are multiples of it, in bytes."""
        found = ctypes.c_size_t()
        self.call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(self._properties), 0)
        return found.value

    def create(self, nbytes: int) -> int:
        """Device memory that can be shared; its handle, to be released once it is mapped.

        Raises:
            OutOfMemory: the device has none left.
        """
        handle = ctypes.c_ulonglong()
        self.call("cuMemCreate", ctypes.byref(handle), nbytes, ctypes.byref(self._properties), 0)
        return handle.value

    def export(self, handle: int) -> int:
        """A descriptor that stands for memory, for another process or this one; the caller's to close."""
        descriptor = ctypes.c_int(-1)
        self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _DESCRIPTOR, 0)
        os.set_inheritable(descriptor.value, False)
        return descriptor.value

    def take(self, descriptor: int) -> int:
        """The handle of memory that a descriptor stands for, to be released once it is mapped."""
        handle = ctypes.c_ulonglong()
        self.call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), _DESCRIPTOR
        )
        return handle.value

    def map(self, handle: int, nbytes: int) -> int:
        """Put memory behind new addresses; the first. From then on the mapping keeps it, and the handle is released."""
        address = ctypes.c_ulonglong()
        try:
            self.call("cuMemAddressReserve", ctypes.byref(address), nbytes, 0, 0, 0)
            try:
                self.call("cuMemMap", address, nbytes, 0, handle, 0)
            except LoadError:
                self.call("cuMemAddressFree", address, nbytes)
                raise
        finally:
            self.call("cuMemRelease", handle)
        access = _Access(_Location(_ON_DEVICE, self._device), _READ_WRITE)
        try:
            self.call("cuMemSetAccess", address, nbytes, ctypes.byref(access), 1)
        except LoadError:
            self.unmap(address.value, nbytes)
            raise
        return address.value

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo it; the memory goes with its last mapping and descriptor."""
        self.call("cuMemUnmap", address, nbytes)
        self.call("cuMemAddressFree", address, nbytes)

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, in its exact size, for copies at the speed of the link."""
        self.call("cuMemHostRegister_v2", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int) -> None:
        """Undo it."""
        self.call("cuMemHostUnregister", address)

    def copy_to_device(self, moves: list[tuple[int, int, int]]) -> None:
        """Copy page-locked host memory to the device; returns when all of it is there.

        Args:
            moves: each the device's address, the host's address, and how many bytes.
        """
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        try:
            for target, source, nbytes in moves:
                self.call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)
        finally:
            # Also after an error: nothing may be on its way when either side's memory goes.
            self.call("cuStreamSynchronize", stream)
            self.call("cuStreamDestroy_v2", stream)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            OutOfMemory: it found no memory.
            DeviceUnavailable: another failure.
        """
        _call(self._library, name, *arguments)


def ordinal_of(uuid: str) -> int:
    """The number of a device in this process, by its id.

    Raises:
        DeviceUnavailable: there is no driver, or this process doesn't see the device.
    """
    library = _load_library()
    _call(library, "cuInit", 0)
    count = ctypes.c_int()
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        device = ctypes.c_int()
        _call(library, "cuDeviceGet", ctypes.byref(device), ordinal)
        if uuid_of(library, device.value) == uuid:
            return ordinal
    raise DeviceUnavailable(f"no CUDA device {uuid} is seen here", hint="check CUDA_VISIBLE_DEVICES")


def uuid_of(library: ctypes.CDLL, device: int) -> str:
    """A device's id, in hexadecimal."""
    raw = ctypes.create_string_buffer(_UUID_BYTES)
    _call(library, "cuDeviceGetUuid", raw, device)
    return raw.raw.hex()


def _load_library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise DeviceUnavailable(
            "there is no CUDA driver (libcuda.so.1)", hint="check `nvidia-smi`, or do without --cuda"
        ) from None
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:
            raise DeviceUnavailable(f"this CUDA driver has no {name}", hint="install a newer driver")
        function.argtypes, function.restype = arguments, ctypes.c_int
    return library


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(library, name)(*arguments)
    if code == 0:
        return
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))
    what = f"{name}: {(text.value or b'error').decode()} ({code})"
    if code == _OUT_OF_MEMORY:
        raise OutOfMemory(what, hint="free memory on the device, or take another one")
    raise DeviceUnavailable(what)
