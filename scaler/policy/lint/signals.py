"""Whether signals can tell what a policy needs to know: of any demand, of the first request, and with the right query."""

import math
from collections.abc import Iterator
from typing import Final

from scaler.policy.lint import queries
from scaler.policy.lint.codes import Code
from scaler.policy.lint.delays import sees_demand
from scaler.policy.lint.findings import Finding, Place, Severity
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import Measures, Prometheus, RedisSignal

_SERVING_LABEL: Final = "serving_emberpool_dev_"
"""How kube-state-metrics writes the label that puts a resident into rotation, up to the policy's name."""
_GAUGES: Final = {
    Measures.REQUESTS: "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)",
    Measures.QUEUE_DEPTH: "that of what waits before the engines",
}
"""The gauge to read in place of a rate."""


def signal_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy's signals."""
    for policy in subject.policies.policies.values():
        yield from _unseen(policy)
        for index, signal in enumerate(policy.spec.signals):
            if isinstance(signal, Prometheus):
                yield from _query(policy, index, signal)
            yield from _server(policy, index)


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
    if signal.measures in _GAUGES and queries.calls(
        signal.query, "rate", "irate", "increase", "delta", "deriv"
    ):
        yield Finding(
            code=Code.QUERY_IS_RATE,
            severity=Severity.WARNING,
            place=place,
            message=f"answers with a change over time, and measures {signal.measures} is a number of requests at a moment",
            hint=f"read a gauge: {_GAUGES[signal.measures]}",
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
