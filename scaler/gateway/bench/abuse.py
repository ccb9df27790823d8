"""Clients that mean harm, as a process of its own: they keep a gateway busy while others are measured."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from scaler.gateway.bench.client import request
from scaler.gateway.bench.processes import stay

IDLE: Final = 10_000
"""Connections that say nothing."""
_HALVES: Final = 500
"""Connections whose heads trickle in, byte by byte."""
_LARGE: Final = 2
"""Clients that send bodies of 100 MB."""
_SENDERS: Final = 2
"""Clients of each other kind, one request after the other."""
_PAUSE_SECONDS: Final = 0.05
_BODY: Final = 100 * 2**20
_PIECE: Final = b"x" * 65_536
_UNSOUND: Final = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nxxxxx",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    request(1, 1)[:200],
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: text/xml\r\nContent-Length: 4\r\n\r\n\xff\xfe<>",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 600000\r\n\r\n" + b"[" * 600_000,
)


async def abuse(port: int) -> None:
    """Do harm to whoever listens there until our input is closed; say when all of it has begun."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19)  # whom it keeps from the processor is no matter of the gateway's
    async with asyncio.TaskGroup() as tasks:
        idle = asyncio.Semaphore(200)
        working = [
            *(tasks.create_task(_again(lambda: _idle(port, idle))) for _ in range(IDLE)),
            *(tasks.create_task(_again(lambda: _trickle(port))) for _ in range(_HALVES)),
            *(tasks.create_task(_again(lambda: _large(port))) for _ in range(_LARGE)),
            *(
                tasks.create_task(_again(lambda sent=sent: _send(port, sent)))  # type: ignore[misc]
                for sent in _UNSOUND
                for _ in range(_SENDERS)
            ),
        ]
        await asyncio.sleep(5.0)
        await stay(port)
        for task in working:
            task.cancel()


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(OSError):
            await work()
        await asyncio.sleep(_PAUSE_SECONDS)


async def _idle(port: int, at_once: asyncio.Semaphore) -> None:
    async with at_once:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.read()
    writer.close()
    await asyncio.sleep(5.0)


async def _trickle(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for byte in b"POST /v1/completions HTTP/1.1\r\nX: " + b"x" * 100:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.5)
    finally:
        writer.close()


async def _large(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"x":"\r\n'
        )
        for _ in range(_BODY // len(_PIECE)):
            writer.write(b"%x\r\n%s\r\n" % (len(_PIECE), _PIECE))
            await writer.drain()
    finally:
        writer.close()


async def _send(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await reader.read()
    finally:
        writer.close()
