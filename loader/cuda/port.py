"""What the stage daemon and its clients want of a device, however its driver is called: memory that processes share by descriptor.

A handle stands for memory before it is mapped; it is used up by `map`. Memory goes with its last mapping, handle and descriptor,
wherever those are: none of it outlives the processes that have them, however they end.
"""

from typing import Any, Protocol

import torch


class Mapped(Protocol):
    """Device memory that is mapped in this process for as long as this object is there."""

    @property
    def address(self) -> int:
        """Its first byte."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """How torch finds it on a CUDA device; a tensor that is made of it keeps the object."""


class Device(Protocol):
    """One device.

    Whatever the driver refuses is `DeviceUnavailable`, or `OutOfMemory` where there is none left; nothing has changed then.
    """

    @property
    def uuid(self) -> str:
        """Its id, in hexadecimal: the same in every process, whatever devices each of them sees."""

    def enter(self) -> None:
        """Make the calling thread one that may call the rest."""

    def free_bytes(self) -> int:
        """Memory that is free on it, for whoever asks first."""

    def shared_granularity(self) -> int:
        """Sizes of memory that can be shared are multiples of it, in bytes."""

    def create(self, nbytes: int) -> int:
        """Take memory that can be shared; its handle."""

    def export(self, handle: int) -> int:
        """A descriptor that stands for memory, for another process or this one; the caller's to close."""

    def take(self, descriptor: int) -> int:
        """The handle of memory that a descriptor stands for."""

    def release(self, handle: int) -> None:
        """Give up a handle that isn't mapped."""

    def map(self, handle: int, nbytes: int, *, writable: bool = True) -> int:
        """Put memory behind new addresses; the first. The handle is used up, also by a failure."""

    def protect(self, address: int, nbytes: int) -> None:
        """Have nothing written through a mapping any more."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Undo it."""

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Page-lock host memory, so that it is copied to every device at the speed of the link."""

    def unlock_pages(self, address: int) -> None:
        """Undo it, for memory that was locked from `address` on."""

    def copy_to_device(self, moves: list[tuple[int, int, int]]) -> None:
        """Copy page-locked host memory to it; return when all of it is there.

        Args:
            moves: each the device's address, the host's address, and how many bytes.
        """

    def reach(self, address: int, nbytes: int) -> None:
        """Let this device read memory that is mapped for another one, over a direct link between the two."""

    def copy_between(self, moves: list[tuple[int, int, int]]) -> None:
        """Copy device memory that this device reaches to its own; return when all of it is there.

        Args:
            moves: each the address to copy to, the address to copy from, and how many bytes.
        """

    def wait(self) -> None:
        """Wait for all that this process has queued on it."""

    def tensor(self, memory: Mapped) -> torch.Tensor:
        """The bytes of memory that is mapped, as a tensor that keeps the mapping."""

    def trim(self) -> None:
        """Give back what computing on it has left in this process's caches."""
