"""What is to be done about a pod, from its present state alone."""

import pytest

from scaler.cluster.kube.life import ROUND, Admit, Chore, Free, Mark, chores, in_order
from tests.unit.scaler.cluster.kube.pods import CHAT, CODE, pod, resident, seat
from warmpool.seats import Claim, Operation, Seat, SeatValue
from warmpool.states import ResidentState as S

CLAIM = Claim(id="c", policy=CODE, operation=Operation.PROVE, holder="h", epoch=1, since=0, deadline=9)
BORN = seat(admitted=False, ready=False)
MARKED = {"marked": "Spare", "cost": "0"}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        pytest.param(BORN, "ResidentsProven", id="all are proven"),
        pytest.param(seat(admitted=False, residents=()), "", id="nothing is known of it"),
        pytest.param(
            seat(admitted=False, residents=(resident(), resident(CODE, S.LOADING, proven_at=None))),
            "",
            id="one is still being started",
        ),
        pytest.param(
            seat(admitted=False, residents=(resident(), resident(CODE, S.QUARANTINED, proven_at=None))),
            "ResidentsProven",
            id="one is given up",
        ),
        pytest.param(
            seat(
                admitted=False,
                serving=frozenset({CHAT}),
                residents=(resident(), resident(CODE, S.LOADING, proven_at=None)),
            ),
            "Promoted",
            id="the first was promoted",
        ),
        pytest.param(seat(admitted=False, reachable=False), "", id="its agent is silent"),
        pytest.param(seat(), "", id="it is Ready already"),
    ],
)
def test_when_a_pod_may_become_ready(made: Seat, reason: str) -> None:
    found = [each.reason for each in chores(pod(made, **MARKED), made) if isinstance(each, Admit)]
    assert found == ([reason] if reason else [])


def test_pods_of_a_fleet_that_is_refused_stay_out_of_services() -> None:
    assert list(chores(pod(BORN, **MARKED), BORN, admits=False)) == []


@pytest.mark.parametrize(
    ("made", "marked", "cost", "value"),
    [
        pytest.param(seat(), "", "", SeatValue.SPARE, id="never marked"),
        pytest.param(seat(), "Spare", "0", None, id="marked"),
        pytest.param(seat(), "Spare", "100", SeatValue.SPARE, id="the cost is of earlier"),
        pytest.param(seat(), "Serving", "0", SeatValue.SPARE, id="the label is of earlier"),
        pytest.param(seat(reachable=False), "Spare", "0", SeatValue.HELD, id="has become useless"),
        pytest.param(seat(claim=CLAIM), "Serving", "100", None, id="a claim marks it"),
        pytest.param(seat(terminating=True), "Spare", "0", None, id="it leaves"),
    ],
)
def test_what_a_seat_is_worth_is_mirrored(
    made: Seat, marked: str, cost: str, value: SeatValue | None
) -> None:
    found = [
        each.value for each in chores(pod(made, marked=marked, cost=cost), made) if isinstance(each, Mark)
    ]
    assert found == ([] if value is None else [value])


def test_a_claim_that_nobody_can_read_comes_first_and_alone() -> None:
    made = seat(reachable=False)
    assert list(chores(pod(made, unreadable="half"), made)) == [Free(seat=made, why="half")]


def test_marks_whose_loss_would_cost_most_come_first_and_no_more_than_a_round_at_once() -> None:
    marks = [Mark(seat=seat(f"seat-{n}"), value=SeatValue.SPARE) for n in range(ROUND)]
    serving = Mark(seat=seat("serving"), value=SeatValue.SERVING)
    admit = Admit(seat=BORN, reason="Promoted")
    found: list[Chore] = [*marks, serving, admit]
    ordered = in_order(found)
    assert ordered[:2] == [admit, serving]
    assert len(ordered) == ROUND + 1
