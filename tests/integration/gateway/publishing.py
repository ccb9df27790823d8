"""A controller as gateways know it: it takes samples and publishes who serves."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from scaler.core.model import FleetShare, PolicySpec
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.routing import routes
from scaler.signals.pushed import PushedSamples
from tests.fakes.memory_cluster import MemoryCluster
from tests.integration.gateway.rig import CHAT
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
