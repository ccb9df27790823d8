"""What the gateway tells others: hooks for the runtime, and its own metrics.

Times in hooks are Unix times. Hooks are called in the request's path, so they must be quick and must not raise.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scaler.gateway.queue import PolicyStats
from scaler.gateway.routes import Endpoint, Failure
from warmpool.metric_families import (
    Family,
    Kind,
    Label,
    Measured,
    MeasuredMetric,
    RowMetric,
    counter,
    empty,
    listed,
)
from warmpool.seats import PolicyName


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "Completed"
    """Answered in full with a status below 400."""
    CLIENT_ERROR = "ClientError"
    """The engine's 3xx or 4xx was passed on."""
    ENGINE_ERROR = "EngineError"
    """Engines failed it as often as may be; the client got the last 5xx, or 502."""
    REFUSED = "Refused"
    """503: the queue was full."""
    EXPIRED = "Expired"
    """503: it had waited as long as it may."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """503: no content within the request's deadline."""
    CUT = "Cut"
    """The stream broke after its first content."""
    STALLED = "Stalled"
    """The client took nothing for too long; its connection was closed."""
    ABANDONED = "Abandoned"
    """The client went away, after its first content or while it had waited no longer than its policy promises."""
    ABANDONED_WAITING = "AbandonedWaiting"
    """The client went away without any content, after a longer wait than its policy promises."""
    GONE = "Gone"
    """503: its policy left the gateway's table while it waited."""
    CLOSED = "Closed"
    """503: the gateway ended and its time to finish was over."""
    INVALID = "Invalid"
    """Never got as far as a policy: bad JSON, unknown model, too large."""
    UNAUTHORIZED = "Unauthorized"
    """401: it showed no key of the gateway's list."""
    OVERLOADED = "Overloaded"
    """503: all bodies together were as large as they may be; it wasn't read as far as its model."""
    UNROUTED = "Unrouted"
    """503: the gateway has got no routes since it began."""
    DRAINING = "Draining"
    """503: the gateway takes no new requests."""


class GatewayObserver(Protocol):
    """What the runtime wants to know of each request."""

    def first_content(
        self, policy: PolicyName, endpoint: Endpoint, dispatched_at: float, at: float, queued_before: float
    ) -> None:
        """An endpoint brought a request's first content.

        Args:
            policy: the request's policy.
            endpoint: who answered.
            dispatched_at: Unix time at which the request got its slot there.
            at: Unix time of the first content.
            queued_before: seconds that it had waited in the queue before; 0.0 when it went straight through.
        """

    def finished(
        self, policy: PolicyName, outcome: Outcome, *, endpoint: Endpoint | None, at: float, seconds: float
    ) -> None:
        """A request ended.

        Args:
            policy: the request's policy.
            outcome: how.
            endpoint: who answered or tried last; None when it got no slot.
            at: Unix time.
            seconds: time since it had been received whole.
        """


class SilentObserver:
    """An observer for a gateway that runs alone."""

    def first_content(
        self, policy: PolicyName, endpoint: Endpoint, dispatched_at: float, at: float, queued_before: float
    ) -> None:
        """Ignore it."""

    def finished(
        self, policy: PolicyName, outcome: Outcome, *, endpoint: Endpoint | None, at: float, seconds: float
    ) -> None:
        """Ignore it."""


# ------------------------------------------------------------------ the catalogue

_POLICY = Label("policy", "the policies that the gateway routes")
_OUTCOME_SOURCE = "how a request may end"
_LATENCY_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)


def _gauge(name: str, text: str, unit: str, *labels: Label) -> Family:
    return Family(name=f"emberpool_gateway_{name}", kind=Kind.GAUGE, help=text, unit=unit, labels=labels)


def _counter(name: str, text: str, unit: str, *labels: Label) -> Family:
    return Family(
        name=f"emberpool_gateway_{name}_total", kind=Kind.COUNTER, help=text, unit=unit, labels=labels
    )


def _latency(name: str, text: str, buckets: tuple[float, ...]) -> Family:
    return Family(
        name=f"emberpool_gateway_{name}_seconds",
        kind=Kind.HISTOGRAM,
        help=text,
        unit="seconds",
        labels=(_POLICY,),
        buckets=buckets,
    )


