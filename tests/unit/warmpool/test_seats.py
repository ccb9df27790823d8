"""What a seat is worth, as a table."""

from dataclasses import replace
from typing import Any

import pytest

from warmpool.seats import (
    DELETION_COST,
    Claim,
    FleetName,
    GpuWord,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    SeatValue,
    Verdict,
    seat_value,
)
from warmpool.states import ResidentState as S

A = PolicyName("a")
B = PolicyName("b")
GONE = (GpuWord(uuid="GPU-1", word="Ok"), GpuWord(uuid="GPU-2", word="Bad", reason="lost", stops=True))


def seat(*states: S, serving: str = "", operation: Operation | None = None) -> Seat:
    residents = tuple(
        Resident(policy=policy, state=state, since=0.0)
        for policy, state in zip((A, B, PolicyName("c")), states, strict=False)
    )
    claim = None
    if operation is not None:
        claim = Claim(id="1", policy=A, operation=operation, holder="h", epoch=1, since=0.0, deadline=9.0)
    return Seat(
        name=SeatName("s"),
        uid="u",
        version="1",
        fleet=FleetName("f"),
        residents=residents,
        serving=frozenset(PolicyName(policy) for policy in serving),
        claim=claim,
    )


O = Operation  # noqa: E741 -- one letter, so that the table below stays a table
V = SeatValue


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(seat(), V.STARTING, id="no-report-yet"),
        pytest.param(seat(S.STARTING), V.STARTING, id="starting"),
        pytest.param(seat(S.LOADING, S.STARTING), V.STARTING, id="loading"),
        pytest.param(seat(S.WARMING), V.STARTING, id="warming"),
        pytest.param(seat(S.PROVING), V.STARTING, id="first-proof"),
        pytest.param(seat(S.UNPARKING), V.STARTING, id="unparking"),
        pytest.param(seat(S.PARKING), V.STARTING, id="parking"),
        pytest.param(seat(S.PARKING, S.PAUSED), V.SPARE, id="parking-beside-a-paused-one"),
        pytest.param(seat(S.PARKED, operation=O.UNPARK), V.SPARE, id="claimed-for-unparking"),
        pytest.param(seat(S.UNPARKING, operation=O.PROMOTE), V.PROMOTING, id="promoted-from-host-memory"),
        pytest.param(seat(S.FAILED), V.STARTING, id="failed-and-restarted-by-its-agent"),
        pytest.param(seat(S.PAUSED), V.SPARE, id="paused"),
        pytest.param(seat(S.PAUSED, S.WARMING), V.SPARE, id="the-first-of-two-is-promotable"),
        pytest.param(seat(S.PAUSED, S.FAILED), V.SPARE, id="one-of-two-failed"),
        pytest.param(seat(S.PROVING, operation=O.PROVE), V.SPARE, id="a-spare-under-proof-stays-spare"),
        pytest.param(seat(S.PROVING, S.PAUSED, operation=O.PROVE), V.SPARE, id="shared-spare-under-proof"),
        pytest.param(seat(S.PARKED), V.SPARE, id="parked-alone"),
        pytest.param(seat(S.QUARANTINED), V.HELD, id="quarantined"),
        pytest.param(seat(S.TERMINATING), V.HELD, id="engine-stopped-for-good"),
        pytest.param(seat(S.QUARANTINED, S.STARTING), V.STARTING, id="one-is-still-coming"),
        pytest.param(seat(S.SERVING, serving="a"), V.SERVING, id="in-rotation"),
        pytest.param(seat(S.FAILED, serving="a"), V.SERVING, id="in-rotation-by-its-label-until-released"),
        pytest.param(seat(S.SERVING, serving="a", operation=O.DEMOTE), V.SERVING, id="label-not-yet-off"),
        pytest.param(seat(S.SERVING), V.DRAINING, id="serving-without-label"),
        pytest.param(seat(S.DRAINING), V.DRAINING, id="draining"),
        pytest.param(seat(S.DRAINING, operation=O.DEMOTE), V.DRAINING, id="draining-for-a-demotion"),
        pytest.param(seat(S.PAUSED, operation=O.PROMOTE), V.PROMOTING, id="claimed-for-promotion"),
        pytest.param(seat(S.PROMOTING, operation=O.PROMOTE), V.PROMOTING, id="promoting"),
        pytest.param(seat(S.PROMOTING), V.PROMOTING, id="promoting-without-claim"),
        pytest.param(
            seat(S.PAUSED, S.DRAINING, operation=O.SWITCH), V.PROMOTING, id="switch-while-it-drains"
        ),
        pytest.param(seat(S.DRAINING, operation=O.RECALL), V.PROMOTING, id="recall"),
        pytest.param(replace(seat(S.SERVING, serving="a"), lent=True), V.LENT, id="lent"),
        pytest.param(replace(seat(S.SERVING, serving="a"), terminating=True), V.DOOMED, id="terminating"),
        pytest.param(replace(seat(S.PAUSED), terminating=True), V.DOOMED, id="terminating-spare"),
        pytest.param(replace(seat(S.PAUSED), verdict=Verdict.SUSPECT), V.HELD, id="spare-on-a-suspect-gpu"),
        pytest.param(replace(seat(S.PAUSED), verdict=Verdict.BAD), V.HELD, id="spare-on-a-bad-gpu"),
        pytest.param(replace(seat(S.PAUSED), reachable=False), V.HELD, id="silent-agent"),
        pytest.param(
            replace(seat(S.DRAINING, operation=O.DEMOTE), reachable=False),
            V.DRAINING,
            id="silent-agent-until-its-drain-is-over",
        ),
        pytest.param(replace(seat(S.DRAINING), reachable=False), V.HELD, id="silent-agent-that-was-draining"),
        pytest.param(replace(seat(S.SERVING), reachable=False), V.HELD, id="silent-agent-out-of-rotation"),
        pytest.param(
            replace(seat(S.PROMOTING), reachable=False), V.HELD, id="silent-agent-that-was-promoting"
        ),
        pytest.param(replace(seat(S.PAUSED), node_leaving="cordoned"), V.HELD, id="spare-on-a-leaving-node"),
        pytest.param(
            replace(seat(S.SERVING, serving="a"), node_leaving="cordoned"),
            V.SERVING,
            id="serves-on-while-its-node-leaves",
        ),
        pytest.param(
            replace(seat(S.SERVING, serving="a"), verdict=Verdict.SUSPECT), V.SERVING, id="suspect-may-finish"
        ),
    ],
)
def test_value(given: Seat, expected: SeatValue) -> None:
    assert seat_value(given) is expected


