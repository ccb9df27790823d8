"""What the gateway tells others: hooks for the runtime, and its own metrics.

Times in hooks are Unix times. Hooks are called in the request's path, so they must be quick and must not raise.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scaler.gateway.queue import PolicyStats
from scaler.gateway.routes import Endpoint, Failure
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
    """The client went away."""
    CLOSED = "Closed"
    """503: the gateway ended and its time to finish was over."""
    INVALID = "Invalid"
    """Never got as far as a policy: bad JSON, unknown model, too large."""
    OVERLOADED = "Overloaded"
    """503: all bodies together were as large as they may be; it wasn't read as far as its model."""
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


_TTFT_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
_ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)


class _Gauges(Collector):
    """Reads queue and flight at the moment of a scrape, so that requests pay nothing for them."""

    def __init__(self, read: Callable[[], Mapping[PolicyName, PolicyStats]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        queued = _gauge("queue_requests", "Requests that wait for an endpoint.")
        size = _gauge("queue_bytes", "Bytes of the bodies that wait.")
        age = _gauge("queue_age_seconds", "Age of the oldest request that waits.")
        flight = _gauge("in_flight_requests", "Requests sent to an endpoint and not finished.")
        for policy, stats in self._read().items():
            queued.add_metric([policy], stats.queued)
            size.add_metric([policy], stats.queued_bytes)
            age.add_metric([policy], stats.oldest_wait_seconds)
            flight.add_metric([policy], stats.in_flight)
        return (queued, size, age, flight)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"emberpool_gateway_{name}", text, labels=["policy"])


class GatewayMetrics:
    """The gateway's metrics on one registry, all with the prefix `emberpool_gateway_`."""

    def __init__(
        self, registry: CollectorRegistry, read: Callable[[], Mapping[PolicyName, PolicyStats]]
    ) -> None:
        """Register all metrics; `read` gives every policy's numbers at a scrape."""
        self._registry = registry
        self._gauges = _Gauges(read)
        self._requests = Counter(
            "emberpool_gateway_requests", "Requests by outcome.", ["policy", "outcome"], registry=registry
        )
        self._retries = Counter(
            "emberpool_gateway_retries",
            "Attempts that failed and were followed by another.",
            ["policy", "failure"],
            registry=registry,
        )
        self._ttft = Histogram(
            "emberpool_gateway_time_to_first_token_seconds",
            "From the request received whole to the first content, queueing included.",
            ["policy"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._waits = Histogram(
            "emberpool_gateway_queue_wait_seconds",
            "How long requests waited before they got a slot.",
            ["policy"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._itl = Histogram(
            "emberpool_gateway_inter_token_latency_seconds",
            "Time between pieces of content of one stream.",
            ["policy"],
            buckets=_ITL_BUCKETS,
            registry=registry,
        )
        self._samples = Counter(
            "emberpool_gateway_samples",
            "Samples pushed to controllers.",
            ["controller", "outcome"],
            registry=registry,
        )
        registry.register(self._gauges)

    def close(self) -> None:
        """Take everything off the registry, so that another gateway may use it."""
        for collector in (
            *(self._gauges, self._requests, self._retries, self._ttft),
            *(self._waits, self._itl, self._samples),
        ):
            self._registry.unregister(collector)

    def finished(self, policy: PolicyName | None, outcome: Outcome) -> None:
        """Count a request's end; the policy is empty when it never got that far."""
        self._requests.labels(policy or "", outcome.value).inc()

    def retried(self, policy: PolicyName, failure: Failure) -> None:
        """Count an attempt that another one follows."""
        self._retries.labels(policy, failure.value).inc()

    def first_content(self, policy: PolicyName, *, ttft: float, waited: float) -> None:
        """Record a request's time to first token and its wait, in seconds."""
        self._ttft.labels(policy).observe(ttft)
        self._waits.labels(policy).observe(waited)

    def gap(self, policy: PolicyName) -> Callable[[float], None]:
        """Return what records the gaps of one stream, in seconds."""
        return self._itl.labels(policy).observe

    def sample(self, controller: str, *, delivered: bool) -> None:
        """Count a push."""
        self._samples.labels(controller, "Delivered" if delivered else "Failed").inc()
