"""Seats in simulated time, as the planner's actions move them: claims, promotions, drains, starts, sizes.

Nothing is decided here. What a seat is worth, and which goes first when a fleet shrinks, is the product's own
(`warmpool.seats`); which seat is promoted is the planner's (`warmpool.plan`). A drain ends when the last request has
finished; none is cut short.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from scaler.runtime.bench.law.station import Server
from scaler.runtime.bench.law.timeline import Meter, Timeline
from warmpool.plan import Action, Demote, Promote, Recall, Replace, Resize, Switch
from warmpool.seats import (
    DELETION_COST,
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    SeatValue,
    seat_value,
)
from warmpool.states import ResidentState

_S = ResidentState


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """How long operations take, in seconds, as measured (BENCHMARKS.md).

    Attributes:
        promote: from the decision to rotation: 61 ms in the default drill on two cores, 22 ms on one H200.
        switch: from the end of the drain to the first token: p99 188 ms with 40 GB of KV memory on one H200.
        recall: from the decision to rotation: the engine is still resumed.
        pause: pausing and giving back KV memory after a drain: 22 ms for the pause, 5 ms for 4 GiB.
        end: what requests on a lent seat have when it is wanted back (`onReclaim: Abort`).
    """

    promote: float = 0.061
    switch: float = 0.188
    recall: float = 0.020
    pause: float = 0.050
    end: float = 0.050


class Line(Protocol):
    """Where a seat's slots are filled from: a `Station`, or work that never ends (`Endless`)."""

    def open(self, server: Server) -> None:
        """Put a seat into rotation."""

    def close(self, server: Server) -> None:
        """Take it out; its `emptied` is called when the last request has finished, if it has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What each seat of a fleet is like.

    Attributes:
        slots: per resident, the requests that it may have in flight; residents start in this order.
        start: seconds that a resident takes to start, from the time at which it begins; `math.inf` if it fails.
    """

    slots: Mapping[PolicyName, int]
    start: Callable[[float], float]


class _Seat:
    """One seat."""

    __slots__ = ("current", "fleet", "loaded", "name", "pending", "server", "value", "view")

    def __init__(self, name: SeatName, fleet: FleetName, view: Seat) -> None:
        self.name = name
        self.fleet = fleet
        self.view = view
        self.value: SeatValue | None = None
        self.server: Server | None = None  # of the resident that computes
        self.current: PolicyName | None = None  # who is starting
        self.loaded = False  # it has loaded its weights and waits for the seat to be free
        self.pending: list[PolicyName] = []  # who starts next, last first


