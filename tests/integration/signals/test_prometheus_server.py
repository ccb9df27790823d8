"""A real Prometheus that scrapes a real exporter: read, killed, started again, and its target lost."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.aiohttp import make_aiohttp_handler

from scaler.policy.signals import Measures, Prometheus
from scaler.signals.port import Part
from scaler.signals.prometheus import PrometheusServers, PrometheusSource
from tests.integration.signals.rig import key, prometheus, running


def source(url: str, query: str, name: str = "queue", **fields: Any) -> PrometheusSource:
    signal = Prometheus(
        type="Prometheus",
        name=name,
        server=url,
        query=query,
        measures=Measures.QUEUE_DEPTH,
        interval_seconds=1,
        timeout_seconds=1,
    )
    return PrometheusSource(key(name), signal, PrometheusServers())


@asynccontextmanager
async def exporter() -> AsyncIterator[tuple[str, Gauge]]:
    """Export one gauge for two pods; yield where, and the gauge."""
    registry = CollectorRegistry()
    waiting = Gauge("test_requests_waiting", "Requests that wait.", ["pod"], registry=registry)
    app = web.Application()
    app.router.add_get("/metrics", make_aiohttp_handler(registry))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}", waiting
    finally:
        await runner.cleanup()


async def test_what_is_scraped_is_read_until_the_target_is_gone(tmp_path: Path) -> None:
    async with exporter() as (address, waiting), prometheus(tmp_path, address) as server:
        waiting.labels("a").set(3)
        waiting.labels("b").set(4)
        sources = [
            source(server.url, "sum(test_requests_waiting)", "sum"),
            source(server.url, "test_requests_waiting", "each"),
            source(server.url, "sum(test_requests_waiting[1m])", "wrong"),
        ]
        async with running(*sources) as heard:
            await heard.failure("the query gives no series", signal="sum")  # before the first scrape
            found = await heard.parts({Part.QUEUED: 7.0}, signal="sum")
            assert found.heard - 2 < found.at <= found.heard
            await heard.failure("the query gives 2 series and one is wanted: put sum(…)", signal="each")
            await heard.failure("answers 400 Bad Request: invalid parameter", signal="wrong")
            waiting.labels("a").set(30)
            await heard.parts({Part.QUEUED: 34.0}, signal="sum")
            waiting.clear()  # the pods are gone, and Prometheus marks their series stale
            await heard.failure("the query gives no series", signal="sum")


@pytest.mark.wall_clock
async def test_a_server_that_was_killed_is_read_again_after_its_restart(tmp_path: Path) -> None:
    async with prometheus(tmp_path) as server, running(source(server.url, "vector(5)")) as heard:
        await heard.parts({Part.QUEUED: 5.0})
        server.kill()
        await heard.failure(f"{server.address}: no connection: connection refused")
        server.start()
        await server.wait()
        back = time.monotonic()
        found = await heard.parts({Part.QUEUED: 5.0})
        assert found.heard - back < 2.5  # the next round
