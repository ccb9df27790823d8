"""What happened, as records: seats and residents that changed, promotions with the time of every stage.

The drill draws its pictures from these lines, and an operator reads them after the fact. Only changes are written.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, compress, repeat
from operator import is_not
from typing import Any, Protocol

from scaler.core.model import PolicyDecision
from scaler.runtime.clock import Clock
from warmpool.healing import CURABLE, Found
from warmpool.seats import (
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    SeatValue,
)
from warmpool.states import ResidentState
from warmpool.timeline import Phase

_LOAD_INTERVAL_SECONDS = 0.05
"""At most 20 load records a second for each policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What an action answers: for the record, and for the time from sample to first token.

    Attributes:
        sample: Unix time of the newest sample that the decision saw.
        decision: Unix time of the decision.
    """

    sample: float
    decision: float


@dataclass(slots=True, kw_only=True)
class PromotionRecord:
    """One promotion, stage by stage; times are Unix seconds, 0.0 for a stage that wasn't reached."""

    claim: str
    operation: Operation
    policy: PolicyName
    fleet: FleetName
    seat: SeatName
    trigger: Trigger
    claimed: float = 0.0
    resumed: float = 0.0
    canary: float = 0.0
    rotation: float = 0.0
    waiting: int = 0
    phases: Mapping[str, float] | None = None
    error: str = ""


class Watcher(Protocol):
    """What the log tells those who count, beside what it records. Must be quick and must not raise."""

    def promoted(self, record: PromotionRecord) -> None:
        """A promotion ended, well or not."""

    def answered(self, record: PromotionRecord, at: float, *, waited: bool) -> None:
        """A promoted resident sent its first content, at Unix time `at`, to a request that had waited for it or not."""

    def demoted(self, policy: PolicyName, outcome: str) -> None:
        """A demotion ended."""

    def moved(self, policy: PolicyName, operation: Operation, outcome: str) -> None:
        """A parking or unparking ended."""

    def replaced(self, fleet: FleetName) -> None:
        """A seat was deleted because it can serve nobody."""

    def rested(self, fleet: FleetName) -> None:
        """A seat is left alone for a while after a failed promotion."""

    def restarted(self, policy: PolicyName, times: int) -> None:
        """A resident's engine was seen to have been restarted so many times more."""

    def healed(self, fleet: FleetName, found: Found) -> None:
        """A fleet's seats were looked at for engines that don't start as they should."""

    def started(self, seat: Seat, resident: Resident) -> None:
        """A resident's start was seen to have been completed; its phases and its facts are there."""

    def captured(self, seat: Seat, resident: Resident, seconds: float) -> None:
        """A resident that could be promoted already was seen to have spent so long capturing graphs."""


