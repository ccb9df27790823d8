"""The drill's page stays up until its last figures have been seen, and no longer."""

import asyncio

import aiohttp
import pytest

from scaler.drill.metrics import DrillMetrics, exposing


async def test_who_scrapes_sees_the_end(metrics: DrillMetrics) -> None:
    said: list[str] = []
    ending = asyncio.Event()

    async def expose() -> None:
        async with exposing(metrics, 0, said.append):
            await ending.wait()

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(expose())
        while not said:
            await asyncio.sleep(0)
        url = said[0].removeprefix("metrics: ")

        async def scrape() -> int:
            async with session.get(url, headers={"Connection": "close"}) as response:
                await response.read()
                return response.status

        await scrape()
        await scrape()
        ending.set()
        assert await scrape() == 200
        async with asyncio.timeout(5):
            await asyncio.wait({task})


async def test_where_nobody_scrapes_nothing_waits(metrics: DrillMetrics) -> None:
    async with asyncio.timeout(2), exposing(metrics, 0, lambda _: None):
        pass


@pytest.fixture
def metrics() -> DrillMetrics:
    return DrillMetrics("test", ["warm"], [], {})
