"""Passes a begun answer on to its client, at the client's pace."""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from scaler.gateway.observe import Outcome
from scaler.gateway.sse import count_events, error_event
from scaler.gateway.upstream import BROKEN, Held


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
        stream: the answer to it, not prepared yet.
        held: the engine's answer.
        stall_seconds: time in which the client must take what was written.
        gap: told the seconds between pieces of content.
        ended: called when the engine has given all, before the client has taken it.

    Returns:
        How the request ended, or None when all went through.
    """
    try:
        async with asyncio.timeout(stall_seconds):
            await stream.prepare(request)
        last = await _Pump(stream, held, stall_seconds, gap).run()
        ended()
        if last is None and held.events is None:
            _abort(request)
            return Outcome.CUT
        async with asyncio.timeout(stall_seconds):
            await stream.write_eof(_BROKEN_OFF if last is None else last)
    except ConnectionError:
        return Outcome.ABANDONED
    except TimeoutError:
        _abort(request)
        return Outcome.STALLED
    return None if last is not None else Outcome.CUT


_BROKEN_OFF = error_event(
    "The engine broke off in the middle of the answer; what came before is not complete.",
    kind="server_error",
    code="StreamCut",
)


def _abort(request: web.BaseRequest) -> None:
    """Cut the client's connection: nothing else tells it that the answer isn't whole."""
    if request.transport is not None:
        request.transport.abort()


class _Pump:
    """Moves one answer from engine to client."""

    def __init__(
        self, stream: web.StreamResponse, held: Held, stall_seconds: float, gap: Callable[[float], None]
    ) -> None:
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
                return None
            ready = chunk if events is None else events.feed(chunk)
            if events is not None and count_events(ready):
                now = time.monotonic()
                self._gap(now - last)
                last = now
        return ready if events is None else ready + events.flush()

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(self._stall_seconds):
            await self._stream.write(data)
