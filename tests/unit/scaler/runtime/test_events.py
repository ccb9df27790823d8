from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scaler.runtime.clock import SystemClock
from scaler.runtime.events import EventLog
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

FLEET = FleetName("spares")
SERVING = Seat(
    name=SeatName("s-1"), uid="u", version="1", fleet=FLEET, serving=frozenset({PolicyName("chat")})
)


def leaving(*looks: list[Seat]) -> list[Mapping[str, Any]]:
    records: list[Mapping[str, Any]] = []
    log = EventLog(records.append, SystemClock())
    for seats in looks:
        log.seats(FLEET, seats)
    return [
        {key: value for key, value in each.items() if key != "at"}
        for each in records
        if each["kind"] == "leaving"
    ]


def test_a_seat_that_begins_to_end_is_told_once_with_whom_it_serves() -> None:
    ending = replace(SERVING, version="2", terminating=True)
    handed_over = replace(ending, version="3", serving=frozenset())
    told = {"kind": "leaving", "seat": "s-1", "fleet": "spares", "serving": ["chat"]}
    assert leaving([SERVING], [ending], [handed_over], []) == [told]


def test_another_seat_of_the_same_name_is_told_again() -> None:
    ending = replace(SERVING, terminating=True)
    again = replace(ending, uid="v")
    assert len(leaving([SERVING], [ending], [], [again])) == 2


def test_a_seat_that_stays_is_not_told() -> None:
    assert leaving([SERVING], [replace(SERVING, version="2")]) == []
