"""Whether objectives can be kept and read: the edges of histograms, promotions, and how long a queue may last."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import SECONDS, Finding, Place, Severity, Term
from scaler.policy.lint.gateway import patience, patience_term, through_gateway
from scaler.policy.lint.subject import Subject
from scaler.policy.lint.times import burst_on_spare
from scaler.policy.scaling_policy import EngineType, Objectives, ScalingPolicy, Serving
from scaler.policy.signals import Measures, Prometheus, RedisSignal

ENGINE_EDGES: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Edges of `vllm:time_to_first_token_seconds`, in seconds, as vLLM 0.32 has them; the reference engine has the same."""
GATEWAY_EDGES: Final = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
"""Edges of the gateway's own histogram, in seconds (`scaler.gateway.observe`)."""
_EDGES: Final[Mapping[EngineType, tuple[float, ...]]] = {
    EngineType.VLLM: ENGINE_EDGES,
    EngineType.REFERENCE: ENGINE_EDGES,
}
_SHORTEST_DRAIN: Final = 1
"""Seconds; the format takes no less."""
_DEFAULT_DRAIN_AND_LIMIT: Final = (Serving().queue_drain_seconds, Objectives().ttft.limit_seconds)


def objective_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy's objective, and of how long its queue may take."""
    for policy in subject.policies.policies.values():
        yield from _beyond_queue(subject, policy)
        yield from _buckets(subject, policy)
        yield from _promotion(subject, policy)
        yield from _drain(subject, policy)


def objective_place(policy: ScalingPolicy) -> Place:
    """Point at a policy's objective."""
    ttft = policy.spec.objectives.ttft
    key = "milliseconds" if ttft.milliseconds is not None else "seconds"
    return Place.of(policy, "spec", "objectives", "ttft", key)


