"""What is counted of KEDA: its calls, its streams, and what was found about its objects."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scaler.keda.counting import CODES, METHODS, STREAMS
from scaler.keda.findings import Severity
from scaler.runtime.metrics.catalogue import FLEET
from warmpool.metric_families import (
    Family,
    Kind,
    Label,
    RowMetric,
    counter,
    empty,
    histogram,
    listed,
)

MOST_SHOWN: Final = 1024
"""ScaledObjects of which is shown when they asked last; those that are silent longest are left out."""
_METHOD = listed("method", METHODS, "calls of KEDA's external scaler")
_ANSWERED = listed(
    "method", (m for m in METHODS if m not in STREAMS), "calls of KEDA's external scaler that end"
)
_STATES: Final = ("true", "false")

CALLS: Final = Family(
    name="emberpool_keda_calls_total",
    kind=Kind.COUNTER,
    help="Calls of KEDA that ended, by gRPC's status. Streams end OK where this process does, and CANCELLED where KEDA does.",
    unit="calls",
    labels=(_METHOD, listed("code", CODES, "gRPC's statuses by which calls end")),
)
CALL_DURATION: Final = Family(
    name="emberpool_keda_call_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="One call of KEDA, from its head to the answer. Streams aside.",
    unit="seconds",
    labels=(_ANSWERED,),
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
PUSHES: Final = Family(
    name="emberpool_keda_pushes_total",
    kind=Kind.COUNTER,
    help="Messages about activity that were sent on KEDA's streams, repetitions included.",
    unit="messages",
    labels=(listed("active", _STATES, "what was said"),),
)
OPEN_STREAMS: Final = Family(
    name="emberpool_keda_open_streams",
    kind=Kind.GAUGE,
    help="Streams that KEDA has open. An operator has one for each trigger of type external-push.",
    unit="streams",
)
LAST_CALL: Final = Family(
    name="emberpool_keda_last_call_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time at which a ScaledObject asked last, at this replica. Absent before the first call.",
    unit="seconds",
    labels=(Label("scaled_object", f"namespace/name; the {MOST_SHOWN} that asked last"),),
)
FINDINGS: Final = Family(
    name="emberpool_keda_findings",
    kind=Kind.GAUGE,
    help="What is wrong with the ScaledObject and the HPA that size a fleet, by how much it matters; `GET /v1/keda/findings` says "
    "what. Shown by the leader on Kubernetes.",
    unit="findings",
    labels=(FLEET, listed("severity", Severity, "how much it matters")),
)
FAMILIES: Final = (CALLS, CALL_DURATION, PUSHES, OPEN_STREAMS, LAST_CALL, FINDINGS)

LastCalls = Callable[[], Iterable[tuple[str, float]]]
"""Returns namespace/name of ScaledObjects with the Unix time of their last call, the last first."""


class KedaMetrics:
    """Counts calls, as the port `scaler.keda.counting.Counting`.

    Args:
        registry: where the families are registered.
        open_streams: returns how many streams are open.
        last_calls: returns who asked last, and when.
    """

    def __init__(
        self, registry: CollectorRegistry, open_streams: Callable[[], int], last_calls: LastCalls
    ) -> None:
        calls, seconds = counter(CALLS, registry), histogram(CALL_DURATION, registry)
        pushes = counter(PUSHES, registry)
        self._calls = {(method, code): calls.labels(method, code) for method in METHODS for code in CODES}
        self._seconds = {method: seconds.labels(method) for method in METHODS if method not in STREAMS}
        self._pushes = {state: pushes.labels(state) for state in _STATES}
        registry.register(_Asked(open_streams, last_calls))

    def called(self, method: str, code: str, seconds: float) -> None:
        """See `Counting.called`."""
        self._calls[method, code].inc()
        measured = self._seconds.get(method)
        if measured is not None:
            measured.observe(seconds)

    def pushed(self, *, active: bool) -> None:
        """See `Counting.pushed`."""
        self._pushes["true" if active else "false"].inc()


class _Asked(Collector):
    """What is read off the server when somebody scrapes."""

    def __init__(self, open_streams: Callable[[], int], last_calls: LastCalls) -> None:
        self._open_streams = open_streams
        self._last_calls = last_calls

    def describe(self) -> Iterable[Metric]:
        """Return the families."""
        return [empty(OPEN_STREAMS), empty(LAST_CALL)]

    def collect(self) -> Iterator[Metric]:
        """Return what is so now."""
        yield RowMetric(OPEN_STREAMS, [((), float(self._open_streams()))])
        asked = islice(self._last_calls(), MOST_SHOWN)
        yield RowMetric(LAST_CALL, [((name,), at) for name, at in asked])


class FindingMetrics(Collector):
    """Shows what was found, per fleet.

    Args:
        registry: where the family is registered.
        counts: returns per fleet how many findings there are of each severity; fleets that aren't looked at are missing.
    """

    def __init__(
        self, registry: CollectorRegistry, counts: Callable[[], Mapping[str, Mapping[Severity, int]]]
    ) -> None:
        self._counts = counts
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the family."""
        return [empty(FINDINGS)]

    def collect(self) -> Iterator[Metric]:
        """Return what is so now."""
        yield RowMetric(
            FINDINGS,
            [
                ((fleet, str(severity)), float(found.get(severity, 0)))
                for fleet, found in self._counts().items()
                for severity in Severity
            ],
        )
