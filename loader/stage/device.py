"""The stage daemon's devices: copies from its memory into theirs, at the speed of the link.

Each costs the daemon a context, whose memory engines can't have; all are opened when the daemon starts, so that the figure is known
before anybody plans with it. Memory of a checkpoint is page-locked once, for all devices.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock

import torch

from loader.cuda.nvml import plain_id
from loader.cuda.opening import Opened
from loader.cuda.port import Device
from loader.errors import DestinationMismatch, DeviceUnavailable
from loader.stage.layout import Move, cut, joined
from loader.stage.pool import Staged

_LOCKED_AT_ONCE_BYTES = 2 * 2**30
"""Page-locking holds up everybody else's calls of the driver, so it is done in pieces."""


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


class Devices:
    """The devices that the daemon has contexts on. Any thread may call it.

    Args:
        opened: all of them.
    """

    def __init__(self, opened: Iterable[Opened]) -> None:
        self.opened = tuple(opened)
        self._lock = RLock()  # memory may go, and be unlocked, while other memory is being locked
        self._locked: set[int] = set()

    def find(self, name: str) -> Device:
        """A device by its id, as CUDA or NVML write it, or by its number here.

        Raises:
            DeviceUnavailable: there is none of this name.
        """
        for each in self.opened:
            if name == str(each.ordinal) or plain_id(name) == each.device.uuid:
                return each.device
        raise DeviceUnavailable(
            f"the stage daemon has no device {name!r}; it has {len(self.opened)}",
            hint="check the CUDA_VISIBLE_DEVICES of the daemon; `python -m loader stage list` shows its devices",
        )

    def lock(self, data: torch.Tensor) -> None:
        """Page-lock host memory until the tensor goes. Locking it twice is locking it once.

        Raises:
            DeviceUnavailable: the driver refuses.
            OutOfMemory: so much can't be locked.
        """
        if not self.opened:
            return
        device = self.opened[0].device
        device.enter()
        for address, nbytes in _pieces(data):
            with self._lock:
                if address in self._locked:
                    continue
                device.lock_pages(address, nbytes)
                self._locked.add(address)
            weakref.finalize(data, self._unlock, device, address).atexit = False

    def copy(self, staged: Staged, moves: list[Move], target: DeviceTarget) -> int:
        """Copy ranges of shards into memory of a client; the bytes copied.

        Args:
            staged: the checkpoint.
            moves: checked against the shards and the target's size.
            target: the client's memory, mapped for the time of the copy only.

        Raises:
            DeviceUnavailable: the device isn't seen here, or the driver refuses.
            OutOfMemory: the host's memory can't be page-locked.
        """
        with self.mapped(target) as (device, address):
            self.fill(device, staged, moves, address)
        return sum(nbytes for _, _, nbytes, _ in moves)

    @contextmanager
    def mapped(self, target: DeviceTarget) -> Iterator[tuple[Device, int]]:
        """Map memory of a client until the end of the block; its device, which is entered, and where the memory begins.

        Raises:
            DeviceUnavailable: the device isn't seen here, or the driver refuses.
        """
        device = self.find(target.uuid)
        device.enter()
        address = device.map(device.take(target.descriptor), target.nbytes)
        try:
            yield device, address
        finally:
            device.unmap(address, target.nbytes)

    def fill(self, device: Device, staged: Staged, moves: Iterable[Move], address: int) -> None:
        """Copy ranges of shards into memory that is mapped here.

        Args:
            device: which has the memory.
            staged: the checkpoint.
            moves: what goes where.
            address: where the memory begins.

        Raises:
            DeviceUnavailable: the driver refuses.
            OutOfMemory: the host's memory can't be page-locked.
        """
        hosts = {}
        for shard in staged.shards:
            self.lock(shard.data)
            hosts[shard.file] = shard.data.data_ptr()
        device.enter()
        device.copy_to_device(
            [
                (address + offset, hosts[file] + begin, nbytes)
                for file, begin, nbytes, offset in cut(joined(moves), _LOCKED_AT_ONCE_BYTES)
            ]
        )

    def _unlock(self, device: Device, address: int) -> None:
        with self._lock:
            self._locked.discard(address)
            device.enter()
            device.unlock_pages(address)


def check_moves(sizes: Mapping[str, int], moves: Iterable[Move], target_bytes: int) -> None:
    """See that every range is inside its shard and inside a target.

    Args:
        sizes: of the shards, in bytes.
        moves: what goes where.
        target_bytes: size of the target.

    Raises:
        DestinationMismatch: one isn't.
    """
    for file, begin, nbytes, offset in moves:
        if begin + nbytes > sizes.get(file, -1) or offset + nbytes > target_bytes:
            raise DestinationMismatch(
                f"a move of {nbytes} bytes doesn't fit its shard or its target", file=file
            )


def _pieces(data: torch.Tensor) -> list[tuple[int, int]]:
    """What is locked at once: addresses and sizes. No copy may cross from one to the next."""
    begin, nbytes = data.data_ptr(), data.numel()
    return [
        (begin + start, min(_LOCKED_AT_ONCE_BYTES, nbytes - start))
        for start in range(0, nbytes, _LOCKED_AT_ONCE_BYTES)
    ]
