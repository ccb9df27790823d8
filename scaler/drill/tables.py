"""The report's figures as tables of text, made once and shown on the terminal, in Markdown and in HTML. PURE."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scaler.drill.collect import STEPS
from scaler.drill.figures import ArmFigures, Check, Quantiles, Report, Status
from scaler.drill.fit import span

NONE = "–"
"""Stands where there is nothing to measure."""
VERDICT = "Verdict"
"""Title of the table of checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A titled table.

    Attributes:
        title: its title.
        note: how to read it, in a sentence; may be empty.
        header: names of the columns.
        rows: cells; as many per row as there are columns.
        text_columns: how many columns from the left hold words; the others hold numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text_columns: int = 1


def milliseconds(value: float) -> str:
    """Write a latency as people do: 85 ms, 1.25 s."""
    if value >= 1000:  # noqa: PLR2004 - from here on in seconds
        return f"{value / 1000:.2f} s".replace(".00 ", " ")
    return f"{value:.0f} ms" if value >= 10 or value == 0 else f"{value:.1f} ms"  # noqa: PLR2004 - two digits are enough


def all_tables(report: Report) -> list[Table]:
    """Every table of the report, without those that have nothing to show."""
    tables = [
        checks_table(report.checks),
        bursts_table(report),
        stages_table(report),
        promotion_summary_table(report),
        promotions_table(report),
        seats_table(report),
        faults_table(report),
        cpu_table(report),
        fit_table(report),
        generator_table(report),
        policies_table(report),
        fleets_table(report),
    ]
    return [table for table in tables if table.rows]


def checks_table(made: Iterable[Check]) -> Table:
    """The verdict's parts, what failed first."""
    order = {Status.FAIL: 0, Status.WARN: 1, Status.PASS: 2}
    return Table(
        title=VERDICT,
        header=("check", "arm", "asked for", "measured", "result"),
        rows=[
            (check.name, check.arm, check.threshold, check.measured, str(check.status))
            for check in sorted(made, key=lambda check: order[check.status])
        ],
        text_columns=5,
    )


def bursts_table(report: Report) -> Table:
    """How each burst felt."""
    return Table(
        title="Bursts",
        note="TTFT of the bursting model in the Burst stage, and over Burst and Hold together. A further resident: time until "
        "one more was in rotation. Recovered: time after which every request kept the objective, until the end of Burst and Hold.",
        header=(
            "burst",
            "model",
            "arm",
            *_quantile_header("TTFT"),
            "p99 with hold",
            "further resident",
            "recovered",
        ),
        rows=[
            (
                burst.stage,
                burst.policy,
                arm.arm,
                *_quantiles(burst.ttft),
                NONE if burst.whole_ttft is None else milliseconds(burst.whole_ttft.p99),
                _seconds(burst.first_added_seconds, "none came"),
                _seconds(burst.recovery_seconds, "not in the burst"),
            )
            for burst, arm in sorted(
                ((burst, arm) for arm in report.arms for burst in arm.bursts), key=lambda pair: pair[0].start
            )
        ],
        text_columns=3,
    )


def stages_table(report: Report) -> Table:
    """Every stage, model and arm."""
    rows = []
    for arm in report.arms:
        for row in arm.stages:
            failures = ", ".join(f"{count} {kind}" for kind, count in row.failures.items())
            rows.append(
                (
                    arm.arm,
                    row.stage,
                    row.policy,
                    str(row.requests),
                    f"{row.requests_per_second:.1f}",
                    *_quantiles(row.ttft),
                    NONE if row.itl is None else milliseconds(row.itl.p50),
                    NONE if row.itl is None else milliseconds(row.itl.p99),
                    NONE if row.goodput_percent is None else f"{row.goodput_percent:.1f} %",
                    f"{row.goodput_per_second:.1f}",
                    failures or "0",
                )
            )
    return Table(
        title="Stages",
        note="A request belongs to the stage in which it was due. Goodput: share and rate of requests with a whole answer and a "
        "TTFT within the objective.",
        header=(
            "arm",
            "stage",
            "model",
            "requests",
            "per s",
            *_quantile_header("TTFT"),
            "ITL p50",
            "p99",
            "goodput",
            "good per s",
            "failed",
        ),
        rows=rows,
        text_columns=3,
    )


