"""One device's context, with the failures of the driver as errors of this package."""

import ctypes

import torch

from loader.cuda import library
from loader.cuda.library import (
    DESCRIPTOR,
    ON_DEVICE,
    PINNED,
    READ_ONLY,
    READ_WRITE,
    UUID_BYTES,
    AccessDescription,
    AllocationProperties,
    CallFailed,
    DeviceContext,
    FunctionMissing,
    Location,
)
from loader.cuda.port import Mapped
from loader.errors import DeviceUnavailable, LoadError, OutOfMemory


class Driver(DeviceContext):
    """The driver, with the context that torch uses too for one device: the CUDA device of `loader.cuda.port`.

    Args:
        ordinal: the device's number as this process counts those that it sees.

    Raises:
        DeviceUnavailable: there is no driver, it is too old, or there is no such device.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(_open_library(), ordinal)
        self._place = torch.device("cuda", ordinal)
        location = Location(ON_DEVICE, self.device)
        self._properties = AllocationProperties(type=PINNED, handle_types=DESCRIPTOR, location=location)

    def free_bytes(self) -> int:
        """Memory that is free on the device, for whoever asks first."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def shared_granularity(self) -> int:
        """Sizes of memory that can be shared are multiples of it, in bytes."""
        return self.granularity(self._properties)

    def create(self, nbytes: int) -> int:
        """Device memory that can be shared; its handle, to be released once it is mapped.

        Raises:
            OutOfMemory: the device has none left.
        """
        handle = ctypes.c_ulonglong()
        self.call("cuMemCreate", ctypes.byref(handle), nbytes, ctypes.byref(self._properties), 0)
        return handle.value

    def take(self, descriptor: int) -> int:
        """The handle of memory that a descriptor stands for, to be released once it is mapped."""
        handle = ctypes.c_ulonglong()
        self.call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), DESCRIPTOR
        )
        return handle.value

    def release(self, handle: int) -> None:
        """Give up a handle that isn't mapped."""
        self.call("cuMemRelease", handle)

    def map(self, handle: int, nbytes: int, *, writable: bool = True) -> int:
        """Put memory behind new addresses; the first. From then on the mapping keeps it, and the handle is released.

        What isn't writable can't be written by anything that runs on the device: a kernel that tries ends in an error.
        """
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
        try:
            self._allow(address.value, nbytes, READ_WRITE if writable else READ_ONLY)
        except LoadError:
            self.unmap(address.value, nbytes)
            raise
        return address.value

    def protect(self, address: int, nbytes: int) -> None:
        """Have nothing written through a mapping any more."""
        self._allow(address, nbytes, READ_ONLY)

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo it; the memory goes with its last mapping and descriptor."""
        self.call("cuMemUnmap", address, nbytes)
        self.call("cuMemAddressFree", address, nbytes)

    def _allow(self, address: int, nbytes: int, access: int) -> None:
        allowed = AccessDescription(Location(ON_DEVICE, self.device), access)
        self.call("cuMemSetAccess", address, nbytes, ctypes.byref(allowed), 1)

    def copy_to_device(self, moves: list[tuple[int, int, int]]) -> None:
        """Copy page-locked host memory to the device; returns when all of it is there.

        Args:
            moves: each the device's address, the host's address, and how many bytes.
        """
        self._copy("cuMemcpyHtoDAsync_v2", moves)

    def reach(self, address: int, nbytes: int) -> None:
        """Let this device read memory that is mapped for another one, over the link between the two.

        Raises:
            DeviceUnavailable: they have none.
        """
        self._allow(address, nbytes, READ_ONLY)

    def copy_between(self, moves: list[tuple[int, int, int]]) -> None:
        """Copy device memory that this device reaches to its own; returns when all of it is there.

        Args:
            moves: each the address to copy to, the address to copy from, and how many bytes.
        """
        self._copy("cuMemcpyDtoDAsync_v2", moves)

    def _copy(self, function: str, moves: list[tuple[int, int, int]]) -> None:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
        try:
            for target, source, nbytes in moves:
                self.call(function, target, source, nbytes, stream)
        finally:
            # Also after an error: nothing may be on its way when either side's memory goes.
            self.call("cuStreamSynchronize", stream)
            self.call("cuStreamDestroy_v2", stream)

    def wait(self) -> None:
        """Wait for all that this process has queued on the device."""
        self.call("cuCtxSynchronize")

    def tensor(self, memory: Mapped) -> torch.Tensor:
        """The bytes of memory that is mapped, as a tensor that keeps the mapping."""
        return torch.as_tensor(memory, device=self._place)

    def trim(self) -> None:
        """Give back what torch has left in this process's cache of the device's memory."""
        with torch.cuda.device(self._place):
            torch.cuda.empty_cache()

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            OutOfMemory: it found no memory.
            DeviceUnavailable: another failure.
        """
        _call(self._library, name, *arguments)


def device_uuids() -> list[str]:
    """The ids of all devices that this process sees, in their order. No context is made.

    Raises:
        DeviceUnavailable: there is no driver.
    """
    opened = _open_library()
    _call(opened, "cuInit", 0)
    count = ctypes.c_int()
    _call(opened, "cuDeviceGetCount", ctypes.byref(count))
    devices = [ctypes.c_int() for _ in range(count.value)]
    for ordinal, device in enumerate(devices):
        _call(opened, "cuDeviceGet", ctypes.byref(device), ordinal)
    return [_uuid_of(opened, device.value) for device in devices]


def _uuid_of(opened: ctypes.CDLL, device: int) -> str:
    raw = ctypes.create_string_buffer(UUID_BYTES)
    _call(opened, "cuDeviceGetUuid", raw, device)
    return raw.raw.hex()


def _open_library() -> ctypes.CDLL:
    try:
        return library.open_library()
    except OSError:
        raise DeviceUnavailable(
            "there is no CUDA driver (libcuda.so.1)", hint="check `nvidia-smi`, or do without --cuda"
        ) from None
    except FunctionMissing as name:
        raise DeviceUnavailable(f"this CUDA driver has no {name}", hint="install a newer driver") from None


def _call(opened: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        library.call(opened, name, *arguments)
    except CallFailed as failed:
        if failed.out_of_memory:
            raise OutOfMemory(str(failed), hint="free memory on the device, or take another one") from None
        raise DeviceUnavailable(str(failed)) from None
