"""What the actuator and the loop do reaches the metrics: real parts, seats and agents in memory, virtual time."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from scaler.core.model import FleetShare, FleetSpec, Load, PolicySpec
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.controller import Controller, PolicyTable, Wiring
from scaler.runtime.events import EventLog, Trigger
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics
from tests.fakes.loop_clock import LoopClock
from tests.fakes.memory_cluster import MemoryAgents, MemoryCluster
from warmpool.claim import Term
from warmpool.errors import EngineLost
from warmpool.plan import Action, Demote, Promote
from warmpool.seats import FleetName, PolicyName, Seat

pytestmark = pytest.mark.looptime

CHAT, SPARES = PolicyName("chat"), FleetName("spares")
POLICY = PolicySpec(name=CHAT, fleets=(FleetShare(fleet=SPARES, target_in_flight=8),))
FLEET = FleetSpec(name=SPARES, max_seats=1, spare_target=1, observe=True)


class Silent:
    """No signals at all."""

    def load(self, policy: PolicyName, now: float) -> Load:
        del policy, now
        return Load()

    def observed_at(self, policy: PolicyName) -> float | None:
        del policy
        return None

    def seen(self, policies: Iterable[PolicyName]) -> None:
        """Nothing to forget."""


@dataclass
class Stage:
    """One warm seat of a fleet in Observe, so that the loop looks on and the test acts."""

    cluster: MemoryCluster
    actuator: Actuator
    registry: CollectorRegistry
    controller: asyncio.Task[None]

    @property
    def seat(self) -> Seat:
        return self.cluster.seats()[0]

    async def act(self, action: Action) -> None:
        now = LoopClock().wall()
        self.actuator.start([action], {CHAT: Trigger(sample=now, decision=now)})
        await asyncio.sleep(20)

    def read(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"emberpool_{name}", labels)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    clock, mailbox, registry = LoopClock(), Mailbox(), CollectorRegistry()
    cluster = MemoryCluster({SPARES: [CHAT]}, clock.wall)
    events = EventLog(lambda _: None, clock)
    ports = Ports(cluster=cluster, agents=MemoryAgents(cluster.engines), clock=clock, events=events)
    actuator = Actuator(ports, Term(holder="test", epoch=1), mailbox.ended)
    wiring = Wiring(
        cluster=cluster,
        signals=Silent(),
        actuator=actuator,
        events=events,
        clock=clock,
        metrics=ControllerMetrics(registry),
        ledger=lambda _: None,
    )
    controller = Controller(PolicyTable(policies=(POLICY,), fleets=(FLEET,), hash="h"), wiring, mailbox)
    async with asyncio.TaskGroup() as tasks:
        parts = [tasks.create_task(part) for part in (cluster.run(), actuator.run(), controller.run())]
        await cluster.resize(SPARES, 1)
        await asyncio.sleep(30)
        try:
            yield Stage(cluster, actuator, registry, parts[-1])
        finally:
            for part in parts:
                part.cancel()


async def test_a_promotion_its_first_token_and_a_demotion_are_counted() -> None:
    async with stage() as on:
        began = LoopClock().wall()
        await on.act(Promote(seat=on.seat, policy=CHAT, why="test"))
        labels = {"policy": "chat", "operation": "Promote"}
        assert on.read("promotions_total", **labels, outcome="Promoted") == 1.0
        resumed = on.read("promotion_duration_seconds_sum", **labels, stage="resumed")
        assert resumed == pytest.approx(0.03, abs=0.02)
        on.actuator.first_content(CHAT, on.seat.name, began + 0.1, began, began + 0.2)
        on.actuator.first_content(CHAT, on.seat.name, began + 5.0, began, began + 6.0)
        assert on.read("promotion_to_first_token_seconds_count", policy="chat") == 1.0
        assert on.read("promotion_to_first_token_seconds_sum", policy="chat") == pytest.approx(0.2)
        await on.act(Demote(seat=on.seat, policy=CHAT, why="test"))
        assert on.read("demotions_total", policy="chat", outcome="Demoted") == 1.0


async def test_promotions_that_fail_are_counted_with_the_rests_and_the_replacement() -> None:
    async with stage() as on:
        on.cluster.engines.refuse = lambda *_: EngineLost("gone")
        for _ in range(3):
            await on.act(Promote(seat=on.seat, policy=CHAT, why="test"))
        assert on.read("promotions_total", policy="chat", operation="Promote", outcome="Failed") == 3.0
        assert on.read("seat_rests_total", fleet="spares") == 2.0
        assert on.read("replacements_total", fleet="spares") == 1.0
        assert on.read("promotion_to_rotation_seconds_count", policy="chat") == 0.0


async def test_a_controller_leads_while_its_loop_runs() -> None:
    async with stage() as on:
        assert on.read("leader") == 1.0
        assert (on.read("tick_wakeups_total", cause="start") or 0) == 1.0
        assert (on.read("seat_seconds_total", fleet="spares", value="Spare") or 0) > 20.0
        on.controller.cancel()
        await asyncio.wait([on.controller])
        assert on.read("leader") == 0.0
