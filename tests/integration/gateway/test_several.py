"""Two gateways and two controllers at once: loads add up, slots are shared, and who goes leaves nothing behind."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.route_follower import RouteFollower
from tests.fakes.memory_cluster import MemoryCluster
from tests.fakes.openai_engine import OpenAIEngine, Script
from tests.fakes.ports import free_ports
from tests.integration.gateway.publishing import FLEET, SLOTS, Controller, seat
from tests.integration.gateway.rig import CHAT, until
from tests.integration.gateway.running import process


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
