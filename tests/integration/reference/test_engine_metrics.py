"""The signal `EngineMetrics` on a real engine: what it counts is what the engine has."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.signals.engine_metrics import EngineMetricsSource, EngineScrapes
from scaler.signals.engine_page import later_than, read_page
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import Part, SignalKey
from scaler.signals.scrape_pace import ScrapePace
from warmpool.seats import PolicyName

KEY = SignalKey(PolicyName("chat"), "engines")


class Told:
    """A sink that tells who waits."""

    def __init__(self) -> None:
        self.parts: Mapping[Part, float] = {}
        self.failure = ""
        self._news = asyncio.Event()

    def observed(self, _key: SignalKey, parts: Mapping[Part, float], _at: float, _lacking: str = "") -> None:
        self.parts = parts
        self._news.set()

    def failed(self, _key: SignalKey, why: str) -> None:
        self.failure = why
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not true():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def read(url: str, *, objective: float = 1.0) -> AsyncIterator[Told]:
    """Read one engine for as long as the block runs."""
    told = Told()
    target = EngineTarget("uid-1", url, "seat-1")
    scrapes = EngineScrapes(interval=0.05, timeout=2.0, objective=objective)
    source = EngineMetricsSource(KEY, scrapes, lambda _: [target], ScrapePace())
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(source.run(told))
        yield told
        reading.cancel()


async def test_running_and_waiting_requests_are_counted_while_they_are_there(client: Any) -> None:
    async with read(client.served.public) as told:
        await told.until(lambda: told.parts.get(Part.REQUESTS) == 0)
        streams = [await client.stream(max_tokens=2000) for _ in range(2)]
        await told.until(lambda: told.parts[Part.REQUESTS] == 2)
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(client.complete(max_tokens=2))
            await told.until(lambda: told.parts[Part.REQUESTS] == 3)
            for stream in streams:
                stream.close()
        assert waits.result()[0] == 200
        await told.until(lambda: told.parts[Part.REQUESTS] == 0)


@pytest.mark.parametrize("objective", [0.0, 0.005, 640.0])
async def test_the_share_of_late_first_tokens_is_that_of_the_requests_since_the_promotion(
    client: Any, objective: float
) -> None:
    async def counted() -> tuple[float, float]:
        async with client.session.get(client.served.public + "/metrics") as response:
            first_tokens = read_page(await response.read()).first_tokens
        assert first_tokens is not None
        told = later_than(first_tokens, objective)
        assert told is not None
        return told[1], told[2]

    await client.complete(max_tokens=1)
    late, every = await counted()
    async with read(client.served.public, objective=objective) as told:
        await told.until(lambda: Part.REQUESTS in told.parts)
        assert Part.LATE_SHARE not in told.parts
        for _ in range(5):
            await client.complete(max_tokens=1)
        late_now, every_now = await counted()
        assert every_now - every == 5
        await told.until(lambda: told.parts.get(Part.LATE_SHARE) == (late_now - late) / 5)


@pytest.mark.long
async def test_a_killed_engine_is_silent_and_its_successor_is_read(checkpoint: Path, tools: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = ["--port", str(listener.getsockname()[1])]
    engine = await asyncio.to_thread(tools.start, checkpoint, port)
    async with read(engine.public) as told:
        await told.until(lambda: told.parts.get(Part.REQUESTS) == 0)
        engine.process.send_signal(signal.SIGKILL)
        await told.until(lambda: told.failure.startswith("1 of 1 engines silent: seat-1: connect"))
        engine.process.wait()
        engine = await asyncio.to_thread(tools.start, checkpoint, port)
        async with aiohttp.ClientSession() as session:
            stream = await session.post(
                engine.public + "/v1/completions", json=tools.body(stream=True, max_tokens=400)
            )
            await told.until(lambda: told.parts[Part.REQUESTS] == 1)
            stream.close()
    await asyncio.to_thread(tools.stop, engine)
