"""Connections to engines whose bytes are seen before aiohttp gets them.

That is for two things that aiohttp doesn't do: trailers, which it reads and hands to nobody (`trailers`), and streams whose pieces
go to their clients in the moment in which they come (`splice`).
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from scaler.gateway.chunks import Chunks, begun
from scaler.gateway.trailers import Tail

NO_TAIL: Final = Tail()
"""Of an answer whose trailers nobody wants."""
MOST_SEEN: Final = 16 * 1024
"""Bytes of an answer's beginning that are kept, to know where in its chunks it is."""


class Wire(asyncio.Protocol):
    """Receives a connection's bytes for aiohttp.

    Args:
        transport: the connection.
        handler: aiohttp's.

    Attributes:
        tail: the present answer's trailers.
        content: what aiohttp reads of it; None before its head is here.
    """

    def __init__(self, transport: asyncio.Transport, handler: asyncio.Protocol) -> None:
        self.tail = NO_TAIL
        self.content: aiohttp.StreamReader | None = None
        self._transport = transport
        self._handler = handler
        self._looking = False
        self._seen: bytes | None = b""
        self._take: Callable[[bytes], bytes] | None = None
        self._lost: Callable[[], None] | None = None

    def begin(self, *, look: bool) -> None:
        """Another answer is to come, whose trailers are wanted or not."""
        self.tail = Tail() if look else NO_TAIL
        self.content = None
        self._looking = look
        self._seen = b""
        self.untap()

    # -------------------------------------------------------------- bytes past aiohttp

    def chunks(self, content: aiohttp.StreamReader, taken: int) -> Chunks | None:
        """Return the present answer's chunks, if they were read up to a boundary between two and no further; else None.

        Args:
            content: what aiohttp has read of it.
            taken: bytes that were taken of that.
        """
        if self._looking or not self._seen:
            return None
        found = begun(self._seen)
        if found is None:
            self._seen = None
            return None
        return found if found.between and found.given == content.total_bytes == taken else None

    def tap(self, take: Callable[[bytes], bytes], lost: Callable[[], None]) -> None:
        """Have somebody else take what comes, from a boundary between two chunks on.

        Args:
            take: gets the bytes, and returns those from a boundary on that are aiohttp's; it unties itself before it returns any.
            lost: called when the connection has ended.
        """
        self._seen = None
        self._take, self._lost = take, lost

    def untap(self) -> None:
        """Let aiohttp have what comes."""
        self._take = self._lost = None

    def pause(self) -> None:
        """Read nothing of the connection for a while."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read it again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # -------------------------------------------------------------- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`, as all below."""
        if self._take is not None:
            data = self._take(data)
            if not data:
                return
        elif self._seen is not None:
            self._seen = self._seen + data if len(self._seen) + len(data) <= MOST_SEEN else None
        if self._looking:
            self._looking = self.tail.feed(data)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """Have aiohttp hear it."""
        return self._handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """Have aiohttp hear it, and whoever takes the bytes; whose chunks were broken aiohttp closes and tells nobody."""
        self._handler.connection_lost(error)
        content = self.content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the engine's answer is broken"))
        if self._lost is not None:
            self._lost()

    def pause_writing(self) -> None:
        """Have aiohttp hear it."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Have aiohttp hear it."""
        self._handler.resume_writing()


class Connector(aiohttp.TCPConnector):
    """Makes connections whose bytes are seen."""

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> Connection:
        """Get a connection from the pool, or a new one."""
        connection = await super().connect(req, traces, timeout)
        transport = connection.transport
        if transport is not None:
            wire = transport.get_protocol()
            if not isinstance(wire, Wire):
                wire = Wire(transport, cast("asyncio.Protocol", wire))
                transport.set_protocol(wire)
            wire.begin(look="TE" in req.headers)
        return connection


class Resolver(aiohttp.ThreadedResolver):
    """Finds out addresses, in a time.

    Args:
        seconds: how long that may take.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return a host's addresses.

        Raises:
            OSError: it has none, or nobody has said in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                return await super().resolve(host, port, family)
        except TimeoutError:
            raise OSError(None, f"no address of {host} within {self._seconds:g} s") from None


class Response(aiohttp.ClientResponse):
    """An answer that knows its connection.

    Attributes:
        wire: that; None before it has begun.
        tail: where its trailers are once it has ended.
    """

    wire: Wire | None = None
    tail = NO_TAIL

    async def start(self, connection: Connection) -> "Response":
        """Read the answer's head."""
        wire = connection.transport.get_protocol() if connection.transport is not None else None
        if isinstance(wire, Wire):
            self.wire, self.tail = wire, wire.tail
        await super().start(connection)
        if isinstance(wire, Wire):
            wire.content = self.content
        return self
