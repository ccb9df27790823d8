"""The law asked about a load that nobody has seen: what it says at first, and when it says something else."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from scaler.core.model import Mode, ReasonCode
from scaler.errors import UserError
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.policy.whatif import Answer, GivenLoad, Question, concerned, says, what_if
from warmpool.seats import FleetName, PolicyName

NOON = datetime(2026, 12, 24, 12, tzinfo=UTC)


def document(kind: str, name: str, spec: str) -> str:
    return f"apiVersion: emberpool.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n"


def policies(
    *, own: str = "maxSeats: 2", spares: str = "maxSeats: 4, spare: {min: 2}", chat: str = ""
) -> PolicySet:
    text = document("Fleet", "own", own) + document("Fleet", "spares", spares)
    fleets = "fleets: [{name: own, targetInFlight: 8}, {name: spares, targetInFlight: 8}]"
    text += document("ScalingPolicy", "chat", f"{fleets}, {chat}")
    text += document(
        "ScalingPolicy", "code", "fleets: [{name: spares, targetInFlight: 8}], serving: {min: 0}"
    )
    return compile_set(parse_documents(text, "set.yaml"))


def ask(
    given: PolicySet,
    load: float,
    *,
    queued: float = 0.0,
    wait: float = 0.0,
    serving: int | None = None,
    seats: Mapping[str, int] | None = None,
    seconds: float = 0.0,
) -> list[Answer]:
    every = {name: spec.max_seats for name, spec in given.fleet_specs.items()}
    question = Question(
        loads={"chat": GivenLoad(in_flight=load, queued=queued, oldest_wait=wait, service_seconds=10.0)},  # type: ignore[dict-item]
        serving={} if serving is None else {"chat": serving},  # type: ignore[dict-item]
        seats=every | dict(seats or {}),  # type: ignore[arg-type]
        seconds=seconds,
        at=NOON,
    )
    return list(what_if(given, question))


def codes(answer: Answer, policy: str = "chat") -> set[ReasonCode]:
    return {reason.code for reason in answer.decision.policies[policy].reasons}


def served(answer: Answer, policy: str = "chat") -> dict[str, int]:
    return dict(answer.decision.policies[policy].serving)


def test_before_the_load_the_floor_served_and_nothing_was_asked() -> None:
    (answer,) = ask(policies(), 0.0)
    chat = answer.decision.policies["chat"]
    assert (chat.mode, chat.capacity, chat.demand) == (Mode.STABLE, 8.0, 0.0)
    assert answer.seats == {"own": 2, "spares": 4}
    assert served(answer, "code") == {"spares": 0}


@pytest.mark.parametrize(
    ("load", "mode", "serving"),
    [
        pytest.param(8.0, Mode.STABLE, {"own": 1, "spares": 0}, id="what-serves-holds-it"),
        pytest.param(11.0, Mode.STABLE, {"own": 2, "spares": 0}, id="below-the-threshold-an-idle-seat-helps"),
        pytest.param(12.0, Mode.BURST, {"own": 2, "spares": 0}, id="at-the-threshold-a-burst-begins"),
        pytest.param(30.0, Mode.BURST, {"own": 2, "spares": 2}, id="what-its-own-fleet-lacks-is-bridged"),
        pytest.param(900.0, Mode.BURST, {"own": 2, "spares": 4}, id="no-more-than-there-is"),
    ],
)
def test_the_first_answer(load: float, mode: Mode, serving: dict[str, int]) -> None:
    (answer,) = ask(policies(), load)
    assert (answer.decision.policies["chat"].mode, served(answer)) == (mode, serving)


def test_seats_do_what_was_decided_before_the_next_answer() -> None:
    first, second, *_ = ask(policies(), 30.0, seconds=5.0)
    assert ReasonCode.BURST_ENTERED in codes(first)
    assert first.decision.policies["chat"].capacity == 8.0
    assert second.decision.policies["chat"].capacity == 32.0
    assert ReasonCode.BURST_HELD in codes(second)


def test_a_burst_ends_one_stable_window_after_the_seats_hold_the_load() -> None:
    answers = ask(policies(), 30.0, seconds=120.0)
    (ended,) = [answer.seconds for answer in answers if ReasonCode.BURST_ENDED in codes(answer)]
    assert ended == 61.0  # calm from the answer after the promotion on, at 1 s


def test_residents_that_the_load_does_not_need_are_paused_after_their_window() -> None:
    answers = ask(policies(chat="burst: {demoteAfterSeconds: 20}"), 3.0, serving=2, seconds=60.0)
    paused = [answer.seconds for answer in answers if sum(served(answer).values()) == 1]
    assert served(answers[0]) == {"own": 2, "spares": 0}
    assert paused[0] == 20.0


def test_seats_that_nobody_needs_are_deleted_after_the_scale_down_window() -> None:
    answers = ask(policies(own="maxSeats: 2, scaleDown: {stabilizationWindowSeconds: 30}"), 4.0, seconds=60.0)
    totals = {answer.seconds: answer.decision.fleets["own"].total for answer in answers}
    assert (totals[29.0], totals[30.0]) == (2, 1)
    assert {answer.seats["own"] for answer in answers if answer.seconds > 30.0} == {1}


def test_what_a_fleet_lacks_is_bridged_at_once_and_wanted_there_when_the_load_lasts() -> None:
    first, *_, last = ask(policies(), 16.0, seats={"own": 1}, seconds=70.0)
    assert served(first) == served(last) == {"own": 1, "spares": 1}
    assert first.decision.policies["chat"].wanted["own"] == 1
    assert last.decision.policies["chat"].wanted["own"] == 2
    assert ReasonCode.BRIDGED in codes(last)


def test_a_queue_that_puts_the_objective_at_risk_begins_a_burst() -> None:
    (answer,) = ask(policies(), 6.0, queued=3.0, wait=1.5)
    assert ReasonCode.DEADLINE_AT_RISK in codes(answer)
    assert answer.decision.policies["chat"].mode is Mode.BURST


def test_the_terms_are_those_that_the_decision_came_from() -> None:
    (answer,) = ask(policies(), 30.0, queued=4.0)
    found, chat = answer.worked["chat"].terms, answer.decision.policies["chat"]
    assert found.peak == chat.demand == 34.0
    assert found.pressing == chat.needed
    # 4 queued in 2 s, each slot finishing a tenth of a request a second: 30 + 4 / (1 + 0.1 * 2)
    assert found.drain == pytest.approx(30.0 + 4.0 / 1.2)
    assert found.mean == pytest.approx(34.0 / 61.0, rel=0.02)


def test_the_clock_counts() -> None:
    floor = 'schedules: [{name: eve, start: "0 11 24 12 *", end: "0 13 24 12 *", minServing: 3}]'
    answer = ask(policies(chat=floor), 0.0)[0]
    assert sum(served(answer).values()) == 3
    assert answer.decision.policies["chat"].reasons[0].code is ReasonCode.SCHEDULED


def test_the_budget_of_gpus_counts() -> None:
    text = document("Fleet", "own", "maxSeats: 4") + document("Controller", "limits", "gpuBudget: 2")
    text += document("ScalingPolicy", "chat", "fleets: [{name: own, targetInFlight: 8}]")
    answer = ask(compile_set(parse_documents(text, "set.yaml")), 30.0, seats={"own": 1})[0]
    assert answer.decision.fleets["own"].total == 2


def at_rest(given: PolicySet, load: float = 0.0, *, seconds: float = 0.0, **more: Any) -> list[Answer]:
    loads = {PolicyName("chat"): GivenLoad(in_flight=load, service_seconds=10.0)}
    return list(what_if(given, Question(loads=loads, seconds=seconds, at=NOON, **more)))


def changes(answers: list[Answer]) -> list[float]:
    """Return when an answer differs from the one before."""
    return [after.seconds for before, after in pairwise(answers) if says(before) != says(after)]


@pytest.mark.parametrize(
    ("given", "seats"),
    [
        pytest.param(policies(), {"own": 1, "spares": 2}, id="floors and spares"),
        pytest.param(policies(chat="serving: {min: 3}"), {"own": 2, "spares": 3}, id="a floor beyond its own fleet"),
        pytest.param(
            policies(own='maxSeats: 4, schedules: [{name: eve, start: "0 11 * * *", end: "0 13 * * *", minSeats: 3}]'),
            {"own": 3, "spares": 2},
            id="a window that is open",
        ),
        pytest.param(
            policies(own='maxSeats: 4, schedules: [{name: eve, start: "0 18 * * *", end: "0 19 * * *", minSeats: 3}]'),
            {"own": 1, "spares": 2},
            id="a window that is closed",
        ),
        pytest.param(
            policies(chat='schedules: [{name: eve, start: "0 11 * * *", end: "0 13 * * *", minServing: 2}]'),
            {"own": 2, "spares": 2},
            id="residents by the clock",
        ),
    ],
)  # fmt: skip
def test_at_rest_there_are_the_seats_of_floors_spares_and_schedules(
    given: PolicySet, seats: dict[str, int]
) -> None:
    assert at_rest(given)[0].seats == seats


def test_at_rest_a_budget_takes_spares_and_leaves_what_serves() -> None:
    text = document("Fleet", "own", "maxSeats: 4, spare: {min: 3}") + document(
        "Controller", "l", "gpuBudget: 2"
    )
    text += document("ScalingPolicy", "chat", "fleets: [{name: own, targetInFlight: 8}]")
    assert at_rest(compile_set(parse_documents(text, "set.yaml")))[0].seats == {"own": 2}


def test_at_rest_a_burst_goes_over_the_bridge_while_its_own_fleet_is_told_to_grow() -> None:
    first, *_, last = at_rest(policies(), 16.0, seconds=70.0)
    assert served(first) == {"own": 1, "spares": 1}
    assert first.decision.fleets["own"].total == 1
    assert last.decision.fleets["own"].total == 2


def test_residents_that_serve_at_first_have_seats() -> None:
    answer = at_rest(policies(), serving={PolicyName("chat"): 4})[0]
    assert answer.seats == {"own": 2, "spares": 4}
    assert answer.decision.policies["chat"].capacity == 32.0


def test_more_residents_than_seats_are_refused() -> None:
    with pytest.raises(UserError, match="serving chat=99: its fleets have seats for 6"):
        at_rest(policies(), serving={PolicyName("chat"): 99})


LENDING = compile_set(
    parse_documents(
        document("Fleet", "own", "maxSeats: 6, spare: {min: 1}")
        + document("ScalingPolicy", "chat", "fleets: [{name: own, targetInFlight: 8}], priority: 1")
        + document(
            "ScalingPolicy",
            "batch",
            "fleets: [{name: own, targetInFlight: 8}], serving: {min: 0}, preemptible: true",
        ),
        "set.yaml",
    )
)


def lent(batch: float, chat: float, seconds: float, seats: int) -> list[Answer]:
    loads = {
        PolicyName("batch"): GivenLoad(in_flight=batch, service_seconds=10.0),
        PolicyName("chat"): GivenLoad(in_flight=chat, service_seconds=10.0),
    }
    question = Question(loads=loads, seats={FleetName("own"): seats}, seconds=seconds, at=NOON)
    return list(what_if(LENDING, question))


def test_work_that_can_wait_borrows_what_lies_beyond_the_spares_that_people_asked_for() -> None:
    first, second = lent(100.0, 0.0, 1.0, seats=5)
    assert first.decision.policies["batch"].lent == second.decision.policies["batch"].lent == {"own": 3}
    assert second.decision.policies["batch"].capacity == 24.0
    assert second.decision.fleets["own"].serving == 1


def test_at_rest_a_fixed_number_of_spares_lends_nothing() -> None:
    (answer,) = lent(100.0, 0.0, 0.0, seats=2)
    assert answer.decision.policies["batch"].lent == {}


def test_lent_seats_are_deleted_when_their_time_has_come() -> None:
    *_, last = lent(100.0, 0.0, 400.0, seats=5)
    assert last.seats == {"own": 2}
    assert last.decision.policies["batch"].lent == {}


@pytest.mark.parametrize("load", [0.0, 4.0, pytest.param(16.0, marks=pytest.mark.long), 30.0])
def test_leaps_hide_no_change_and_move_none(load: float) -> None:
    """Deletion after 300 s, a window at a second that no leap ends on, and whatever the load does."""
    window = 'schedules: [{name: eve, start: "7 12 * * *", end: "9 12 * * *", minSeats: 3}]'
    given = policies(own=f"maxSeats: 4, {window}")
    seats = {FleetName("own"): 2, FleetName("spares"): 4}
    loads = {PolicyName("chat"): GivenLoad(in_flight=load, service_seconds=10.0)}
    begins = NOON + timedelta(seconds=17)
    long = what_if(given, Question(loads=loads, seats=seats, seconds=1500.0, at=begins))
    found = changes(list(long))
    assert load == 30.0 or {300.0, 403.0} <= set(found)  # the highest load needs all seats
    assert load < 16.0 or {61.0, 62.0} <= set(found)  # the burst ends
    for moment in found:  # each is a change between neighbouring seconds for whoever only looks so far
        near = what_if(given, Question(loads=loads, seats=seats, seconds=moment, at=begins))
        assert changes(list(near))[-1] == moment
        assert moment - changes_before(given, loads, seats, begins, moment) <= 1.0


def changes_before(
    given: PolicySet,
    loads: Mapping[PolicyName, GivenLoad],
    seats: Mapping[FleetName, int],
    at: datetime,
    moment: float,
) -> float:
    """Return the last time before `moment` at which the law was asked."""
    asked = [a.seconds for a in what_if(given, Question(loads=loads, seats=seats, seconds=moment, at=at))]
    return asked[-2]


@pytest.mark.parametrize("load", [4.0, 900.0], ids=["calm", "a-burst-without-end"])
def test_a_day_takes_no_more_looks_than_it_has_minutes(load: float) -> None:
    answers = at_rest(policies(), load, seconds=86_400.0)
    assert answers[-1].seconds == 86_400.0
    assert len(answers) < 2_000


def test_only_what_shares_fleets_with_it_is_asked_about() -> None:
    text = "".join(
        document("Fleet", name, "maxSeats: 2")
        + document("ScalingPolicy", name, f"fleets: [{{name: {name}, targetInFlight: 8}}]")
        for name in ("a", "b", "c")
    )
    text += document(
        "ScalingPolicy", "d", "fleets: [{name: b, targetInFlight: 8}, {name: c, targetInFlight: 8}]"
    )
    whole = compile_set(parse_documents(text, "set.yaml"))
    assert concerned(whole, [PolicyName("a")]).policies.keys() == {"a"}
    assert concerned(whole, [PolicyName("b")]).policies.keys() == {"b", "c", "d"}
    assert concerned(whole, [], [FleetName("c")]).fleets.keys() == {"b", "c"}
    limited = compile_set(parse_documents(text + document("Controller", "l", "gpuBudget: 9"), "set.yaml"))
    assert concerned(limited, [PolicyName("a")]).policies.keys() == {"a", "b", "c", "d"}
