"""From caches to one snapshot: what the law may look at, counted from seats and signals. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from types import MappingProxyType

from scaler.cluster.port import Stock
from scaler.core.model import FleetSpec, FleetView, Kind, Load, PolicySpec, Snapshot, Supply
from scaler.core.starting import late_after
from warmpool.seats import FleetName, Operation, PolicyName, Resident, Seat, SeatValue, isnt_up
from warmpool.states import Depth, ResidentState

_IN_ROTATION = frozenset(
    {
        ResidentState.SERVING,
        ResidentState.PAUSED,
        ResidentState.PROMOTING,
        ResidentState.PROVING,
        ResidentState.DRAINING,
        ResidentState.UNPARKING,
        ResidentState.PARKED,
    }
)
_FIRST_DEADLINE_SECONDS = 3600.0
"""While no start has been seen nobody knows how long one takes."""
_STARTING, _SERVING, _SPARE, _LENT = SeatValue.STARTING, SeatValue.SERVING, SeatValue.SPARE, SeatValue.LENT
_DRAINING, _HELD = SeatValue.DRAINING, SeatValue.HELD
_IS_PAUSED, _IS_PARKED, _SERVES = ResidentState.PAUSED, ResidentState.PARKED, ResidentState.SERVING
"""By names of their own: looking an enum's members up takes long, and there are thousands of seats."""
_PAUSED: Mapping[SeatValue, tuple[str, ...]] = {
    _SPARE: ("promotable",),
    _LENT: ("promotable",),
    _SERVING: ("switchable",),
    _DRAINING: ("switchable",),
}
"""What a resident that is paused on a seat is to its policy's supply: another may have to leave the seat first."""
_PARKED: Mapping[SeatValue, tuple[str, ...]] = MappingProxyType(
    {**_PAUSED, _SPARE: ("promotable", "parked"), _LENT: ("promotable", "parked")}
)
"""The same for one that is parked, or on the move."""
_BEHIND = (SeatValue.SERVING, SeatValue.DRAINING, SeatValue.PROMOTING)
"""Another resident has the seat; one that isn't up can start here once that one has left."""
_PROMOTIONS = (Operation.PROMOTE, Operation.SWITCH, Operation.RECALL)
_MOVES = (Operation.PARK, Operation.UNPARK)


def start_deadline(seconds: float) -> float:
    """Return for how many seconds a seat's start may get no further before it is no supply on its way any more.

    Args:
        seconds: what seats of its fleet have taken to start; 0 while none has been seen to.
    """
    return late_after(seconds) if seconds > 0.0 else _FIRST_DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class _Counted:
    """A fleet as it was last counted; until a time, since a seat that starts may come to its deadline."""

    seats: Sequence[Seat]
    policies: Sequence[PolicyName]
    until: float
    view: FleetView


class Views:
    """Counts fleets. One whose seats are the same objects as at the last count isn't counted again.

    Args:
        start_seconds: what seats of a fleet have taken to start; 0 while none has been seen to.

    Attributes:
        wall: Unix time of the count.
    """

    def __init__(self, start_seconds: Callable[[FleetName], float] | None = None) -> None:
        self._start_seconds = start_seconds or (lambda _fleet: 0.0)
        self._known: dict[FleetName, _Counted] = {}
        self.wall = -math.inf

    def of(
        self, fleet: FleetName, seats: Sequence[Seat], replicas: int, policies: Sequence[PolicyName]
    ) -> FleetView:
        """Return what a fleet is made of.

        Args:
            fleet: which one.
            seats: its seats; who gives the same object says that nothing has changed.
            replicas: what its workload is asked for.
            policies: those that may serve on it.
        """
        known, start = self._known.get(fleet), self._start_seconds(fleet)
        if (
            known is None
            or known.seats is not seats
            or known.policies != policies
            or self.wall >= known.until
        ):
            moved_before = self.wall - start_deadline(start)
            worth = [seat.value for seat in seats]
            until = self.wall + min(_until_overdue(seats, worth, moved_before), default=math.inf)
            values = _counted_as(seats, worth, frozenset(policies), moved_before)
            view = _view(seats, values, policies, (replicas, start))
        elif known.view.replicas != replicas or known.view.start_seconds != start:
            until, view = known.until, replace(known.view, replicas=replicas, start_seconds=start)
        else:
            return known.view
        if known is not None and known.view == view:
            view = known.view  # whoever keeps something by it finds the same object again
        self._known[fleet] = _Counted(seats, policies, until, view)
        return view


