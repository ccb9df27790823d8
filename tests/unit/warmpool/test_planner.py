"""A planner that keeps what it sorted sorts anew what time alone changes."""

from typing import Any

import pytest

from warmpool.plan import Limits, Planner, Wants, plan
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

FLEET, CHAT = FleetName("spares"), PolicyName("chat")
LIMITS = Limits(proof_interval_seconds=100.0, report_lag_seconds=3.0)
PROMOTION = Claim(
    id="c", policy=CHAT, operation=Operation.PROMOTE, holder="h", epoch=1, since=990.0, deadline=1010.0
)


def seat(state: ResidentState, *, serving: bool = False, claim: Claim | None = None) -> Seat:
    resident = Resident(policy=CHAT, state=state, since=0.0, proven_at=0.0)
    return Seat(
        name=SeatName("seat-0"),
        uid="u",
        version="1",
        fleet=FLEET,
        residents=(resident,),
        serving=frozenset({CHAT}) if serving else frozenset(),
        claim=claim,
        admitted=True,
        ready=True,
    )


LABELLED = seat(ResidentState.PAUSED, serving=True)
SPARE = seat(ResidentState.PAUSED)
NOTHING: dict[str, Any] = {"settled": {}}


@pytest.mark.parametrize(
    ("there", "wanted", "first", "then"),
    [
        pytest.param(
            seat(ResidentState.PAUSED, claim=PROMOTION),
            1,
            (1000.0, NOTHING),
            (1011.0, NOTHING),
            id="a claim runs out",
        ),
        pytest.param(
            LABELLED,
            1,
            (1000.0, {"settled": {"seat-0": 999.0}}),
            (1005.0, {"settled": {"seat-0": 999.0}}),
            id="a settlement grows old",
        ),
        pytest.param(
            LABELLED,
            1,
            (1000.0, NOTHING),
            (1005.0, {"settled": {"seat-0": 1004.0}}),
            id="a seat is settled",
        ),
        pytest.param(
            SPARE,
            0,
            (1000.0, {"settled": {}, "left_alone": {("seat-0", CHAT)}}),
            (1000.0, NOTHING),
            id="a resident is left alone no more",
        ),
        pytest.param(
            SPARE,
            0,
            (1000.0, NOTHING),
            (1000.0, {"settled": {}, "left_alone": {("seat-0", CHAT)}}),
            id="a resident is left alone",
        ),
        pytest.param(LABELLED, 1, (1000.0, NOTHING), (1000.0, {"settled": None}), id="nobody keeps times"),
    ],
)
def test_what_time_changes_is_sorted_anew(
    there: Seat, wanted: int, first: tuple[float, dict[str, Any]], then: tuple[float, dict[str, Any]]
) -> None:
    planner, wants = Planner(), Wants(serving={FLEET: {CHAT: wanted}})
    plans = [planner.plan(wants, [there], LIMITS, now, **known) for now, known in (first, then)]
    assert plans == [plan(wants, [there], LIMITS, now, **known) for now, known in (first, then)]
    assert plans[0].actions != plans[1].actions


def test_another_seat_in_its_place_is_sorted_anew() -> None:
    planner, wants = Planner(), Wants(serving={FLEET: {CHAT: 1}})
    actions = [
        planner.plan(wants, [there], LIMITS, 1000.0, settled={}).actions
        for there in (SPARE, seat(ResidentState.SERVING, serving=True), SPARE)
    ]
    assert [len(each) for each in actions] == [1, 0, 1]
