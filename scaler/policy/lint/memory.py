"""GPU memory of one seat: what its residents hold paused, and how much KV memory that leaves for whoever serves.

    Σ paused + max(KV) + 2 % ≤ memory        where a paused resident releases its KV memory
    Σ (paused + KV)    + 2 % ≤ memory        where it keeps it

Alone on the seat a resident would have memory − 2 % − its own paused bytes for KV memory. What it has less than it needs
is what sharing takes from it, and at once from the requests that it can hold. Where residents may be parked, those that
find no room are: who is, is worked out as agents do it (`warmpool.tiers`), from what is written instead of what is measured.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from scaler.policy.document import Path
from scaler.policy.fleet import Fleet, KvWhenPaused
from scaler.policy.lint.assumptions import LOSE_SHARE, WARN_SHARE
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import MIB, Figure, Finding, Place, Severity, Term
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import Engine, EngineType, ScalingPolicy
from warmpool import tiers
from warmpool.tiers import RESERVE_PERCENT, Tier

_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one resident takes of a seat.

    Attributes:
        name: name of the policy whose resident it is.
        policy: the policy; None for a resident that a pod template lists and no policy is behind.
        target: requests in flight that a seat of the fleet is to hold for it.
        paused: MiB while it is paused with its KV memory released; None when not known.
        kv: MiB more while it serves; None when not known.
    """

    name: str
    policy: ScalingPolicy | None
    target: int
    paused: int | None
    kv: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one resident finds on a seat.

    Attributes:
        footprint: the resident.
        alone: MiB of KV memory that it could have with the seat to itself; None when not known.
        shared: MiB of KV memory that the others leave it; None when not known. Negative: their weights don't fit.
    """

    footprint: Footprint
    alone: int | None
    shared: int | None

    @property
    def share(self) -> float | None:
        """Part of what it needs, or could have alone where that isn't known, that the others leave it: at most 1."""
        needed = self.alone if self.footprint.kv is None else self.footprint.kv
        if self.shared is None or needed is None or needed <= 0:
            return None
        return max(0.0, min(1.0, self.shared / needed))

    @property
    def in_flight(self) -> int | None:
        """Requests that it can hold with that, of `targetInFlight`: KV memory is what bounds them."""
        return None if self.share is None else math.floor(self.footprint.target * self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatMemory:
    """The arithmetic of one seat.

    Attributes:
        fleet: whose seat.
        needed: what its residents need at most, in MiB; of those that may be parked, the ones that aren't.
        memory: MiB of its GPUs; None when nobody said.
        rooms: what each resident finds.
        tiers: where each resident stands, the first ones first; empty where none may be parked, or it can't be told.
        displaced: for each parked resident, who is parked in its place when it wakes.
        host_wanted: MiB of host memory with which nobody would be cold; None where none would do, or it can't be told.
    """

    fleet: Fleet
    needed: Figure
    memory: int | None
    rooms: tuple[Room, ...]
    tiers: Mapping[str, Tier] = field(default_factory=lambda: MappingProxyType({}))
    displaced: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    host_wanted: int | None = None

    @property
    def host(self) -> int:
        """MiB of host memory for parked residents."""
        return self.fleet.spec.spare.parked.host_memory_mib

    def at(self, tier: Tier) -> list[Footprint]:
        """List the residents in a tier."""
        return [room.footprint for room in self.rooms if self.tiers.get(room.footprint.name) is tier]

    def footprint(self, name: str) -> Footprint | None:
        """Return what a resident takes; None for one that doesn't live there."""
        return next((room.footprint for room in self.rooms if room.footprint.name == name), None)

    @property
    def usable(self) -> int | None:
        """Memory less the reserve."""
        return None if self.memory is None else self.memory - reserve(self.memory)

    @property
    def missing(self) -> list[str]:
        """Name the fields that would have to be known."""
        found = [] if self.memory is not None else ["seat.memoryMiB"]
        for room in self.rooms:
            footprint = room.footprint
            keys = (("pausedMiB", footprint.paused), ("kvMiB", footprint.kv))
            found += [f"engine.{key} of {footprint.name}" for key, value in keys if value is None]
        return found


def reserve(memory: int) -> int:
    """Return what stays free of a seat's memory, in MiB, rounded up."""
    return -(-memory * RESERVE_PERCENT // _PERCENT)


def seat_memory(subject: Subject, fleet: Fleet) -> SeatMemory | None:
    """Do the arithmetic for a fleet's seats; None where they have no GPUs, or nobody lives on them."""
    footprints = list(_footprints(subject, fleet))
    if not fleet.spec.seat.gpus or not footprints:
        return None
    memory = subject.memory_mib(fleet)
    keeps = fleet.spec.seat.kv_when_paused is KvWhenPaused.KEEP
    standing = _standing(fleet, footprints, memory)
    paused = [each for each in footprints if standing.tiers.get(each.name, Tier.PAUSED) is Tier.PAUSED]
    return SeatMemory(
        fleet=fleet,
        needed=_needed(paused or footprints, memory, keeps=keeps),
        memory=memory,
        rooms=tuple(_room(each, footprints, memory, standing, keeps=keeps) for each in footprints),
        tiers=standing.tiers,
        displaced=standing.displaced,
        host_wanted=standing.host_wanted,
    )


@dataclass(frozen=True, slots=True)
class _Standing:
    """Who stands where, who makes room for whom, and with how much host memory nobody would be cold."""

    host_wanted: int | None = None
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    displaced: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def beside(self, name: str) -> Mapping[str, Tier]:
        """Return where the others stand while a resident serves."""
        parked = dict.fromkeys(self.displaced.get(name, ()), Tier.PARKED)
        return {**self.tiers, **parked}


def _standing(fleet: Fleet, footprints: Sequence[Footprint], memory: int | None) -> _Standing:
    """Say who is paused, parked and cold, and who makes room for the parked; nothing where that isn't known."""
    host = fleet.spec.spare.parked.host_memory_mib
    known = all(each.paused is not None and each.kv is not None for each in footprints)
    if not host or memory is None or not known:
        return _Standing()
    keeps = fleet.spec.seat.kv_when_paused is KvWhenPaused.KEEP
    sizes = [_size(each, keeps=keeps) for each in footprints]
    room = tiers.Room(footprints=sizes, device_bytes=memory, host_bytes=host)
    filled = room.filled()
    parked = [name for name, tier in filled.items() if tier is Tier.PARKED]
    displaced = {name: room.displaced(filled, name, Tier.AWAKE) or () for name in parked}
    return _Standing(tiers=filled, displaced=displaced, host_wanted=_host_wanted(room))


def _host_wanted(room: tiers.Room) -> int | None:
    """Return the least host memory with which nobody is cold; None where even room for all weights doesn't do."""

    def is_enough(host: int) -> bool:
        return Tier.COLD not in replace(room, host_bytes=host).filled().values()

    most = sum(each.host for each in room.footprints)
    if not is_enough(most):
        return None
    return bisect_left(range(most), True, key=is_enough)


def _size(footprint: Footprint, *, keeps: bool) -> tiers.Footprint:
    """Return a footprint as the arithmetic of agents has it, in MiB: what is parked is taken to be all that is paused."""
    paused, kv, policy = footprint.paused or 0, footprint.kv or 0, footprint.policy
    return tiers.Footprint(
        policy=footprint.name,
        paused=paused + (kv if keeps else 0),
        compute=0 if keeps else kv,
        host=paused,
        parkable=policy is None or policy.spec.engine.type is not EngineType.GENERIC,
    )


def _room(
    footprint: Footprint,
    footprints: Sequence[Footprint],
    memory: int | None,
    standing: _Standing,
    *,
    keeps: bool,
) -> Room:
    usable = None if memory is None else memory - reserve(memory)
    alone = _less(usable, footprint.paused)
    at = standing.beside(footprint.name)
    others = [
        other
        for other in footprints
        if other is not footprint and at.get(other.name, Tier.PAUSED) is Tier.PAUSED
    ]
    held = [other.paused for other in others] + ([other.kv for other in others] if keeps else [])
    return Room(footprint=footprint, alone=alone, shared=_less(alone, *held))


def memory_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what the arithmetic says of every fleet."""
    for fleet in subject.policies.fleets.values():
        seat = seat_memory(subject, fleet)
        if seat is None:
            continue
        yield from _keeping(seat)
        yield from _fitting(seat)
        yield from _parking(seat)
        yield from _unmeasured(seat)
        for room in seat.rooms:
            yield from _cut(seat, room)
    for policy in subject.policies.policies.values():
        yield from _written_cut(policy)


def _footprints(subject: Subject, fleet: Fleet) -> Iterator[Footprint]:
    """Yield the residents: as a known pod template lists them, else one of each policy that names the fleet."""
    listed = subject.residents_on(fleet)
    shares = {policy.metadata.name: (policy, share) for policy, _, share in subject.shares_on(fleet)}
    written = {each.policy: (each.paused_mib, each.compute_mib) for each in listed or ()}
    for name in shares if listed is None else written:
        policy, share = shares.get(name, (None, None))
        engine = Engine() if policy is None else policy.spec.engine
        paused, kv = written.get(name, (None, None))
        yield Footprint(
            name=name,
            policy=policy,
            target=0 if share is None else share.target_in_flight,
            paused=engine.paused_mib if paused is None else paused,
            kv=engine.compute_mib if kv is None else kv,
        )


def _less(value: int | None, *others: int | None) -> int | None:
    for other in others:
        value = None if value is None or other is None else value - other
    return value


def _needed(footprints: list[Footprint], memory: int | None, *, keeps: bool) -> Figure:
    """Σ paused + max(KV), or Σ KV where it is kept, + the reserve."""
    terms = [
        _term(f"{each.name} paused", each.paused, f"engine.pausedMiB of {each.name}") for each in footprints
    ]
    known = [each for each in footprints if each.kv is not None]
    if keeps:
        terms += [
            _term(f"{each.name} KV, kept", each.kv, f"engine.kvMiB of {each.name}") for each in footprints
        ]
    elif len(known) < len(footprints):
        lacking = ", ".join(each.name for each in footprints if each.kv is None)
        terms.append(_term("KV of whoever serves", None, f"engine.kvMiB of {lacking}"))
    else:
        largest = max(known, key=lambda each: each.kv or 0)
        terms.append(_term(f"{largest.name} KV, the largest", largest.kv, f"engine.kvMiB of {largest.name}"))
    kept = None if memory is None else reserve(memory)
    terms.append(_term(f"{RESERVE_PERCENT} % reserve", kept, "seat.memoryMiB, or --seat-memory-mib N"))
    return Figure(name="residents of a seat", unit=MIB, terms=tuple(terms))


def _term(name: str, value: int | None, origin: str) -> Term:
    shown = origin if value is not None else f"unknown: set {origin}"
    return Term(name=name, value=None if value is None else float(value), unit=MIB, origin=shown)


def _keeping(seat: SeatMemory) -> Iterator[Finding]:
    if len(seat.rooms) > 1 and seat.fleet.spec.seat.kv_when_paused is KvWhenPaused.KEEP:
        names = ", ".join(room.footprint.name for room in seat.rooms)
        yield Finding(
            code=Code.KEEPS_KV_ON_SHARED_SEAT,
            severity=Severity.WARNING,
            place=Place.of(seat.fleet, "spec", "seat", "kvWhenPaused"),
            message=f"{names} share a seat, and each keeps its KV memory while it is paused",
            hint="kvWhenPaused: Release gives all of it to whoever serves",
        )


def _fitting(seat: SeatMemory) -> Iterator[Finding]:
    """Whether all of it fits; what is known may already be too much."""
    path: Path = ("spec", "seat", "memoryMiB") if seat.fleet.spec.seat.memory_mib else ("spec", "seat")
    place = Place.of(seat.fleet, *path)
    needed, memory = seat.needed.total or 0.0, seat.memory
    if memory is not None and needed > memory:
        yield Finding(
            code=Code.SEAT_MEMORY_EXCEEDED,
            severity=Severity.ERROR,
            place=place,
            message=f"the residents of a seat need {_sum(seat.needed)}, and its GPUs have {memory} MiB",
            hint="put fewer models on the fleet, lower their KV memory, or give a seat more GPU memory",
            terms=seat.needed.terms,
        )
    elif seat.missing and len(seat.rooms) > 1:
        yield Finding(
            code=Code.MEMORY_UNKNOWN,
            severity=Severity.INFO,
            place=place,
            message=f"whether {len(seat.rooms)} residents fit a seat can't be told without {', '.join(seat.missing)}",
            hint="set them as measured, and seat.memoryMiB or --seat-memory-mib N",
            terms=seat.needed.terms,
        )


def _parking(seat: SeatMemory) -> Iterator[Finding]:
    """Who is paused, parked and cold, where host memory is there for parked residents."""
    place = Place.of(seat.fleet, "spec", "spare", "parked", "hostMemoryMiB")
    parked, cold = seat.at(Tier.PARKED), seat.at(Tier.COLD)
    hosted = tuple(_term(each.name, each.paused, f"engine.pausedMiB of {each.name}") for each in parked)
    if parked:
        paused = ", ".join(each.name for each in seat.at(Tier.PAUSED)) or "nobody"
        names = ", ".join(each.name for each in parked)
        host = sum(each.paused or 0 for each in parked)
        yield Finding(
            code=Code.RESIDENTS_PARKED,
            severity=Severity.INFO,
            place=place,
            message=(
                f"on a seat there is room for {paused} to be paused; {names}"
                f" {'waits' if len(parked) == 1 else 'wait'} in host memory, in {host} of {seat.host} MiB. Who has demand is"
                " brought back ahead of its bursts"
            ),
            terms=hosted,
        )
    if cold:
        names = ", ".join(each.name for each in cold)
        yield Finding(
            code=Code.RESIDENTS_COLD,
            severity=Severity.WARNING,
            place=place,
            message=f"{names} find{'s' if len(cold) == 1 else ''} room in neither GPU nor host memory of a seat beside the"
            " others, and can't be promoted there until one of them goes",
            hint="put fewer models on the fleet"
            if seat.host_wanted is None
            else f"hostMemoryMiB: {seat.host_wanted} would do: all parked residents, and one that moves out before another"
            " moves in",
            terms=hosted,
        )
    if seat.tiers and not parked and not cold and len(seat.rooms) > 1:
        yield Finding(
            code=Code.HOST_MEMORY_UNUSED,
            severity=Severity.INFO,
            place=place,
            message="all residents of a seat find room in its GPU memory: none is parked",
            hint="it may stay for residents that are to come",
            terms=seat.needed.terms,
        )


def _unmeasured(seat: SeatMemory) -> Iterator[Finding]:
    """Whose promotions can't be told from ones that hold too much, although everything else is written."""
    written = [each.footprint.policy for each in seat.rooms if each.footprint.policy is not None]
    engines = {each.metadata.name: each.spec.engine for each in written}
    lacking = [name for name, engine in engines.items() if engine.activation_mib is None]
    if len(seat.rooms) > 1 and lacking and not seat.missing:
        yield Finding(
            code=Code.PROMOTIONS_NOT_VERIFIED,
            severity=Severity.INFO,
            place=Place.of(seat.fleet, "spec", "seat"),
            message=f"a promotion of {', '.join(lacking)} that holds more than it should isn't noticed before there is no room",
            hint="set engine.activationMiB, what computing takes at its peak beside kvMiB: agents then check each promotion",
        )


def _cut(seat: SeatMemory, room: Room) -> Iterator[Finding]:
    """What the neighbours take from one resident.

    Where it isn't known how much KV memory its requests take, the share of what it could have alone is the only measure,
    and a bad one: it may need far less. So that is no error.
    """
    share, footprint = room.share, room.footprint
    cold = seat.tiers.get(footprint.name) is Tier.COLD
    if len(seat.rooms) == 1 or footprint.policy is None or share is None or share >= WARN_SHARE or cold:
        return
    measured = footprint.kv is not None
    of = "the KV memory that it needs" if measured else "the KV memory that it could have alone"
    needed = footprint.kv if measured else room.alone
    yield Finding(
        code=Code.SHARING_CUTS,
        severity=Severity.ERROR if measured and share <= LOSE_SHARE else Severity.WARNING,
        place=_share_place(seat.fleet, footprint.policy),
        message=(
            f"on {seat.fleet.metadata.name} its neighbours leave {max(0, room.shared or 0)} of {needed} MiB, {share:.0%} of"
            f" {of}: {room.in_flight} of {footprint.target} requests in flight"
        ),
        hint=_cut_hint(measured=measured, share=share),
        terms=(
            _term("GPU memory of a seat", seat.memory, "seat.memoryMiB, or --seat-memory-mib N"),
            _term(f"{RESERVE_PERCENT} % reserve", -reserve(seat.memory or 0), "seat.memoryMiB"),
            _term(
                f"{footprint.name} paused", -(footprint.paused or 0), f"engine.pausedMiB of {footprint.name}"
            ),
            *_held(seat, room),
        ),
    )


def _held(seat: SeatMemory, room: Room) -> Iterator[Term]:
    """What the neighbours of a resident hold while it serves, as deductions."""
    away = {*seat.displaced.get(room.footprint.name, ()), *(each.name for each in seat.at(Tier.PARKED))}
    away |= {each.name for each in seat.at(Tier.COLD)}
    for other in (each.footprint for each in seat.rooms if each is not room):
        if other.name in away:
            continue
        yield _term(f"{other.name} paused", -(other.paused or 0), f"engine.pausedMiB of {other.name}")
        if seat.fleet.spec.seat.kv_when_paused is KvWhenPaused.KEEP:
            yield _term(f"{other.name} KV, kept", -(other.kv or 0), f"engine.kvMiB of {other.name}")


def _cut_hint(*, measured: bool, share: float) -> str:
    if not measured:
        return "set engine.kvMiB: how much KV memory targetInFlight requests take isn't known"
    if share <= LOSE_SHARE:
        return "at half, sharing costs more GPUs than it saves: put fewer models on the fleet"
    return "below three quarters, sharing loses most of its gain: put fewer models on the fleet"


def _written_cut(policy: ScalingPolicy) -> Iterator[Finding]:
    """What the file itself says: a seat of a later fleet holds markedly fewer requests than one of the first."""
    first, *later = policy.spec.fleets
    for index, share in enumerate(later, start=1):
        ratio = share.target_in_flight / first.target_in_flight
        if ratio >= WARN_SHARE:
            continue
        yield Finding(
            code=Code.SHARING_CUTS,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "fleets", index, "targetInFlight"),
            message=(
                f"a seat of {share.name} holds {share.target_in_flight} requests in flight, {ratio:.0%} of the"
                f" {first.target_in_flight} on {first.name}"
            ),
            hint="at three quarters shared spares still save GPUs, at half they don't; smaller GPUs are another matter",
            terms=tuple(
                Term(
                    name=f"targetInFlight on {each.name}",
                    value=float(each.target_in_flight),
                    unit="requests in flight",
                    origin="fleets[].targetInFlight",
                )
                for each in (first, share)
            ),
        )


def _share_place(fleet: Fleet, policy: ScalingPolicy) -> Place:
    index = [share.name for share in policy.spec.fleets].index(fleet.metadata.name)
    return Place.of(policy, "spec", "fleets", index)


def _sum(figure: Figure) -> str:
    parts = " + ".join(f"{term.value:.0f} ({term.name})" for term in figure.terms if term.value is not None)
    more = " and what isn't known" if figure.unknown else ""
    return f"{parts} = {figure.total:.0f} MiB{more}"
