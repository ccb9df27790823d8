"""The memory of the seat: what its residents take, who may be where, and whom to park for whom.

The arithmetic is `warmpool.tiers`; here are the figures. Measured ones count more than what an engine tells of itself, and that more
than what is configured. Beside the arithmetic stands what is free on the device right now, where the node tells it: others may hold
what should be the seat's.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from warmpool.agent.board import Board, Record
from warmpool.agent.config import AgentConfig
from warmpool.agent.holding import slack
from warmpool.agent.memory import MemoryReader
from warmpool.engines.capabilities import Capability
from warmpool.engines.deadline import Deadline
from warmpool.engines.kinds import EngineKind
from warmpool.errors import NoRoom
from warmpool.nodehealth.client import SeatMemory
from warmpool.states import MOVING, Depth
from warmpool.tiers import Budget, Footprint, Part, Room, Tier, Tiers, mib

_MIB: Final = 2**20
LOOK_SECONDS: Final = 0.1
"""How long a look at what is free may take before an order goes on without."""
SETTLE_SECONDS: Final = 0.5
"""How long memory that a neighbour has just given back may take to be free."""
_LOOK_AGAIN_SECONDS = 0.02


class SeatRoom:
    """What fits on the seat.

    Args:
        config: the seat.
        board: its residents.
        reader: measures what they hold.
    """

    def __init__(self, config: AgentConfig, board: Board, reader: MemoryReader) -> None:
        self._config = config
        self._board = board
        self._reader = reader

    # ------------------------------------------------------------------ figures

    @property
    def tiers(self) -> dict[str, Tier]:
        """Where each resident stands."""
        return {record.policy: record.tier for record in self._board.records}

    @property
    def room(self) -> Room:
        """The seat's memory and what each resident takes, as far as is known now."""
        memory = self._config.memory
        return Room(
            footprints=[self._footprint(record) for record in self._board.records],
            device_bytes=self._device_bytes(),
            host_bytes=memory.host_mib * _MIB,
            exclusive=self._config.exclusive,
            stage_bytes=self._stage_bytes(),
            parts=[self._part(place) for place in range(self._gpus)] if self._gpus > 1 else [],
        )

    @property
    def budget(self) -> Budget:
        """The sum, as it is shown."""
        budget = self.room.budget(self.tiers)
        return replace(budget, verified=self._verified(), stage_reason=self._reader.stage_reason)

    def most(self, record: Record) -> int | None:
        """Return the bytes that a resident may hold while it computes; None if that isn't known."""
        paused, activation = record.held.get(record.paused_depth), record.config.activation_mib
        if paused is None or activation is None or (record.releases_kv and self._kv(record) is None):
            return None
        return paused + self._compute(record)

    def _device_bytes(self) -> int | None:
        known = [size for size in (self._reader.total_bytes, self._configured_bytes) if size is not None]
        return min(known, default=None)

    def _stage_bytes(self) -> int:
        """Return what the stage daemon takes of the seat's memory; it takes first what the config leaves of the GPUs."""
        total, configured = self._reader.total_bytes, self._configured_bytes
        left = 0 if total is None or configured is None else max(0, total - configured)
        return max(0, self._reader.stage_bytes - left)

    @property
    def _gpus(self) -> int:
        """How many GPUs have been told of, each by itself."""
        return len(self._reader.gpus)

    def _part(self, place: int) -> Part:
        """Return what is known of one GPU of several. What is configured or told of all of them is theirs in equal parts."""
        gpu, configured = self._reader.gpus[place], self._configured_bytes
        share = None if configured is None else configured // self._gpus
        known = [size for size in (gpu.total_bytes, share) if size is not None]
        left = 0 if gpu.total_bytes is None or share is None else max(0, gpu.total_bytes - share)
        return Part(
            gpu=gpu.uuid,
            footprints=[self._footprint_on(record, place) for record in self._board.records],
            device_bytes=min(known, default=None),
            stage_bytes=max(0, self._reader.stage_bytes_on(gpu.uuid) - left),
        )

    def _footprint_on(self, record: Record, place: int) -> Footprint:
        """Return what a resident takes of one GPU: what was measured there, and of what wasn't a share that is as large as of that."""
        whole, spread = self._footprint(record), record.spread.get(record.paused_depth, ())
        if len(spread) != self._gpus or not sum(spread):
            spread = (1,) * self._gpus
        parked = record.spread.get(Depth.PARKED, ())
        return Footprint(
            policy=record.policy,
            paused=_share(whole.paused, spread, place),
            compute=_share(whole.compute, spread, place),
            parked=parked[place] if len(parked) == self._gpus else _share(whole.parked, spread, place),
        )

    @property
    def _configured_bytes(self) -> int | None:
        configured = self._config.memory.device_mib
        return None if configured is None else configured * _MIB

    def _verified(self) -> bool:
        device = self._reader.last.device
        there = [record for record in self._board.records if record.tier is not Tier.COLD]
        measured = all(record.paused_depth in record.held for record in there)
        return device is not None and device.verified and measured

    def _footprint(self, record: Record) -> Footprint:
        paused = self._paused(record)
        host = record.parked_bytes or record.weights_bytes or paused
        return Footprint(
            policy=record.policy,
            paused=paused,
            compute=self._compute(record),
            parked=record.held.get(Depth.PARKED, 0),
            host=host,
            copy=host if record.state in MOVING else (record.parked_bytes or 0),
            parkable=self.unparkable(record) == "",
        )

    def _paused(self, record: Record) -> int:
        released = record.held.get(Depth.KV_RELEASED) or (record.config.memory_mib or 0) * _MIB
        if record.releases_kv:
            return released
        return record.held.get(Depth.PAUSED) or released + (self._kv(record) or 0)

    def _compute(self, record: Record) -> int:
        activation = (record.config.activation_mib or 0) * _MIB
        return activation + ((self._kv(record) or 0) if record.releases_kv else 0)

    def _kv(self, record: Record) -> int | None:
        configured = record.config.kv_mib
        return record.kv_bytes if configured is None or record.kv_bytes is not None else configured * _MIB

    def unparkable(self, record: Record) -> str:
        """Say in words why a resident can't be parked; nothing if it can, as far as is known."""
        if not self._config.memory.host_mib:
            return "memory.hostMiB is 0, so nobody is parked on this seat"
        if record.config.type is EngineKind.GENERIC:
            return "a Generic engine has no route for it"
        if record.capabilities is None:
            return ""  # the first start shows it
        finding = record.capabilities.finding(Capability.WEIGHTS_PARKING)
        return "" if finding.granted else f"WeightsParking is refused ({finding.ground}): {finding.reason}"

    # ------------------------------------------------------------------ who fits

    @property
    def filled(self) -> Tiers:
        """The tiers that fill the seat best, in the config's order."""
        return self.room.filled()

    def fits(self, record: Record, tier: Tier) -> bool:
        """Whether there is room for a resident in a tier, all others as they are."""
        return self.room.fits({**self.tiers, record.policy: tier})

    def require(self, record: Record, tier: Tier) -> None:
        """See that there is room for a resident in a tier, all others as they are.

        Raises:
            NoRoom: there isn't.
        """
        if not self.fits(record, tier):
            raise NoRoom(self.refusal(record, tier))

    def require_parking(self, record: Record) -> None:
        """See that a paused resident may be parked now.

        Raises:
            NoRoom: host memory isn't enough; or device memory isn't, for an engine that takes KV memory in order to be parked.
        """
        room, tiers = self.room, self.tiers
        parked = {**tiers, record.policy: Tier.PARKED}
        if not room.hosts(parked):
            raise NoRoom(
                f"no room to park {record.policy}: with it weights take {mib(room.parked_bytes(parked))} MiB of host memory, "
                f"and memory.hostMiB is {self._config.memory.host_mib}"
            )
        # A vLLM without its KV memory ignores the order to park, so it takes it for a moment.
        if record.config.type is EngineKind.VLLM and record.kv_released:
            self.require(record, Tier.AWAKE)

    def displaced(self, record: Record, tier: Tier, order: Sequence[str] | None = None) -> Sequence[Record]:
        """Return whom to park, one after the other, so that a resident can be in a tier; nobody if there is room.

        Args:
            record: the resident.
            tier: where it shall be.
            order: who may be parked, the first first; the least needed first if left out.

        Raises:
            NoRoom: there is no room to be made.
        """
        found = self.room.displaced(self.tiers, record.policy, tier, order)
        if found is None:
            raise NoRoom(self.refusal(record, tier, order))
        return [self._board.record(policy) for policy in found]

    def fits_without(self, other: Record, record: Record, tier: Tier, order: Sequence[str] | None) -> bool:
        """Whether there would be room for a resident in a tier, after parking those of `order`, if `other` had no engine."""
        tiers = {**self.tiers, other.policy: Tier.COLD}
        return self.room.displaced(tiers, record.policy, tier, order) is not None

    def refusal(self, record: Record, tier: Tier, order: Sequence[str] | None = ()) -> str:
        """Say with figures why there is no room for a resident in a tier, also with those of `order` parked."""
        room, tiers = self.room, self.tiers
        budget = room.budget({**tiers, record.policy: tier})
        missing = -(budget.free_bytes or 0)
        others = [
            each.policy
            for each in self._board.records
            if each is not record and tiers[each.policy] is Tier.PAUSED and not self.unparkable(each)
        ]
        allowed = others if order is None else [policy for policy in order if policy in others]
        words = f"no room for {record.policy}: with it {budget}, {mib(missing)} MiB too much"
        if not allowed:
            return f"{words}; nobody there may be parked"
        host = (
            f"{mib(room.parked_bytes(tiers))} of {self._config.memory.host_mib} MiB of host memory are taken"
        )
        return f"{words}, also with {', '.join(allowed)} parked as far as they can be ({host})"

    # ------------------------------------------------------------------ what is free

    async def look(self, record: Record, tier: Tier, *, deadline: Deadline) -> None:
        """See that the device really has what a resident will take in a tier, where the node tells it.

        Args:
            record: the resident.
            tier: where it shall be: `Awake` or `Paused`.
            deadline: by when.

        Raises:
            NoRoom: somebody holds it who isn't in the sum.
        """
        needed = self._newly_taken(self._footprint(record), record.tier, tier)
        if not needed or not self._reader.answers:
            return
        until = deadline.at_most(SETTLE_SECONDS)
        while True:
            device = (await self._reader.read(seconds=LOOK_SECONDS)).device
            lacks = "" if device is None else self._lacks(device, record, tier)
            if not lacks:
                return
            if until.left_seconds <= _LOOK_AGAIN_SECONDS:
                break
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        raise NoRoom(
            f"no room for {record.policy}: it takes {mib(needed)} MiB more, and {lacks}; by the seat's own figures there "
            "should be room, so somebody else holds it"
        )

    def _lacks(self, device: SeatMemory, record: Record, tier: Tier) -> str:
        """Say what is free where that is less than a resident will take; empty if it is enough, or nobody knows."""
        needed = self._newly_taken(self._footprint(record), record.tier, tier)
        if device.free_bytes is not None and device.free_bytes < needed and len(device.gpus) <= 1:
            return (
                f"{mib(device.free_bytes)} MiB of {mib(device.total_bytes or 0)} MiB device memory are free"
            )
        for place, gpu in enumerate(device.gpus if len(device.gpus) > 1 else ()):
            there = self._newly_taken(self._footprint_on(record, place), record.tier, tier)
            if gpu.free_bytes is not None and gpu.free_bytes < there:
                free, whole = mib(gpu.free_bytes), mib(gpu.total_bytes or 0)
                return f"{free} MiB of {whole} MiB of GPU {gpu.uuid} are free, of which it takes {mib(there)}"
        return ""

    @staticmethod
    def _newly_taken(footprint: Footprint, now: Tier, tier: Tier) -> int:
        """Return the device memory that a change of tier will take, less what measurements differ by."""
        needed = 0
        if now in {Tier.COLD, Tier.PARKED}:
            there = footprint.parked if now is Tier.PARKED else 0
            needed += max(0, footprint.paused - there)
        if tier is Tier.AWAKE and now is not Tier.AWAKE:
            needed += footprint.compute
        return max(0, needed - slack(needed))


def _share(size: int, spread: Sequence[int], place: int) -> int:
    """Return one GPU's share of a size, rounded up: as large as its share of what is spread over them."""
    return -(-size * spread[place] // sum(spread))
