"""What is counted per policy or fleet: kept in plain dictionaries, and turned into rows at a scrape.

The Prometheus client's own counters would do, but for two things: series have to be there from the start and to go with
their policy or fleet, and a page of tens of thousands of series has to be written in slices (`page`).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from warmpool.metric_families import Family, Group, GroupMetric, Measured, MeasuredMetric, combinations

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
        self._places = {values: place for place, values in enumerate(combinations(family, 1))}
        self._zeros = (0.0,) * len(self._places)
        self._counts: dict[str, list[float]] = {}

    def add(self, owner: str, *values: str, by: float = 1.0) -> None:
        """Count up.

        Raises:
            KeyError: the family's labels don't list these values.
        """
        counts = self._counts.get(owner)
        if counts is None:
            counts = self._counts[owner] = list(self._zeros)
        counts[self._places[values]] += by

    def keep(self, owners: Collection[str]) -> None:
        """Forget every policy or fleet but these."""
        for owner in self._counts.keys() - set(owners):
            del self._counts[owner]

    def metric(self, owners: Iterable[str]) -> GroupMetric:
        """Return every combination of `owners` with the closed lists of the other labels, zeros included."""
        counts, zeros = self._counts, self._zeros
        return GroupMetric(self.family, (((owner,), counts.get(owner, zeros)) for owner in owners))


@dataclass(slots=True)
class _Child:
    """What one child of a histogram has measured."""

    counts: list[int]
    measured: int = 0
    total: float = 0.0


class Distribution:
    """A histogram per policy, and whatever other labels its family has.

    Args:
        family: what is measured.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self._blank = (0,) * (len(family.buckets) + 1)
        self._children: dict[Key, _Child] = {}

    def observe(self, *key: str, value: float) -> None:
        """Take one measurement; a bucket holds what is not above its bound."""
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = _Child(list(self._blank))
        child.counts[bisect_left(self.family.buckets, value)] += 1
        child.measured += 1
        child.total += value

    def keep(self, owners: Collection[str]) -> None:
        """Forget every policy but these."""
        for key in [key for key in self._children if key[0] not in owners]:
            del self._children[key]

    def metric(self, owners: Collection[str]) -> MeasuredMetric:
        """Return what was measured of these policies.

        Children that have nothing yet are there too, unless they would be more than `MOST_BLANK_CHILDREN`, or another label has
        no closed list: then a child begins with its first measurement.
        """
        others = [label.values for label in self.family.labels[1:]]
        if all(others) and len(owners) * prod(map(len, others)) <= MOST_BLANK_CHILDREN:
            keys = list(product(owners, *others))
        else:
            known = frozenset(owners)
            keys = [key for key in self._children if key[0] in known]
        return MeasuredMetric(self.family, (self._child(key) for key in keys))

    def _child(self, key: Key) -> Measured:
        child = self._children.get(key)
        if child is None:
            return Measured(key, self._blank, 0, 0.0)
        return Measured(key, child.counts, child.measured, child.total)


class HeldTime:
    """How long seats were held, by value: the integral of a fleet's counts over time.

    Args:
        family: seat-seconds.
        gpu_family: the same times the GPUs of a seat.
    """

    def __init__(self, family: Family, gpu_family: Family) -> None:
        self._family, self._gpu_family = family, gpu_family
        self._zeros = [0.0] * len(family.labels[1].values)
        self._seconds: dict[str, list[float]] = {}
        self._gpu_seconds: dict[str, list[float]] = {}
        self._charged: dict[str, list[float]] = {}

    def elapse(self, fleet: str, seats: Iterable[int], seconds: float) -> None:
        """Charge a fleet for `seconds` with so many seats of each value, in the order of the family's label."""
        kept = self._seconds.get(fleet)
        if kept is None:
            kept = self._seconds[fleet] = list(self._zeros)
        for index, count in enumerate(seats):
            if count:
                kept[index] += count * seconds

    def keep(self, owners: Collection[str]) -> None:
        """Forget every fleet but these."""
        for table in (self._seconds, self._gpu_seconds, self._charged):
            for fleet in table.keys() - set(owners):
                del table[fleet]

    def metric(self, owners: Iterable[str]) -> GroupMetric:
        """Return the seat-seconds of these fleets."""
        return GroupMetric(self._family, self._groups(self._seconds, owners))

    def gpu_metric(
        self, gpus: Mapping[str, int], owners: Collection[str], work: Iterable[None] = ()
    ) -> GroupMetric:
        """Return the GPU-seconds of these fleets.

        Args:
            gpus: GPUs of a seat, per fleet. All seats of a fleet have the same; time that was charged to the seats since
                the last call is taken to have had as many.
            owners: the fleets.
            work: what fills `gpus`.
        """
        return GroupMetric(self._gpu_family, self._gpu_groups(gpus, owners), work=work)

    def _gpu_groups(self, gpus: Mapping[str, int], owners: Collection[str]) -> Iterator[Group]:
        for fleet in owners:
            now = self._seconds.get(fleet, self._zeros)
            before, paid = self._charged.get(fleet, self._zeros), self._gpu_seconds.get(fleet, self._zeros)
            if now is not self._zeros and now != before:
                each = gpus.get(fleet, 0)
                paid = [total + (new - old) * each for total, new, old in zip(paid, now, before, strict=True)]
                self._gpu_seconds[fleet], self._charged[fleet] = paid, list(now)
            yield (fleet,), paid

    def _groups(self, table: dict[str, list[float]], owners: Iterable[str]) -> Iterator[Group]:
        for fleet in owners:
            yield (fleet,), table.get(fleet, self._zeros)
