"""The verdict: each threshold of the scenario against what was measured. PURE.

A threshold that can't be measured (no promotion took place, an arm didn't run its bursts) fails: a rehearsal that proved
nothing must not pass. A check that needs an arm that wasn't asked for isn't made.
"""

from collections.abc import Iterator, Sequence

from scaler.drill.figures import ArmFigures, Check, FitInfo, Quantiles, Status
from scaler.drill.fit import lengths
from scaler.drill.records import Outcome
from scaler.drill.scenario import Thresholds

WARM, COLD = "warm", "cold"


def checks(thresholds: Thresholds, arms: Sequence[ArmFigures], fit: FitInfo | None = None) -> list[Check]:
    """Hold all thresholds against the arms that ran, and what they were to take of the machine against what they may."""
    by_name = {arm.arm: arm for arm in arms}
    result: list[Check] = []
    if fit is not None:
        result.append(_fit(fit, "both" if len(arms) > 1 else arms[0].arm))
    for arm in arms:
        result += _failures(thresholds, arm)
        result += _kept(arm)
        result += _warnings(thresholds, arm)
    if (warm := by_name.get(WARM)) is not None:
        result += _warm(thresholds, warm)
        if (cold := by_name.get(COLD)) is not None:
            result += _comparison(thresholds, warm, cold)
    for arm in arms:
        result += _faults(thresholds, arm)
    return result


def passed(made: Sequence[Check]) -> bool:
    """Whether no check failed; warnings don't count."""
    return all(check.status is not Status.FAIL for check in made)


def _check(name: str, arm: str, threshold: str, *, measured: str, good: bool) -> Check:
    status = Status.PASS if good else Status.FAIL
    return Check(name=name, arm=arm, status=status, threshold=threshold, measured=measured)


def _failures(thresholds: Thresholds, arm: ArmFigures) -> Iterator[Check]:
    kinds: dict[str, int] = {}
    for stage in arm.stages:
        for kind, count in stage.failures.items():
            kinds[kind] = kinds.get(kind, 0) + count
    requests = sum(stage.requests for stage in arm.stages)
    interrupted = kinds.pop(Outcome.INTERRUPTED, 0)
    failed = sum(kinds.values())
    detail = f" ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})" if kinds else ""
    yield _check(
        "maxFailures",
        arm.arm,
        f"≤ {thresholds.max_failures} failed requests",
        measured=f"{failed} of {requests}{detail}",
        good=failed <= thresholds.max_failures and requests > 0,
    )
    yield _check(
        "maxInterruptedStreams",
        arm.arm,
        f"≤ {thresholds.max_interrupted_streams} streams ended by an error event",
        measured=f"{interrupted} of {requests}",
        good=interrupted <= thresholds.max_interrupted_streams,
    )


def _kept(arm: ArmFigures) -> Iterator[Check]:
    """Where seats are watched, none that serves may go because its fleet was made smaller."""
    if arm.scaled_down_serving is not None:
        yield _check(
            "servingSeatsKept",
            arm.arm,
            "no serving seat is taken by a scale-down",
            measured=f"taken: {', '.join(arm.scaled_down_serving)}" if arm.scaled_down_serving else "none",
            good=not arm.scaled_down_serving,
        )


def _warm(thresholds: Thresholds, warm: ArmFigures) -> Iterator[Check]:
    if (limit := thresholds.burst_ttft_p99_milliseconds) is not None:
        yield _latency(
            "burstTtftP99Milliseconds", limit, warm.burst_ttft, "no burst request had a first token"
        )
    if (limit := thresholds.label_p99_milliseconds) is not None:
        found = next((one for one in warm.promotion_summary if one.operation == "Promote"), None)
        label = None if found is None else found.claim_to_rotation
        yield _latency("labelP99Milliseconds", limit, label, "no Promote took place")
    for name, limit, operation in (
        ("promotionP99Milliseconds", thresholds.promotion_p99_milliseconds, "Promote"),
        ("switchP99Milliseconds", thresholds.switch_p99_milliseconds, "Switch"),
    ):
        if limit is not None:
            steps = next((one.steps for one in warm.promotion_summary if one.operation == operation), {})
            yield _latency(
                name, limit, steps.get("firstToken"), f"no {operation} with a first token took place"
            )
    if (least := thresholds.min_promotions) is not None:
        count = sum(summary.count for summary in warm.promotion_summary)
        text = ", ".join(f"{one.count} {one.operation}" for one in warm.promotion_summary) or "none"
        yield _check("minPromotions", WARM, f"≥ {least} promotions", measured=text, good=count >= least)
    if (seconds := thresholds.recovery_seconds) is not None:
        yield from _recovery(seconds, warm)