def promotion_summary_table(report: Report) -> Table:
    """Promotions per operation: p50, p99 and max of each step."""
    rows = []
    for arm in report.arms:
        for summary in arm.promotion_summary:
            cells = [_triple(summary.steps.get(step)) for step in STEPS]
            cells.append(_triple(summary.claim_to_rotation))
            rows.append((arm.arm, summary.operation, str(summary.count), str(summary.failed), *cells))
    return Table(
        title="Promotions: p50 / p99 / max, ms after the sample",
        note="In a cold arm the sample is the one that found the new seat ready: what its start took is under Bursts.",
        header=("arm", "operation", "count", "failed", *map(_step_name, STEPS), "claim to rotation"),
        rows=rows,
        text_columns=2,
    )


def promotions_table(report: Report) -> Table:
    """Each promotion."""
    rows = []
    for arm in report.arms:
        for one in arm.promotions:
            steps = [f"{one.steps[step]:.1f}" if step in one.steps else NONE for step in STEPS]
            basis = {"Waited": "waited", "Composed": "composed"}.get(one.basis, "no request came")
            outcome = one.error or one.outcome if one.outcome != "Promoted" else basis
            at = f"{one.sample:.2f} s"
            rows.append((arm.arm, one.operation, one.policy, one.seat, outcome, at, str(one.waiting), *steps))
    return Table(
        title="Each promotion, ms after the sample",
        note="First token: waited = content of a request that was waiting at the rotation, minus the sample; composed = sample to "
        "rotation plus dispatch to content of the first request routed there, as none was waiting.",
        header=(
            "arm",
            "operation",
            "model",
            "seat",
            "first token",
            "sample at",
            "waiting",
            *map(_step_name, STEPS),
        ),
        rows=rows,
        text_columns=5,
    )


def seats_table(report: Report) -> Table:
    """Seat-seconds by what the seats were."""
    values = sorted({value for arm in report.arms for value in arm.seat_seconds if value != "Serving"})
    models = [policy.name for policy in report.policies]
    return Table(
        title="Seat-seconds during the load",
        header=(
            "arm",
            *(f"serving {model}" for model in models),
            *(value.lower() for value in values),
            "all",
        ),
        rows=[
            (
                arm.arm,
                *(f"{arm.served_seconds.get(model, 0.0):.1f}" for model in models),
                *(f"{arm.seat_seconds.get(value, 0.0):.1f}" for value in values),
                f"{sum(arm.seat_seconds.values()):.1f}",
            )
            for arm in report.arms
            if arm.seat_seconds
        ],
    )


def faults_table(report: Report) -> Table:
    """What was broken on purpose, and what came of it."""
    rows = []
    for arm in report.arms:
        for fault in arm.faults:
            neighbours = ", ".join(
                f"{one.policy} {'went on' if one.survived else 'was lost'}" for one in fault.neighbours
            )
            rows.append(
                (
                    arm.arm,
                    f"{fault.type} {fault.policy}",
                    fault.error or f"{fault.seat}, process {fault.pid}",
                    neighbours or NONE,
                    f"{fault.at:.1f} s",
                    _seconds(fault.noticed_seconds, "never"),
                    _seconds(fault.capacity_back_seconds, "never"),
                    _seconds(fault.replaced_seconds, "never"),
                )
            )
    return Table(
        title="Faults",
        header=("arm", "fault", "hit", "neighbours", "at", "noticed", "another in rotation", "replaced"),
        rows=rows,
        text_columns=4,
    )


def cpu_table(report: Report) -> Table:
    """CPU per stage."""
    return Table(
        title="CPU, percent of the whole machine",
        header=("arm", "stage", "mean", "busiest second", "emberpool local", "drill"),
        rows=[
            (
                arm.arm,
                row.stage,
                *(
                    NONE if value is None else f"{value:.0f} %"
                    for value in (row.mean_percent, row.max_percent, row.product_percent, row.drill_percent)
                ),
            )
            for arm in report.arms
            for row in arm.cpu
        ],
        text_columns=2,
    )


