"""What a caller may know of the GPUs' memory, and whether it is proven. PURE: readings in, an answer out.

A figure is verified where it can't be otherwise: device and processes were read just now, everyone on the device is known,
and what processes hold adds up to what is in use. Else it comes with the reason why not. The sum matters because a list that
lacks somebody looks like any other: outside the initial PID namespace the driver leaves processes out without a word.

A caller's own processes are told one by one, everybody else's as one sum.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from warmpool.nodehealth.nvml import Device, DeviceMemory, GpuProcess
from warmpool.nodehealth.processes import NOBODY, Identity, Look, Owner, Unseen

_MIB = 2**20
SLACK_BYTES = 64 * _MIB
"""What may be in use on a device beyond its processes' sum."""
SLACK_PER_PROCESS_BYTES = 16 * _MIB
"""The same for each process. On an H200 with driver 580 one process that computes makes 9 MiB, and four make 26; a CUDA context
takes 518 MiB there, so nobody hides behind the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """What NVML said of one device.

    Attributes:
        device: which one.
        memory: its memory; None if unknown.
        processes: who has a context on it; None if unknown.
        reason: why something is unknown; empty if nothing is.
    """

    device: Device
    memory: DeviceMemory | None = None
    processes: tuple[GpuProcess, ...] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of all devices.

    Attributes:
        began_at: when it began, on the loop's clock, in seconds.
        devices: the devices, in the listing's order.
        look: who their processes are.
        sees_all: whether the reader is in the initial PID namespace.
        reason: why no device could be read; empty if any could.
    """

    began_at: float
    devices: tuple[DeviceReading, ...] = ()
    look: Look
    sees_all: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Whose processes a caller may know of: its pod's, else its container's, else its user's outside both.

    Attributes:
        owner: the pod and container.
        uid: the user, where there is neither; None: nobody's.
        everyone: all processes, for callers who were trusted with that.
        by_own_ids: the caller knows processes by the ids of their own PID namespaces, not by the node's.
    """

    owner: Owner = NOBODY
    uid: int | None = None
    everyone: bool = False
    by_own_ids: bool = False

    def holds(self, identity: Identity) -> bool:
        """Whether a process is one of the caller's."""
        if self.everyone:
            return True
        if self.owner.pod:
            return identity.owner.pod == self.owner.pod
        if self.owner.container:
            return identity.owner == self.owner
        return identity.owner == NOBODY and self.uid is not None and identity.uid == self.uid

    def ids(self, identity: Identity) -> tuple[int, ...]:
        """Return the ids by which the caller may know a process: its own, its ancestors' and its session's."""
        if not self.by_own_ids:
            numbers = [ids[0] for ids in identity.kin]
        else:
            depth = len(identity.ns_pids)
            numbers = [ids[-1] for ids in identity.kin if len(ids) == depth]
        return tuple(dict.fromkeys(number for number in numbers if number))

    def namespace(self, identity: Identity) -> str:
        """Return which processes' ids those are: equal ids of different namespaces are different processes."""
        return (identity.namespace or identity.owner.container) if self.by_own_ids else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question.

    Attributes:
        scope: who asks.
        devices: UUIDs of the devices that it is about.
        pids: only processes of these ids, and those that descend from them; empty: all of the scope.
    """

    scope: Scope
    devices: Sequence[str]
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one of the caller's processes holds.

    Attributes:
        pid: its id in the node agent's PID namespace.
        ns_pid: its id in its own.
        ids: the ids by which the caller may know it.
        namespace: which PID namespace those are of; empty for the node's.
        owner: its pod and container.
        held_bytes: device memory that it holds; None if unknown.
    """

    pid: int
    ns_pid: int
    ids: tuple[int, ...]
    namespace: str
    owner: Owner
    held_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccount:
    """One device, for one caller.

    Attributes:
        device: which one.
        memory: its memory; None if unknown.
        holdings: the caller's processes on it.
        others_bytes: sum of what all other processes hold; None if unknown.
        unaccounted_bytes: what is in use beyond all processes' sum; None if unknown.
        reason: why the holdings are not verified; empty if they are.
    """

    device: Device
    memory: DeviceMemory | None
    holdings: tuple[Holding, ...] = ()
    others_bytes: int | None = None
    unaccounted_bytes: int | None = None
    reason: str = ""


