"""Whether objectives can be kept and read: histograms' buckets, promotions, signals, and the shape of queries."""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from scaler.policy.lint import queries
from scaler.policy.lint.codes import Code
from scaler.policy.lint.delays import sees_demand
from scaler.policy.lint.findings import SECONDS, Finding, Place, Severity, Term
from scaler.policy.lint.subject import Subject
from scaler.policy.lint.times import burst_on_spare
from scaler.policy.scaling_policy import EngineType, Objectives, ScalingPolicy, Serving
from scaler.policy.signals import EngineMetrics, Measures, Prometheus, Pushed, RedisSignal

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
_SERVING_LABEL: Final = "serving_emberpool_dev_"
"""How kube-state-metrics writes the label that puts a resident into rotation, up to the policy's name."""
_COUNTS: Final = frozenset({Measures.REQUESTS, Measures.QUEUE_DEPTH})


def objective_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy's objective and signals."""
    for policy in subject.policies.policies.values():
        yield from _buckets(policy)
        yield from _promotion(subject, policy)
        yield from _drain(policy)
        yield from _unseen(policy)
        for index, signal in enumerate(policy.spec.signals):
            if isinstance(signal, Prometheus):
                yield from _query(policy, index, signal)
            yield from _server(policy, index)


# ------------------------------------------------------------------ the objective


def _objective_place(policy: ScalingPolicy) -> Place:
    ttft = policy.spec.objectives.ttft
    key = "milliseconds" if ttft.milliseconds is not None else "seconds"
    return Place.of(policy, "spec", "objectives", "ttft", key)


def _buckets(policy: ScalingPolicy) -> Iterator[Finding]:
    """A share of requests within the objective is exact on an edge only; between two it is interpolated."""
    limit = policy.spec.objectives.ttft.limit_seconds
    edges = _histograms(policy)
    lacking = [f"{name} ({_around(limit, each)})" for name, each in edges.items() if limit not in each]
    if lacking:
        yield Finding(
            code=Code.OBJECTIVE_BETWEEN_BUCKETS,
            severity=Severity.WARNING,
            place=_objective_place(policy),
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
    if any(isinstance(signal, Pushed) for signal in policy.spec.signals):
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
    return (
        f"the nearest edges are {each}; beyond a histogram's last edge it can't tell how late a request was"
    )


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
            place=_objective_place(policy),
            message=(
                f"{limit:g} s is shorter than the {takes.total:.2f} s after which a burst's first requests are answered by a"
                " promoted resident, at worst"
            ),
            hint="let serving residents bear the start of a burst (serving.min, burst.thresholdPercent), or see it sooner",
            terms=takes.terms,
        )


def _drain(policy: ScalingPolicy) -> Iterator[Finding]:
    """The drain term asks for too little when a drain may take longer than the objective.

    The deadline term makes up for it, where somebody tells how long the oldest request has waited; so nothing is said of
    the two defaults there, nor of a drain that is as short as can be written.
    """
    drain, limit = policy.spec.serving.queue_drain_seconds, policy.spec.objectives.ttft.limit_seconds
    aged = any(
        not isinstance(signal, EngineMetrics | Prometheus)
        or (isinstance(signal, Prometheus) and signal.measures is Measures.QUEUE_AGE_SECONDS)
        for signal in policy.spec.signals
    )
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


# ------------------------------------------------------------------ the signals


def _unseen(policy: ScalingPolicy) -> Iterator[Finding]:
    signals = policy.spec.signals
    if not any(sees_demand(signal, serving=True) for signal in signals):
        yield Finding(
            code=Code.DEMAND_UNSEEN,
            severity=Severity.ERROR,
            place=Place.of(policy, "spec", "signals"),
            message="no signal tells how many requests there are: a share of late first tokens only corrects",
            hint="add {name: gateway, type: Pushed} or {name: engine, type: EngineMetrics}",
        )
    elif policy.spec.serving.min == 0 and not any(sees_demand(signal, serving=False) for signal in signals):
        yield Finding(
            code=Code.FIRST_REQUEST_UNSEEN,
            severity=Severity.ERROR,
            place=Place.of(policy, "spec", "serving", "min"),
            message="with nothing serving, no signal sees the next request: engines that don't serve tell of none",
            hint="add {name: gateway, type: Pushed} or a queue to signals, or set serving.min: 1",
        )


