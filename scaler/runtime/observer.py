"""From caches to one snapshot: what the law may look at, counted from seats and signals. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scaler.cluster.port import Stock
from scaler.core.model import FleetSpec, FleetView, Load, PolicySpec, Snapshot, Supply
from warmpool.seats import FleetName, Operation, PolicyName, Resident, Seat, SeatValue
from warmpool.states import PROMOTABLE, ResidentState

# Tuples: `in` then compares by identity first, where a set would hash an enum's member in Python code, which ten thousand
# seats would feel.
_IN_ROTATION = (
    ResidentState.SERVING,
    ResidentState.PAUSED,
    ResidentState.PROMOTING,
    ResidentState.PROVING,
    ResidentState.DRAINING,
)
_PROMOTABLE = tuple(PROMOTABLE)
_OCCUPIED = (SeatValue.SERVING, SeatValue.DRAINING)
"""Another resident computes here; this one's could take its place."""
_PROMOTIONS = (Operation.PROMOTE, Operation.SWITCH, Operation.RECALL)


class Views:
    """Counts fleets. One whose seats are the same objects as at the last count isn't counted again."""

    def __init__(self) -> None:
        self._known: dict[FleetName, tuple[Sequence[Seat], Sequence[PolicyName], FleetView]] = {}

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
        known = self._known.get(fleet)
        if known is None or known[0] is not seats or known[1] != policies:
            view = _view(seats, replicas, policies)
        elif known[2].replicas != replicas:
            view = replace(known[2], replicas=replicas)
        else:
            return known[2]
        self._known[fleet] = (seats, policies, view)
        return view


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
    value = seat.value
    if value is SeatValue.SERVING and policies.isdisjoint(seat.serving):
        return SeatValue.HELD
    return value


def _supplies(
    seats: Sequence[Seat], values: Sequence[SeatValue], policies: Sequence[PolicyName]
) -> Mapping[PolicyName, Supply]:
    found = {policy: Counter[str]() for policy in policies}
    for seat, value in zip(seats, values, strict=True):
        claimed = None if seat.claim is None or seat.claim.operation not in _PROMOTIONS else seat.claim.policy
        if claimed in found:
            found[claimed]["promoting"] += 1
        if not seat.usable:
            continue
        for resident in seat.residents:
            policy = resident.policy
            if policy in found and policy != claimed and (part := _part(seat, value, resident)):
                found[policy][part] += 1
    return {policy: Supply(**counts) for policy, counts in found.items()}


def _part(seat: Seat, value: SeatValue, resident: Resident) -> str:
    """Return which part of its policy's supply a resident of a usable seat is; empty if none."""
    state = resident.state
    if resident.policy in seat.serving and state in _IN_ROTATION:
        return "serving"
    if value is SeatValue.DRAINING and (state is ResidentState.DRAINING or state is ResidentState.SERVING):
        return "draining"
    if state not in _PROMOTABLE:
        return ""
    if value is SeatValue.SPARE or value is SeatValue.LENT:
        return "promotable"
    return "switchable" if value in _OCCUPIED else ""


def serves(seat: Seat, policy: PolicyName) -> bool:
    """Whether the seat's resident of `policy` is in rotation and can answer.

    The label is believed over an agent's report that may be a moment older: a resident that was put into rotation a
    moment ago counts, whatever step its agent last reported, unless it is one that can't lead there.
    """
    if policy not in seat.serving or not seat.usable:
        return False
    resident = seat.resident(policy)
    return resident is not None and resident.state in _IN_ROTATION
