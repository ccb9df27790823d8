"""What a finding about refusals says to do ends what it complains of."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.lint import Code, Finding
from tests.unit.scaler.policy.lint.sets import findings, fleet, policy


def refused(*, seats: int, spares: int, floor: int, start: int) -> list[Finding]:
    return findings(
        Code.COLD_START_REFUSED,
        fleet(maxSeats=seats, spare={"min": spares}),
        policy(serving={"min": floor}, engine={"startSeconds": start}),
        pod_start_seconds=0,
    )


@given(
    seats=st.integers(2, 40),
    floor=st.integers(1, 10),
    start=st.integers(1, 3600),
)
def test_as_many_spares_as_are_asked_for_are_enough_and_needed(seats: int, floor: int, start: int) -> None:
    floor = min(floor, seats)
    found = refused(seats=seats, spares=0, floor=floor, start=start)
    if not found:
        return
    asked = re.match(r"(\d+) spare seats", found[0].hint)
    assert asked is not None
    enough = int(asked[1])
    assert refused(seats=seats, spares=enough, floor=floor, start=start) == []
    assert refused(seats=seats, spares=enough - 1, floor=floor, start=start)


@pytest.mark.parametrize(
    ("start", "again"),
    [
        pytest.param(61, "once", id="a second try is in time"),
        pytest.param(120, "once", id="at its end"),
        pytest.param(122, "2 times", id="a third"),
        pytest.param(300, "4 times", id="tries begin at 0, 61, 122, 183 and 244 s"),
    ],
)
def test_clients_get_through_after_so_many_tries(start: int, again: str) -> None:
    (found,) = findings(
        Code.COLD_START_REFUSED,
        fleet(maxSeats=1, spare={"min": 0}),
        policy(serving={"min": 0}, engine={"startSeconds": start}),
    )
    assert found.hint.endswith(f"try again {again}")


def test_a_rest_and_a_burst_are_told_apart() -> None:
    """With a spare seat a first request is served at once; what a neighbour or a burst takes it for waits."""
    found = findings(
        Code.COLD_START_REFUSED,
        fleet(),
        policy(serving={"min": 0}, engine={"startSeconds": 300}),
        policy("code", serving={"min": 0}, priority=-1, engine={"startSeconds": 300}),
    )
    places = [(each.place.name, each.place.path) for each in found]
    assert places == [
        ("chat", ("spec", "fleets")),
        ("code", ("spec", "serving", "min")),
        ("code", ("spec", "fleets")),
    ]
