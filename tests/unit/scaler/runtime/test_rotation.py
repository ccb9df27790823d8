"""Routes worked out from what changed are those that would be worked out from everything."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import FleetShare, PolicySpec
from scaler.gateway.routes import PolicyRoutes
from scaler.runtime.rotation import HOLD_SECONDS, Rotation
from scaler.runtime.routing import routes
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

CHAT, CODE = PolicyName("chat"), PolicyName("code")
OWN, SHARED = FleetName("own"), FleetName("shared")
POLICIES = [
    PolicySpec(
        name=CHAT,
        fleets=(FleetShare(fleet=OWN, target_in_flight=6), FleetShare(fleet=SHARED, target_in_flight=4)),
    ),
    PolicySpec(name=CODE, fleets=(FleetShare(fleet=SHARED, target_in_flight=8),)),
]
MODELS = {CHAT: ("chat",), CODE: ("code",)}


def seat(name: str, fleet: FleetName = OWN, serving: frozenset[PolicyName] = frozenset({CHAT})) -> Seat:
    residents = tuple(
        Resident(policy=policy, state=ResidentState.SERVING, since=1.0, address=f"http://{name}/{policy}")
        for policy in (CHAT, CODE)
    )
    return Seat(name=SeatName(name), uid=name, version="", fleet=fleet, residents=residents, serving=serving)


class Watched:
    """A rotation, and how many seats it looked at."""

    def __init__(self) -> None:
        self.looked = 0
        self.policies = POLICIES
        self.rotation = Rotation(self._routes)
        self.known: dict[PolicyName, PolicyRoutes] = {}

    def _routes(self, seats: Sequence[Seat]) -> dict[PolicyName, PolicyRoutes]:
        self.looked += len(seats)
        return routes(self.policies, MODELS, seats)

    def look(
        self,
        stock: dict[FleetName, Sequence[Seat]],
        now: float = 0.0,
        coming: Mapping[PolicyName, float] | None = None,
    ) -> set[PolicyName]:
        changes = self.rotation.look(stock, now, coming or {})
        for name, changed in changes.items():
            if changed is None:
                del self.known[name]
            else:
                self.known[name] = changed
        assert self.known == self.rotation.policies
        return set(changes)

    def urls(self, policy: PolicyName = CHAT) -> list[str]:
        return [each.url for each in self.known[policy].endpoints]


NAMES = st.sampled_from(["a", "b", "c", "d"])
SEATS = st.builds(
    seat,
    NAMES,
    st.sampled_from([OWN, SHARED]),
    st.sampled_from([frozenset(), frozenset({CHAT}), frozenset({CODE}), frozenset({CHAT, CODE})]),
)


@given(st.lists(st.lists(SEATS, max_size=4, unique_by=lambda seat: seat.name), max_size=6))
def test_changes_lead_to_what_all_seats_say(stages: list[list[Seat]]) -> None:
    watched = Watched()
    for seats in stages:
        watched.look({fleet: [each for each in seats if each.fleet == fleet] for fleet in (OWN, SHARED)})
        expected = routes(POLICIES, MODELS, seats)
        assert watched.known.keys() == expected.keys()
        for name, found in watched.known.items():
            assert set(found.endpoints) == set(expected[name].endpoints)
            assert len(found.endpoints) == len(expected[name].endpoints)


def test_only_what_changed_is_looked_at() -> None:
    watched = Watched()
    own, shared = tuple(seat(f"o{n}") for n in range(50)), tuple(seat(f"s{n}", SHARED) for n in range(50))
    assert watched.look({OWN: own, SHARED: shared}) == {CHAT, CODE}
    watched.looked = 0
    assert watched.look({OWN: own, SHARED: shared}) == set()
    assert watched.look({OWN: own, SHARED: (seat("s0", SHARED, frozenset({CODE})), *shared[1:])}) == {
        CHAT,
        CODE,
    }
    assert watched.looked == 1


def test_a_change_that_routes_don_t_depend_on_is_none() -> None:
    watched = Watched()
    watched.look({OWN: (seat("a"), seat("b"))})
    assert watched.look({OWN: (replace(seat("a"), node="elsewhere"), seat("b"))}) == set()


def test_other_policies_are_other_routes() -> None:
    watched = Watched()
    seats = (seat("a"),)
    watched.look({OWN: seats})
    watched.policies = POLICIES[1:]
    watched.rotation.refresh()
    assert watched.look({OWN: seats}) == {CHAT}
    assert CHAT not in watched.known
    watched.policies = POLICIES
    watched.rotation.refresh()
    watched.look({OWN: seats})
    assert watched.urls() == ["http://a/chat"]


def silent(name: str) -> Seat:
    return replace(seat(name), reachable=False)


def test_a_seat_that_falls_silent_keeps_its_routes_for_a_while() -> None:
    watched = Watched()
    watched.look({OWN: (seat("a"), seat("b"))})
    stock: dict[FleetName, Sequence[Seat]] = {OWN: (silent("a"), seat("b"))}
    assert watched.look(stock, 100.0) == set()
    assert watched.look(stock, 100.0 + HOLD_SECONDS / 2) == set()
    assert watched.look(stock, 100.0 + HOLD_SECONDS) == {CHAT}
    assert watched.urls() == ["http://b/chat"]
    assert watched.look({OWN: (seat("a"), seat("b"))}, 200.0) == {CHAT}
    assert sorted(watched.urls()) == ["http://a/chat", "http://b/chat"]


def test_a_seat_that_is_heard_again_in_time_never_lost_its_routes() -> None:
    watched = Watched()
    watched.look({OWN: (seat("a"), seat("b"))})
    watched.look({OWN: (silent("a"), seat("b"))}, 100.0)
    watched.look({OWN: (seat("a"), seat("b"))}, 101.0)
    watched.look({OWN: (silent("a"), seat("b"))}, 105.0)
    assert watched.look({OWN: (silent("a"), seat("b"))}, 105.0 + HOLD_SECONDS - 0.1) == set()


def test_when_all_are_lost_one_after_the_other_all_routes_hold() -> None:
    watched = Watched()
    watched.look({OWN: (seat("a"), seat("b"))})
    watched.look({OWN: (silent("a"), seat("b"))}, 100.0)
    stock: dict[FleetName, Sequence[Seat]] = {OWN: (silent("a"), silent("b"))}
    watched.look(stock, 105.0)
    assert watched.look(stock, 1000.0) == set()
    assert sorted(watched.urls()) == ["http://a/chat", "http://b/chat"]


@pytest.mark.parametrize(
    "seats",
    [
        pytest.param((), id="gone"),
        pytest.param((replace(silent("a"), terminating=True),), id="terminating"),
        pytest.param((replace(silent("a"), serving=frozenset()),), id="out of rotation"),
    ],
)
def test_a_silent_seat_that_is_known_to_be_out_of_rotation_holds_nothing(seats: Sequence[Seat]) -> None:
    watched = Watched()
    watched.look({OWN: (seat("a"),)})
    watched.look({OWN: (silent("a"),)}, 100.0)
    watched.look({OWN: seats}, 101.0)
    assert watched.urls() == []


def test_a_seat_that_was_silent_from_the_first_has_no_routes() -> None:
    watched = Watched()
    watched.look({OWN: (silent("a"), seat("b"))})
    assert watched.urls() == ["http://b/chat"]


def test_what_is_on_its_way_is_told_without_a_look_at_any_seat() -> None:
    on, stock = Watched(), {OWN: [seat("a")]}
    on.look(stock)
    looked = on.looked
    assert on.look(stock, coming={CODE: 20.0}) == {CODE}
    assert on.known[CODE].coming_seconds == 20.0
    assert on.look(stock, coming={CODE: 20.0}) == set()
    assert on.look(stock, coming={CHAT: 5.0}) == {CHAT, CODE}
    assert on.known[CODE].coming_seconds is None
    assert (on.looked, len(on.urls())) == (looked, 1)