def test_every_value_has_a_deletion_cost() -> None:
    assert set(DELETION_COST) == set(SeatValue)


def test_what_serves_is_deleted_last_and_what_is_useless_first() -> None:
    ordered = [DELETION_COST[value] for value in SeatValue]
    assert ordered == sorted(ordered)
    assert (
        DELETION_COST[V.SPARE] < DELETION_COST[V.LENT] < DELETION_COST[V.DRAINING] < DELETION_COST[V.SERVING]
    )


def test_a_parked_resident_is_promotable_and_one_on_the_move_is_not() -> None:
    states = (S.PARKED, S.PARKING, S.UNPARKING)
    assert [seat(state).promotable(A) for state in states] == [True, False, False]


@pytest.mark.parametrize(
    ("given", "usable"),
    [
        pytest.param(seat(S.PAUSED), True, id="healthy"),
        pytest.param(replace(seat(S.PAUSED), verdict=Verdict.SUSPECT), False, id="suspect"),
        pytest.param(replace(seat(S.PAUSED), reachable=False), False, id="unreachable"),
        pytest.param(replace(seat(S.PAUSED), terminating=True), False, id="terminating"),
        pytest.param(replace(seat(S.PAUSED), node_leaving="cordoned"), False, id="on-a-leaving-node"),
        pytest.param(replace(seat(S.PAUSED), ailing="bad starts"), False, id="its-engines-start-badly"),
    ],
)
def test_a_resident_is_promotable_on_a_usable_seat_only(given: Seat, usable: bool) -> None:  # noqa: FBT001 -- a column of the table
    assert given.usable is usable
    assert given.promotable(A) is usable
    assert not given.promotable(B)


@pytest.mark.parametrize(
    ("changes", "answers"),
    [
        pytest.param({}, True, id="sound"),
        pytest.param({"node_leaving": "cordoned"}, True, id="until-others-serve"),
        pytest.param({"drained": True}, True, id="drained-by-an-order"),
        pytest.param({"terminating": True}, False, id="about-to-end"),
        pytest.param({"verdict": Verdict.BAD}, True, id="on-a-bad-gpu"),
        pytest.param({"verdict": Verdict.BAD, "gpu_words": GONE}, False, id="on-a-gpu-that-is-gone"),
        pytest.param({"verdict": Verdict.OK, "gpu_words": GONE}, True, id="on-one-that-is-only-observed"),
        pytest.param({"reachable": False}, False, id="silent"),
    ],
)
def test_who_is_in_rotation_answers_until_the_seat_ends(changes: dict[str, Any], answers: bool) -> None:  # noqa: FBT001 -- a column of the table
    assert replace(seat(S.SERVING, serving="a"), **changes).answers is answers


def test_resident_finds_by_policy() -> None:
    given = seat(S.PAUSED, S.SERVING)
    found = given.resident(B)
    assert found is not None
    assert found.state is S.SERVING
    assert given.resident(PolicyName("z")) is None


def test_what_serves_on_a_suspect_or_bad_gpu_goes_on_and_nobody_is_promoted_there() -> None:
    seats = [replace(seat(S.SERVING), verdict=verdict) for verdict in Verdict]
    assert [(on.answers, on.usable) for on in seats] == [(True, True), (True, False), (True, False)]
