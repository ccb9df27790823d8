"""What a load takes, what the machine can give, and which of the two is too little: decided before the first byte.

A limit that is passed by surprise isn't an error that anybody can catch: the kernel ends the process. So needs and limits
are compared first, and a load that can't end well isn't begun. Pure; `loader.sources.limits` reads the machine.
"""

from dataclasses import dataclass
from enum import StrEnum

from loader.errors import LoadRefused

SPARE_BYTES = 64 * 2**20
"""Left to everybody else on the machine, or in the control group, whatever is asked for."""
_MIB = 2**20


class Reason(StrEnum):
    """Why a load is refused; what a scheduler may route on."""

    HOST_MEMORY = "HostMemory"
    LOCKED_MEMORY = "LockedMemory"
    DEVICE_MEMORY = "DeviceMemory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Memory that a load takes while it runs, in bytes, beyond what the caller has already.

    Attributes:
        host: pageable memory of this process.
        pinned: memory that the CUDA driver page-locks.
        shared: memory files, which no size of /dev/shm bounds, and which count as the pod's memory all the same.
        locked: memory that this process locks itself, which `ulimit -l` bounds.
        device: memory of the device.
    """

    host: int = 0
    pinned: int = 0
    shared: int = 0
    locked: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What can still be taken, in bytes; None where nothing tells, and then nothing is refused for it.

    Attributes:
        host: the least of the machine's free memory and of what the control groups above this process leave.
        host_bound: what sets that bound, as messages name it.
        locked: what `ulimit -l` leaves.
        device: free memory of the device.
    """

    host: int | None = None
    host_bound: str = "free memory"
    locked: int | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """One kind of memory that doesn't suffice.

    Attributes:
        reason: which kind.
        need: bytes that the load takes of it.
        free: bytes that there are.
        bound: what sets the limit.
    """

    reason: Reason
    need: int
    free: int
    bound: str


def shortages(needs: Needs, limits: Limits) -> tuple[Shortage, ...]:
    """All kinds of memory that don't suffice, the largest lack first.

    Page-locked and shared memory are host memory too, so they count there again.
    """
    host = needs.host + needs.pinned + needs.shared
    checks = (
        (Reason.HOST_MEMORY, host and host + SPARE_BYTES, limits.host, limits.host_bound),
        (Reason.LOCKED_MEMORY, needs.locked, limits.locked, "ulimit -l"),
        (Reason.DEVICE_MEMORY, needs.device, limits.device, "free memory of the device"),
    )
    found = [
        Shortage(reason=reason, need=need, free=free, bound=bound)
        for reason, need, free, bound in checks
        if free is not None and need > free
    ]
    return tuple(sorted(found, key=lambda shortage: shortage.free - shortage.need))


def admit(needs: Needs, limits: Limits, *, file: str) -> None:
    """Let a load through, or refuse it.

    Args:
        needs: what it takes.
        limits: what there is.
        file: the checkpoint, for messages.

    Raises:
        LoadRefused: some kind of memory doesn't suffice.
    """
    found = shortages(needs, limits)
    if not found:
        return
    worst = found[0]
    raise LoadRefused(
        f"{worst.reason}: {_mib(worst.need)} are needed and {worst.bound} leaves {_mib(worst.free)}",
        file=file,
        reasons=tuple(shortage.reason for shortage in found),
        hint=_HINTS[worst.reason],
    )


_HINTS = {
    Reason.HOST_MEMORY: "raise the memory limit, free memory, or load a part: checkpoint.only(names)",
    Reason.LOCKED_MEMORY: "raise `ulimit -l` of the container, or don't lock",
    Reason.DEVICE_MEMORY: "free memory on the device, take another one, or load a part: checkpoint.only(names)",
}


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:.0f} MiB"
