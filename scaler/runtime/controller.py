"""The tick: observe, decide, plan, act, publish. Synchronous from first to last but for the waiting between ticks.

Events only wake it; every decision is made from a whole snapshot. `next_wakeup` of the last decision replaces polling
timers. Publishing comes after the actions have begun, so that no promotion waits for its own record.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from scaler.cluster.port import Cluster
from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import Decision, FleetSpec, Load, PolicySpec, Snapshot
from scaler.core.replay import decision_to_json, snapshot_to_json
from scaler.runtime.actuator import Actuator
from scaler.runtime.clock import Clock
from scaler.runtime.events import EventLog, Trigger
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.observer import observe
from warmpool.plan import Limits, Plan, Wants, plan
from warmpool.seats import FleetName, PolicyName, Seat

log = structlog.get_logger(__name__)

_LEDGER_INTERVAL_SECONDS = 1.0
"""A decision equal to the last one is written this often, so that the ledger shows that the loop lives."""
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
    """The compiled policies in force."""

    policies: Sequence[PolicySpec]
    fleets: Sequence[FleetSpec]
    hash: str
    seat_budget: int | None = None


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
    """

    def __init__(
        self, table: PolicyTable, wiring: Wiring, mailbox: Mailbox, limits: Limits | None = None
    ) -> None:
        self._table = table
        self._wiring = wiring
        self._mailbox = mailbox
        self._limits = limits or Limits()
        self._memory = Memory.initial(wiring.clock.monotonic())
        self._ledger_at = 0.0
        self._ledger_shape: object = None
        self.last: Tick | None = None
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=_RECENT_DECISIONS)
        wiring.events.watch(wiring.metrics)

    @property
    def metrics(self) -> ControllerMetrics:
        """What it counts."""
        return self._wiring.metrics

    @property
    def table(self) -> PolicyTable:
        """The policies in force."""
        return self._table

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
        table = self._table
        seats = wiring.cluster.seats()
        snapshot = observe(
            table.policies,
            table.fleets,
            seats,
            wiring.cluster.replicas,
            lambda policy: wiring.signals.load(policy, began),
        )
        wiring.signals.seen()
        snapshot = replace(snapshot, seat_budget=table.seat_budget)
        decision, self._memory = decide(table.policies, table.fleets, snapshot, self._memory, began)
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
        self._publish(self.last)

    def _wants(self, decision: Decision, snapshot: Snapshot) -> Wants:
        enforced = {fleet.name for fleet in self._table.fleets if not fleet.observe}
        serving: dict[FleetName, dict[PolicyName, int]] = {name: {} for name in enforced}
        for policy in decision.policies.values():
            for fleet, count in policy.serving.items():
                if fleet in enforced:
                    serving[fleet][policy.policy] = count
        order = sorted(self._table.policies, key=lambda policy: (-policy.priority, policy.name))
        return Wants(
            serving=serving,
            order=[policy.name for policy in order],
            totals={name: decision.fleets[name].total for name in enforced},
            replicas={name: snapshot.fleets[name].replicas for name in enforced},
        )

    def _triggers(self, wall: float) -> Mapping[PolicyName, Trigger]:
        triggers = {}
        for policy in self._table.policies:
            observed = self._wiring.signals.observed_at(policy.name)
            triggers[policy.name] = Trigger(sample=wall if observed is None else observed, decision=wall)
        return triggers

    def _publish(self, tick: Tick) -> None:
        events = self._wiring.events
        events.seats(tick.seats)
        for name, policy in tick.decision.policies.items():
            load = tick.snapshot.loads[name]
            events.load(policy, load.queued.value, load.in_flight.value, load.oldest_wait.value)
        shape = _shape(tick.decision)
        if shape != self._ledger_shape or tick.at - self._ledger_at >= _LEDGER_INTERVAL_SECONDS:
            self._ledger_shape, self._ledger_at = shape, tick.at
            record = self._record(tick)
            self.recent.append(record)
            self._wiring.ledger(record)

    def _record(self, tick: Tick) -> Mapping[str, Any]:
        return {
            "at": tick.at,
            "number": tick.number,
            "causes": dict(tick.causes),
            "policyHash": self._table.hash,
            "inputs": snapshot_to_json(tick.snapshot),
            "decision": decision_to_json(tick.decision),
            "actions": [action.why for action in tick.plan.actions],
        }


async def heartbeat(controller: Controller, longest: float) -> None:
    """Raise if the loop has not ticked for `longest` seconds: a stuck controller is worse than a restarted one."""
    seen = -1
    while True:
        await asyncio.sleep(longest)
        number = controller.last.number if controller.last else 0
        if number == seen:
            raise RuntimeError(f"the decision loop has not ticked for {longest:.0f} s")
        seen = number


def _shape(decision: Decision) -> object:
    """Return what makes two decisions the same for the ledger: the answers and the kinds of reasons, not the numbers."""
    return (
        tuple(
            (p.policy, p.mode, tuple(sorted(p.serving.items())), tuple(reason.code for reason in p.reasons))
            for p in decision.policies.values()
        ),
        tuple((f.fleet, f.serving, f.spare, f.total) for f in decision.fleets.values()),
    )
