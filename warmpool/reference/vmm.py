"""Device memory at a fixed address that can be given back to the driver and taken again in milliseconds.

An ordinary allocation has another address each time, which breaks captured CUDA graphs, and it is there as a whole or not at all:
one that others have just given back takes long. CUDA's virtual memory management (driver API, `cuMemAddressReserve` and what follows it in the CUDA Driver API manual,
"Virtual Memory Management") separates the two: an address range is reserved once, and physical memory is put behind it and taken
away chunk by chunk. Chunks are mapped in order from the start of the range, so what can be used is always its first so many bytes.
"""

import ctypes
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from loader.cuda.library import (
    ON_DEVICE,
    PINNED,
    READ_WRITE,
    AccessDescription,
    AllocationProperties,
    Location,
)
from warmpool.reference.driver import CudaDriver, DriverError, OutOfDeviceMemory, Unsupported

_log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 20
"""Memory that is mapped at once: on an H200 smaller chunks take longer per byte, both to map and to unmap."""
RETRY_SECONDS = 0.1
"""Pause before memory that the device refused is asked for again."""
_JOIN_SECONDS = 10.0

_SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED


class Mapper(Protocol):
    """Puts physical memory behind addresses of one device."""

    @property
    def granularity(self) -> int:
        """Sizes and addresses are multiples of it, in bytes."""

    def enter(self) -> None:
        """Make the calling thread one that may call the rest."""

    def free_bytes(self) -> int:
        """Physical memory that is free on the device."""

    def reserve(self, nbytes: int) -> int:
        """Reserve an address range; returns its start."""

    def unreserve(self, address: int, nbytes: int) -> None:
        """Give a range back that nothing is mapped to."""

    def map(self, address: int, nbytes: int) -> None:
        """Put new memory behind a part of a reserved range.

        Raises:
            OutOfDeviceMemory: there is none left; nothing has changed.
            DriverError: another failure; nothing has changed.
        """

    def unmap(self, address: int, nbytes: int) -> None:
        """Give back the memory behind a part of a range that consists of whole mappings."""


