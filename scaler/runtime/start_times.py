"""How long seats take to start, per fleet, as this controller has seen them do."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from warmpool.seats import FleetName, Seat, SeatName, SeatValue

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
        self._seen: dict[FleetName, dict[SeatName, Seat]] = {}
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
        """Take a fleet's seats as they are now; those that are the same objects as before are not looked at again.

        Args:
            fleet: the fleet.
            seats: all its seats.
            wall: Unix time.
        """
        if self._last.get(fleet) is seats:
            return
        self._last[fleet] = seats
        before = self._seen.get(fleet, {})
        seen: dict[SeatName, Seat] = {}
        for seat in seats:
            seen[seat.name] = seat
            known = before.get(seat.name)
            if known is not seat:
                if known is not None and known.uid != seat.uid:
                    self._been_up.pop(known.uid, None)
                self._changed(seat, wall)
        for name in before.keys() - seen.keys():
            self._been_up.pop(before[name].uid, None)
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
