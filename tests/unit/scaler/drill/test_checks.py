from collections.abc import Callable
from typing import Any

import pytest

from scaler.drill.checks import checks, passed
from scaler.drill.figures import ArmFigures, FitInfo, GeneratorFigures, Quantiles, Status
from scaler.drill.scenario import Thresholds


def statuses(thresholds: Thresholds, *arms: ArmFigures) -> dict[str, Status]:
    return {check.name: check.status for check in checks(thresholds, arms)}


def with_failures(arm: ArmFigures, failures: dict[str, int]) -> ArmFigures:
    return arm.model_copy(update={"stages": [arm.stages[0].model_copy(update={"failures": failures})]})


@pytest.mark.parametrize(
    ("failures", "thresholds", "failed", "interrupted"),
    [
        pytest.param({}, {}, Status.PASS, Status.PASS, id="none"),
        pytest.param({"Http5xx": 1}, {}, Status.FAIL, Status.PASS, id="one"),
        pytest.param(
            {"Http5xx": 1, "Truncated": 1}, {"max_failures": 1}, Status.FAIL, Status.PASS, id="kinds-add-up"
        ),
        pytest.param({"Http5xx": 1}, {"max_failures": 1}, Status.PASS, Status.PASS, id="allowed"),
        pytest.param({"InterruptedStream": 2}, {}, Status.PASS, Status.FAIL, id="interrupted-counts-apart"),
        pytest.param(
            {"InterruptedStream": 2},
            {"max_interrupted_streams": 2},
            Status.PASS,
            Status.PASS,
            id="allowed-interrupted",
        ),
        pytest.param(
            {"BrokenStream": 2},
            {"max_interrupted_streams": 2},
            Status.FAIL,
            Status.PASS,
            id="broken-without-a-word",
        ),
    ],
)
def test_failures(
    make_arm_figures: Any,
    failures: dict[str, int],
    thresholds: dict[str, int],
    failed: Status,
    interrupted: Status,
) -> None:
    found = statuses(Thresholds(**thresholds), with_failures(make_arm_figures("warm", 100.0), failures))
    assert (found["maxFailures"], found["maxInterruptedStreams"]) == (failed, interrupted)


def test_a_drill_without_requests_fails(make_arm_figures: Any) -> None:
    assert statuses(Thresholds(), make_arm_figures("warm", 100.0, stages=[]))["maxFailures"] is Status.FAIL


@pytest.mark.parametrize(
    ("cold", "ratio", "status"),
    [
        pytest.param(1000.0, 5, Status.PASS, id="exactly"),
        pytest.param(999.0, 5, Status.FAIL, id="just-below"),
        pytest.param(201.0, 1, Status.PASS, id="order-kept"),
        pytest.param(200.0, 1, Status.FAIL, id="no-difference-is-no-order"),
    ],
)
def test_the_ratio_of_the_arms(make_arm_figures: Any, cold: float, ratio: int, status: Status) -> None:
    thresholds = Thresholds(warm_vs_cold_burst_ttft_ratio=ratio)
    arms = make_arm_figures("warm", 200.0), make_arm_figures("cold", cold)
    assert statuses(thresholds, *arms)["warmVsColdBurstTtftRatio"] is status


def test_one_arm_alone_is_not_compared(make_arm_figures: Any) -> None:
    assert "warmVsColdBurstTtftRatio" not in statuses(
        Thresholds(warm_vs_cold_burst_ttft_ratio=5), make_arm_figures("warm", 1.0)
    )


def test_an_arm_without_burst_figures_fails_the_comparison(make_arm_figures: Any) -> None:
    arms = make_arm_figures("warm", 200.0), make_arm_figures("cold", 9000.0, burst_ttft=None)
    assert (
        statuses(Thresholds(warm_vs_cold_burst_ttft_ratio=5), *arms)["warmVsColdBurstTtftRatio"]
        is Status.FAIL
    )


@pytest.mark.parametrize(
    ("thresholds", "name", "status"),
    [
        pytest.param(
            {"promotion_p99_milliseconds": 120},
            "promotionP99Milliseconds",
            Status.PASS,
            id="promotion-in-time",
        ),
        pytest.param(
            {"promotion_p99_milliseconds": 119}, "promotionP99Milliseconds", Status.FAIL, id="promotion-late"
        ),
        pytest.param(
            {"switch_p99_milliseconds": 999}, "switchP99Milliseconds", Status.FAIL, id="no-switch-to-measure"
        ),
        pytest.param({"min_promotions": 1}, "minPromotions", Status.PASS, id="enough-promotions"),
        pytest.param({"min_promotions": 2}, "minPromotions", Status.FAIL, id="too-few-promotions"),
        pytest.param(
            {"burst_ttft_p99_milliseconds": 200}, "burstTtftP99Milliseconds", Status.PASS, id="burst-in-time"
        ),
        pytest.param(
            {"burst_ttft_p99_milliseconds": 199}, "burstTtftP99Milliseconds", Status.FAIL, id="burst-late"
        ),
        pytest.param({"recovery_seconds": 2}, "recoverySeconds", Status.PASS, id="recovered-in-time"),
        pytest.param({"recovery_seconds": 1}, "recoverySeconds", Status.FAIL, id="recovered-late"),
    ],
)
def test_thresholds_of_the_warm_arm(
    make_arm_figures: Any, thresholds: dict[str, int], name: str, status: Status
) -> None:
    assert statuses(Thresholds(**thresholds), make_arm_figures("warm", 200.0))[name] is status


