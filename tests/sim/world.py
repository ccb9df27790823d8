"""The whole controller in virtual time: real loop, law, planner and actuator; seats, agents and requests in memory.

Requests wait in one queue per policy for a free slot of a serving resident, as in the gateway, and hold it for their
service time. Nothing here decides anything.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from scaler.core.model import FleetSpec, Load, OneWay, PolicySpec, Quality, Reading
from scaler.policy.calendar import Calendar
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.controller import Controller, PolicyTable, Wiring
from scaler.runtime.events import EventLog
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from tests.fakes.loop_clock import EPOCH, LoopClock
from tests.fakes.memory_cluster import MemoryAgents, MemoryCluster, Timing
from warmpool.claim import Term
from warmpool.healing import Rule
from warmpool.seats import FleetName, PolicyName, SeatName


@dataclass
class Request:
    """One request's life; times of the loop."""

    policy: PolicyName
    arrived: float
    started: float | None = None
    finished: float | None = None
    seat: SeatName | None = None
    lost: bool = False

    @property
    def waited(self) -> float:
        assert self.started is not None
        return self.started - self.arrived


class Traffic:
    """Requests in and out, and what a gateway would say of them."""

    def __init__(self, cluster: MemoryCluster, slots: Mapping[PolicyName, int], mailbox: Mailbox) -> None:
        self.requests: list[Request] = []
        self._cluster = cluster
        self._slots = slots
        self._mailbox = mailbox
        self._queues: dict[PolicyName, deque[tuple[Request, float]]] = {p: deque() for p in slots}
        self._finished: dict[PolicyName, list[float]] = {p: [] for p in slots}
        self._tasks: asyncio.TaskGroup | None = None
        self.silent: set[PolicyName] = set()
        self.garbled: set[PolicyName] = set()
        self._observed: dict[PolicyName, float] = {}

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def arrive(self, policy: PolicyName, seconds: float) -> Request:
        request = Request(policy=policy, arrived=self._now())
        self.requests.append(request)
        self._queues[policy].append((request, seconds))
        self.pump()
        self._changed(policy)
        return request

    def _changed(self, policy: PolicyName) -> None:
        self._observed[policy] = EPOCH + self._now()
        self._mailbox.wake("sample", urgent=True, policies=(policy,))

    def pump(self) -> None:
        """Give waiting requests to serving residents with room, least outstanding first."""
        for policy, queue in self._queues.items():
            while queue:
                rooms = [
                    (self._held(seat.name, policy), seat.name)
                    for seat in self._cluster.seats()
                    if policy in seat.serving and self._held(seat.name, policy) < self._slots[policy]
                ]
                if not rooms:
                    break
                request, seconds = queue.popleft()
                seat = min(rooms)[1]
                held = self._cluster.engines.in_flight
                held[seat, policy] = held.get((seat, policy), 0) + 1
                request.started, request.seat = self._now(), seat
                assert self._tasks is not None
                self._tasks.create_task(self._serve(request, seat, seconds))

    def _held(self, seat: SeatName, policy: PolicyName) -> int:
        return self._cluster.engines.in_flight.get((seat, policy), 0)

    async def _serve(self, request: Request, seat: SeatName, seconds: float) -> None:
        key, held = (seat, request.policy), self._cluster.engines.in_flight
        await asyncio.sleep(seconds)
        if key in held:
            held[key] -= 1
            request.finished = self._now()
            self._finished[request.policy].append(self._now())
        else:
            request.lost = True
        self.pump()
        self._changed(request.policy)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            end = self._cluster.subscribe(self.pump)
            try:
                await asyncio.Event().wait()
            finally:
                end()

    # the Signals protocol

    def load(self, policy: PolicyName, now: float) -> Load:
        if policy in self.silent:
            return Load()
        if policy in self.garbled:
            return Load(queued=fresh(math.nan), in_flight=fresh(math.inf), engines=fresh(-1.0))
        queue = self._queues[policy]
        queued = float(len(queue))
        held = float(sum(n for (_, p), n in self._cluster.engines.in_flight.items() if p == policy))
        oldest = now - queue[0][0].arrived if queue else 0.0
        recent = [at for at in self._finished[policy][-500:] if at > now - 3.0]
        return Load(
            queued=fresh(queued),
            in_flight=fresh(held),
            oldest_wait=fresh(oldest),
            peak=fresh(queued + held),
            completions=fresh(len(recent) / 3.0),
        )

    def observed_at(self, policy: PolicyName) -> float | None:
        return self._observed.get(policy)

    def seen(self, policies: Iterable[PolicyName]) -> None:
        pass


