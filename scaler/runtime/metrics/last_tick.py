"""Gauges that say what the last tick saw and decided, worked out when somebody scrapes: a tick pays nothing for them.

A tick never changes once it is over, so its rows may be read with pauses in between and still fit together. A policy or
a fleet that is no longer in force has no rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from scaler.core.model import Mode, PolicyDecision, Quality, Reading
from scaler.runtime.metrics import catalogue
from warmpool.metric_families import Family, Group, GroupMetric, Row, RowMetric
from warmpool.seats import FleetName, PolicyName, Seat, SeatName, SeatValue
from warmpool.states import ResidentState

if TYPE_CHECKING:  # the controller imports this package
    from scaler.runtime.controller import PolicyTable, Tick

_SEATS_BETWEEN_PAUSES = 64
Rows = Iterator[Row]
Groups = Iterator[Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One tick with the policies that it was made for."""

    tick: "Tick"
    table: "PolicyTable"


class Census:
    """Seats and residents, counted. A seat that is the same object as at the last count is not looked at again.

    Attributes:
        values: per fleet, seats by value, in the order of `SeatValue`.
        states: per policy, residents by state, in the order of `ResidentState`.
        gpus: GPUs of a seat, per fleet.
    """

    def __init__(self) -> None:
        self.values: dict[FleetName, list[int]] = {}
        self.states: dict[PolicyName, list[int]] = {}
        self.gpus: dict[str, int] = {}
        self._known: dict[SeatName, Seat] = {}

    def take(self, seats: Sequence[Seat]) -> Iterator[None]:
        """Count these seats and no others, with a pause now and then; after each step the counts fit what is known."""
        known = self._known
        for number, seat in enumerate(seats):
            before = known.get(seat.name)
            if before is not seat:
                known[seat.name] = seat
                self._count(seat, 1)
                if before is not None:
                    self._count(before, -1)
            if not number % _SEATS_BETWEEN_PAUSES:
                yield
        for name in known.keys() - {seat.name for seat in seats}:
            self._count(known.pop(name), -1)

    def _count(self, seat: Seat, by: int) -> None:
        _row(self.values, seat.fleet, _NO_SEATS)[_VALUES[seat.value]] += by
        for resident in seat.residents:
            _row(self.states, resident.policy, _NO_RESIDENTS)[_STATES[resident.state]] += by
        if by > 0 and seat.gpus:
            self.gpus[seat.fleet] = len(seat.gpus)


_VALUES: Mapping[SeatValue, int] = {value: place for place, value in enumerate(SeatValue)}
_STATES: Mapping[ResidentState, int] = {state: place for place, state in enumerate(ResidentState)}
_NO_SEATS: Sequence[int] = (0,) * len(SeatValue)
_NO_RESIDENTS: Sequence[int] = (0,) * len(ResidentState)
_Name = TypeVar("_Name")


def _row(table: dict[_Name, list[int]], name: _Name, blank: Sequence[int]) -> list[int]:
    """Return the counts under a name, which begin as `blank`."""
    found = table.get(name)
    if found is None:
        found = table[name] = list(blank)
    return found


_Member = TypeVar("_Member", bound=StrEnum)


def _indicators(members: type[_Member]) -> Mapping[_Member, Sequence[float]]:
    """Return for each member the row that has 1 in its place and 0 elsewhere."""
    return {one: tuple(float(one is other) for other in members) for one in members}


_MODES = _indicators(Mode)
_QUALITIES = _indicators(Quality)
_supply = attrgetter(*(name.lower() for name in catalogue.SUPPLIES))
"""A policy's supply on a fleet, in the order of the label's values; its fields are named for them."""


