"""The tick: observe, decide, plan, act, publish. Synchronous from first to last but for the waiting between ticks.

Events only wake it; every decision is made from a whole snapshot of the islands that are looked at
(`scaler.runtime.lookout`). `next_wakeup` of their last decision replaces polling timers. Publishing comes after the actions
have begun, so that no promotion waits for its own record.

A controller that stands by ticks as well: it sees and decides, so that its windows are warm and its memory is right when it comes to
lead. It begins nothing, and tells nobody what it would have done.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, Protocol

import structlog

from scaler.cluster.port import Cluster, Stock
from scaler.core.decide import LAW_VERSION, decide
from scaler.core.islands import Island, islands, together
from scaler.core.ledger import Entry, Ledger
from scaler.core.memory import Memory
from scaler.core.model import (
    Decision,
    FleetDecision,
    FleetSpec,
    Load,
    OneWay,
    PolicyDecision,
    PolicySpec,
    Snapshot,
)
from scaler.core.rises import NO_RISES, Rises
from scaler.gateway.routes import PolicyLimits
from scaler.policy.calendar import Calendar
from scaler.runtime.actuator import Actuator
from scaler.runtime.clock import Clock
from scaler.runtime.events import EventLog, Trigger
from scaler.runtime.lending import Lending
from scaler.runtime.lookout import LONGEST_SECONDS, Lookout, Watched
from scaler.runtime.mailbox import Mailbox, Wake
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.observer import Views, observe
from scaler.runtime.order_rules import Order, OrderRefused, Sight
from scaler.runtime.orders import Orders, whole
from scaler.runtime.recent import RecentDecisions
from scaler.runtime.self_healing import SelfHealing
from scaler.runtime.start_times import StartTimes
from scaler.store.histories import History
from warmpool.healing import Rule
from warmpool.nodehealth.breaker import BreakerLimits
from warmpool.nodehealth.others import Heeded
from warmpool.plan import InFlight, Limits, Plan, Planner, Promote, Recall, Switch, Wants
from warmpool.seats import FleetName, PolicyName, Seat

log = structlog.get_logger(__name__)

OLDEST_CACHE_SECONDS: Final = 100.0
"""A cluster's cache that hasn't been known to be current for this long: a watch that says nothing for 90 s is given up, and a list
comes next."""
_PINNED_SECONDS: Final = 60.0
_NOTHING: Final = Plan()


class Signals(Protocol):
    """Where the loads of policies come from."""

    def load(self, policy: PolicyName, now: float) -> Load:
        """Return what the signals say of a policy; `now` is monotonic."""

    def observed_at(self, policy: PolicyName) -> float | None:
        """Return the Unix time of the newest sample of a policy, or None before the first."""

    def seen(self, policies: Iterable[PolicyName]) -> None:
        """The loads of these policies have gone into a decision: their peaks begin anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """The compiled policies in force.

    Attributes:
        policies: what the models need.
        fleets: what there is.
        hash: which set of files they come from, as people see it.
        models: names in requests that belong to each policy.
        queues: what policies say of how much of them may wait at a gateway.
        calendar: what the clock says of them.
        seat_budget: seats that all fleets together may have; None for no such limit.
        gpu_budget: GPUs that all fleets together may have; None for no such limit.
        namespaces: in which namespace each fleet is, as it is written.
        health_observed: fleets for which what is said of GPUs is shown and not acted on.
        gpus_apart: fleets that want a Bad GPU excluded alone, and not its node.
        breaker: how fast nodes may be excluded.
        heeded: what others say of nodes that counts.
        healing: when a fleet's seats are replaced because their engines don't start as they should.
    """

    policies: Sequence[PolicySpec]
    fleets: Sequence[FleetSpec]
    hash: str
    models: Mapping[PolicyName, tuple[str, ...]] = field(default_factory=dict)
    queues: Mapping[PolicyName, PolicyLimits] = field(default_factory=dict)
    calendar: Calendar = field(default_factory=Calendar)
    seat_budget: int | None = None
    gpu_budget: int | None = None
    namespaces: Mapping[FleetName, str] = field(default_factory=dict)
    health_observed: frozenset[FleetName] = frozenset()
    gpus_apart: frozenset[FleetName] = frozenset()
    breaker: BreakerLimits = BreakerLimits()  # noqa: RUF009 - it can't be changed
    heeded: Heeded = Heeded()  # noqa: RUF009 - it can't be changed
    healing: Mapping[FleetName, Rule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What is known after one tick, for those who show it: what it saw and decided, and for the rest the last that was.

    Attributes:
        number: which tick, from 1.
        at: Unix time.
        causes: what woke the loop, with how often.
        looked: the policies and fleets that it looked at.
        snapshot: what was seen last of all policies and fleets.
        decision: what was decided last for all of them.
        plan: what it planned.
        stock: the seats per fleet, those of fleets without a policy included.
    """

    number: int
    at: float
    causes: Mapping[str, int]
    looked: Island
    snapshot: Snapshot
    decision: Decision
    plan: Plan
    stock: Stock

    @property
    def seats(self) -> Sequence[Seat]:
        """All seats."""
        return list(chain.from_iterable(self.stock.values()))


def _untold(_: Tick) -> None:
    """Nobody else wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What the controller is wired to."""

    cluster: Cluster
    signals: Signals
    events: EventLog
    clock: Clock
    metrics: ControllerMetrics
    ledger: Callable[[Mapping[str, Any]], None]
    actuator: Actuator | None = None
    """Carries out what is decided, from the start; None: the controller stands by until it is told to lead."""
    published: Callable[[Tick], None] = _untold
    """Takes each tick once its actions have begun: for those who answer others from it. It must not block."""
    pinned: Callable[[], Mapping[FleetName, OneWay | None]] = dict
    """Returns the fleets whose size stays as it is at present, whatever is decided, because people have stopped who writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one tick looks at.

    Attributes:
        wall: Unix time.
        on: policies and fleets.
        stock: all seats, as the cluster's cache has them.
        marked: the seats that are looked at, with the lent ones marked.
        snapshot: what the law may look at.
        left_alone: fleets of which no seat is replaced.
    """

    wall: float
    on: Island
    stock: Stock
    marked: Stock
    snapshot: Snapshot
    left_alone: frozenset[FleetName]

    @property
    def enforced(self) -> frozenset[FleetName]:
        """The fleets that are looked at and not only observed: something may be done on their seats."""
        return frozenset(fleet.name for fleet in self.on.fleets if not fleet.observe)

    @property
    def ours(self) -> Iterator[Seat]:
        """The seats of those."""
        return chain.from_iterable(self.marked.get(fleet, ()) for fleet in self.enforced)


class Controller:
    """Runs the loop for one table of policies.

    Args:
        table: the policies.
        wiring: everything that does I/O.
        mailbox: what wakes it.
        limits: caps of the planner.

    Attributes:
        last: the last tick; None before the first.
        looks: how often it was woken, whether or not there was anything to see.
        recent: the last decisions.
        orders: what people have ordered.
    """

    def __init__(
        self,
        table: PolicyTable,
        wiring: Wiring,
        mailbox: Mailbox,
        limits: Limits | None = None,
    ) -> None:
        self._table = self._coming = table
        self._wiring = wiring
        self._mailbox = mailbox
        self._limits = limits or Limits()
        self._memory = Memory.initial(wiring.clock.monotonic())
        self._starts = StartTimes()
        self._healing = SelfHealing(wiring.events)
        self._ledger = Ledger()
        self._lending = Lending()
        self._planner = Planner()
        self._views = Views(self._starts.seconds)
        self._lookout = _lookout(table)
        self._in_flight: dict[FleetName, InFlight] = {}
        self._unowned: AbstractSet[FleetName] = frozenset()  # fleets that are shown and that no policy is on
        self._shown_for: PolicyTable | None = None
        self._actuator = wiring.actuator
        self.looks = 0
        self.last: Tick | None = None
        self.recent = RecentDecisions()
        self.orders = Orders(wiring.clock, wiring.events, mailbox)
        wiring.events.watch(wiring.metrics)
        wiring.metrics.reloads.loaded(wiring.clock.wall())

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
    def actuator(self) -> Actuator | None:
        """What carries out what is decided; None while it stands by."""
        return self._actuator

    def lead(self, actuator: Actuator) -> None:
        """Act from the next tick on, and ask for that tick.

        What was remembered while it stood by stays: it is what the law makes of the same seats and signals. The ledger begins anew,
        for its lines must make a whole by themselves.
        """
        self._actuator = actuator
        self._planner, self._ledger = Planner(), Ledger()
        self._in_flight.clear()
        self.metrics.led(leading=True)
        self._mailbox.wake("start", urgent=True)

    def stand_by(self) -> None:
        """Begin nothing any more, and go on looking."""
        self._actuator = None
        self.orders.stand_by()
        self.metrics.led(leading=False)

    def order(self, order: Order) -> str:
        """Take an order of a person and say what it does; the next tick carries it out.

        Raises:
            OrderRefused: it can't be carried out; nothing has happened.
        """
        tick, actuator = self.last, self._actuator
        if tick is None or actuator is None:
            raise OrderRefused(
                "NotLeading" if actuator is None else "NotReady",
                "this controller doesn't lead"
                if actuator is None
                else "this controller has decided nothing yet",
                hint="ask again in some seconds",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
            )
        stock = self.orders.mark(self._wiring.cluster.stock())
        return self.orders.give(order, self._sight(tick.snapshot, tick.decision, stock, actuator))

    def _sight(self, snapshot: Snapshot, decision: Decision, stock: Stock, actuator: Actuator) -> Sight:
        """Return what an order is judged by."""
        seats = {seat.name: seat for seat in chain.from_iterable(stock.values())}
        free = {seat.name for seat in actuator.candidates(seats.values())}
        return Sight(
            wall=self._wiring.clock.wall(),
            policies={policy.name: policy for policy in self._table.policies},
            fleets={fleet.name: fleet for fleet in self._table.fleets},
            namespaces=self._table.namespaces,
            snapshot=snapshot,
            decision=decision,
            seats=seats,
            occupied={name for name in seats if name not in free or actuator.works_on(name)},
            freezes=self.orders.freezes,
            drained=self.orders.drained_of,
        )

    def learn(self, histories: Mapping[FleetName, History]) -> None:
        """Take over what fleets learned before, in the time of this wiring's clock, of those that have learned less since."""
        memory = self._memory
        longer = {
            name: history.rises
            for name, history in histories.items()
            if _begins_before(history.rises, _rises(memory, name))
        }
        fleets = {
            name: replace(known, rises=longer.pop(name)) if name in longer else known
            for name, known in memory.fleets.items()
        }
        self._memory = replace(memory, fleets=fleets, learned={**memory.learned, **longer})
        for name, history in histories.items():
            self._starts.remember(name, history.starts)
        self._ledger = Ledger()  # a replay takes up what is remembered from now on

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
        self.metrics.led(leading=self._actuator is not None)
        try:
            while True:
                causes = await self._mailbox.wait(self._sleep())
                self.tick(causes)
        finally:
            unsubscribe()
            self.metrics.led(leading=False)

    def _cluster_changed(self) -> None:
        self._mailbox.wake("cluster", urgent=True, fleets=())

    @property
    def due_at(self) -> float:
        """Monotonic seconds at which something is to be looked at next if nothing happens."""
        return self._lookout.due_at

    def _sleep(self) -> float:
        left = self.due_at - self._wiring.clock.monotonic()
        return min(max(left, 0.001), LONGEST_SECONDS)

    def tick(self, wake: Wake) -> None:
        """Observe, decide, plan, begin the actions, publish: for the islands that it is time to look at.

        What hasn't been known to be current for long is no ground to decide on: nothing is done then, and nothing new is told.
        """
        wiring, actuator = self._wiring, self._actuator
        self.looks += 1
        if not wiring.cluster.synced or wiring.cluster.age > OLDEST_CACHE_SECONDS:
            return
        began, wall = wiring.clock.monotonic(), wiring.clock.wall()
        wiring.metrics.woke(wake.causes)
        if self._table is not self._coming:
            self._follow(self._coming)
        stock = wiring.cluster.stock()
        picked = self._lookout.pick(wake, stock, wiring.cluster.replicas, began)
        if not picked and self.last is not None and self._lookout.has_islands:
            return
        seen = self._see(picked, stock, wall, began)
        before = self._memory
        decision = self._decide(picked, seen.snapshot, began)
        planned = _NOTHING
        if actuator is not None:
            planned = self._plan(actuator, seen, decision, wall)
            if self.orders.waiting:
                sight = self._sight(seen.snapshot, decision, seen.marked, actuator)
                planned = self.orders.carry_out(planned, sight)
            actuator.adopt(seen.ours)
            actuator.start(planned.actions, self._triggers(planned, wall))
        tick = self.last = self._tick(wake, seen, decision, planned)
        wiring.metrics.looked(wall, wiring.clock.monotonic() - began)
        if actuator is not None:
            wiring.metrics.ticked(tick, self._table)
            self._publish(tick, seen, decision, before)

    def _follow(self, table: PolicyTable) -> None:
        """Put a table in force: look at everything, and forget what isn't in it."""
        self._table = table
        self._lookout = _lookout(table)
        kept = self._memory.part((p.name for p in table.policies), (f.name for f in table.fleets))
        self._memory = replace(kept, learned=self._memory.learned)
        self._in_flight.clear()
        self._healing.keep([fleet.name for fleet in table.fleets])
        self._planner = Planner()

    def _see(self, picked: Sequence[Watched], stock: Stock, wall: float, now: float) -> _Seen:
        """Look at islands: mark what is lent on them, count their seats, read their signals and the clock."""
        wiring, table = self._wiring, self._table
        on = together([each.island for each in picked])
        here = {fleet.name: stock.get(fleet.name, ()) for fleet in on.fleets}
        clocked = table.calendar.at(wall, now, [policy.name for policy in on.policies], here)
        decided = {} if self.last is None else self.last.decision.policies
        windows = {policy.name: policy.burst.stable_window for policy in on.policies}
        self.orders.look(here, windows, self._actuator, now)
        marked = self.orders.mark(self._lending.mark(on.policies, clocked.serving_floors, decided, here))
        for fleet, seats in marked.items():
            self._starts.look(fleet, seats, wall)
        ordered = self.orders.frozen(here)
        if self._actuator is not None:
            rules = self._healed(on, clocked.frozen.keys() | ordered.keys())
            marked = self._healing.mark(rules, marked, wall)
        load = partial(wiring.signals.load, now=now)
        self._views.wall = wall
        snapshot = observe(on.policies, on.fleets, marked, wiring.cluster.replicas, load, self._views)
        wiring.signals.seen(snapshot.loads)
        self._lookout.saw(here, {fleet: view.replicas for fleet, view in snapshot.fleets.items()})
        pinned = self._pinned(here, now)
        snapshot = Snapshot(
            loads=snapshot.loads,
            fleets=snapshot.fleets,
            serving_floors=clocked.serving_floors,
            seat_floors=clocked.seat_floors,
            frozen=_later({**pinned, **clocked.frozen}, ordered),
            one_way=self._one_way(pinned.keys() - clocked.frozen.keys() - ordered.keys()),
            ordered=self.orders.kept(windows.keys()),
            seat_budget=table.seat_budget,
            gpu_budget=table.gpu_budget,
            partial=self._lookout.partial(picked),
        )
        return _Seen(
            wall=wall,
            on=on,
            stock=stock,
            marked=marked,
            snapshot=snapshot,
            left_alone=frozenset(clocked.frozen) | frozenset(ordered),
        )

    def _healed(self, on: Island, frozen: AbstractSet[FleetName]) -> Mapping[FleetName, Rule]:
        """Return what fleets say of replacing seats, of those on which anything may be done."""
        rules = self._table.healing
        return {
            fleet.name: rules[fleet.name]
            for fleet in on.fleets
            if fleet.name in rules and not fleet.observe and fleet.name not in frozen
        }

    def _pinned(self, fleets: Iterable[FleetName], now: float) -> Mapping[FleetName, float]:
        """Return until when pinned fleets keep their size: for a while, in whole steps, so that the ledger has little to tell."""
        until = (math.floor(now / _PINNED_SECONDS) + 2.0) * _PINNED_SECONDS
        pinned = self._wiring.pinned()
        return {fleet: until for fleet in fleets if fleet in pinned}

    def _one_way(self, fleets: AbstractSet[FleetName]) -> Mapping[FleetName, OneWay]:
        pinned = self._wiring.pinned()
        return {fleet: way for fleet in fleets if (way := pinned.get(fleet)) is not None}

    def _decide(self, picked: Sequence[Watched], snapshot: Snapshot, now: float) -> Decision:
        """Decide island by island, so that each has its own time at which it is looked at again.

        What a budget couples is decided at once.
        """
        groups = [list(picked)] if self._lookout.together else [[each] for each in picked]
        policies: dict[PolicyName, PolicyDecision] = {}
        fleets: dict[FleetName, FleetDecision] = {}
        times, memories = [], []
        for group in groups:
            on = together([each.island for each in group])
            decision, memory = decide(on.policies, on.fleets, snapshot, self._memory, now)
            policies |= decision.policies
            fleets |= decision.fleets
            memories.append(memory)
            if decision.next_wakeup is not None:
                times.append(decision.next_wakeup)
            for each in group:
                each.looked(now, decision.next_wakeup)
        self._memory = self._memory.joined(*memories)
        return Decision(
            at=self._memory.at,
            policies=policies,
            fleets=fleets,
            next_wakeup=min(times, default=None),
            law=LAW_VERSION,
        )

    def _plan(self, actuator: Actuator, seen: _Seen, decision: Decision, wall: float) -> Plan:
        """Name the seats, within what the limits leave beside what is under way on fleets that aren't looked at."""
        under_way = self._in_flight
        for fleet in seen.marked:
            under_way.pop(fleet, None)
        limits = replace(
            self._limits,
            max_promotions=max(
                0, self._limits.max_promotions - sum(e.promotions for e in under_way.values())
            ),
            max_demotions=max(0, self._limits.max_demotions - sum(e.demotions for e in under_way.values())),
        )
        planned = self._planner.plan_fleets(
            replace(_wants(seen, decision), kept=self.orders.places(decision)),
            actuator.candidates_of(seen.marked),
            limits,
            wall,
            settled=actuator.settled,
            left_alone=actuator.left_alone,
        )
        under_way.update(planned.in_flight)
        return planned

    def _triggers(self, planned: Plan, wall: float) -> Mapping[PolicyName, Trigger]:
        triggers = {}
        for action in planned.actions:
            if isinstance(action, Promote | Recall | Switch) and action.policy not in triggers:
                observed = self._wiring.signals.observed_at(action.policy)
                sample = wall if observed is None else observed
                triggers[action.policy] = Trigger(sample=sample, decision=wall)
        return triggers

    def _tick(self, wake: Wake, seen: _Seen, decision: Decision, planned: Plan) -> Tick:
        """Return what is known now; of what wasn't looked at, what was known before."""
        last, snapshot = self.last, seen.snapshot
        shown = {} if last is None else last.stock
        if last is not None and snapshot.partial:
            snapshot = _beside(last.snapshot, snapshot)
            decision = replace(
                decision,
                policies={**last.decision.policies, **decision.policies},
                fleets={**last.decision.fleets, **decision.fleets},
            )
        stock = self._shown(shown, seen, snapshot.fleets.keys())
        return Tick(
            number=1 if last is None else last.number + 1,
            at=seen.wall,
            causes=wake.causes,
            looked=seen.on,
            snapshot=snapshot,
            decision=decision,
            plan=planned,
            stock=stock,
        )

    def _shown(self, shown: Stock, seen: _Seen, fleets: AbstractSet[FleetName]) -> Stock:
        """Return the seats as they were shown last, and those of fleets without a policy, and those looked at, as they are now.

        With the same fleets as before it is theirs, but for the few without a policy: a tick that one policy has woken doesn't go
        through hundreds of others for that.
        """
        stock = seen.stock
        if shown.keys() != stock.keys() or self._shown_for is not self._table:
            self._shown_for = self._table
            self._unowned = stock.keys() - fleets
            known = {
                fleet: shown.get(fleet, seats) if fleet in fleets else seats for fleet, seats in stock.items()
            }
            return {**known, **seen.marked}
        now = dict(shown)
        for fleet in self._unowned:
            now[fleet] = stock[fleet]
        now |= seen.marked
        return now

    def _publish(self, tick: Tick, seen: _Seen, decision: Decision, before: Memory) -> None:
        self._wiring.published(tick)
        events = self._wiring.events
        events.stock(tick.stock)
        for name, policy in decision.policies.items():
            load = seen.snapshot.loads[name]
            events.load(policy, load.queued.value, load.in_flight.value, load.oldest_wait.value)
        line = self._ledger.line(
            Entry(
                number=tick.number,
                at=tick.at,
                causes=tick.causes,
                rules=self._table,
                on=seen.on,
                before=before,
                snapshot=seen.snapshot,
                decision=decision,
                actions=whole(tick.plan.actions, self.orders.notes()),
            )
        )
        if "decision" in line:
            self.recent.add(line, len(self._table.policies) + len(self._table.fleets))
        self._wiring.ledger(line)


def _lookout(table: PolicyTable) -> Lookout:
    coupled = table.seat_budget is not None or table.gpu_budget is not None
    return Lookout(islands(table.policies, table.fleets), together=coupled)


def _wants(seen: _Seen, decision: Decision) -> Wants:
    enforced, frozen = seen.enforced, seen.snapshot.frozen
    resized = {
        fleet.name for fleet in seen.on.fleets if fleet.resized and fleet.name not in frozen
    } & enforced
    serving: dict[FleetName, dict[PolicyName, int]] = {name: {} for name in enforced}
    needed: dict[FleetName, dict[PolicyName, int]] = {name: {} for name in enforced}
    warm: dict[FleetName, dict[PolicyName, int]] = {name: {} for name in enforced}
    starting: dict[FleetName, dict[PolicyName, int]] = {name: {} for name in enforced}
    for name, policy in decision.policies.items():
        for fleet, count in policy.serving.items():
            if fleet in enforced:
                serving[fleet][name] = count
                needed[fleet][name] = policy.wanted[fleet]
        for fleet, count in policy.warm.items():
            if fleet in enforced:
                warm[fleet][name] = count
        for fleet, count in policy.starting.items():
            if fleet in enforced:
                starting[fleet][name] = count
    order = sorted(seen.on.policies, key=lambda policy: (-policy.priority, policy.name))
    return Wants(
        serving=serving,
        needed=needed,
        order=[policy.name for policy in order],
        totals={name: decision.fleets[name].total for name in resized},
        replicas={name: seen.snapshot.fleets[name].replicas for name in resized},
        frozen=seen.left_alone,
        ended_at_once=frozenset(policy.name for policy in seen.on.policies if policy.ended_at_once),
        warm=warm,
        starting=starting,
    )


def _beside(before: Snapshot, part: Snapshot) -> Snapshot:
    """Return a whole snapshot with a part of it seen anew."""
    return Snapshot(
        loads={**before.loads, **part.loads},
        fleets={**before.fleets, **part.fleets},
        serving_floors={**before.serving_floors, **part.serving_floors},
        seat_floors={**before.seat_floors, **part.seat_floors},
        frozen={**before.frozen, **part.frozen},
        one_way={**before.one_way, **part.one_way},
        ordered={**before.ordered, **part.ordered},
        seat_budget=part.seat_budget,
        gpu_budget=part.gpu_budget,
    )


def _later(
    frozen: Mapping[FleetName, float], ordered: Mapping[FleetName, float]
) -> Mapping[FleetName, float]:
    """Put freezes together: of two of one fleet the one that ends later holds."""
    return {**frozen, **{fleet: max(until, frozen.get(fleet, until)) for fleet, until in ordered.items()}}


def _rises(memory: Memory, fleet: FleetName) -> Rises:
    known = memory.fleets.get(fleet)
    return memory.learned.get(fleet, NO_RISES) if known is None else known.rises


def _begins_before(rises: Rises, others: Rises) -> bool:
    return rises.since is not None and (others.since is None or rises.since < others.since)


async def heartbeat(controller: Controller, longest: float) -> None:
    """Raise if the loop has not gone on for `longest` seconds: a stuck controller is worse than a restarted one."""
    seen = -1
    while True:
        await asyncio.sleep(longest)
        if controller.looks == seen:
            raise RuntimeError(f"the decision loop has not ticked for {longest:.0f} s")
        seen = controller.looks
