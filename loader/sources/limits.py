"""What the machine can still give this process, read from /proc and /sys.

Page cache counts as free, on the machine and in a control group's usage alike, for the kernel drops it before it ends
anybody. Files in tmpfs and memory files are no such cache: they count as used.
"""

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loader.admission import Limits

_KIBIBYTE = 1024
_CAP_IPC_LOCK = 14  # capability number: locks without bound


@dataclass(frozen=True, slots=True)
class _Interface:
    """Where a version of control groups has its files, and what they are called."""

    mount: str
    limit: str
    usage: str
    cache: tuple[str, ...]


_V1 = _Interface(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Interface("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))


@dataclass(frozen=True, slots=True)
class Room:
    """Host memory that can still be taken.

    Attributes:
        nbytes: bytes.
        group: the directory of the control group whose limit leaves them; None for the machine's free memory.
    """

    nbytes: int
    group: Path | None


def read_limits(root: Path = Path("/"), *, device_bytes: int | None = None) -> Limits:
    """What this process can still take.

    Args:
        root: where /proc and /sys are found.
        device_bytes: free memory of the device, where one is concerned.
    """
    room = host_room(root)
    return Limits(
        host=room.nbytes if room else None,
        host_bound="the control group's memory limit" if room and room.group else "the machine's free memory",
        locked=_lockable(root),
        device=device_bytes,
    )


def host_room(root: Path = Path("/")) -> Room | None:
    """The least of the machine's free memory and of what the control groups above this process leave; None where nothing tells.

    Args:
        root: where /proc and /sys are found.
    """
    return min((*_machine(root), *_groups(root)), key=lambda room: room.nbytes, default=None)


def _machine(root: Path) -> Iterator[Room]:
    free = _table(root / "proc/meminfo").get("MemAvailable:")  # a kernel before 3.14 doesn't tell
    if free is not None:
        yield Room(free * _KIBIBYTE, None)


def _groups(root: Path) -> Iterator[Room]:
    """Room of every control group from this process's own up to the root."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield from _room_upwards(root, _V2, path)
        elif "memory" in controllers.split(","):
            yield from _room_upwards(root, _V1, path)


def _room_upwards(root: Path, interface: _Interface, path: str) -> Iterator[Room]:
    mount = root / interface.mount
    # In a container the path may be that of the host; its own group is then the root of what is mounted.
    group = mount / path.strip("/")
    while group != mount.parent:
        left = _left_in(group, interface)
        if left is not None:
            yield Room(left, group)
        group = group.parent


def _left_in(group: Path, interface: _Interface) -> int | None:
    limit, usage = _text(group / interface.limit).strip(), _text(group / interface.usage).strip()
    if not limit.isdigit() or not usage.isdigit():
        return None
    counts = _table(group / "memory.stat")
    cache = sum(counts.get(name, 0) for name in interface.cache)
    return max(0, int(limit) - int(usage) + min(cache, int(usage)))


def _lockable(root: Path) -> int | None:
    for line in _text(root / "proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff" and int(value, 16) >> _CAP_IPC_LOCK & 1:
            return None
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
