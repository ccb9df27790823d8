"""`emberpool gateway`: the gateway as a process of its own, which outlives its controllers.

It follows the routes that controllers publish, and pods where it is told to; it pushes its samples to all controllers, and on
SIGTERM finishes what it has accepted.
"""

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.errors import UserError
from scaler.gateway.garbage import keep_garbage_quiet
from scaler.gateway.proxy import Gateway
from scaler.runtime import logs
from scaler.runtime.first_tokens import FirstTokenReporter
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.gateway_files import GatewayFiles
from scaler.runtime.gateway_options import GatewayOptions, PodOptions
from scaler.runtime.hang_up import reload_on_hang_up
from scaler.runtime.lifetime import first_error, stop_on_signals
from scaler.runtime.metrics import Page, catalogue
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.sockets import listen, port_taken, url_of
from warmpool import listening
from warmpool.metric_families import counter, expose_declared_only, gauge

if TYPE_CHECKING:
    from scaler.runtime.gateway_pods import GatewayPods

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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # what is held has a connection each
    return asyncio.run(_main(options))


async def _main(options: GatewayOptions) -> int:
    try:
        async with AsyncExitStack() as stack:
            return await _serve(options, stack, stop_on_signals(stack))
    except* UserError as group:
        raise first_error(group) from None


async def _serve(options: GatewayOptions, stack: AsyncExitStack, stop: asyncio.Event) -> int:
    instance = options.instance or _name(options)
    registry = CollectorRegistry()
    dropped = counter(catalogue.FIRST_TOKENS_DROPPED, registry)
    streams = gauge(catalogue.ROUTES_CONNECTED, registry)
    tokens = FirstTokenReporter(instance, options.controllers, dropped.inc)
    settings = replace(
        options.settings, instance=instance, controllers=options.controllers, token=options.token
    )
    files = GatewayFiles(options.files)
    files.read()
    gateway = Gateway(settings, tokens, registry)
    files.guard(gateway)
    followed = FollowedRoutes(gateway, instance, tokens.listed)
    follower = RouteFollower(
        options.controllers,
        followed.take,
        lambda controller, connected: streams.labels(controller).set(connected),
        instance,
    )
    pods = await _pods(stack, options.pods, followed, follower, registry)

    def shown() -> dict[str, Any]:
        return {
            "instance": instance,
            "routes": followed.state(),
            **({} if pods is None else pods.state()),
            **gateway.state(),
            "assumptions": options.assumptions(),
        }

    def read_again() -> None:
        files.read_again()
        if pods is not None:
            pods.read_again()

    headers = {
        "Authorization": f"Bearer {options.token}"
    }  # to controllers only: engines have another session
    session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
    operated = await stack.enter_async_context(_operators(options, gateway, registry, shown))
    url = await _entered(stack, gateway, options, files.tls)
    log.info("gateway listens", url=url, metrics=operated, instance=instance)
    async with asyncio.TaskGroup() as tasks:
        parts = [
            tasks.create_task(part)
            for part in (
                follower.run(session),
                tokens.run(session),
                _each(reload_on_hang_up(stack, stop), read_again),
                keep_garbage_quiet(lambda: gateway.idle),
                *(() if pods is None else pods.parts()),
            )
        ]
        await stop.wait()
        stop.clear()
        finished = await _drain(gateway, options, stop)
        for part in parts:
            part.cancel()
    return 0 if finished else 1


def _name(options: GatewayOptions) -> str:
    """Return who we are: by our pod's name, which is its host name, where others know us by that."""
    host = socket.gethostname()
    return host if options.pods is not None and options.pods.peers else f"{host}-{os.getpid()}"


async def _pods(
    stack: AsyncExitStack,
    options: PodOptions | None,
    followed: FollowedRoutes,
    follower: RouteFollower,
    registry: CollectorRegistry,
) -> "GatewayPods | None":
    if options is None:
        return None
    from scaler.runtime.gateway_pods import open_pods  # noqa: PLC0415 - policies' models, which others go without

    return await open_pods(stack, options, followed, follower, registry)


async def _each(asked: asyncio.Event, do: Callable[[], None]) -> None:
    """Do something whenever an event is set, until cancelled."""
    while True:
        await asked.wait()
        asked.clear()
        do()


async def _entered(
    stack: AsyncExitStack, gateway: Gateway, options: GatewayOptions, tls: ssl.SSLContext | None
) -> str:
    try:
        return await stack.enter_async_context(gateway.serve(options.host, options.port, tls=tls))
    except OSError as error:
        raise port_taken(options.host, options.port, "--port", error) from error


async def _drain(gateway: Gateway, options: GatewayOptions, impatience: asyncio.Event) -> bool:
    """Finish what was accepted, routes still followed meanwhile; return whether it was."""
    log.info("gateway drains", seconds=options.drain_seconds, settling=options.settle_seconds)
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(
            gateway.drain(options.drain_seconds, settle_seconds=options.settle_seconds)
        )
        hurry = tasks.create_task(impatience.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        impatient = not draining.done()
        if impatient:
            draining.cancel()
    finished = await gateway.drain(0.0) if impatient else draining.result()
    log.info("gateway drained", finished=finished)
    return finished


@asynccontextmanager
async def _operators(
    options: GatewayOptions,
    gateway: Gateway,
    registry: CollectorRegistry,
    shown: Callable[[], dict[str, Any]],
) -> AsyncIterator[str]:
    """Serve metrics, probes and what the gateway shows of itself on a port of their own: the public one is for clients."""

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if not gateway.routes.policies:
            return web.Response(status=503, text="waiting for routes\n")
        return web.Response(text="ok\n") if gateway.ready else web.Response(status=503, text="draining\n")

    async def state(_: web.Request) -> web.Response:
        return web.json_response(shown())

    app = web.Application()
    app.add_routes(
        [
            web.get("/livez", live),
            web.get("/readyz", ready),
            web.get("/metrics", Page(registry).handle),
            web.get("/v1/gateway", state),
        ]
    )
    runner = listening.runner(app, closing_seconds=1.0)
    with listen(options.host, options.metrics_port, "--metrics-port") as listener:
        await runner.setup()
        try:
            await listening.start(runner, listener)
            yield url_of(listener)
        finally:
            await runner.cleanup()
