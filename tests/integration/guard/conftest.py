"""One engine behind a guard, in each of the guard's forms, with a client's means and the agent's."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.fakes.asgi_engine import AsgiEngine, serving
from tests.fakes.ports import free_port
from warmpool.agent.forwarding import ForwardingPort
from warmpool.engines.deadline import Deadline
from warmpool.engines.guards import Guard, OwnGuard
from warmpool.engines.transport import Transport
from warmpool.guard_middleware import Guard as Middleware
from warmpool.guard_middleware import Settings

FORMS = ("middleware-httptools", "middleware-h11", "port")
TOKEN = "a-token-that-is-long-enough"
COMPLETIONS = "/v1/completions"


def soon() -> Deadline:
    return Deadline.after(30)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass
class Raw:
    """A client's connection, for what ordinary clients don't do."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, target: str, *, method: str = "POST", headers: str = "", body: bytes = b"") -> None:
        """Send a request as it is written."""
        length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
        await self.send(f"{method} {target} HTTP/1.1\r\nHost: guard\r\n{length}{headers}\r\n".encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of an answer: its status, and headers with names in lower case."""
        async with asyncio.timeout(30):
            raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = raw.rstrip().split("\r\n")
        return int(first.split()[1]), {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }

    async def rest(self) -> bytes:
        """Read until the connection ends, however it does."""
        read = b""
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    read += piece
        return read

    async def rest_or_answer(self) -> None:
        """Read an answer that has a length, or all that comes."""
        _, headers = await self.head()
        if "transfer-encoding" in headers:
            await self.rest()
        else:
            with suppress(EOFError, ConnectionError):
                await self.reader.readexactly(int(headers["content-length"]))

    def reset(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Raw]:
    """Connect as a client that sends what it likes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


@dataclass
class Guarded:
    """An engine behind a guard."""

    form: str
    engine: AsgiEngine
    guard: Guard
    url: str
    session: aiohttp.ClientSession

    async def open(self) -> None:
        assert (await self.guard.open(deadline=soon())).is_open

    async def close(self) -> int:
        return (await self.guard.close(deadline=soon())).in_flight

    async def abort(self) -> None:
        await self.guard.abort(deadline=soon())

    async def in_flight(self) -> int:
        return (await self.guard.state(deadline=soon())).in_flight

    async def holds(self, count: int) -> None:
        """Wait until so many requests are in flight."""
        async with asyncio.timeout(30):
            while await self.in_flight() < count:
                await asyncio.sleep(0.001)

    async def idle(self) -> None:
        """Wait until nothing is in flight, and see that the engine is at nothing either."""
        async with asyncio.timeout(30):
            while await self.in_flight():
                await asyncio.sleep(0.002)
        # The middleware's count ends with the engine's call; a port's engine hears of the end a moment later.
        await until(lambda: self.engine.running == 0)

    def raw(self) -> AbstractAsyncContextManager[Raw]:
        return connected(self.url)

    def post(self, query: str = "", **others: Any) -> Any:
        return self.session.post(f"{self.url}{COMPLETIONS}?{query}", **others)


@asynccontextmanager
async def guarded_engine(
    form: str, *, silence_seconds: float = 60.0, most_in_flight: int = 1000
) -> AsyncIterator[Guarded]:
    engine = AsgiEngine()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), auto_decompress=False)
        )
        guard: Guard
        if form == "port":
            target, port = await stack.enter_async_context(serving(engine)), free_port()
            guard = ForwardingPort(
                "127.0.0.1",
                port,
                target,
                silence_seconds=silence_seconds,
                most_in_flight=most_in_flight,
            )
            url = f"http://127.0.0.1:{port}"
            await guard.state(deadline=soon())
            stack.push_async_callback(guard.disconnect)
        else:
            control = free_port()
            app = Middleware(
                engine,
                Settings(control=f"127.0.0.1:{control}", token=TOKEN, silence_seconds=silence_seconds),
            )
            url = await stack.enter_async_context(serving(app, http=form.removeprefix("middleware-")))
            transport = Transport(f"http://agent:{TOKEN}@127.0.0.1:{control}")
            stack.push_async_callback(transport.close)
            guard = OwnGuard(transport)
        yield Guarded(form, engine, guard, url, session)


@pytest.fixture(params=FORMS)
async def closed(request: pytest.FixtureRequest) -> AsyncIterator[Guarded]:
    async with guarded_engine(request.param) as guarded:
        yield guarded


@pytest.fixture
async def guarded(closed: Guarded) -> Guarded:
    await closed.open()
    return closed


@pytest.fixture(params=FORMS)
async def impatient(request: pytest.FixtureRequest) -> AsyncIterator[Guarded]:
    """A guard that cuts off a client after a third of a second of silence."""
    async with guarded_engine(request.param, silence_seconds=0.3) as guarded:
        await guarded.open()
        yield guarded


def error_of(body: bytes | str) -> dict[str, Any]:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)
