"""Whether a server takes one connection more. gRPC closes one too many at once, and says so to nobody: neither side's log has it."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final

import structlog

from scaler.meanwhile import meanwhile

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 10.0
"""Between two looks of a server at its own door: a fraction of what it takes until connections without a call are dropped."""
_SILENT_SECONDS: Final = 0.3
"""For a connection on which nothing is said to be closed: a full server does so at once."""


async def turned_away(host: str, port: int) -> bool:
    """Whether a connection is closed before either side has said anything."""
    try:
        async with asyncio.timeout(_SILENT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                return not await reader.read(1)
            finally:
                writer.transport.abort()
    except ConnectionResetError:
        return True
    except OSError:  # a time-out too: who waits for us to speak
        return False


def told(host: str, port: int, most: int, every: float = LOOK_SECONDS) -> AbstractAsyncContextManager[None]:
    """Knock at one's own door now and then meanwhile, and log when it is shut for being full, and when it isn't any more.

    Args:
        host: the address that is listened on.
        port: its port.
        most: connections that are taken.
        every: seconds between two looks.
    """
    return meanwhile(_look(host, port, most, every), "room for KEDA")


async def _look(host: str, port: int, most: int, every: float) -> None:
    full = False
    while True:
        await asyncio.sleep(every)
        before, full = full, await turned_away(host, port)
        if full and not before:
            log.error(
                "KEDA's port takes no more connections, an operator's neither",
                port=port,
                most=most,
                hint="see who holds them (ss -tn); those without a call are ended after a minute",
            )
        elif before and not full:
            log.info("KEDA's port takes connections again", port=port)