def test_a_promotion_without_a_first_token_can_not_pass(make_arm_figures: Any) -> None:
    arm = make_arm_figures("warm", 200.0, promotion_summary=[])
    assert (
        statuses(Thresholds(promotion_p99_milliseconds=250), arm)["promotionP99Milliseconds"] is Status.FAIL
    )


def test_a_burst_that_never_recovered_fails(make_arm_figures: Any) -> None:
    arm = make_arm_figures("warm", 200.0)
    arm = arm.model_copy(update={"bursts": [arm.bursts[0].model_copy(update={"recovery_seconds": None})]})
    assert statuses(Thresholds(recovery_seconds=100), arm)["recoverySeconds"] is Status.FAIL


def test_cpu_and_lateness_only_warn(make_arm_figures: Any) -> None:
    arm = make_arm_figures("warm", 200.0)
    late = GeneratorFigures(requests=40, lag=arm.burst_ttft)
    arm = arm.model_copy(
        update={"cpu": [arm.cpu[0].model_copy(update={"mean_percent": 95.0})], "generator": late}
    )
    made = checks(Thresholds(), [arm])
    assert {check.name for check in made if check.status is Status.WARN} == {
        "cpuPercent",
        "generatorLagP99Milliseconds",
    }
    assert passed(made)


@pytest.mark.parametrize(
    ("changes", "name", "status"),
    [
        pytest.param({}, "replacementSeconds", Status.PASS, id="replaced"),
        pytest.param({"replaced_seconds": 11.0}, "replacementSeconds", Status.FAIL, id="replaced-late"),
        pytest.param({"replaced_seconds": None}, "replacementSeconds", Status.FAIL, id="not-replaced"),
        pytest.param({"pid": None, "error": "nothing there"}, "faultInjected", Status.FAIL, id="nothing-hit"),
        pytest.param({}, "neighboursGoOn", Status.PASS, id="neighbour-went-on"),
    ],
)
def test_faults(
    make_arm_figures: Any, make_fault: Any, changes: dict[str, Any], name: str, status: Status
) -> None:
    arm = make_arm_figures("warm", 200.0, faults=[make_fault(**changes)])
    assert statuses(Thresholds(replacement_seconds=10), arm)[name] is status


def test_a_lost_neighbour_fails(make_arm_figures: Any, make_fault: Any) -> None:
    fault = make_fault()
    fault = fault.model_copy(
        update={"neighbours": [fault.neighbours[0].model_copy(update={"survived": False})]}
    )
    arm = make_arm_figures("warm", 200.0, faults=[fault])
    assert statuses(Thresholds(), arm)["neighboursGoOn"] is Status.FAIL


@pytest.mark.parametrize(
    ("taken", "status"), [(None, None), ([], Status.PASS), (["spares-1"], Status.FAIL)], ids=str
)
def test_no_serving_seat_may_go_by_a_scale_down(
    make_arm_figures: Any, taken: list[str] | None, status: Status | None
) -> None:
    arm = make_arm_figures("warm", 200.0, scaled_down_serving=taken)
    assert statuses(Thresholds(), arm).get("servingSeatsKept") is status


@pytest.mark.parametrize(("limit", "status"), [(94, Status.PASS), (93, Status.FAIL)])
def test_the_time_from_claim_to_rotation_has_a_threshold_of_its_own(
    make_arm_figures: Any, limit: int, status: Status
) -> None:
    arm = make_arm_figures("warm", 200.0)
    label = Quantiles(count=3, p50=40.0, p90=94.0, p99=94.0, max=94.0)
    (promoted,) = (each for each in arm.promotion_summary if each.operation == "Promote")
    arm = arm.model_copy(
        update={"promotion_summary": [promoted.model_copy(update={"claim_to_rotation": label})]}
    )
    assert statuses(Thresholds(label_p99_milliseconds=limit), arm)["labelP99Milliseconds"] is status


@pytest.mark.parametrize(
    ("expected", "enough", "status"),
    [pytest.param(60.4, True, Status.PASS, id="air"), pytest.param(80.0, False, Status.WARN, id="too-small")],
)
@pytest.mark.parametrize(("arms", "arm"), [(("warm", "cold"), "both"), (("cold",), "cold")], ids=str)
def test_what_the_load_was_fitted_to_stands_in_the_verdict(
    make_arm_figures: Any,
    make_fit: Callable[..., FitInfo],
    arms: tuple[str, ...],
    arm: str,
    *,
    expected: float,
    enough: bool,
    status: Status,
) -> None:
    fit = make_fit(expected_percent=expected, enough=enough)
    made = checks(Thresholds(), [make_arm_figures(name, 200.0) for name in arms], fit)
    (found,) = (check for check in made if check.name == "fitCpuPercent")
    assert (found.arm, found.status) == (arm, status)
    assert found.threshold == "≤ 65 % of the machine expected in Hold stages"
    assert found.measured == (
        f"{expected:.0f} % in hold, with answers of 14 tokens instead of 24, at 9 tokens per second instead of 15"
    )
    assert passed(made)
