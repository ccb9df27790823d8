"""Who a process belongs to, from what /proc says of it. PURE: texts in, facts out.

/proc/PID/cgroup names the pod and the container, in as many forms as there are runtimes and cgroup drivers. What stays the same
is that a pod is a path's component that ends in `pod` and the pod's UID, with dashes or, under systemd, underscores; and a
container is a component with 64 hexadecimal digits. A reader in a cgroup namespace of its own sees paths from there (`/../..`).

Where kubelets are nested (a cluster in a pod), the outermost pod is the one that this node's kubelet knows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""What /proc/PID/ns/pid links to in the initial PID namespace: PROC_PID_INIT_INO of linux/proc_ns.h, the same since Linux 3.8."""

_UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_STATIC_UID = r"[0-9a-f]{32}"  # of pods from files, whose UID is a hash
_POD = re.compile(rf"(?:^|-)pod({_UID}|{_STATIC_UID})(?:\.slice)?(?::.*)?$")
_CONTAINER = re.compile(r"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_REMOVED = " (deleted)"  # the kernel's word for a cgroup that is gone while a process of it isn't
_CGROUP_FIELDS = 3
_START_FIELD = 19  # of /proc/PID/stat, counted from the state, which follows the name


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a process belongs to.

    Attributes:
        pod: UID of its pod, with dashes; empty outside pods.
        container: id of its container; empty outside containers.
    """

    pod: str = ""
    container: str = ""


NOBODY = Owner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What /proc/PID/status says.

    Attributes:
        parent: process id of its parent; 0 where that can't be seen.
        uid: its real user id.
        ns_pids: its process ids in all PID namespaces that it is in, from the reader's to its own.
        ns_sessions: the ids of its session, likewise; 0 in namespaces that don't have the session's leader.
    """

    parent: int
    uid: int
    ns_pids: tuple[int, ...]
    ns_sessions: tuple[int, ...]


class Unseen(StrEnum):
    """Why nothing is known of a process."""

    GONE = "Gone"
    """It isn't there, or the id is another process's by now."""
    UNREADABLE = "Unreadable"
    """It is there and may not be read."""
    UNTOLD = "Untold"
    """/proc didn't answer in time."""
    NO_GPU = "NoGpu"
    """It has no GPU open, so the id that NVML gave is of another PID namespace and this isn't the process that it meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process.

    Attributes:
        ns_pids: its ids in all its PID namespaces, from this process's to its own.
        namespace: name of its own PID namespace; empty if it may not be read.
        owner: its pod and container.
        uid: its user.
        kin: the ids, likewise, of itself, of those it descends from within its pod and container, and of its session's leader;
            0 where a namespace doesn't have it.
    """

    ns_pids: tuple[int, ...]
    namespace: str
    owner: Owner
    uid: int
    kin: tuple[tuple[int, ...], ...]


Look = Mapping[int, Identity | Unseen]
"""What is known of processes, by id."""


def owner_of(cgroup: str) -> Owner:
    """Read /proc/PID/cgroup, of either version.

    Lines that name different pods make the pod unknown: version 1 has a line for each controller, and they agree unless somebody
    moved the process by hand.
    """
    owners = {owner for path in _paths(cgroup) if (owner := _owner_of_path(path)) != NOBODY}
    pods = {owner.pod for owner in owners if owner.pod}
    if len(pods) > 1:
        return NOBODY
    pod = next(iter(pods), "")
    containers = {owner.container for owner in owners if owner.container and owner.pod == pod}
    return Owner(pod, next(iter(containers)) if len(containers) == 1 else "")


def _paths(cgroup: str) -> list[str]:
    """Return the paths; a path may contain colons, as containerd's do that takes systemd's names with the other driver."""
    lines = (line.split(":", _CGROUP_FIELDS - 1) for line in cgroup.splitlines())
    return [fields[-1].removesuffix(_REMOVED) for fields in lines if len(fields) == _CGROUP_FIELDS]


def _owner_of_path(path: str) -> Owner:
    components = path.split("/")
    for place, component in enumerate(components):
        if pod := _POD.search(component):
            inside = _containers(components[place:])
            return Owner(pod[1].replace("_", "-"), inside[0] if inside else "")
    found = _containers(components)
    return Owner("", found[-1] if found else "")


def _containers(components: list[str]) -> list[str]:
    return [found[1] for component in components if (found := _CONTAINER.search(component))]


def status_of(text: str) -> Status | None:
    """Read /proc/PID/status; None if it lacks what a process has."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        pid = int(fields["Pid"])
        return Status(
            parent=int(fields["PPid"]),
            uid=int(fields["Uid"].split()[0]),
            ns_pids=tuple(map(int, fields.get("NSpid", str(pid)).split())),
            ns_sessions=tuple(map(int, fields.get("NSsid", "").split())),
        )
    except (KeyError, ValueError, IndexError):
        return None


def start_ticks_of(stat: str) -> int | None:
    """Read from /proc/PID/stat when the process started, in clock ticks since boot; with its id that is its identity.

    The program's name, in brackets, may have blanks and brackets of its own.
    """
    fields = stat.rpartition(")")[2].split()
    try:
        return int(fields[_START_FIELD])
    except (IndexError, ValueError):
        return None
