"""Fleets in steps of virtual time whose decisions are carried out: seats start, serve, and go as they are told to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import Decision, FleetSpec, FleetView, Load, PolicySpec, Snapshot, Supply
from tests.unit.scaler.core.world import load
from warmpool.seats import FleetName, PolicyName


@dataclass(slots=True, eq=False)
class Seat:
    """One seat: when it is up, who has it, and from when on that one is in rotation."""

    ready_at: float
    serves: PolicyName | None = None
    serves_from: float = 0.0


@dataclass(slots=True)
class Place:
    """One fleet's seats, and those that are being deleted, with the time at which they are gone."""

    seats: list[Seat]
    going: list[float] = field(default_factory=list)

    @property
    def existing(self) -> int:
        return len(self.seats) + len(self.going)

    def held_by(self, policy: PolicyName) -> list[Seat]:
        return [seat for seat in self.seats if seat.serves == policy]


@dataclass(kw_only=True)
class Site:
    """All fleets. Every policy is resident on every seat of the fleets that it names.

    Attributes:
        up: seats per fleet that are up at the start.
        start: seconds that a new seat takes to be up.
        goes: seconds that a deleted seat takes to be gone.
        promotion: seconds from a seat's claim to its rotation.
        limits: what else every snapshot says (budgets, freezes).
    """

    policies: Sequence[PolicySpec]
    fleets: Sequence[FleetSpec]
    up: Mapping[str, int] = field(default_factory=dict)
    start: float = 60.0
    goes: float = 0.0
    promotion: float = 0.0
    limits: Mapping[str, object] = field(default_factory=dict)
    now: float = 1000.0
    decision: Decision = field(init=False)

    def __post_init__(self) -> None:
        self.memory = Memory.initial(self.now)
        self.places = {
            fleet.name: Place([Seat(self.now) for _ in range(self.up.get(fleet.name, 0))])
            for fleet in self.fleets
        }

    def step(self, loads: Mapping[str, Load], after: float = 1.0) -> Decision:
        """Let some seconds pass, decide, and carry it out."""
        self.now += after
        for place in self.places.values():
            place.going = [at for at in place.going if at > self.now]
        snapshot = Snapshot(
            loads={PolicyName(name): one for name, one in loads.items()},
            fleets={name: self._view(name) for name in self.places},
            **self.limits,  # type: ignore[arg-type]
        )
        self.decision, self.memory = decide(self.policies, self.fleets, snapshot, self.memory, self.now)
        self._rotate()
        self._resize()
        return self.decision

    def hold(self, loads: Mapping[str, Load], seconds: float, each: float = 1.0) -> Decision:
        """Step through some seconds in which the signals say the same."""
        for _ in range(round(seconds / each)):
            self.step(loads, each)
        return self.decision

    def serving(self, policy: str = "a") -> int:
        """Residents in rotation."""
        held = [seat for place in self.places.values() for seat in place.held_by(PolicyName(policy))]
        return sum(seat.serves_from <= self.now for seat in held)

    def total(self, fleet: str = "spares") -> int:
        return self.decision.fleets[FleetName(fleet)].total

    def place(self, fleet: str = "spares") -> Place:
        return self.places[FleetName(fleet)]

    def _view(self, name: FleetName) -> FleetView:
        place = self.places[name]
        busy = sum(seat.serves is not None for seat in place.seats)
        spare = sum(seat.serves is None and seat.ready_at <= self.now for seat in place.seats)
        residents = [p.name for p in self.policies if any(share.fleet == name for share in p.fleets)]
        return FleetView(
            serving=busy,
            spare=spare,
            starting=len(place.seats) - busy - spare,
            doomed=len(place.going),
            start_seconds=self.start if math.isfinite(self.start) else 0.0,
            replicas=len(place.seats),
            supply={policy: self._supply(place, policy, spare, busy) for policy in residents},
        )

    def _supply(self, place: Place, policy: PolicyName, spare: int, busy: int) -> Supply:
        held = place.held_by(policy)
        serving = sum(seat.serves_from <= self.now for seat in held)
        return Supply(
            serving=serving,
            promoting=len(held) - serving,
            promotable=spare,
            switchable=busy - len(held),
        )

    def _rotate(self) -> None:
        """Demote first, then promote what is free."""
        given = [
            (self.places[fleet], policy.policy, count)
            for policy in self.decision.policies.values()
            for fleet, count in policy.serving.items()
        ]
        for place, policy, count in given:
            for seat in place.held_by(policy)[count:]:
                seat.serves = None
        for place, policy, count in given:
            free = [seat for seat in place.seats if seat.serves is None and seat.ready_at <= self.now]
            for seat in free[: max(0, count - len(place.held_by(policy)))]:
                seat.serves, seat.serves_from = policy, self.now + self.promotion

    def _resize(self) -> None:
        """Make seats, or delete those that serve nobody: what starts before what is up."""
        for name, place in self.places.items():
            missing = self.decision.fleets[name].total - len(place.seats)
            place.seats += [Seat(self.now + self.start) for _ in range(missing)]
            idle = sorted((s for s in place.seats if s.serves is None), key=lambda seat: -seat.ready_at)
            for seat in idle[: max(0, -missing)]:
                place.seats.remove(seat)
                if self.goes:
                    place.going.append(self.now + self.goes)


@dataclass(kw_only=True)
class Line:
    """Requests of one policy as a fluid, held in front of its seats: arrivals don't wait for answers.

    Attributes:
        arrivals: requests per second.
        seconds: time that one request is served for.
        slots: requests that one seat holds.
    """

    arrivals: float
    seconds: float
    slots: int = 8
    queued: float = 0.0
    busy: float = 0.0

    @property
    def steady(self) -> int:
        """Seats that the arrivals keep busy for good (Little: L = λW)."""
        return math.ceil(self.arrivals * self.seconds / self.slots)

    def flow(self, serving: int, after: float) -> Load:
        """Let some seconds pass with so many seats serving, and return what a gateway says."""
        self.busy -= (finished := self.busy * after / self.seconds)
        self.queued += self.arrivals * after
        admitted = min(self.queued, max(0.0, serving * self.slots - self.busy))
        self.queued, self.busy = self.queued - admitted, self.busy + admitted
        return load(
            self.busy,
            self.queued,
            oldest_wait=self.queued / self.arrivals if self.arrivals else 0.0,
            completions=finished / after,
            arrivals=self.arrivals,
        )