def account(reading: Reading, ask: Ask) -> tuple[DeviceAccount, ...]:
    """Work out the answer, in the listing's order. A device that isn't in the reading is not in the answer."""
    asked = frozenset(ask.devices)
    return tuple(_account(each, reading, ask) for each in reading.devices if each.device.uuid in asked)


def holders(reading: Reading, scope: Scope) -> frozenset[str]:
    """Return UUIDs of the devices that processes of a scope have a context on; of a GPU in MIG mode, its MIG devices."""
    return frozenset(
        each.device.uuid
        for each in reading.devices
        if not each.device.partitioned
        and any(_owned(reading.look.get(process.pid), scope) for process in each.processes or ())
    )


def unaccounted(read: DeviceReading) -> int | None:
    """Return what is in use beyond all processes' sum; None if unknown, as where the driver counts its own memory as used."""
    memory, held = read.memory, _sum([process.held_bytes for process in read.processes or ()])
    if memory is None or memory.reserved_bytes is None or read.processes is None or held is None:
        return None
    return max(0, memory.used_bytes - held)


def _account(read: DeviceReading, reading: Reading, ask: Ask) -> DeviceAccount:
    if read.memory is None or read.processes is None:
        return DeviceAccount(device=read.device, memory=read.memory, reason=read.reason)
    holdings = _holdings(read.processes, reading.look, ask)
    own = {holding.pid for holding in holdings}
    beyond = unaccounted(read)
    return DeviceAccount(
        device=read.device,
        memory=read.memory,
        holdings=holdings,
        others_bytes=_sum([each.held_bytes for each in read.processes if each.pid not in own]),
        unaccounted_bytes=beyond,
        reason=(
            _unidentified(read.processes, reading.look)
            or _untold(holdings)
            or _hidden(beyond, len(read.processes), sees_all=reading.sees_all)
        ),
    )


def _holdings(processes: Sequence[GpuProcess], look: Look, ask: Ask) -> tuple[Holding, ...]:
    found = []
    for process in processes:
        identity = look.get(process.pid)
        if not isinstance(identity, Identity) or not ask.scope.holds(identity):
            continue
        ids = ask.scope.ids(identity)
        if not ask.pids or not ask.pids.isdisjoint(ids):
            found.append(
                Holding(
                    pid=process.pid,
                    ns_pid=identity.ns_pids[-1],
                    ids=ids,
                    namespace=ask.scope.namespace(identity),
                    owner=identity.owner,
                    held_bytes=process.held_bytes,
                )
            )
    return tuple(found)


def _owned(identity: Identity | Unseen | None, scope: Scope) -> bool:
    return isinstance(identity, Identity) and scope.holds(identity)


def _sum(sizes: Collection[int | None]) -> int | None:
    """Add up; unknown if any is."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


# ------------------------------------------------------------------ why not verified


def _unidentified(processes: Sequence[GpuProcess], look: Look) -> str:
    """A process that might be the caller's."""
    for process in processes:
        found = look.get(process.pid, Unseen.UNTOLD)
        if isinstance(found, Unseen):
            return f"process {process.pid} on the device can't be identified: {_WHY[found]}"
    return ""


_WHY: Mapping[Unseen, str] = {
    Unseen.GONE: "it has ended, or this isn't the host's PID namespace",
    Unseen.UNREADABLE: "it may not be read",
    Unseen.UNTOLD: "/proc did not answer in time",
    Unseen.NO_GPU: "the process of this id has no GPU open; this isn't the host's PID namespace",
}


def _untold(holdings: Sequence[Holding]) -> str:
    for holding in holdings:
        if holding.held_bytes is None:
            return f"the driver doesn't tell what process {holding.pid} holds"
    return ""


def _hidden(beyond: int | None, processes: int, *, sees_all: bool) -> str:
    """Somebody on the device whom the driver doesn't list."""
    if beyond is None:
        return (
            ""
            if sees_all
            else "this isn't the host's PID namespace, and the device's memory can't be added up"
        )
    if beyond <= SLACK_BYTES + SLACK_PER_PROCESS_BYTES * processes:
        return ""
    return f"{beyond // _MIB} MiB in use are held by nobody whom the driver lists"