def fresh(value: float) -> Reading:
    return Reading(value=value, age=0.0, quality=Quality.FRESH)


@dataclass
class World:
    """Everything that one simulated run is made of."""

    cluster: MemoryCluster
    agents: MemoryAgents
    traffic: Traffic
    controller: Controller
    mailbox: Mailbox
    records: list[Mapping[str, object]] = field(default_factory=list)
    ledger: list[Mapping[str, object]] = field(default_factory=list)

    def events(self, kind: str) -> list[Mapping[str, object]]:
        return [record for record in self.records if record["kind"] == kind]

    def serving(self, policy: str) -> int:
        return sum(policy in seat.serving for seat in self.cluster.seats())

    async def constant(self, policy: str, rate: float, service: float, seconds: float) -> None:
        """Requests at a constant rate for a while; arrivals wait for nothing."""
        for _ in range(int(rate * seconds)):
            self.traffic.arrive(PolicyName(policy), service)
            await asyncio.sleep(1.0 / rate)

    async def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait in the loop's time until a condition holds."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)


@asynccontextmanager
async def world(
    policies: Sequence[PolicySpec],
    fleets: Sequence[FleetSpec],
    *,
    timing: Timing | None = None,
    budget: int | None = None,
    calendar: Calendar | None = None,
    signals: Callable[[MemoryCluster, Mapping[PolicyName, int], Mailbox], Traffic] = Traffic,
    pinned: Callable[[], Mapping[FleetName, OneWay | None]] = dict,
    healing: Mapping[FleetName, Rule] | None = None,
) -> AsyncIterator[World]:
    """Run a controller over a simulated machine; `signals` are what it is told of the traffic."""
    clock, mailbox = LoopClock(), Mailbox()
    residents: dict[FleetName, list[PolicyName]] = {fleet.name: [] for fleet in fleets}
    for policy, share in itertools.chain.from_iterable(
        zip(itertools.repeat(p), p.fleets, strict=False) for p in policies
    ):
        residents[share.fleet].append(policy.name)
    cluster = MemoryCluster(dict(residents), clock.wall, timing)
    agents = MemoryAgents(cluster.engines)
    slots = {policy.name: policy.fleets[0].target_in_flight for policy in policies}
    traffic = signals(cluster, slots, mailbox)
    records: list[Mapping[str, object]] = []
    ledger: list[Mapping[str, object]] = []
    events = EventLog(records.append, clock)
    actuator = Actuator(
        Ports(cluster=cluster, agents=agents, clock=clock, events=events),
        Term(holder="sim", epoch=1),
        mailbox.ended,
    )
    wiring = Wiring(
        cluster=cluster,
        signals=traffic,
        actuator=actuator,
        events=events,
        clock=clock,
        metrics=ControllerMetrics(CollectorRegistry()),
        ledger=ledger.append,
        pinned=pinned,
    )
    table = PolicyTable(
        policies=policies,
        fleets=fleets,
        hash="sim",
        calendar=calendar or Calendar(),
        seat_budget=budget,
        healing=healing or {},
    )
    controller = Controller(table, wiring, mailbox)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(part)
            for part in (cluster.run(), traffic.run(), actuator.run(), controller.run())
        ]
        try:
            yield World(cluster, agents, traffic, controller, mailbox, records, ledger)
        finally:
            for task in running:
                task.cancel()
