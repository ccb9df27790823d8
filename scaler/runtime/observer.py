"""From caches to one snapshot: what the law may look at, counted from seats and signals. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from scaler.core.model import FleetSpec, FleetView, Load, PolicySpec, Snapshot, Supply
from warmpool.seats import FleetName, Operation, PolicyName, Seat, SeatValue, seat_value
from warmpool.states import ResidentState

_IN_ROTATION = frozenset(
    {
        ResidentState.SERVING,
        ResidentState.PROMOTING,
        ResidentState.PROVING,
        ResidentState.PAUSED,
        ResidentState.DRAINING,
    }
)
_OCCUPIED = frozenset({SeatValue.SERVING, SeatValue.DRAINING})
"""Another resident computes here; this one's could take its place."""
_PROMOTIONS = frozenset({Operation.PROMOTE, Operation.SWITCH, Operation.RECALL})


def observe(
    policies: Sequence[PolicySpec],
    fleets: Sequence[FleetSpec],
    seats: Sequence[Seat],
    replicas: Callable[[FleetName], int],
    load: Callable[[PolicyName], Load],
) -> Snapshot:
    """Count seats and read signals into one snapshot.

    Args:
        policies: all policies.
        fleets: all fleets; seats of other fleets are ignored.
        seats: all seats, from the cluster's cache.
        replicas: what each fleet's workload is asked for.
        load: what the signals say of each policy.
    """
    names = {fleet.name for fleet in fleets}
    by_fleet: dict[FleetName, list[Seat]] = {name: [] for name in names}
    for seat in seats:
        if seat.fleet in names:
            by_fleet[seat.fleet].append(seat)
    return Snapshot(
        loads={policy.name: load(policy.name) for policy in policies},
        fleets={
            fleet.name: _view(by_fleet[fleet.name], replicas(fleet.name), _named(policies, fleet.name))
            for fleet in fleets
        },
    )


def _named(policies: Iterable[PolicySpec], fleet: FleetName) -> Sequence[PolicyName]:
    return [policy.name for policy in policies if any(share.fleet == fleet for share in policy.fleets)]


def _view(seats: Sequence[Seat], replicas: int, policies: Sequence[PolicyName]) -> FleetView:
    named = frozenset(policies)
    values = [_value(seat, named) for seat in seats]
    return FleetView(
        serving=values.count(SeatValue.SERVING) + values.count(SeatValue.PROMOTING),
        draining=values.count(SeatValue.DRAINING),
        spare=values.count(SeatValue.SPARE),
        lent=values.count(SeatValue.LENT),
        starting=values.count(SeatValue.STARTING),
        held=values.count(SeatValue.HELD),
        doomed=values.count(SeatValue.DOOMED),
        replicas=replicas,
        supply=_supplies(seats, values, policies),
    )


def _value(seat: Seat, policies: frozenset[PolicyName]) -> SeatValue:
    """Return what a seat is worth to these policies.

    One that serves a policy which is no longer in force is left as it is, and takes a replica without serving anybody:
    counted as serving it would belong to no policy's want, and spare seats would be deleted in its place.
    """
    value = seat_value(seat)
    if value is SeatValue.SERVING and policies.isdisjoint(seat.serving):
        return SeatValue.HELD
    return value


def _supplies(
    seats: Sequence[Seat], values: Sequence[SeatValue], policies: Sequence[PolicyName]
) -> Mapping[PolicyName, Supply]:
    supplies: dict[PolicyName, Supply] = {}
    for policy in policies:
        serving = promoting = draining = promotable = switchable = 0
        for seat, value in zip(seats, values, strict=True):
            if claimed_for(seat, policy):
                promoting += 1
            elif serves(seat, policy):
                serving += 1
            elif value is SeatValue.DRAINING and _recallable(seat, policy):
                draining += 1
            elif value in {SeatValue.SPARE, SeatValue.LENT} and seat.promotable(policy):
                promotable += 1
            elif value in _OCCUPIED and seat.promotable(policy):
                switchable += 1
        supplies[policy] = Supply(
            serving=serving,
            promoting=promoting,
            draining=draining,
            promotable=promotable,
            switchable=switchable,
        )
    return supplies


def claimed_for(seat: Seat, policy: PolicyName) -> bool:
    """Whether a promotion of `policy` is under way on the seat."""
    return seat.claim is not None and seat.claim.operation in _PROMOTIONS and seat.claim.policy == policy


def serves(seat: Seat, policy: PolicyName) -> bool:
    """Whether the seat's resident of `policy` is in rotation and can answer.

    The label is believed over an agent's report that may be a moment older: a resident that was put into rotation a
    moment ago counts, whatever step its agent last reported, unless it is one that can't lead there.
    """
    if policy not in seat.serving or not seat.usable:
        return False
    resident = seat.resident(policy)
    return resident is not None and resident.state in _IN_ROTATION


def _recallable(seat: Seat, policy: PolicyName) -> bool:
    resident = seat.resident(policy)
    return (
        seat.usable
        and resident is not None
        and resident.state in {ResidentState.DRAINING, ResidentState.SERVING}
    )
