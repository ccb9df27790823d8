"""From records to figures: quantiles, stages, bursts, goodput, recovery. PURE."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scaler.drill.figures import (
    BurstFigures,
    GeneratorFigures,
    PromotionFigures,
    Quantiles,
    RequestPoint,
    StageFigures,
)
from scaler.drill.records import GapHistogram, Outcome, Record
from scaler.drill.schedule import StageWindow

Gaps = Mapping[tuple[str, str], GapHistogram]


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The value of an ascending, non-empty sequence that at least `share` of the values don't exceed.

    Nearest rank, without interpolation: the answer is always a value that was measured, and a p99 of fewer than 100
    values is their maximum, never something milder.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def quantiles(seconds: Iterable[float]) -> Quantiles | None:
    """Summarize times given in seconds; None when there are none."""
    ordered = sorted(value * 1000 for value in seconds)
    if not ordered:
        return None
    return Quantiles(
        count=len(ordered),
        p50=_rounded(nearest_rank(ordered, 0.50)),
        p90=_rounded(nearest_rank(ordered, 0.90)),
        p99=_rounded(nearest_rank(ordered, 0.99)),
        max=_rounded(ordered[-1]),
    )


def gap_quantiles(histogram: GapHistogram | None) -> Quantiles | None:
    """Summarize times between tokens; None when there are none."""
    if histogram is None or not histogram.count:
        return None
    return Quantiles(
        count=histogram.count,
        p50=_rounded(histogram.quantile(0.50) * 1000),
        p90=_rounded(histogram.quantile(0.90) * 1000),
        p99=_rounded(histogram.quantile(0.99) * 1000),
        max=_rounded(histogram.largest * 1000),
    )


def keeps_objective(record: Record, objective: float) -> bool:
    """Whether a request counts as good: whole, and its first token, where one can be seen, within the objective."""
    return record.outcome is Outcome.OK and (record.ttft is None or record.ttft <= objective)


def stage_figures(
    records: Sequence[Record], gaps: Gaps, plan: Sequence[StageWindow], objectives: Mapping[str, float]
) -> list[StageFigures]:
    """Compute one row per stage and policy, in their order.

    Args:
        records: all requests of the arm.
        gaps: per (stage, policy), times between tokens.
        plan: the stages on the clock of the load.
        objectives: per policy, the TTFT objective in seconds.
    """
    return [
        _stage(window, policy, objective, records, gaps.get((window.stage.name, policy)))
        for window in plan
        for policy, objective in objectives.items()
    ]


def _stage(
    window: StageWindow, policy: str, objective: float, records: Sequence[Record], gaps: GapHistogram | None
) -> StageFigures:
    seconds = window.end - window.start
    mine = [record for record in records if record.stage == window.stage.name and record.policy == policy]
    good = sum(keeps_objective(record, objective) for record in mine)
    whole = [record for record in mine if record.outcome is Outcome.OK]
    failures = Counter(str(record.outcome) for record in mine if record.outcome is not Outcome.OK)
    return StageFigures(
        stage=window.stage.name,
        kind=window.stage.kind,
        policy=policy,
        bursting=policy in window.bursting,
        requests=len(mine),
        requests_per_second=round(len(mine) / seconds, 2),
        ok=len(whole),
        failures=dict(sorted(failures.items())),
        ttft=ttft(mine),
        itl=gap_quantiles(gaps),
        tokens_per_second=round(sum(record.tokens for record in whole) / seconds, 1),
        goodput_percent=round(100 * good / len(mine), 1) if mine else None,
        goodput_per_second=round(good / seconds, 2),
    )


def ttft(records: Iterable[Record]) -> Quantiles | None:
    """TTFT of requests that had a first token, whatever came of them later."""
    return quantiles(record.ttft for record in records if record.ttft is not None)


def burst_figures(
    records: Sequence[Record],
    plan: Sequence[StageWindow],
    objectives: Mapping[str, float],
    promotions: Sequence[PromotionFigures],
) -> list[BurstFigures]:
    """Compute one row per Burst stage and bursting policy."""
    result = []
    for index, window in enumerate(plan):
        if window.stage.kind != "Burst":
            continue
        for policy in window.bursting:
            end = _burst_end(plan, index, policy)
            mine = sorted(
                (
                    record
                    for record in records
                    if record.policy == policy and window.start <= record.intended < end
                ),
                key=lambda record: record.intended,
            )
            result.append(
                BurstFigures(
                    policy=policy,
                    stage=window.stage.name,
                    start=window.start,
                    end=end,
                    ttft=ttft(record for record in mine if record.stage == window.stage.name),
                    whole_ttft=ttft(mine),
                    recovery_seconds=recovery(mine, window.start, objectives[policy]),
                    first_added_seconds=_first_added(
                        promotions, policy, window.start, _next_burst(plan, index, policy)
                    ),
                )
            )
    return result


def burst_ttft(records: Iterable[Record], plan: Sequence[StageWindow]) -> Quantiles | None:
    """TTFT of the bursting policies' requests over all Burst stages."""
    bursting = {
        (window.stage.name, policy)
        for window in plan
        if window.stage.kind == "Burst"
        for policy in window.bursting
    }
    return ttft(record for record in records if (record.stage, record.policy) in bursting)


