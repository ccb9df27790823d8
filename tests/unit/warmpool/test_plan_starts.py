"""Seats that are kept free for residents to start on, and seats that one leaves because only there another can serve."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.warmpool.test_plan import (
    DEMOTE,
    NEVER,
    NOW,
    PARK,
    PROMOTE,
    A,
    B,
    C,
    F,
    claim,
    resident,
    seat,
    texts,
    waiting,
)
from warmpool.plan import Limits, Switch, Wants, plan
from warmpool.seats import PolicyName, Seat, Verdict
from warmpool.states import ResidentState as S


def planned(
    seats: Sequence[Seat],
    serving: Mapping[PolicyName, int],
    starting: Mapping[PolicyName, int],
    *,
    order: Sequence[PolicyName] = (A, B, C),
    limits: Limits = NEVER,
    **more: Any,
) -> list[str]:
    """Plan with seats to start on; policies that aren't told of shall not serve."""
    wanted = {policy: serving.get(policy, 0) for policy in (A, B, C)}
    wants = Wants(serving={F: wanted}, starting={F: starting}, order=order, **more)
    return texts(plan(wants, seats, limits, NOW))


def since(policy: PolicyName, state: S, seconds: float) -> Any:
    return resident(policy, state, since=NOW - seconds)


@pytest.mark.parametrize(
    ("seats", "serving", "expected"),
    [
        pytest.param([seat("1", a=S.PAUSED, b=S.STARTING)], {}, [], id="a-free-seat-stays-free"),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.LOADING), seat("2", a=S.PAUSED, b=S.STARTING)],
            {A: 1},
            ["Promote 2 a"],
            id="others-get-another",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.STARTING), seat("2", a=S.PAUSED, b=S.LOADING)],
            {A: 1},
            ["Promote 1 a"],
            id="whoever-is-furthest-on-stays",
        ),
        pytest.param(
            [
                seat("1", a=S.PAUSED, b=since(B, S.LOADING, 5)),
                seat("2", a=S.PAUSED, b=since(B, S.LOADING, 50)),
            ],
            {A: 1},
            ["Promote 1 a"],
            id="or-whoever-got-there-first",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.WARMING), seat("2", a=S.PAUSED, b=S.STARTING)],
            {A: 1},
            ["Promote 2 a"],
            id="one-that-computes-keeps-its-seat-by-itself",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=waiting(B)), seat("2", a=S.PAUSED, b=S.FAILED)],
            {A: 1},
            ["Promote 1 a"],
            id="one-that-waits-for-memory-needs-no-seat",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.FAILED)], {}, ["Demote 1 a"], id="the-surplus-leaves-for-it"
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING), seat("2", "a", a=resident(A, S.SERVING, in_flight=9), b=S.FAILED)],
            {A: 1},
            ["Demote 2 a"],
            id="on-the-seat-where-it-helps",
        ),
        pytest.param(
            [
                seat("1", "a", a=S.SERVING, b=S.STARTING),
                seat("2", "a", a=S.SERVING, b=S.LOADING),
            ],
            {A: 1},
            ["Demote 2 a"],
            id="where-the-start-is-furthest-on",
        ),
        pytest.param(
            [
                seat("1", "a", a=resident(A, S.SERVING, in_flight=3), b=S.STARTING),
                replace(seat("2", "a", a=resident(A, S.SERVING, in_flight=9), b=S.STARTING), lent=True),
                seat("3", "a", a=resident(A, S.SERVING, in_flight=2), b=S.STARTING),
            ],
            {A: 2},
            ["Demote 2 a"],
            id="from-a-lent-seat-before-an-own-one",
        ),
        pytest.param(
            [
                seat("1", held=claim(DEMOTE, A), a=S.DRAINING, b=S.FAILED),
                seat("2", "a", a=S.SERVING, b=S.LOADING),
            ],
            {A: 1},
            [],
            id="one-demotion-is-enough",
        ),
        pytest.param(
            [
                seat("1", held=claim(PARK, A), a=S.PARKING, b=S.STARTING),
                seat("2", "a", a=S.SERVING, b=S.LOADING),
            ],
            {A: 1},
            [],
            id="a-seat-that-is-busy-for-a-moment-will-do",
        ),
        pytest.param(
            [replace(seat("1", a=S.PAUSED, b=S.STARTING), verdict=Verdict.SUSPECT)],
            {},
            [],
            id="no-seat-that-isn't-usable",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.STARTING)],
            {A: 1},
            [],
            id="nothing-is-taken-that-others-shall-have",
        ),
        pytest.param(
            [seat("1", a=S.DRAINING, b=S.STARTING), seat("2", "c", c=S.SERVING)],
            {C: 1},
            ["Demote 1 a"],
            id="a-stray-is-demoted-for-it",
        ),
    ],
)
def test_a_seat_is_kept_for_a_start(
    seats: list[Seat], serving: dict[PolicyName, int], expected: list[str]
) -> None:
    assert planned(seats, serving, {B: 1}) == expected


