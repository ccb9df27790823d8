import dataclasses

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from scaler.drill.figures import Check, Status
from scaler.drill.load import Tally
from scaler.drill.metrics import FAMILIES, DrillMetrics
from scaler.drill.records import Outcome, Record
from scaler.drill.scenario import Scenario
from scaler.drill.schedule import windows

OBJECTIVES = {"chat": 0.5, "code": 1.0}
RECORD = Record(
    policy="chat",
    stage="burst",
    intended=20.0,
    sent=20.0,
    first=20.2,
    last=21.0,
    tokens=1,
    outcome=Outcome.OK,
)


class Shown:
    """The metrics of a drill of two arms, as Prometheus reads them."""

    def __init__(self, scenario: Scenario) -> None:
        self.metrics = DrillMetrics("two", ["warm", "cold"], windows(scenario.spec), OBJECTIVES)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def __call__(self, name: str, **labels: str) -> list[float]:
        return [
            sample.value
            for family in text_string_to_metric_families(generate_latest(self.registry).decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]


@pytest.fixture
def shown(scenario: Scenario) -> Shown:
    return Shown(scenario)


class At(Tally):
    """A tally whose clock stands still."""

    at = 0.0

    def now(self) -> float:
        return self.at


def at(now: float) -> At:
    tally = At()
    tally.begin()
    tally.at = now
    return tally


def check(name: str, status: Status) -> Check:
    return Check(name=name, arm="warm", status=status, threshold="", measured="")


def test_an_arm_has_every_series_from_its_start_at_zero(shown: Shown) -> None:
    assert shown("emberpool_drill_requests_total") == []
    shown.metrics.begin("warm", at(0.0))
    requests = shown("emberpool_drill_requests_total", arm="warm")
    assert len(requests) == 2 * 4 * len(Outcome)  # policies, stages, outcomes
    assert set(requests) == {0.0}
    assert shown("emberpool_drill_ttft_seconds_count", arm="warm") == [0.0] * 8


def test_each_record_is_counted_once_however_often_it_is_looked_at(shown: Shown) -> None:
    tally = at(30.0)
    shown.metrics.begin("warm", tally)
    place = {"arm": "warm", "policy": "chat", "stage": "burst"}
    for count in (1, 2):
        tally.records.append(RECORD)
        for _ in range(2):
            assert shown("emberpool_drill_requests_total", **place, outcome="Ok") == [count]
    assert shown("emberpool_drill_ttft_seconds_sum", **place) == [pytest.approx(0.4)]
    assert shown("emberpool_drill_ttft_seconds_bucket", **place, le="0.15") == [0]
    assert shown("emberpool_drill_ttft_seconds_bucket", **place, le="0.25") == [2]
    assert shown("emberpool_drill_ttft_seconds_bucket", **place, le="+Inf") == [2]


def test_a_failure_without_a_token_has_no_ttft(shown: Shown) -> None:
    tally = at(30.0)
    shown.metrics.begin("warm", tally)
    tally.records.append(dataclasses.replace(RECORD, first=None, outcome=Outcome.HTTP_5XX))
    assert sum(shown("emberpool_drill_requests_total", outcome="Http5xx")) == 1
    assert sum(shown("emberpool_drill_ttft_seconds_count")) == 0


def test_an_arm_that_is_over_keeps_its_counts(shown: Shown) -> None:
    tally = at(30.0)
    shown.metrics.begin("warm", tally)
    tally.records.append(RECORD)
    shown.metrics.end()
    shown.metrics.begin("cold", at(0.0))
    assert sum(shown("emberpool_drill_requests_total", arm="warm")) == 1
    assert sum(shown("emberpool_drill_requests_total", arm="cold")) == 0
    assert sum(shown("emberpool_drill_stage", arm="warm")) == 0
    assert shown("emberpool_drill_stage", arm="cold", stage="baseline") == [1]


@pytest.mark.parametrize(
    ("now", "stage", "chat"),
    [(0.0, "baseline", 10.0), (20.0, "burst", 30.0), (55.0, "decay", 20.0), (60.0, None, 0.0)],
    ids=["start", "burst", "middle-of-a-ramp", "after-the-end"],
)
def test_stage_and_rate_follow_the_clock(shown: Shown, now: float, stage: str | None, chat: float) -> None:
    shown.metrics.begin("warm", at(now))
    assert sum(shown("emberpool_drill_stage")) == (0 if stage is None else 1)
    assert stage is None or shown("emberpool_drill_stage", arm="warm", stage=stage) == [1]
    assert shown("emberpool_drill_intended_rate", arm="warm", policy="chat") == [chat]


def test_of_checks_with_one_name_all_must_hold(shown: Shown) -> None:
    assert shown("emberpool_drill_check_passed") == []
    found = [("a", Status.PASS), ("a", Status.FAIL), ("b", Status.WARN), ("c", Status.PASS)]
    shown.metrics.judge(check(name, status) for name, status in found)
    assert [shown("emberpool_drill_check_passed", check=name) for name in "abc"] == [[0], [1], [1]]


def test_what_is_shown_is_what_is_declared(shown: Shown) -> None:
    shown.metrics.begin("warm", at(0.0))
    shown.metrics.judge([check("a", Status.PASS)])
    declared = {family.name: family for family in FAMILIES}
    text = generate_latest(shown.registry).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.stem for family in FAMILIES} == set(found)
    for family in declared.values():
        labels = set(family.label_names) | ({"le"} if family.buckets else set())
        assert {name for sample in found[family.stem].samples for name in sample.labels} == labels
        assert found[family.stem].documentation == family.help
        for label in family.labels:
            values = {sample.labels[label.name] for sample in found[family.stem].samples}
            assert not label.values or values <= set(label.values)
