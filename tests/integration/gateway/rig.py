"""A served gateway with engines, a client and controllers around it, all on real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.gateway.observe import Outcome
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint, PolicyLimits, PolicyRoutes
from scaler.gateway.settings import GatewaySettings
from tests.fakes.openai_engine import OpenAIEngine, Script
from warmpool.seats import PolicyName, SeatName

CHAT = PolicyName("chat")


@dataclass
class Observed:
    """What the gateway told its observer."""

    first: list[tuple[Endpoint, float, float, float]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def first_content(
        self, policy: PolicyName, endpoint: Endpoint, dispatched_at: float, at: float, queued_before: float
    ) -> None:
        assert policy == CHAT
        self.first.append((endpoint, dispatched_at, at, queued_before))

    def finished(
        self, policy: PolicyName, outcome: Outcome, *, endpoint: Endpoint | None, at: float, seconds: float
    ) -> None:
        assert policy == CHAT
        assert at > 0
        assert seconds >= 0
        assert endpoint is not None or outcome is not Outcome.COMPLETED
        self.outcomes.append(outcome)
        self._changed.set()

    async def until_outcomes(self, count: int) -> list[Outcome]:
        async with asyncio.timeout(5):
            while len(self.outcomes) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.outcomes


@dataclass
class Rig:
    """A served gateway, a client, and engines behind it."""

    gateway: Gateway
    url: str
    session: aiohttp.ClientSession
    observed: Observed
    registry: CollectorRegistry
    stack: AsyncExitStack
    limits: PolicyLimits = field(default_factory=PolicyLimits)
    ttft_seconds: float = 60.0
    coming_seconds: float | None = None

    async def engine(self, script: Script | None = None) -> tuple[OpenAIEngine, str]:
        engine = OpenAIEngine(script=script or Script())
        return engine, await self.stack.enter_async_context(engine.serve())

    def route(self, *urls: str, slots: int = 1) -> None:
        endpoints = tuple(
            Endpoint(seat=SeatName(f"seat-{url[-5:]}"), uid=url, policy=CHAT, url=url, slots=slots)
            for url in urls
        )
        routes = PolicyRoutes(
            models=("m", "m-chat"),
            endpoints=endpoints,
            limits=self.limits,
            ttft_seconds=self.ttft_seconds,
            coming_seconds=self.coming_seconds,
        )
        self.gateway.routes.replace({CHAT: routes})

    def post(
        self, body: Mapping[str, Any] | None = None, path: str = "/v1/chat/completions", **more: Any
    ) -> Any:
        """Send a request; streaming unless told otherwise."""
        return self.session.post(self.url + path, json={"model": "m", "stream": True, **(body or {})}, **more)

    async def ask(self, body: Mapping[str, Any] | None = None, **more: Any) -> tuple[int, str]:
        async with self.post(body, **more) as response:
            return response.status, await response.text()

    async def until_queued(self, count: int) -> None:
        """Wait until so many requests wait; nothing tells of it but the numbers themselves."""
        await until(lambda: self.gateway.stats(CHAT).queued == count)

    async def until_demand(self, count: int) -> None:
        """Wait until so many requests are here."""
        await until(lambda: self.gateway.stats(CHAT).demand == count)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def until(true: Callable[[], bool], *, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0)


@asynccontextmanager
async def rig(
    settings: GatewaySettings | None = None,
    limits: PolicyLimits | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Rig]:
    registry = CollectorRegistry()
    observed = Observed()
    gateway = Gateway(settings or GatewaySettings(), observed, registry)
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(AsyncExitStack())
        url = await stack.enter_async_context(gateway.serve("127.0.0.1", 0, tls=tls))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        )
        yield Rig(
            gateway=gateway,
            url=url,
            session=session,
            observed=observed,
            registry=registry,
            stack=engines,
            limits=limits or PolicyLimits(),
        )


@dataclass
class Controller:
    """Takes samples as the controller's HTTP does."""

    take: Callable[[bytes], int]
    """Gets a body, returns the answer's status."""

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[str]:
        async def handle(request: web.BaseRequest) -> web.Response:
            assert (request.method, request.path) == ("POST", "/v1/signals")
            return web.Response(status=self.take(await request.read()))

        runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
