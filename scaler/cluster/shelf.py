"""All seats by name, and by fleet; what hasn't changed is the same object from look to look. PURE: no I/O, no clock."""

from collections.abc import Iterator, Mapping, Sequence

from warmpool.seats import FleetName, Seat, SeatName


class Shelf:
    """Seats, in the order in which they came."""

    def __init__(self) -> None:
        self._seats: dict[SeatName, Seat] = {}
        self._fleets: dict[FleetName, dict[SeatName, Seat]] = {}
        self._stock: dict[FleetName, Sequence[Seat]] = {}
        self._stale: set[FleetName] = set()

    def __iter__(self) -> Iterator[Seat]:
        """Yield every seat."""
        return iter(self._seats.values())

    def get(self, name: SeatName) -> Seat | None:
        """Return one seat; None if there is none of this name."""
        return self._seats.get(name)

    def stock(self) -> Mapping[FleetName, Sequence[Seat]]:
        """See `scaler.cluster.port.Cluster.stock`."""
        for fleet in self._stale:
            here = self._fleets.get(fleet)
            if here:
                self._stock[fleet] = tuple(here.values())
            else:
                self._stock.pop(fleet, None)
        self._stale.clear()
        return self._stock

    def put(self, seat: Seat) -> None:
        """Add a seat, or put it in the place of the one of its name."""
        before = self._seats.get(seat.name)
        if before is not None and before.fleet != seat.fleet:
            del self._fleets[before.fleet][seat.name]
            self._stale.add(before.fleet)
        self._seats[seat.name] = seat
        self._fleets.setdefault(seat.fleet, {})[seat.name] = seat
        self._stale.add(seat.fleet)

    def remove(self, name: SeatName) -> bool:
        """Forget a seat, and say whether there was one."""
        gone = self._seats.pop(name, None)
        if gone is None:
            return False
        del self._fleets[gone.fleet][name]
        self._stale.add(gone.fleet)
        return True
