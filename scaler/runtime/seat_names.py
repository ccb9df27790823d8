"""What is asked of seats by their names, without a look at all of them each time: there may be ten thousand."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from scaler.runtime.controller import Tick
from warmpool.seats import FleetName, Seat, SeatName

_FRESH_SECONDS: Final = 5.0
"""How old a list of names may be: a pod of the same name has another UID."""
_LEAST_SECONDS: Final = 0.5
"""How soon it is made anew for a name that isn't in it."""


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


class SeatUids:
    """UIDs of seats by name.

    Args:
        seats: returns all seats.
        clock: monotonic seconds.
    """

    def __init__(self, seats: Callable[[], Iterable[Seat]], clock: Callable[[], float]) -> None:
        self._seats = seats
        self._clock = clock
        self._known: dict[str, str] = {}
        self._at = -math.inf

    def of(self, name: str) -> str:
        """Return a seat's UID; empty where there is none of this name."""
        age = self._clock() - self._at
        if age > _FRESH_SECONDS or (name not in self._known and age > _LEAST_SECONDS):
            self._known = {seat.name: seat.uid for seat in self._seats()}
            self._at = self._clock()
        return self._known.get(name, "")