def _latency(name: str, limit: int, measured: Quantiles | None, missing: str) -> Check:
    if measured is None:
        return _check(name, WARM, f"p99 ≤ {limit} ms", measured=missing, good=False)
    text = f"p99 {measured.p99:.1f} ms of {measured.count}"
    return _check(name, WARM, f"p99 ≤ {limit} ms", measured=text, good=measured.p99 <= limit)


def _recovery(seconds: int, warm: ArmFigures) -> Iterator[Check]:
    for burst in warm.bursts:
        found = burst.recovery_seconds
        yield _check(
            "recoverySeconds",
            WARM,
            f"≤ {seconds} s ({burst.stage}, {burst.policy})",
            measured="not recovered" if found is None else f"{found:.1f} s",
            good=found is not None and found <= seconds,
        )


def _comparison(thresholds: Thresholds, warm: ArmFigures, cold: ArmFigures) -> Iterator[Check]:
    if (ratio := thresholds.warm_vs_cold_burst_ttft_ratio) is None:
        return
    name, threshold = "warmVsColdBurstTtftRatio", f"cold p99 ≥ {ratio} × warm p99"
    if warm.burst_ttft is None or cold.burst_ttft is None:
        missing = "no burst request had a first token in one of the arms"
        yield _check(name, "both", threshold, measured=missing, good=False)
        return
    fast, slow = warm.burst_ttft.p99, cold.burst_ttft.p99
    text = (
        f"{slow / fast:.1f} × ({slow:.0f} ms / {fast:.0f} ms)"
        if fast > 0
        else f"{slow:.0f} ms / {fast:.0f} ms"
    )
    # strictly greater too, so that a ratio of 1 asks for the order of the arms
    yield _check(name, "both", threshold, measured=text, good=slow >= ratio * fast and slow > fast)


def _faults(thresholds: Thresholds, arm: ArmFigures) -> Iterator[Check]:
    for fault in arm.faults:
        what = f"{fault.policy} on {fault.seat or 'no seat'}"
        if fault.pid is None:
            yield _check(
                "faultInjected",
                arm.arm,
                f"{fault.type} hits {fault.policy}",
                measured=fault.error,
                good=False,
            )
            continue
        if (limit := thresholds.replacement_seconds) is not None:
            found = fault.replaced_seconds
            yield _check(
                "replacementSeconds",
                arm.arm,
                f"≤ {limit} s ({what}, process {fault.pid})",
                measured="not replaced" if found is None else f"{found:.1f} s",
                good=found is not None and found <= limit,
            )
        if fault.neighbours:
            lost = [f"{one.policy} (process {one.pid})" for one in fault.neighbours if not one.survived]
            yield _check(
                "neighboursGoOn",
                arm.arm,
                f"all of {len(fault.neighbours)} beside {what}",
                measured="lost: " + ", ".join(lost) if lost else "all went on",
                good=not lost,
            )


def _fit(fit: FitInfo, arm: str) -> Check:
    return Check(
        name="fitCpuPercent",
        arm=arm,
        status=Status.PASS if fit.enough else Status.WARN,
        threshold=f"≤ {fit.cpu_percent} % of the machine expected in Hold stages",
        measured=f"{fit.expected_percent:.0f} % in {fit.stage}, with {lengths(fit)}",
    )


def _warnings(thresholds: Thresholds, arm: ArmFigures) -> Iterator[Check]:
    holds = [row for row in arm.cpu if row.kind == "Hold" and row.mean_percent is not None]
    if holds:
        worst = max(holds, key=lambda row: row.mean_percent or 0.0)
        mean = worst.mean_percent or 0.0
        yield Check(
            name="cpuPercent",
            arm=arm.arm,
            status=Status.PASS if mean <= thresholds.cpu_percent else Status.WARN,
            threshold=f"≤ {thresholds.cpu_percent} % of the machine in Hold stages",
            measured=f"{mean:.0f} % in {worst.stage} (product {worst.product_percent:.0f} %, drill {worst.drill_percent:.0f} %)",
        )
    if (lag := arm.generator.lag) is not None:
        limit = thresholds.generator_lag_p99_milliseconds
        yield Check(
            name="generatorLagP99Milliseconds",
            arm=arm.arm,
            status=Status.PASS if lag.p99 <= limit else Status.WARN,
            threshold=f"load sent p99 ≤ {limit} ms late",
            measured=f"p99 {lag.p99:.1f} ms, max {lag.max:.1f} ms",
        )
    if arm.left_processes:
        yield Check(
            name="leftProcesses",
            arm=arm.arm,
            status=Status.WARN,
            threshold="the child ends everything that it started",
            measured=f"killed: {', '.join(arm.left_processes[:5])}",
        )
