"""Passes a begun answer on to its client, at the client's pace."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from scaler.gateway.observe import Outcome
from scaler.gateway.sse import count_events, ends_stream, error_event
from scaler.gateway.upstream import BROKEN, Held

STREAM_CUT: Final[dict[str, Any]] = {
    "message": "The engine broke off in the middle of the answer; what came before is not complete.",
    "type": "server_error",
    "param": None,
    "code": "StreamCut",
}
NEVER_BLOCKS: Final = 32 * 1024
"""Bytes on their way to a client up to which a write can't block: asyncio's and aiohttp's marks are at 64 KiB."""


async def relay(
    request: web.BaseRequest,
    stream: web.StreamResponse,
    held: Held,
    *,
    stall_seconds: float,
    gap: Callable[[float], None],
    ended: Callable[[], None],
) -> Outcome | None:
    """Write what is held and what still comes; a chunk is read only when the one before it is on its way.

    Args:
        request: the client's request.
        stream: the answer to it; its head may be out already.
        held: the engine's answer.
        stall_seconds: time in which the client must take what was written.
        gap: told the seconds between pieces of content.
        ended: called when the engine has given all, before the client has taken it.

    Returns:
        How the request ended, or None when all went through.
    """
    try:
        if not stream.prepared:
            await stream.prepare(request)  # goes out with the first piece
        last = await _Pump(request, stream, held, stall_seconds, gap).run()
        ended()
        if last is None and held.events is None:
            abort(request)
            return Outcome.CUT
        async with asyncio.timeout(stall_seconds):
            await stream.write_eof(error_event(STREAM_CUT, request.raw_path) if last is None else last)
    except ConnectionError:
        return Outcome.ABANDONED
    except TimeoutError:
        abort(request)
        return Outcome.STALLED
    return None if last is not None else Outcome.CUT


def abort(request: web.BaseRequest) -> None:
    """Cut the client's connection: nothing else tells it that the answer isn't whole."""
    if request.transport is not None:
        request.transport.abort()


class _Pump:
    """Moves one answer from engine to client."""

    def __init__(
        self,
        request: web.BaseRequest,
        stream: web.StreamResponse,
        held: Held,
        stall_seconds: float,
        gap: Callable[[float], None],
    ) -> None:
        self._request = request
        self._stream = stream
        self._held = held
        self._stall_seconds = stall_seconds
        self._gap = gap

    async def run(self) -> bytes | None:
        """Move everything but the last piece, which is returned to go with the end; None when the engine broke off."""
        content = self._held.response.content
        events = self._held.events
        ready = self._held.body
        last = time.monotonic()
        while not content.at_eof():
            if ready:
                await self._write(ready)
            try:
                chunk = await content.readany()
            except BROKEN:
                whole = events is not None and not events.tail and ends_stream(ready)
                return b"" if whole else None  # all that is missing then is the last chunk's mark
            ready = chunk if events is None else events.feed(chunk)
            if events is not None and count_events(ready):
                now = time.monotonic()
                self._gap(now - last)
                last = now
        return ready if events is None else ready + events.flush()

    async def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is not None and transport.get_write_buffer_size() + len(data) < NEVER_BLOCKS:
            await self._stream.write(data)
            return
        async with asyncio.timeout(self._stall_seconds):
            await self._stream.write(data)
