"""What a gateway's page says of the pods that it watches."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scaler.runtime.metrics import catalogue
from scaler.runtime.pod_follower import PodFollower
from warmpool.metric_families import RowMetric, empty


class PodMetrics(Collector):
    """Says it at the moment of a scrape, so that an age grows while nothing else does.

    Args:
        follower: watches the pods.
    """

    def __init__(self, follower: PodFollower) -> None:
        self._follower = follower

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [empty(family) for family in catalogue.POD_FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Return everything."""
        follower = self._follower
        age = follower.age
        yield RowMetric(catalogue.PODS_SYNCED, [((), age is not None)])
        yield RowMetric(catalogue.PODS_AGE, [] if age is None else [((), age)])
        yield RowMetric(catalogue.PODS_SEATS, [((), follower.seats)])
        yield RowMetric(catalogue.PODS_WITHOUT_PORT, [((), len(follower.unreached))])
        yield RowMetric(catalogue.PODS_RESTARTS, [((), follower.restarts)])
