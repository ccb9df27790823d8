"""The tick: observe, decide, plan, act, publish. Synchronous from first to last but for the waiting between ticks.

Events only wake it; every decision is made from a whole snapshot. `next_wakeup` of the last decision replaces polling
timers. Publishing comes after the actions have begun, so that no promotion waits for its own record.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from scaler.cluster.port import Cluster
from scaler.core.decide import decide
from scaler.core.ledger import Entry, Ledger
from scaler.core.memory import Memory
from scaler.core.model import Decision, FleetSpec, FleetView, Load, PolicySpec, Snapshot
from scaler.core.rises import NO_RISES, Rises
from scaler.policy.calendar import Calendar
from scaler.runtime.actuator import Actuator
from scaler.runtime.clock import Clock
from scaler.runtime.events import EventLog, Trigger
from scaler.runtime.lending import Lending
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.observer import observe
from scaler.runtime.start_times import StartTimes
from scaler.store.histories import History
from warmpool.plan import Limits, Plan, Wants, plan
from warmpool.seats import FleetName, PolicyName, Seat

log = structlog.get_logger(__name__)

_RECENT_DECISIONS = 500
"""Ledger records kept in memory for those who ask the controller: minutes of a busy one."""
_LONGEST_SLEEP_SECONDS = 1.0
"""Ages are looked at this often even if nothing happens: a signal that goes silent sends no event."""


class Signals(Protocol):
    """Where the loads of policies come from."""

    def load(self, policy: PolicyName, now: float) -> Load:
        """Return what the signals say of a policy; `now` is monotonic."""

    def observed_at(self, policy: PolicyName) -> float | None:
        """Return the Unix time of the newest sample of a policy, or None before the first."""

    def seen(self) -> None:
        """The loads have gone into a decision: peaks begin anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """The compiled policies in force.

    Attributes:
        policies: what the models need.
        fleets: what there is.
        hash: which set of files they come from, as people see it.
        models: names in requests that belong to each policy.
        calendar: what the clock says of them.
        seat_budget: seats that all fleets together may have; None for no such limit.
        gpu_budget: GPUs that all fleets together may have; None for no such limit.
    """

    policies: Sequence[PolicySpec]
    fleets: Sequence[FleetSpec]
    hash: str
    models: Mapping[PolicyName, tuple[str, ...]] = field(default_factory=dict)
    calendar: Calendar = field(default_factory=Calendar)
    seat_budget: int | None = None
    gpu_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one tick saw and decided, for those who show it."""

    number: int
    at: float
    causes: Mapping[str, int]
    snapshot: Snapshot
    decision: Decision
    plan: Plan
    seats: Sequence[Seat]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What the controller is wired to."""

    cluster: Cluster
    signals: Signals
    actuator: Actuator
    events: EventLog
    clock: Clock
    metrics: ControllerMetrics
    ledger: Callable[[Mapping[str, Any]], None]