def fit_table(report: Report) -> Table:
    """How long answers were, where they were fitted to the machine."""
    fit = report.fit
    title = "Answers, fitted to the machine"
    header = ("model", "tokens, as written", "tokens", "per s, as written", "per s")
    if fit is None:
        return Table(title=title, header=header, rows=[])
    pace, slower = fit.tokens_per_second
    return Table(
        title=title,
        note=f"Measured before the first arm: a request takes {fit.request_seconds * 1000:.0f} ms of processor and "
        f"{fit.token_seconds * 1000:.1f} ms for each token after the first, {fit.answer_seconds * 1000:.0f} ms as played; without "
        f"requests {fit.idle_percent:.1f} % of the machine are taken, and {fit.others_percent:.1f} % by other programs. With answers "
        f"as long as written {fit.stage} would take "
        f"{fit.whole_percent:.0f} % of it, as played it was expected to take {fit.expected_percent:.0f} %. Shorter answers are slower, "
        "so each takes as long and as many are in flight.",
        header=header,
        rows=[
            (policy, span(*fit.whole_answers[policy]), span(*answer), str(pace), str(slower))
            for policy, answer in fit.answers.items()
        ],
    )


def generator_table(report: Report) -> Table:
    """How punctual the load was."""
    return Table(
        title="Load generator: how late it sent",
        header=("arm", "requests", "p50", "p90", "p99", "max"),
        rows=[(arm.arm, str(arm.generator.requests), *_quantiles(arm.generator.lag)) for arm in report.arms],
    )


def policies_table(report: Report) -> Table:
    """The settings that decide what is seen; short windows make a drill short."""
    return Table(
        title="Policies",
        header=(
            "policy",
            "checkpoint",
            "TTFT objective",
            "in flight per seat",
            "serving",
            "burst at",
            "burst window",
            "stable window",
            "demote after",
        ),
        rows=[
            (
                policy.name,
                policy.shape or policy.checkpoint or NONE,
                milliseconds(policy.objective_milliseconds),
                ", ".join(str(target) for target in dict.fromkeys(policy.target_in_flight.values())),
                f"{policy.serving_min} to {policy.serving_max}",
                f"{policy.threshold_percent} %",
                f"{policy.burst_window_seconds:g} s",
                f"{policy.stable_window_seconds:g} s",
                f"{policy.demote_after_seconds:g} s",
            )
            for policy in report.policies
        ],
        text_columns=2,
    )


def fleets_table(report: Report) -> Table:
    """The fleets of each arm."""
    return Table(
        title="Fleets",
        header=("arm", "fleet", "seats at most", "spare", "scale-down window", "budget of all"),
        rows=[
            (
                arm.arm,
                fleet.name,
                str(fleet.max_seats),
                str(fleet.spare_min),
                f"{fleet.scale_down_window_seconds:g} s",
                NONE if arm.seat_budget is None else str(arm.seat_budget),
            )
            for arm in report.arms
            for fleet in arm.fleets
        ],
        text_columns=2,
    )


def key_figures(report: Report) -> Iterator[tuple[str, str, str]]:
    """The few figures that a reader looks for first: name, value, and a remark."""
    for arm in report.arms:
        if arm.burst_ttft is not None:
            remark = f"p50 {milliseconds(arm.burst_ttft.p50)}, {arm.burst_ttft.count} requests"
            yield f"TTFT p99 in bursts, {arm.arm}", milliseconds(arm.burst_ttft.p99), remark
    warm = report.arm("warm")
    if warm is not None:
        yield from _promotion_figures(warm)
    for arm in report.arms:
        requests, failed = (
            sum(row.requests for row in arm.stages),
            sum(sum(row.failures.values()) for row in arm.stages),
        )
        yield f"failed, {arm.arm}", str(failed), f"of {requests} requests"


def _promotion_figures(warm: ArmFigures) -> Iterator[tuple[str, str, str]]:
    for summary in warm.promotion_summary:
        first = summary.steps.get("firstToken")
        if first is not None:
            name = {
                "Promote": "sample → first token",
                "Switch": "the same with a switch",
                "Recall": "the same by a recall",
            }
            remark = f"p99 of {first.count}; p50 {milliseconds(first.p50)}"
            yield name.get(summary.operation, summary.operation), milliseconds(first.p99), remark


def _quantile_header(name: str) -> tuple[str, str, str, str]:
    return f"{name} p50", "p90", "p99", "max"


def _quantiles(values: Quantiles | None) -> tuple[str, str, str, str]:
    if values is None:
        return NONE, NONE, NONE, NONE
    return (
        milliseconds(values.p50),
        milliseconds(values.p90),
        milliseconds(values.p99),
        milliseconds(values.max),
    )


def _triple(values: Quantiles | None) -> str:
    return NONE if values is None else f"{values.p50:.0f} / {values.p99:.0f} / {values.max:.0f}"


def _seconds(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:.1f} s"


def _step_name(step: str) -> str:
    return "first token" if step == "firstToken" else step
