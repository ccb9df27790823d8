"""What a promotion's time consists of: the client's view joined with what controller and agent recorded of it. PURE."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.drill.figures import PromotionFigures, Quantiles
from scaler.drill.measure import quantiles
from warmpool.states import Depth

PARTS = (
    "request to sample",
    "sample to decision",
    "decision to claim",
    "claim to resumed",
    "resumed to canary",
    "canary to rotation",
    "rotation to token",
    "token to client",
)
"""The parts, in their order; together they are the client's time to the first token."""
SAMPLE_TO_TOKEN, REQUEST_TO_TOKEN = "sample to first token", "request to first token"
_STEPS = ("decision", "claimed", "resumed", "canary", "rotation", "firstToken")
_WAKES: Mapping[str, str] = {Depth.PAUSED: "resume", Depth.KV_RELEASED: "kv", Depth.PARKED: "unpark"}
"""Per depth, the agent's phase without which a resident didn't come from there."""
_CLOCK_SECONDS = 0.005
"""What two processes' readings of one clock may lie apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that needed a promotion, as its client saw it.

    Attributes:
        number: which one, from 0.
        model: whom it asked.
        depth: how deep the resident slept a moment before, as its agent told.
        sent: when it was sent, in Unix seconds.
        first: when its first token came; None if none did.
        right: whether all tokens were the expected ones.
        failure: what went wrong, in words; empty otherwise.
    """

    number: int
    model: str
    depth: Depth
    sent: float
    first: float | None
    right: bool
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demoted:
    """One demotion, from its first order to its end, in Unix seconds."""

    since: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """One promotion.

    Attributes:
        asked: the request that needed it.
        milliseconds: its parts and both totals; empty where the records don't tell of it.
        phases: what the agent took for each phase, in milliseconds.
        disturbed: another seat of the device was being demoted meanwhile.
        failure: what went wrong, in words; empty otherwise.
    """

    asked: Asked
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    disturbed: bool = False
    failure: str = ""


def joined(
    asked: Sequence[Asked], recorded: Sequence[PromotionFigures], demoted: Sequence[Demoted]
) -> list[Promotion]:
    """Join requests with the records of the promotions that they caused.

    Args:
        asked: the requests.
        recorded: the controller's records, with samples as Unix seconds.
        demoted: the demotions of the same time.
    """
    left = list(recorded)
    promotions = []
    for request in asked:
        found = next((each for each in left if _caused(request, each)), None)
        if found is not None:
            left.remove(found)
        promotions.append(_promotion(request, found, demoted))
    return promotions


def _caused(request: Asked, recorded: PromotionFigures) -> bool:
    until = request.sent + 60.0 if request.first is None else request.first
    since = request.sent - _CLOCK_SECONDS
    return recorded.policy == request.model and since <= recorded.sample <= until + _CLOCK_SECONDS


def _promotion(request: Asked, recorded: PromotionFigures | None, demoted: Sequence[Demoted]) -> Promotion:
    if request.failure:
        return Promotion(asked=request, failure=request.failure)
    if request.first is None or recorded is None:
        return Promotion(asked=request, failure="no record of its promotion")
    if recorded.outcome != "Promoted":
        return Promotion(asked=request, failure=f"a promotion failed: {recorded.error}")
    if missing := [step for step in _STEPS if step not in recorded.steps]:
        return Promotion(asked=request, failure=f"its record lacks {', '.join(missing)}")
    if (wake := _WAKES[request.depth]) not in recorded.phases:
        return Promotion(asked=request, failure=f"it slept less deep than {request.depth}: no phase {wake}")
    steps = [recorded.steps[step] for step in _STEPS]
    before = (recorded.sample - request.sent) * 1e3
    total = (request.first - request.sent) * 1e3
    lengths = [before, *(later - earlier for earlier, later in zip([0.0, *steps], steps, strict=False))]
    parts = dict(zip(PARTS, [*lengths, total - before - steps[-1]], strict=True))
    return Promotion(
        asked=request,
        milliseconds=parts | {SAMPLE_TO_TOKEN: steps[-1], REQUEST_TO_TOKEN: total},
        phases=recorded.phases,
        disturbed=any(each.since <= request.first and each.until >= request.sent for each in demoted),
        failure="" if request.right else "a wrong token",
    )


def summarized(promotions: Sequence[Promotion]) -> dict[str, Quantiles]:
    """Summarize each part, both totals and each of the agent's phases over the promotions that succeeded; in milliseconds."""
    good = [each for each in promotions if each.milliseconds]
    summary: dict[str, Quantiles] = {}
    for name in (*PARTS, SAMPLE_TO_TOKEN, REQUEST_TO_TOKEN):
        found = quantiles(each.milliseconds[name] / 1e3 for each in good)
        if found is not None:
            summary[name] = found
    for phase in sorted({phase for each in good for phase in each.phases}):
        found = quantiles(each.phases[phase] / 1e3 for each in good if phase in each.phases)
        if found is not None:
            summary[f"agent: {phase}"] = found
    return summary


def table(summary: Mapping[str, Quantiles]) -> list[str]:
    """Render a summary as lines."""
    lines = [f"{'milliseconds':24s} {'p50':>8s} {'p90':>8s} {'p99':>8s} {'max':>8s} {'p99/p50':>8s}"]
    for name, found in summary.items():
        spread = f"{found.p99 / found.p50:8.2f}" if found.p50 > 0 else f"{'-':>8s}"
        lines.append(
            f"{name:24s} {found.p50:8.1f} {found.p90:8.1f} {found.p99:8.1f} {found.max:8.1f} {spread}"
        )
    return lines
