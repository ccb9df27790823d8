"""What is told of a fleet whose seats nobody looks at any more."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaler.runtime.clock import SystemClock
from scaler.runtime.events import EventLog
from scaler.runtime.self_healing import SelfHealing
from tests.unit.warmpool.test_healing import RULE, failed, loading, refused, seat
from warmpool.healing import Found
from warmpool.seats import FleetName, Seat

F = FleetName("f")


class Told:
    """Keeps what was told last of each fleet."""

    def __init__(self) -> None:
        self.last: dict[FleetName, Found] = {}

    def healed(self, fleet: FleetName, found: Found) -> None:
        self.last[fleet] = found

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_named: None


def test_seats_of_a_fleet_that_is_frozen_no_longer_ail_for_anybody() -> None:
    told = Told()
    log = EventLog(lambda _: None, SystemClock())
    log.watch(told)
    healing = SelfHealing(log)

    def mark(now: float, *seats: Seat, rules: bool = True) -> Mapping[FleetName, Sequence[Seat]]:
        return healing.mark({F: RULE} if rules else {}, {F: seats}, now)

    for at in (10.0, 20.0, 30.0):
        mark(at - 0.5, seat("s-0", loading(at - 1.0)))
        mark(at, seat("s-0", failed(at)))
    assert told.last[F].ailing
    mark(31.0, seat("s-0", failed(30.0)), rules=False)
    assert told.last[F] == Found()


def test_a_pre_flight_that_keeps_an_engine_from_starting_is_recorded_once_however_often_it_is_tried() -> None:
    records: list[Mapping[str, Any]] = []
    healing = SelfHealing(EventLog(records.append, SystemClock()))
    for at in (10.0, 40.0, 100.0, 220.0):
        healing.mark({F: RULE}, {F: [seat("s-0", loading(at - 1.0))]}, at - 0.5)
        (marked,) = healing.mark({F: RULE}, {F: [seat("s-0", refused(at))]}, at)[F]
        assert not marked.ailing
    told = [(each["seat"], each["outcome"], each["cause"]) for each in records if each["kind"] == "healing"]
    assert told == [("s-0", "Reported", "PreFlight")]
