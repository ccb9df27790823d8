"""Which seats are lent, by name, without a look at all of them each time: there may be ten thousand."""

from collections.abc import Sequence

from scaler.runtime.controller import Tick
from warmpool.seats import FleetName, Seat, SeatName


class LentSeats:
    """Which seats are lent, as ticks tell it: of the fleets that one looked at, and of those whose seats have changed."""

    def __init__(self) -> None:
        self._seen: dict[FleetName, Sequence[Seat]] = {}
        self._lent: dict[FleetName, frozenset[SeatName]] = {}
        self.names: frozenset[SeatName] = frozenset()

    def take(self, tick: Tick) -> frozenset[SeatName]:
        """Take a tick, and return the names of all seats that are lent: the same object for as long as they are the same."""
        changed = False
        for spec in tick.looked.fleets:
            fleet, seats = spec.name, tick.stock.get(spec.name, ())
            if self._seen.get(fleet) is seats:
                continue
            self._seen[fleet] = seats
            lent = frozenset(seat.name for seat in seats if seat.lent)
            if lent != self._lent.get(fleet, frozenset()):
                self._lent[fleet] = lent
                changed = True
        if changed:
            self.names = frozenset().union(*self._lent.values())
        return self.names
