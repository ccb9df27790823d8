from pathlib import Path
from typing import Any

import pytest

from scaler.drill.figures import (
    ArmFigures,
    BurstFigures,
    Check,
    CpuFigures,
    FaultFigures,
    FitInfo,
    FleetInfo,
    GeneratorFigures,
    HostInfo,
    LoadPoint,
    NeighbourFigures,
    PolicyInfo,
    PromotionFigures,
    PromotionSummary,
    Quantiles,
    Report,
    RequestPoint,
    ScenarioInfo,
    SeatBand,
    SeatSpan,
    StageFigures,
    StageInfo,
    Status,
)
from scaler.drill.scenario import Scenario
from scaler.policy.compile import PolicySet, compile_set
from scaler.policy.source import parse_documents, validate

POLICIES = """
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 3, seat: {gpus: 0}, spare: {min: 1, replenish: {perMinute: 30}}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 8}]
  objectives: {ttft: {milliseconds: 500}}
  serving: {min: 1, max: 3}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec:
  fleets: [{name: spares, targetInFlight: 8}]
  serving: {min: 1}
"""

SCENARIO = """
apiVersion: emberpool.dev/v1alpha1
kind: DrillScenario
metadata: {name: two, description: two models}
spec:
  seed: 1
  policies: {files: [policies.yaml]}
  models:
    - {policy: chat, shape: tiny, requestsPerMinute: 600, arrivals: {process: Poisson}}
    - {policy: code, shape: tiny, requestsPerMinute: 300, arrivals: {process: Constant}}
  stages:
    - {name: baseline, kind: Baseline, seconds: 20}
    - {name: burst, kind: Burst, seconds: 20, loads: [{policy: chat, percent: 300}]}
    - {name: hold, kind: Hold, seconds: 10, loads: [{policy: chat, percent: 300}]}
    - {name: decay, kind: Decay, seconds: 10, loads: [{policy: chat, percent: 100, ramp: Linear}]}
"""


def read_scenario(text: str) -> Scenario:
    return validate(Scenario, parse_documents(text, "scenario.yaml")[0])


@pytest.fixture
def scenario() -> Scenario:
    return read_scenario(SCENARIO)


@pytest.fixture
def policies() -> PolicySet:
    return compile_set(parse_documents(POLICIES, "policies.yaml"))


@pytest.fixture
def files(tmp_path: Path) -> Any:
    """Write a scenario with its policies; what the test replaces is replaced in the scenario's text."""

    def write(old: str = "", new: str = "", *, policies: str = POLICIES) -> Path:
        assert old in SCENARIO
        (tmp_path / "policies.yaml").write_text(policies)
        path = tmp_path / "scenario.yaml"
        path.write_text(SCENARIO.replace(old, new) if old else SCENARIO)
        return path

    return write


def latency(p99: float, *, count: int = 40) -> Quantiles:
    return Quantiles(count=count, p50=p99 / 4, p90=p99 / 2, p99=p99, max=p99 * 1.1)


def sample_arm(name: str, ttft: float, **changes: Any) -> ArmFigures:
    """An arm whose bursts had this TTFT p99, in milliseconds; `changes` replace whole fields."""
    row = {
        "kind": "Burst",
        "policy": "chat",
        "bursting": True,
        "requests": 40,
        "requests_per_second": 4.0,
        "ok": 40,
        "failures": {},
    }
    more = {
        "itl": latency(45.0),
        "tokens_per_second": 100.0,
        "goodput_percent": 95.0,
        "goodput_per_second": 3.8,
    }
    burst = {
        "policy": "chat",
        "stage": "burst",
        "start": 10.0,
        "end": 20.0,
        "ttft": latency(ttft),
        "whole_ttft": latency(ttft),
    }
    promoted = PromotionFigures(
        claim="c-1",
        operation="Promote",
        policy="chat",
        fleet="spares",
        seat="spares-1",
        outcome="Promoted",
        error="",
        sample=11.0,
        waiting=2,
        steps={
            "decision": 1.0,
            "claimed": 4.0,
            "resumed": 40.0,
            "canary": 60.0,
            "rotation": 65.0,
            "firstToken": 120.0,
        },
        basis="Waited",
        phases={"resume": 30.0},
    )
    summary = PromotionSummary(
        operation="Promote",
        count=1,
        failed=0,
        waited=1,
        composed=0,
        steps={"firstToken": latency(120.0, count=1)},
    )
    fields: dict[str, Any] = {
        "arm": name,
        "seat_budget": None if name == "warm" else 3,
        "fleets": [FleetInfo(name="spares", max_seats=3, spare_min=1, scale_down_window_seconds=10)],
        "start_seconds": 9.0,
        "load_started_at": 1000.0,
        "load_seconds": 20.5,
        "stages": [StageFigures(stage="burst", ttft=latency(ttft), **row, **more)],
        "bursts": [BurstFigures(recovery_seconds=2.0, first_added_seconds=1.2, **burst)],
        "burst_ttft": latency(ttft),
        "promotions": [promoted],
        "promotion_summary": [summary],
        "demotions": 1,
        "seat_seconds": {"Serving": 30.0, "Spare": 10.0},
        "served_seconds": {"chat": 30.0},
        "seats": [
            SeatBand(
                seat="spares-0",
                fleet="spares",
                spans=[SeatSpan(start=0, end=20.5, value="Serving", serves="chat")],
            ),
            SeatBand(
                seat="spares-1",
                fleet="spares",
                spans=[
                    SeatSpan(start=0, end=11.0, value="Spare", serves=None),
                    SeatSpan(start=11.0, end=20.5, value="Serving", serves="chat"),
                ],
            ),
        ],
        "load": {
            "chat": [LoadPoint(at=1, queued=0, in_flight=4, oldest_wait_seconds=0, capacity=8, mode="Stable")]
        },
        "requests": [
            RequestPoint(at=12.0, policy="chat", ttft=ttft, outcome="Ok"),
            RequestPoint(at=13.0, policy="chat", ttft=None, outcome="Http5xx"),
        ],
        "cpu": [
            CpuFigures(
                stage="hold",
                kind="Hold",
                mean_percent=60.0,
                max_percent=80.0,
                product_percent=50.0,
                drill_percent=5.0,
            )
        ],
        "generator": GeneratorFigures(requests=40, lag=latency(3.0)),
        "faults": [],
        "failure_examples": [],
        "left_processes": [],
    }
    return ArmFigures(**{**fields, **changes})