class LastTick:
    """Rows of the last tick.

    Remembers which sources of a policy have ever been read, for one that a policy hasn't got is not one that went
    missing.

    Attributes:
        census: the seats as they were last counted, which reading the metrics does.
    """

    def __init__(self) -> None:
        self.census = Census()
        self._measured: set[tuple[PolicyName, str]] = set()

    def metrics(self, seen: Seen) -> Iterator[RowMetric | GroupMetric]:
        """Return every gauge of a tick."""
        census, seats = self.census, seen.tick.seats
        for family, found in _SIMPLE.items():
            yield RowMetric(family, found(seen))
        for family, (owners, grouped) in _GROUPED.items():
            yield GroupMetric(family, grouped(seen), owners=owners)
        yield RowMetric(catalogue.SIGNAL_AGE, self._ages(seen))
        yield GroupMetric(catalogue.SIGNAL_QUALITY, self._qualities(seen), owners=2)
        yield GroupMetric(catalogue.SEATS, _seats(seen, census), work=census.take(seats))
        yield GroupMetric(catalogue.RESIDENTS, _residents(seen, census), work=census.take(seats))

    def _readings(self, seen: Seen) -> Iterator[tuple[PolicyName, str, Reading]]:
        loads = seen.tick.snapshot.loads
        self._measured = {known for known in self._measured if known[0] in loads}
        for policy, load in loads.items():
            yield policy, "gateway", load.queued
            for source, reading in (
                ("engines", load.engines),
                ("backlog", load.backlog),
                ("late_share", load.late_share),
            ):
                if reading.known:
                    self._measured.add((policy, source))
                if (policy, source) in self._measured:
                    yield policy, source, reading

    def _ages(self, seen: Seen) -> Rows:
        for policy, source, reading in self._readings(seen):
            if reading.known:
                yield (policy, source), reading.age

    def _qualities(self, seen: Seen) -> Groups:
        for policy, source, reading in self._readings(seen):
            yield (policy, source), _QUALITIES[reading.quality]


# ------------------------------------------------------------------ policies


def _of_decision(number: Callable[[PolicyDecision], float | None]) -> Callable[[Seen], Rows]:
    def found(seen: Seen) -> Rows:
        for name, decision in seen.tick.decision.policies.items():
            value = number(decision)
            if value is not None:
                yield (name,), value

    return found


def _per_fleet(counts: Callable[[PolicyDecision], Mapping[FleetName, float]]) -> Callable[[Seen], Rows]:
    def found(seen: Seen) -> Rows:
        for name, decision in seen.tick.decision.policies.items():
            for fleet, count in counts(decision).items():
                yield (name, fleet), count

    return found


def _unfilled(decision: PolicyDecision) -> Mapping[FleetName, int]:
    serving = decision.serving
    return {fleet: max(0, count - serving.get(fleet, 0)) for fleet, count in decision.wanted.items()}


def _warm(decision: PolicyDecision) -> Mapping[FleetName, int]:
    return {fleet: decision.warm.get(fleet, 0) for fleet in decision.wanted}


def _modes(seen: Seen) -> Groups:
    for name, decision in seen.tick.decision.policies.items():
        yield (name,), _MODES[decision.mode]


def _policy_reasons(seen: Seen) -> Rows:
    for name, decision in seen.tick.decision.policies.items():
        for code in dict.fromkeys(reason.code for reason in decision.reasons):
            yield (name, code), 1.0


def _targets(seen: Seen) -> Rows:
    for policy in seen.table.policies:
        for share in policy.fleets:
            yield (policy.name, share.fleet), share.target_in_flight


def _supplies(seen: Seen) -> Groups:
    for fleet, view in seen.tick.snapshot.fleets.items():
        for policy, supply in view.supply.items():
            yield (policy, fleet), _supply(supply)


def _wakes(seen: Seen) -> Rows:
    for fleet, view in seen.tick.snapshot.fleets.items():
        for policy, supply in view.supply.items():
            for depth, seconds in zip(
                catalogue.DEPTHS, (supply.paused_wake, supply.parked_wake), strict=True
            ):
                if seconds:
                    yield (policy, fleet, depth), seconds


def _residents(seen: Seen, census: Census) -> Groups:
    for policy in seen.table.policies:
        yield (policy.name,), census.states.get(policy.name, _NO_RESIDENTS)


# ------------------------------------------------------------------ fleets


