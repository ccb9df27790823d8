"""What a look asks of one GPU, behind a port: a real driver's adapters are in `cuda` and `counters`."""

from __future__ import annotations

from typing import Protocol

from warmpool.nodehealth.preflight.findings import Counters
from warmpool.nodehealth.preflight.march import Memory


class DriverFailed(Exception):
    """A call of a GPU's driver failed; the text says which.

    Attributes:
        by_memory: because of a memory error that wasn't corrected.
    """

    def __init__(self, text: str, *, by_memory: bool = False) -> None:
        super().__init__(text)
        self.by_memory = by_memory


class Untestable(DriverFailed):
    """The driver can't run the test, which engines may not need: they bring code of their own."""


class Gpu(Memory, Protocol):
    """One GPU."""

    @property
    def uuid(self) -> str:
        """Which one, as NVML and the kubelet name it."""

    def sizes(self) -> tuple[int, int]:
        """Return how much of its memory is free, and how much it has, in bytes."""

    def counters(self) -> Counters:
        """Return what it tells of its memory."""