def recovery(records: Sequence[Record], start: float, objective: float) -> float | None:
    """Seconds from `start` to the first time after which every request to the end is whole and keeps the objective.

    The time is the intended time of the first such request. 0.0 when no request broke the objective (or there are
    none); None when the last one did.

    Args:
        records: a burst's requests of one policy, in the order of their intended times.
        start: start of the burst.
        objective: the TTFT objective, seconds.
    """
    bad = [index for index, record in enumerate(records) if not keeps_objective(record, objective)]
    if not bad:
        return 0.0
    if bad[-1] == len(records) - 1:
        return None
    return round(records[bad[-1] + 1].intended - start, 2)


def _burst_end(plan: Sequence[StageWindow], index: int, policy: str) -> float:
    end = plan[index].end
    for window in plan[index + 1 :]:
        if window.stage.kind != "Hold" or policy not in window.bursting:
            break
        end = window.end
    return end


def _next_burst(plan: Sequence[StageWindow], index: int, policy: str) -> float:
    """Start of the policy's next burst: what comes into rotation from then on is that one's."""
    later = (
        window.start
        for window in plan[index + 1 :]
        if window.stage.kind == "Burst" and policy in window.bursting
    )
    return next(later, math.inf)


def _first_added(
    promotions: Sequence[PromotionFigures], policy: str, start: float, end: float
) -> float | None:
    rotations = [
        promotion.sample + promotion.steps["rotation"] / 1000
        for promotion in promotions
        if promotion.policy == policy and promotion.outcome == "Promoted" and "rotation" in promotion.steps
    ]
    after = [at for at in rotations if start <= at < end]
    return round(min(after) - start, 2) if after else None


def generator_figures(records: Sequence[Record]) -> GeneratorFigures:
    """Compute how late the generator sent."""
    return GeneratorFigures(
        requests=len(records),
        lag=quantiles(record.sent - record.intended for record in records if record.sent is not None),
    )


def request_points(records: Iterable[Record]) -> list[RequestPoint]:
    """Reduce records to what the scatter plots show, in the order of their intended times."""
    return [
        RequestPoint(
            at=round(record.intended, 3),
            policy=record.policy,
            ttft=None if record.ttft is None else _rounded(record.ttft * 1000),
            outcome=str(record.outcome),
        )
        for record in sorted(records, key=lambda one: one.intended)
    ]


def failure_examples(records: Iterable[Record], limit: int = 10) -> list[str]:
    """Put the first failures into words."""
    failed = sorted(
        (record for record in records if record.outcome is not Outcome.OK), key=lambda one: one.intended
    )
    return [
        f"{record.policy} at {record.intended:.1f} s ({record.stage}): {record.outcome}: {record.detail}"
        for record in failed[:limit]
    ]


def _rounded(milliseconds: float) -> float:
    return round(milliseconds, 1)
