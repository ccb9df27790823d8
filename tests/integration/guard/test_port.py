"""What is the forwarding port's own: its way to the engine, and its listener."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.fakes.asgi_engine import AsgiEngine, serving
from tests.fakes.ports import free_port
from tests.integration.guard.conftest import Guarded, error_of, guarded_engine, soon
from warmpool.agent.forwarding import ForwardingPort
from warmpool.errors import EngineUnfit

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def behind_a_port(target: str) -> AsyncIterator[tuple[ForwardingPort, str, aiohttp.ClientSession]]:
    port = free_port()
    guard = ForwardingPort("127.0.0.1", port, target)
    await guard.open(deadline=soon())
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield guard, f"http://127.0.0.1:{port}/v1/completions", session
    await guard.disconnect()


@asynccontextmanager
async def engine_that(serves: Serve) -> AsyncIterator[str]:
    """An engine that answers each connection as it is told, and closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await serves(reader, writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def port() -> AsyncIterator[Guarded]:
    async with guarded_engine("port") as guarded:
        await guarded.open()
        yield guarded


async def test_an_engine_that_is_gone_is_told_to_the_client() -> None:
    async with behind_a_port(f"http://127.0.0.1:{free_port()}") as (guard, url, session):
        async with session.post(url, data=b"{}") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert error_of(await response.read())["code"] == "EngineUnreachable"
        assert (await guard.state(deadline=soon())).in_flight == 0


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 20", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"]
)
async def test_an_engine_that_gives_no_answer_is_told_to_the_client(said: bytes) -> None:
    async def serves(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)

    async with engine_that(serves) as target, behind_a_port(target) as (guard, url, session):
        async with session.post(url, data=b"{}") as response:
            assert response.status == 502
            assert error_of(await response.read())["code"] == "EngineBrokeOff"
        assert (await guard.state(deadline=soon())).in_flight == 0


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    async def serves(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            b'12\r\ndata: 1\n\ndata: {"a\r\n'
        )

    async with (
        engine_that(serves) as target,
        behind_a_port(target) as (_, url, session),
        session.post(url, data=b"{}") as response,
    ):
        text = await response.text()
    whole, end = text.split("\n\n", 1)
    assert whole == "data: 1"
    assert error_of(end.removeprefix("data: "))["code"] == "EngineBrokeOff"


async def test_a_stream_that_has_a_length_is_passed_on_as_it_is() -> None:
    async def serves(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: hal"
        )

    async with (
        engine_that(serves) as target,
        behind_a_port(target) as (_, url, session),
        session.post(url, data=b"{}") as response,
    ):
        assert (response.headers["Content-Length"], await response.text()) == ("9", "data: hal")


async def test_an_answer_that_ends_with_its_connection_passes() -> None:
    async def serves(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")

    async with (
        engine_that(serves) as target,
        behind_a_port(target) as (_, url, session),
        session.post(url, data=b"{}") as response,
    ):
        assert await response.text() == "all of it"


async def test_trailers_stay_behind() -> None:
    async def serves(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n"
        )

    async with (
        engine_that(serves) as target,
        behind_a_port(target) as (_, url, session),
        session.post(url, data=b"{}") as response,
    ):
        assert await response.text() == "ok"
        assert "Trailer" not in response.headers


async def test_connections_to_the_engine_are_kept() -> None:
    connections = 0

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readexactly(2)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            try:
                await reader.readuntil(b"\r\n\r\n")
            except EOFError:
                return

    async with engine_that(serves) as target, behind_a_port(target) as (_, url, session):
        for _ in range(20):
            async with session.post(url, data=b"{}") as response:
                assert await response.text() == "ok"
    assert connections == 1


async def test_a_connection_on_which_the_engine_failed_is_not_used_again() -> None:
    """uvicorn answers 500 for what a handler raised, and then closes the connection without having said so."""

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await reader.read(1)  # whoever sends something more is cut off without an answer

    async with engine_that(serves) as target, behind_a_port(target) as (_, url, session):
        for _ in range(20):
            async with session.post(url, data=b"{}") as response:
                assert response.status == 500


async def test_an_expectation_that_nobody_knows_is_refused(port: Guarded) -> None:
    async with port.session.post(f"{port.url}/v1/completions", headers={"Expect": "a-miracle"}) as response:
        assert response.status == 417
    assert port.engine.calls == []


async def test_a_redirect_is_the_client_s_to_follow(port: Guarded) -> None:
    query = 'status=307&headers={"location":["/v1/models"]}'
    async with port.session.post(f"{port.url}/v1/completions?{query}", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (307, "/v1/models")
    assert len(port.engine.calls) == 1


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        guard = ForwardingPort("127.0.0.1", taken, "http://127.0.0.1:1")
        with pytest.raises(EngineUnfit, match=f"127.0.0.1:{taken} can't be listened on"):
            await guard.close(deadline=soon())


async def test_it_listens_from_the_first_call_on_and_no_longer_once_disconnected() -> None:
    number = free_port()
    async with serving(AsgiEngine()) as target:
        guard = ForwardingPort("127.0.0.1", number, target)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", number)
        assert not (await guard.state(deadline=soon())).is_open
        _, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.close()
        await guard.disconnect()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", number)


async def test_disconnecting_ends_what_is_inside(port: Guarded) -> None:
    async with port.session.post(f"{port.url}/v1/completions?do=stream&wait=1") as response:
        await port.guard.disconnect()
        assert b"ResidentNotServing" in await response.read()


async def test_more_at_once_than_it_may_carry_are_refused_at_once() -> None:
    async with guarded_engine("port", most_in_flight=2) as port, asyncio.TaskGroup() as tasks:
        await port.open()

        async def status() -> int:
            async with port.post("do=ignore") as response:
                return int(response.status)

        inside = [tasks.create_task(status()) for _ in range(2)]
        await port.holds(2)
        assert await status() == 503
        port.engine.go.release()
        port.engine.go.release()
        assert [await each for each in inside] == [200, 200]
