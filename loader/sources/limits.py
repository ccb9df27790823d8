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


def read_limits(root: Path = Path("/"), *, device_bytes: int | None = None) -> Limits:
    """What this process can still take.

    Args:
        root: where /proc and /sys are found.
        device_bytes: free memory of the device, where one is concerned.
    """
    bounds = [*_machine(root), *_groups(root)]
    host, bound = min(bounds, default=(None, "free memory"))
    return Limits(host=host, host_bound=bound, locked=_lockable(root), device=device_bytes)


def _machine(root: Path) -> Iterator[tuple[int, str]]:
    for name, value in _table(root / "proc/meminfo").items():
        if name == "MemAvailable:":
            yield value * _KIBIBYTE, "the machine's free memory"


def _groups(root: Path) -> Iterator[tuple[int, str]]:
    """Room of every control group from this process's own up to the root."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            yield from _room_upwards(root, _V2, path)
        elif "memory" in controllers.split(","):
            yield from _room_upwards(root, _V1, path)


def _room_upwards(root: Path, interface: _Interface, path: str) -> Iterator[tuple[int, str]]:
    mount = root / interface.mount
    # In a container the path may be that of the host; its own group is then the root of what is mounted.
    group = mount / path.strip("/")
    while group != mount.parent:
        room = _room(group, interface)
        if room is not None:
            yield room, "the control group's memory limit"
        group = group.parent


def _room(group: Path, interface: _Interface) -> int | None:
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