def test_a_stray_on_a_seat_to_start_on_is_not_switched_to_another() -> None:
    seats = [seat("1", a=S.DRAINING, b=S.STARTING, c=S.PAUSED)]
    assert planned(seats, {C: 1}, {B: 1}, order=(B, C, A)) == ["Demote 1 a"]
    assert planned(seats, {C: 1}, {}) == ["Switch 1 a>c"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        pytest.param((B, A, C), [], id="the-start-before-the-promotion"),
        pytest.param((A, B, C), ["Promote 1 a"], id="the-promotion-before-the-start"),
    ],
)
def test_the_last_seat_goes_by_priority(order: Sequence[PolicyName], expected: list[str]) -> None:
    assert planned([seat("1", a=S.PAUSED, b=S.LOADING)], {A: 1}, {B: 1}, order=order) == expected


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        pytest.param((B, C, A), ["Demote 1 a"], id="the-start-before-the-switch"),
        pytest.param((C, B, A), ["Switch 1 a>c"], id="the-switch-before-the-start"),
    ],
)
def test_surplus_goes_by_priority(order: Sequence[PolicyName], expected: list[str]) -> None:
    assert (
        planned([seat("1", "a", a=S.SERVING, b=S.FAILED, c=S.PAUSED)], {C: 1}, {B: 1}, order=order)
        == expected
    )


def test_whoever_is_promoted_takes_another_seat_where_that_serves_both() -> None:
    seats = [seat("1", a=S.PAUSED, b=S.LOADING), seat("2", a=S.PAUSED, c=S.PAUSED)]
    assert planned(seats, {A: 1}, {B: 1}) == ["Promote 2 a"]


def test_nothing_is_moved_or_proven_on_a_seat_that_is_kept() -> None:
    stale = resident(A, proven_at=NOW - 900)
    parked = [seat("1", a=stale, b=S.FAILED, c=S.PARKED)]
    limits = Limits(proof_interval_seconds=100.0)
    assert planned(parked, {}, {}, limits=limits, warm={F: {C: 1}}) == ["Unpark 1 c"]
    assert planned(parked, {}, {}, limits=limits) == ["Prove 1 a"]
    assert planned(parked, {}, {B: 1}, limits=limits, warm={F: {C: 1}}) == []


def test_as_many_seats_are_kept_as_are_wanted_and_none_twice() -> None:
    seats = [seat(str(n), a=S.PAUSED, b=S.STARTING, c=S.STARTING) for n in range(3)]
    assert planned(seats, {A: 1}, {B: 1, C: 1}) == ["Promote 2 a"]
    assert planned(seats, {A: 1}, {B: 2}) == ["Promote 2 a"]


def test_it_goes_on_from_step_to_step_without_changing_its_mind() -> None:
    """Demoted, drained, started: no other seat is touched on the way."""
    second = seat("2", "a", a=S.SERVING, b=S.FAILED)
    steps = [
        seat("1", held=claim(DEMOTE, A), a=S.DRAINING, b=S.FAILED),
        seat("1", held=claim(DEMOTE, A), a=S.PAUSED, b=S.FAILED),
        seat("1", a=S.PAUSED, b=S.FAILED),
        seat("1", a=S.PAUSED, b=S.STARTING),
        seat("1", a=S.PAUSED, b=S.LOADING),
        seat("1", a=S.PAUSED, b=S.WARMING),
        seat("1", a=S.PAUSED, b=S.PROVING),
    ]
    for first in steps:
        assert planned([first, second], {A: 1}, {B: 1}, order=(B, A, C)) == []


# ------------------------------------------------------------------ lent seats that drain


def lent_and_draining(name: str = "1", **states: Any) -> Seat:
    draining = resident(B, S.DRAINING, in_flight=3)
    return replace(seat(name, held=claim(DEMOTE, B), a=S.PAUSED, b=draining, **states), lent=True)


