"""The controller's API with its metrics, over a real socket."""

import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from scaler.core.model import FleetShare, FleetSpec, PolicySpec
from scaler.gateway.observe import FAMILIES as GATEWAY
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.policy.compile import compile_set
from scaler.policy.document import parse_documents
from scaler.runtime.actuator import Actuator, Ports
from scaler.runtime.api import Api, Intake
from scaler.runtime.clock import SystemClock
from scaler.runtime.controller import Controller, PolicyTable, Wiring
from scaler.runtime.events import EventLog
from scaler.runtime.mailbox import Mailbox, Wake
from scaler.runtime.metrics import ControllerMetrics, catalogue
from scaler.runtime.push_tokens import PushTokens
from scaler.runtime.signal_api import SignalApi
from scaler.runtime.signals import PolicySignals
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

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 2}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec: {fleets: [{name: spares, targetInFlight: 8}]}
"""


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
    clock, mailbox, registry = SystemClock(), Mailbox(), CollectorRegistry()
    cluster = MemoryCluster({SPARES: [CHAT]}, clock.wall)
    events = EventLog(lambda _: None, clock)
    ports = Ports(cluster=cluster, agents=MemoryAgents(cluster.engines), clock=clock, events=events)
    metrics = ControllerMetrics(registry)
    signals = PolicySignals(compile_set(parse_documents(POLICIES, "f.yaml")), mailbox, clock, metrics, {})
    wiring = Wiring(
        cluster=cluster,
        signals=signals,
        actuator=Actuator(ports, Term(holder="test", epoch=1), mailbox.ended),
        events=events,
        clock=clock,
        metrics=metrics,
        ledger=lambda _: None,
    )
    controller = Controller(TABLE, wiring, mailbox)
    Gateway(GatewaySettings(), SilentObserver(), registry)
    app = Api(controller, Intake(report=report, token="t"), registry).application()
    app.add_routes(SignalApi(signals, PushTokens({"pushers": "t"})).routes())
    runner = web.AppRunner(app)
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
    return {
        "instance": "gw",
        "kind": "Gateway",
        "sequence": sequence,
        "at": time.time(),
        "policies": policies,
    }


def test_families_of_one_page_have_names_of_their_own() -> None:
    families: tuple[Family, ...] = (*catalogue.FAMILIES, *GATEWAY)
    assert len({family.name for family in families}) == len(families)


async def test_a_scrape_parses_and_holds_controller_and_gateway() -> None:
    async with served() as on:
        on.controller.tick(Wake(causes={"start": 1}, everything=True))
        found = await on.families()
        missing = {family.stem for family in (*catalogue.FAMILIES, *GATEWAY)} - set(found)
        assert missing == set()
        assert await on.read("fleet_max_seats", fleet="spares") == 2.0
        assert await on.read("tick_wakeups", cause="start") == 1.0


async def test_samples_and_reports_are_counted_by_whether_they_were_taken() -> None:
    async with served() as on:
        assert await on.post("/v1/signals", sample(1), "t") == 204
        assert await on.post("/v1/signals", sample(1), "t") == 400
        assert await on.post("/v1/agents", {"seat": "s"}, "t") == 204
        assert await on.post("/v1/agents", {}, "t") == 400
        assert await on.post("/v1/agents", {"seat": "s"}, "wrong") == 401
        assert await on.read("signal_samples", way="Http", outcome="Accepted") == 1.0
        assert await on.read("signal_samples", way="Http", outcome="Rejected") == 1.0
        assert await on.read("agent_reports", outcome="Accepted") == 1.0
        assert await on.read("agent_reports", outcome="Rejected") == 2.0


async def test_a_pushed_sample_is_demand_with_an_age() -> None:
    async with served() as on:
        assert await on.post("/v1/signals", sample(1), "t") == 204
        on.controller.tick(Wake(causes={"sample": 1}, everything=True))
        assert await on.read("demand_requests", policy="chat") == 2.0
        assert 0.0 <= await on.read("signal_age_seconds", policy="chat", source="gateway") < 1.5


@pytest.mark.parametrize(("numbers", "quality"), [({"backlog": 3}, "Fresh"), (None, "Missing")])
async def test_a_policys_signals_are_as_good_as_the_law_has_them(
    numbers: Mapping[str, float] | None, quality: str
) -> None:
    async with served() as on:
        body = {"instance": "jobs", "sequence": 1, "at": time.time(), "policies": {"chat": numbers}}
        if numbers is not None:
            assert await on.post("/v1/signals", body, "t") == 204
        on.controller.tick(Wake(causes={"start": 1}, everything=True))
        async with on.session.get(f"{on.url}/v1/policies") as answer:
            (policy,) = (await answer.json())["items"]
        assert (policy["queued"], policy["signals"]) == (None, quality)


async def test_a_policy_that_hears_nothing_says_since_when_and_where_to_look() -> None:
    async with served() as on:
        on.controller.tick(Wake(causes={"start": 1}, everything=True))
        async with on.session.get(f"{on.url}/v1/policies") as answer:
            (policy,) = (await answer.json())["items"]
    (sentence,) = [each["sentence"] for each in policy["reasons"] if each["code"] == "SignalsMissing"]
    assert re.search(
        r"; it has been so for [0-9.]+ m?s; this may change in [0-9.]+ s; `emberpool signals get`", sentence
    )


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_page_is_compressed_for_those_who_ask(encoding: str) -> None:
    async with served() as on:
        on.controller.tick(Wake(causes={"start": 1}, everything=True))
        async with on.session.get(f"{on.url}/metrics", headers={"Accept-Encoding": encoding}) as answer:
            assert answer.headers.get("Content-Encoding", "identity") == encoding
            assert "emberpool_leader 0.0" in await answer.text()


async def test_a_token_may_come_in_a_header_of_ours_where_a_proxy_keeps_the_usual_one() -> None:
    async with served() as on:
        for token, status in (("t", 204), ("wrong", 401), ("", 401)):
            headers = {"Emberpool-Token": token}
            async with on.session.post(f"{on.url}/v1/agents", json={"seat": "s"}, headers=headers) as answer:
                assert answer.status == status