def _until_overdue(
    seats: Sequence[Seat], values: Sequence[SeatValue], moved_before: float
) -> Iterator[float]:
    """Yield the seconds after which each seat that starts will have done so for too long."""
    if _STARTING not in values:
        return
    for seat, value in zip(seats, values, strict=True):
        if value is _STARTING and (since := _moved_at(seat)) > max(0.0, moved_before):
            yield since - moved_before


def _moved_at(seat: Seat) -> float:
    """Return when a seat's start last got a step further."""
    return max([seat.created_at, *(resident.since for resident in seat.residents)])


def observe(
    policies: Sequence[PolicySpec],
    fleets: Sequence[FleetSpec],
    stock: Stock,
    replicas: Callable[[FleetName], int],
    load: Callable[[PolicyName], Load],
    views: Views | None = None,
) -> Snapshot:
    """Count seats and read signals into one snapshot.

    Args:
        policies: the policies, all that may serve on the fleets.
        fleets: the fleets.
        stock: the seats per fleet, from the cluster's cache; those of other fleets are ignored.
        replicas: what each fleet's workload is asked for.
        load: what the signals say of each policy.
        views: what was counted before.
    """
    counted, named = views or Views(), _named(policies)
    return Snapshot(
        loads={policy.name: load(policy.name) for policy in policies},
        fleets={
            fleet.name: counted.of(
                fleet.name, stock.get(fleet.name, ()), replicas(fleet.name), named.get(fleet.name, [])
            )
            for fleet in fleets
        },
    )


def _named(policies: Iterable[PolicySpec]) -> Mapping[FleetName, Sequence[PolicyName]]:
    """Return per fleet the policies that may serve on it."""
    named: dict[FleetName, list[PolicyName]] = {}
    for policy in policies:
        for fleet in {share.fleet for share in policy.fleets}:
            named.setdefault(fleet, []).append(policy.name)
    return named


def _view(
    seats: Sequence[Seat],
    values: Sequence[SeatValue],
    policies: Sequence[PolicyName],
    workload: tuple[int, float],
) -> FleetView:
    replicas, start_seconds = workload
    return FleetView(
        serving=values.count(_SERVING) + values.count(SeatValue.PROMOTING),
        draining=values.count(_DRAINING),
        spare=values.count(_SPARE),
        lent=values.count(_LENT),
        starting=values.count(_STARTING),
        held=values.count(_HELD),
        doomed=values.count(SeatValue.DOOMED),
        replicas=replicas,
        start_seconds=start_seconds,
        supply=_supplies(seats, values, policies),
        kinds=_kinds(seats, values, frozenset(policies)),
    )


def _counted_as(
    seats: Sequence[Seat], values: Sequence[SeatValue], policies: frozenset[PolicyName], moved_before: float
) -> Sequence[SeatValue]:
    """Return what seats are worth to these policies.

    One that serves a policy which is no longer in force is left as it is, and takes a replica without serving anybody:
    counted as serving it would belong to no policy's want, and spare seats would be deleted in its place. One whose
    start has got no further since `moved_before` takes a replica, and nobody knows whether it will ever serve.
    """
    if _SERVING not in values and _STARTING not in values:
        return values
    return [
        _HELD
        if (value is _SERVING and policies.isdisjoint(seat.serving))
        or (value is _STARTING and 0.0 < _moved_at(seat) <= moved_before)
        else value
        for seat, value in zip(seats, values, strict=True)
    ]


_IN_USE = frozenset(
    {SeatValue.SERVING, SeatValue.PROMOTING, SeatValue.DRAINING, SeatValue.SPARE, SeatValue.LENT}
)
"""Seats that the law hands out."""


def _kinds(
    seats: Sequence[Seat], values: Sequence[SeatValue], policies: frozenset[PolicyName]
) -> tuple[Kind, ...]:
    """Return the seats by who is up on them; nothing where all are alike, or one policy has them to itself."""
    if len(policies) == 1:
        return ()
    found = Counter(
        [seat.lives for seat, value in zip(seats, values, strict=True) if value in _IN_USE and seat.usable]
    )
    kinds: Counter[tuple[tuple[PolicyName, ...], tuple[PolicyName, ...]]] = Counter()
    for (up, starts), number in found.items():
        kinds[_those(up, policies), _those(starts, policies)] += number
    if len(kinds) <= 1:
        return ()
    return tuple(Kind(up=up, starts=starts, seats=number) for (up, starts), number in sorted(kinds.items()))


