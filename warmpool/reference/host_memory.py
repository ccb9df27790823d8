"""What the machine can still give this process: the least of its free memory and of what the control groups above it may take.

A limit that is passed isn't refused: the kernel ends the process instead. So whoever needs gigabytes asks here first. Page cache counts
as free, on the machine and in a group's usage alike, for the kernel drops it before it ends anybody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmpool.reference.errors import NotEnoughHostMemory

SPARE_BYTES: Final = 256 << 20
"""What is left to everybody else on the machine or in the group, whatever is asked for."""
_KIBIBYTE: Final = 1024


@dataclass(frozen=True, slots=True)
class _Interface:
    """Where a version of control groups has its files, and what they are called.

    Attributes:
        mount: the directory of the root group.
        limit: its most, in bytes.
        usage: what it has now.
        cache: entries of `memory.stat` that count page cache, of the whole group.
    """

    mount: str
    limit: str
    usage: str
    cache: tuple[str, ...]


_V1: Final = _Interface(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2: Final = _Interface("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))


@dataclass(frozen=True, slots=True)
class Available:
    """What can still be taken.

    Attributes:
        nbytes: bytes.
        bound: what sets the bound, as messages name it.
    """

    nbytes: int
    bound: str


def available(root: Path = Path("/")) -> Available:
    """Return what this process can still take of the machine's memory.

    Args:
        root: where /proc and /sys are found.
    """
    return min((_of_machine(root), *_of_groups(root)), key=lambda each: each.nbytes)


def require(nbytes: int, what: str, root: Path = Path("/")) -> None:
    """See that memory can be taken, with something left over.

    Args:
        nbytes: how much is about to be taken.
        what: what for, as messages name it.
        root: where /proc and /sys are found.

    Raises:
        NotEnoughHostMemory: taking it could end this process, or another.
    """
    there = available(root)
    if nbytes + SPARE_BYTES > there.nbytes:
        raise NotEnoughHostMemory(
            f"{what} needs {nbytes / 2**20:.0f} MiB of host memory; {there.nbytes / 2**20:.0f} MiB are left by {there.bound},"
            f" and {SPARE_BYTES / 2**20:.0f} MiB stay free for others",
            hint="raise the memory limit, or park fewer residents here",
        )


def _of_machine(root: Path) -> Available:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return Available(int(line.split()[1]) * _KIBIBYTE, "the machine")
    return Available(1 << 62, "the machine")  # a kernel before 3.14 doesn't tell


def _of_groups(root: Path) -> Iterator[Available]:
    """Yield what each control group above this process may still take, of those that are seen from here.

    Inside a container the path that the kernel tells may be the host's, and its own group then is what is mounted as the root.
    """
    for interface, path in _memberships(root):
        mount = root / interface.mount
        for group in (mount / path, *(mount / path).parents):
            left = _left_in(group, interface)
            if left is not None:
                yield Available(left, f"the limit of control group {group}")
            if group == mount:
                break


def _memberships(root: Path) -> Iterator[tuple[_Interface, str]]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        inside = str(Path("/", path)).lstrip("/")
        if "memory" in controllers.split(","):
            yield _V1, inside
        elif number == "0":
            yield _V2, inside


def _left_in(group: Path, interface: _Interface) -> int | None:
    try:
        limit = (group / interface.limit).read_text().strip()
        if limit == "max":
            return None
        used = int((group / interface.usage).read_text())
        counts = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
        cache = sum(int(counts.get(name, 0)) for name in interface.cache)
        return max(0, int(limit) - max(0, used - cache))
    except (OSError, ValueError):  # no limit here, or the group is gone
        return None
