"""The stage daemon's way into device memory that a client hands over: one copy, at the speed of the link.

The client's memory is mapped for the time of the copy only. Page-locking is paid once per checkpoint, at its first copy to any
device, and undone when the checkpoint goes. Each device that is copied to costs a CUDA context of the daemon's.
"""

import weakref
from dataclasses import dataclass
from threading import RLock

import torch

from loader.cuda.driver import Driver, ordinal_of
from loader.stage.pool import Staged
from loader.stage.wire import Move


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTarget:
    """Device memory of a client.

    Attributes:
        descriptor: what stands for it.
        nbytes: its size.
        uuid: its device, in hexadecimal.
    """

    descriptor: int
    nbytes: int
    uuid: str


class DeviceCopier:
    """Copies from staged checkpoints to devices. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = RLock()  # memory may go, and be unlocked, while other memory is being locked
        self._drivers: dict[str, Driver] = {}
        self._locked: set[int] = set()

    def copy(self, staged: Staged, moves: list[Move], target: DeviceTarget) -> int:
        """Copy ranges of shards; the bytes copied.

        Args:
            staged: the checkpoint.
            moves: checked against the shards and the target's size.
            target: the client's memory.

        Raises:
            DeviceUnavailable: the device isn't seen here, or the driver refuses.
            OutOfMemory: there is no room for a context, or the host's memory can't be page-locked.
        """
        driver = self._driver(target.uuid)
        driver.enter()
        hosts = {}
        for shard in staged.shards:
            self._lock_pages(driver, shard.data)
            hosts[shard.file] = shard.data.data_ptr()
        address = driver.map(driver.take(target.descriptor), target.nbytes)
        try:
            driver.copy_to_device(
                [(address + offset, hosts[file] + begin, nbytes) for file, begin, nbytes, offset in moves]
            )
        finally:
            driver.unmap(address, target.nbytes)
        return sum(nbytes for _, _, nbytes, _ in moves)

    def _driver(self, uuid: str) -> Driver:
        with self._lock:
            if uuid not in self._drivers:
                self._drivers[uuid] = Driver(ordinal_of(uuid))
            return self._drivers[uuid]

    def _lock_pages(self, driver: Driver, data: torch.Tensor) -> None:
        address = data.data_ptr()
        with self._lock:
            if address in self._locked:
                return
            driver.lock_pages(address, data.numel())
            self._locked.add(address)
        weakref.finalize(data, self._unlock_pages, driver, address)

    def _unlock_pages(self, driver: Driver, address: int) -> None:
        with self._lock:
            self._locked.discard(address)
            driver.enter()
            driver.unlock_pages(address)
