"""`emberpool gateway`: the gateway as a process of its own, which outlives its controllers.

It follows the routes that controllers publish, pushes its samples to all of them, and on SIGTERM finishes what it has
accepted.
"""

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.errors import UserError
from scaler.gateway.garbage import keep_garbage_quiet
from scaler.gateway.keys import Keys, parse_keys
from scaler.gateway.proxy import Gateway
from scaler.runtime import logs
from scaler.runtime.first_tokens import FirstTokenReporter
from scaler.runtime.followed_routes import FollowedRoutes
from scaler.runtime.gateway_options import GatewayOptions
from scaler.runtime.hang_up import reload_on_hang_up
from scaler.runtime.lifetime import first_error, stop_on_signals
from scaler.runtime.metrics import Page, catalogue
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.sockets import listen, port_taken, url_of
from warmpool import listening
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
    instance = options.instance or f"{socket.gethostname()}-{os.getpid()}"
    registry = CollectorRegistry()
    dropped = counter(catalogue.FIRST_TOKENS_DROPPED, registry)
    streams = gauge(catalogue.ROUTES_CONNECTED, registry)
    tokens = FirstTokenReporter(instance, options.controllers, dropped.inc)
    settings = replace(
        options.settings, instance=instance, controllers=options.controllers, token=options.token
    )
    gateway = Gateway(settings, tokens, registry)
    files = GatewayFiles(options, gateway)
    files.read()
    followed = FollowedRoutes(gateway, instance, tokens.listed)
    follower = RouteFollower(
        options.controllers,
        followed.take,
        lambda controller, connected: streams.labels(controller).set(connected),
        instance,
    )

    def shown() -> dict[str, Any]:
        return {
            "instance": instance,
            "routes": followed.state(),
            **gateway.state(),
            "assumptions": options.assumptions(),
        }

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
                files.follow(reload_on_hang_up(stack, stop)),
                keep_garbage_quiet(lambda: gateway.idle),
            )
        ]
        await stop.wait()
        stop.clear()
        finished = await _drain(gateway, options, stop)
        for part in parts:
            part.cancel()
    return 0 if finished else 1


class GatewayFiles:
    """The keys and the certificate, read at the start and again at each SIGHUP.

    Args:
        options: name the files.
        gateway: gets the keys.

    Attributes:
        tls: what the listener uses; None: no TLS. Connections after a reload get the new certificate.
    """

    def __init__(self, options: GatewayOptions, gateway: Gateway) -> None:
        self.tls: ssl.SSLContext | None = None
        self._options = options
        self._gateway = gateway
        self._latest: ssl.SSLContext | None = None

    def read(self) -> None:
        """Read all of them.

        Raises:
            UserError: one can't be used; then nothing changes.
        """
        options = self._options
        keys = None if options.keys_file is None else _keys(options.keys_file)
        if options.tls_certificate is not None:
            self._latest = _tls(options.tls_certificate, options.tls_key)
            if self.tls is None:
                self.tls = _tls(options.tls_certificate, options.tls_key)
                self.tls.sni_callback = self._take_latest
        self._gateway.keys = keys

    def _take_latest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        """Give a connection the latest certificate: a context in use that is told of a key which doesn't fit loses both."""
        if self._latest is not None:
            connection.context = self._latest

    async def follow(self, asked: asyncio.Event) -> None:
        """Read them again whenever somebody asks."""
        while True:
            await asked.wait()
            asked.clear()
            try:
                self.read()
            except UserError as error:
                log.warning("files can't be used; the last ones hold", error=str(error))
            else:
                log.info("files read again")


def _keys(path: Path) -> Keys:
    try:
        keys = Keys(parse_keys(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--keys-file {path} can't be read: {error}", hint="it has one key a line, as UTF-8"
        ) from error
    if not len(keys):
        raise UserError(f"--keys-file {path} has no key", hint="leave the option away to let everyone in")
    return keys


def _tls(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"--tls-certificate {certificate} can't be used: {error}",
            hint="certificate, then those that vouch for it, as PEM; --tls-key names its key's file",
        ) from error
    return context


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
        if not draining.done():
            draining.cancel()
            return False
    finished = draining.result()
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
