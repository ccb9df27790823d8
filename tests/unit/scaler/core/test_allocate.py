import math
from collections.abc import Mapping

import pytest

from scaler.core.allocate import Applicant, allocate
from scaler.core.model import Supply
from scaler.core.placement import COUNT_MAX, Place, Pool, place_of
from warmpool.seats import FleetName, PolicyName


def pool(usable: int, name: str = "spares") -> Pool:
    return Pool(name=FleetName(name), max_seats=100, usable=usable, left=usable)


def place(one: Pool, target: int = 8, **supply: int) -> Place:
    return place_of(one, target, Supply(**supply))


def applicant(name: str, *places: Place, **more: object) -> Applicant:
    options: dict[str, object] = {
        "priority": 0,
        "most": 1000,
        "floor": 0,
        "borrows": False,
        "at_once": False,
        "holding": False,
        "need": 0.0,
        "answer": 0.0,
        "overflow": 0.0,
        "keep": [0] * len(places),
        "at_risk": False,
        "held": sum(one.own for one in places),
        "overdue": False,
        "fed_since": 0.0,
        "starving_since": math.inf,
        "sheltered": False,
        "owed": 0,
        "present": 0.0,
        "starts": False,
    }
    return Applicant(name=PolicyName(name), places=places, **(options | more))  # type: ignore[arg-type]


def shares(*applicants: Applicant) -> Mapping[str, int]:
    allocate(applicants)
    return {one.name: one.seats for one in applicants}


# on one fleet: seats, then per policy (supply, what it asks for) → seats given
@pytest.mark.parametrize(
    ("usable", "asks", "given"),
    [
        pytest.param(
            3,
            {"a": ({"serving": 1, "promotable": 2}, {"need": 20.0}), "b": ({}, {})},
            {"a": 3, "b": 0},
            id="spare seats",
        ),
        pytest.param(
            3,
            {"a": ({"serving": 1, "draining": 1}, {"need": 16.0}), "b": ({"serving": 1}, {"need": 8.0})},
            {"a": 2, "b": 1},
            id="its own draining residents are recalled",
        ),
        pytest.param(
            3,
            {
                "a": ({"serving": 1, "switchable": 2}, {"need": 24.0, "priority": 1}),
                "b": ({"serving": 2}, {"need": 16.0, "floor": 1}),
            },
            {"a": 2, "b": 1},
            id="a lower class gives what it has above its floor",
        ),
        pytest.param(
            3,
            {
                "a": ({"serving": 1, "switchable": 2}, {"need": 24.0, "priority": 1}),
                "b": ({"serving": 2}, {"need": 0.0, "holding": True}),
            },
            {"a": 1, "b": 2},
            id="nothing is taken from a policy in Hold",
        ),
        pytest.param(
            3,
            {
                "a": ({"serving": 1, "switchable": 2}, {"need": 16.0}),
                "b": ({"serving": 2}, {"need": 4.0, "keep": [2]}),
            },
            {"a": 2, "b": 1},
            id="an equal gives what it keeps out of caution",
        ),
        pytest.param(
            3,
            {
                "a": ({"serving": 1, "switchable": 2}, {"need": 4.0, "overflow": 9.0}),
                "b": ({"serving": 2}, {"need": 4.0, "keep": [2]}),
            },
            {"a": 1, "b": 2},
            id="but not for a wish outside burst",
        ),
        pytest.param(
            3,
            {
                "a": ({"serving": 1, "switchable": 2}, {"need": 16.0}),
                "b": ({"serving": 2}, {"need": 4.0, "keep": [2], "priority": 1}),
            },
            {"a": 1, "b": 2},
            id="a higher class keeps what it keeps",
        ),
        pytest.param(
            3,
            {
                "a": ({"serving": 1, "switchable": 2}, {"need": 16.0}),
                "b": ({"serving": 2, "switchable": 1}, {"need": 16.0}),
            },
            {"a": 1, "b": 2},
            id="of two equals the holder keeps",
        ),
        pytest.param(
            6,
            {
                "a": ({"serving": 6}, {"need": 48.0}),
                "b": ({"switchable": 6}, {"need": 48.0}),
            },
            {"a": 3, "b": 3},
            id="equals with equal needs share equally",
        ),
        pytest.param(
            6,
            {
                "a": ({"promotable": 6}, {"need": 80.0}),
                "b": ({"promotable": 6}, {"need": 40.0}),
            },
            {"a": 4, "b": 2},
            id="in proportion to what they need",
        ),
        pytest.param(
            1,
            {
                "a": ({"promotable": 1}, {"need": 8.0}),
                "b": ({"promotable": 1}, {"need": 8.0, "at_risk": True}),
            },
            {"a": 0, "b": 1},
            id="risk decides between equals",
        ),
        pytest.param(
            1,
            {
                "a": ({"serving": 1}, {"need": 8.0}),
                "b": ({"switchable": 1}, {"need": 8.0, "overdue": True}),
            },
            {"a": 0, "b": 1},
            id="who got nothing for too long takes a turn",
        ),
        pytest.param(
            2,
            {
                "a": ({"serving": 1}, {"need": 8.0, "fed_since": 1.0}),
                "b": ({"switchable": 2}, {"need": 8.0, "overdue": True}),
                "c": ({"serving": 1}, {"need": 8.0, "fed_since": 0.0}),
            },
            {"a": 1, "b": 1, "c": 0},
            id="and whoever was fed longest ago makes room",
        ),
        pytest.param(
            2,
            {"a": ({"serving": 1}, {"floor": 2}), "b": ({"serving": 1}, {"floor": 1, "need": 8.0})},
            {"a": 1, "b": 1},
            id="floors share what is there",
        ),
        pytest.param(
            5,
            {"a": ({"promotable": 5}, {"need": 80.0, "most": 3})},
            {"a": 3},
            id="the ceiling",
        ),
        pytest.param(
            3,
            {"a": ({"serving": 1, "promotable": 2}, {"need": 4.0, "answer": 16.0})},
            {"a": 2},
            id="an answer that may not fall is filled up from idle seats",
        ),
        pytest.param(
            2,
            {
                "a": ({"serving": 1, "switchable": 1}, {"need": 4.0, "answer": 16.0}),
                "b": ({"serving": 1}, {"need": 4.0, "keep": [1], "priority": -1}),
            },
            {"a": 1, "b": 1},
            id="and not from anybody's seats",
        ),
    ],
)
def test_who_gets_the_seats_of_one_fleet(
    usable: int, asks: dict[str, tuple[dict[str, int], dict[str, object]]], given: dict[str, int]
) -> None:
    one = pool(usable)
    applicants = [applicant(name, place(one, **supply), **ask) for name, (supply, ask) in asks.items()]
    assert shares(*applicants) == given
    assert one.left == usable - sum(given.values())