def _beyond_queue(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A request that waits is refused before an objective as long as that is missed, and so no wait puts it at risk."""
    limit, assumed = policy.spec.objectives.ttft.limit_seconds, subject.assumptions
    if limit < patience(policy, assumed):
        return
    if limit >= assumed.gateway_deadline_seconds:
        refused = f"{assumed.gateway_deadline_seconds} s after which the gateway refuses whatever has no first token"
    else:
        refused = f"{patience(policy, assumed)} s after which the gateway refuses what still waits"
    heard = through_gateway(policy)
    yield Finding(
        code=Code.OBJECTIVE_BEYOND_QUEUE,
        severity=Severity.WARNING if heard else Severity.INFO,
        place=objective_place(policy),
        message=(
            f"{limit:g} s is no less than the {refused}: a request{'' if heard else ' that comes through one'} is turned away"
            " with 503 before it is late, so that its wait alone never puts the objective at risk"
        ),
        hint=_shorter(policy, patience(policy, assumed)),
        terms=(
            Term(name="objective", value=limit, unit=SECONDS, origin="objectives.ttft"),
            patience_term(policy, assumed),
            Term(
                name="no first token after",
                value=float(assumed.gateway_deadline_seconds),
                unit=SECONDS,
                origin="assumption gatewayDeadlineSeconds",
            ),
        ),
    )


def _shorter(policy: ScalingPolicy, refused: int) -> str:
    """Name the longest objective below a time that can be read exactly."""
    told = "; queue.maxAgeSeconds sets another limit, and --assume gatewayDeadlineSeconds=N tells of one"
    common = frozenset.intersection(*map(frozenset, _histograms(policy).values() or [GATEWAY_EDGES]))
    below = max((edge for edge in common if edge < refused), default=None)
    return (f"{below:g} s is the longest that histograms show exactly" if below else "promise less") + told


def _buckets(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A share of requests within the objective is exact on an edge only; between two it is interpolated.

    Nothing is said of an objective that no request at the gateway ever misses: another one has to come first.
    """
    limit = policy.spec.objectives.ttft.limit_seconds
    if through_gateway(policy) and limit >= patience(policy, subject.assumptions):
        return
    edges = _histograms(policy)
    lacking = [f"{name} ({_around(limit, each)})" for name, each in edges.items() if limit not in each]
    if lacking:
        yield Finding(
            code=Code.OBJECTIVE_BETWEEN_BUCKETS,
            severity=Severity.WARNING,
            place=objective_place(policy),
            message=(
                f"{limit:g} s is no edge of {' nor of '.join(lacking)} TTFT histogram: shares of requests over it are"
                " interpolated"
            ),
            hint=_better_edges(limit, edges),
            terms=(Term(name="objective", value=limit, unit=SECONDS, origin="objectives.ttft"),),
        )


def _histograms(policy: ScalingPolicy) -> dict[str, tuple[float, ...]]:
    """Return whose TTFT histograms tell of the policy, with their edges in seconds."""
    found: dict[str, tuple[float, ...]] = {}
    if through_gateway(policy):
        found["the gateway's"] = GATEWAY_EDGES
    if policy.spec.engine.type in _EDGES:
        found["the engine's"] = _EDGES[policy.spec.engine.type]
    return found


def _better_edges(limit: float, edges: Mapping[str, tuple[float, ...]]) -> str:
    """Name the nearest objectives that can be read exactly: by all histograms if there are such on both sides."""
    common = tuple(sorted(frozenset.intersection(*map(frozenset, edges.values()))))
    if common[0] < limit < common[-1]:
        whose = "that both histograms have" if len(edges) > 1 else "of the histogram"
        return f"the nearest edges {whose}: {_around(limit, common)}"
    each = ", ".join(f"{name}: {_around(limit, own)}" for name, own in edges.items())
    told = f"the nearest edges are {each}"
    if limit > min(max(own) for own in edges.values()):
        told += "; beyond a histogram's last edge it can't tell how late a request was"
    return told


def _around(limit: float, edges: tuple[float, ...]) -> str:
    below = max((edge for edge in edges if edge < limit), default=None)
    above = min((edge for edge in edges if edge > limit), default=None)
    return " and ".join(f"{edge:g} s" for edge in (below, above) if edge is not None)


def _promotion(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    limit, takes = policy.spec.objectives.ttft.limit_seconds, burst_on_spare(subject, policy)
    if takes.total is not None and takes.total > limit:
        yield Finding(
            code=Code.OBJECTIVE_BELOW_PROMOTION,
            severity=Severity.WARNING,
            place=objective_place(policy),
            message=(
                f"{limit:g} s is shorter than the {takes.total:.2f} s after which a burst's first requests are answered by a"
                " promoted resident, at worst"
            ),
            hint="let serving residents bear the start of a burst (serving.min, burst.thresholdPercent), or see it sooner",
            terms=takes.terms,
        )


def _drain(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """The drain term asks for too little when a drain may take longer than the objective, or than requests may wait.

    The shorter of the two counts. The deadline term makes up for a long drain, where somebody tells how long the oldest
    request has waited and it may wait for so long; so nothing is said of the two defaults there, nor of a drain that is as
    short as can be written. Entries of a work queue have no first token, so a policy that knows of no other queue is left
    alone.
    """
    drain, limit = policy.spec.serving.queue_drain_seconds, policy.spec.objectives.ttft.limit_seconds
    if through_gateway(policy) and limit >= patience(policy, subject.assumptions):
        yield from _drain_beyond_queue(subject, policy)
        return
    aged = _tells_age(policy)
    works = any(isinstance(signal, RedisSignal) for signal in policy.spec.signals)
    if works and not aged:
        return
    if drain <= max(limit, _SHORTEST_DRAIN) or (aged and (drain, limit) == _DEFAULT_DRAIN_AND_LIMIT):
        return
    rest = (
        "until the age of the oldest request puts the objective at risk"
        if aged
        else "and no signal tells the age of the oldest request, which would put the objective at risk"
    )
    yield Finding(
        code=Code.DRAIN_SLOWER_THAN_OBJECTIVE,
        severity=Severity.INFO if aged else Severity.WARNING,
        place=Place.of(policy, "spec", "serving", "queueDrainSeconds"),
        message=f"a queue may take {drain} s to drain, longer than the objective of {limit:g} s, {rest}",
        hint=f"queueDrainSeconds: {max(_SHORTEST_DRAIN, math.floor(limit))} promotes more for the same queue",
        terms=(
            Term(name="drain", value=float(drain), unit=SECONDS, origin="serving.queueDrainSeconds"),
            Term(name="objective", value=limit, unit=SECONDS, origin="objectives.ttft"),
        ),
    )


def _tells_age(policy: ScalingPolicy) -> bool:
    """Whether some signal tells how long the oldest request has waited."""
    return through_gateway(policy) or any(
        isinstance(signal, Prometheus) and signal.measures is Measures.QUEUE_AGE_SECONDS
        for signal in policy.spec.signals
    )


def _drain_beyond_queue(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    drain, refused = policy.spec.serving.queue_drain_seconds, patience(policy, subject.assumptions)
    if drain > refused:
        yield Finding(
            code=Code.DRAIN_SLOWER_THAN_QUEUE,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "serving", "queueDrainSeconds"),
            message=(
                f"a queue may take {drain} s to drain, and the gateway refuses what has waited for {refused} s: the"
                " requests at its end may be turned away, and the objective asks for no more"
            ),
            hint=f"queueDrainSeconds: {refused} or less promotes more for the same queue",
            terms=(
                Term(name="drain", value=float(drain), unit=SECONDS, origin="serving.queueDrainSeconds"),
                patience_term(policy, subject.assumptions),
            ),
        )
