"""What is shown of marks on nodes and single GPUs: how many are excluded, and whether a breaker holds others back."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

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
    help=(
        "1 while nodes or single GPUs that should be excluded aren't, because too many were within the window. Shown by the leader on "
        "Kubernetes."
    ),
    unit="boolean",
)
EXCLUDED_GPUS: Final = Family(
    name="emberpool_excluded_gpus",
    kind=Kind.GAUGE,
    help="GPUs that Emberpool's device taints keep the scheduler from, their nodes' others not. Shown by the leader on Kubernetes.",
    unit="GPUs",
)
NAMELESS: Final = Family(
    name="emberpool_nameless_bad_gpus",
    kind=Kind.GAUGE,
    help=(
        "Bad GPUs that should be excluded by themselves and that DRA doesn't hand out: what no seat holds isn't kept from anybody. Shown "
        "by the leader on Kubernetes."
    ),
    unit="GPUs",
)
FAMILIES: Final = (EXCLUDED, TRIPPED, EXCLUDED_GPUS, NAMELESS)


class Marked(NamedTuple):
    """How nodes and GPUs stand, in the order of the families.

    Attributes:
        nodes: excluded nodes.
        tripped: a breaker holds others back, of nodes or of GPUs.
        gpus: GPUs that are excluded by themselves.
        nameless: Bad GPUs that can't be, because DRA doesn't hand them out.
    """

    nodes: int
    tripped: bool
    gpus: int
    nameless: int


class NodeMarkMetrics(Collector):
    """Shows the marks.

    Args:
        registry: where the families are registered.
        counts: returns how nodes and GPUs stand; None where this process doesn't lead.
    """

    def __init__(self, registry: CollectorRegistry, counts: Callable[[], Marked | None]) -> None:
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
