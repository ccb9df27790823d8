"""Islands: policies and fleets that have to be decided together, because seats can pass between them.

Two policies that may serve on one fleet compete for its seats, so both are on one island, with all fleets of both. What
happens on an island changes no answer on another. So a loop over hundreds of policies decides the island that something
happened on, and leaves the others as they are until their own time comes. What couples all of them is a budget over all
fleets: it is shared out when all are decided at once (`Snapshot.partial`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scaler.core.model import FleetSpec, PolicySpec
from warmpool.seats import FleetName


@dataclass(frozen=True, slots=True)
class Island:
    """Policies and fleets without a seat in common with any other.

    Attributes:
        policies: in the order in which they were given.
        fleets: in the order in which they were given.
    """

    policies: tuple[PolicySpec, ...]
    fleets: tuple[FleetSpec, ...]


def together(parts: Sequence[Island]) -> Island:
    """Return what is on any of these islands."""
    if len(parts) == 1:
        return parts[0]
    return Island(
        policies=tuple(policy for part in parts for policy in part.policies),
        fleets=tuple(fleet for part in parts for fleet in part.fleets),
    )


def islands(policies: Sequence[PolicySpec], fleets: Sequence[FleetSpec]) -> tuple[Island, ...]:
    """Part policies and fleets into islands; each of them is on exactly one.

    Of two policies, or two fleets, of one name the first counts, as in `decide`. A fleet that no policy names is an
    island by itself, and so are the policies of a fleet that isn't there.
    """
    named = first_of_each_name(policies)
    there = first_of_each_name(fleets)
    coasts = _Coasts()
    for fleet in there:
        coasts.of(fleet.name)
    for policy in named:
        coasts.join(share.fleet for share in policy.fleets)
    members: dict[object, tuple[list[PolicySpec], list[FleetSpec]]] = {}
    for policy in named:
        coast: object = coasts.of(policy.fleets[0].fleet) if policy.fleets else (policy.name,)
        members.setdefault(coast, ([], []))[0].append(policy)
    for fleet in there:
        members.setdefault(coasts.of(fleet.name), ([], []))[1].append(fleet)
    return tuple(Island(tuple(on[0]), tuple(on[1])) for on in members.values())


_Named = TypeVar("_Named", PolicySpec, FleetSpec)


def first_of_each_name(specs: Sequence[_Named]) -> list[_Named]:
    """Return the specs without those whose name another before them has."""
    if len(specs) == 1:
        return list(specs)
    unique: dict[str, _Named] = {}
    for spec in specs:
        if spec.name not in unique:
            unique[spec.name] = spec
    return list(unique.values())


class _Coasts:
    """Disjoint sets of fleets, each known by one of its members (Tarjan's union-find, with paths halved)."""

    def __init__(self) -> None:
        self._parents: dict[FleetName, FleetName] = {}

    def of(self, fleet: FleetName) -> FleetName:
        """Return the member that a fleet's set is known by."""
        parents = self._parents
        here = parents.setdefault(fleet, fleet)
        while parents[here] != here:
            parents[here] = parents[parents[here]]
            here = parents[here]
        return here

    def join(self, fleets: Iterable[FleetName]) -> None:
        """Make the sets of these fleets one."""
        members: Iterator[FleetName] = iter(fleets)
        first = next(members, None)
        if first is None:
            return
        for fleet in members:
            self._parents[self.of(fleet)] = self.of(first)
