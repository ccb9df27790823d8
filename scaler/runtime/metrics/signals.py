"""What is counted of each signal that the controller reads, and of its way to them.

The board counts as it takes readings; here it is only shown, when somebody scrapes. Series are there as long as their
signal is in force.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scaler.runtime.metrics import catalogue
from warmpool.metric_families import GroupMetric, RowMetric, counter, empty


@dataclass(frozen=True, slots=True)
class Read:
    """What came of reading one signal so far.

    Attributes:
        policy: its policy.
        signal: its name.
        counts: readings by outcome, in the order of the label's values.
        last_at: Unix time at which its newest number was true; 0 before the first.
    """

    policy: str
    signal: str
    counts: tuple[float, ...]
    last_at: float


class SignalMetrics(Collector):
    """The metrics of signals.

    Args:
        registry: where the families are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read: Callable[[], Iterable[Read]] = tuple
        self._restarts = counter(catalogue.SOURCE_RESTARTS, registry)
        self._channel: float | None = None
        for each in catalogue.READ_TYPES:
            self._restarts.labels(each)
        registry.register(self)

    def watch(self, read: Callable[[], Iterable[Read]]) -> None:
        """Show what `read` returns at each scrape."""
        self._read = read

    def restarted(self, type_: str) -> None:
        """Count a source that crashed, by its type."""
        self._restarts.labels(type_).inc()

    def listens(self, connected: bool) -> None:  # noqa: FBT001 - a listener's only fact
        """Note whether samples over Redis are listened to."""
        self._channel = float(connected)

    # -------------------------------------------------------------- Collector

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [
            empty(family)
            for family in (
                catalogue.SIGNAL_READINGS,
                catalogue.SIGNAL_LAST_READING,
                catalogue.SIGNAL_CHANNEL,
            )
        ]

    def collect(self) -> Iterator[Metric]:
        """Return everything of the signals in force."""
        read = list(self._read())
        yield GroupMetric(
            catalogue.SIGNAL_READINGS, (((each.policy, each.signal), each.counts) for each in read), owners=2
        )
        yield RowMetric(
            catalogue.SIGNAL_LAST_READING, (((each.policy, each.signal), each.last_at) for each in read)
        )
        yield RowMetric(catalogue.SIGNAL_CHANNEL, () if self._channel is None else (((), self._channel),))
