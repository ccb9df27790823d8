"""What is counted of KEDA's calls, over real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from scaler.keda.book import Asker
from scaler.keda.client import CallFailed, KedaClient, connected
from scaler.keda.server import KedaServer
from scaler.keda.settings import KedaSettings
from scaler.keda.trigger import read
from scaler.runtime.metrics.keda import MOST_SHOWN, KedaMetrics
from tests.integration.keda.conftest import asker, board


@dataclass
class Counted:
    """A server whose calls are counted."""

    client: KedaClient
    server: KedaServer
    registry: CollectorRegistry

    def read(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"emberpool_keda_{name}", labels)
        assert value is not None
        return value

    async def until(self, value: float, name: str, **labels: str) -> None:
        async with asyncio.timeout(30):
            while self.read(name, **labels) != value:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def counted() -> AsyncIterator[Counted]:
    registry, servers = CollectorRegistry(), list[KedaServer]()
    metrics = KedaMetrics(
        registry,
        lambda: servers[0].open_streams,
        lambda: servers[0].book.last_calls(),  # noqa: PLW0108 - it is made later
    )
    servers.append(KedaServer(board(), time.monotonic, time.time, KedaSettings(port=0), metrics))
    async with servers[0].serve() as port, connected(f"127.0.0.1:{port}") as client:
        yield Counted(client, servers[0], registry)


async def test_calls_are_counted_by_method_and_code() -> None:
    async with counted() as on:
        policy = asker(policy="chat")
        await on.client.metrics(policy, "")
        await on.client.is_active(policy)
        for wrong in (asker(fleet="nobody"), asker(fleet="spares"), asker(team="x")):
            with pytest.raises(CallFailed):
                await on.client.metrics(wrong, "")
        assert on.read("calls_total", method="GetMetrics", code="OK") == 1
        assert on.read("calls_total", method="IsActive", code="OK") == 1
        for code in ("NOT_FOUND", "UNAVAILABLE", "INVALID_ARGUMENT"):
            assert on.read("calls_total", method="GetMetrics", code=code) == 1
        assert on.read("call_duration_seconds_count", method="GetMetrics") == 4
        assert on.read("call_duration_seconds_sum", method="GetMetrics") > 0


async def test_streams_are_counted_while_they_are_open_and_by_how_they_end() -> None:
    async with counted() as on:
        async with on.client.pushed(asker(policy="chat")) as pushed:
            assert await anext(pushed)
            assert on.read("open_streams") == 1
            await on.until(
                1, "pushes_total", active="true"
            )  # counted once it is written, which the client doesn't wait for
        await on.until(0, "open_streams")
        await on.until(1, "calls_total", method="StreamIsActive", code="CANCELLED")
        async with on.client.pushed(asker(policy="chat")) as pushed:
            assert await anext(pushed)
            on.server.end()
            with pytest.raises(StopAsyncIteration):
                await anext(pushed)
        await on.until(1, "calls_total", method="StreamIsActive", code="OK")


async def test_the_last_call_of_each_scaled_object_is_shown_within_bounds() -> None:
    async with counted() as on:
        began = time.time()
        for number in range(MOST_SHOWN + 5):
            on.server.book.entry(Asker("team", f"object-{number}"), read({"policy": "chat"})).at = began
        await on.client.metrics(asker(policy="chat"), "")
        assert began <= on.read("last_call_timestamp_seconds", scaled_object="serving/spares") <= time.time()
        shown = [
            sample
            for family in on.registry.collect()
            if family.name == "emberpool_keda_last_call_timestamp_seconds"
            for sample in family.samples
        ]
        assert len(shown) == MOST_SHOWN
