"""Which pages the host memory of a checkpoint comes in: of 2 MiB where they can be had, since those are page-locked several times faster.

Three ways lead to them, tried in this order: pages that somebody has reserved (`vm.nr_hugepages`), a tmpfs that is mounted with
`huge=`, and what the kernel puts together by itself for memory files (`shmem_enabled`). None is worth waiting for: where the kernel would
first have to move other memory out of the way, which can take longer than reading the checkpoint, small pages are taken. Whatever
wasn't had is told with the reason.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loader.sources.tier import mounts

HUGE_BYTES = 2 * 2**20
SMALL_BYTES = 4096
_WORTH_BYTES = 16 * HUGE_BYTES
"""The last page is filled in part only, so smaller shards would waste too much."""


class Way(StrEnum):
    """How memory is asked for."""

    RESERVED = "Reserved"
    TMPFS = "Tmpfs"
    TRANSPARENT = "Transparent"
    SMALL = "Small"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What was had.

    Attributes:
        nbytes: size of a page.
        way: how they were asked for.
        refused: why the ways before that gave none.
    """

    nbytes: int
    way: Way
    refused: Mapping[Way, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What the machine has.

    Attributes:
        reserved: bytes of reserved pages that nobody uses.
        mounts: directories of tmpfs that are mounted with huge= and can be written to.
        transparent: what the kernel does for memory files: `always`, `within_size`, `advise`, `never`, `force` or `deny`; empty if unknown.
        waits: whether asking for pages of 2 MiB may wait until other memory has been moved.
        whole: free bytes that lie in pieces of 2 MiB or more.
    """

    reserved: int
    mounts: tuple[str, ...]
    transparent: str
    waits: bool
    whole: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Ways to try, the best first, and why others aren't."""

    ways: tuple[Way, ...]
    refused: Mapping[Way, str]


def choose(supply: Supply, nbytes: int) -> Choice:
    """Ways to memory for a shard of this size."""
    if nbytes < _WORTH_BYTES:
        why = f"a shard of less than {_WORTH_BYTES >> 20} MiB"
        return Choice((Way.SMALL,), dict.fromkeys((Way.RESERVED, Way.TMPFS, Way.TRANSPARENT), why))
    refused = {
        way: why
        for way, why in (
            (Way.RESERVED, _reserved(supply, nbytes)),
            (
                Way.TMPFS,
                "" if supply.mounts else "no tmpfs with huge=always or within_size can be written to",
            ),
            (Way.TRANSPARENT, _transparent(supply, nbytes)),
        )
        if why
    }
    return Choice(tuple(way for way in Way if way not in refused), refused)


def _reserved(supply: Supply, nbytes: int) -> str:
    if supply.reserved >= padded(nbytes):
        return ""
    return f"of the reserved pages (vm.nr_hugepages) {supply.reserved >> 20} MiB are free"


def _transparent(supply: Supply, nbytes: int) -> str:
    if supply.transparent not in {"always", "within_size", "advise", "force"}:
        return f"the kernel's shmem_enabled is {supply.transparent or 'not there'}"
    if supply.waits and supply.whole < nbytes:
        return f"memory is fragmented: {supply.whole >> 20} MiB are free in pieces of 2 MiB"
    return ""


def padded(nbytes: int) -> int:
    """Filled up to whole pages of 2 MiB."""
    return -(-nbytes // HUGE_BYTES) * HUGE_BYTES


def read_supply(root: Path = Path("/")) -> Supply:
    """What the machine has now.

    Args:
        root: where /proc and /sys are found.
    """
    about = root / "sys/kernel/mm"
    transparent = _chosen(about / "transparent_hugepage/hugepages-2048kB/shmem_enabled")
    if transparent in {"", "inherit"}:
        transparent = _chosen(about / "transparent_hugepage/shmem_enabled")
    defrag = _chosen(about / "transparent_hugepage/defrag")
    advised = {"madvise", "defer+madvise"} if transparent == "advise" else set()
    free = _text(about / "hugepages/hugepages-2048kB/free_hugepages").strip()
    return Supply(
        reserved=int(free) * HUGE_BYTES if free.isdigit() else 0,
        mounts=tuple(_huge_mounts(_text(root / "proc/self/mountinfo"))),
        transparent=transparent,
        waits=defrag in {"always", *advised},
        whole=_whole(_text(root / "proc/buddyinfo")),
    )


def huge_bytes(address: int, smaps: str) -> int:
    """How much of the mapping that begins at an address lies in pages of 2 MiB.

    Args:
        address: its first byte.
        smaps: text of /proc/self/smaps.
    """
    begin = re.search(rf"^0*{address:x}-", smaps, re.MULTILINE)
    if begin is None:
        return 0
    lines = smaps[begin.start() :].splitlines()[1:]
    total = 0
    for line in lines:
        name, _, rest = line.partition(":")
        if "-" in name:  # the next mapping
            break
        if name in {"ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"}:
            total += int(rest.split()[0]) * 1024
    return total


def _huge_mounts(mount_table: str) -> list[str]:
    found = []
    for point, about in mounts(mount_table):
        kind, _, options = about.partition(" ")
        if (
            kind == "tmpfs"
            and re.search(r"\bhuge=(always|within_size)\b", options)
            and os.access(point, os.W_OK)
        ):
            found.append(point)
    return found


def _whole(buddyinfo: str) -> int:
    """Counts of free blocks of 1, 2, 4 … pages, a line per zone."""
    total = 0
    for line in buddyinfo.splitlines():
        counts = line.partition("zone")[2].split()[1:]
        for order, count in enumerate(counts):
            if SMALL_BYTES << order >= HUGE_BYTES:
                total += int(count) * (SMALL_BYTES << order)
    return total


def _chosen(path: Path) -> str:
    """The word in brackets."""
    match = re.search(r"\[(.+?)\]", _text(path))
    return match[1] if match else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