class Controller:
    """Runs the loop for one table of policies.

    Args:
        table: the policies.
        wiring: everything that does I/O.
        mailbox: what wakes it.
        limits: caps of the planner.
        learned: what fleets had learned before a restart, in the time of this wiring's clock.
    """

    def __init__(
        self,
        table: PolicyTable,
        wiring: Wiring,
        mailbox: Mailbox,
        limits: Limits | None = None,
        learned: Mapping[FleetName, History] | None = None,
    ) -> None:
        learned = learned or {}
        self._table = self._coming = table
        self._wiring = wiring
        self._mailbox = mailbox
        self._limits = limits or Limits()
        rises = {name: history.rises for name, history in learned.items()}
        self._memory = Memory.initial(wiring.clock.monotonic(), rises)
        self._starts = StartTimes({name: history.starts for name, history in learned.items()})
        self._ledger = Ledger()
        self._lending = Lending()
        self.last: Tick | None = None
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=_RECENT_DECISIONS)
        wiring.events.watch(wiring.metrics)
        wiring.metrics.loaded(wiring.clock.wall())

    @property
    def metrics(self) -> ControllerMetrics:
        """What it counts."""
        return self._wiring.metrics

    @property
    def table(self) -> PolicyTable:
        """The policies that the last tick decided for."""
        return self._table

    @property
    def coming(self) -> PolicyTable:
        """The policies that the next tick will decide for: the same unless others have just been adopted."""
        return self._coming

    def adopt(self, table: PolicyTable) -> None:
        """Put other policies in force from the next tick on, and ask for that tick.

        What the law remembers of those that stay is kept, by name; of those that go it is dropped. Seats that serve a
        policy that goes are left as they are.
        """
        self._coming = table
        self._mailbox.wake("policies", urgent=True)

    @property
    def learned(self) -> Mapping[FleetName, History]:
        """What fleets have learned and must outlive a restart."""
        measured, memory = self._starts.measured, self._memory
        names = memory.fleets.keys() | memory.learned.keys() | measured.keys()
        return {
            name: History(rises=_rises(memory, name), starts=tuple(measured.get(name, ()))) for name in names
        }

    async def run(self) -> None:
        """Tick until cancelled. What an action or an adapter raises is handled there; a fault of the core ends the loop."""
        unsubscribe = self._wiring.cluster.subscribe(self._cluster_changed)
        self._mailbox.wake("start", urgent=True)
        self.metrics.led(leading=True)
        try:
            while True:
                causes = await self._mailbox.wait(self._sleep())
                self.tick(causes)
        finally:
            unsubscribe()
            self.metrics.led(leading=False)

    def _cluster_changed(self) -> None:
        self._mailbox.wake("cluster", urgent=True)

    def _sleep(self) -> float:
        if self.last is None or self.last.decision.next_wakeup is None:
            return _LONGEST_SLEEP_SECONDS
        left = self.last.decision.next_wakeup - self._wiring.clock.monotonic()
        return min(max(left, 0.001), _LONGEST_SLEEP_SECONDS)

    def tick(self, causes: Counter[str]) -> None:
        """Observe, decide, plan, begin the actions, publish."""
        wiring = self._wiring
        if not wiring.cluster.synced:
            return
        began, wall = wiring.clock.monotonic(), wiring.clock.wall()
        table = self._table = self._coming
        clocked = table.calendar.at(wall, began)
        seats = self._lending.mark(table.policies, clocked.serving_floors, wiring.cluster.seats())
        snapshot = observe(
            table.policies,
            table.fleets,
            seats,
            wiring.cluster.replicas,
            lambda policy: wiring.signals.load(policy, began),
        )
        wiring.signals.seen()
        self._starts.look(seats, wall)
        snapshot = replace(
            snapshot,
            fleets={**snapshot.fleets, **self._with_start_times(table, snapshot)},
            serving_floors=clocked.serving_floors,
            seat_floors=clocked.seat_floors,
            frozen=clocked.frozen,
            seat_budget=table.seat_budget,
            gpu_budget=table.gpu_budget,
        )
        before = self._memory
        decision, self._memory = decide(table.policies, table.fleets, snapshot, before, began)
        planned = plan(
            self._wants(decision, snapshot),
            wiring.actuator.candidates(seats),
            self._limits,
            wall,
            settled=wiring.actuator.settled,
        )
        wiring.actuator.adopt(seats)
        wiring.actuator.start(planned.actions, self._triggers(wall))
        number = self.last.number + 1 if self.last else 1
        self.last = Tick(
            number=number,
            at=wall,
            causes=causes,
            snapshot=snapshot,
            decision=decision,
            plan=planned,
            seats=seats,
        )
        wiring.metrics.ticked(self.last, table, wiring.clock.monotonic() - began)
        self._publish(self.last, table, before)

    def _with_start_times(self, table: PolicyTable, snapshot: Snapshot) -> Mapping[FleetName, FleetView]:
        """Return the views of those fleets whose spares follow demand: nobody else asks how long seats take to start."""
        return {
            fleet.name: replace(snapshot.fleets[fleet.name], start_seconds=self._starts.seconds(fleet.name))
            for fleet in table.fleets
            if fleet.auto_spare is not None
        }

    def _wants(self, decision: Decision, snapshot: Snapshot) -> Wants:
        enforced = {fleet.name for fleet in self._table.fleets if not fleet.observe}
        resized = {
            fleet.name for fleet in self._table.fleets if fleet.resized and fleet.name not in snapshot.frozen
        } & enforced
        serving: dict[FleetName, dict[PolicyName, int]] = {name: {} for name in enforced}
        for policy in decision.policies.values():
            for fleet, count in policy.serving.items():
                if fleet in enforced:
                    serving[fleet][policy.policy] = count
        order = sorted(self._table.policies, key=lambda policy: (-policy.priority, policy.name))
        return Wants(
            serving=serving,
            order=[policy.name for policy in order],
            totals={name: decision.fleets[name].total for name in resized},
            replicas={name: snapshot.fleets[name].replicas for name in resized},
            frozen=frozenset(snapshot.frozen),
            ended_at_once=frozenset(policy.name for policy in self._table.policies if policy.ended_at_once),
        )

    def _triggers(self, wall: float) -> Mapping[PolicyName, Trigger]:
        triggers = {}
        for policy in self._table.policies:
            observed = self._wiring.signals.observed_at(policy.name)
            triggers[policy.name] = Trigger(sample=wall if observed is None else observed, decision=wall)
        return triggers

    def _publish(self, tick: Tick, table: PolicyTable, before: Memory) -> None:
        events = self._wiring.events
        events.seats(tick.seats)
        for name, policy in tick.decision.policies.items():
            load = tick.snapshot.loads[name]
            events.load(policy, load.queued.value, load.in_flight.value, load.oldest_wait.value)
        line = self._ledger.line(
            Entry(
                number=tick.number,
                at=tick.at,
                causes=tick.causes,
                rules=table,
                before=before,
                snapshot=tick.snapshot,
                decision=tick.decision,
                actions=[action.why for action in tick.plan.actions],
            )
        )
        if "decision" in line:
            self.recent.append({key: value for key, value in line.items() if key != "start"})
        self._wiring.ledger(line)


def _rises(memory: Memory, fleet: FleetName) -> Rises:
    known = memory.fleets.get(fleet)
    return memory.learned.get(fleet, NO_RISES) if known is None else known.rises


async def heartbeat(controller: Controller, longest: float) -> None:
    """Raise if the loop has not ticked for `longest` seconds: a stuck controller is worse than a restarted one."""
    seen = -1
    while True:
        await asyncio.sleep(longest)
        number = controller.last.number if controller.last else 0
        if number == seen:
            raise RuntimeError(f"the decision loop has not ticked for {longest:.0f} s")
        seen = number