def _those(names: tuple[PolicyName, ...], policies: frozenset[PolicyName]) -> tuple[PolicyName, ...]:
    return tuple(sorted(name for name in names if name in policies))


def _supplies(
    seats: Sequence[Seat], values: Sequence[SeatValue], policies: Sequence[PolicyName]
) -> Mapping[PolicyName, Supply]:
    found: dict[PolicyName, list[str]] = {policy: [] for policy in policies}
    wakes = _Wakes()
    for seat, value in zip(seats, values, strict=True):
        claim, serving = seat.claim, seat.serving
        claimed = claim.policy if claim is not None and claim.operation in _PROMOTIONS else None
        if claimed is not None and claimed in found:
            found[claimed].append("promoting")
        if not seat.usable:
            continue
        paused = _PAUSED.get(value, ())
        for resident in seat.residents:
            policy, state = resident.policy, resident.state
            if (parts := found.get(policy)) is None:
                continue
            if resident.wake_seconds:
                wakes.take(resident)
            if policy == claimed:
                continue
            if policy in serving and (state is _SERVES or state in _IN_ROTATION):
                parts.append("serving")
            elif state is _IS_PAUSED:
                parts += paused
            else:
                parts += _parts(seat, value, resident)
    return {
        policy: Supply(
            **{part: parts.count(part) for part in set(parts)},
            paused_wake=wakes.paused(policy),
            parked_wake=wakes.parked(policy),
        )
        for policy, parts in found.items()
    }


class _Wakes:
    """How long residents of one fleet have taken to wake."""

    def __init__(self) -> None:
        self._paused: dict[PolicyName, list[float]] = {}
        self._parked: dict[PolicyName, list[float]] = {}

    def take(self, resident: Resident) -> None:
        """Take what one resident was seen to take.

        Whether a paused one gives its KV memory back is the fleet's setting; one that has done both counts with the slower.
        """
        paused = 0.0
        for depth, seconds in resident.wake_seconds.items():
            if depth is Depth.PARKED:
                self._parked.setdefault(resident.policy, []).append(seconds)
            else:
                paused = max(paused, seconds)
        if paused > 0.0:
            self._paused.setdefault(resident.policy, []).append(paused)

    def paused(self, policy: PolicyName) -> float:
        """Return the median of a policy's wakes from pause; 0 while none is known."""
        return median(self._paused[policy]) if policy in self._paused else 0.0

    def parked(self, policy: PolicyName) -> float:
        """Return the median of a policy's wakes from host memory; 0 while none is known."""
        return median(self._parked[policy]) if policy in self._parked else 0.0


def _parts(seat: Seat, value: SeatValue, resident: Resident) -> tuple[str, ...]:
    """Return what a resident of a usable seat is to its policy's supply that is neither in rotation nor paused."""
    state = resident.state
    if value is _DRAINING and (state is ResidentState.DRAINING or state is ResidentState.SERVING):
        return ("draining",)
    if state is _IS_PARKED or _moves(seat, resident):
        return _PARKED.get(value, ())
    return _parts_of_starts(seat, value, resident)


def _parts_of_starts(seat: Seat, value: SeatValue, resident: Resident) -> tuple[str, ...]:
    """Return the same for a resident that isn't up; nothing if it is up, or starts on a seat of its own."""
    if not isnt_up(seat, resident):
        return ()
    if value is _SPARE or value is _LENT:
        return ("cramped",) if resident.waiting else ("startable",)
    return ("blocked",) if value in _BEHIND and not resident.waiting else ()


def _moves(seat: Seat, resident: Resident) -> bool:
    """Whether a resident changes its depth by our order: a promotion takes that over, and has the seat at once."""
    claim = seat.claim
    return (
        claim is not None
        and claim.operation in _MOVES
        and claim.policy == resident.policy
        and (resident.state is ResidentState.PARKING or resident.state is ResidentState.UNPARKING)
    )


def serves(seat: Seat, policy: PolicyName) -> bool:
    """Whether the seat's resident of `policy` is in rotation and can answer.

    The label is believed over an agent's report that may be a moment older: a resident that was put into rotation a
    moment ago counts, whatever step its agent last reported, unless it is one that can't lead there.
    """
    if policy not in seat.serving or not seat.answers:
        return False
    resident = seat.resident(policy)
    return resident is not None and resident.state in _IN_ROTATION
