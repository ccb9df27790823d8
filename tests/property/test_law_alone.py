"""A policy that has its fleets to itself gets by the short way what it gets by the rounds of all."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from scaler.core.allocate import Applicant, allocate
from scaler.core.model import Supply
from scaler.core.placement import Pool, place_of
from tests.unit.scaler.core.test_allocate import applicant
from warmpool.seats import FleetName

capacities = st.integers(0, 80).map(float)


@st.composite
def alone(draw: st.DrawFn) -> Applicant:
    """A policy on one fleet or several, with seats of every kind that it could have without anybody beside it."""
    places = []
    for number in range(draw(st.integers(1, 3))):
        serving, draining, promotable = (draw(st.integers(0, 4)) for _ in range(3))
        supply = Supply(serving=serving, draining=draining, promotable=promotable)
        usable = serving + draining + promotable + draw(st.integers(0, 2))
        pool = Pool(name=FleetName(f"fleet-{number}"), max_seats=100, usable=usable, left=usable)
        places.append(place_of(pool, draw(st.integers(1, 16)), supply))
    kept = [draw(st.integers(0, place.own)) for place in places]
    ordered = [draw(st.integers(0, place.own)) for place in places]
    return applicant(
        "a",
        *places,
        most=draw(st.integers(0, 12)),
        floor=draw(st.integers(0, 4)),
        holding=draw(st.booleans()),
        present=draw(capacities),
        need=draw(capacities),
        answer=draw(capacities),
        overflow=draw(capacities),
        keep=kept,
        ordered=ordered,
        owed=draw(st.integers(0, 4)),
    )


@given(alone())
def test_alone_or_among_others_it_gets_the_same(first: Applicant) -> None:
    """The other has no fleet and asks for nothing, so that all that it does is to make the rounds needed."""
    second = deepcopy(first)
    allocate([first])
    allocate([second, applicant("nobody")])
    assert (first.given, first.seats, first.capacity) == (second.given, second.seats, second.capacity)
