"""Counts that can be seats, where not all seats have the same residents up."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.allocate import allocate
from scaler.core.explain import explain_policy
from scaler.core.fitting import Fit
from scaler.core.model import Kind, Supply
from scaler.core.placement import Pool, place_of
from tests.unit.scaler.core.test_allocate import applicant
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, served, view
from warmpool.seats import PolicyName


def kind(up: str, seats: int = 1, starts: str = "") -> Kind:
    return Kind(up=tuple(map(PolicyName, up)), starts=tuple(map(PolicyName, starts)), seats=seats)


def handed_out(kinds: list[Kind], asks: Mapping[str, dict[str, object]]) -> dict[str, int]:
    """Hand out spare seats of some kinds, of which each policy could reach all that it is up on."""
    seats = sum(one.seats for one in kinds)
    pool = Pool(name=SPARES, max_seats=99, usable=seats, left=seats, fit=Fit(kinds))
    applicants = []
    for name, more in asks.items():
        starts = bool(more.get("starts"))
        there = sum(one.seats for one in kinds if name in (one.starts if starts else one.up))
        place = place_of(pool, 8, Supply(startable=there) if starts else Supply(promotable=there))
        applicants.append(applicant(name, place.to_start() if starts else place, **more))
    allocate(applicants)
    return {one.name: sum(one.given) + sum(one.starting) for one in applicants}


@pytest.mark.parametrize(
    ("kinds", "asks", "given"),
    [
        pytest.param(
            [kind("ab", 2), kind("a", 8)],
            {"a": {"need": 80.0}, "b": {"need": 16.0}},
            {"a": 8, "b": 2},
            id="whoever has a choice goes elsewhere",
        ),
        pytest.param(
            [kind("abc", 2), kind("a", 8)],
            {"b": {"need": 16.0}, "c": {"need": 16.0}},
            {"b": 1, "c": 1},
            id="two seats for two, not two for each",
        ),
        pytest.param(
            [kind("abc", 1), kind("a", 8)],
            {"b": {"need": 8.0}, "c": {"need": 8.0, "overdue": True, "starving_since": 1.0}},
            {"b": 0, "c": 1},
            id="with fewer seats than policies they take turns",
        ),
        pytest.param(
            [kind("ab", 1), kind("bc", 1), kind("c", 1)],
            {"a": {"need": 8.0}, "b": {"need": 8.0}, "c": {"need": 8.0}},
            {"a": 1, "b": 1, "c": 1},
            id="one moves on for another, who moves on for a third",
        ),
        pytest.param(
            [kind("ab", 2), kind("a", 1)],
            {"a": {"need": 24.0, "priority": 1}, "b": {"need": 16.0}},
            {"a": 3, "b": 0},
            id="a higher priority first",
        ),
        pytest.param(
            [kind("ab", 2), kind("a", 1)],
            {"a": {"need": 24.0, "priority": 1}, "b": {"need": 16.0, "floor": 1}},
            {"a": 2, "b": 1},
            id="but not below a floor",
        ),
        pytest.param(
            [kind("a", 1, starts="b"), kind("a", 1)],
            {"a": {"need": 8.0}, "b": {"need": 8.0, "starts": True, "most": 1}},
            {"a": 1, "b": 1},
            id="a seat to start on is one of those on which it starts",
        ),
        pytest.param([kind("a", 3)], {"b": {"need": 8.0}}, {"b": 0}, id="up nowhere"),
    ],
)
def test_nobody_is_given_a_seat_that_another_counts_on(
    kinds: list[Kind], asks: dict[str, dict[str, object]], given: dict[str, int]
) -> None:
    assert handed_out(kinds, asks) == given


@pytest.mark.parametrize(
    ("needed", "kept"),
    [
        pytest.param(8.0, 2, id="it has what it needs"),
        pytest.param(16.0, 1, id="it needs one more"),
        pytest.param(80.0, 0, id="it needs many"),
    ],
)
def test_what_is_only_kept_leaves_seats_on_which_others_could_start(needed: float, kept: int) -> None:
    """Behind seats that served nobody any more the residents that were needed never came up."""
    pool = Pool(
        name=SPARES, max_seats=9, usable=4, left=4, fit=Fit([kind("ab", 1), kind("a", 3, starts="b")])
    )
    a = applicant("a", place_of(pool, 8, Supply(serving=3)), need=8.0, keep=[3])
    b = applicant("b", place_of(pool, 8, Supply(promotable=1, blocked=3)), need=needed)
    allocate([a, b])
    assert (a.given, b.given) == ([1 + kept], [1])


def test_whoever_is_not_given_a_seat_is_hungry_and_it_is_said_why() -> None:
    """It was given both seats, like the other, and had none."""
    supply = {name: Supply(promotable=2) for name in "bc"} | {"a": Supply(promotable=10)}
    seats = {"spares": replace(view(supply, spare=10), kinds=(kind("abc", 2), kind("a", 8)))}
    run = Run([policy(name, serving_min=0) for name in "abc"], [fleet(max_seats=10)])
    decision = run.step({"a": load(0), "b": load(0, 90), "c": load(0, 90)}, seats)
    given = {name: served(decision, name) for name in "bc"}
    assert sorted(given.values()) == [1, 1]
    reasons = " ".join(explain_policy(decision.policies[PolicyName("b")]))
    assert "its residents are up on 2 seats, and others have those that it was not given" in reasons


NAMES = "abcd"
any_kinds = st.lists(
    st.builds(
        kind, st.sets(st.sampled_from(NAMES)).map(lambda names: "".join(sorted(names))), st.integers(0, 4)
    ),
    min_size=1,
    max_size=5,
)


def seats_for_any_of(kinds: list[Kind], names: set[str]) -> int:
    return sum(one.seats for one in kinds if names & set(one.up))


@given(any_kinds, st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), max_size=12))
def test_what_is_given_can_be_had_and_what_is_refused_cannot(
    kinds: list[Kind], asked: list[tuple[str, int]]
) -> None:
    """Hall's theorem: counts can be had together if no set of policies counts on more seats than suit any of them."""
    fit, has = Fit(kinds), dict.fromkeys(NAMES, 0)
    for name, seats in asked:
        got = fit.give(PolicyName(name), seats, starts=False)
        assert 0 <= got <= seats
        has[name] += got
        for size in range(1, len(NAMES) + 1):
            for names in combinations(NAMES, size):
                assert sum(has[each] for each in names) <= seats_for_any_of(kinds, set(names))
        if got < seats:  # one more would be too many for some of them together
            assert any(
                sum(has[each] for each in names) == seats_for_any_of(kinds, set(names))
                for size in range(1, len(NAMES) + 1)
                for names in combinations(NAMES, size)
                if name in names
            )


@given(any_kinds, st.lists(st.tuples(st.integers(0, 90), st.integers(0, 2)), min_size=4, max_size=4))
def test_seats_that_are_all_alike_are_handed_out_as_without_kinds(
    kinds: list[Kind], wishes: list[tuple[int, int]]
) -> None:
    asks: dict[str, dict[str, object]] = {
        name: {"need": float(need), "priority": priority}
        for name, (need, priority) in zip(NAMES, wishes, strict=True)
    }
    seats = sum(one.seats for one in kinds)
    pool = Pool(name=SPARES, max_seats=99, usable=seats, left=seats)
    plain = [applicant(name, place_of(pool, 8, Supply(promotable=seats)), **asks[name]) for name in NAMES]
    allocate(plain)
    alike = [kind(NAMES, one.seats) for one in kinds]
    assert handed_out(alike, asks) == {one.name: one.seats for one in plain}
