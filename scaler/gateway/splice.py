"""The middle of a stream, moved from engine to client in the moment in which its bytes come, without the loop's turns in between.

A task that reads a piece and writes it costs several times of what is done to the piece. So once a stream has begun, its connection's
bytes are taken before aiohttp gets them (`wires.Wire.tap`), for as long as they are whole chunks; aiohttp, which has read up to
a boundary between two of them, gets the last one's mark, and ends the answer as ever. Whole events alone go on, as everywhere.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from scaler.gateway.chunks import Chunks
from scaler.gateway.wires import Wire

MOST_WAITING: Final = 64 * 1024
"""Bytes on their way to a client beyond which its engine isn't read: asyncio's own mark, below which a drain doesn't wait."""


class Splice:
    """One stream's middle.

    Args:
        client: the client's transport; the head of its answer is out, and its body goes in chunks.
        wire: the engine's connection.
        chunks: the engine's chunks, from where aiohttp has read to.
        take: gets what chunks carry, and returns the events that are whole.

    Attributes:
        ready: events for whoever goes on to write; empty: none.
        sent: the events that were written last; empty: none were.
    """

    def __init__(
        self, client: asyncio.Transport, wire: Wire, chunks: Chunks, take: Callable[[bytes], bytes]
    ) -> None:
        self.ready = b""
        self.sent = b""
        self._client = client
        self._wire = wire
        self._chunks = chunks
        self._take = take
        self._over = False
        self._full = False
        self._woken: asyncio.Future[None] | None = None

    async def run(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Move events until aiohttp has to go on: at the stream's end, at its break, or where its chunks are no usual ones.

        Args:
            drain: waits until the client has taken what was written; the engine isn't read meanwhile.
        """
        loop = asyncio.get_running_loop()
        self._wire.tap(self._on_bytes, self._on_lost)
        try:
            while not self._over:
                self._woken = loop.create_future()
                await self._woken
                if self._full and not self._over:
                    await drain()
                    self._go_on()
        finally:
            if not self._over:  # else the connection may be another request's by now
                self._wire.untap()
            self._go_on()

    def _on_bytes(self, data: bytes) -> bytes:
        carried = self._chunks.feed(data)
        events = self._take(carried) if carried else b""
        if self._chunks.over:
            self.ready = events
            self._end()
        elif events:
            self._write(events)
        return self._chunks.over

    def _write(self, events: bytes) -> None:
        client = self._client
        if client.is_closing():
            return  # its task hears of that
        client.write(b"%x\r\n%b\r\n" % (len(events), events))
        self.sent = events
        if client.get_write_buffer_size() > MOST_WAITING and not self._full:
            self._full = True
            self._wire.pause()
            self._wake()

    def _go_on(self) -> None:
        if self._full:
            self._full = False
            self._wire.resume()

    def _on_lost(self) -> None:
        partial = self._chunks.partial()
        self.ready = self._take(partial) if partial else b""
        self._end()

    def _end(self) -> None:
        self._over = True
        self._wire.untap()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
