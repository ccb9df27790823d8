"""What the seats of one machine may take, and whether that is there: told before anything starts.

On a GPU a seat's residents are paused as far as they find room; those that find none are parked, where their fleet has host
memory for that. Who is where is worked out as agents do it (`warmpool.tiers`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scaler.cluster.local.memory import Footprint, available_bytes, seat_bytes
from scaler.errors import UserError
from scaler.policy.fleet import Fleet
from warmpool import tiers
from warmpool.seats import FleetName, PolicyName
from warmpool.tiers import Tier

MIB = 1024 * 1024
_GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRoom:
    """The memory of one seat of a fleet, and who lives there.

    Attributes:
        fleet: the fleet.
        residents: what each resident takes, the most important first.
        device_bytes: device memory of the seat; None where it has no GPU and nobody set a limit.
        on_gpus: it has GPUs.
        tiers: where each resident stands when the seat is warm and nobody has any demand.
    """

    fleet: Fleet
    residents: Mapping[PolicyName, Footprint]
    device_bytes: int | None
    on_gpus: bool
    tiers: Mapping[str, Tier] = field(init=False)

    def __post_init__(self) -> None:
        """Work out who stands where."""
        room = tiers.Room(
            footprints=[_size(name, size) for name, size in self.residents.items()],
            device_bytes=self.device_bytes,
            host_bytes=self.host_bytes,
        )
        object.__setattr__(self, "tiers", room.filled())

    @property
    def name(self) -> FleetName:
        """The fleet's name."""
        return FleetName(self.fleet.metadata.name)

    @property
    def host_bytes(self) -> int:
        """Host memory for parked residents."""
        return self.fleet.spec.spare.parked.host_memory_mib * MIB

    @property
    def bytes(self) -> int:
        """What its residents take together when none of them is parked."""
        return seat_bytes(list(self.residents.values()))

    @property
    def parked_bytes(self) -> int:
        """Host memory that parked residents may come to take: what is set for them, or all weights where that is less."""
        return min(self.host_bytes, sum(size.weights_bytes for size in self.residents.values()))

    def settings(self) -> dict[str, Any]:
        """Return the agent's configuration of the seat's memory."""
        memory: dict[str, int] = {"hostMiB": self.host_bytes // MIB}
        if self.device_bytes is not None:
            memory["deviceMiB"] = self.device_bytes // MIB
        written = self.fleet.spec.seat.kv_when_paused
        kept = {} if written is None else {"kvWhenPaused": str(written)}
        return {"memory": memory, **kept}


def _size(name: PolicyName, size: Footprint) -> tiers.Footprint:
    return tiers.Footprint(
        policy=name,
        paused=size.weights_bytes + size.overhead_bytes,
        compute=size.kv_bytes,
        parked=size.overhead_bytes,
        host=size.weights_bytes,
    )


def check_memory(rooms: Sequence[SeatRoom], seats: Mapping[FleetName, int], seat_budget: int | None) -> None:
    """Refuse what would end in the kernel's OOM killer or CUDA's, or with residents that never find room.

    Args:
        rooms: the seats of each fleet.
        seats: how many there may be of each fleet.
        seat_budget: how many there may be of all fleets together; None for no such limit.

    Raises:
        UserError: there is too little memory.
    """
    for room in rooms:
        _check_device(room)
    needed, available = _host_bytes(rooms, seats, seat_budget), available_bytes()
    if needed > available:
        raise UserError(
            f"the seats need {gib(needed)} of memory, and {gib(available)} is available",
            hint="lower maxSeats (or --seats) or spare.parked.hostMemoryMiB, serve fewer models, or take a smaller checkpoint",
        )


def _check_device(room: SeatRoom) -> None:
    cold = [name for name, tier in room.tiers.items() if tier is Tier.COLD]
    if not cold or room.device_bytes is None:
        return
    what = "GPU memory" if room.on_gpus else "memory"
    if room.host_bytes:
        raise UserError(
            f"on a seat of fleet {room.name} there is no room for {', '.join(cold)}: {gib(room.device_bytes)} of {what}, and"
            f" {gib(room.host_bytes)} of host memory for parked residents. {_sizes(room)}",
            hint="raise spare.parked.hostMemoryMiB (one is parked before another comes back), or serve fewer models there",
        )
    needed = -(-room.bytes * (100 + tiers.RESERVE_PERCENT) // 100)
    raise UserError(
        f"a seat of fleet {room.name} needs {gib(needed)} of {what}, and {gib(room.device_bytes)} is there for it",
        hint="fewer residents a seat, fewer sequences (--max-num-seqs), a lower --seats-per-gpu, or host memory for some of"
        " them: spare.parked.hostMemoryMiB",
    )


def _sizes(room: SeatRoom) -> str:
    """Say what each resident takes, in MiB."""
    parts = [
        f"{name} holds {size.paused // MIB} MiB paused, {size.parked // MIB} parked, and takes {size.compute // MIB} more to compute"
        for name, size in ((name, _size(name, each)) for name, each in room.residents.items())
    ]
    return "; ".join(parts)


def _host_bytes(rooms: Sequence[SeatRoom], seats: Mapping[FleetName, int], seat_budget: int | None) -> int:
    """Return what the seats take of the host together when they are warm, as many as may exist at once."""
    each = sorted(
        (
            room.parked_bytes + (0 if room.on_gpus else room.bytes)
            for room in rooms
            for _ in range(seats[room.name])
        ),
        reverse=True,
    )
    return sum(each if seat_budget is None else each[:seat_budget])


def gib(count: float) -> str:
    """Write bytes in GiB."""
    return f"{count / _GIB:.1f} GiB"
