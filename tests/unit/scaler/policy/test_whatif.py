"""The law asked about a load that nobody has seen: what it says at first, and when it says something else."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from scaler.core.model import Mode, ReasonCode
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.document import parse_documents
from scaler.policy.whatif import Answer, GivenLoad, Question, what_if

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
    question = Question(
        loads={"chat": GivenLoad(in_flight=load, queued=queued, oldest_wait=wait, service_seconds=10.0)},  # type: ignore[dict-item]
        serving={} if serving is None else {"chat": serving},  # type: ignore[dict-item]
        seats=seats or {},  # type: ignore[arg-type]
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
    found, chat = answer.terms["chat"], answer.decision.policies["chat"]
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
