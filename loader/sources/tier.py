"""How near the bytes were when a load began, as well as the operating system will tell.

Two questions: what kind of file system is it (from the mount table), and how much of the payload is in the page cache
(reads of single bytes that the kernel must refuse rather than wait for a device: RWF_NOWAIT).
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from loader.sources.port import Nearness, Tier

SAMPLES = 128
"""Probed bytes per load: enough to tell 95 % from less within a few percent, at about 1 µs each."""
CACHED_SHARE = 0.95
"""From this share of sampled bytes on, the page cache is the tier."""

_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "overlay", "erofs", "squashfs"}
)
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "afs", "ocfs2", "gfs2"}
)


class OpenFiles(Protocol):
    """Open shards, as a probe wants them."""

    def path(self, file: str) -> str:
        """Absolute path of a shard."""
        ...

    def descriptor(self, file: str) -> int:
        """The open file of a shard."""
        ...


def probe(reader: OpenFiles, files: Iterable[tuple[str, int, int]], mount_table: str) -> Nearness:
    """Probe the payload that is about to be read.

    Args:
        reader: the open shards.
        files: per shard its name and the first and last-plus-one byte of its payload.
        mount_table: text of /proc/self/mountinfo; empty where there is none.
    """
    ranges = [(file, begin, end) for file, begin, end in files if end > begin]
    kinds = {file_system(mount_table, os.path.realpath(reader.path(file))) for file, _, _ in ranges}
    if kinds and kinds <= _MEMORY:
        return Nearness(tier=Tier.TMPFS, cached_share=1.0)
    cached_share = _cached_share(reader, ranges)
    if cached_share is not None and cached_share >= CACHED_SHARE:
        return Nearness(tier=Tier.PAGE_CACHE, cached_share=cached_share)
    if kinds & _NETWORK:
        return Nearness(tier=Tier.NETWORK, cached_share=cached_share)
    if kinds and kinds <= _LOCAL | _MEMORY and cached_share is not None:
        return Nearness(tier=Tier.DISK, cached_share=cached_share)
    return Nearness(tier=Tier.FILE, cached_share=cached_share)


def read_mount_table() -> str:
    """Text of this process's mount table; empty where the system has none to read."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def mounts(mount_table: str) -> Iterator[tuple[str, str]]:
    """Each mount of the table: its point, and what is behind the dash (type, source, options)."""
    for line in mount_table.splitlines():
        mount, _, about = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) >= 5 and about:  # noqa: PLR2004 - up to the mount point
            yield re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]), about


def file_system(mount_table: str, path: str) -> str:
    r"""The type of file system that a resolved absolute path lies on; empty if the table doesn't say.

    The table has one mount a line: ``id parent major:minor root mount-point options … - type source options``, with
    spaces in paths written as ``\040``. The longest mount point above the path wins, the later one of equals.
    """
    best, kind = -1, ""
    for mounted, about in mounts(mount_table):
        point = mounted.rstrip("/")
        if len(point) >= best and (path == point or path.startswith(point + "/")):
            best, kind = len(point), about.split(" ")[0]
    return kind


def _cached_share(reader: OpenFiles, ranges: list[tuple[str, int, int]]) -> float | None:
    nowait = getattr(os, "RWF_NOWAIT", None)
    total = sum(end - begin for _, begin, end in ranges)
    if nowait is None or total == 0:
        return None
    cached = probed = 0
    byte = bytearray(1)
    for file, begin, end in ranges:
        count = max(1, SAMPLES * (end - begin) // total)
        for sample in range(count):
            offset = begin + (end - begin - 1) * sample // max(1, count - 1)
            try:
                cached += os.preadv(reader.descriptor(file), [byte], offset, nowait)
            except BlockingIOError:
                pass
            except OSError:
                return None  # this file system doesn't support the flag
            probed += 1
    return cached / probed