def sample_fault(**changes: Any) -> FaultFigures:
    fields: dict[str, Any] = {
        "type": "KillEngine",
        "policy": "chat",
        "seat": "spares-1",
        "pid": 41,
        "at": 14.0,
        "error": "",
        "noticed_seconds": 0.1,
        "capacity_back_seconds": 0.5,
        "replaced_seconds": 4.0,
        "neighbours": [NeighbourFigures(policy="code", pid=42, survived=True)],
    }
    return FaultFigures(**{**fields, **changes})


def sample_fit(**changes: Any) -> FitInfo:
    fields: dict[str, Any] = {
        "cpu_percent": 65,
        "stage": "hold",
        "idle_percent": 4.0,
        "others_percent": 1.0,
        "request_seconds": 0.03,
        "token_seconds": 0.006,
        "answer_seconds": 0.108,
        "whole_percent": 98.0,
        "expected_percent": 60.0,
        "tokens_per_second": (15, 9),
        "whole_answers": {"chat": (24, 24)},
        "answers": {"chat": (14, 14)},
        "enough": True,
    }
    return FitInfo(**{**fields, **changes})


def sample_report() -> Report:
    stages = [("baseline", "Baseline", 0.0, 10.0, []), ("burst", "Burst", 10.0, 20.0, ["chat"])]
    return Report(
        scenario=ScenarioInfo(
            name="sample",
            description="Words with <angle> brackets | and a bar.",
            seed=1,
            seconds=20.0,
            stages=[
                StageInfo(
                    name=name, kind=kind, start=start, end=end, rates={"chat": (4.0, 4.0)}, bursting=bursting
                )
                for name, kind, start, end, bursting in stages
            ],
            engine={"maxNumSeqs": 8},
        ),
        policies=[
            PolicyInfo(
                name="chat",
                objective_milliseconds=500,
                target_in_flight={"spares": 8},
                serving_min=1,
                serving_max=3,
                burst_window_seconds=2,
                stable_window_seconds=10,
                demote_after_seconds=3,
                threshold_percent=150,
            )
        ],
        host=HostInfo(cores=2, memory_bytes=1 << 30, python="3.11.0", system="Linux"),
        fit=sample_fit(),
        started_at=1000.0,
        arms=[
            sample_arm("warm", 200.0, faults=[sample_fault()], failure_examples=["chat at 13.0 s: Http5xx"]),
            sample_arm("cold", 4000.0),
        ],
        checks=[
            Check(
                name="maxFailures",
                arm="warm",
                status=status,
                threshold="≤ 0 failed requests",
                measured="0 of 40",
            )
            for status in (Status.PASS, Status.WARN)
        ],
        passed=True,
    )


@pytest.fixture
def make_arm_figures() -> Any:
    return sample_arm


@pytest.fixture
def make_fit() -> Any:
    return sample_fit


@pytest.fixture
def make_fault() -> Any:
    return sample_fault


@pytest.fixture(scope="session")
def sample() -> Report:
    """A small report with both arms, a promotion, a fault and a failure; all of it is made up."""
    return sample_report()
