"""Device memory that processes share by descriptor, as tensors.

A descriptor crosses container borders over a Unix socket and needs no common process ids, which CUDA's older handles do.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from loader.cuda.port import Device
from loader.errors import LoaderError


def _nothing() -> None:
    """What follows unmapping, where nothing does."""


class SharedMemory:
    """Device memory mapped in this process; unmapped with the last tensor over it.

    Args:
        device: which has it.
        handle: from `Device.create` or `Device.take`; used up here.
        nbytes: its size, a multiple of the granularity.
        writable: whether the device may write to it through this mapping.
        unmapped: called when it is gone, or can't be made.
    """

    def __init__(
        self,
        device: Device,
        handle: int,
        nbytes: int,
        *,
        writable: bool = True,
        unmapped: Callable[[], None] = _nothing,
    ) -> None:
        self._device = device
        self._unmapped = unmapped
        self.nbytes = nbytes
        self.address = device.map(handle, nbytes, writable=writable)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How torch finds the memory; a tensor made of it keeps this object."""
        # torch refuses what says that it is read-only.
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 2,
        }

    def __del__(self) -> None:
        try:
            if hasattr(self, "address"):
                # A process that ends may have lost its driver already, and with it all mappings.
                with suppress(LoaderError):
                    self._device.enter()
                    self._device.wait()  # for whoever computes with it still
                    self._device.unmap(self.address, self.nbytes)
        finally:
            self._unmapped()


@dataclass(frozen=True, slots=True)
class Exported:
    """New device memory.

    Attributes:
        data: its bytes, as a tensor.
        nbytes: what was taken for it, a multiple of the granularity.
        descriptor: what stands for it elsewhere; the caller's to close.
    """

    data: torch.Tensor
    nbytes: int
    descriptor: int


def allocate_shared(device: Device, nbytes: int) -> Exported:
    """Take device memory that can be shared.

    Raises:
        OutOfMemory: the device has no room for it.
    """
    device.enter()
    size = shared_size(device, nbytes)
    handle, descriptor = create_exported(device, size)
    try:
        memory = SharedMemory(device, handle, size)
        return Exported(device.tensor(memory)[:nbytes], size, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def shared_size(device: Device, nbytes: int) -> int:
    """How much is taken for this many bytes, and at least one."""
    granularity = device.shared_granularity()
    return -(-max(1, nbytes) // granularity) * granularity


def create_exported(device: Device, nbytes: int) -> tuple[int, int]:
    """New memory: its handle, and a descriptor that is the caller's to close.

    Raises:
        OutOfMemory: the device has no room for it.
    """
    handle = device.create(nbytes)
    try:
        return handle, device.export(handle)
    except BaseException:
        device.release(handle)
        raise
