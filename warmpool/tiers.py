"""Which residents of a seat are paused, parked or cold, and who gives way to whom: arithmetic over the memory of one seat.

    Σ held + max(compute) + stage + 2 % ≤ device memory        one resident computes at a time
    Σ held + Σ compute    + stage + 2 % ≤ device memory        all of them may compute at once

Stage is what the node's stage daemon takes of the seat. Held is what a resident takes in its tier; compute is what it takes more while it computes, and is kept free for whoever in
device memory takes most. A start-up computes beside whoever serves, so what computes already is added up. What isn't known
counts as nothing: it can't be refused for a figure that nobody has, and is counted from its first measurement on.
On a seat with several GPUs the sum must hold on each of them: what one has too much of another can't take.
PURE: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

RESERVE_PERCENT: Final = 2
"""Part of device memory that stays free, in percent: allocators round up, and libraries take workspaces when they like."""
_PERCENT: Final = 100
_MIB: Final = 2**20


class Tier(StrEnum):
    """Where a resident stands in the memory of its seat, the most expensive first."""

    AWAKE = "Awake"
    """It computes, or may at any moment: it starts, proves, serves or moves its weights."""
    PAUSED = "Paused"
    """Its weights are in device memory."""
    PARKED = "Parked"
    """Its weights are in host memory."""
    COLD = "Cold"
    """It has no engine."""


_IN_DEVICE_MEMORY = frozenset({Tier.AWAKE, Tier.PAUSED})

Tiers = Mapping[str, Tier]
"""The tier of each resident, by its policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one resident takes. What isn't known is 0.

    Attributes:
        policy: whose resident it is.
        paused: bytes of device memory that it holds while it is paused.
        compute: bytes of device memory that it takes more while it computes: KV memory where that is given back, activations.
        parked: bytes of device memory that its process still holds while it is parked.
        host: bytes of host memory that its weights take while it is parked.
        copy: bytes of host memory that they take all the same while it isn't: engines keep a copy once they have made it.
        parkable: its engine can be parked, as far as is known.
    """

    policy: str
    paused: int = 0
    compute: int = 0
    parked: int = 0
    host: int = 0
    copy: int = 0
    parkable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One GPU of a seat that has several.

    Attributes:
        gpu: its UUID.
        footprints: what each resident takes there, in the seat's order.
        device_bytes: its memory; None if nobody knows.
        stage_bytes: what of it the node's stage daemon takes.
    """

    gpu: str
    footprints: Sequence[Footprint]
    device_bytes: int | None
    stage_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBudget:
    """The sum on one GPU of several.

    Attributes:
        gpu: its UUID.
        Others as in `Budget`, of this GPU alone.
    """

    gpu: str
    device_bytes: int | None
    paused_bytes: int
    largest_compute_bytes: int
    reserve_bytes: int
    stage_bytes: int = 0

    @property
    def free_bytes(self) -> int | None:
        """What is left of it; negative if it is too little, None while unknown."""
        if self.device_bytes is None:
            return None
        kept = self.stage_bytes + self.reserve_bytes
        return self.device_bytes - self.paused_bytes - self.largest_compute_bytes - kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The sum, as it is shown. On a seat with several GPUs it is that of all of them together, but for what is free.

    Attributes:
        device_bytes: device memory of the seat; None while unknown, and then nothing is refused for its sake.
        paused_bytes: what its residents hold in their tiers.
        largest_compute_bytes: what is kept for computing.
        reserve_bytes: what stays free in any case.
        host_bytes: host memory that parked residents may take.
        parked_bytes: host memory that their weights take, and copies of those that aren't parked any more.
        verified: device memory and what residents hold were measured, not merely configured.
        stage_bytes: device memory of the seat that the node's stage daemon takes.
        stage_reason: why that isn't known, or isn't known anew; empty if it is, or nobody is asked.
        gpus: the sum on each GPU; empty where there is one, or nobody has told of each.
    """

    device_bytes: int | None
    paused_bytes: int
    largest_compute_bytes: int
    reserve_bytes: int
    host_bytes: int
    parked_bytes: int
    verified: bool = False
    stage_bytes: int = 0
    stage_reason: str = ""
    gpus: tuple[GpuBudget, ...] = ()

    @property
    def tightest(self) -> GpuBudget | None:
        """The GPU with the least left; None where nothing is known of each."""
        known = [(each.free_bytes, each) for each in self.gpus if each.free_bytes is not None]
        return min(known, key=lambda pair: pair[0])[1] if known else None

    @property
    def free_bytes(self) -> int | None:
        """What is left of device memory; negative if it is too little, None while unknown.

        On several GPUs what can be taken in equal parts, as the ranks of an engine do: so many times what the tightest has left.
        """
        if (tightest := self.tightest) is not None and tightest.free_bytes is not None:
            return len(self.gpus) * tightest.free_bytes
        if self.device_bytes is None:
            return None
        kept = self.stage_bytes + self.reserve_bytes
        return self.device_bytes - self.paused_bytes - self.largest_compute_bytes - kept

    @property
    def fits(self) -> bool:
        """Whether device memory is enough, as far as is known."""
        return self.free_bytes is None or self.free_bytes >= 0

    def __str__(self) -> str:
        """Say it with its figures."""
        device = "unknown" if self.device_bytes is None else f"{self.device_bytes // _MIB} MiB"
        stage = f"{mib(self.stage_bytes)} MiB of the stage daemon + " if self.stage_bytes else ""
        words = (
            f"{mib(self.paused_bytes)} MiB held + {mib(self.largest_compute_bytes)} MiB for computing + {stage}"
            f"{mib(self.reserve_bytes)} MiB reserve of {device} device memory"
        )
        if (each := self.tightest) is not None and each.free_bytes is not None and each.free_bytes < 0:
            words += f", and of GPU {each.gpu} {mib(-each.free_bytes)} MiB more than there are"
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory of one seat and whom it is for.

    Attributes:
        footprints: what each resident takes, in the order of need, the most needed first.
        device_bytes: device memory; None if nobody knows.
        host_bytes: host memory for parked residents; 0 lets none be parked.
        exclusive: one resident computes at a time.
        stage_bytes: what of it the node's stage daemon takes, which no resident can have.
        parts: the same for each GPU, where there are several; empty if nothing is known of each.
    """

    footprints: Sequence[Footprint]
    device_bytes: int | None
    host_bytes: int = 0
    exclusive: bool = True
    stage_bytes: int = 0
    parts: Sequence[Part] = ()

    def footprint(self, policy: str) -> Footprint:
        """Return what a resident takes.

        Raises:
            KeyError: no such resident.
        """
        for each in self.footprints:
            if each.policy == policy:
                return each
        raise KeyError(policy)

    def budget(self, tiers: Tiers) -> Budget:
        """Add up what residents take in these tiers."""
        return Budget(
            device_bytes=self.device_bytes,
            paused_bytes=_all_held(self.footprints, tiers),
            largest_compute_bytes=self._compute(self.footprints, tiers),
            reserve_bytes=_reserve(self.device_bytes),
            host_bytes=self.host_bytes,
            parked_bytes=self.parked_bytes(tiers),
            stage_bytes=self.stage_bytes,
            gpus=tuple(self._on(part, tiers) for part in self.parts),
        )

    def _on(self, part: Part, tiers: Tiers) -> GpuBudget:
        return GpuBudget(
            gpu=part.gpu,
            device_bytes=part.device_bytes,
            paused_bytes=_all_held(part.footprints, tiers),
            largest_compute_bytes=self._compute(part.footprints, tiers),
            reserve_bytes=_reserve(part.device_bytes),
            stage_bytes=part.stage_bytes,
        )

    def fits(self, tiers: Tiers) -> bool:
        """Whether device memory is enough for these tiers."""
        return self.budget(tiers).fits

    def parked_bytes(self, tiers: Tiers) -> int:
        """Return the host memory that weights take: of the parked ones, and what others have kept of it."""
        return sum(_hosted(each, tiers[each.policy]) for each in self.footprints)

    def hosts(self, tiers: Tiers) -> bool:
        """Whether host memory is enough for those that are parked in these tiers."""
        parked = any(tier is Tier.PARKED for tier in tiers.values())
        return not parked or (self.host_bytes > 0 and self.parked_bytes(tiers) <= self.host_bytes)

    # ------------------------------------------------------------------ who gives way to whom

    def displaced(
        self, tiers: Tiers, wanted: str, tier: Tier, order: Iterable[str] | None = None
    ) -> Sequence[str] | None:
        """Return whom to park, one after the other, so that a resident can be in a tier of device memory.

        Nobody who is awake is parked, and nobody for nothing. While they move the resident stays where it is, so that host
        memory has to be enough for all of them at once.

        Args:
            tiers: as they are.
            wanted: the resident's policy.
            tier: where it shall be.
            order: who may be parked, the first first; the least needed first if left out.

        Returns:
            Their policies, none if there is room; None if there is no room to be made.
        """
        goal = {**tiers, wanted: tier}
        moving = dict(tiers)
        chosen: list[str] = []
        for policy in self._least_needed() if order is None else order:
            if self.fits(goal):
                break
            if policy == wanted or not self._may_park(moving, policy):
                continue
            goal[policy] = moving[policy] = Tier.PARKED
            chosen.append(policy)
        if not self.fits(goal):
            return None
        for policy in reversed(chosen[:-1]):  # a later one may have made the room of an earlier one, too
            if self.fits({**goal, policy: Tier.PAUSED}):
                goal[policy] = Tier.PAUSED
                chosen.remove(policy)
        return tuple(chosen)

    def _may_park(self, tiers: Tiers, policy: str) -> bool:
        """Whether a resident is paused and could be parked now. A parked one has to be able to come back some time."""
        if tiers.get(policy) is not Tier.PAUSED or not self.footprint(policy).parkable:
            return False
        return self.hosts({**tiers, policy: Tier.PARKED})

    def _least_needed(self) -> Sequence[str]:
        return [each.policy for each in reversed(self.footprints)]

    # ------------------------------------------------------------------ who is where

    def filled(self) -> Tiers:
        """Return the tiers that fill the seat best: in the order of need, each as high as those before it leave room for.

        Whoever is parked can be unparked by displacing others, one after the other, within both budgets. So can whoever
        starts in order to be parked.
        """
        tiers = {each.policy: Tier.COLD for each in self.footprints}
        for each in self.footprints:
            for tier in (Tier.PAUSED, Tier.PARKED):
                if self._sound({**tiers, each.policy: tier}, newest=each):
                    tiers[each.policy] = tier
                    break
        return MappingProxyType(tiers)

    def _sound(self, tiers: Tiers, newest: Footprint) -> bool:
        """Whether tiers fit, and everyone who is parked can come back."""
        if not self.fits(tiers) or not self.hosts(tiers):
            return False
        if tiers[newest.policy] is Tier.PARKED and not self._can_start_to_be_parked(tiers, newest):
            return False
        parked = [policy for policy, tier in tiers.items() if tier is Tier.PARKED]
        return all(self.displaced(tiers, policy, Tier.PAUSED) is not None for policy in parked)

    def _can_start_to_be_parked(self, tiers: Tiers, newest: Footprint) -> bool:
        """Whether one that is cold can be started and parked: those that it displaces stay in host memory meanwhile."""
        if not newest.parkable:
            return False
        before = {**tiers, newest.policy: Tier.COLD}
        displaced = self.displaced(before, newest.policy, Tier.AWAKE)
        if displaced is None:
            return False
        return self.hosts({**tiers, **dict.fromkeys(displaced, Tier.PARKED)})

    def _compute(self, footprints: Sequence[Footprint], tiers: Tiers) -> int:
        there = [each for each in footprints if tiers[each.policy] in _IN_DEVICE_MEMORY]
        everyone = [each.compute for each in there]
        if not self.exclusive:
            return sum(everyone)
        awake = sum(each.compute for each in there if tiers[each.policy] is Tier.AWAKE)
        return max([awake, *everyone], default=0)


def _reserve(device_bytes: int | None) -> int:
    return 0 if device_bytes is None else -(-device_bytes * RESERVE_PERCENT // _PERCENT)


def _all_held(footprints: Sequence[Footprint], tiers: Tiers) -> int:
    return sum(_held(each, tiers[each.policy]) for each in footprints)


def _held(footprint: Footprint, tier: Tier) -> int:
    match tier:
        case Tier.AWAKE | Tier.PAUSED:
            return footprint.paused
        case Tier.PARKED:
            return footprint.parked
        case Tier.COLD:
            return 0


def _hosted(footprint: Footprint, tier: Tier) -> int:
    match tier:
        case Tier.PARKED:
            return footprint.host
        case Tier.AWAKE | Tier.PAUSED:
            return footprint.copy
        case Tier.COLD:
            return 0


def mib(value: int) -> int:
    """Return bytes in MiB, rounded up, for messages."""
    return -(-value // _MIB)
