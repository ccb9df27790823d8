"""Addresses of Redis as policies have them lead to the server that they name."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from scaler.policy.signals import RedisServer
from scaler.signals.redis_client import open_redis, server_of_url

QUEUED = 3


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer whatever is asked with a length."""
    try:
        while await reader.read(1024):
            writer.write(b":%d\r\n" % QUEUED)
            await writer.drain()
    finally:
        writer.close()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("by_url", [False, True], ids=["policy", "command line"])
async def test_a_server_is_reached_by_its_ipv6_address(*, by_url: bool) -> None:
    async with await asyncio.start_server(answer, "::1", 0) as listener:
        address = f"[::1]:{listener.sockets[0].getsockname()[1]}"
        server = server_of_url(f"redis://{address}") if by_url else RedisServer(addresses=(address,))
        async with AsyncExitStack() as closing, asyncio.timeout(30):
            assert await open_redis(server, closing).llen("jobs") == QUEUED
