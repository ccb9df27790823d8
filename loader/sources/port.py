"""What a load wants of a place that holds a checkpoint's bytes. Files are one; others may stand beside them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from loader.checkpoint import Checkpoint


class Tier(StrEnum):
    """Where the bytes of a load came from, the fastest first."""

    SIBLING = "Sibling"
    """Memory of a device of this host that holds the same checkpoint."""
    STAGED = "Staged"
    """Host memory that a stage daemon holds."""
    TMPFS = "Tmpfs"
    PAGE_CACHE = "PageCache"
    DISK = "Disk"
    NETWORK = "Network"
    FILE = "File"
    """Some file; what is behind it can't be told."""


class Fallback(StrEnum):
    """A slower way that a load had to take, and says so."""

    DIRECT_REFUSED = "DirectRefused"
    """The file system doesn't take O_DIRECT; reads went through the page cache."""
    NUMA_UNBOUND = "NumaUnbound"
    """Page-locked memory couldn't be put on the device's own NUMA node."""
    GDS_NO_DRIVER = "GdsNoDriver"
    """GPUDirect Storage was asked for, and the kernel has no driver for it."""
    GDS_REFUSED = "GdsRefused"
    """GPUDirect Storage was asked for, and its library or some file's file system doesn't take part; the log says which."""
    SIBLING_MISSING = "SiblingMissing"
    """No device with a direct link holds all of what is wanted; the rest came from the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """What a probe found.

    Attributes:
        tier: the tier of the slowest shard.
        cached_share: share of the sampled bytes that were in memory, 0 to 1; None where the kernel doesn't tell.
    """

    tier: Tier
    cached_share: float | None


class Reader(Protocol):
    """The shards of one checkpoint, open for reading by any number of threads."""

    @property
    def fallbacks(self) -> frozenset[Fallback]:
        """Slower ways that were taken so far."""
        ...

    @property
    def resident(self) -> Mapping[str, object]:
        """Bytes that needn't be read, for a device holds them: by tensor, a torch tensor of one dimension, or of a row per run."""
        ...

    def read(self, file: str, begin: int, buffers: Sequence[memoryview]) -> None:
        """Fill the buffers, in order, with the file's bytes from begin on.

        Raises:
            LoadError: not all of them could be read.
        """
        ...

    def descriptor(self, file: str) -> int | None:
        """An open file that has the shard's bytes where the shard has them, for copiers that read themselves; None where `read` must.

        It stays the reader's to close.
        """
        ...

    def read_past_cache(self, file: str, begin: int, nbytes: int, slot: memoryview) -> int:
        """Read into a page-aligned buffer past the page cache, where that can be done; where in it the bytes begin.

        Args:
            file: name of the shard.
            begin: first byte.
            nbytes: how many.
            slot: at least two pages larger than nbytes.

        Raises:
            LoadError: not all of them could be read.
        """
        ...

    def nearness(self, ranges: Iterable[tuple[str, int, int]]) -> Nearness:
        """How near the bytes are: per shard its name and the first and last-plus-one byte that will be read."""
        ...

    def verify(self) -> None:
        """Check that every shard is still what it was when its header was read.

        Raises:
            FileChanged: one is not.
        """
        ...


class Source(Protocol):
    """A place that holds checkpoints' bytes."""

    def open(self, checkpoint: Checkpoint) -> AbstractContextManager[Reader]:
        """Open the shards of a checkpoint.

        Raises:
            LoadError: they can't be had here.
        """
        ...
