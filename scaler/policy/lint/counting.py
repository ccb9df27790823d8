"""What a policy's signals would count twice.

Demand is queued + max(in flight, engines), and each of the three is the highest that any signal says (`scaler.core.demand`,
`scaler.signals.board`). So signals that say the same of the same requests never add up; a signal does that tells as queued
what another one tells as in flight or of engines. Work queues add up whatever they are.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from scaler.policy.lint import queries
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import Finding, Place, Severity
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import (
    EngineMetrics,
    Measures,
    Prometheus,
    Pushed,
    RedisSignal,
    RedisStream,
    Signal,
)

_HELD: Final = "requests that wait at the gateway"
_WAITING: Final = "requests that wait in engines"
_RUNNING: Final = "requests that engines work on"
_HELD_ONLY: Final = frozenset({_HELD})
_SENT: Final = frozenset({_WAITING, _RUNNING})

_METRICS: Final[Mapping[str, frozenset[str]]] = {
    "num_requests_waiting": frozenset({_WAITING}),
    "num_requests_waiting_by_reason": frozenset({_WAITING}),
    "num_requests_running": frozenset({_RUNNING}),
    "num_queue_reqs": frozenset({_WAITING}),
    "num_grammar_queue_reqs": frozenset({_WAITING}),
    "num_running_reqs": frozenset({_RUNNING}),
    "tgi_queue_size": frozenset({_WAITING}),
    "tgi_batch_current_size": frozenset({_RUNNING}),
    "dynamo_frontend_queued_requests": frozenset({_WAITING}),
    "dynamo_frontend_active_requests": _SENT,
    "dynamo_frontend_inflight_requests": _SENT,
    "emberpool_gateway_queue_requests": frozenset({_HELD}),
    "emberpool_gateway_in_flight_requests": _SENT,
    "emberpool_demand_requests": frozenset({_HELD, *_SENT}),
}
"""Whom the gauges of engines (`scaler.signals.engine_page`), of the gateway (`scaler.gateway.observe`) and of the controller
count, without an engine's prefix."""
_PREFIXES: Final = ("vllm:", "vllm_", "sglang:", "sglang_", "trtllm_")


def counting_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what every policy's signals count twice."""
    for policy in subject.policies.policies.values():
        yield from _requests(policy)
        yield from _work(policy)


def _requests(policy: ScalingPolicy) -> Iterator[Finding]:
    """Each query that tells of requests which another signal tells of on the other side of the sum.

    What waits at the gateway belongs on the side of what is queued, and what engines have on the other; where two signals
    overlap, the one is at fault that has something on the wrong side.
    """
    signals = policy.spec.signals
    for index, signal in enumerate(signals):
        if not isinstance(signal, Prometheus):
            continue
        if signal.measures is Measures.QUEUE_DEPTH:
            misplaced, other_side = _queued(signal) - _HELD_ONLY, _busy
        else:
            misplaced, other_side = _busy(signal) & _HELD_ONLY, _queued
        twice = {
            other.name: shared
            for other in signals
            if other is not signal and (shared := misplaced & other_side(other))
        }
        if twice:
            whom = " and ".join(sorted(frozenset[str]().union(*twice.values())))
            yield Finding(
                code=Code.COUNTED_TWICE,
                severity=Severity.WARNING,
                place=Place.of(policy, "spec", "signals", index, "measures"),
                message=f"{whom} count as {signal.measures} here and in signal {', '.join(twice)} too, and the two are added",
                hint=(
                    f"remove the signal, or measure {Measures.REQUESTS} with all that engines have"
                    if signal.measures is Measures.QUEUE_DEPTH
                    else "remove the signal, or leave what waits at the gateway out of its query"
                ),
            )


def _queued(signal: Signal) -> frozenset[str]:
    """Return whom a signal tells of as queued."""
    match signal:
        case Pushed():
            return _HELD_ONLY
        case Prometheus(measures=Measures.QUEUE_DEPTH):
            return _counted(signal.query)
        case _:
            return frozenset()


def _busy(signal: Signal) -> frozenset[str]:
    """Return whom a signal tells of as in flight, or of engines."""
    match signal:
        case Pushed() | EngineMetrics():
            return _SENT
        case Prometheus(measures=Measures.REQUESTS):
            return _counted(signal.query)
        case _:
            return frozenset()


def _counted(query: str) -> frozenset[str]:
    """Return whom a query counts, by the gauges that it names; nobody if it takes something off, which could be anything."""
    if queries.subtracts(query):
        return frozenset()
    return frozenset[str]().union(*(_METRICS.get(_bare(name), frozenset()) for name in queries.names(query)))


def _bare(name: str) -> str:
    prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
    return name.removeprefix(prefix)


def _work(policy: ScalingPolicy) -> Iterator[Finding]:
    """The same queue in Redis under two names."""
    first: dict[tuple[object, ...], str] = {}
    for index, signal in enumerate(policy.spec.signals):
        if not isinstance(signal, RedisSignal):
            continue
        name = first.setdefault(_identity(signal), signal.name)
        if name != signal.name:
            yield Finding(
                code=Code.COUNTED_TWICE,
                severity=Severity.WARNING,
                place=Place.of(policy, "spec", "signals", index, "key"),
                message=f"entries of {signal.key} count in signal {name} too, and queues of work are added",
                hint="remove one of the two",
            )


def _identity(signal: RedisSignal) -> tuple[object, ...]:
    """Return which entries a signal counts; groups of one stream have work of their own."""
    server = signal.server
    group = signal.group if isinstance(signal, RedisStream) else None
    addresses = None if server.addresses is None else frozenset(server.addresses)
    return (type(signal), signal.key, group, addresses, server.database, server.sentinel_master)
