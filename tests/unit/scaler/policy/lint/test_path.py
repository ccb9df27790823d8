"""The path of a request: its stages, where each comes from, and what is not there."""

from typing import Any

import pytest

from scaler.policy.lint import Figure, lint
from tests.unit.scaler.policy.lint.sets import Tree, deployment, fleet, policy, subject, terms

GATEWAY_STAGES = {
    "body": 60.0,
    "queue": 60.0,
    "connect": 1.0,
    "first token": 120.0,
    "whole answer": 600.0,
    "silence": 300.0,
    "stall": 300.0,
    "gateway ends": 30.0,
}


def path(*trees: Tree, of: str = "chat", **assumptions: Any) -> dict[str, Figure]:
    report = lint(subject(*trees, **assumptions))
    (found,) = [each.path for each in report.policies if each.policy.metadata.name == of]
    assert all(stage.then for stage in found)
    return {stage.name: stage.figure for stage in found}


def test_stages_come_in_the_order_in_which_a_request_meets_them() -> None:
    found = path(fleet(), policy(), deployment(), client_seconds=90)
    assert list(found) == [
        "client",
        "body",
        "ready seat",
        "objective",
        "queue",
        "new seat",
        "connect",
        "first token",
        "whole answer",
        "silence",
        "stall",
        "demoted",
        "switched",
        "pod ends",
        "killed",
        "gateway ends",
    ]


def test_what_the_gateway_allows_is_its_own_default() -> None:
    found = path(fleet(), policy())
    assert {name: found[name].total for name in GATEWAY_STAGES} == GATEWAY_STAGES


def test_what_somebody_assumes_of_the_gateway_takes_its_place() -> None:
    found = path(
        fleet(),
        policy(),
        gateway_receive_seconds=1,
        gateway_queue_seconds=2,
        gateway_connect_seconds=3,
        gateway_deadline_seconds=4,
        gateway_answer_seconds=5,
        gateway_idle_seconds=6,
        gateway_stall_seconds=7,
        gateway_drain_seconds=8,
    )
    assert [found[name].total for name in GATEWAY_STAGES] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_nobody_has_said_is_left_out() -> None:
    assert {"client", "killed"}.isdisjoint(path(fleet(), policy()))


def test_the_shortest_grace_of_its_fleets_kills() -> None:
    found = path(
        fleet(),
        fleet("spares"),
        fleet("other"),
        policy(fleets={"own": 32, "spares": 32}),
        policy("code", fleets={"other": 32}),
        deployment(spec__terminationGracePeriodSeconds=50),
        deployment("spares", spec__terminationGracePeriodSeconds=None),
        deployment("other", spec__terminationGracePeriodSeconds=5),
    )
    assert found["killed"].total == 30


@pytest.mark.parametrize(
    ("spec", "ready", "new"),
    [
        pytest.param({"serving": {"min": 0}}, "0→1 on a spare seat", "0→1 on a new seat", id="rests"),
        pytest.param({}, "burst on a spare seat", "1→4 on new seats", id="floor"),
    ],
)
def test_seats_answer_when_the_times_say(spec: dict[str, Any], ready: str, new: str) -> None:
    trees = (fleet(), policy(engine={"startSeconds": 60}, **spec))
    found = path(*trees)
    assert (found["ready seat"].name, found["new seat"].name) == (ready, new)
    assert found["ready seat"].total == pytest.approx(0.173)
    assert terms(found["new seat"])["start of chat"] == 60


def test_seats_that_can_t_come_never_answer() -> None:
    found = path(fleet(spare={"min": 0}, maxSeats=1), policy())
    assert found["ready seat"].never == "spare.min is 0 on all its fleets"
    assert found["new seat"].never == "no seat can be added that it may serve on"


def test_borrowed_work_gets_no_new_seat() -> None:
    found = path(fleet(), policy(preemptible=True))
    assert found["new seat"].never == "beyond serving.min preemptible work only borrows seats"


@pytest.mark.parametrize(
    ("trees", "seconds", "never"),
    [
        pytest.param([policy()], None, "no other model lives on its seats", id="alone"),
        pytest.param([policy(), policy("code")], 5.0, "", id="shared"),
        pytest.param([policy(preemptible=True), policy("code", priority=1)], 0.0, "", id="reclaimed"),
        pytest.param(
            [policy(preemptible=True, onReclaim="Wait"), policy("code", priority=1)], 5.0, "", id="waited for"
        ),
    ],
)
def test_a_seat_is_switched_where_it_is_shared(trees: list[Tree], seconds: float | None, never: str) -> None:
    found = path(fleet(), *trees)["switched"]
    assert (found.total, found.never) == (seconds, never)
