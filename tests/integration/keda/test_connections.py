"""Connections that nobody calls on, by which an operator could be kept out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc.aio
import pytest
from structlog.testing import capture_logs

from scaler.keda.bench.http2 import ACK, PREFACE, SETTINGS, connect, frame
from scaler.keda.room import told
from scaler.keda.server import MOST_CONNECTIONS, OPTIONS
from scaler.keda.unreached import why
from tests.integration.keda.conftest import serving

_FASTER: Final = 20
"""By which the times of the server's options are divided here."""
_HELLO: Final = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACK, 0, b"")


@asynccontextmanager
async def listening(**changes: int) -> AsyncIterator[int]:
    """A server of grpc's with our options, their times divided; yields its port."""
    options = {
        name: value // _FASTER if name.endswith("_ms") else changes.get(name.rpartition(".")[2], value)
        for name, value in OPTIONS
    }
    server = grpc.aio.server(options=tuple(options.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def hold(port: int, hello: bytes = _HELLO) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, say hello, and never a word more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello)
    return reader, writer


def named(name: str) -> float:
    """Return an option's seconds."""
    return dict(OPTIONS)[f"grpc.{name}_ms"] / 1000


def test_no_connection_is_held_for_more_than_a_minute_without_a_call() -> None:
    assert named("max_connection_idle") <= 60
    assert named("keepalive_time") + named("http2.ping_timeout") <= 30


async def test_who_answers_no_ping_is_dropped_before_one_that_idles() -> None:
    loop = asyncio.get_running_loop()
    async with listening() as port:
        began = loop.time()
        reader, writer = await hold(port)
        async with asyncio.timeout(20):
            assert b"ping_timeout" in await reader.read()
        writer.transport.abort()
        assert loop.time() - began < named("max_connection_idle") / _FASTER


async def test_who_answers_pings_and_makes_no_call_is_dropped_when_it_has_idled() -> None:
    async with listening() as port, asyncio.timeout(20):
        await (await connect("127.0.0.1", port)).lost.wait()


async def test_a_connection_that_says_nothing_at_all_is_dropped() -> None:
    async with listening() as port:
        reader, writer = await hold(port, b"")
        async with asyncio.timeout(20):
            await reader.read()
        writer.transport.abort()


async def test_a_server_that_is_full_is_told_from_one_that_speaks_something_else() -> None:
    async with serving() as desk:
        held = [await hold(desk.port) for _ in range(MOST_CONNECTIONS)]
        try:
            await asyncio.gather(*(reader.read(9) for reader, _ in held))
            found = await why(f"127.0.0.1:{desk.port}", None)
        finally:
            for _, writer in held:
                writer.transport.abort()
    assert "the server has as many as it takes" in found.reason


@pytest.mark.parametrize("most", [2, 5])
async def test_a_full_server_takes_others_once_those_that_idle_are_dropped(most: int) -> None:
    """Nobody lets go: it is the server that makes room."""
    async with listening(max_allowed_incoming_connections=most) as port:
        held = [await hold(port) for _ in range(most)]
        await asyncio.gather(*(reader.read(9) for reader, _ in held))
        assert not await greeted(port)
        async with asyncio.timeout(20):
            while not await greeted(port):
                await asyncio.sleep(0.05)
        for _, writer in held:
            writer.transport.abort()


async def test_that_it_is_full_is_in_the_servers_log_once_and_when_it_isnt_any_more() -> None:
    async with listening(max_allowed_incoming_connections=2) as port:
        held = [await hold(port) for _ in range(2)]
        with capture_logs() as logs:
            async with told("127.0.0.1", port, most=2, every=0.05), asyncio.timeout(20):
                while len(logs) < 2:
                    await asyncio.sleep(0.01)
        for _, writer in held:
            writer.transport.abort()
    assert [each["log_level"] for each in logs] == ["error", "info"]
    assert logs[0]["event"] == "KEDA's port takes no more connections, an operator's neither"
    assert (logs[0]["port"], logs[0]["most"]) == (port, 2)


async def test_what_goes_wrong_while_it_looks_goes_on_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with told("127.0.0.1", 1, most=2):
            raise LookupError("mine")


async def greeted(port: int) -> bool:
    """Whether a new connection is spoken to."""
    reader, writer = await hold(port)
    try:
        return bool(await reader.read(9))
    except ConnectionError:
        return False
    finally:
        writer.transport.abort()
