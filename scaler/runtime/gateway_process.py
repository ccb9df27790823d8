"""`emberpool gateway`: the gateway as a process of its own, which outlives its controllers.

It follows the routes that controllers publish, pushes its samples to all of them, and on SIGTERM finishes what it has
accepted.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.errors import UserError
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from scaler.runtime import logs
from scaler.runtime.first_tokens import FirstTokenReporter
from scaler.runtime.gateway_options import GatewayOptions
from scaler.runtime.lifetime import first_error, stop_on_signals
from scaler.runtime.metrics import Page, catalogue
from scaler.runtime.published_routes import PublishedTable, divided
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.sockets import listen, port_taken, url_of
from warmpool.metric_families import counter, expose_declared_only, gauge

log = structlog.get_logger(__name__)


def run(options: GatewayOptions) -> int:
    """Run until SIGINT or SIGTERM; a second one ends it without waiting for what is in flight.

    Returns:
        The exit code: 0, or 1 when requests were cut off at the end.

    Raises:
        UserError: an address can't be had.
    """
    logs.configure()
    expose_declared_only()
    return asyncio.run(_main(options))


async def _main(options: GatewayOptions) -> int:
    try:
        async with AsyncExitStack() as stack:
            return await _serve(options, stack, stop_on_signals(stack))
    except* UserError as group:
        raise first_error(group) from None


class _Followed:
    """Puts each published table into the gateway, as this gateway's share of it."""

    def __init__(self, gateway: Gateway, instance: str, tokens: FirstTokenReporter) -> None:
        self._gateway = gateway
        self._instance = instance
        self._tokens = tokens
        self._gateways: tuple[str, ...] = ()

    def take(self, table: PublishedTable) -> None:
        """Take a table over.

        Raises:
            ValueError: the gateway can't use it; its last one stays.
        """
        if table.gateways is not None:  # else the last known number holds
            self._gateways = table.gateways
        shares = divided(table.policies, self._gateways, self._instance)
        self._tokens.listed([each.key for routes in shares.values() for each in routes.endpoints])
        self._gateway.routes.replace(shares)


async def _serve(options: GatewayOptions, stack: AsyncExitStack, stop: asyncio.Event) -> int:
    instance = options.instance or f"{socket.gethostname()}-{os.getpid()}"
    registry = CollectorRegistry()
    dropped = counter(catalogue.FIRST_TOKENS_DROPPED, registry)
    streams = gauge(catalogue.ROUTES_CONNECTED, registry)
    tokens = FirstTokenReporter(instance, options.controllers, dropped.inc)
    settings = GatewaySettings(instance=instance, controllers=options.controllers, token=options.token)
    gateway = Gateway(settings, tokens, registry)
    followed = _Followed(gateway, instance, tokens)
    follower = RouteFollower(
        options.controllers,
        followed.take,
        lambda controller, connected: streams.labels(controller).set(connected),
    )
    shown = {"Authorization": f"Bearer {options.token}"}  # to controllers only: engines have another session
    session = await stack.enter_async_context(aiohttp.ClientSession(headers=shown))
    operated = await stack.enter_async_context(_operators(options, gateway, registry))
    url = await _entered(stack, gateway, options)
    log.info("gateway listens", url=url, metrics=operated, instance=instance)
    async with asyncio.TaskGroup() as tasks:
        parts = [tasks.create_task(follower.run(session)), tasks.create_task(tokens.run(session))]
        await stop.wait()
        stop.clear()
        finished = await _drain(gateway, options.drain_seconds, stop)
        for part in parts:
            part.cancel()
    return 0 if finished else 1


async def _entered(stack: AsyncExitStack, gateway: Gateway, options: GatewayOptions) -> str:
    try:
        return await stack.enter_async_context(gateway.serve(options.host, options.port))
    except OSError as error:
        raise port_taken(options.host, options.port, "--port", error) from error


async def _drain(gateway: Gateway, seconds: float, impatience: asyncio.Event) -> bool:
    """Finish what was accepted, routes still followed meanwhile; return whether it was."""
    log.info("gateway drains", seconds=seconds)
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(gateway.drain(seconds))
        hurry = tasks.create_task(impatience.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not draining.done():
            draining.cancel()
            return False
    finished = draining.result()
    log.info("gateway drained", finished=finished)
    return finished


@asynccontextmanager
async def _operators(
    options: GatewayOptions, gateway: Gateway, registry: CollectorRegistry
) -> AsyncIterator[str]:
    """Serve metrics and probes on a port of their own: the public one is for clients."""

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if not gateway.routes.policies:
            return web.Response(status=503, text="waiting for routes\n")
        return web.Response(text="ok\n")

    app = web.Application()
    app.add_routes(
        [
            web.get("/livez", live),
            web.get("/readyz", ready),
            web.get("/metrics", Page(registry).handle),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    with listen(options.host, options.metrics_port, "--metrics-port") as listener:
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            yield url_of(listener)
        finally:
            await runner.cleanup()
