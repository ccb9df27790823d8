"""Each rule of the planner, one case a line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from warmpool.plan import (
    Action,
    Limits,
    Park,
    Plan,
    Promote,
    Resize,
    SeatAction,
    Switch,
    Unpark,
    Wants,
    plan,
)
from warmpool.seats import Claim, Crash, FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState as S

F = FleetName("f")
A, B, C = PolicyName("a"), PolicyName("b"), PolicyName("c")
NOW = 10_000.0
NEVER = Limits(proof_interval_seconds=math.inf)


def seat(name: str, /, serving: str = "", held: Claim | None = None, **states: S | Resident) -> Seat:
    """Make a usable seat; residents by policy, as a state or whole."""
    residents = tuple(
        given
        if isinstance(given, Resident)
        else Resident(
            policy=PolicyName(policy), state=given, since=NOW - 60, proven_at=NOW - 10, kv_released=True
        )
        for policy, given in states.items()
    )
    return Seat(
        name=SeatName(name),
        uid=name,
        version="1",
        fleet=F,
        residents=residents,
        serving=frozenset(PolicyName(policy) for policy in serving),
        claim=held,
        ready=True,
        admitted=True,
    )


def resident(policy: PolicyName, state: S = S.PAUSED, **values: Any) -> Resident:
    return Resident(
        **{
            "policy": policy,
            "state": state,
            "since": NOW - 60,
            "proven_at": NOW - 10,
            "kv_released": True,
            **values,
        }
    )


def claim(
    operation: Operation, policy: PolicyName, *, leaving: PolicyName | None = None, left: float = 5.0
) -> Claim:
    return Claim(
        id="1",
        policy=policy,
        operation=operation,
        holder="h",
        epoch=1,
        since=NOW - 1,
        deadline=NOW + left,
        leaving=leaving,
    )


def planned(
    seats: Sequence[Seat],
    wanted: Mapping[PolicyName, int],
    *,
    limits: Limits = NEVER,
    settled: Mapping[SeatName, float] | None = None,
    order: Sequence[PolicyName] = (A, B, C),
) -> Plan:
    return plan(Wants(serving={F: wanted}, order=order), seats, limits, NOW, settled=settled)


def told(action: Action) -> str:
    """Render an action as short text: `Promote s1 a`, `Switch s1 b>a`, `Resize f 3`."""
    assert action.why
    if isinstance(action, Resize):
        return f"Resize {action.fleet} {action.total}"
    assert isinstance(action, SeatAction)
    policy = getattr(action, "policy", "")
    leaving = getattr(action, "leaving", "")
    return f"{type(action).__name__} {action.seat.name} {leaving and leaving + '>'}{policy}".strip()


def texts(given: Plan) -> list[str]:
    return [told(action) for action in given.actions]


PROMOTE, SWITCH, DEMOTE, RECALL, PROVE, PARK, UNPARK = (
    Operation.PROMOTE,
    Operation.SWITCH,
    Operation.DEMOTE,
    Operation.RECALL,
    Operation.PROVE,
    Operation.PARK,
    Operation.UNPARK,
)


@pytest.mark.parametrize(
    ("seats", "wanted", "expected"),
    [
        pytest.param([seat("1", a=S.PAUSED)], {A: 1}, ["Promote 1 a"], id="promote"),
        pytest.param([seat("1", "a", a=S.SERVING)], {A: 1}, [], id="content"),
        pytest.param([seat("1", "a", a=S.SERVING)], {A: 0}, ["Demote 1 a"], id="demote"),
        pytest.param(
            [seat("1", "a", a=S.SERVING), seat("2", a=S.PAUSED)], {}, [], id="no-opinion-moves-nothing"
        ),
        pytest.param([seat("1", "a", a=S.SERVING)], {A: -3}, ["Demote 1 a"], id="below-zero-is-zero"),
        # what is in flight counts
        pytest.param(
            [seat("1", held=claim(PROMOTE, A), a=S.PROMOTING), seat("2", a=S.PAUSED)],
            {A: 1},
            [],
            id="coming-counts",
        ),
        pytest.param(
            [seat("1", held=claim(SWITCH, A, leaving=B), a=S.PAUSED, b=S.DRAINING), seat("2", a=S.PAUSED)],
            {A: 1, B: 0},
            [],
            id="a-switch-on-its-way-counts",
        ),
        pytest.param(
            [seat("1", held=claim(PROMOTE, A), a=S.FAILED), seat("2", a=S.PAUSED)],
            {A: 1},
            ["Promote 2 a"],
            id="a-promotion-whose-engine-failed-doesn't",
        ),
        pytest.param(
            [
                replace(seat("1", held=claim(PROMOTE, A), a=S.PROMOTING), reachable=False),
                seat("2", a=S.PAUSED),
            ],
            {A: 1},
            ["Promote 2 a"],
            id="nor-one-on-a-silent-seat",
        ),
        pytest.param(
            [seat("1", held=claim(DEMOTE, A), a=S.PAUSED), seat("2", a=S.PAUSED)],
            {A: 1},
            ["Promote 2 a"],
            id="what-is-being-demoted-doesn't",
        ),
        pytest.param([seat("1", held=claim(PROVE, A), a=S.PAUSED)], {A: 1}, [], id="claimed-is-left-alone"),
        pytest.param(
            [seat("1", held=claim(PROMOTE, A, left=0), a=S.PAUSED)],
            {A: 1},
            ["Promote 1 a"],
            id="not-past-its-deadline",
        ),
        # recall
        pytest.param(
            [seat("1", a=S.PAUSED), seat("2", held=claim(DEMOTE, A), a=S.DRAINING)],
            {A: 1},
            ["Recall 2 a"],
            id="recall-before-promotion",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED), seat("2", held=claim(DEMOTE, A), a=S.DRAINING)],
            {A: 2},
            ["Recall 2 a", "Promote 1 a"],
            id="recall-then-promotion",
        ),
        pytest.param(
            [
                seat("1", held=claim(DEMOTE, A), a=resident(A, S.DRAINING, in_flight=1)),
                seat("2", held=claim(DEMOTE, A), a=resident(A, S.DRAINING, in_flight=4)),
            ],
            {A: 1},
            ["Recall 2 a"],
            id="recall-what-is-furthest-from-paused",
        ),
        pytest.param(
            [replace(seat("1", held=claim(DEMOTE, A), a=S.DRAINING), verdict=Verdict.SUSPECT)],
            {A: 1},
            [],
            id="no-recall-on-an-unusable-seat",
        ),
        pytest.param(
            [seat("1", held=claim(SWITCH, B, leaving=A), a=S.DRAINING, b=S.PAUSED)],
            {A: 1, B: 1},
            [],
            id="no-recall-from-a-switch",
        ),
        # strays: resumed, out of rotation, claimed by nobody
        pytest.param([seat("1", a=S.SERVING)], {A: 1}, ["Recall 1 a"], id="a-wanted-stray-is-recalled"),
        pytest.param([seat("1", a=S.SERVING)], {A: 0}, ["Demote 1 a"], id="an-unwanted-stray-is-paused"),
        pytest.param([seat("1", a=S.DRAINING)], {}, ["Demote 1 a"], id="a-stray-without-opinion-is-paused"),
        pytest.param([seat("1", a=S.PROMOTING)], {A: 1}, [], id="a-promoting-stray-is-waited-for"),
        pytest.param(
            [replace(seat("1", a=S.SERVING), reachable=False)],
            {A: 0},
            [],
            id="a-silent-stray-can't-be-paused",
        ),
        pytest.param(
            [seat("1", "b", a=S.SERVING, b=S.SERVING)],
            {A: 1, B: 1},
            ["Demote 1 a"],
            id="no-recall-beside-another",
        ),
        pytest.param(
            [seat("1", a=S.DRAINING, b=S.PAUSED)],
            {A: 0, B: 1},
            ["Switch 1 a>b"],
            id="a-stray's-seat-is-switched",
        ),
        # never beside another
        pytest.param([seat("1", a=S.PAUSED, b=S.WARMING)], {A: 1}, [], id="not-beside-a-warming-one"),
        pytest.param([seat("1", a=S.PAUSED, b=S.PROVING)], {A: 1}, [], id="not-beside-a-proving-one"),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.LOADING)], {A: 1}, ["Promote 1 a"], id="beside-a-loading-one"
        ),
        pytest.param(
            [seat("1", "b", a=S.PAUSED, b=S.SERVING)], {A: 1, B: 1}, [], id="not-beside-a-serving-one"
        ),
        # switch
        pytest.param(
            [seat("1", "b", a=S.PAUSED, b=S.SERVING)],
            {A: 1, B: 0},
            ["Switch 1 b>a"],
            id="switch-from-surplus",
        ),
        pytest.param(
            [seat("1", "b", a=S.PAUSED, b=S.SERVING), seat("2", a=S.PAUSED, b=S.PAUSED)],
            {A: 1, B: 0},
            ["Promote 2 a", "Demote 1 b"],
            id="no-switch-while-a-spare-can-serve",
        ),
        pytest.param(
            [
                seat("1", "b", a=S.PAUSED, b=resident(B, S.SERVING, in_flight=3)),
                seat("2", "b", a=S.PAUSED, b=resident(B, S.SERVING, in_flight=0)),
            ],
            {A: 1, B: 1},
            ["Switch 2 b>a"],
            id="switch-the-idle",
        ),
        pytest.param(
            [
                seat("1", "b", a=S.PAUSED, b=resident(B, S.SERVING, in_flight=0)),
                replace(seat("2", "b", a=S.PAUSED, b=resident(B, S.SERVING, in_flight=3)), lent=True),
            ],
            {A: 1, B: 1},
            ["Switch 2 b>a"],
            id="switch-the-lent-first",
        ),
        pytest.param(
            [seat("1", "b", a=S.PAUSED, b=S.SERVING), seat("2", "b", a=S.PAUSED, b=S.SERVING)],
            {A: 2, B: 1},
            ["Switch 1 b>a"],
            id="switch-no-more-than-the-surplus",
        ),
        pytest.param(
            [seat("1", "b", a=S.FAILED, b=S.SERVING)],
            {A: 1, B: 0},
            ["Demote 1 b"],
            id="no-switch-to-a-failed-one",
        ),
        pytest.param(
            [replace(seat("1", "b", a=S.PAUSED, b=S.SERVING), verdict=Verdict.SUSPECT)],
            {A: 1, B: 0},
            ["Demote 1 b"],
            id="no-switch-on-an-unusable-seat",
        ),
        # demotion
        pytest.param(
            [
                seat("1", "a", a=resident(A, S.SERVING, in_flight=5)),
                seat("2", "a", a=resident(A, S.SERVING, in_flight=1)),
                seat("3", "a", a=resident(A, S.SERVING, in_flight=3)),
            ],
            {A: 1},
            ["Demote 2 a", "Demote 3 a"],
            id="demote-the-idlest",
        ),
        pytest.param(
            [
                seat("1", "a", a=resident(A, S.SERVING, in_flight=0)),
                replace(seat("2", "a", a=resident(A, S.SERVING, in_flight=0)), ready=False),
            ],
            {A: 1},
            ["Demote 2 a"],
            id="demote-whom-nobody-reaches-yet",
        ),
        pytest.param(
            [seat("1", "a", a=S.SERVING), seat("2", held=claim(PROMOTE, A), a=S.PROMOTING)],
            {A: 1},
            [],
            id="what-is-coming-replaces-nobody-yet",
        ),
        # hand over
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), terminating=True), seat("2", a=S.PAUSED)],
            {A: 1},
            ["Promote 2 a"],
            id="hand-over-promotion-first",
        ),
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), terminating=True), seat("2", "a", a=S.SERVING)],
            {A: 1},
            ["Demote 1 a"],
            id="hand-over-then-demotion",
        ),
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), verdict=Verdict.BAD)],
            {A: 1},
            [],
            id="better-on-bad-than-nowhere",
        ),
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), verdict=Verdict.SUSPECT), seat("2", "a", a=S.SERVING)],
            {A: 2},
            [],
            id="hand-over-waits-for-all",
        ),
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), reachable=False), seat("2", "a", a=S.SERVING)],
            {A: 1},
            ["Release 1 a"],
            id="a-silent-seat-is-released-when-replaced",
        ),
        pytest.param(
            [
                replace(seat("1", "a", a=S.SERVING), verdict=Verdict.SUSPECT),
                replace(seat("2", "a", a=S.SERVING), verdict=Verdict.BAD),
                replace(seat("3", "a", a=S.SERVING), terminating=True),
            ],
            {A: 1},
            ["Demote 3 a", "Demote 2 a"],
            id="hand-over-the-leaving-then-the-bad",
        ),
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), node_leaving="cordoned"), seat("2", a=S.PAUSED)],
            {A: 1},
            ["Promote 2 a"],
            id="hand-over-a-leaving-node-promotion-first",
        ),
        pytest.param(
            [replace(seat("1", "a", a=S.SERVING), node_leaving="cordoned"), seat("2", "a", a=S.SERVING)],
            {A: 1},
            ["Demote 1 a"],
            id="hand-over-a-leaving-node-then-demotion",
        ),
        pytest.param(
            [replace(seat("1", a=S.PAUSED), node_leaving="cordoned")],
            {A: 1},
            [],
            id="no-promotion-onto-a-leaving-node",
        ),
        pytest.param(
            [
                replace(seat("1", "a", a=S.SERVING), verdict=Verdict.BAD),
                replace(seat("2", "a", a=S.SERVING), node_leaving="cordoned"),
                replace(seat("3", "a", a=S.SERVING), terminating=True, leaves_by=NOW + 60),
                replace(seat("4", "a", a=S.SERVING), terminating=True, leaves_by=NOW + 30),
            ],
            {A: 0},
            ["Demote 4 a", "Demote 3 a", "Demote 2 a", "Demote 1 a"],
            id="hand-over-whoever-has-the-least-time-left",
        ),
        # engines that died in rotation
        pytest.param(
            [seat("1", "a", a=S.FAILED), seat("2", a=S.PAUSED)],
            {A: 1},
            ["Release 1 a", "Promote 2 a"],
            id="failed-is-released-and-replaced",
        ),
        pytest.param(
            [seat("1", "a", a=S.STARTING)], {A: 1}, ["Release 1 a"], id="restarted-before-anyone-looked"
        ),
        pytest.param([seat("1", "c", a=S.PAUSED)], {A: 0}, ["Release 1 c"], id="label-without-resident"),
        pytest.param([seat("1", "a", a=S.FAILED)], {}, ["Release 1 a"], id="released-without-opinion-too"),
        pytest.param([seat("1", "a", a=S.PAUSED)], {A: 1}, [], id="paused-may-be-a-late-report"),
        # candidates
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.PAUSED), seat("2", a=S.PAUSED, b=S.FAILED)],
            {A: 1},
            ["Promote 2 a"],
            id="versatile-seats-stay",
        ),
        pytest.param(
            [
                seat("1", a=S.PAUSED, b=resident(B, kv_released=False)),
                seat("2", a=S.PAUSED, b=S.PAUSED),
            ],
            {A: 1},
            ["Promote 2 a"],
            id="kv-memory-free-now",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.PAUSED), seat("2", a=resident(A, kv_released=False), b=S.PAUSED)],
            {A: 2},
            ["Promote 1 a", "Promote 2 a"],
            id="its-own-kv-memory-is-no-hindrance",
        ),
        # depths
        pytest.param([seat("1", a=S.PARKED)], {A: 1}, ["Promote 1 a"], id="parked-is-promotable"),
        pytest.param(
            [seat("1", a=S.PARKED), seat("2", a=resident(A, proven_at=None), b=S.PAUSED, c=S.PAUSED)],
            {A: 1},
            ["Promote 2 a"],
            id="paused-before-parked",
        ),
        pytest.param(
            [seat("1", a=S.PARKED), seat("2", held=claim(DEMOTE, A), a=S.DRAINING)],
            {A: 1},
            ["Recall 2 a"],
            id="recall-before-parked",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.PARKED), seat("2", a=S.PAUSED, b=S.PAUSED)],
            {A: 1, B: 1},
            ["Promote 1 a", "Promote 2 b"],
            id="as-many-from-paused-as-can-be",
        ),
        pytest.param(
            [seat("1", a=S.PARKED, b=S.PAUSED), seat("2", b=S.PAUSED)],
            {A: 1, B: 1},
            ["Promote 1 a", "Promote 2 b"],
            id="a-parked-one-of-the-first-comes-before-the-second",
        ),
        pytest.param(
            [seat("1", a=S.PARKED, b=S.PAUSED)],
            {A: 1, B: 1},
            ["Promote 1 a"],
            id="priority-comes-before-depth",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.UNPARKING), seat("2", a=S.PAUSED, b=S.PAUSED)],
            {A: 1},
            ["Promote 1 a"],
            id="beside-an-unparking-one",
        ),
        pytest.param([seat("1", a=S.UNPARKING)], {A: 1}, [], id="what-is-on-the-move-is-waited-for"),
        pytest.param([seat("1", a=S.PARKING)], {A: 1}, [], id="whichever-way-it-goes"),
        pytest.param(
            [seat("1", held=claim(PROMOTE, A), a=S.PARKED), seat("2", a=S.PAUSED)],
            {A: 1},
            [],
            id="a-promotion-from-host-memory-counts-from-the-claim",
        ),
        pytest.param(
            [seat("1", held=claim(PROMOTE, A), a=S.UNPARKING), seat("2", a=S.PAUSED)],
            {A: 1},
            [],
            id="and-while-it-is-unparked",
        ),
        pytest.param(
            [seat("1", a=S.PARKED), seat("2", held=claim(UNPARK, A), a=S.UNPARKING, b=S.PAUSED)],
            {A: 1},
            ["Promote 2 a"],
            id="an-unparking-is-overtaken",
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.PAUSED), seat("2", held=claim(UNPARK, A), a=S.UNPARKING)],
            {A: 1},
            ["Promote 1 a"],
            id="but-a-paused-one-comes-first",
        ),
        pytest.param(
            [seat("1", a=S.PARKED), seat("2", held=claim(PARK, A), a=S.PARKING)],
            {A: 2},
            ["Promote 1 a", "Promote 2 a"],
            id="a-parking-last-of-all",
        ),
        pytest.param(
            [seat("1", held=claim(UNPARK, B), a=S.PAUSED, b=S.UNPARKING)],
            {A: 1},
            [],
            id="not-by-another",
        ),
        pytest.param(
            [replace(seat("1", held=claim(UNPARK, A), a=S.UNPARKING), verdict=Verdict.BAD)],
            {A: 1},
            [],
            id="not-on-a-sick-seat",
        ),
        pytest.param([seat("1", "a", a=S.UNPARKING)], {A: 1}, [], id="unparking-may-be-a-late-report"),
        pytest.param(
            [seat("1", "b", a=S.PARKED, b=S.SERVING), seat("2", "b", a=S.PAUSED, b=S.SERVING)],
            {A: 1, B: 1},
            ["Switch 2 b>a"],
            id="switch-to-a-paused-one-first",
        ),
        pytest.param(
            [seat("1", "b", a=S.PARKED, b=S.SERVING)],
            {A: 1, B: 0},
            ["Switch 1 b>a"],
            id="switch-to-a-parked-one",
        ),
        pytest.param(
            [
                replace(seat("1", a=S.PAUSED), verdict=Verdict.SUSPECT),
                replace(seat("2", a=S.PAUSED), reachable=False),
            ],
            {A: 1},
            [],
            id="no-promotion-on-unusable-seats",
        ),
        pytest.param(
            [seat("2", a=S.PAUSED), seat("1", a=S.PAUSED)], {A: 1}, ["Promote 1 a"], id="then-by-name"
        ),
        pytest.param(
            [seat("1", a=S.PAUSED, b=S.PAUSED), seat("2", a=S.PAUSED, c=S.PAUSED)],
            {A: 1, B: 1},
            ["Promote 2 a", "Promote 1 b"],
            id="the-first-makes-room-for-the-second",
        ),
        pytest.param(
            [
                seat("1", a=S.PAUSED, b=S.PAUSED),
                seat("2", a=S.PAUSED, c=S.PAUSED),
                seat("3", b=S.PAUSED, c=S.PAUSED),
                seat("4", a=S.PAUSED, d=S.PAUSED),
            ],
            {A: 2, B: 1, C: 1},
            ["Promote 1 a", "Promote 4 a", "Promote 3 b", "Promote 2 c"],
            id="room-is-made-in-a-chain",
        ),
    ],
)
def test_rules(seats: list[Seat], wanted: dict[PolicyName, int], expected: list[str]) -> None:
    assert _unordered_within_kinds(texts(planned(seats, wanted))) == _unordered_within_kinds(expected)


def _unordered_within_kinds(actions: Sequence[str]) -> list[tuple[str, frozenset[str]]]:
    kinds = list(dict.fromkeys(text.split()[0] for text in actions))
    return [(kind, frozenset(text for text in actions if text.startswith(kind))) for kind in kinds]


class TestCandidates:
    def test_fresh_proofs_come_first_in_whole_intervals(self) -> None:
        seats = [
            seat("1", a=resident(A, proven_at=None)),
            seat("2", a=resident(A, proven_at=NOW - 250)),
            seat("3", a=resident(A, proven_at=NOW - 150)),
            seat("4", a=resident(A, proven_at=NOW - 1)),
            seat("5", a=resident(A, proven_at=NOW - 99)),
        ]
        limits = Limits(proof_interval_seconds=100)
        assert texts(planned(seats, {A: 5}, limits=limits)) == [f"Promote {n} a" for n in (4, 5, 3, 2, 1)]

    def test_promotions_spread_over_nodes(self) -> None:
        seats = [replace(seat(f"{node}{n}", a=S.PAUSED), node=node) for node in "xyz" for n in (1, 2)]
        chosen = texts(planned(seats, {A: 3}))
        assert chosen == ["Promote x1 a", "Promote y1 a", "Promote z1 a"]

    def test_nodes_that_serve_the_policy_already_come_later(self) -> None:
        serving = replace(seat("x0", "a", a=S.SERVING), node="x")
        coming = replace(seat("y0", held=claim(PROMOTE, A), a=S.PROMOTING), node="y")
        spares = [replace(seat(f"{node}1", a=S.PAUSED), node=node) for node in "xyz"]
        assert texts(planned([serving, coming, *spares], {A: 3})) == ["Promote z1 a"]

    def test_priority_rules_when_spares_are_short(self) -> None:
        seats = [seat("1", a=S.PAUSED, b=S.PAUSED)]
        given = planned(seats, {A: 1, B: 1}, order=(B, A))
        assert texts(given) == ["Promote 1 b"]
        assert given.unfilled == {(F, A): 1}

    def test_policies_without_priority_come_last(self) -> None:
        seats = [seat("1", a=S.PAUSED, b=S.PAUSED)]
        assert texts(planned(seats, {A: 1, B: 1}, order=(B,))) == ["Promote 1 b"]


class TestUnfilled:
    def test_is_what_no_seat_was_found_for(self) -> None:
        given = planned([seat("1", a=S.PAUSED), seat("2", "a", a=S.SERVING)], {A: 4, B: 2})
        assert given.unfilled == {(F, A): 2, (F, B): 2}

    def test_what_the_limits_defer_is_not_unfilled(self) -> None:
        given = planned(
            [seat(str(n), a=S.PAUSED) for n in range(5)], {A: 5}, limits=replace(NEVER, max_promotions=2)
        )
        assert len(given.actions) == 2
        assert given.deferred == 3
        assert not given.unfilled

    def test_a_fleet_without_seats_fills_nothing(self) -> None:
        assert planned([], {A: 2}).unfilled == {(F, A): 2}

    def test_a_want_beyond_all_measure_ends(self) -> None:
        assert planned([seat("1", a=S.PAUSED)], {A: 10**18}).unfilled == {(F, A): 10**18 - 1}


class TestLimits:
    def test_promotions_in_flight_use_up_the_limit(self) -> None:
        seats = [
            seat("0", held=claim(PROMOTE, A), a=S.PROMOTING),
            *(seat(str(n), a=S.PAUSED) for n in (1, 2, 3)),
        ]
        assert texts(planned(seats, {A: 4}, limits=replace(NEVER, max_promotions=2))) == ["Promote 1 a"]

    def test_the_limit_keeps_recalls_and_priority(self) -> None:
        seats = [
            seat("1", a=S.PAUSED),
            seat("2", b=S.PAUSED),
            seat("3", held=claim(DEMOTE, C), c=S.DRAINING),
        ]
        limits = replace(NEVER, max_promotions=2)
        assert texts(planned(seats, {A: 1, B: 1, C: 1}, limits=limits, order=(B, A, C))) == [
            "Recall 3 c",
            "Promote 2 b",
        ]

    def test_demotions_in_flight_use_up_the_limit(self) -> None:
        seats = [
            seat("0", held=claim(DEMOTE, A), a=S.DRAINING),
            *(seat(str(n), "a", a=S.SERVING) for n in (1, 2, 3)),
        ]
        given = planned(seats, {A: 0}, limits=replace(NEVER, max_demotions=2))
        assert texts(given) == ["Demote 1 a"]
        assert given.deferred == 2

    def test_releases_are_never_deferred(self) -> None:
        seats = [seat(str(n), "a", a=S.FAILED) for n in range(3)]
        assert (
            len(planned(seats, {A: 0}, limits=replace(NEVER, max_promotions=0, max_demotions=0)).actions) == 3
        )


class TestLateReports:
    """With the times of settlements, a difference between label and report is either too young to judge or real."""

    @pytest.mark.parametrize("state", [S.PAUSED, S.PROMOTING, S.DRAINING, S.PROVING])
    def test_a_label_is_believed_while_the_report_may_be_older(self, state: S) -> None:
        just = {SeatName("1"): NOW - 1}
        assert texts(planned([seat("1", "a", a=state)], {A: 1}, settled=just)) == []

    @pytest.mark.parametrize("state", [S.PAUSED, S.PROMOTING, S.DRAINING, S.PROVING])
    @pytest.mark.parametrize("settled", [{}, {SeatName("1"): NOW - 60}], ids=["unknown", "long-ago"])
    def test_later_it_is_taken_off(self, state: S, settled: dict[SeatName, float]) -> None:
        assert texts(planned([seat("1", "a", a=state)], {A: 1}, settled=settled)) == ["Release 1 a"]

    def test_a_failure_is_never_a_late_report(self) -> None:
        assert texts(planned([seat("1", "a", a=S.FAILED)], {A: 1}, settled={SeatName("1"): NOW})) == [
            "Release 1 a"
        ]

    def test_a_demotion_just_settled_is_not_repeated(self) -> None:
        seats = [seat("1", a=S.DRAINING)]
        assert texts(planned(seats, {A: 0}, settled={SeatName("1"): NOW - 1})) == []
        assert texts(planned(seats, {A: 0}, settled={SeatName("1"): NOW - 60})) == ["Demote 1 a"]

    def test_but_what_is_wanted_is_recalled_at_once(self) -> None:
        assert texts(planned([seat("1", a=S.DRAINING)], {A: 1}, settled={SeatName("1"): NOW})) == [
            "Recall 1 a"
        ]


GONE: dict[str, Any] = {"a": S.QUARANTINED, "b": S.TERMINATING}


class TestReplace:
    def test_a_seat_whose_residents_are_all_given_up(self) -> None:
        assert texts(planned([seat("1", **GONE)], {})) == ["Replace 1"]

    def test_failed_for_too_long_is_given_up(self) -> None:
        failed = seat("1", a=resident(A, S.FAILED, since=NOW - 121))
        assert texts(planned([failed], {})) == ["Replace 1"]

    def test_what_a_pre_flight_keeps_from_starting_is_never_given_up(self) -> None:
        refused = replace(resident(A, S.FAILED, since=NOW - 100_000), refused=True)
        assert texts(planned([seat("1", a=refused)], {})) == []

    @pytest.mark.parametrize(
        "given",
        [
            pytest.param(seat("1", a=S.FAILED), id="its-agent-will-restart-it"),
            pytest.param(seat("1", a=S.QUARANTINED, b=S.STARTING), id="one-is-coming"),
            pytest.param(seat("1"), id="nothing-is-known-of-it"),
            pytest.param(replace(seat("1", **GONE), reachable=False), id="silence-is-not-sickness"),
            pytest.param(replace(seat("1", **GONE), terminating=True), id="it-goes-already"),
            pytest.param(replace(seat("1", **GONE), verdict=Verdict.SUSPECT), id="suspect-keeps-its-place"),
            pytest.param(seat("1", held=claim(PROVE, A), **GONE), id="claimed"),
        ],
    )
    def test_stays(self, given: Seat) -> None:
        assert texts(planned([given], {})) == []

    def test_a_seat_that_ails_whatever_its_residents_could_do_and_nobody_is_promoted_there(self) -> None:
        ailing = replace(seat("1", a=S.PAUSED), ailing="3 bad starts")
        given = planned([ailing], {A: 1})
        assert texts(given) == ["Replace 1"]
        assert given.actions[0].why == "3 bad starts"
        loading = replace(seat("1", a=S.LOADING), ailing="3 bad starts")
        assert texts(planned([loading], {A: 1})) == ["Replace 1"]

    def test_a_silent_seat_that_ails_is_replaced_only_if_it_never_can_speak(self) -> None:
        dead = replace(seat("1"), ailing="CrashLoopBackOff", reachable=False)
        assert "Replace 1" not in texts(planned([dead], {A: 1}))
        crash = Crash(container="agent", reason="CrashLoopBackOff", restarts=3)
        assert "Replace 1" in texts(planned([replace(dead, crash=crash)], {A: 1}))

    def test_a_seat_that_ails_and_serves_is_handed_over_and_not_replaced(self) -> None:
        ailing = replace(seat("1", "a", a=S.SERVING), ailing="3 bad starts")
        assert "Replace 1" not in texts(planned([ailing], {A: 1}))

    def test_one_at_a_time(self) -> None:
        seats = [seat(str(n), **GONE) for n in range(3)]
        assert texts(planned(seats, {})) == ["Replace 0"]
        doomed = replace(seat("9", a=S.PAUSED), terminating=True)
        assert texts(planned([*seats, doomed], {})) == []

    def test_a_bad_gpu_keeps_its_place_while_a_replacement_would_get_it_again(self) -> None:
        bad = replace(seat("1", a=S.PAUSED), verdict=Verdict.BAD)
        warm = seat("2", a=S.PAUSED)
        assert texts(planned([bad, warm], {A: 0})) == []
        assert texts(planned([replace(bad, fenced=True), warm], {A: 0})) == ["Replace 1"]

    def test_a_bad_gpu_keeps_its_place_until_another_seat_is_warm(self) -> None:
        bad = replace(seat("1", a=S.PAUSED), verdict=Verdict.BAD, fenced=True)
        warm = seat("2", a=S.PAUSED)
        assert texts(planned([bad], {A: 0})) == []
        assert texts(planned([bad, warm], {A: 0})) == ["Replace 1"]
        assert texts(planned([bad, warm], {A: 1})) == ["Promote 2 a"]


class TestProofs:
    LIMITS = Limits(proof_interval_seconds=100)

    def proofs(self, *seats: Seat, wanted: Mapping[PolicyName, int] | None = None) -> list[str]:
        given = planned(seats, {} if wanted is None else wanted, limits=self.LIMITS)
        return [text for text in texts(given) if text.startswith("Prove")]

    def test_the_oldest_of_the_fleet_and_no_other(self) -> None:
        assert self.proofs(
            seat("1", a=resident(A, proven_at=NOW - 150)),
            seat("2", a=S.PAUSED, b=resident(B, proven_at=NOW - 200)),
        ) == ["Prove 2 b"]

    def test_what_was_never_proven_first(self) -> None:
        never = seat("2", a=resident(A, proven_at=None))
        assert self.proofs(seat("1", a=resident(A, proven_at=NOW - 900)), never) == ["Prove 2 a"]

    def test_not_before_the_interval(self) -> None:
        assert self.proofs(seat("1", a=resident(A, proven_at=NOW - 100))) == []

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(seat("2", held=claim(PROVE, A), a=S.PROVING), id="another-proof-runs"),
            pytest.param(seat("2", held=claim(PROMOTE, A), a=S.PROMOTING), id="a-promotion-runs"),
        ],
    )
    def test_not_while(self, other: Seat) -> None:
        assert self.proofs(seat("1", a=resident(A, proven_at=None)), other) == []

    @pytest.mark.parametrize(
        "stale",
        [
            pytest.param({"serving": "b", "b": S.SERVING}, id="behind-a-serving-neighbour"),
            pytest.param({"b": S.WARMING}, id="beside-a-warming-one"),
            pytest.param({"b": S.LOADING}, id="while-the-seat-starts"),
        ],
    )
    def test_not_on_a_seat_that_is(self, stale: dict[str, Any]) -> None:
        assert self.proofs(seat("1", a=resident(A, proven_at=None), **stale)) == []

    def test_not_in_demand(self) -> None:
        stale = resident(A, proven_at=None)
        assert self.proofs(seat("1", a=stale), seat("2", a=stale), wanted={A: 1}) == []
        assert self.proofs(seat("1", a=stale), wanted={A: 0, B: 1}) == []

    def test_one_whose_proof_has_just_failed_is_left_alone(self) -> None:
        seats = [seat(n, a=resident(A, proven_at=None)) for n in "12"]
        wants = Wants(serving={F: {}})
        (proof,) = plan(wants, seats, self.LIMITS, NOW, left_alone={(SeatName("1"), A)}).actions
        assert told(proof) == "Prove 2 a"

    def test_infinity_is_never(self) -> None:
        assert texts(planned([seat("1", a=resident(A, proven_at=0.0))], {}, limits=NEVER)) == []


def waiting(policy: PolicyName) -> Resident:
    return resident(policy, S.STARTING, waiting="no room", proven_at=None)


class TestDepths:
    """Who is unparked, and who makes room: `wants.warm`."""

    @staticmethod
    def moved(
        *seats: Seat,
        warm: Mapping[PolicyName, int],
        serving: Mapping[PolicyName, int] | None = None,
        limits: Limits = NEVER,
        **context: Any,
    ) -> list[str]:
        """Render the moves of a plan: `Unpark 1 a<b,c`, `Park 1 b`."""
        wants = Wants(serving={F: serving or {}}, warm={F: warm}, order=(A, B, C))
        given = plan(wants, seats, limits, NOW, **context)
        return [
            told(action) + (f"<{','.join(action.displace)}" if isinstance(action, Unpark) else "")
            for action in given.actions
            if isinstance(action, Unpark | Park)
        ]

    @pytest.mark.parametrize(
        ("seats", "warm", "expected"),
        [
            pytest.param([seat("1", a=S.PARKED)], {A: 1}, ["Unpark 1 a<"], id="what-lacks-is-unparked"),
            pytest.param([seat("1", a=S.PARKED)], {A: 0}, [], id="nobody-lacks"),
            pytest.param([seat("1", a=S.PARKED)], {}, [], id="no-opinion-moves-nothing"),
            pytest.param([seat("1", a=S.PAUSED), seat("2", a=S.PARKED)], {A: 1}, [], id="enough-is-paused"),
            pytest.param([seat("1", a=S.PAUSED)], {A: 0}, [], id="nobody-is-parked-for-nobody"),
            # who makes room
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PAUSED, c=S.PAUSED)],
                {A: 1, B: 0, C: 0},
                ["Unpark 1 a<c,b"],
                id="the-least-important-makes-room-first",
            ),
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PAUSED, c=S.PAUSED)],
                {A: 1, B: 0, C: 1},
                ["Unpark 1 a<b"],
                id="nobody-who-is-wanted-there",
            ),
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PAUSED, c=S.PAUSED)],
                {A: 1, C: 1},
                ["Unpark 1 a<"],
                id="nobody-without-an-opinion",
            ),
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PAUSED), seat("2", a=S.PARKED, c=S.PAUSED)],
                {A: 1, B: 1, C: 0},
                ["Unpark 2 a<c"],
                id="where-room-can-be-made",
            ),
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PAUSED), *(seat(n, a=S.PARKED, b=S.PAUSED) for n in "2345")],
                {A: 3, B: 4},
                ["Unpark 1 a<b", "Unpark 2 a<"],
                id="each-that-can-be-missed-once",
            ),
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PARKED), seat("2", c=S.PARKED), *map(seat, "34")],
                {A: 1, B: 1, C: 1},
                ["Unpark 1 a<"],
                id="a-seat-once-and-half-of-them",
            ),
            # where
            pytest.param(
                [seat("1", a=S.PARKED, b=S.PAUSED), seat("2", a=S.PARKED)],
                {A: 1},
                ["Unpark 2 a<"],
                id="where-the-fewest-are-in-the-way",
            ),
            pytest.param(
                [
                    replace(seat("1", a=S.PAUSED), node="x"),
                    replace(seat("2", a=S.PARKED), node="x"),
                    replace(seat("3", a=S.PARKED), node="y"),
                ],
                {A: 2},
                ["Unpark 3 a<"],
                id="on-a-node-without-one",
            ),
            pytest.param([seat("1", a=S.PARKED, b=S.LOADING)], {A: 1}, [], id="not-while-the-seat-starts"),
            pytest.param([seat("1", a=S.PARKED, b=S.UNPARKING)], {A: 1}, [], id="not-beside-another-move"),
            pytest.param([seat("1", "b", a=S.PARKED, b=S.SERVING)], {A: 1}, [], id="not-on-a-serving-seat"),
            pytest.param(
                [replace(seat("1", a=S.PARKED), verdict=Verdict.SUSPECT)], {A: 1}, [], id="not-on-a-sick-seat"
            ),
            pytest.param(
                [seat("1", a=S.PARKED, b=waiting(B))], {A: 1}, ["Unpark 1 a<"], id="beside-one-that-waits"
            ),
            # who counts
            pytest.param(
                [seat("1", a=S.UNPARKING), seat("2", a=S.PARKED)], {A: 1}, [], id="what-is-on-its-way-counts"
            ),
            pytest.param(
                [seat("1", held=claim(UNPARK, A), a=S.PARKED), seat("2", a=S.PARKED)],
                {A: 1},
                [],
                id="from-its-claim-on",
            ),
            pytest.param(
                [seat("1", held=claim(PROVE, A), a=S.PROVING), seat("2", a=S.PARKED)],
                {A: 1},
                [],
                id="what-is-being-proven-counts",
            ),
            pytest.param(
                [replace(seat("1", "b", a=S.PAUSED, b=S.SERVING), lent=True), seat("2", a=S.PARKED)],
                {A: 1},
                [],
                id="on-a-lent-seat-too",
            ),
            pytest.param(
                [seat("1", "b", a=S.PAUSED, b=S.SERVING), seat("2", a=S.PARKED)],
                {A: 1},
                ["Unpark 2 a<"],
                id="not-behind-who-owns-the-seat",
            ),
            pytest.param(
                [
                    seat("1", held=replace(claim(UNPARK, B), displace=(A,)), a=S.PAUSED, b=S.UNPARKING),
                    *(seat(n, a=S.PARKED) for n in "234"),
                ],
                {A: 1},
                ["Unpark 2 a<"],
                id="not-what-may-be-parked-this-moment",
            ),
            pytest.param(
                [
                    seat("1", held=replace(claim(UNPARK, B), displace=(A,)), a=S.PAUSED, b=S.UNPARKING),
                    seat("2", a=S.PAUSED, c=S.PARKED),
                    *(seat(n, a=S.PARKED) for n in "34"),
                ],
                {A: 1, B: 1, C: 1},
                ["Unpark 2 c<"],
                id="nor-is-it-given-away-twice",
            ),
            # room for who can't start
            pytest.param(
                [seat("1", a=waiting(A), b=S.PAUSED, c=S.PAUSED)],
                {A: 1, B: 1, C: 0},
                ["Park 1 c"],
                id="room-to-start-in",
            ),
            pytest.param(
                [seat("1", a=waiting(A), b=S.PAUSED)],
                {A: 0, B: 0},
                [],
                id="not-for-who-lacks-nothing",
            ),
            pytest.param(
                [seat("1", a=waiting(A), b=S.PAUSED)], {A: 1, B: 1}, [], id="not-by-who-is-wanted-there"
            ),
            pytest.param(
                [seat("1", a=waiting(A), b=S.PAUSED), seat("2", a=S.PARKED), seat("3", b=S.PAUSED)],
                {A: 1, B: 0},
                ["Unpark 2 a<"],
                id="unparking-is-quicker",
            ),
            pytest.param(
                [seat("1", a=waiting(A), b=S.PAUSED), seat("2", a=S.LOADING, b=S.PAUSED), *map(seat, "34")],
                {A: 1, B: 0},
                [],
                id="not-while-another-starts",
            ),
            pytest.param(
                [
                    seat("1", held=claim(PARK, B), a=waiting(A), b=S.PARKING),
                    *(seat(n, a=waiting(A), b=S.PAUSED) for n in "2345"),
                ],
                {A: 1, B: 0},
                [],
                id="one-at-a-time",
            ),
        ],
    )
    def test_moves(self, seats: list[Seat], warm: dict[PolicyName, int], expected: list[str]) -> None:
        assert self.moved(*seats, warm=warm) == expected

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param(seat("2"), id="a-want-that-nobody-can-fill"),
            pytest.param(seat("2", b=S.PAUSED), id="a-promotion-that-is-planned"),
            pytest.param(seat("2", held=claim(PROMOTE, B), b=S.PROMOTING), id="one-that-is-under-way"),
        ],
    )
    def test_wait_for_promotions(self, other: Seat) -> None:
        sleeper = seat("1", a=S.PARKED)
        assert self.moved(sleeper, other, warm={A: 1}, serving={B: 1}) == []
        assert self.moved(sleeper, seat("2", "b", b=S.SERVING), warm={A: 1}, serving={B: 1}) == [
            "Unpark 1 a<"
        ]

    def test_the_most_important_lack_first(self) -> None:
        sleepers = [seat(n, a=S.PARKED, b=S.PARKED) for n in "1234"]
        assert self.moved(*sleepers, warm={B: 2, A: 1}) == ["Unpark 1 a<", "Unpark 2 b<"]

    def test_those_under_way_use_up_the_limit(self) -> None:
        sleepers = [seat(str(n), a=S.PARKED) for n in range(9)]
        under_way = seat("x", held=claim(UNPARK, B), b=S.UNPARKING)
        limits = replace(NEVER, max_moves=3)
        assert len(self.moved(*sleepers, under_way, warm={A: 9}, limits=limits)) == 2

    def test_what_has_just_failed_is_left_alone(self) -> None:
        sleepers = [seat(n, a=S.PARKED) for n in "12"]
        failed = {(SeatName("1"), A)}
        assert self.moved(*sleepers, warm={A: 1}, left_alone=failed) == ["Unpark 2 a<"]
        assert self.moved(*sleepers, warm={A: 2}, left_alone=failed) == ["Unpark 2 a<"]

    def test_a_seat_that_was_just_settled_is_left_alone(self) -> None:
        settled = {SeatName("1"): NOW - 1}
        assert self.moved(seat("1", a=S.PARKED), warm={A: 1}, settled=settled) == []

    def test_a_promotion_may_displace_anybody_and_first_who_can_be_missed(self) -> None:
        seats = [seat("1", a=S.PARKED, b=S.PAUSED, c=S.PAUSED, d=S.PARKED), seat("2", b=S.PAUSED)]
        wants = Wants(serving={F: {A: 1}}, warm={F: {B: 1, C: 1}}, order=(A, B, C))
        (promotion,) = plan(wants, seats, NEVER, NOW).actions
        assert isinstance(promotion, Promote)
        assert promotion.displace == (B, C)

    def test_a_switch_may_park_who_leaves(self) -> None:
        (switch,) = planned([seat("1", "b", a=S.PARKED, b=S.SERVING)], {A: 1, B: 0}).actions
        assert isinstance(switch, Switch)
        assert switch.displace == (B,)

    def test_only_paused_residents_are_proven(self) -> None:
        asleep = seat("1", a=resident(A, S.PARKED, proven_at=None), b=resident(B, proven_at=NOW - 500))
        assert texts(planned([asleep], {}, limits=Limits())) == ["Prove 1 b"]
        assert texts(planned([seat("1", a=resident(A, S.PARKED, proven_at=None))], {}, limits=Limits())) == []

    def test_one_that_waits_for_room_keeps_no_neighbour_from_its_proof(self) -> None:
        seats = [seat("1", a=resident(A, proven_at=None), b=waiting(B))]
        assert texts(planned(seats, {}, limits=Limits())) == ["Prove 1 a"]

    def test_a_seat_on_the_move_is_not_useless(self) -> None:
        moving = replace(seat("1", a=S.UNPARKING), verdict=Verdict.BAD)
        warm = seat("2", a=S.PAUSED)
        assert texts(planned([moving, warm], {A: 0})) == []


class TestResize:
    @staticmethod
    def resized(
        *seats: Seat, total: int, replicas: int | None, wanted: Mapping[PolicyName, int] | None = None
    ) -> list[str]:
        wants = Wants(
            serving={F: wanted or {}},
            totals={F: total},
            replicas={} if replicas is None else {F: replicas},
        )
        given = plan(wants, seats, NEVER, NOW)
        return [told(action) for action in given.actions if isinstance(action, Resize)]

    def test_only_when_the_total_differs(self) -> None:
        assert self.resized(total=3, replicas=3) == []
        assert self.resized(total=4, replicas=3) == ["Resize f 4"]
        assert self.resized(total=2, replicas=3) == ["Resize f 2"]

    def test_not_while_the_present_number_is_unknown(self) -> None:
        assert self.resized(total=4, replicas=None) == []

    def test_raising_waits_for_nothing(self) -> None:
        promoting = seat("1", held=claim(PROMOTE, A), a=S.PROMOTING)
        unready = replace(seat("2", "a", a=S.SERVING), ready=False)
        assert self.resized(promoting, unready, total=4, replicas=3) == ["Resize f 4"]

    @pytest.mark.parametrize(
        "given",
        [
            pytest.param(seat("1", held=claim(PROMOTE, A), a=S.PROMOTING), id="a-promotion-is-in-flight"),
            pytest.param(seat("1", held=claim(RECALL, A), a=S.DRAINING), id="a-recall-is-in-flight"),
            pytest.param(seat("1", a=S.PAUSED), id="a-promotion-is-planned"),
            pytest.param(replace(seat("1", "a", a=S.SERVING), ready=False), id="a-serving-pod-is-not-ready"),
        ],
    )
    def test_lowering_waits_while(self, given: Seat) -> None:
        assert self.resized(given, total=2, replicas=3, wanted={A: 1}) == []

    def test_lowering_ignores_pods_that_go_anyway(self) -> None:
        doomed = replace(seat("1", "a", a=S.SERVING), ready=False, terminating=True)
        assert self.resized(doomed, total=2, replicas=3) == ["Resize f 2"]

    def test_a_fleet_without_counts_is_raised_and_not_lowered(self) -> None:
        other = FleetName("g")
        for total, expected in ((4, 1), (2, 0)):
            wants = Wants(serving={}, totals={other: total}, replicas={other: 3})
            assert len(plan(wants, [], NEVER, NOW).actions) == expected


class TestFleets:
    def test_each_fleet_is_filled_from_its_own_seats(self) -> None:
        g = FleetName("g")
        seats = [seat("1", a=S.PAUSED), replace(seat("2", a=S.PAUSED), fleet=g)]
        given = plan(Wants(serving={F: {A: 0}, g: {A: 1}}), seats, NEVER, NOW)
        assert texts(given) == ["Promote 2 a"]

    def test_a_fleet_that_nobody_asks_about_is_left_alone(self) -> None:
        stranger = replace(seat("1", "a", a=S.FAILED), fleet=FleetName("x"))
        assert texts(planned([stranger], {A: 1})) == []

    def test_priority_goes_across_fleets(self) -> None:
        g = FleetName("g")
        seats = [seat("1", a=S.PAUSED), replace(seat("2", b=S.PAUSED), fleet=g)]
        given = plan(Wants(serving={F: {A: 1}, g: {B: 1}}, order=(B, A)), seats, NEVER, NOW)
        assert texts(given) == ["Promote 2 b", "Promote 1 a"]


def test_the_order_of_kinds() -> None:
    g = FleetName("g")
    seats = [
        seat("1", "a", a=S.FAILED),
        seat("2", held=claim(DEMOTE, A), a=S.DRAINING),
        seat("3", a=S.PAUSED),
        seat("4", "b", b=S.SERVING, c=S.PAUSED),
        seat("5", "b", b=S.SERVING, c=S.FAILED),
        seat("6", a=S.QUARANTINED),
        replace(seat("7", a=resident(A, proven_at=None)), fleet=g),
    ]
    wants = Wants(
        serving={F: {A: 2, B: 0, C: 1}, g: {A: 0}},
        order=(A, B, C),
        totals={F: 9, g: 1},
        replicas={F: 6, g: 1},
    )
    assert texts(plan(wants, seats, Limits(), NOW)) == [
        "Release 1 a",
        "Recall 2 a",
        "Promote 3 a",
        "Switch 4 b>c",
        "Demote 5 b",
        "Replace 6",
        "Resize f 9",
        "Prove 7 a",
    ]


def test_nothing_wanted_and_nothing_there_is_an_empty_plan() -> None:
    assert plan(Wants(serving={}), [], Limits(), NOW) == Plan()


@pytest.mark.parametrize(
    ("lent", "policies", "at_once"),
    [(True, {B}, True), (False, {B}, False), (True, set(), False)],
    ids=["lent and Abort", "its own", "lent and Wait"],
)
def test_work_on_a_lent_seat_is_ended_at_once_where_its_policy_says_so(
    policies: set[PolicyName], *, lent: bool, at_once: bool
) -> None:
    one = replace(seat("1", "b", a=S.PAUSED, b=S.SERVING), lent=lent)
    wants = Wants(serving={one.fleet: {A: 1, B: 0}}, ended_at_once=frozenset(policies))
    (switch,) = plan(wants, [one], Limits(), NOW).actions
    assert isinstance(switch, Switch)
    assert switch.at_once is at_once


def made(given: Seat, template: str, at: float) -> Seat:
    return replace(given, template=template, created_at=at)


@pytest.mark.parametrize(
    ("seats", "wanted", "expected"),
    [
        pytest.param(
            [made(seat("1", a=S.PAUSED), "old", 1), made(seat("2", a=S.PAUSED), "new", 2)],
            {A: 1},
            ["Promote 2 a"],
            id="newest-first",
        ),
        pytest.param(
            [
                made(seat("1", a=S.PAUSED), "first", 1),
                made(seat("2", a=S.PAUSED), "second", 2),
                made(seat("3", a=S.STARTING), "first", 3),
            ],
            {A: 1},
            ["Promote 1 a"],
            id="the-youngest-seat-says-which-is-newest",
        ),
        pytest.param(
            [
                made(seat("1", a=S.PAUSED), "first", 1),
                replace(made(seat("2", a=S.PAUSED), "second", 2), terminating=True),
            ],
            {A: 1},
            ["Promote 1 a"],
            id="one-that-goes-says-nothing",
        ),
        pytest.param(
            [made(seat("1", a=S.PAUSED), "old", 1), made(seat("2", a=S.PARKED), "new", 2)],
            {A: 1},
            ["Promote 1 a"],
            id="milliseconds-come-before-templates",
        ),
        pytest.param(
            [
                made(seat("1", a=S.PAUSED), "old", 1),
                made(seat("2", a=S.PAUSED, b=S.PAUSED), "new", 2),
            ],
            {A: 1},
            ["Promote 2 a"],
            id="and-these-before-versatility",
        ),
        pytest.param(
            [
                made(seat("1", a=resident(A, proven_at=NOW)), "old", 1),
                made(seat("2", a=resident(A, kv_released=False, proven_at=None)), "new", 2),
            ],
            {A: 1},
            ["Promote 2 a"],
            id="before-memory-and-proofs",
        ),
        pytest.param(
            [
                made(seat("1", held=claim(DEMOTE, A), a=S.DRAINING), "old", 1),
                made(seat("2", held=claim(DEMOTE, A), a=S.DRAINING), "new", 2),
            ],
            {A: 1},
            ["Recall 2 a"],
            id="recall-of-equals",
        ),
        pytest.param(
            [
                made(seat("1", "b", a=S.PAUSED, b=S.SERVING), "old", 1),
                made(seat("2", "b", a=S.PAUSED, b=S.SERVING), "new", 2),
            ],
            {A: 1, B: 1},
            ["Switch 2 b>a"],
            id="switch-of-equals",
        ),
        pytest.param(
            [
                replace(made(seat("1", "a", a=S.SERVING), "old", 1), terminating=True, leaves_by=NOW + 30),
                made(seat("2", a=S.PAUSED), "old", 1),
                made(seat("3", a=S.PAUSED), "new", 2),
            ],
            {A: 1},
            ["Promote 3 a"],
            id="handed-over-to-the-newest",
        ),
    ],
)
def test_the_newest_template_comes_first(
    seats: list[Seat], wanted: dict[PolicyName, int], expected: list[str]
) -> None:
    assert texts(planned(seats, wanted)) == expected
