"""The controller's API with its metrics, over a real socket."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from scaler.core.model import FleetShare, FleetSpec, Load, PolicySpec
from scaler.gateway.observe import FAMILIES as GATEWAY
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.api import Api, Intake
from scaler.runtime.controller import Controller, PolicyTable, Wiring
from scaler.runtime.events import EventLog
from scaler.runtime.mailbox import Mailbox
from scaler.runtime.metrics import ControllerMetrics, catalogue
from scaler.signals.pushed import PushedSamples
from tests.fakes.loop_clock import LoopClock
from tests.fakes.memory_cluster import MemoryAgents, MemoryCluster
from warmpool.claim import Term
from warmpool.errors import BadOrder
from warmpool.metric_families import Family
from warmpool.seats import FleetName, PolicyName

CHAT, SPARES = PolicyName("chat"), FleetName("spares")
TABLE = PolicyTable(
    policies=(PolicySpec(name=CHAT, fleets=(FleetShare(fleet=SPARES, target_in_flight=8),)),),
    fleets=(FleetSpec(name=SPARES, max_seats=2, spare_target=1),),
    hash="h",
)


@dataclass
class Samples:
    """Pushed samples on the wall clock."""

    store: PushedSamples = field(default_factory=PushedSamples)

    def ingest(self, body: bytes) -> None:
        self.store.ingest(body, time.time())

    def load(self, policy: PolicyName, now: float) -> Load:
        del now  # samples are stamped with the wall clock
        return self.store.load(policy, time.time())

    def observed_at(self, policy: PolicyName) -> float | None:
        return self.store.sampled_at(policy, time.time())

    def seen(self) -> None:
        self.store.take_peaks()


def report(body: Mapping[str, Any]) -> None:
    if "seat" not in body:
        raise BadOrder("seat: missing")


@dataclass
class Server:
    """A controller's API as it listens."""

    url: str
    controller: Controller
    session: aiohttp.ClientSession

    async def families(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/metrics") as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return {family.name: family for family in text_string_to_metric_families(await answer.text())}

    async def read(self, family: str, **labels: str) -> float:
        (found,) = [
            sample.value
            for sample in (await self.families())[f"emberpool_{family}"].samples
            if sample.labels == labels and not sample.name.endswith("_created")
        ]
        return float(found)

    async def post(self, path: str, body: object, token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status


@asynccontextmanager
async def served() -> AsyncIterator[Server]:
    clock, mailbox, registry = LoopClock(), Mailbox(), CollectorRegistry()
    cluster = MemoryCluster({SPARES: [CHAT]}, clock.wall)
    events = EventLog(lambda _: None, clock)
    ports = Ports(cluster=cluster, agents=MemoryAgents(cluster.engines), clock=clock, events=events)
    samples = Samples()
    wiring = Wiring(
        cluster=cluster,
        signals=samples,
        actuator=Actuator(ports, Term(holder="test", epoch=1), mailbox.wake),
        events=events,
        clock=clock,
        metrics=ControllerMetrics(registry),
        ledger=lambda _: None,
    )
    controller = Controller(TABLE, wiring, mailbox)
    Gateway(GatewaySettings(), SilentObserver(), registry)
    intake = Intake(
        sample=samples.ingest,
        report=report,
        models={},
        token="t",
    )
    runner = web.AppRunner(Api(controller, intake, registry).application())
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            yield Server(f"http://127.0.0.1:{port}", controller, session)
    finally:
        await runner.cleanup()


def sample(sequence: int) -> dict[str, Any]:
    numbers = dict.fromkeys(("queued", "inFlight", "oldestWaitSeconds", "peak", "arrived", "completed"), 1)
    policies = {"chat": {**numbers, "refused": 0, "failed": 0}}
    return {"instance": "gw", "sequence": sequence, "at": time.time(), "policies": policies}


def test_families_of_one_page_have_names_of_their_own() -> None:
    families: tuple[Family, ...] = (*catalogue.FAMILIES, *GATEWAY)
    assert len({family.name for family in families}) == len(families)


async def test_a_scrape_parses_and_holds_controller_and_gateway() -> None:
    async with served() as on:
        on.controller.tick(Counter(start=1))
        found = await on.families()
        missing = {family.stem for family in (*catalogue.FAMILIES, *GATEWAY)} - set(found)
        assert missing == set()
        assert await on.read("fleet_max_seats", fleet="spares") == 2.0
        assert await on.read("tick_wakeups", cause="start") == 1.0


async def test_samples_and_reports_are_counted_by_whether_they_were_taken() -> None:
    async with served() as on:
        assert await on.post("/v1/signals", sample(1)) == 204
        assert await on.post("/v1/signals", sample(1)) == 400
        assert await on.post("/v1/agents", {"seat": "s"}, "t") == 204
        assert await on.post("/v1/agents", {}, "t") == 400
        assert await on.post("/v1/agents", {"seat": "s"}, "wrong") == 401
        assert await on.read("signal_samples", outcome="Accepted") == 1.0
        assert await on.read("signal_samples", outcome="Rejected") == 1.0
        assert await on.read("agent_reports", outcome="Accepted") == 1.0
        assert await on.read("agent_reports", outcome="Rejected") == 2.0


async def test_a_pushed_sample_is_demand_with_an_age() -> None:
    async with served() as on:
        assert await on.post("/v1/signals", sample(1)) == 204
        on.controller.tick(Counter(sample=1))
        assert await on.read("demand_requests", policy="chat") == 2.0
        assert 0.0 <= await on.read("signal_age_seconds", policy="chat", source="gateway") < 1.5


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_page_is_compressed_for_those_who_ask(encoding: str) -> None:
    async with served() as on:
        on.controller.tick(Counter(start=1))
        async with on.session.get(f"{on.url}/metrics", headers={"Accept-Encoding": encoding}) as answer:
            assert answer.headers.get("Content-Encoding", "identity") == encoding
            assert "emberpool_leader 0.0" in await answer.text()
