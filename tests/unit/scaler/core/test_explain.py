import math
import re

import pytest

from scaler.core.explain import explain, explain_decision, explain_fleet, explain_policy
from scaler.core.model import Reason, ReasonCode
from tests.unit.scaler.core.world import Run, fleet, load, policy, simple


@pytest.mark.parametrize("code", list(ReasonCode), ids=str)
def test_every_code_has_a_sentence_whatever_facts_there_are(code: ReasonCode) -> None:
    sentence = explain(Reason(code=code))
    assert re.fullmatch(r"[A-Z0-9?].*[^.]\.", sentence)
    assert len(sentence.split()) > 4


def test_no_two_codes_share_a_sentence() -> None:
    assert len({explain(Reason(code=code)) for code in ReasonCode}) == len(ReasonCode)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        pytest.param(
            Reason(
                code=ReasonCode.DEADLINE_AT_RISK,
                facts={
                    "queued": 3,
                    "oldestWaitSeconds": 0.12,
                    "predictedWaitSeconds": 1.5,
                    "objectiveSeconds": 0.5,
                },
            ),
            "3 requests waiting, the oldest for 120 ms, and about 1.5 s more are predicted: "
            "the first-token objective of 500 ms is at risk.",
            id="deadline",
        ),
        pytest.param(
            Reason(code=ReasonCode.FLOOR, facts={"floor": 1}),
            "At least 1 resident always serves, and demand calls for no more.",
            id="a floor of one",
        ),
        pytest.param(
            Reason(code=ReasonCode.FLOOR, facts={"floor": 2}),
            "At least 2 residents always serve, and demand calls for no more.",
            id="a floor of several",
        ),
        pytest.param(
            Reason(
                code=ReasonCode.CONCURRENCY,
                facts={"window": "burst", "demand": 12.0, "windowSeconds": 2.0, "capacity": 8.0},
            ),
            "Demand reached 12 requests within the last 2 s; what serves holds 8.",
            id="short window",
        ),
        pytest.param(
            Reason(
                code=ReasonCode.CONCURRENCY, facts={"window": "stable", "demand": 4.25, "windowSeconds": 60.0}
            ),
            "Demand was 4.2 requests on average over the last 60 s.",
            id="long window",
        ),
        pytest.param(
            Reason(code=ReasonCode.SEATS_AT_MAX, facts={"wanted": 5, "maxSeats": 3}),
            "5 seats wanted, and the fleet may have 3 (maxSeats).",
            id="seats at max",
        ),
        pytest.param(
            Reason(
                code=ReasonCode.SPARES_EXHAUSTED,
                facts={"wanted": 2, "given": 0, "needed": 9.0, "capacity": 0.0, "up": 2},
            ),
            "The seats that exist give 0 of 2 residents: capacity for 0 requests, and 9 are needed; the rest waits for "
            "seats (its residents are up on 2 seats, and others have those that it was not given).",
            id="up on few",
        ),
    ],
)
def test_sentences(reason: Reason, sentence: str) -> None:
    assert explain(reason) == sentence


@pytest.mark.parametrize(
    ("now", "until", "tail"),
    [
        pytest.param(10.0, 22.0, "this may change in 12 s.", id="ahead"),
        pytest.param(30.0, 22.0, "this may change in 0 s.", id="past"),
        pytest.param(10.0, None, "(maxSeats).", id="no end"),
        pytest.param(None, 22.0, "(maxSeats).", id="no clock"),
        pytest.param(math.nan, 22.0, "(maxSeats).", id="no number"),
    ],
)
def test_a_reason_says_how_long_it_may_last(now: float | None, until: float | None, tail: str) -> None:
    reason = Reason(code=ReasonCode.SEATS_AT_MAX, facts={"wanted": 5, "maxSeats": 3}, until=until)
    assert explain(reason, now).endswith(tail)


