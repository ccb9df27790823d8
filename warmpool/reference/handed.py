"""Memory of this engine's own that the stage daemon fills: it is handed over by descriptor, chunk by chunk.

A descriptor keeps memory from being given back, so all of them are closed once the weights are there; what is mapped later, after parking,
has none.
"""

import ctypes
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from loader.cuda.library import DESCRIPTOR, ON_DEVICE, PINNED, AllocationProperties, Location
from loader.stage.layout import Move
from warmpool.reference.driver import CudaDriver, DriverError, OutOfDeviceMemory
from warmpool.reference.vmm import CudaMapper


@dataclass(frozen=True, slots=True)
class Chunk:
    """Memory that can be handed over.

    Attributes:
        address: where it begins.
        nbytes: its size.
        descriptor: what stands for it.
    """

    address: int
    nbytes: int
    descriptor: int


class SharingMapper(CudaMapper):
    """Maps memory that can be handed over, until it is told that all is there.

    Args:
        driver: for the device.

    Attributes:
        uuid: the device's, in hexadecimal.
        chunks: what can be handed over.
        refused: why nothing can, by the driver; empty if it can.
    """

    def __init__(self, driver: CudaDriver) -> None:
        super().__init__(driver)
        self._plain = self._properties
        self.uuid = driver.uuid
        location = Location(ON_DEVICE, driver.device)
        self._sharing = True
        self._descriptor = -1
        self.chunks: list[Chunk] = []
        self.refused = ""
        self._properties = AllocationProperties(type=PINNED, handle_types=DESCRIPTOR, location=location)
        try:
            self._granularity = max(self._granularity, driver.granularity(self._properties))
        except DriverError as error:
            self._refuse(error)

    def map(self, address: int, nbytes: int) -> None:
        """Put new memory behind a part of a reserved range, and keep a descriptor of it while it may be handed over."""
        self._descriptor = -1
        try:
            super().map(address, nbytes)
        except DriverError:
            self._close(self._descriptor)
            raise
        if self._descriptor >= 0:
            self.chunks.append(Chunk(address, nbytes, self._descriptor))

    def stop_sharing(self) -> None:
        """Close all descriptors: nobody else fills this memory any more."""
        self._sharing = False
        self._properties = self._plain
        for chunk in self.chunks:
            self._close(chunk.descriptor)
        self.chunks.clear()

    def _create(self, nbytes: int) -> ctypes.c_ulonglong:
        if not self._sharing:
            return super()._create(nbytes)
        handle: ctypes.c_ulonglong | None = None
        try:
            handle = super()._create(nbytes)
            self._descriptor = self._driver.export(handle.value)
        except OutOfDeviceMemory:
            if handle is not None:
                self._driver.call("cuMemRelease", handle)
            raise
        except DriverError as error:
            self._refuse(error)
        return super()._create(nbytes) if handle is None else handle

    def _refuse(self, error: DriverError) -> None:
        """Go on with memory that can't be handed over: weights can come in other ways."""
        self.refused = str(error)
        self.stop_sharing()

    @staticmethod
    def _close(descriptor: int) -> None:
        if descriptor >= 0:
            os.close(descriptor)


def moves_into(chunk: Chunk, moves: Iterable[Move]) -> Iterator[Move]:
    """The parts of copies that end in a chunk, by their place in it.

    Args:
        chunk: where to.
        moves: each a shard, the first byte in it, how many, and the address where they go.
    """
    end = chunk.address + chunk.nbytes
    for file, begin, nbytes, address in moves:
        first, last = max(address, chunk.address), min(address + nbytes, end)
        if first < last:
            yield file, begin + first - address, last - first, first - chunk.address


def left_by(chunk: Chunk, moves: Iterable[Move]) -> Iterator[Move]:
    """What copies are left once a chunk has its part of them."""
    end = chunk.address + chunk.nbytes
    for file, begin, nbytes, address in moves:
        before = min(nbytes, max(0, chunk.address - address))
        if before:
            yield file, begin, before, address
        after = min(nbytes, max(0, address + nbytes - end))
        if after:
            yield file, begin + nbytes - after, after, address + nbytes - after
