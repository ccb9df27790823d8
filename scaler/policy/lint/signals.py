"""Whether signals can tell what a policy needs to know: of any demand, of the first request, and with the right query."""

import math
from collections.abc import Iterator
from typing import Final

from scaler.policy.lint import queries
from scaler.policy.lint.codes import Code
from scaler.policy.lint.delays import sees_demand
from scaler.policy.lint.findings import Finding, Place, Severity
from scaler.policy.lint.selection import everybodys
from scaler.policy.lint.shares import Share, share_in
from scaler.policy.lint.subject import Subject, most_serving
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import Measures, Prometheus, RedisSignal

_SERVING_LABEL: Final = "serving_emberpool_dev_"
"""How kube-state-metrics writes the label that puts a resident into rotation, up to the policy's name."""
_COUNTS: Final = frozenset({Measures.REQUESTS, Measures.QUEUE_DEPTH})
"""What is a number of requests."""
_CHANGES: Final = ("rate", "irate", "increase", "delta", "deriv")
"""Functions that give a change over time."""


def signal_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy's signals."""
    for policy in subject.policies.policies.values():
        yield from _unseen(policy)
        for index, signal in enumerate(policy.spec.signals):
            if isinstance(signal, Prometheus):
                yield from _query(subject, policy, index, signal)
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


def _query(subject: Subject, policy: ScalingPolicy, index: int, signal: Prometheus) -> Iterator[Finding]:
    place = Place.of(policy, "spec", "signals", index, "query")
    for name, instead in queries.gone(signal.query):
        yield Finding(
            code=Code.METRIC_GONE,
            severity=Severity.WARNING,
            place=place,
            message=f"vLLM has no {name} any more",
            hint=f"it is {instead} now" if instead else "nothing took its place",
        )
    if signal.measures is Measures.TTFT_SHARE_OVER_OBJECTIVE:
        yield from _share(policy, place, signal.query)
        return
    share = share_in(signal.query) if signal.measures in _COUNTS else None
    if share is not None and _falls_short(subject, policy, share):
        yield _no_count(policy, index, share)
        return
    if share is None and signal.measures in _COUNTS and queries.calls(signal.query, *_CHANGES):
        yield Finding(
            code=Code.QUERY_IS_RATE,
            severity=Severity.WARNING,
            place=place,
            message=f"answers with a change over time, and measures {signal.measures} is a number of requests at a moment",
            hint=f"read a gauge: {_gauge(policy, signal.measures)}",
        )
    yield from _others(policy, place, signal.query)


def _falls_short(subject: Subject, policy: ScalingPolicy, share: Share) -> bool:
    """Whether a share is too small to ask for all residents that there may be; one that is scaled up may be meant so."""
    if share.most <= 1.0:
        return True
    target = _target(policy)
    return share.most <= target if share.summed else _asked(share, target) < most_serving(subject, policy)


def _target(policy: ScalingPolicy) -> int:
    """Return how many requests a resident holds on the fleet where it holds the fewest: for that one most are asked for."""
    return min(each.target_in_flight for each in policy.spec.fleets)


def _asked(share: Share, target: int) -> int:
    return max(0, math.ceil(share.most / target))


def _no_count(policy: ScalingPolicy, index: int, share: Share) -> Finding:
    """A share where a count is meant."""
    signal, target = policy.spec.signals[index], _target(policy)
    assert isinstance(signal, Prometheus)
    if share.ratio:
        limit = "it tells how two numbers compare, and not how large they are"
    elif share.summed:
        limit = f"no series passes {share.most:g}, and at targetInFlight {target} it never asks for more residents than series"
    else:
        asked = _residents(_asked(share, target))
        limit = f"it never passes {share.most:g}, which asks for {asked} at targetInFlight {target}"
    return Finding(
        code=Code.QUERY_IS_SHARE,
        severity=Severity.WARNING,
        place=Place.of(policy, "spec", "signals", index, "query"),
        message=f"{share.what}, and measures {signal.measures} is a number of requests: {limit}",
        hint=f"read a gauge that counts: {_gauge(policy, signal.measures)}",
    )


def _residents(number: int) -> str:
    return f"{number} resident{'' if number == 1 else 's'}"


def _gauge(policy: ScalingPolicy, measures: Measures) -> str:
    """Name the gauge that a query should read."""
    if measures is Measures.QUEUE_DEPTH:
        return "that of what waits before the engines"
    model = f'{{model_name="{policy.models[0]}"}}'
    return f"sum(vllm:num_requests_running{model}) + sum(vllm:num_requests_waiting{model})"


def _others(policy: ScalingPolicy, place: Place, query: str) -> Iterator[Finding]:
    """Series of everybody, but for those that have the policy's own name in theirs."""
    own = policy.metadata.name.replace("-", "_")
    names = [name for name in everybodys(query) if own not in name]
    if names:
        yield Finding(
            code=Code.QUERY_COUNTS_OTHERS,
            severity=Severity.INFO,
            place=place,
            message=(
                f"reads {' and '.join(names)} of everybody whom this Prometheus scrapes: what other models and namespaces"
                " have counts, too"
            ),
            hint=f"say whose series are meant, such as {_selected(policy, names[0])}",
        )


def _selected(policy: ScalingPolicy, name: str) -> str:
    """Write a metric with the label that says whose it is."""
    if name.startswith(("vllm", "sglang")):
        return f'{name}{{model_name="{policy.models[0]}"}}'
    if name.startswith("emberpool_"):
        return f'{name}{{policy="{policy.metadata.name}"}}'
    return f'{name}{{namespace="{policy.metadata.namespace}"}}'


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
