from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from scaler.runtime.clock import SystemClock
from scaler.runtime.events import EventLog
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState
from warmpool.timeline import StartFacts

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


class Counting:
    """Hears of completed starts, and of nothing else."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, str, float]] = []
        self.captures: list[tuple[str, float]] = []

    def started(self, seat: Seat, resident: Resident) -> None:
        assert resident.start is not None
        self.starts.append((seat.name, resident.policy, resident.start.at))

    def captured(self, _seat: Seat, resident: Resident, seconds: float) -> None:
        self.captures.append((resident.policy, seconds))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def with_start(seat: Seat, *starts: float | None) -> Seat:
    """The seat with a resident each, whose start began at that time, or isn't over."""
    residents = tuple(
        Resident(
            policy=PolicyName(f"p{place}"),
            state=ResidentState.PAUSED,
            since=0.0,
            start=None if at is None else StartFacts(at=at),
        )
        for place, at in enumerate(starts)
    )
    return replace(seat, residents=residents)


def test_a_start_is_told_once_when_it_is_over_and_one_that_was_over_before_is_not() -> None:
    told = Counting()
    log = EventLog(lambda _: None, SystemClock())
    log.watch(told)
    log.seats(FLEET, [with_start(SERVING, 1.0, None)])
    assert told.starts == []
    log.seats(FLEET, [with_start(SERVING, 1.0, 2.0)])
    log.seats(FLEET, [with_start(replace(SERVING, version="2"), 1.0, 2.0)])
    log.seats(FLEET, [with_start(SERVING, 1.0, None)])
    log.seats(FLEET, [with_start(SERVING, 3.0, 2.0)])
    assert told.starts == [("s-1", "p1", 2.0), ("s-1", "p0", 3.0)]


def test_a_seat_that_was_born_here_tells_of_its_first_start() -> None:
    told = Counting()
    log = EventLog(lambda _: None, SystemClock())
    log.watch(told)
    log.seats(FLEET, [SERVING])
    log.seats(FLEET, [with_start(SERVING, 1.0)])
    assert told.starts == [("s-1", "p0", 1.0)]


def late(seat: Seat, at: float, seconds: float) -> Seat:
    """The seat with a resident that has spent so long capturing graphs after its start."""
    (resident,) = with_start(seat, at).residents
    return replace(seat, residents=(replace(resident, phases={"late-capture": seconds}),))


def test_graphs_that_are_captured_after_a_start_are_told_by_what_they_took_more() -> None:
    told = Counting()
    log = EventLog(lambda _: None, SystemClock())
    log.watch(told)
    for each in (SERVING, with_start(SERVING, 1.0), late(SERVING, 1.0, 2.0), late(SERVING, 1.0, 2.5)):
        log.seats(FLEET, [each])
    assert (told.starts, told.captures) == ([("s-1", "p0", 1.0)], [("p0", 2.0), ("p0", 0.5)])
    log.seats(FLEET, [late(SERVING, 9.0, 3.0)])
    assert (len(told.starts), len(told.captures)) == (2, 2)  # with the next start's phases
