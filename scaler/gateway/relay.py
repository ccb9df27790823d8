"""Passes a begun answer on to its client, at the client's pace."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from aiohttp import web

from scaler.gateway.observe import Outcome
from scaler.gateway.settings import GatewaySettings
from scaler.gateway.sse import count_events, ends_stream, error_event
from scaler.gateway.trailers import write_end
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
    settings: GatewaySettings,
    gap: Callable[[float], None],
    ended: Callable[[], None],
) -> Outcome | None:
    """Write what is held and what still comes; a chunk is read only when the one before it is on its way.

    Args:
        request: the client's request.
        stream: the answer to it; its head may be out already.
        held: the engine's answer.
        settings: how long engine and client may take.
        gap: told the seconds between pieces of content.
        ended: called when the engine has given all, before the client has taken it.

    Returns:
        How the request ended, or None when all went through.
    """
    try:
        if not stream.prepared:
            await stream.prepare(request)  # goes out with the first piece
        last = await _Pump(request, stream, held, settings, gap).run()
        ended()
        if last is None and held.events is None:
            abort(request)
            return Outcome.CUT
        async with asyncio.timeout(settings.client_stall_seconds):
            if last is None:
                await stream.write_eof(error_event(STREAM_CUT, request.raw_path))
            else:
                await write_end(request, stream, last, held.tail)
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
        settings: GatewaySettings,
        gap: Callable[[float], None],
    ) -> None:
        self._request = request
        self._stream = stream
        self._held = held
        self._stall_seconds = settings.client_stall_seconds
        self._silence = _Silence(held.response, settings.stream_idle_seconds)
        self._gap = gap

    async def run(self) -> bytes | None:
        """Move everything but the last piece, which is returned to go with the end; None when the engine broke off."""
        with self._silence.noticed():
            return await self._move()

    async def _move(self) -> bytes | None:
        content, silence = self._held.response.content, self._silence
        events = self._held.events
        ready = self._held.body
        last = time.monotonic()
        while not content.at_eof():
            if ready:
                await self._write(ready)
            silence.since = time.monotonic()
            try:
                chunk = await content.readany()
            except BROKEN:
                whole = events is not None and not events.tail and ends_stream(ready)
                return b"" if whole else None  # all that is missing then is the last chunk's mark
            silence.since = math.inf
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


class _Silence:
    """Breaks an answer off whose engine says nothing for too long. One timer an answer, for there are many pieces.

    Args:
        response: the answer.
        seconds: how long is too long.

    Attributes:
        since: monotonic seconds since which the next piece has been waited for; infinite while none is.
    """

    def __init__(self, response: aiohttp.ClientResponse, seconds: float) -> None:
        self.since = math.inf
        self._response = response
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Notice it meanwhile; whoever reads then learns that the connection is broken."""
        self._look()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds - max(0.0, time.monotonic() - self.since)
        if left <= 0.0:
            self._timer = None
            self._response.close()
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
