"""Which seats are lent: derived anew at each look from who serves where, so that nothing has to remember it.

A preemptible policy owns as many of its serving residents as its floor says, or as the last decision said (while signals
are missing its fallback may give it more), those on its earliest fleets first and there by the seats' names; the others
only borrow. One that is leaving rotation borrows its seat for as long as it drains, if no seat that it owns is left for it:
whoever wants such a seat may have it back on the terms of a lent one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scaler.cluster.port import Stock
from scaler.core.model import NO_FLOOR, Floor, PolicyDecision, PolicySpec
from scaler.core.placement import bounds
from warmpool.seats import FleetName, Operation, PolicyName, Seat, SeatName

_Marked = tuple[Sequence[Seat], frozenset[SeatName], Sequence[Seat]]


class Lending:
    """Marks lent seats. What is marked again the same way is the same object as before: seats, and fleets of them."""

    def __init__(self) -> None:
        self._marked: dict[FleetName, _Marked] = {}

    def mark(
        self,
        policies: Sequence[PolicySpec],
        floors: Mapping[PolicyName, Floor],
        decided: Mapping[PolicyName, PolicyDecision],
        stock: Stock,
    ) -> Stock:
        """Return the seats, with `lent` set where a resident only borrows its seat, and nowhere else.

        Args:
            policies: all policies that may serve on the fleets.
            floors: what the clock asks for, per policy with schedules.
            decided: what was decided last, as far as something was.
            stock: the seats per fleet.
        """
        borrowed = frozenset(
            seat.name
            for policy in policies
            if policy.preemptible
            for seat in _there(policy, stock)[_owned(policy, floors, decided) :]
        )
        return {fleet: self._fleet(fleet, seats, borrowed) for fleet, seats in stock.items()}

    def _fleet(
        self, fleet: FleetName, seats: Sequence[Seat], borrowed: frozenset[SeatName]
    ) -> Sequence[Seat]:
        lent = frozenset(seat.name for seat in seats if seat.name in borrowed) if borrowed else borrowed
        before = self._marked.get(fleet)
        if before is not None and before[0] is seats and before[1] == lent:
            return before[2]
        if not lent and not any(seat.lent for seat in seats):
            marked = seats
        else:
            known = {} if before is None else dict(zip(map(id, before[0]), before[2], strict=True))
            marked = tuple(_marked(seat, known.get(id(seat)), lent=seat.name in lent) for seat in seats)
        self._marked[fleet] = (seats, lent, marked)
        return marked


def _marked(seat: Seat, before: Seat | None, *, lent: bool) -> Seat:
    if seat.lent == lent:
        return seat
    return before if before is not None and before.lent == lent else replace(seat, lent=lent)


def _owned(
    policy: PolicySpec, floors: Mapping[PolicyName, Floor], decided: Mapping[PolicyName, PolicyDecision]
) -> int:
    floor, _most = bounds(policy, floors.get(policy.name, NO_FLOOR))
    last = decided.get(policy.name)
    return floor if last is None else max(floor, sum(last.serving.values()) - sum(last.lent.values()))


def _there(policy: PolicySpec, stock: Stock) -> list[Seat]:
    """Return the seats on which a policy is in rotation, and after them those on which it drains."""
    serving: list[Seat] = []
    leaving: list[Seat] = []
    for fleet in dict.fromkeys(share.fleet for share in policy.fleets):
        here = stock.get(fleet, ())
        serving += sorted((seat for seat in here if policy.name in seat.serving), key=_name)
        leaving += (seat for seat in here if _drains(seat, policy.name))
    return serving + leaving


def _drains(seat: Seat, policy: PolicyName) -> bool:
    """Whether a seat is free as soon as a policy's resident has finished what it accepted."""
    claim = seat.claim
    return (
        not seat.serving
        and claim is not None
        and claim.operation is Operation.DEMOTE
        and claim.policy == policy
    )


def _name(seat: Seat) -> SeatName:
    return seat.name
