"""Which device of the host a checkpoint is copied from, where one holds it already. PURE.

A copy on the same device is fastest, then one that a direct link leads to. Where devices have no direct link, copies go through
host memory and are slower than reading from there, so such a holder counts as none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from loader.checkpoint import Checkpoint, FileIdentity

Version = Mapping[str, tuple[str, FileIdentity]]
"""By shard, the digest of its header and which file it was."""


class Link(IntEnum):
    """How a device reaches another one's memory; more is faster."""

    NONE = 0
    """Not directly."""
    PEER = 1
    """By NVLink, or by PCIe without the host's memory."""
    SAME = 2
    """It is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A checkpoint in a device's memory.

    Attributes:
        device: what names the device.
        version: which files it was loaded from.
        names: the tensors that are there, whole and as in the files.
        copies: loads that are copying from it right now.
    """

    device: str
    version: Version
    names: frozenset[str]
    copies: int = 0


def version_of(checkpoint: Checkpoint) -> Version:
    """Which files a checkpoint is made of."""
    return {file: (shard.header_digest, shard.identity) for file, shard in checkpoint.shards.items()}


def choose(wanted: Checkpoint, holdings: Sequence[Holding], links: Mapping[str, Link]) -> Holding | None:
    """The holding to copy from; None where none will do.

    Only the very files that are wanted count. Of those the one that has most of the wanted tensors is taken, then the one with
    the fastest link, then the least busy, then the first.

    Args:
        wanted: with whatever parts.
        holdings: of this host.
        links: by device, how it is reached from where the tensors are wanted; not at all where it isn't listed.
    """
    version = version_of(wanted)
    names = frozenset(wanted.tensors)

    def worth(holding: Holding) -> tuple[int, Link, int]:
        return len(holding.names & names), links.get(holding.device, Link.NONE), -holding.copies

    usable = [
        holding
        for holding in holdings
        if links.get(holding.device, Link.NONE) and holding.names & names and _holds(holding, version)
    ]
    return max(usable, key=worth, default=None)


def _holds(holding: Holding, version: Version) -> bool:
    return all(holding.version.get(file) == which for file, which in version.items())
