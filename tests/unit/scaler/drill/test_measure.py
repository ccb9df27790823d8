import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.drill.figures import PromotionFigures
from scaler.drill.measure import (
    burst_figures,
    burst_ttft,
    failure_examples,
    generator_figures,
    nearest_rank,
    quantiles,
    recovery,
    stage_figures,
)
from scaler.drill.records import GapHistogram, Outcome, Record
from scaler.drill.scenario import Scenario
from scaler.drill.schedule import windows

OBJECTIVES = {"chat": 0.5, "code": 1.0}


def record(
    at: float,
    ttft: float | None = 0.1,
    *,
    stage: str = "burst",
    policy: str = "chat",
    outcome: Outcome = Outcome.OK,
) -> Record:
    return Record(
        policy=policy,
        stage=stage,
        intended=at,
        sent=at + 0.002,
        first=None if ttft is None else at + ttft,
        last=at + 1.0,
        tokens=10,
        outcome=outcome,
        detail="" if outcome is Outcome.OK else "seen",
    )


# ------------------------------------------------------------------ quantiles


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        pytest.param(1, 0.5, 1, id="one-value"),
        pytest.param(10, 0.5, 5, id="median-of-ten"),
        pytest.param(10, 0.99, 10, id="p99-of-few-is-the-maximum"),
        pytest.param(99, 0.99, 99, id="p99-of-99-is-the-maximum"),
        pytest.param(100, 0.99, 99, id="p99-of-100"),
        pytest.param(200, 0.99, 198, id="p99-of-200"),
    ],
)
def test_nearest_rank(count: int, share: float, expected: int) -> None:
    assert nearest_rank([float(value) for value in range(1, count + 1)], share) == expected


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_a_value_that_enough_others_do_not_exceed(values: list[float], share: float) -> None:
    found = nearest_rank(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_quantiles_are_milliseconds() -> None:
    found = quantiles([0.1, 0.2, 0.3])
    assert found is not None
    assert (found.count, found.p50, found.p99, found.max) == (3, 200.0, 300.0, 300.0)


def test_nothing_measured_is_not_zero() -> None:
    assert quantiles([]) is None


@given(st.lists(st.floats(1e-5, 100), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_histogram_errs_by_two_percent_at_most(gaps: list[float], share: float) -> None:
    histogram = GapHistogram()
    for gap in gaps:
        histogram.add(gap)
    exact = sorted(gaps)[max(0, math.ceil(share * len(gaps)) - 1)]
    assert exact * 0.999 <= histogram.quantile(share) <= exact * 1.021
    assert histogram.largest == max(gaps)


# ------------------------------------------------------------------ stages


def test_a_stage_counts_failures_by_kind_and_goodput_of_all(scenario: Scenario) -> None:
    records = [
        record(21.0),
        record(22.0, 0.6),
        record(23.0, None, outcome=Outcome.HTTP_5XX),
        record(24.0, 0.1, outcome=Outcome.INTERRUPTED),
        record(25.0, stage="hold"),
    ]
    rows = stage_figures(records, {}, windows(scenario.spec), OBJECTIVES)
    row = next(row for row in rows if row.stage == "burst" and row.policy == "chat")
    assert (row.requests, row.ok) == (4, 2)
    assert row.failures == {"Http5xx": 1, "InterruptedStream": 1}
    assert row.goodput_percent == 25.0
    assert row.goodput_per_second == 0.05
    assert row.ttft is not None
    assert (row.ttft.count, row.ttft.max) == (3, 600.0)
    assert row.bursting


def test_a_stage_without_requests_has_no_figures(scenario: Scenario) -> None:
    row = stage_figures([], {}, windows(scenario.spec), OBJECTIVES)[0]
    assert (row.requests, row.ttft, row.itl, row.goodput_percent) == (0, None, None, None)


def test_there_is_a_row_per_stage_and_policy(scenario: Scenario) -> None:
    rows = stage_figures([], {}, windows(scenario.spec), OBJECTIVES)
    assert [(row.stage, row.policy) for row in rows[:3]] == [
        ("baseline", "chat"),
        ("baseline", "code"),
        ("burst", "chat"),
    ]
    assert len(rows) == 8


# ------------------------------------------------------------------ bursts


@pytest.mark.parametrize(
    ("late", "failed", "expected"),
    [
        pytest.param([], [], 0.0, id="never-broken"),
        pytest.param([0, 1, 2], [], 3.0, id="broken-at-first"),
        pytest.param([0, 5], [], 6.0, id="the-last-breach-counts"),
        pytest.param([], [3], 4.0, id="a-failure-is-a-breach"),
        pytest.param([9], [], None, id="broken-to-the-end"),
    ],
)
def test_recovery(late: list[int], failed: list[int], expected: float | None) -> None:
    records = [
        record(
            20.0 + second,
            2.0 if second in late else 0.1,
            outcome=Outcome.TIMEOUT if second in failed else Outcome.OK,
        )
        for second in range(10)
    ]
    assert recovery(records, 20.0, 0.5) == expected


def promotion(policy: str, sample: float, rotation: float, *, outcome: str = "Promoted") -> PromotionFigures:
    return PromotionFigures(
        claim="c",
        operation="Promote",
        policy=policy,
        fleet="spares",
        seat="spares-0",
        outcome=outcome,
        error="",
        sample=sample,
        waiting=0,
        steps={"rotation": rotation},
        basis="None",
        phases={},
    )


def test_a_burst_runs_through_its_hold(scenario: Scenario) -> None:
    records = [
        record(20.5, 3.0),
        record(30.0),
        record(45.0, 0.7, stage="hold"),
        record(46.0, stage="hold"),
        record(55.0, 9.0, stage="decay"),
    ]
    promotions = [
        promotion("chat", 5.0, 100),
        promotion("code", 20.5, 100),
        promotion("chat", 20.5, 100, outcome="Failed"),
        promotion("chat", 21.0, 250),
    ]
    (burst,) = burst_figures(records, windows(scenario.spec), OBJECTIVES, promotions)
    assert (burst.policy, burst.start, burst.end) == ("chat", 20.0, 50.0)
    assert burst.ttft is not None
    assert burst.whole_ttft is not None
    assert (burst.ttft.count, burst.whole_ttft.count) == (2, 4)
    assert burst.recovery_seconds == 26.0
    assert burst.first_added_seconds == 1.25


def test_burst_ttft_is_of_bursting_models_in_burst_stages(scenario: Scenario) -> None:
    records = [
        record(21.0, 0.3),
        record(21.0, 5.0, policy="code"),
        record(45.0, 5.0, stage="hold"),
        record(1.0, 5.0, stage="baseline"),
    ]
    found = burst_ttft(records, windows(scenario.spec))
    assert found is not None
    assert (found.count, found.max) == (1, 300.0)


def test_the_generators_lateness_is_sending_minus_intended() -> None:
    found = generator_figures([record(1.0), record(2.0)])
    assert found.lag is not None
    assert (found.requests, found.lag.max) == (2, 2.0)


def test_failures_are_told_in_order_and_bounded() -> None:
    records = [record(float(second), outcome=Outcome.CONNECT) for second in range(30, 0, -1)]
    found = failure_examples(records, limit=3)
    assert len(found) == 3
    assert found[0] == "chat at 1.0 s (burst): Connect: seen"
