"""Passes a begun answer on to its client, at the client's pace."""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.http import StreamWriter

from scaler.gateway.observe import Outcome
from scaler.gateway.settings import GatewaySettings
from scaler.gateway.splice import Splice
from scaler.gateway.sse import ends_stream, error_event
from scaler.gateway.trailers import write_end
from scaler.gateway.upstream import BROKEN, Held

STREAM_CUT: Final[dict[str, Any]] = {
    "message": "The engine broke off in the middle of the answer; what came before is not complete.",
    "type": "server_error",
    "param": None,
    "code": "StreamCut",
}
SHUT_DOWN: Final[dict[str, Any]] = STREAM_CUT | {
    "message": "This gateway shut down in the middle of the answer; what came before is not complete."
}
NEVER_BLOCKS: Final = 32 * 1024
"""Bytes on their way to a client up to which a write can't block: asyncio's and aiohttp's marks are at 64 KiB."""


class Progress(Protocol):
    """Whoever is told how an answer goes."""

    def gap(self, seconds: float) -> None:
        """Take the time between two pieces of content."""

    def ended(self) -> None:
        """The engine has given all; the client hasn't taken it yet."""

    def cut(self) -> Mapping[str, Any]:
        """Return the error with which a stream of events ends that broke off."""


class Relay:
    """Passes answers on.

    Args:
        settings: how long engines and clients may take.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._stall_seconds = settings.client_stall_seconds
        self._silences = _Silences(settings.stream_idle_seconds)

    async def pass_on(
        self, request: web.BaseRequest, stream: web.StreamResponse, held: Held, progress: Progress
    ) -> Outcome | None:
        """Write what is held and what still comes; a chunk is read only when the one before it is on its way.

        Args:
            request: the client's request.
            stream: the answer to it; its head may be out already.
            held: the engine's answer.
            progress: told how it goes.

        Returns:
            How the request ended, or None when all went through.
        """
        try:
            if not stream.prepared:
                await stream.prepare(request)  # goes out with the first piece
            pump = _Pump(request, stream, held, self._stall_seconds, progress)
            self._silences.begin(pump)
            try:
                last = await pump.run()
            finally:
                self._silences.end(pump)
            progress.ended()
            if last is None and held.events is None:
                abort(request)
                return Outcome.CUT
            if last is not None and not may_block(request, len(last)):
                await write_end(request, stream, last, held.tail)
                return None
            async with asyncio.timeout(self._stall_seconds):
                if last is None:
                    await stream.write_eof(error_event(progress.cut(), request.raw_path))
                else:
                    await write_end(request, stream, last, held.tail)
        except ConnectionError:
            return Outcome.ABANDONED
        except TimeoutError:
            abort(request)
            return Outcome.STALLED
        return None if last is not None else Outcome.CUT


def may_block(request: web.BaseRequest, size: int) -> bool:
    """Whether writing so many bytes to a client may have to wait for it: then that wants a time-out."""
    transport = request.transport
    return transport is None or transport.get_write_buffer_size() + size >= NEVER_BLOCKS


def abort(request: web.BaseRequest) -> None:
    """Cut the client's connection: nothing else tells it that the answer isn't whole."""
    if request.transport is not None:
        request.transport.abort()


class _Pump:
    """Moves one answer from engine to client.

    Attributes:
        since: monotonic seconds since which the engine's next piece has been waited for; infinite while none is.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        stream: web.StreamResponse,
        held: Held,
        stall_seconds: float,
        progress: Progress,
    ) -> None:
        self.since = math.inf
        self._request = request
        self._stream = stream
        self._response = held.response
        self._events = held.events
        self._first = held.body
        self._pulse = held.pulse
        self._taken = held.taken
        self._stall_seconds = stall_seconds
        self._gap = progress.gap
        self._content_at = time.monotonic()
        self._wire = held.wire if held.events is not None else None

    def break_off(self) -> None:
        """Give the engine up."""
        self._response.close()

    async def run(self) -> bytes | None:
        """Move everything but the last piece, which is returned to go with the end; None when the engine broke off."""
        content, events = self._response.content, self._events
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
            self.since = time.monotonic()
            try:
                chunk = await content.readany()
            except BROKEN:
                whole = events is not None and not events.tail and ends_stream(sent)
                return b"" if whole else None  # all that is missing then is the last chunk's mark
            self._taken += len(chunk)
            ready = self._take(chunk)
            self.since = math.inf
        return ready if events is None else ready + events.flush()

    def _take(self, chunk: bytes) -> bytes:
        """Take a piece, and return what of it may go on."""
        now = self._pulse.at = self.since = time.monotonic()
        if self._events is None:
            return chunk
        ready = self._events.feed(chunk)
        if ready.startswith(b"data:") or b"\ndata:" in ready:  # not a mere comment
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
        self.since = time.monotonic()
        return Splice(client, wire, chunks, self._take)

    async def _drain(self) -> None:
        self.since = math.inf
        async with asyncio.timeout(self._stall_seconds):
            await cast("StreamWriter", self._request.writer).drain()
        self.since = time.monotonic()

    async def _write(self, data: bytes) -> None:
        if not may_block(self._request, len(data)):
            await self._stream.write(data)
            return
        async with asyncio.timeout(self._stall_seconds):
            await self._stream.write(data)


class _Silences:
    """Breaks answers off whose engines say nothing for too long. One timer for all of them, for there are many, and most end well.

    Args:
        seconds: how long is too long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: set[_Pump] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, pump: _Pump) -> None:
        """Watch one from now on; whoever reads of an answer that was broken off learns that the connection is."""
        self._watched.add(pump)
        if self._timer is None:
            self._look()

    def end(self, pump: _Pump) -> None:
        """Watch it no longer."""
        self._watched.discard(pump)

    def _look(self) -> None:
        """Look now, and when the next may have been silent for too long: nobody who comes meanwhile will have been before that."""
        self._timer = None
        now = time.monotonic()
        for pump in [each for each in self._watched if now - each.since >= self._seconds]:
            self._watched.discard(pump)
            pump.break_off()
        if self._watched:
            left = self._seconds - max(0.0, now - min(each.since for each in self._watched))
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