class Pool:
    """All fleets' seats.

    Attributes:
        replicas: per fleet, what its workload is asked for.
        promotions: promotions, switches and recalls that were begun.
        demotions: demotions that were begun, switches included.
        changed: called when an action has ended or a resident has become promotable.
    """

    def __init__(
        self,
        timeline: Timeline,
        meter: Meter,
        shapes: Mapping[FleetName, Shape],
        lines: Mapping[PolicyName, Line],
        borrowers: frozenset[PolicyName] = frozenset(),
        latencies: Latencies | None = None,
    ) -> None:
        """Begin with empty fleets; the seats of `borrowers` count as lent."""
        self._timeline = timeline
        self._meter = meter
        self._shapes = shapes
        self._lines = lines
        self._borrowers = borrowers
        self._latencies = latencies or Latencies()
        self._seats: dict[SeatName, _Seat] = {}
        self._numbers = itertools.count()
        self._stock: dict[FleetName, Sequence[Seat]] = {}
        self.replicas: dict[FleetName, int] = dict.fromkeys(shapes, 0)
        self.promotions = 0
        self.demotions = 0
        self.changed: Callable[[], None] = _nobody

    def fill(self, fleet: FleetName, number: int) -> None:
        """Begin with so many seats on which every resident is paused."""
        self.replicas[fleet] += number
        for _ in range(number):
            self._create(fleet, warm=True)

    def stock(self) -> Mapping[FleetName, Sequence[Seat]]:
        """Return the seats per fleet; the same object as long as nothing of a fleet has changed."""
        for seat in self._seats.values():
            if seat.server is not None:
                self._count(seat, seat.server.in_flight)
        for fleet in self._shapes:
            if fleet not in self._stock:
                self._stock[fleet] = tuple(s.view for s in self._seats.values() if s.fleet == fleet)
        return self._stock

    def serving(self, policy: PolicyName) -> int:
        """Return how many residents of a policy are in rotation."""
        return sum(policy in seat.view.serving for seat in self._seats.values())

    def in_flight(self, policy: PolicyName) -> int:
        """Return how many requests the residents of a policy have in flight, those that leave included."""
        return sum(
            seat.server.in_flight
            for seat in self._seats.values()
            if seat.server is not None and _computes(seat.view, policy)
        )

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Begin the actions of a plan."""
        for action in actions:
            match action:
                case Promote(seat=seat, policy=policy):
                    self._promote(self._seats[seat.name], policy)
                case Recall(seat=seat, policy=policy):
                    self._recall(self._seats[seat.name], policy)
                case Switch(seat=seat):
                    self._switch(self._seats[seat.name], action)
                case Demote(seat=seat, policy=policy):
                    self._demote(self._seats[seat.name], policy)
                case Resize(fleet=fleet, total=total):
                    self.replicas[fleet] = total
                    self._reconcile(fleet)
                case Replace(seat=seat):
                    self._remove(self._seats[seat.name])
                    self._reconcile(seat.fleet)
                case _:
                    raise NotImplementedError(f"a simulated seat knows no {type(action).__name__}")

    # ------------------------------------------------------------------ operations

    def _promote(self, seat: _Seat, policy: PolicyName) -> None:
        claim = self._claim(seat, Operation.PROMOTE, policy)
        self._move(seat, policy, _S.PROMOTING)
        self._later(self._latencies.promote, self._rotate, seat, claim)

    def _switch(self, seat: _Seat, switch: Switch) -> None:
        claim = self._claim(seat, Operation.SWITCH, switch.policy, leaving=switch.leaving)
        self.demotions += 1
        self._drain(seat, switch.leaving, at_once=switch.at_once)
        if seat.server is None:
            self._later(self._latencies.switch, self._rotate, seat, claim)

    def _demote(self, seat: _Seat, policy: PolicyName) -> None:
        claim = self._claim(seat, Operation.DEMOTE, policy)
        self.demotions += 1
        self._drain(seat, policy, at_once=False)
        if seat.server is None:
            self._later(self._latencies.pause, self._pause, seat, claim)

    def _recall(self, seat: _Seat, policy: PolicyName) -> None:
        claim = self._claim(seat, Operation.RECALL, policy)
        self._later(self._latencies.recall, self._rotate, seat, claim)

    def _claim(
        self, seat: _Seat, operation: Operation, policy: PolicyName, leaving: PolicyName | None = None
    ) -> Claim:
        self.promotions += operation is not Operation.DEMOTE
        claim = Claim(
            id=str(next(self._numbers)),
            policy=policy,
            operation=operation,
            holder="bench",
            epoch=1,
            since=self._timeline.now,
            deadline=math.inf,
            leaving=leaving,
        )
        self._show(seat, replace(seat.view, claim=claim))
        return claim

    def _drain(self, seat: _Seat, policy: PolicyName, *, at_once: bool) -> None:
        """Take a resident out of rotation; `seat.server` is None afterwards if it has nothing to finish."""
        server = seat.server
        self._show(seat, replace(seat.view, serving=seat.view.serving - {policy}))
        self._move(seat, policy, _S.DRAINING)
        if server is None:
            return
        self._lines[policy].close(server)
        if not server.in_flight:
            seat.server = None
        elif at_once:
            self._later(self._latencies.end, self._end, seat, seat.view.claim)

    def _emptied(self, seat: _Seat) -> None:
        """Go on where the last request of a drain has finished."""
        claim = seat.view.claim
        if seat.view.terminating:
            self._gone(seat)
        elif claim is not None and claim.operation is Operation.SWITCH:
            seat.server = None
            self._later(self._latencies.switch, self._rotate, seat, claim)
        elif claim is not None and claim.operation is Operation.DEMOTE:
            seat.server = None
            self._later(self._latencies.pause, self._pause, seat, claim)

    def _end(self, seat: _Seat, claim: Claim) -> None:
        if seat.view.claim is claim and seat.server is not None:
            seat.server.in_flight = 0
            self._emptied(seat)

    def _rotate(self, seat: _Seat, claim: Claim) -> None:
        """Put the resident of a claim into rotation."""
        if claim.leaving is not None:
            self._move(seat, claim.leaving, _S.PAUSED)
        if seat.server is None:
            slots = self._shapes[seat.fleet].slots[claim.policy]
            seat.server = Server(slots, partial(self._emptied, seat))
        self._move(seat, claim.policy, _S.SERVING)
        lent = claim.policy in self._borrowers
        self._show(seat, replace(seat.view, claim=None, serving=frozenset({claim.policy}), lent=lent))
        self._lines[claim.policy].open(seat.server)
        self.changed()

    def _pause(self, seat: _Seat, claim: Claim) -> None:
        self._move(seat, claim.policy, _S.PAUSED)
        self._show(seat, replace(seat.view, claim=None, lent=False))
        self._go_on_starting(seat)
        self.changed()

    def _later(
        self, seconds: float, step: Callable[[_Seat, Claim], None], seat: _Seat, claim: Claim | None
    ) -> None:
        """Take the next step of an operation, unless another has taken its place or the seat is going."""

        def due(_: object) -> None:
            if claim is not None and seat.view.claim is claim and not seat.view.terminating:
                step(seat, claim)

        self._timeline.at(self._timeline.now + seconds, due)

    # ------------------------------------------------------------------ births and deaths

    def _reconcile(self, fleet: FleetName) -> None:
        present = [s for s in self._seats.values() if s.fleet == fleet and not s.view.terminating]
        surplus = len(present) - self.replicas[fleet]
        if surplus > 0:
            present.sort(key=lambda seat: (DELETION_COST[seat_value(seat.view)], -seat.view.created_at))
            for seat in present[:surplus]:
                self._remove(seat)
        for _ in range(-surplus):
            self._create(fleet, warm=False)

    def _create(self, fleet: FleetName, *, warm: bool) -> None:
        now, slots = self._timeline.now, self._shapes[fleet].slots
        name = SeatName(f"{fleet}-{next(self._numbers):06d}")
        state = _S.PAUSED if warm else _S.STARTING
        residents = tuple(
            Resident(
                policy=policy,
                state=state,
                since=now,
                proven_at=now if warm else None,
                kv_released=len(slots) > 1,
            )
            for policy in slots
        )
        view = Seat(
            name=name,
            uid=name,
            version="1",
            fleet=fleet,
            node=name,
            residents=residents,
            admitted=warm,
            ready=True,
            created_at=now,
        )
        seat = self._seats[name] = _Seat(name, fleet, view)
        self._show(seat, view)
        if not warm:
            seat.pending = list(slots)[::-1]
            self._go_on_starting(seat)

    def _remove(self, seat: _Seat) -> None:
        """Let a seat terminate: out of rotation at once, gone when its last request has finished."""
        for policy in seat.view.serving:
            self._drain(seat, policy, at_once=False)
        self._show(seat, replace(seat.view, terminating=True))
        if seat.server is None or not seat.server.in_flight:
            self._gone(seat)

    def _gone(self, seat: _Seat) -> None:
        if self._seats.pop(seat.name, None) is not None:
            self._meter.move(None if seat.value is None else str(seat.value), None)
            self._stock.pop(seat.fleet, None)

    def _go_on_starting(self, seat: _Seat) -> None:
        """Start the next resident while nobody has the seat; one that has loaded meanwhile is ready now."""
        if seat.view.serving or seat.view.claim is not None or seat.view.terminating:
            return
        if seat.current is not None:
            if seat.loaded:
                self._started(seat, seat.current)
        elif seat.pending:
            seat.current, seat.loaded = seat.pending.pop(), False
            seconds = self._shapes[seat.fleet].start(self._timeline.now)
            if math.isfinite(seconds):
                self._timeline.at(self._timeline.now + seconds, self._has_loaded, seat)
            else:
                self._move(seat, seat.current, _S.FAILED)
                seat.current = None
                self._go_on_starting(seat)

    def _has_loaded(self, seat: _Seat) -> None:
        seat.loaded = True
        self._go_on_starting(seat)

    def _started(self, seat: _Seat, policy: PolicyName) -> None:
        seat.current, seat.loaded = None, False
        self._move(seat, policy, _S.PAUSED)
        self._go_on_starting(seat)
        self.changed()

    # ------------------------------------------------------------------ what is seen

    def _move(self, seat: _Seat, policy: PolicyName, state: ResidentState) -> None:
        residents = tuple(
            r if r.policy != policy else self._moved(r, state, shared=len(seat.view.residents) > 1)
            for r in seat.view.residents
        )
        self._show(seat, replace(seat.view, residents=residents))

    def _moved(self, resident: Resident, state: ResidentState, *, shared: bool) -> Resident:
        now = self._timeline.now
        proven = now if state in {_S.PAUSED, _S.SERVING} else resident.proven_at
        return replace(
            resident,
            state=state,
            since=now,
            proven_at=proven,
            kv_released=shared and state is _S.PAUSED,
            in_flight=0 if state is _S.PAUSED else resident.in_flight,
        )

    def _count(self, seat: _Seat, in_flight: int) -> None:
        for resident in seat.view.residents:
            if resident.state in {_S.SERVING, _S.DRAINING} and resident.in_flight != in_flight:
                residents = tuple(
                    replace(r, in_flight=in_flight) if r is resident else r for r in seat.view.residents
                )
                seat.view = replace(seat.view, residents=residents)
                self._stock.pop(seat.fleet, None)
                return

    def _show(self, seat: _Seat, view: Seat) -> None:
        seat.view = view
        self._stock.pop(seat.fleet, None)
        value = seat_value(view)
        if value is not seat.value:
            before = None if seat.value is None else str(seat.value)
            self._meter.move(before, str(value))
            seat.value = value


def _computes(seat: Seat, policy: PolicyName) -> bool:
    resident = seat.resident(policy)
    return resident is not None and resident.state in {_S.SERVING, _S.DRAINING}


def _nobody() -> None:
    """Do nothing: nobody asked to be told."""
