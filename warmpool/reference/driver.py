"""The CUDA driver's library, called through ctypes: nothing has to be compiled, and no call holds the interpreter.

Torch has calls of its own for some of this, each with its own idea of what it may keep, and none for the rest.
"""

import ctypes

_SUCCESS = 0
_OUT_OF_MEMORY = 2
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE


class DriverError(Exception):
    """A call of the CUDA driver failed."""


class OutOfDeviceMemory(DriverError):
    """The device has no physical memory left for it; of calls that concern the host's memory: the host has none."""


class Unsupported(DriverError):
    """There is no CUDA driver, or the device can't do it."""


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


_SIGNATURES = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuMemGetInfo_v2": (ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)),
    "cuMemGetAllocationGranularity": (
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(AllocationProperties),
        ctypes.c_int,
    ),
    "cuMemAddressReserve": (
        ctypes.POINTER(ctypes.c_ulonglong),
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_ulonglong,
        ctypes.c_ulonglong,
    ),
    "cuMemAddressFree": (ctypes.c_ulonglong, ctypes.c_size_t),
    "cuMemCreate": (
        ctypes.POINTER(ctypes.c_ulonglong),
        ctypes.c_size_t,
        ctypes.POINTER(AllocationProperties),
        ctypes.c_ulonglong,
    ),
    "cuMemMap": (
        ctypes.c_ulonglong,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_ulonglong,
        ctypes.c_ulonglong,
    ),
    "cuMemSetAccess": (
        ctypes.c_ulonglong,
        ctypes.c_size_t,
        ctypes.POINTER(AccessDescription),
        ctypes.c_size_t,
    ),
    "cuMemUnmap": (ctypes.c_ulonglong, ctypes.c_size_t),
    "cuMemRelease": (ctypes.c_ulonglong,),
    "cuMemHostRegister_v2": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint),
    "cuMemHostUnregister": (ctypes.c_void_p,),
}


class CudaDriver:
    """The driver, and one device's context: the one that torch uses too.

    Args:
        ordinal: the device's number as CUDA counts those that are visible.

    Raises:
        Unsupported: there is no driver, or it is too old.
        DriverError: there is no such device.
    """

    def __init__(self, ordinal: int) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unsupported(f"libcuda.so.1: {error}") from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name, None)
            if function is None:
                raise Unsupported(f"this driver has no {name}")
            function.argtypes, function.restype = arguments, ctypes.c_int
        device = ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.device = device.value
        # It lives as long as the process, so it is never released here.
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.device)

    def enter(self) -> None:
        """Make the device's context the calling thread's."""
        self.call("cuCtxSetCurrent", self._context)

    def attribute(self, number: int) -> int:
        """Return one of the device's attributes (`CUdevice_attribute`)."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Page-lock memory of the process, so that the device copies to and from it at the link's speed.

        Raises:
            DriverError: the system or the driver refuses; nothing was locked.
        """
        self.call("cuMemHostRegister_v2", address, nbytes, _PORTABLE)

    def unlock_pages(self, address: int) -> None:
        """Undo it, for memory that was locked from `address` on."""
        self.call("cuMemHostUnregister", address)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the library.

        Raises:
            OutOfDeviceMemory: it found no memory.
            DriverError: another failure.
        """
        code = getattr(self._library, name)(*arguments)
        if code == _SUCCESS:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        kind = OutOfDeviceMemory if code == _OUT_OF_MEMORY else DriverError
        raise kind(f"{name}: {(text.value or b'error').decode()} ({code})")
