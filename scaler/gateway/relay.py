"""Passes a begun answer on to its client, at the client's pace."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Final, cast

import aiohttp
from aiohttp import web
from aiohttp.http import StreamWriter

from scaler.gateway.observe import Outcome
from scaler.gateway.settings import GatewaySettings
from scaler.gateway.splice import Splice
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
        self._response = held.response
        self._events = held.events
        self._first = held.body
        self._pulse = held.pulse
        self._taken = held.taken
        self._stall_seconds = settings.client_stall_seconds
        self._silence = _Silence(held.response, settings.stream_idle_seconds)
        self._gap = gap
        self._content_at = time.monotonic()
        self._wire = held.wire if held.events is not None else None

    async def run(self) -> bytes | None:
        """Move everything but the last piece, which is returned to go with the end; None when the engine broke off."""
        self._silence.look()
        try:
            return await self._move()
        finally:
            self._silence.end()

    async def _move(self) -> bytes | None:
        content, events, silence = self._response.content, self._events, self._silence
        ready, sent = self._first, b""
        while not content.at_eof():
            if ready:
                await self._write(ready)
                ready, sent = b"", ready
            splice = self._splice()
            if splice is not None:
                await splice.run(self._drain)
                ready, sent = splice.ready, splice.sent or sent
                continue
            silence.since = time.monotonic()
            try:
                chunk = await content.readany()
            except BROKEN:
                whole = events is not None and not events.tail and ends_stream(sent)
                return b"" if whole else None  # all that is missing then is the last chunk's mark
            self._taken += len(chunk)
            ready = self._take(chunk)
            silence.since = math.inf
        return ready if events is None else ready + events.flush()

    def _take(self, chunk: bytes) -> bytes:
        """Take a piece, and return what of it may go on."""
        now = self._pulse.at = self._silence.since = time.monotonic()
        if self._events is None:
            return chunk
        ready = self._events.feed(chunk)
        if count_events(ready):
            self._gap(now - self._content_at)
            self._content_at = now
        return ready

    def _splice(self) -> Splice | None:
        """Return what moves a stream's middle without us, once it can: everything that has come is on its way to the client."""
        client, writer, content = self._request.transport, self._request.writer, self._response.content
        if self._wire is None or client is None or content.exception() is not None:
            return None
        if not isinstance(writer, StreamWriter) or not writer.chunked or not writer.output_size:
            return None  # an answer in no chunks, or one whose head isn't out
        chunks = self._wire.chunks(content, self._taken)
        if chunks is None:
            return None
        wire, self._wire = self._wire, None
        self._silence.since = time.monotonic()
        return Splice(client, wire, chunks, self._take)

    async def _drain(self) -> None:
        self._silence.since = math.inf
        async with asyncio.timeout(self._stall_seconds):
            await cast("StreamWriter", self._request.writer).drain()
        self._silence.since = time.monotonic()

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

    def end(self) -> None:
        """Look no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Look whether it was too long, now and whenever it may have been; whoever reads then learns that the connection is broken."""
        left = self._seconds - max(0.0, time.monotonic() - self.since)
        if left <= 0.0:
            self._timer = None
            self._response.close()
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self.look)
