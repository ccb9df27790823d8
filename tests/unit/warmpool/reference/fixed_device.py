"""A stand-in for a device that puts shared memory always at the same address, and what both it and CUDA's must do."""

import ctypes
import mmap
import os

import torch

from loader.cuda.port import Device, Mapped
from loader.cuda.shared import SharedMemory, create_exported, shared_size
from loader.errors import DeviceUnavailable
from tests.unit.loader.stage_device import MemoryFileDevice

_MAP_FIXED = 0x10
_PROT_NONE = 0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


class FixedMemoryDevice(MemoryFileDevice):
    """Memory files behind addresses that stay reserved."""

    def __init__(self) -> None:
        super().__init__()
        self._range: tuple[int, int] | None = None

    def map(self, handle: int, nbytes: int, *, writable: bool = True) -> int:
        assert not writable
        try:
            if self._range is None:
                address = _LIBC.mmap(None, nbytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
                self._range = (address, nbytes)
            begin, size = self._range
            if size != nbytes:
                raise DeviceUnavailable("another size")
            shared = mmap.MAP_SHARED | _MAP_FIXED
            assert _LIBC.mmap(begin, nbytes, mmap.PROT_READ, shared, handle, 0) == begin
            return begin
        finally:
            os.close(handle)

    def unmap(self, address: int, nbytes: int) -> None:
        nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        assert _LIBC.mmap(address, nbytes, _PROT_NONE, nothing, -1, 0) == address

    def tensor(self, memory: Mapped) -> torch.Tensor:
        data = (ctypes.c_char * memory.nbytes).from_address(memory.address)
        return torch.frombuffer(data, dtype=torch.uint8)


def shared(device: Device, nbytes: int) -> tuple[int, int]:
    """Somebody's memory on a device; a descriptor of it, and its size."""
    size = shared_size(device, nbytes)
    handle, descriptor = create_exported(device, size)
    device.release(handle)
    return descriptor, size


class FixedDeviceContract:
    """What a device must do at which weights are attached. `fixed` maps, `giver` is the same device at whoever shares."""

    def test_memory_comes_back_to_the_same_address_under_the_same_tensor(
        self, fixed: Device, giver: Device
    ) -> None:
        descriptor, size = shared(giver, 1)
        try:
            first = SharedMemory(fixed, fixed.take(descriptor), size, writable=False)
            tensor = fixed.tensor(first)
            before, address = tensor.clone(), first.address
            del first  # nobody keeps it: it is unmapped, though there is a tensor
            again = SharedMemory(fixed, fixed.take(descriptor), size, writable=False)
            assert again.address == address == tensor.data_ptr()
            assert torch.equal(tensor, before)
        finally:
            os.close(descriptor)

    def test_memory_of_another_size_is_refused_and_nothing_has_changed(
        self, fixed: Device, giver: Device
    ) -> None:
        descriptor, size = shared(giver, 1)
        larger, more = shared(giver, size + 1)
        try:
            SharedMemory(fixed, fixed.take(descriptor), size, writable=False)
            try:
                SharedMemory(fixed, fixed.take(larger), more, writable=False)
            except DeviceUnavailable:
                pass
            else:
                raise AssertionError("it was mapped")
            SharedMemory(fixed, fixed.take(descriptor), size, writable=False)
        finally:
            os.close(descriptor)
            os.close(larger)
