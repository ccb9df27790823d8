"""How long seats take to start, per fleet, as this controller has seen them do."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from warmpool.seats import FleetName, Seat, SeatValue

_KEPT: Final = 20
"""Starts of a fleet that count: enough to ride over an odd one, few enough to follow a new image within a day."""
_UP: Final = frozenset({SeatValue.SPARE, SeatValue.PROMOTING, SeatValue.SERVING, SeatValue.LENT})


class StartTimes:
    """Watches seats until they are up.

    A seat that was up when it was first seen says nothing, nor does one that was up before: its engine was restarted, or its
    resident changes its depth. The start of a seat lasts from its creation until a resident on it can be promoted.
    """

    def __init__(self) -> None:
        self._measured: dict[FleetName, deque[float]] = {}
        self._last: dict[FleetName, Sequence[Seat]] = {}
        self._seen: dict[FleetName, set[str]] = {}  # the seats' uids
        self._been_up: dict[str, bool] = {}  # by the seats' uids

    @property
    def measured(self) -> Mapping[FleetName, Sequence[float]]:
        """Seconds of the last starts, per fleet, oldest first."""
        return {fleet: tuple(times) for fleet, times in self._measured.items()}

    def remember(self, fleet: FleetName, before: Sequence[float]) -> None:
        """Take over what was measured before a restart, oldest first, unless as much has been measured since."""
        if len(before) > len(self._measured.get(fleet, ())):
            self._measured[fleet] = deque(before, _KEPT)

    def look(self, fleet: FleetName, seats: Sequence[Seat], wall: float) -> None:
        """Take a fleet's seats as they are now; one that has been up has nothing more to tell, and isn't looked at again.

        Args:
            fleet: the fleet.
            seats: all its seats.
            wall: Unix time.
        """
        if self._last.get(fleet) is seats:
            return
        self._last[fleet] = seats
        been_up = self._been_up
        for seat in seats:
            if not been_up.get(seat.uid):
                self._changed(seat, wall)
        before, seen = self._seen.get(fleet), {seat.uid for seat in seats}
        for uid in before - seen if before else ():
            been_up.pop(uid, None)
        self._seen[fleet] = seen

    def seconds(self, fleet: FleetName) -> float:
        """Return the median of a fleet's last starts; 0 while none has been seen."""
        times = self._measured.get(fleet)
        return statistics.median(times) if times else 0.0

    def _changed(self, seat: Seat, wall: float) -> None:
        value = seat.value
        if value is SeatValue.STARTING:
            self._been_up.setdefault(seat.uid, False)
        elif value in _UP:
            if self._been_up.get(seat.uid) is False and seat.created_at > 0.0:
                times = self._measured.setdefault(seat.fleet, deque(maxlen=_KEPT))
                times.append(max(0.0, wall - seat.created_at))
            self._been_up[seat.uid] = True