def _seats(seen: Seen, census: Census) -> Groups:
    for fleet in seen.table.fleets:
        yield (fleet.name,), census.values.get(fleet.name, _NO_SEATS)


def _unreachable(seen: Seen) -> Rows:
    silent = Counter(seat.fleet for seat in seen.tick.seats if not (seat.reachable or seat.terminating))
    for fleet in seen.table.fleets:
        yield (fleet.name,), silent[fleet.name]


def _fleet_reasons(seen: Seen) -> Rows:
    for name, decision in seen.tick.decision.fleets.items():
        for code in dict.fromkeys(reason.code for reason in decision.reasons):
            yield (name, code), 1.0


def _fleet_modes(seen: Seen) -> Groups:
    for fleet in seen.table.fleets:
        yield (fleet.name,), (float(not fleet.observe), float(fleet.observe))


def _of_fleets(pairs: Callable[[Seen], Iterable[tuple[str, float]]]) -> Callable[[Seen], Rows]:
    return lambda seen: (((name,), number) for name, number in pairs(seen))


_SIMPLE: Mapping[Family, Callable[[Seen], Rows]] = {
    catalogue.DEMAND: _of_decision(lambda decision: decision.demand),
    catalogue.NEEDED: _of_decision(lambda decision: decision.needed),
    catalogue.CAPACITY: _of_decision(lambda decision: decision.capacity),
    catalogue.POLICY_REASON: _policy_reasons,
    catalogue.OBJECTIVE_TTFT: _of_fleets(
        lambda seen: ((p.name, p.ttft_objective) for p in seen.table.policies)
    ),
    catalogue.TARGET_IN_FLIGHT: _targets,
    catalogue.SERVING_MIN: _of_fleets(lambda seen: ((p.name, p.serving_min) for p in seen.table.policies)),
    catalogue.SERVING_MAX: _of_fleets(lambda seen: ((p.name, p.serving_max) for p in seen.table.policies)),
    catalogue.WANTED: _per_fleet(lambda decision: decision.wanted),
    catalogue.SERVING: _per_fleet(lambda decision: decision.serving),
    catalogue.UNFILLED: _per_fleet(_unfilled),
    catalogue.WARM: _per_fleet(_warm),
    catalogue.WAKE: _wakes,
    catalogue.FLEET_TOTAL: _of_fleets(
        lambda seen: ((name, each.total) for name, each in seen.tick.decision.fleets.items())
    ),
    catalogue.FLEET_REPLICAS: _of_fleets(
        lambda seen: ((name, each.replicas) for name, each in seen.tick.snapshot.fleets.items())
    ),
    catalogue.FLEET_MAX: _of_fleets(lambda seen: ((f.name, f.max_seats) for f in seen.table.fleets)),
    catalogue.FLEET_SERVING: _of_fleets(
        lambda seen: ((name, each.serving) for name, each in seen.tick.decision.fleets.items())
    ),
    catalogue.FLEET_SPARE_TARGET: _of_fleets(
        lambda seen: ((name, each.spare) for name, each in seen.tick.decision.fleets.items())
    ),
    catalogue.FLEET_HELD: _of_fleets(
        lambda seen: ((name, each.held) for name, each in seen.tick.decision.fleets.items())
    ),
    catalogue.FLEET_UNREACHABLE: _unreachable,
    catalogue.FLEET_REASON: _fleet_reasons,
}

_GROUPED: Mapping[Family, tuple[int, Callable[[Seen], Groups]]] = {
    catalogue.POLICY_MODE: (1, _modes),
    catalogue.SUPPLY: (2, _supplies),
    catalogue.FLEET_MODE: (1, _fleet_modes),
}
"""What has a number for every value of a closed list, with how many labels come before that one."""

FAMILIES: Sequence[Family] = (
    *_SIMPLE,
    *_GROUPED,
    catalogue.SIGNAL_AGE,
    catalogue.SIGNAL_QUALITY,
    catalogue.SEATS,
    catalogue.RESIDENTS,
)
"""What `LastTick` fills."""
