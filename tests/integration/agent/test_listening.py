"""What clients do wrong on a control API is answered, and fills no log; and many at once hold up nobody."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing

import pytest
from aiohttp import web

from warmpool import listening


async def _answer(request: web.Request) -> web.Response:
    if request.path == "/fault":
        raise RuntimeError("a fault of ours")
    return web.Response(text="ok")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/{any}", _answer)
    runner = listening.runner(app, 0.1)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await listening.start(runner, listener)
        yield listener.getsockname()[1]
        await runner.cleanup()


async def said(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    "request_line",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", id="TLS"),
        pytest.param(b"GET /x HTTP/9.9.9\r\n\r\n", id="no version"),
        pytest.param(b"GET /x HTTP/1.1\r\nHost: h\r\nno header\r\n\r\n", id="no header"),
        pytest.param(b"GET /x HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", id="huge"),
        pytest.param(
            b"GET /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="smuggled",
        ),
    ],
)
async def test_a_request_that_is_none_gets_400_and_no_traceback(
    port: int, request_line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await said(port, b"GET /first HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b" 400 " in await said(port, request_line)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_fault_of_ours_is_logged_with_its_traceback(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert b" 500 " in await said(port, b"GET /fault HTTP/1.1\r\nHost: h\r\n\r\n")
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


async def test_connections_are_taken_a_few_at_a_time(port: int) -> None:
    """Three hundred wait in the system's queue; what else the loop has to do comes in between."""
    async with AsyncExitStack() as stack:
        clients = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port)))) for _ in range(300)
        ]
        for each in clients:
            each.sendall(b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        reader, writer = await asyncio.open_connection(sock=clients[-1])
        stack.callback(writer.close)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        last, turns = tasks.create_task(reader.read()), 0
        while not last.done():
            turns += 1
            await asyncio.sleep(0)
        assert last.result().endswith(b"ok")
        assert turns > 300 / listening.ACCEPTED_AT_ONCE


@pytest.mark.parametrize("path", [b"/ok", b"/fault", b"/a/b"], ids=["found", "fault", "unknown"])
async def test_no_answer_names_software(port: int, path: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" % path)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"aiohttp" not in answer
    assert b"Python" not in answer
