"""Which seats are lent: derived anew at each tick from who serves where, so that nothing has to remember it.

A preemptible policy owns as many of its serving residents as its floor says, those on its earliest fleets first and
there by the seats' names; the others only borrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from scaler.core.model import NO_FLOOR, Floor, PolicySpec
from scaler.core.placement import bounds
from warmpool.seats import FleetName, PolicyName, Seat, SeatName


class Lending:
    """Marks lent seats. A seat that is marked again is the same object as before, for those who look at changes only."""

    def __init__(self) -> None:
        self._marked: dict[SeatName, tuple[Seat, Seat]] = {}

    def mark(
        self, policies: Sequence[PolicySpec], floors: Mapping[PolicyName, Floor], seats: Sequence[Seat]
    ) -> Sequence[Seat]:
        """Return the seats, with `lent` set where a resident only borrows its seat, and nowhere else.

        Args:
            policies: all policies.
            floors: what the clock asks for, per policy with schedules.
            seats: all seats.
        """
        borrowed = {
            seat.name
            for policy in policies
            if policy.preemptible
            for seat in _serving(policy, seats)[bounds(policy, floors.get(policy.name, NO_FLOOR))[0] :]
        }
        marked = {}
        result = []
        for seat in seats:
            if seat.lent == (seat.name in borrowed):
                result.append(seat)
                continue
            before = self._marked.get(seat.name)
            pair = (
                before
                if before is not None and before[0] is seat
                else (seat, replace(seat, lent=not seat.lent))
            )
            marked[seat.name] = pair
            result.append(pair[1])
        self._marked = marked
        return result


def _serving(policy: PolicySpec, seats: Sequence[Seat]) -> list[Seat]:
    order: dict[FleetName, int] = {}
    for index, share in enumerate(policy.fleets):
        order.setdefault(share.fleet, index)
    found = [seat for seat in seats if policy.name in seat.serving and seat.fleet in order]
    return sorted(found, key=lambda seat: (order[seat.fleet], seat.name))
