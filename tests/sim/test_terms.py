"""Terms of leadership in virtual time: who stands by is warm and does nothing, who leads acts, and nobody does without a lease."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scaler.cluster.kube.election import Elector, Leadership
from scaler.cluster.kube.lease import Candidate, Timing
from scaler.core.model import FallbackBehavior, FleetShare, FleetSpec, OneWay, PolicySpec
from scaler.keda.answers import STALE_SECONDS, UNKNOWN_SECONDS, Answer, Code, Refused, answer
from scaler.keda.settings import KedaSettings
from scaler.keda.trigger import read
from scaler.policy.reading import PolicyFiles
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.controller import Controller, Tick
from scaler.runtime.events import EventLog
from scaler.runtime.keda_answers import KedaAnswers
from scaler.runtime.led import LedAgents
from tests.fakes.loop_clock import LoopClock
from tests.sim.test_keda_answers import FILE
from tests.sim.world import World, world
from tests.unit.scaler.cluster.kube.test_election import Line, Server
from warmpool.claim import Term
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime
CHAT, SPARES = PolicyName("chat"), FleetName("spares")
TIMING = Timing()
POLICY = PolicySpec(
    name=CHAT,
    fleets=(FleetShare(fleet=SPARES, target_in_flight=4),),
    serving_min=1,
    serving_max=4,
    fallback=FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER,
    fallback_serving=3,
)
FLEET = FleetSpec(name=SPARES, max_seats=6, spare_target=2)


def actuator(on: World, epoch: int, leadership: Leadership | None = None) -> Actuator:
    agents = on.agents if leadership is None else LedAgents(on.agents, leadership)
    ports = Ports(
        cluster=on.cluster,
        agents=agents,
        clock=LoopClock(),
        events=EventLog(on.records.append, LoopClock()),
    )
    return Actuator(ports, Term(holder=f"c{epoch}", epoch=epoch), on.mailbox.ended)


@asynccontextmanager
async def acting(on: World, epoch: int) -> AsyncIterator[None]:
    made = actuator(on, epoch)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(made.run())
        await asyncio.sleep(0)
        on.controller.lead(made)
        yield
        on.controller.stand_by()
        task.cancel()


async def settled(on: World) -> None:
    await on.until(lambda: on.serving("chat") >= 1 and len(on.cluster.seats()) == 3)
    await asyncio.sleep(10)


async def test_who_stands_by_looks_and_does_nothing_and_who_leads_goes_on_from_there() -> None:
    async with world([POLICY], [FLEET]) as on:
        await settled(on)
        on.controller.stand_by()
        orders, lines = len(on.agents.orders), len(on.ledger)
        for _ in range(8):
            on.traffic.arrive(CHAT, 30.0)
        await asyncio.sleep(3.0)
        tick = on.controller.last
        assert tick is not None
        assert sum(tick.decision.policies[CHAT].serving.values()) > 1  # it knows what it would do
        assert (len(on.agents.orders), len(on.ledger)) == (orders, lines)
        assert on.serving("chat") == 1
        async with acting(on, epoch=2):
            began = asyncio.get_running_loop().time()
            await on.until(lambda: on.serving("chat") >= 2)
            assert asyncio.get_running_loop().time() - began < 0.5
            assert "start" in on.ledger[lines]  # a ledger that can be replayed from there


@dataclass
class Replica:
    """One that stands for election, over a world."""

    on: World
    line: Line
    terms: list[int] = field(default_factory=list)

    async def run(self) -> None:
        elector = Elector(self.line, Candidate(identity="me"), TIMING, asyncio.get_running_loop().time)
        await elector.run(self.lead)

    async def lead(self, leadership: Leadership) -> None:
        made = actuator(self.on, leadership.term.epoch, leadership)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(made.run())
                await asyncio.sleep(0)
                self.terms.append(leadership.term.epoch)
                self.on.controller.lead(made)
        finally:
            self.on.controller.stand_by()


@asynccontextmanager
async def standing(on: World) -> AsyncIterator[Replica]:
    replica = Replica(on, Line(Server()))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(replica.run())
        await on.until(lambda: on.controller.actuator is not None)
        yield replica
        task.cancel()


async def test_without_the_api_server_nothing_is_done_and_with_it_everything_goes_on() -> None:
    async with world([POLICY], [FLEET]) as on:
        await settled(on)
        on.controller.stand_by()
        async with standing(on) as replica:
            await asyncio.sleep(5)
            replica.line.cut = True
            await asyncio.sleep(TIMING.renew + TIMING.attempt)
            assert on.controller.actuator is None
            orders = len(on.agents.orders)
            for _ in range(8):
                on.traffic.arrive(CHAT, 60.0)
            await asyncio.sleep(30)
            assert len(on.agents.orders) == orders
            assert on.serving("chat") == 1  # what serves goes on
            replica.line.cut = False
            await on.until(lambda: on.serving("chat") >= 2, TIMING.lease + 2 * TIMING.retry + 1)
            assert replica.terms == [1, 2]


def asked(keda: KedaAnswers, metadata: Mapping[str, str]) -> Answer | Code:
    try:
        return answer(read(metadata), keda.board.current, LoopClock().monotonic())
    except Refused as refused:
        return refused.code


async def test_answers_age_and_go_over_to_the_fallback_while_nobody_leads(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(FILE, "utf-8")
    keda = KedaAnswers(PolicyFiles((tmp_path,)).read().set, LoopClock(), KedaSettings())
    async with world([POLICY], [FLEET]) as on:
        await settled(on)
        told: Controller = on.controller
        last = told.last
        assert isinstance(last, Tick)
        keda.published(last)
        on.controller.stand_by()
        total = float(last.decision.fleets[SPARES].total)
        found = asked(keda, {"fleet": "spares"})
        assert isinstance(found, Answer)
        assert (found.value, found.stale) == (total, False)
        await asyncio.sleep(30)
        found = asked(keda, {"fleet": "spares"})
        assert isinstance(found, Answer)
        assert (found.value, found.stale, round(found.age)) == (total, False, 30)
        await asyncio.sleep(STALE_SECONDS)
        found = asked(keda, {"fleet": "spares"})
        assert isinstance(found, Answer)
        assert (found.value, found.stale) == (5.0, True)  # three by the policy's fallback, and two spares
        await asyncio.sleep(UNKNOWN_SECONDS)
        assert asked(keda, {"fleet": "spares"}) is Code.UNAVAILABLE


async def test_a_fleet_that_may_only_grow_does_so_and_loses_no_seat() -> None:
    """KEDA's scale-in is paused: what is published rises with a burst, and stays when it is over."""
    keda = FleetSpec(name=SPARES, max_seats=6, spare_target=2, resized=False)
    async with world([POLICY], [keda], pinned=lambda: {SPARES: OneWay.UP}) as on:
        await on.cluster.resize(SPARES, 3)
        await on.until(lambda: on.serving("chat") >= 1)
        for _ in range(16):
            on.traffic.arrive(CHAT, 5.0)

        def total() -> int:
            assert on.controller.last is not None
            return on.controller.last.decision.fleets[SPARES].total

        await on.until(lambda: total() == 5)
        await on.cluster.resize(SPARES, 5)
        await asyncio.sleep(900)
        assert (total(), on.serving("chat")) == (5, 1)


async def test_a_pinned_fleet_keeps_its_size_whatever_is_decided() -> None:
    pinned: dict[FleetName, OneWay | None] = {}
    keda = FleetSpec(name=SPARES, max_seats=6, spare_target=2, resized=False)
    async with world([POLICY], [keda], pinned=lambda: pinned) as on:
        await on.cluster.resize(SPARES, 3)
        await on.until(lambda: on.serving("chat") >= 1)
        pinned[SPARES] = None
        for _ in range(16):
            on.traffic.arrive(CHAT, 120.0)
        await asyncio.sleep(5)
        tick = on.controller.last
        assert tick is not None
        assert (tick.decision.fleets[SPARES].total, len(on.cluster.seats())) == (3, 3)
        assert on.serving("chat") == 3  # its spares serve all the same
        pinned.clear()
        await asyncio.sleep(2)
        assert on.controller.last is not None
        assert on.controller.last.decision.fleets[SPARES].total > 3