def _server(policy: ScalingPolicy, index: int) -> Iterator[Finding]:
    match policy.spec.signals[index]:
        case Prometheus(server=None):
            flag = "--prometheus"
        case RedisSignal() as signal if signal.server.addresses is None:
            flag = "--redis"
        case _:
            return
    yield Finding(
        code=Code.SERVER_UNNAMED,
        severity=Severity.INFO,
        place=Place.of(policy, "spec", "signals", index, "server"),
        message=f"names no server: it is missing unless the controller is started with {flag}",
        hint=f"start the controller with {flag}, or name a server here",
    )


def _query(policy: ScalingPolicy, index: int, signal: Prometheus) -> Iterator[Finding]:
    place = Place.of(policy, "spec", "signals", index, "query")
    for name, instead in queries.gone(signal.query):
        yield Finding(
            code=Code.METRIC_GONE,
            severity=Severity.WARNING,
            place=place,
            message=f"vLLM has no {name} any more",
            hint=f"it is {instead} now" if instead else "nothing took its place",
        )
    if signal.measures in _COUNTS and queries.calls(
        signal.query, "rate", "irate", "increase", "delta", "deriv"
    ):
        yield Finding(
            code=Code.QUERY_IS_RATE,
            severity=Severity.WARNING,
            place=place,
            message=f"answers with a change over time, and measures {signal.measures} is a number of requests at a moment",
            hint="read a gauge, such as sum(vllm:num_requests_waiting)",
        )
    if signal.measures is Measures.TTFT_SHARE_OVER_OBJECTIVE:
        yield from _share(policy, place, signal.query)


def _share(policy: ScalingPolicy, place: Place, query: str) -> Iterator[Finding]:
    """The share over the objective, from buckets: 1 − (requests within it) / (all requests), of serving residents only."""
    limit = policy.spec.objectives.ttft.limit_seconds
    if queries.calls(query, "histogram_quantile"):
        yield Finding(
            code=Code.QUERY_IN_SECONDS,
            severity=Severity.ERROR,
            place=place,
            message="histogram_quantile answers with seconds, and what is measured is a share from 0 to 1",
            hint=_form(policy),
        )
        return
    found = queries.edges(query)
    if not queries.divides(query) or not found:
        yield Finding(
            code=Code.QUERY_NOT_A_SHARE,
            severity=Severity.WARNING,
            place=place,
            message='doesn\'t divide the requests in a bucket (le="…") by all requests, so it may be no share',
            hint=_form(policy),
        )
    elif not any(math.isclose(edge, limit) for edge in found):
        yield Finding(
            code=Code.QUERY_OTHER_OBJECTIVE,
            severity=Severity.WARNING,
            place=place,
            message=f"asks about {' and '.join(f'{edge:g} s' for edge in found)}, and the objective is {limit:g} s",
            hint=f'le="{limit:g}" or another objective',
        )
    if _SERVING_LABEL not in query:
        yield Finding(
            code=Code.QUERY_COUNTS_PAUSED,
            severity=Severity.WARNING,
            place=place,
            message="counts every resident, also those that only answer proofs and warm-up requests",
            hint=_form(policy),
        )


def _form(policy: ScalingPolicy) -> str:
    """Write the query that would be right, with a join to the pods in rotation by kube-state-metrics' `kube_pod_labels`."""
    limit = float(policy.spec.objectives.ttft.limit_seconds)
    label = _SERVING_LABEL + policy.metadata.name.replace("-", "_")
    metric = "vllm:time_to_first_token_seconds"
    join = f'* on (namespace, pod) group_left () kube_pod_labels{{label_{label}="true"}}'
    return (
        f'1 - sum(rate({metric}_bucket{{le="{limit}"}}[1m]) {join}) / sum(rate({metric}_count[1m]) {join}), with'
        f" kube-state-metrics started with --metric-labels-allowlist=pods=[serving.emberpool.dev/{policy.metadata.name}]"
    )
