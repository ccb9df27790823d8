"""Marks the seats that are to be replaced because their engines don't start as they should; the planner does the rest.

A marked seat takes no promotion any more, so that none is lost with it; it counts as one that can serve nobody.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from scaler.runtime.events import EventLog
from warmpool.healing import Found, History, Rule, look
from warmpool.seats import FleetName, Seat

_NOTHING = Found()


class SelfHealing:
    """Looks at fleets' seats.

    What it remembers is this process's: a new leader counts anew.

    Args:
        events: is told what was found.
    """

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._histories: dict[FleetName, History] = {}
        self._looked: dict[FleetName, tuple[Sequence[Seat], Found]] = {}

    def mark(
        self, rules: Mapping[FleetName, Rule], stock: Mapping[FleetName, Sequence[Seat]], wall: float
    ) -> dict[FleetName, Sequence[Seat]]:
        """Return fleets' seats with those marked that are to be replaced.

        Args:
            rules: what fleets say of it, of those that it is done for.
            stock: the seats, per fleet.
            wall: Unix time.
        """
        for fleet in stock.keys() - rules.keys():  # frozen, say: nobody looks at it any more
            before = self._looked.pop(fleet, None)
            if before is not None and before[1].ailing:
                self._events.healed(fleet, _NOTHING)
        return {
            fleet: self._marked(fleet, rules[fleet], seats, wall) if fleet in rules else seats
            for fleet, seats in stock.items()
        }

    def keep(self, fleets: Collection[FleetName]) -> None:
        """Forget every fleet but these."""
        for table in (self._histories, self._looked):
            for fleet in table.keys() - set(fleets):
                del table[fleet]

    def _marked(self, fleet: FleetName, rule: Rule, seats: Sequence[Seat], wall: float) -> Sequence[Seat]:
        found = self._look(fleet, rule, seats, wall)
        if not found.replace:
            return seats
        return [
            replace(seat, ailing=found.replace[seat.name]) if seat.name in found.replace else seat
            for seat in seats
        ]

    def _look(self, fleet: FleetName, rule: Rule, seats: Sequence[Seat], wall: float) -> Found:
        """Look at a fleet; at seats that are the same objects only if time alone may have changed something."""
        before = self._looked.get(fleet)
        if before is not None and before[0] is seats and not before[1].ailing:
            return before[1]
        found, self._histories[fleet] = look(self._histories.get(fleet, History()), rule, seats, wall)
        self._looked[fleet] = (seats, found)
        if found.ailing or (before is not None and before[1].ailing):
            self._events.healed(fleet, found)
        return found