_QUEUED = _gauge("queue_requests", "Requests that wait for an endpoint.", "requests", _POLICY)
_QUEUED_BYTES = _gauge("queue_bytes", "Bytes of the bodies that wait.", "bytes", _POLICY)
_QUEUE_AGE = _gauge(
    "queue_age_seconds", "How long the oldest request has waited; 0 when none waits.", "seconds", _POLICY
)
_IN_FLIGHT = _gauge(
    "in_flight_requests", "Requests sent to an endpoint and not finished.", "requests", _POLICY
)
_HELD = _gauge(
    "held_bytes",
    "Bytes of all bodies that the gateway holds: those that it still receives, those that wait, and those that were sent "
    "and have no content yet.",
    "bytes",
)
_MAX_HELD = _gauge(
    "max_held_bytes",
    "Bytes of bodies that the gateway may hold at once; a request that exceeds them ends as Overloaded.",
    "bytes",
)
_ENDPOINTS = _gauge(
    "endpoints",
    "Residents in rotation, by whether they get requests or are left alone for a while after a failure.",
    "endpoints",
    _POLICY,
    listed("state", ("Open", "LeftAlone"), "whether they get requests"),
)
_CONNECTIONS = _gauge("connections", "Clients' connections that are open.", "connections")
_REFUSED_CONNECTIONS = _counter(
    "refused_connections",
    "Connections that were refused because there were as many as may be.",
    "connections",
)
_ARRIVED = _counter(
    "arrived_requests",
    "Requests that came for the policy, refused ones included; those that wait or are in flight haven't ended yet.",
    "requests",
    _POLICY,
)
_REQUESTS = _counter(
    "requests",
    "Requests by how they ended. The policy is empty for one that never got as far as its model.",
    "requests",
    Label("policy", "the policies that the gateway routes, and empty"),
    listed("outcome", Outcome, _OUTCOME_SOURCE),
)
_RETRIES = _counter(
    "retries",
    "Attempts that failed before any content and were followed by another.",
    "attempts",
    _POLICY,
    listed("failure", Failure, "how an attempt may fail"),
)
_TTFT = _latency(
    "time_to_first_token",
    "From the request received whole to its first content, waiting included.",
    _LATENCY_BUCKETS,
)
_WAITS = _latency("queue_wait", "How long requests waited before they got a slot.", _LATENCY_BUCKETS)
_ITL = _latency("inter_token_latency", "Time between pieces of content of one stream.", _ITL_BUCKETS)
_SAMPLES = _counter(
    "samples",
    "Samples pushed to controllers, by whether they arrived.",
    "samples",
    Label("controller", "the controllers in the gateway's settings"),
    listed("outcome", ("Delivered", "Failed"), "arrived or not"),
)

FAMILIES: tuple[Family, ...] = (
    *(_QUEUED, _QUEUED_BYTES, _QUEUE_AGE, _IN_FLIGHT, _HELD, _MAX_HELD),
    *(_ENDPOINTS, _CONNECTIONS, _REFUSED_CONNECTIONS),
    *(_ARRIVED, _REQUESTS, _RETRIES, _TTFT, _WAITS, _ITL, _SAMPLES),
)
"""Everything that a gateway exposes."""

_NOWHERE = PolicyName("")
"""Stands for the policy of a request that never got as far as one."""