class CudaMapper:
    """The CUDA driver as a `Mapper`.

    Args:
        driver: for the device.

    Raises:
        Unsupported: the device can't map memory.
    """

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        if not driver.attribute(_SUPPORTED):
            raise Unsupported(f"CUDA device {driver.device} doesn't support virtual memory management")
        location = Location(ON_DEVICE, driver.device)
        self._properties = AllocationProperties(type=PINNED, location=location)
        self._access = AccessDescription(location, READ_WRITE)
        self._granularity = driver.granularity(self._properties)

    @property
    def granularity(self) -> int:
        """Sizes and addresses are multiples of it, in bytes."""
        return self._granularity

    def enter(self) -> None:
        """Make the device's context the calling thread's."""
        self._driver.enter()

    def free_bytes(self) -> int:
        """Physical memory that is free on the device, for whoever asks first."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def reserve(self, nbytes: int) -> int:
        """Reserve an address range; returns its start."""
        address = ctypes.c_ulonglong()
        self._driver.call("cuMemAddressReserve", ctypes.byref(address), nbytes, 0, 0, 0)
        return address.value

    def unreserve(self, address: int, nbytes: int) -> None:
        """Give a range back that nothing is mapped to."""
        self._driver.call("cuMemAddressFree", address, nbytes)

    def map(self, address: int, nbytes: int) -> None:
        """Put new memory behind a part of a reserved range, for reading and writing by this device.

        Raises:
            OutOfDeviceMemory: there is none left; nothing has changed.
            DriverError: another failure; nothing has changed.
        """
        handle = self._create(nbytes)
        try:
            self._driver.call("cuMemMap", address, nbytes, 0, handle, 0)
        finally:
            # From now on the mapping alone keeps the memory: unmapping it gives it back.
            self._driver.call("cuMemRelease", handle)
        try:
            self._driver.call("cuMemSetAccess", address, nbytes, ctypes.byref(self._access), 1)
        except DriverError:
            with suppress(DriverError):
                self._driver.call("cuMemUnmap", address, nbytes)
            raise

    def unmap(self, address: int, nbytes: int) -> None:
        """Give back the memory behind a part of a range that consists of whole mappings."""
        self._driver.call("cuMemUnmap", address, nbytes)

    def _create(self, nbytes: int) -> ctypes.c_ulonglong:
        """Take memory; its handle, which is to be released once it is mapped."""
        handle = ctypes.c_ulonglong()
        self._driver.call("cuMemCreate", ctypes.byref(handle), nbytes, ctypes.byref(self._properties), 0)
        return handle


Growth = Callable[[], None]
"""Called on another thread whenever more memory can be used."""


def ignore_growth() -> None:
    """Take no notice that more memory can be used."""


class FixedRange:
    """A reserved address range with memory behind its first `taken_bytes` bytes.

    `take` puts the first chunk there at once, and a thread of its own the others. One thread at a time may call `take` and
    `give_back`; `taken_bytes` may be read anywhere.

    Args:
        mapper: maps.
        nbytes: the size that is wanted; filled up to the device's granularity.
        chunk_bytes: memory that is mapped at once, likewise.
    """

    def __init__(self, mapper: Mapper, nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._mapper = mapper
        self.nbytes = _filled(nbytes, mapper.granularity)
        self._chunk_bytes = _filled(chunk_bytes, mapper.granularity)
        self.address = mapper.reserve(self.nbytes)
        self._taken_bytes = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._complete = threading.Event()

    @property
    def taken_bytes(self) -> int:
        """How much of the range's beginning has memory behind it."""
        return self._taken_bytes

    def take(self, grown: Growth = ignore_growth) -> None:
        """Take memory for the whole range: the first chunk now, the others in the background. Taking it twice is taking it once.

        What is there is asked for first, so that a range that doesn't fit takes nothing. Should others take the memory in
        between, the rest is asked for again and again, and `taken_bytes` says how far it has come.

        Args:
            grown: called on the background thread after each further chunk.

        Raises:
            OutOfDeviceMemory: less is free than the range needs; nothing was taken.
            DriverError: another failure; nothing was taken.
        """
        if self._taken_bytes > 0:
            return
        self._mapper.enter()
        free = self._mapper.free_bytes()
        if free < self.nbytes:
            raise OutOfDeviceMemory(f"{free / 2**20:.0f} MiB are free on the device")
        self._complete.clear()
        self._map_next()
        if self._taken_bytes == self.nbytes:
            self._complete.set()
            return
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._take_rest, args=(grown,), name="device-memory", daemon=True
        )
        self._thread.start()

    def wait_complete(self, timeout_seconds: float) -> bool:
        """Wait until the whole range has memory; whether it has."""
        return self._complete.wait(timeout_seconds)

    def give_back(self) -> None:
        """Return all memory to the device; the addresses stay reserved. Giving it back twice is giving it back once.

        Nothing may be using it any more.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                raise DriverError("a mapping call doesn't return; the memory can't be given back")
            self._thread = None
        if self._taken_bytes > 0:
            self._mapper.unmap(self.address, self._taken_bytes)
            self._taken_bytes = 0

    def close(self) -> None:
        """Return the memory and the addresses. The range can't be used afterwards."""
        self.give_back()
        self._mapper.unreserve(self.address, self.nbytes)

    def _map_next(self) -> None:
        nbytes = min(self._chunk_bytes, self.nbytes - self._taken_bytes)
        self._mapper.map(self.address + self._taken_bytes, nbytes)
        self._taken_bytes += nbytes

    def _take_rest(self, grown: Growth) -> None:
        told = False
        try:
            self._mapper.enter()
            while self._taken_bytes < self.nbytes and not self._stop.is_set():
                try:
                    self._map_next()
                except OutOfDeviceMemory as error:
                    if not told:
                        _log.warning("%s of %s bytes taken: %s", self._taken_bytes, self.nbytes, error)
                        told = True
                    self._stop.wait(RETRY_SECONDS)
                else:
                    grown()
        except DriverError:
            # The device itself is in trouble, and computing will say so. What is there stays usable.
            _log.exception("%s of %s bytes taken, and no more will be", self._taken_bytes, self.nbytes)
            return
        if self._taken_bytes == self.nbytes:
            self._complete.set()


def _filled(nbytes: int, granularity: int) -> int:
    return -(-nbytes // granularity) * granularity