@pytest.mark.parametrize(
    ("seats", "wanted", "at_once", "expected"),
    [
        pytest.param([lent_and_draining()], {A: 1}, {B}, ["Switch 1 b>a"], id="wanted"),
        pytest.param([lent_and_draining()], {}, {B}, [], id="wanted-by-nobody"),
        pytest.param([lent_and_draining()], {A: 1}, set(), [], id="Wait"),
        pytest.param([replace(lent_and_draining(), lent=False)], {A: 1}, {B}, [], id="its-own"),
        pytest.param([lent_and_draining()], {B: 1}, {B}, ["Recall 1 b"], id="wanted-back"),
        pytest.param([lent_and_draining(), seat("2", a=S.PAUSED)], {A: 1}, {B}, ["Promote 2 a"], id="spare"),
        pytest.param(
            [replace(seat("2", "b", a=S.PAUSED, b=S.SERVING), lent=True), lent_and_draining("3")],
            {A: 2},
            {B},
            ["Switch 2 b>a", "Switch 3 b>a"],
            id="one-that-serves-and-one-that-drains",
        ),
        pytest.param(
            [replace(lent_and_draining(), verdict=Verdict.BAD)], {A: 1}, {B}, [], id="no-seat-to-promote-on"
        ),
        pytest.param(
            [replace(seat("1", held=claim(DEMOTE, B), a=S.PAUSED, b=S.PAUSED), lent=True)],
            {A: 1},
            {B},
            [],
            id="paused-already",
        ),
    ],
)
def test_a_lent_seat_that_drains_is_had_at_once(
    seats: list[Seat], wanted: dict[PolicyName, int], at_once: set[PolicyName], expected: list[str]
) -> None:
    wants = Wants(serving={F: {A: 0, B: 0} | wanted}, order=(A, B), ended_at_once=frozenset(at_once))
    given = plan(wants, seats, NEVER, NOW)
    assert texts(given) == expected
    assert all(action.at_once for action in given.actions if isinstance(action, Switch))


def test_it_isn_t_taken_from_a_start_that_waits_for_it() -> None:
    one = replace(lent_and_draining(c=S.FAILED), lent=True)
    wants = Wants(
        serving={F: {A: 1, B: 0, C: 0}}, starting={F: {C: 1}}, order=(C, A, B), ended_at_once=frozenset({B})
    )
    assert texts(plan(wants, [one], NEVER, NOW)) == []


# ------------------------------------------------------------------ the right counts on the wrong seats


@pytest.mark.parametrize(
    ("seats", "serving", "starting", "expected"),
    [
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.PAUSED), seat("2", a=S.PAUSED)],
            {A: 1, B: 1},
            {},
            ["Promote 2 a"],
            id="to-serve",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.FAILED), seat("2", a=S.PAUSED)],
            {A: 1},
            {B: 1},
            ["Promote 2 a"],
            id="to-start",
        ),
        pytest.param(
            [
                seat("1", "a", a=S.SERVING, b=S.PAUSED),
                seat("2", a=S.PAUSED, c=S.PAUSED),
                seat("3", a=S.PAUSED),
            ],
            {A: 1, B: 1},
            {},
            ["Promote 3 a"],
            id="on-the-seat-that-is-good-for-least",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.PAUSED), seat("2", held=claim(PROMOTE, A), a=S.PROMOTING)],
            {A: 1, B: 1},
            {},
            [],
            id="not-again-while-it-is-on-its-way",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.PAUSED), seat("2", "a", a=S.SERVING)],
            {A: 1, B: 1},
            {},
            ["Switch 1 a>b"],
            id="and-then-it-leaves",
        ),
        pytest.param(
            [
                seat("1", "a", a=S.SERVING, b=S.PAUSED),
                seat("2", "a", a=since(A, S.SERVING, 5)),
                seat("3", a=S.PAUSED),
            ],
            {A: 2, B: 1},
            {},
            [],
            id="not-whoever-has-just-come",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING, b=S.PAUSED), seat("2", c=S.PAUSED)],
            {A: 1, B: 1},
            {},
            [],
            id="nor-without-another-seat",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING), seat("2", a=S.PAUSED)],
            {A: 1, B: 1},
            {},
            [],
            id="nor-where-it-helps-nobody",
        ),
    ],
)
def test_one_serves_elsewhere_where_only_its_seat_will_do_for_another(
    seats: list[Seat],
    serving: dict[PolicyName, int],
    starting: dict[PolicyName, int],
    expected: list[str],
) -> None:
    assert planned(seats, serving, starting) == expected