class Times:
    """A histogram of seconds, of one policy. Streams pay for each piece of theirs, so it counts in a plain list.

    Args:
        buckets: their upper edges.

    Attributes:
        counts: measurements by bucket.
        total: seconds of all of them.
    """

    __slots__ = ("_buckets", "counts", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Take one measurement."""
        self.counts[bisect_left(self._buckets, seconds)] += 1
        self.total += seconds


class _TimesOfAll:
    """A histogram of seconds per policy.

    Args:
        family: what it is.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._times: dict[PolicyName, Times] = {}

    def of(self, policy: PolicyName) -> Times:
        """Return a policy's, with zeros if it has none yet."""
        times = self._times.get(policy)
        if times is None:
            times = self._times[policy] = Times(self._family.buckets)
        return times

    def end(self, policy: PolicyName) -> None:
        """Forget a policy."""
        self._times.pop(policy, None)

    def metric(self) -> MeasuredMetric:
        """Return everything."""
        return MeasuredMetric(
            self._family,
            (
                Measured(values=(name,), counts=each.counts, measured=sum(each.counts), total=each.total)
                for name, each in self._times.items()
            ),
        )


class Holding(Protocol):
    """What bodies the gateway holds."""

    @property
    def held_bytes(self) -> int:
        """Size of all bodies that are held at present."""

    @property
    def max_held_bytes(self) -> int:
        """Size of all bodies that may be held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What the gateway has on both of its sides at one moment.

    Attributes:
        endpoints: for each policy how many endpoints in rotation get requests, and how many are left alone.
        connections: clients' connections that are open.
        refused: connections that were refused since it began.
    """

    endpoints: Mapping[PolicyName, tuple[int, int]]
    connections: int
    refused: int


class GatewayMetrics(Collector):
    """The gateway's metrics, as one collector on one registry.

    Queue and flight are read at the moment of a scrape, so that requests pay nothing for them. At the same moment every
    policy that is routed gets all its series, zeros included, and those of a policy that is gone go.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        read: Callable[[], Mapping[PolicyName, PolicyStats]],
        holding: Holding,
        sides: Callable[[], Sides],
    ) -> None:
        """Register all metrics; at a scrape `read` gives every policy's numbers, `holding` what is held, `sides` the rest."""
        self._registry = registry
        self._read = read
        self._holding = holding
        self._sides = sides
        self._requests = counter(_REQUESTS, None)
        self._retries = counter(_RETRIES, None)
        self._ttft = _TimesOfAll(_TTFT)
        self._waits = _TimesOfAll(_WAITS)
        self._itl = _TimesOfAll(_ITL)
        self._samples = counter(_SAMPLES, None)
        self._shown: AbstractSet[PolicyName] = frozenset()
        self._told: set[PolicyName] = set()
        self._begin({_NOWHERE})
        registry.register(self)

    def close(self) -> None:
        """Take everything off the registry, so that another gateway may use it."""
        self._registry.unregister(self)

    def finished(self, policy: PolicyName | None, outcome: Outcome) -> None:
        """Count a request's end; the policy is None when it never got that far."""
        self._requests.labels(policy or _NOWHERE, outcome.value).inc()
        if policy:
            self._told.add(policy)

    def retried(self, policy: PolicyName, failure: Failure) -> None:
        """Count an attempt that another one follows."""
        self._retries.labels(policy, failure.value).inc()

    def first_content(self, policy: PolicyName, *, ttft: float, waited: float) -> None:
        """Record a request's time to first token and its wait, in seconds."""
        self._ttft.of(policy).add(ttft)
        self._waits.of(policy).add(waited)
        self._told.add(policy)

    def gaps(self, policy: PolicyName) -> Times:
        """Return where the gaps between pieces of content of a policy's streams are counted, in seconds."""
        return self._itl.of(policy)

    def sample(self, controller: str, *, delivered: bool) -> None:
        """Count a push."""
        self._samples.labels(controller, "Delivered" if delivered else "Failed").inc()

    # -------------------------------------------------------------- Collector

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [empty(family) for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Return everything."""
        stats = self._read()
        self._begin(stats.keys() | self._told)  # a request may end after its policy has gone
        self._end((self._shown | self._told) - stats.keys())
        self._shown, self._told = frozenset(stats), set()
        yield RowMetric(_QUEUED, [((name,), each.queued) for name, each in stats.items()])
        yield RowMetric(_QUEUED_BYTES, [((name,), each.queued_bytes) for name, each in stats.items()])
        yield RowMetric(_QUEUE_AGE, [((name,), each.oldest_wait_seconds) for name, each in stats.items()])
        yield RowMetric(_IN_FLIGHT, [((name,), each.in_flight) for name, each in stats.items()])
        yield RowMetric(_ARRIVED, [((name,), each.totals.arrived) for name, each in stats.items()])
        yield RowMetric(_HELD, [((), self._holding.held_bytes)])
        yield RowMetric(_MAX_HELD, [((), self._holding.max_held_bytes)])
        yield from self._on_both_sides()
        yield from (each.metric() for each in (self._ttft, self._waits, self._itl))
        for each in (self._requests, self._retries, self._samples):
            yield from each.collect()

    def _on_both_sides(self) -> Iterator[Metric]:
        sides = self._sides()
        endpoints = []
        for name, (opened, alone) in sides.endpoints.items():
            endpoints += [((name, "Open"), opened), ((name, "LeftAlone"), alone)]
        yield RowMetric(_ENDPOINTS, endpoints)
        yield RowMetric(_CONNECTIONS, [((), sides.connections)])
        yield RowMetric(_REFUSED_CONNECTIONS, [((), sides.refused)])

    def _begin(self, policies: AbstractSet[PolicyName]) -> None:
        """Make the series of policies that have none yet."""
        for policy in policies - self._shown:
            for outcome in Outcome:
                self._requests.labels(policy, outcome.value)
            if policy == _NOWHERE:
                continue
            for failure in Failure:
                self._retries.labels(policy, failure.value)
            for measured in (self._ttft, self._waits, self._itl):
                measured.of(policy)

    def _end(self, policies: AbstractSet[PolicyName]) -> None:
        """Drop the series of policies that aren't routed any more."""
        for policy in policies:
            for outcome in Outcome:
                self._requests.remove(policy, outcome.value)
            for failure in Failure:
                self._retries.remove(policy, failure.value)
            for measured in (self._ttft, self._waits, self._itl):
                measured.end(policy)
