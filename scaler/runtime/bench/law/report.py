"""The report as text: what was assumed, one table a scenario, the targets. PURE."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from scaler.runtime.bench.law import verdicts
from scaler.runtime.bench.law.arms import ALONE, ARMS
from scaler.runtime.bench.law.case import LEAD_SECONDS, Case
from scaler.runtime.bench.law.offered import offered
from scaler.runtime.bench.law.pool import Latencies
from scaler.runtime.bench.law.run import MOST_SEATS, Knobs, Outcome
from scaler.runtime.bench.law.scenarios import case_of, scenarios
from scaler.runtime.bench.law.service import MOST_IN_FLIGHT, RESERVED_SHARE
from scaler.runtime.bench.law.sharing import BATCH_SECONDS
from scaler.runtime.bench.law.sweep import Point, Points

_NUMERIC: Final = frozenset("0123456789")


def assumptions(case: Case) -> str:
    """Say what all arms have in common."""
    service, gpu, latencies = case.service, case.gpu, Latencies()
    return f"""\
Simulated: real arrivals, the real law and planner; seats, GPUs and requests are a model.
- Service time = prompt tokens / ({service.prefill:,.0f} tokens/s / {MOST_IN_FLIGHT}) + generated tokens × \
{service.per_token * 1e3:.0f} ms, the same in all arms: a request takes as long as on a full seat.
- Slots of a resident = min({MOST_IN_FLIGHT}, what its KV memory holds): {gpu.gigabytes:.0f} GB less {RESERVED_SHARE:.0%}, less the \
weights of all residents, {gpu.kv_bytes // 1024} KiB a token, each request as long as the trace's 99th percentile.
- Start-up {case.start:.0f} s a model unless said. A shared seat's is the sum of its residents', which start one after the other \
and are each promotable once ready.
- Promotion {latencies.promote * 1e3:.0f} ms, switch {latencies.switch * 1e3:.0f} ms after the drain, recall \
{latencies.recall * 1e3:.0f} ms, pause {latencies.pause * 1e3:.0f} ms. A seat changes hands when its last request has finished.
- HPA syncs each 15 s and KPA decides each 2 s, from metrics that are never late. The law is asked as the controller asks it.
- GPU-seconds count every seat from its creation until it is gone. Late = waited longer than {case.objective:g} s for a slot.
- A run begins {LEAD_SECONDS:.0f} s before what is measured, with the end of the same requests.
- The batch work of the lending arm never ends; its requests take {BATCH_SECONDS:.0f} s and are ended when a seat is wanted.
- Every arm is given the best of its knobs with hindsight: floor, ceiling, target, spares, windows."""


def scenario(name: str, points: Sequence[Point], *, quick: bool) -> str:
    """Write the table of one scenario."""
    rows = [_row(points, arm) for arm in ARMS if any(point.arm == arm for point in points)]
    head = (
        "arm",
        "as one begins",
        "late",
        f"cheapest ≤ {verdicts.LATE_SHARE:.1%} late",
        "late",
        "worst model",
    )
    tail = ("p99 wait", "serving/spare/starting/lent", "knobs", "saves")
    lines = [name, _about(case_of(name, quick=quick)), *table([(*head, *tail), *rows])]
    return "\n".join(lines)


def summary(found: Points) -> str:
    """Write one line a scenario: the best without sharing against the best with it."""
    rows = [("scenario", "best without sharing", "GPU-seconds", "best with", "GPU-seconds", "saves")]
    for name, points in found.items():
        base = verdicts.cheapest(verdicts.of_arms(points, ALONE))
        mine = verdicts.cheapest(verdicts.of_arms(points, verdicts.SHARING))
        saved = "" if base is None or mine is None else f"{1.0 - mine.outcome.held / base.outcome.held:.0%}"
        rows.append((name, *_short(base), *_short(mine), saved))
    return "\n".join(table(rows))


def judgement(found: Points, *, quick: bool) -> str:
    """Say which targets are met."""
    lines = []
    for name, points in found.items():
        if scenarios(quick=quick)[name].judged:
            lines += [
                f"{'met   ' if verdict.met else 'MISSED'} {verdict.target}\n       {verdict.found}"
                for verdict in verdicts.verdicts(points)
            ]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows, the first of which is the head: numbers to the right, words to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numeric = [all(_is_number(cell) for cell in column[1:]) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths, numeric) for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _line(row: Iterable[str], widths: Iterable[int], numeric: Iterable[bool]) -> str:
    cells = zip(row, widths, numeric, strict=True)
    return "  ".join(
        cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells
    ).rstrip()


def _is_number(cell: str) -> bool:
    return not cell or cell[0] in _NUMERIC or cell[0] in "-−"


def _about(case: Case) -> str:
    requests = sum(len(model.trace.arrivals) for model in case.models)
    busy = sum(case.service.seconds(a) for model in case.models for a in model.trace.arrivals) / case.seconds
    group = case.groups[0]
    least = offered(case)
    together = list(case.shared_slots(group).values())
    return (
        f"{len(case.models)} models, {requests:,} requests in {case.seconds:,.0f} s, {busy:,.1f} in flight on average; slots alone "
        f"{_range([case.slots(model) for model in case.models])}, on a shared seat of {len(group)} {_range(together)}; start-up "
        f"{case.start:.0f} s and {case.start * len(group):.0f} s; served at once they keep {least.mean:.1f} shared seats busy on "
        f"average and {least.most} at most"
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _row(points: Sequence[Point], arm: str) -> tuple[str, ...]:
    begun, best = verdicts.plain(points, arm), verdicts.cheapest(verdicts.of_arms(points, [arm]))
    first = (arm, f"{begun.outcome.held:,.0f}", _percent(begun.outcome.late_share))
    if best is None:
        return (*first, "-", *[""] * 6)
    outcome, saved = best.outcome, verdicts.saving(points, arm)
    return (
        *first,
        f"{outcome.held:,.0f}",
        _percent(outcome.late_share),
        _percent(outcome.worst),
        f"{outcome.p99:.2f} s",
        _kinds(outcome),
        knobs_text(arm, best.knobs),
        "" if saved is None or arm in ALONE else f"{saved:.0%}",
    )


def _short(point: Point | None) -> tuple[str, str]:
    return ("-", "") if point is None else (point.arm, f"{point.outcome.held:,.0f}")


def _percent(share: float) -> str:
    return f"{share * 100:.2f} %"


def _kinds(outcome: Outcome) -> str:
    """Return GPU-seconds in percent: serving (with promoting and draining), spare, starting, lent."""
    kinds: Mapping[str, float] = {kind.lower(): spent for kind, spent in outcome.gpu_seconds.items()}
    spare, starting, lent = (kinds.get(kind, 0.0) for kind in ("spare", "starting", "lent"))
    serving = outcome.held - spare - starting - lent
    whole = outcome.held or 1.0
    return "/".join(f"{100.0 * part / whole:.0f}" for part in (serving, spare, starting, lent))


def knobs_text(arm: str, knobs: Knobs) -> str:
    """Say what was turned, in few words."""
    parts = [f"min {knobs.least}"] if knobs.least or arm in verdicts.RULES else []
    if knobs.most != MOST_SEATS:
        parts.append(f"max {knobs.most}")
    if arm in verdicts.RULES:
        return ", ".join([*parts, f"target {knobs.share:.0%}"])
    return ", ".join(
        [
            *parts,
            f"spare {knobs.spares}",
            f"windows {knobs.burst:.0f}/{knobs.stable:.0f}/{knobs.demote:.0f} s",
        ]
    )