@pytest.mark.parametrize(
    ("code", "source", "tail"),
    [
        pytest.param(
            ReasonCode.SIGNALS_STALE,
            "engines, signal prom",
            "may rise and not fall; it has been so for 20 min; `emberpool signals get` says why: mend its source, or take it"
            " out of the policy.",
            id="a signal that is named",
        ),
        pytest.param(
            ReasonCode.SIGNALS_STALE,
            "engines",
            "may rise and not fall; it has been so for 20 min; `emberpool signals get` says why; what says nothing for 10 min"
            " counts as removed.",
            id="what nobody names",
        ),
        pytest.param(
            ReasonCode.SIGNALS_MISSING,
            "all signals",
            "it has been so for 20 min; `emberpool signals get` says why.",
            id="nothing at all",
        ),
        pytest.param(
            ReasonCode.SIGNALS_MISSING,
            "signal prom",
            "it has been so for 20 min; `emberpool signals get` says why: mend its source, or take it out of the policy.",
            id="the only signal",
        ),
    ],
)
def test_silence_says_since_when_and_what_to_do(code: ReasonCode, source: str, tail: str) -> None:
    reason = Reason(code=code, facts={"source": source, "since": 100.0, "thresholdSeconds": 3.0})
    assert source in explain(reason, 1300.0)
    assert explain(reason, 1300.0).endswith(tail)
    assert "it has been so" not in explain(reason)


def test_a_decision_reads_from_what_to_why() -> None:
    run = Run([policy()], [fleet()])
    decision = run.hold({"a": load(12, 2, oldest_wait=0.1)}, {"spares": simple({"a": 1}, 1)}, 1.0)
    lines = explain_decision(decision)
    assert lines[0] == (
        "a: in burst, demand 14 requests, capacity needed 14, capacity serving 8: 2 residents to serve, 2 on spares."
    )
    assert lines[1].startswith("2 requests waiting, the oldest for 100 ms, and nothing finishes")
    assert lines == (
        *explain_policy(decision.policies["a"], decision.at),
        *explain_fleet(decision.fleets["spares"], decision.at),
    )


def test_the_ruling_reason_comes_first() -> None:
    run = Run([policy(serving_min=2)], [fleet()])
    decision = run.hold({"a": load(1)}, {"spares": simple({"a": 2}, 1)}, 30.0)
    assert decision.policies["a"].reasons[0].code is ReasonCode.FLOOR
    run.hold({"a": load(30)}, {"spares": simple({"a": 2}, 1)}, 1.0)
    assert run.decision.policies["a"].reasons[0].code is not ReasonCode.FLOOR
    run.policies = [policy(serving_max=1)]
    run.hold({"a": load(30)}, {"spares": simple({"a": 2}, 1)}, 1.0)
    assert run.decision.policies["a"].reasons[0].code is ReasonCode.MAX


def test_a_reason_is_given_once_and_keeps_its_place() -> None:
    run = Run([policy()], [fleet()])
    run.hold({"a": load(4)}, {"spares": simple({"a": 1}, 1)}, 15.0)
    run.step({"a": load(8, 9, oldest_wait=0.6)}, {"spares": simple({"a": 1}, 1)}, after=0.25)
    codes = [reason.code for reason in run.decision.policies["a"].reasons]
    assert codes[:2] == [ReasonCode.DEADLINE_AT_RISK, ReasonCode.BURST_ENTERED]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.25, "250 ms"),
        (300.0, "300 s"),
        (599.0, "599 s"),
        (657.0, "10 min 57 s"),
        (3600.0, "1 h"),
        (7321.0, "2 h 2 min"),
        (298_800.0, "3 d 11 h"),
    ],
)
def test_how_long_until_something_may_change_reads_as_a_time(seconds: float, said: str) -> None:
    reason = Reason(code=ReasonCode.FROZEN, facts={}, until=seconds)
    assert explain(reason, 0.0).endswith(f"; this may change in {said}.")
