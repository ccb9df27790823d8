"""Web sockets through both forms of the guard."""

import asyncio

import aiohttp
import pytest

from tests.integration.guard.conftest import Guarded, until

REALTIME = "/v1/realtime"


async def test_messages_pass_both_ways(guarded: Guarded) -> None:
    async with guarded.session.ws_connect(f"{guarded.url}{REALTIME}") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        await socket.send_bytes(b"\x00" * 100_000)
        assert await socket.receive_bytes() == b"\x00" * 100_000
        assert await guarded.in_flight() == 1
    await guarded.idle()


async def test_the_engine_chooses_the_subprotocol(guarded: Guarded) -> None:
    async with guarded.session.ws_connect(f"{guarded.url}{REALTIME}", protocols=("one", "two")) as socket:
        assert socket.protocol == "one"


async def test_the_engine_s_closing_passes(guarded: Guarded) -> None:
    async with guarded.session.ws_connect(f"{guarded.url}{REALTIME}") as socket:
        await socket.send_str("close:4001")
        await socket.receive()
        assert socket.close_code == 4001
    await guarded.idle()


async def test_the_client_s_closing_ends_it_in_the_engine(guarded: Guarded) -> None:
    async with guarded.session.ws_connect(f"{guarded.url}{REALTIME}") as socket:
        await until(lambda: guarded.engine.running == 1)
        await socket.close()
    await guarded.idle()
    assert guarded.engine.hung_up == 1


async def test_a_client_that_vanishes_ends_it_in_the_engine(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(
            REALTIME,
            method="GET",
            headers="Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        )
        assert (await raw.head())[0] == 101
        raw.reset()
        await guarded.idle()
    assert guarded.engine.hung_up == 1


async def test_a_closed_guard_opens_none(closed: Guarded) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await closed.session.ws_connect(f"{closed.url}{REALTIME}")
    assert refused.value.status == 503
    assert closed.engine.calls == []


@pytest.mark.parametrize("path", ["/pause", "/v1/completions", "/v1/realtime/", "/ws"])
async def test_elsewhere_there_are_none(guarded: Guarded, path: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError):
        await guarded.session.ws_connect(f"{guarded.url}{path}")
    assert not [call for call in guarded.engine.calls if call.method == "WEBSOCKET"]


async def test_what_is_open_when_the_guard_closes_stays_open(guarded: Guarded) -> None:
    async with guarded.session.ws_connect(f"{guarded.url}{REALTIME}") as socket:
        assert await guarded.close() == 1
        await socket.send_str("still there")
        assert await socket.receive_str() == "still there"
    await guarded.idle()


async def test_aborting_closes_it_with_a_reason(guarded: Guarded) -> None:
    async with guarded.session.ws_connect(f"{guarded.url}{REALTIME}") as socket:
        await until(lambda: guarded.engine.running == 1)
        await guarded.abort()
        async with asyncio.timeout(30):
            message = await socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1012)
    await guarded.idle()


async def test_a_socket_may_be_silent(impatient: Guarded) -> None:
    async with impatient.session.ws_connect(f"{impatient.url}{REALTIME}") as socket:
        await asyncio.sleep(0.8)  # time is what this is about
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
