"""Floors and spares must find room at each moment; floors that never meet needn't find it together."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.errors import PolicyError
from scaler.policy.base import API_VERSION, Metadata
from scaler.policy.compile import compile_set
from scaler.policy.document import parse_documents
from scaler.policy.fleet import Fleet, FleetSpec
from scaler.policy.room import no_room
from scaler.policy.scaling_policy import FleetShare, ScalingPolicy, ScalingPolicySpec, Serving
from scaler.policy.schedules import SeatFloor, ServingFloor, floor_at, is_open, spans

HEAD = "apiVersion: emberpool.dev/v1alpha1\n"
Schedules = Sequence[tuple[str, str, int, str]]


def fleet(name: str = "own", seats: int = 4, spare: int = 0) -> str:
    return f"{HEAD}kind: Fleet\nmetadata: {{name: {name}}}\nspec: {{maxSeats: {seats}, spare: {{min: {spare}}}}}\n---\n"


def policy(name: str, *schedules: tuple[str, str, int, str], least: int = 0, on: str = "own") -> str:
    """A policy with schedules of a start, an end, a floor and a time zone."""
    windows = ", ".join(
        f"{{name: s{number}, start: '{start}', end: '{end}', minServing: {floor}, timeZone: {zone}}}"
        for number, (start, end, floor, zone) in enumerate(schedules)
    )
    shares = ", ".join(f"{{name: {each}, targetInFlight: 1}}" for each in on.split())
    return (
        f"{HEAD}kind: ScalingPolicy\nmetadata: {{name: {name}}}\n"
        f"spec: {{fleets: [{shares}], serving: {{min: {least}}}, schedules: [{windows}]}}\n---\n"
    )


def refusals(text: str) -> list[str]:
    try:
        compile_set(parse_documents(text, "f.yaml"))
    except PolicyError as error:
        return [f"{fault.message} | {fault.hint}" for fault in error.faults]
    return []


EIGHT_TO_TEN = ("0 8 * * *", "0 10 * * *")
NINE_TO_ELEVEN = ("0 9 * * *", "0 11 * * *")
TEN_TO_TWELVE = ("0 10 * * *", "0 12 * * *")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            policy("a", (*EIGHT_TO_TEN, 3, "Etc/UTC")) + policy("b", (*TEN_TO_TWELVE, 3, "Etc/UTC")),
            id="one after the other",
        ),
        pytest.param(
            policy("a", (*EIGHT_TO_TEN, 3, "Europe/Berlin")) + policy("b", (*EIGHT_TO_TEN, 3, "Asia/Tokyo")),
            id="at the same time of day, half a world apart",
        ),
        pytest.param(
            policy("a", ("0 8 * * 1-5", "0 10 * * 1-5", 3, "Etc/UTC"))
            + policy("b", ("0 8 * * 6,0", "0 10 * * 6,0", 3, "Etc/UTC")),
            id="on working days and at weekends",
        ),
        pytest.param(
            policy("a", (*EIGHT_TO_TEN, 2, "Etc/UTC"), (*EIGHT_TO_TEN, 4, "Etc/UTC")),
            id="windows of one policy don't add up",
        ),
        pytest.param(
            policy("a", ("0 8 * * *", "0 8,18 * * *", 9, "Etc/UTC")), id="a window that never opens"
        ),
    ],
)
def test_floors_that_never_meet_need_no_room_together(text: str) -> None:
    assert refusals(fleet() + text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            policy("a", (*EIGHT_TO_TEN, 3, "Etc/UTC")) + policy("b", (*NINE_TO_ELEVEN, 2, "Etc/UTC")),
            "floors and spares need 3 (a schedule s0 minServing) + 2 (b schedule s0 minServing) = 5 seats on Saturday, as on"
            " 2028-01-01 at 09:00 Etc/UTC, but there are at most 4 (own maxSeats) | raise maxSeats, lower minServing,"
            " serving.min or spare.min, or part the windows",
            id="two windows",
        ),
        pytest.param(
            policy("a", ("0 8 29 2 *", "0 9 29 2 *", 4, "Europe/Berlin")) + policy("b", least=1),
            "floors and spares need 4 (a schedule s0 minServing) + 1 (b serving.min) = 5 seats on Tuesday, as on 2028-02-29"
            " at 08:00 Europe/Berlin, but there are at most 4 (own maxSeats) | raise maxSeats, lower minServing,"
            " serving.min or spare.min, or part the windows",
            id="on the rarest day",
        ),
        pytest.param(
            policy("a", ("0 22 * * *", "0 6 * * *", 3, "Etc/UTC"), least=1)
            + policy("b", ("0 5 * * 1", "0 7 * * 1", 2, "Etc/UTC"), least=1),
            "floors and spares need 3 (a schedule s0 minServing) + 2 (b schedule s0 minServing) = 5 seats on Monday, as on"
            " 2028-01-03 at 05:00 Etc/UTC, but there are at most 4 (own maxSeats) | raise maxSeats, lower minServing,"
            " serving.min or spare.min, or part the windows",
            id="the worst moment, not the first window",
        ),
        pytest.param(
            policy("a", ("0 8 * * *", "0 9 * * *", 2, "Etc/UTC"), least=3) + policy("b", least=2),
            "floors and spares need 3 (a serving.min) + 2 (b serving.min) = 5 seats, but there are at most 4 (own maxSeats)"
            " | raise maxSeats, or lower serving.min or spare.min",
            id="always",
        ),
    ],
)
def test_the_moment_that_asks_for_too_much_is_named(text: str, expected: str) -> None:
    assert refusals(fleet() + text) == [expected]


def test_spares_are_beside_what_serves_at_that_moment() -> None:
    text = fleet(spare=2) + policy("a", (*EIGHT_TO_TEN, 3, "Etc/UTC"))
    (found,) = refusals(text)
    assert "need 3 (a schedule s0 minServing) + 2 (own spare.min) = 5 seats on Saturday" in found
    assert refusals(text.replace("minServing: 3", "minServing: 2")) == []


def test_floors_that_can_spill_onto_other_fleets_count_where_they_are_confined() -> None:
    fleets = fleet("own", 2) + fleet("shared", 2)
    assert refusals(fleets + policy("a", least=3, on="own shared") + policy("b", least=1, on="shared")) == []
    (found,) = refusals(fleets + policy("a", least=3, on="own shared") + policy("b", least=2, on="shared"))
    assert (
        "need 3 (a serving.min) + 2 (b serving.min) = 5 seats, but there are at most 2 (own maxSeats) + 2"
        in found
    )


# ------------------------------------------------------------------ laws

hours = st.integers(0, 23)
days = st.sampled_from(["*", "1-5", "6,0", "3"])
windows = st.tuples(hours, hours, days, st.integers(1, 4)).filter(lambda each: each[0] != each[1])


def schedules(drawn: list[tuple[int, int, str, int]]) -> list[tuple[str, str, int, str]]:
    return [
        (f"0 {start} * * {day}", f"0 {end} * * {day}", floor, "Etc/UTC") for start, end, day, floor in drawn
    ]


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.lists(windows, max_size=3), st.integers(0, 2)), min_size=1, max_size=4),
    st.integers(1, 8),
)
def test_a_set_is_refused_exactly_if_some_hour_asks_for_too_much(
    drawn: list[tuple[list[tuple[int, int, str, int]], int]], seats: int
) -> None:
    text = "".join(
        policy(f"p{number}", *schedules(own), least=least) for number, (own, least) in enumerate(drawn)
    )
    floors = [
        (
            [
                ServingFloor(name=f"s{index}", start=start, end=end, min_serving=floor)
                for index, (start, end, floor, _) in enumerate(schedules(own))
            ],
            least,
        )
        for own, least in drawn
    ]
    begin = datetime(2028, 1, 3, tzinfo=UTC)
    moments = [begin + timedelta(hours=hour) for hour in range(24 * 8)]
    worst = max(sum(max(least, floor_at(each, at).value) for each, least in floors) for at in moments)
    assert bool(refusals(fleet(seats=seats) + text)) == (worst > seats)


ZONES = ("Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
crons = st.tuples(
    st.sampled_from(["0", "30", "*/20"]),
    st.sampled_from(["*", "1", "2", "3", "8", "*/5"]),
    st.sampled_from(["*", "*", "*", "1,15"]),
    st.just("*"),
    st.sampled_from(["*", "*", "0", "1-5"]),
).map(" ".join)


@settings(max_examples=30, deadline=None)
@given(crons, crons, st.sampled_from(ZONES), st.data())
def test_a_window_is_open_within_its_spans_and_at_no_other_time(
    start: str, end: str, name: str, data: st.DataObject
) -> None:
    zone = ZoneInfo(name)
    # around the nights in which clocks change, in each of the zones
    begin = data.draw(st.sampled_from([datetime(2028, month, 1, tzinfo=zone) for month in (3, 4, 10, 11)]))
    until = begin + timedelta(days=6)
    found = list(spans(start, end, begin, until))
    window = SeatFloor(name="w", start=start, end=end, time_zone=name, min_seats=1)
    minutes = data.draw(st.lists(st.integers(0, 6 * 24 * 12 - 1), min_size=20, max_size=20))
    for minute in minutes:
        at = datetime.fromtimestamp(begin.timestamp() + 300 * minute, UTC)
        inside = any(span.begin <= at.timestamp() < span.end for span in found)
        assert inside == is_open(window, at), at
    assert all(one.end <= other.begin for one, other in pairwise(found))


@pytest.mark.wall_clock
def test_many_policies_behind_one_fleet_of_spares_take_no_square() -> None:
    count = 4000
    (document,) = parse_documents("a: 1", "f.yaml")
    names = [f"m{number}" for number in range(count)]
    fleets = {
        name: Fleet(
            api_version=API_VERSION, kind="Fleet", metadata=Metadata(name=name), spec=FleetSpec(max_seats=1)
        )
        for name in (*names, "shared")
    }
    policies = [
        ScalingPolicy(
            api_version=API_VERSION,
            kind="ScalingPolicy",
            metadata=Metadata(name=name),
            spec=ScalingPolicySpec(
                fleets=(
                    FleetShare(name=name, target_in_flight=1),
                    FleetShare(name="shared", target_in_flight=1),
                ),
                serving=Serving(min=3 if name == "m7" else 2),
            ),
        )
        for name in names
    ]
    began = time.process_time()
    found = list(
        no_room(
            {name: (document, each) for name, each in fleets.items()}, [(document, each) for each in policies]
        )
    )
    assert time.process_time() - began < 2.0  # comparing each with each takes a minute
    assert [fault.message for fault in found] == [
        "floors and spares need 3 (m7 serving.min) = 3 seats, but there are at most 1 (m7 maxSeats) + 1 (shared maxSeats) = 2"
    ]


@pytest.mark.wall_clock
def test_windows_that_open_each_minute_are_no_reason_to_wait() -> None:
    minute = ("* * * * *", "*/2 * * * *")
    text = "".join(policy(f"p{number}", (*minute, 3, "Etc/UTC"), least=1) for number in range(4))
    began = time.process_time()
    assert "= 12 seats on Saturday" in refusals(fleet(seats=5) + text)[0]
    assert time.process_time() - began < 4.0
