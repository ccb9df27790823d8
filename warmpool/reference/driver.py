"""One device's context of the CUDA driver (`loader.cuda.library`), with its failures as errors that this engine tells apart.

Torch has calls of its own for some of this, each with its own idea of what it may keep, and none for the rest.
"""

import ctypes

from loader.cuda.library import CallFailed, DeviceContext, FunctionMissing, open_library


class DriverError(Exception):
    """A call of the CUDA driver failed."""


class OutOfDeviceMemory(DriverError):
    """The device has no physical memory left for it; of calls that concern the host's memory: the host has none."""


class Unsupported(DriverError):
    """There is no CUDA driver, or the device can't do it."""


class CudaDriver(DeviceContext):
    """The driver, and one device's context: the one that torch uses too.

    Args:
        ordinal: the device's number as CUDA counts those that are visible.

    Raises:
        Unsupported: there is no driver, or it is too old.
        DriverError: there is no such device.
    """

    def __init__(self, ordinal: int) -> None:
        try:
            library = open_library()
        except OSError as error:
            raise Unsupported(f"libcuda.so.1: {error}") from error
        except FunctionMissing as name:
            raise Unsupported(f"this driver has no {name}") from None
        super().__init__(library, ordinal)

    def attribute(self, number: int) -> int:
        """Return one of the device's attributes (`CUdevice_attribute`)."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the library.

        Raises:
            OutOfDeviceMemory: it found no memory.
            DriverError: another failure.
        """
        try:
            super().call(name, *arguments)
        except CallFailed as failed:
            kind = OutOfDeviceMemory if failed.out_of_memory else DriverError
            raise kind(str(failed)) from None