class EventLog:
    """Turns changes into records.

    Args:
        append: takes each record; must not block.
        clock: stamps them.
    """

    def __init__(self, append: Callable[[Mapping[str, Any]], None], clock: Clock) -> None:
        self._append = append
        self._clock = clock
        self._seen: dict[FleetName, Sequence[Seat]] = {}
        self._values: dict[SeatName, tuple[SeatValue, PolicyName | None]] = {}
        self._residents: dict[SeatName, dict[PolicyName, tuple[ResidentState, int | None, int]]] = {}
        self._told: dict[SeatName, Sequence[Resident]] = {}
        self._starts: dict[SeatName, dict[PolicyName, tuple[float, float]]] = {}
        self._names: dict[FleetName, AbstractSet[SeatName]] = {}
        self._leaving: set[SeatName] = set()
        self._loads: dict[PolicyName, tuple[float, tuple[Any, ...]]] = {}
        self._ailing: dict[FleetName, Mapping[SeatName, str]] = {}
        self._watchers: list[Watcher] = []

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` too, from now on."""
        self._watchers.append(watcher)

    def stock(self, stock: Mapping[FleetName, Sequence[Seat]]) -> None:
        """Do what `seats` does for all these fleets; those whose seats are the same objects cost a comparison."""
        differs = map(is_not, stock.values(), map(self._seen.get, stock))  # without a line of Python for each
        for fleet in list(compress(stock, differs)):
            self.seats(fleet, stock[fleet])

    def seats(self, fleet: FleetName, seats: Sequence[Seat]) -> None:
        """Record each of a fleet's seats and residents that has changed since the last call; nothing if all are the same."""
        before = self._seen.get(fleet, ())
        if before is seats:
            return
        self._seen[fleet] = seats
        for seat, old in zip(seats, chain(before, repeat(None)), strict=False):
            if seat is not old:  # one that has only moved within the fleet is looked at for nothing
                self._seat(seat)
        names, known = {seat.name for seat in seats}, self._names.get(fleet, frozenset())
        self._names[fleet] = names
        for name in known - names:
            del self._values[name]
            self._residents.pop(name, None)
            self._told.pop(name, None)
            self._starts.pop(name, None)
            self._leaving.discard(name)
            self.record("seat", seat=name, fleet=None, value="Gone", serves=None)

    def _seat(self, seat: Seat) -> None:
        if seat.terminating and seat.name not in self._leaving:
            self._leaving.add(seat.name)
            self.record("leaving", seat=seat.name, fleet=seat.fleet, serving=sorted(seat.serving))
        value, serves = seat.value, _served(seat) if seat.serving or seat.claim is not None else None
        if self._values.get(seat.name) != (value, serves):
            self._values[seat.name] = value, serves
            self.record("seat", seat=seat.name, fleet=seat.fleet, value=str(value), serves=serves)
        if self._told.get(seat.name) is seat.residents:
            return  # the pod has changed, and its agent has told nothing new
        self._told[seat.name] = seat.residents
        self._completed(seat)
        known = self._residents.get(seat.name)
        if known is None:
            known = self._residents[seat.name] = {}
        for resident in seat.residents:
            before, now = known.get(resident.policy), (resident.state, resident.pid, resident.restarts)
            if before != now:
                known[resident.policy] = now
                self._resident(seat, resident, before)

    def _completed(self, seat: Seat) -> None:
        """Tell of residents whose start is over since the last look; what was over at the first look is an earlier watcher's."""
        ends = {
            each.policy: (each.start.at, each.phases.get(Phase.LATE_CAPTURE, 0.0))
            for each in seat.residents
            if each.start is not None
        }
        before = self._starts.get(seat.name)
        if ends == before:
            return
        self._starts[seat.name] = {**(before or {}), **ends}
        if before is None:
            return
        for resident in seat.residents:
            if resident.policy not in ends:
                continue
            at, late = ends[resident.policy]
            at_before, late_before = before.get(resident.policy, (None, 0.0))
            for watcher in self._watchers:
                if at != at_before:
                    watcher.started(seat, resident)
                elif late != late_before:
                    watcher.captured(seat, resident, late - late_before)

    def _resident(
        self, seat: Seat, resident: Resident, before: tuple[ResidentState, int | None, int] | None
    ) -> None:
        """Tell of a resident that isn't as it was."""
        if before is not None and resident.restarts > before[2]:
            for watcher in self._watchers:
                watcher.restarted(resident.policy, resident.restarts - before[2])
        if before is None or before[:2] != (resident.state, resident.pid):
            self.record(
                "resident",
                seat=seat.name,
                policy=resident.policy,
                state=str(resident.state),
                failure=resident.failure,
                pid=resident.pid,
                restarts=resident.restarts,
                phases=dict(resident.phases),
            )

    def load(self, policy: PolicyDecision, queued: float, in_flight: float, oldest: float) -> None:
        """Record what one policy's signals said, at most 20 times a second and only if it changed."""
        now = self._clock.wall()
        last, known = self._loads.get(policy.policy, (0.0, ()))
        if now - last < _LOAD_INTERVAL_SECONDS:
            return
        values = (queued, in_flight, round(oldest, 3), policy.demand, policy.capacity, str(policy.mode))
        if values == known:
            return
        self._loads[policy.policy] = (now, values)
        self.record(
            "load",
            policy=policy.policy,
            queued=queued,
            inFlight=in_flight,
            oldestWaitSeconds=values[2],
            demand=policy.demand,
            capacity=policy.capacity,
            mode=values[5],
        )

    def promotion(self, record: PromotionRecord) -> None:
        """Record a promotion that ended, well or not."""
        for watcher in self._watchers:
            watcher.promoted(record)
        self.record(
            "promotion",
            claim=record.claim,
            operation=str(record.operation),
            policy=record.policy,
            fleet=record.fleet,
            seat=record.seat,
            outcome="Failed" if record.error else "Promoted",
            error=record.error,
            waiting=record.waiting,
            sample=record.trigger.sample,
            decision=record.trigger.decision,
            claimed=record.claimed,
            resumed=record.resumed,
            canary=record.canary,
            rotation=record.rotation,
            phases=dict(record.phases or {}),
        )

    def first_token(self, record: PromotionRecord, *, dispatched: float, first: float, waited: bool) -> None:
        """Record the first content that a promoted resident sent to a client; times are Unix seconds."""
        for watcher in self._watchers:
            watcher.answered(record, first, waited=waited)
        self.record(
            "firstToken",
            claim=record.claim,
            policy=record.policy,
            seat=record.seat,
            dispatched=dispatched,
            first=first,
            waited=waited,
        )

    def demotion(self, claim: Claim, seat: SeatName, outcome: str, phases: Mapping[str, float]) -> None:
        """Record a demotion that ended."""
        for watcher in self._watchers:
            watcher.demoted(claim.policy, outcome)
        facts = {"policy": claim.policy, "seat": seat, "outcome": outcome, "phases": phases}
        self.record("demotion", claim=claim.id, **facts)

    def moved(self, claim: Claim, seat: Seat, outcome: str, phases: Mapping[str, float]) -> None:
        """Record a parking or an unparking that ended."""
        for watcher in self._watchers:
            watcher.moved(claim.policy, claim.operation, outcome)
        facts = {"policy": claim.policy, "fleet": seat.fleet, "seat": seat.name, "outcome": outcome}
        self.record("move", claim=claim.id, operation=str(claim.operation), phases=dict(phases), **facts)

    def replaced(self, seat: Seat, why: str) -> None:
        """Record that a seat was deleted because it can serve nobody."""
        for watcher in self._watchers:
            watcher.replaced(seat.fleet)
        self.record("replace", seat=seat.name, fleet=seat.fleet, why=why)

    def healed(self, fleet: FleetName, found: Found) -> None:
        """Record seats whose engines don't start as they should, and what is done about each, once while it stays so."""
        for watcher in self._watchers:
            watcher.healed(fleet, found)
        before, now = self._ailing.get(fleet, {}), {seat: _done_about(seat, found) for seat in found.ailing}
        for seat, outcome in now.items():
            if before.get(seat) != outcome:
                self.record(
                    "healing",
                    seat=seat,
                    fleet=fleet,
                    outcome=outcome,
                    cause=str(found.causes[seat]),
                    why=found.ailing[seat],
                    heldBack=found.held_back if outcome == "HeldBack" else "",
                )
        self._ailing[fleet] = now

    def rested(self, seat: Seat) -> None:
        """Tell that a seat is left alone for a while; its failed promotion has been recorded already."""
        for watcher in self._watchers:
            watcher.rested(seat.fleet)

    def record(self, kind: str, **facts: Any) -> None:  # noqa: ANN401 - whatever the kind carries, as JSON
        """Record one event of any kind."""
        self._append({"at": self._clock.wall(), "kind": kind, **facts})


def _done_about(seat: SeatName, found: Found) -> str:
    if seat in found.replace:
        return "Replaced"
    if found.causes[seat] not in CURABLE:
        return "Reported"
    return "HeldBack" if found.held_back or found.replace else "Reported"


def _served(seat: Seat) -> PolicyName | None:
    if seat.serving:
        return min(seat.serving)
    return seat.claim.policy if seat.claim is not None else None
