"""What is counted per policy or fleet: kept in plain dictionaries, and turned into rows at a scrape.

The Prometheus client's own counters would do, but for two things: series have to be there from the start and to go with
their policy or fleet, and a page of tens of thousands of series has to be written in slices (`page`).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from math import prod

from warmpool.metric_families import Family, Measured, MeasuredMetric, Row, RowMetric

Key = tuple[str, ...]
"""Values of a family's labels, in order; the first is a policy or a fleet."""
MOST_BLANK_CHILDREN = 1000
"""Children of one histogram that are shown before anything was measured: 55 policies' stages of promotions, 1000 policies
where the policy is the only label. A child is some twenty series."""


class Count:
    """A counter per policy or fleet, and whatever other labels its family has.

    Args:
        family: what is counted.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self._counts: dict[Key, float] = {}

    def add(self, *key: str, by: float = 1.0) -> None:
        """Count up."""
        self._counts[key] = self._counts.get(key, 0.0) + by

    def keep(self, owners: Collection[str]) -> None:
        """Forget every policy or fleet but these."""
        for key in [key for key in self._counts if key[0] not in owners]:
            del self._counts[key]

    def metric(self, owners: Iterable[str]) -> RowMetric:
        """Return every combination of `owners` with the closed lists of the other labels, zeros included."""
        keys = product(owners, *(label.values for label in self.family.labels[1:]))
        return RowMetric(self.family, ((key, self._counts.get(key, 0.0)) for key in keys))


class Distribution:
    """A histogram per policy, and whatever other labels its family has.

    Args:
        family: what is measured.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self._blank = (0,) * (len(family.buckets) + 1)
        self._counts: dict[Key, list[int]] = {}
        self._sums: dict[Key, float] = {}

    def observe(self, *key: str, value: float) -> None:
        """Take one measurement; a bucket holds what is not above its bound."""
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = list(self._blank)
        counts[bisect_left(self.family.buckets, value)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def keep(self, owners: Collection[str]) -> None:
        """Forget every policy but these."""
        for key in [key for key in self._counts if key[0] not in owners]:
            del self._counts[key]
            del self._sums[key]

    def metric(self, owners: Collection[str]) -> MeasuredMetric:
        """Return what was measured of these policies.

        Children that have nothing yet are there too, unless they would be more than `MOST_BLANK_CHILDREN`: then a child
        begins with its first measurement.
        """
        others = [label.values for label in self.family.labels[1:]]
        if len(owners) * prod(map(len, others)) <= MOST_BLANK_CHILDREN:
            keys = list(product(owners, *others))
        else:
            known = frozenset(owners)
            keys = [key for key in self._counts if key[0] in known]
        return MeasuredMetric(self.family, (self._child(key) for key in keys))

    def _child(self, key: Key) -> Measured:
        counts = self._counts.get(key)
        return Measured(key, self._blank if counts is None else tuple(counts), self._sums.get(key, 0.0))


class HeldTime:
    """How long seats were held, by value: the integral of a fleet's counts over time.

    Args:
        family: seat-seconds.
        gpu_family: the same times the GPUs of a seat.
    """

    def __init__(self, family: Family, gpu_family: Family) -> None:
        self._family, self._gpu_family = family, gpu_family
        self._values = family.labels[1].values
        self._seconds: dict[str, list[float]] = {}
        self._gpu_seconds: dict[str, list[float]] = {}
        self._charged: dict[str, list[float]] = {}

    def elapse(self, fleet: str, seats: Iterable[int], seconds: float) -> None:
        """Charge a fleet for `seconds` with so many seats of each value, in the order of the family's label."""
        kept = self._seconds.get(fleet)
        if kept is None:
            kept = self._seconds[fleet] = [0.0] * len(self._values)
        for index, count in enumerate(seats):
            if count:
                kept[index] += count * seconds

    def keep(self, owners: Collection[str]) -> None:
        """Forget every fleet but these."""
        for table in (self._seconds, self._gpu_seconds, self._charged):
            for fleet in table.keys() - set(owners):
                del table[fleet]

    def metric(self, owners: Iterable[str]) -> RowMetric:
        """Return the seat-seconds of these fleets."""
        return RowMetric(self._family, self._rows(self._seconds, owners))

    def gpu_metric(
        self, gpus: Mapping[str, int], owners: Collection[str], work: Iterable[None] = ()
    ) -> RowMetric:
        """Return the GPU-seconds of these fleets.

        Args:
            gpus: GPUs of a seat, per fleet. All seats of a fleet have the same; time that was charged to the seats since
                the last call is taken to have had as many.
            owners: the fleets.
            work: what fills `gpus`.
        """
        return RowMetric(self._gpu_family, self._gpu_rows(gpus, owners), work)

    def _gpu_rows(self, gpus: Mapping[str, int], owners: Collection[str]) -> Iterator[Row]:
        zeros = [0.0] * len(self._values)
        for fleet in owners:
            now = list(self._seconds.get(fleet, zeros))
            before, paid = self._charged.get(fleet, zeros), self._gpu_seconds.get(fleet, zeros)
            self._gpu_seconds[fleet] = [
                total + (new - old) * gpus.get(fleet, 0)
                for total, new, old in zip(paid, now, before, strict=True)
            ]
            self._charged[fleet] = now
        yield from self._rows(self._gpu_seconds, owners)

    def _rows(self, table: dict[str, list[float]], owners: Iterable[str]) -> Iterator[Row]:
        for fleet in owners:
            for index, value in enumerate(self._values):
                seconds = table.get(fleet)
                yield (fleet, value), seconds[index] if seconds else 0.0
