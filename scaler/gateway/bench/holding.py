"""Requests that are held: how much memory they take."""

import asyncio
from dataclasses import dataclass
from typing import Final

from scaler.gateway.bench.client import request
from scaler.gateway.bench.proxies import Running

_AT_ONCE: Final = 50
_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A gateway's memory.

    Attributes:
        before_mib: without any request.
        mib: while it holds them.
    """

    before_mib: float
    mib: float


async def hold(gateway: Running, count: int) -> Held:
    """Have a gateway hold so many requests, each on a connection of its own."""
    before = gateway.mib
    writers: list[asyncio.StreamWriter] = []
    try:
        for begun in range(0, count, _AT_ONCE):
            opened = await asyncio.gather(
                *(_ask(gateway.port, begun + number) for number in range(min(_AT_ONCE, count - begun)))
            )
            writers.extend(opened)
        await asyncio.sleep(_SETTLE_SECONDS)
        return Held(before_mib=before, mib=gateway.mib)
    finally:
        for writer in writers:
            writer.close()


async def _ask(port: int, seed: int) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(seed, 16))
    await writer.drain()
    return writer
