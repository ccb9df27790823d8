"""Where large memory of a CUDA device comes from: mapped at a fixed address, or an allocation of torch's.

Mapped memory is the rule. Torch's allocator is for devices that can't map; its addresses change each time, so decode steps
can't be captured as CUDA graphs there. Which one it is stands in the start's record; nothing changes quietly.
"""

import logging
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from warmpool.reference.driver import CudaDriver, OutOfDeviceMemory, Unsupported
from warmpool.reference.errors import CannotStart, NotEnoughMemory
from warmpool.reference.vmm import CHUNK_BYTES, CudaMapper, FixedRange, Growth, Mapper

_log = logging.getLogger(__name__)


class ArenaKind(StrEnum):
    """Ways to take a device's memory."""

    AUTO = "auto"
    MAPPED = "mapped"
    ALLOCATED = "allocated"


class Arena(Protocol):
    """One stretch of device memory that can be given back and taken again."""

    @property
    def kind(self) -> ArenaKind:
        """How it takes memory."""

    @property
    def nbytes(self) -> int:
        """Its size once all of it is taken."""

    @property
    def taken_bytes(self) -> int:
        """How much of its beginning can be used now."""

    def take(self, grown: Growth) -> Tensor:
        """Take it, at least its beginning; `grown` is called on another thread whenever more can be used.

        Returns:
            The whole as bytes; only what is taken may be touched.

        Raises:
            NotEnoughMemory: the device has too little; nothing was taken.
        """

    def wait_taken(self, timeout_seconds: float) -> bool:
        """Wait until all of it is taken; whether it is."""

    def give_back(self) -> None:
        """Return all of it to the device. Nothing may be using it."""


def make_arena(kind: ArenaKind, nbytes: int, device: torch.device) -> Arena:
    """Choose where memory comes from. Nothing is taken yet.

    Args:
        kind: how; `auto` maps where the device can.
        nbytes: the size, filled up to whole pages of the device.
        device: a CUDA device with an index.

    Raises:
        CannotStart: mapping was asked for and the device can't.
    """
    if kind is ArenaKind.ALLOCATED:
        return AllocatedArena(nbytes, device)
    try:
        return MappedArena(nbytes, device)
    except Unsupported as error:
        if kind is ArenaKind.MAPPED:
            raise CannotStart(
                f"--kv-memory mapped: {error}", hint="use --kv-memory auto or allocated on this device"
            ) from error
        _log.warning("KV memory comes from torch's allocator, and no CUDA graphs are captured: %s", error)
        return AllocatedArena(nbytes, device)


class DeviceBytes:
    """What torch asks an object for that lies in a device's memory (CUDA array interface, version 3)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class MappedArena:
    """Memory behind a fixed address range.

    Args:
        nbytes: the size, filled up to whole pages of the device.
        device: with its index.
        what: what it is for, as messages name it.
        mapper: puts memory there; one that is made here if left out.
        chunk_bytes: memory that is mapped at once.

    Raises:
        Unsupported: the device can't map memory.
    """

    kind = ArenaKind.MAPPED

    def __init__(
        self,
        nbytes: int,
        device: torch.device,
        what: str = "KV memory",
        mapper: Mapper | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._device = device
        self._what = what
        self._range = FixedRange(mapper or CudaMapper(CudaDriver(device.index or 0)), nbytes, chunk_bytes)
        self._whole: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Its size once all of it is taken."""
        return self._range.nbytes

    @property
    def taken_bytes(self) -> int:
        """How much of its beginning can be used now."""
        return self._range.taken_bytes

    def take(self, grown: Growth) -> Tensor:
        """Take the first chunk now and the others in the background."""
        try:
            self._range.take(grown)
        except OutOfDeviceMemory as error:
            raise _not_enough(self._what, self.nbytes, str(error)) from error
        if self._whole is None:
            # Torch looks at the first byte only, so there must be memory behind it; the address never changes after that.
            self._whole = torch.as_tensor(
                DeviceBytes(self._range.address, self._range.nbytes), device=self._device
            )
        return self._whole

    def wait_taken(self, timeout_seconds: float) -> bool:
        """Wait until the background has taken all of it; whether it has."""
        return self._range.wait_complete(timeout_seconds)

    def give_back(self) -> None:
        """Return the memory to the device; the addresses stay."""
        torch.cuda.synchronize(self._device)
        self._range.give_back()


class AllocatedArena:
    """One allocation of torch's, all of it at once."""

    kind = ArenaKind.ALLOCATED

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.nbytes = nbytes
        self._device = device
        self._whole: Tensor | None = None

    @property
    def taken_bytes(self) -> int:
        """All or nothing."""
        return 0 if self._whole is None else self.nbytes

    def take(self, grown: Growth) -> Tensor:
        """Allocate it; it never grows."""
        del grown
        if self._whole is None:
            try:
                self._whole = torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
            except torch.OutOfMemoryError as error:
                raise _not_enough("KV memory", self.nbytes, str(error)) from error
        return self._whole

    def wait_taken(self, timeout_seconds: float) -> bool:
        """All or nothing: there is nothing to wait for."""
        del timeout_seconds
        return self._whole is not None

    def give_back(self) -> None:
        """Free it and empty torch's cache, so that the driver and with it other processes get it."""
        self._whole = None
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def _not_enough(what: str, nbytes: int, why: str) -> NotEnoughMemory:
    return NotEnoughMemory(
        f"{what} of {nbytes / 2**20:.0f} MiB can't be allocated: {why}",
        hint="lower --max-num-seqs or --max-model-len, or free memory held by others on this device",
    )