def test_a_seat_that_another_takes_over_is_not_kept_although_an_unreachable_spare_is_left() -> None:
    one = pool(4)  # one of them spare, but b isn't promotable there
    a = applicant("a", place(one, serving=2), need=4.0, keep=[2])
    b = applicant("b", place(one, serving=1, switchable=2), need=16.0)
    assert shares(a, b) == {"a": 1, "b": 2}


def test_what_the_first_fleet_lacks_is_taken_from_the_next() -> None:
    own, spares = pool(1, "own"), pool(2)
    a = applicant("a", place(own, serving=1), place(spares, promotable=2), need=20.0)
    allocate([a])
    assert a.given == [1, 2]


def test_two_that_bridge_to_one_fleet_share_it() -> None:
    spares = pool(3)
    own = {name: pool(1, name) for name in ("a", "b")}
    both = [
        applicant(name, place(own[name], serving=1), place(spares, promotable=3), need=need)
        for name, need in (("a", 40.0), ("b", 24.0))
    ]
    assert shares(*both) == {"a": 3, "b": 2}
    assert spares.left == 0


def test_the_order_of_the_policies_does_not_matter() -> None:
    def world(names: str) -> Mapping[str, int]:
        one = pool(5)
        return shares(*(applicant(n, place(one, promotable=5), need=24.0) for n in names))

    assert world("abc") == world("cba") == {"a": 2, "b": 2, "c": 1}


def test_a_fleet_of_any_size_is_shared_out_at_once() -> None:
    one = pool(COUNT_MAX)
    rivals = [
        applicant(name, place(one, 1, promotable=COUNT_MAX), need=float(COUNT_MAX), most=COUNT_MAX)
        for name in ("a", "b", "c")
    ]
    given = shares(*rivals)
    assert sum(given.values()) == COUNT_MAX
    assert max(given.values()) / min(given.values()) < 1.01
