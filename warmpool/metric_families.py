"""What a metric is, as data: the code that counts and the page that explains it are made from the same value.

Each process declares its families in one place, and the rules of a good name are checked when a family is declared.
A family is filled in one of two ways: by an object of the Prometheus client, or by rows that are worked out at the
moment of a scrape.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import Metric, Sample

_NAME = re.compile(r"emberpool(_[a-z0-9]+)+")
_SPELT_UNITS = frozenset({"seconds", "bytes", "ratio", "requests", "residents", "seats"})


class Kind(StrEnum):
    """Prometheus' types of metrics, as far as we use them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """One label and where its values come from.

    Attributes:
        name: as it is exposed.
        source: what bounds its values, in words.
        values: the closed list of its values; empty when they are names that people gave.
    """

    name: str
    source: str
    values: tuple[str, ...] = ()


def listed(name: str, values: Iterable[str], source: str) -> Label:
    """Return a label with a closed list of values."""
    return Label(name, source, tuple(str(value) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family.

    Attributes:
        name: as it is exposed; counters end in `_total`.
        kind: its type.
        help: what it says, for whoever reads the page.
        unit: what one of it is.
        labels: its labels, in order.
        buckets: upper bounds of a histogram, ascending, without infinity.
    """

    name: str
    kind: Kind
    help: str
    unit: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what goes against the conventions.

        Raises:
            ValueError: the name says something else than type and unit, or the buckets don't fit.
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name}: a metric's name is emberpool_ and lower-case words")
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and only they, end in _total")
        if (self.kind is Kind.HISTOGRAM) != bool(self.buckets) or list(self.buckets) != sorted(
            set(self.buckets)
        ):
            raise ValueError(f"{self.name}: histograms, and only they, have buckets, and those ascend")
        if self.kind is not Kind.COUNTER and self.unit in _SPELT_UNITS and self.unit not in self.name:
            raise ValueError(f"{self.name}: it is in {self.unit}, and its name must say so")

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of its labels, in order."""
        return tuple(label.name for label in self.labels)

    @property
    def stem(self) -> str:
        """Its name as the Prometheus client wants it: a counter's without `_total`."""
        return self.name.removesuffix("_total")


# ------------------------------------------------------------------ filled by the Prometheus client


def expose_declared_only() -> None:
    """Leave out the times of creation that the Prometheus client adds to each counter and histogram, in this whole process.

    They are gauges of names that nobody declared. Call once, first thing.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]


def counter(family: Family, registry: CollectorRegistry | None) -> Counter:
    """Make a family's counter; without a registry, for a collector that hands it on."""
    return Counter(family.stem, family.help, family.label_names, registry=registry)


def gauge(family: Family, registry: CollectorRegistry | None) -> Gauge:
    """Make a family's gauge; without a registry, for a collector that hands it on."""
    return Gauge(family.name, family.help, family.label_names, registry=registry)


def histogram(family: Family, registry: CollectorRegistry | None) -> Histogram:
    """Make a family's histogram; without a registry, for a collector that hands it on."""
    return Histogram(family.name, family.help, family.label_names, buckets=family.buckets, registry=registry)


# ------------------------------------------------------------------ filled by rows at a scrape


def number(value: float) -> str:
    """Return a number as the text format writes it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


Row = tuple[tuple[str, ...], float]
"""Values of the labels, in order, and the number."""


class _FoundMetric(Metric):
    """A metric that is worked out when it is read, whole by the Prometheus client or piece by piece by who knows its kind.

    Args:
        family: what it is.
    """

    def __init__(self, family: Family) -> None:
        self._read: list[Sample] | None = None
        self.family = family
        super().__init__(family.stem, family.help, str(family.kind))

    @property
    def samples(self) -> list[Sample]:
        """Everything at once, as the Prometheus client wants it."""
        if self._read is None:
            self._read = list(self._found())
        return self._read

    @samples.setter
    def samples(self, samples: list[Sample]) -> None:
        """Ignore the empty list that the base class begins with."""

    def _found(self) -> Iterator[Sample]:
        """Work it out; done once."""
        raise NotImplementedError


class RowMetric(_FoundMetric):
    """A gauge or counter filled by rows, which are worked out one by one as they are read.

    A reader may pause between rows, and between the steps of the work that comes before them.

    Args:
        family: what the rows are of.
        found: the rows; they can be read once.
        work: what must be done before the first row can be read, step by step.
    """

    def __init__(self, family: Family, found: Iterable[Row], work: Iterable[None] = ()) -> None:
        super().__init__(family)
        self.rows = found
        self.work = work

    def _found(self) -> Iterator[Sample]:
        deque(self.work, maxlen=0)
        names = self.family.label_names
        for values, each in self.rows:
            yield Sample(self.family.name, dict(zip(names, values, strict=True)), each)


Group = tuple[tuple[str, ...], Sequence[float]]
"""Values of the first labels, in order, and one number for every combination of the other ones' closed lists."""


class GroupMetric(_FoundMetric):
    """A gauge or counter with a number for every combination of its last labels, filled one owner at a time.

    It says what a `RowMetric` could, at a quarter of the time: what is the same for all owners is written once.

    Args:
        family: what the numbers are of; its last labels have closed lists.
        found: the groups; they can be read once.
        owners: how many labels, from the first, a group names.
        work: what must be done before the first group can be read, step by step.
    """

    def __init__(
        self, family: Family, found: Iterable[Group], *, owners: int = 1, work: Iterable[None] = ()
    ) -> None:
        super().__init__(family)
        self.groups = found
        self.owners = owners
        self.work = work

    def _found(self) -> Iterator[Sample]:
        deque(self.work, maxlen=0)
        names, rest = self.family.label_names, list(combinations(self.family, self.owners))
        for owner, numbers in self.groups:
            for values, each in zip(rest, numbers, strict=True):
                yield Sample(self.family.name, dict(zip(names, (*owner, *values), strict=True)), each)


def combinations(family: Family, owners: int) -> Iterator[tuple[str, ...]]:
    """Yield every combination of the closed lists of a family's labels after the first `owners`, as nested loops would."""
    return product(*(label.values for label in family.labels[owners:]))


@dataclass(frozen=True, slots=True)
class Measured:
    """One child of a histogram.

    Attributes:
        values: values of the labels, in order.
        counts: how many fell into each bucket, infinity last; not added up.
        measured: how many there are in all.
        total: sum of what was measured.
    """

    values: tuple[str, ...]
    counts: Sequence[int]
    measured: int
    total: float


class MeasuredMetric(_FoundMetric):
    """A histogram filled by its children, which are worked out one by one as they are read.

    Args:
        family: what they are of.
        children: they can be read once.
    """

    def __init__(self, family: Family, children: Iterable[Measured]) -> None:
        super().__init__(family)
        self.children = children

    def _found(self) -> Iterator[Sample]:
        for child in self.children:
            yield from self._child(child)

    def _child(self, child: Measured) -> Iterator[Sample]:
        labels = dict(zip(self.family.label_names, child.values, strict=True))
        for edge, below in zip(edges(self.family), accumulate(child.counts), strict=True):
            yield Sample(f"{self.family.name}_bucket", {**labels, "le": edge}, below)
        yield Sample(f"{self.family.name}_count", labels, sum(child.counts))
        yield Sample(f"{self.family.name}_sum", labels, child.total)


def edges(family: Family) -> list[str]:
    """Return a histogram's values of the label `le`."""
    return [*map(number, family.buckets), "+Inf"]


def empty(family: Family) -> Metric:
    """Return a family's name and type, as a collector's `describe` wants them."""
    return Metric(family.stem, family.help, str(family.kind))
