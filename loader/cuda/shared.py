"""Device memory that processes share by descriptor, as tensors.

A descriptor crosses container borders over a Unix socket and needs no common process ids, which CUDA's older handles do.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch

from loader.cuda.driver import Driver


class SharedMemory:
    """Device memory mapped in this process; unmapped with the last tensor over it.

    Args:
        driver: of its device.
        handle: from `Driver.create` or `Driver.take`; released here.
        nbytes: its size, a multiple of the granularity.
    """

    def __init__(self, driver: Driver, handle: int, nbytes: int) -> None:
        self._driver = driver
        self.nbytes = nbytes
        self.address = driver.map(handle, nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How torch finds the memory; a tensor made of it keeps this object."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 2,
        }

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._driver.enter()
            self._driver.unmap(self.address, self.nbytes)


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


def allocate_shared(driver: Driver, nbytes: int, device: torch.device) -> Exported:
    """Take device memory that can be shared.

    Raises:
        OutOfMemory: the device has no room for it.
    """
    driver.enter()
    granularity = driver.shared_granularity()
    size = -(-nbytes // granularity) * granularity
    handle = driver.create(size)
    descriptor = driver.export(handle)
    try:
        memory = SharedMemory(driver, handle, size)
    except BaseException:
        os.close(descriptor)
        raise
    return Exported(torch.as_tensor(memory, device=device)[:nbytes], size, descriptor)
