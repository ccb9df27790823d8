"""What is shown of marks on nodes: how many are excluded, and whether the breaker holds others back."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from warmpool.metric_families import Family, Kind, RowMetric, empty

EXCLUDED: Final = Family(
    name="emberpool_excluded_nodes",
    kind=Kind.GAUGE,
    help="Nodes that have Emberpool's taint, for what is said of their GPUs or by a person's order. Shown by the leader on Kubernetes.",
    unit="nodes",
)
TRIPPED: Final = Family(
    name="emberpool_exclusion_breaker_tripped",
    kind=Kind.GAUGE,
    help="1 while nodes that should be excluded aren't, because too many were within the window. Shown by the leader on Kubernetes.",
    unit="boolean",
)
FAMILIES: Final = (EXCLUDED, TRIPPED)


class NodeMarkMetrics(Collector):
    """Shows the marks.

    Args:
        registry: where the families are registered.
        counts: returns how many nodes are excluded and whether the breaker has tripped; None where this process doesn't lead.
    """

    def __init__(self, registry: CollectorRegistry, counts: Callable[[], tuple[int, bool] | None]) -> None:
        self._counts = counts
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Return the families."""
        return [empty(family) for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Return what is so now."""
        found = self._counts()
        if found is None:
            return
        for family, value in zip(FAMILIES, found, strict=True):
            yield RowMetric(family, [((), float(value))])
