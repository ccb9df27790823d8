"""Two gateways and two controllers at once: loads add up, slots are shared, and who goes leaves nothing behind."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.core.model import FleetShare, PolicySpec
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.routing import routes
from scaler.signals.pushed import PushedSamples
from tests.fakes.memory_cluster import MemoryCluster
from tests.fakes.openai_engine import OpenAIEngine, Script
from tests.fakes.ports import free_ports
from tests.integration.gateway.rig import CHAT, until
from tests.integration.gateway.running import process
from warmpool.seats import FleetName, Resident, Seat, SeatName
from warmpool.states import ResidentState

FLEET = FleetName("own")
SLOTS = 5
POLICY = PolicySpec(name=CHAT, fleets=(FleetShare(fleet=FLEET, target_in_flight=SLOTS),))


def seat(url: str) -> Seat:
    resident = Resident(policy=CHAT, state=ResidentState.SERVING, since=1.0, address=url)
    return Seat(
        name=SeatName("seat-0"),
        uid="u0",
        version="",
        fleet=FLEET,
        residents=(resident,),
        serving=frozenset({CHAT}),
    )


@dataclass
class Controller:
    """What a controller is to gateways: it takes samples and publishes routes."""

    cluster: MemoryCluster
    term: int
    samples: PushedSamples = field(default_factory=PushedSamples)

    @property
    def demand(self) -> tuple[float, float]:
        load = self.samples.load(CHAT, time.time())
        return load.queued.value if load.queued.known else -1, load.in_flight.value

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        publisher = RoutePublisher(
            self.cluster,
            lambda seats: routes([POLICY], {CHAT: ("m",)}, seats),
            lambda: self.samples.gateways(time.time()),
            self.term,
        )

        async def signals(request: web.Request) -> web.Response:
            self.samples.ingest(await request.read(), time.time())
            return web.Response(status=204)

        app = web.Application()
        app.add_routes([web.post("/v1/signals", signals), web.get("/v1/routes", publisher.stream)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(publisher.run())
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                publishing.cancel()
                publisher.close()
                await runner.cleanup()


@asynccontextmanager
async def gateway(name: str, *controllers: str) -> AsyncIterator[tuple[Gateway, FollowedRoutes, str]]:
    settings = GatewaySettings(instance=name, controllers=controllers)
    made = Gateway(settings, SilentObserver(), CollectorRegistry())
    followed = FollowedRoutes(made, name, lambda _policy, _keys: None)
    follower = RouteFollower(controllers, followed.take, instance=name)
    async with (
        made.serve("127.0.0.1", 0) as url,
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as tasks,
    ):
        following = tasks.create_task(follower.run(session))
        try:
            yield made, followed, url
        finally:
            following.cancel()


def slots(made: Gateway) -> int:
    return sum(each.slots for each in made.routes.policies[CHAT].endpoints) if made.routes.policies else 0


async def ready(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(f"{url}/readyz") as response:
        return response.status == 200


@pytest.mark.wall_clock
async def test_two_gateways_share_and_add_up_and_a_killed_one_leaves_nothing_and_changes_nothing_else() -> (
    None
):
    """It takes four seconds: a process begins within two or three, and what it said is gone two after its death."""
    cluster = MemoryCluster({FLEET: [CHAT]}, lambda: 1.0)
    engine = OpenAIEngine(script=Script(gated=True))
    first, second = Controller(cluster, term=1), Controller(cluster, term=2)
    port, operators = free_ports(2)
    where = ("--instance", "gw-2", "--port", str(port), "--metrics-port", str(operators))
    async with (
        engine.serve() as engine_url,
        first.serve() as one,
        second.serve() as two,
        aiohttp.ClientSession() as session,
        asyncio.TaskGroup() as group,
        gateway("gw-1", one, two) as (kept, followed, kept_url),
        process(*where, controllers=(one, two)) as killed,
    ):

        async def ask(url: str) -> int:
            try:
                async with session.post(f"{url}/v1/completions", json={"model": "m"}) as response:
                    return response.status
            except aiohttp.ClientError:
                return 0

        cluster.objects.add(seat(engine_url))
        await until(lambda: followed.gateways == ("gw-1", "gw-2"), seconds=30.0)
        urls = (kept_url, f"http://127.0.0.1:{port}")
        while not await ready(session, urls[1]):
            await asyncio.sleep(0.01)
        asks = [group.create_task(ask(url)) for url in urls for _ in range(6)]
        await engine.until(lambda engine: engine.in_flight == SLOTS)
        await until(lambda: first.demand == second.demand == (12 - SLOTS, SLOTS))
        assert engine.highest_in_flight == SLOTS
        killed.kill()
        died = time.time()
        await killed.wait()
        await until(lambda: slots(kept) == SLOTS)
        assert time.time() - died < 2.0
        assert followed.gateways == ("gw-1",)
        await until(lambda: first.demand == second.demand == (1, 5))
        assert time.time() - died < 2.5, "two seconds, and what a busy machine takes to look"
        engine.gate.set()
        statuses = await asyncio.gather(*asks)
        assert statuses == [200] * 6 + [0] * 6
