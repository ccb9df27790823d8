"""Trailers of engines' answers: what comes behind a body that was sent in chunks, for clients that say that they take it.

aiohttp reads them and hands them to nobody. So of a request whose client asked for them the answer's bytes are looked at before
aiohttp gets them: its head, and where that announces trailers the chunks, too. All other requests go the usual way. `Tail` is
pure: bytes in, fields out.
"""

import asyncio
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, cast

import aiohttp
from aiohttp import web
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.tracing import Trace

Field = tuple[bytes, bytes]

_LONGEST_HEAD: Final = 64 * 1024
_LONGEST_LINE: Final = 4 * 1024
_LONGEST_TAIL: Final = 16 * 1024
_NO_BODY: Final = frozenset({b"204", b"304"})
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3})\b")
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r", re.IGNORECASE)
_ANNOUNCED: Final = re.compile(rb"\r\ntrailer:([^\r\n]*)", re.IGNORECASE)
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD: Final = re.compile(rb"([^:]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_REFUSED: Final = frozenset(
    {
        *(b"transfer-encoding", b"content-length", b"host", b"connection", b"keep-alive", b"te", b"trailer"),
        *(
            b"upgrade",
            b"content-encoding",
            b"content-type",
            b"content-range",
            b"authorization",
            b"set-cookie",
        ),
        *(b"www-authenticate", b"proxy-authenticate", b"age", b"cache-control", b"expires", b"date"),
        *(b"location", b"retry-after", b"vary", b"x-request-id"),
    }
)
"""What says how a message is read, routed or kept, or who may read it, and so must not come behind it (RFC 9110, section 6.5.1)."""


class _Part(Enum):
    HEAD = 0
    SIZE = 1
    DATA = 2
    TAIL = 3


class Tail:
    """Finds the trailers of one answer in its bytes, as they come.

    Attributes:
        announced: the names of those that will come and may be passed on, as the answer's head has them; empty: none.
        fields: those that have come.
    """

    __slots__ = ("_held", "_part", "_skip", "announced", "fields")

    def __init__(self) -> None:
        self.announced: Sequence[bytes] = ()
        self.fields: Sequence[Field] = ()
        self._part = _Part.HEAD
        self._held = b""
        self._skip = 0

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, and return whether there is any need of more."""
        self._held += data
        while (more := self._step()) is None:
            pass
        if not more:
            self._held = b""
        return more

    def _step(self) -> bool | None:
        """Take one step; return whether more bytes are needed, or None if there may be another step."""
        match self._part:
            case _Part.HEAD:
                return self._head()
            case _Part.DATA:
                skipped = min(self._skip, len(self._held))
                self._held, self._skip = self._held[skipped:], self._skip - skipped
                if self._skip:
                    return True
                self._part = _Part.SIZE
            case _Part.SIZE:
                return self._size()
            case _Part.TAIL:
                return self._tail()
        return None

    def _head(self) -> bool | None:
        head, found, rest = self._held.partition(b"\r\n\r\n")
        if not found:
            return len(self._held) <= _LONGEST_HEAD
        status = _STATUS.match(head)
        if status is None:
            return False
        self._held = rest
        if status[1].startswith(b"1"):
            return None  # the answer's own head is still to come
        named = _ANNOUNCED.findall(head)
        if not named or status[1] in _NO_BODY or not _CHUNKED.search(head + b"\r"):
            return False
        names = [name.strip() for line in named for name in line.split(b",")]
        self.announced = tuple(
            name for name in names if _NAME.fullmatch(name) and name.lower() not in _REFUSED
        )
        self._part = _Part.SIZE
        return None if self.announced else False

    def _size(self) -> bool | None:
        line, found, rest = self._held.partition(b"\r\n")
        if not found:
            return len(self._held) <= _LONGEST_LINE
        try:
            size = int(line.partition(b";")[0].strip(), 16)
        except ValueError:
            return False  # for aiohttp to complain of
        self._held, self._skip = rest, size + 2
        self._part = _Part.DATA if size else _Part.TAIL
        return None

    def _tail(self) -> bool:
        text, found, _ = (b"\r\n" + self._held).partition(b"\r\n\r\n")
        if not found:
            return len(self._held) <= _LONGEST_TAIL
        wanted = {name.lower() for name in self.announced}
        read = (_FIELD.fullmatch(line) for line in text.split(b"\r\n"))
        self.fields = tuple((each[1], each[2]) for each in read if each and each[1].lower() in wanted)
        return False


class _Watching(asyncio.Protocol):
    """Receives a connection's bytes for aiohttp."""

    def __init__(self, handler: asyncio.Protocol) -> None:
        self.tail = Tail()
        self._handler = handler
        self._looking = False

    def begin(self, *, look: bool) -> None:
        """Another answer is to come, whose trailers are wanted or not."""
        self.tail = Tail()
        self._looking = look

    def data_received(self, data: bytes) -> None:
        if self._looking:
            self._looking = self.tail.feed(data)
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._handler.connection_lost(error)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()


class Connector(aiohttp.TCPConnector):
    """Makes connections whose answers' trailers are seen."""

    async def connect(
        self,
        req: ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> Connection:
        """Get a connection from the pool, or a new one."""
        connection = await super().connect(req, traces, timeout)
        transport, wanted = connection.transport, "TE" in req.headers
        watching = transport.get_protocol() if transport is not None else None
        if transport is not None and wanted and not isinstance(watching, _Watching):
            watching = _Watching(cast("asyncio.Protocol", watching))
            transport.set_protocol(watching)
        if isinstance(watching, _Watching):
            watching.begin(look=wanted)
        return connection


class Response(aiohttp.ClientResponse):
    """An answer whose trailers are seen.

    Attributes:
        tail: where they are once the answer has ended.
    """

    tail = Tail()

    async def start(self, connection: Connection) -> "Response":
        """Read the answer's head."""
        watching = connection.transport.get_protocol() if connection.transport is not None else None
        if isinstance(watching, _Watching):
            self.tail = watching.tail
        await super().start(connection)
        return self


def tail_of(response: aiohttp.ClientResponse) -> Tail:
    """Return what is known of an answer's trailers."""
    return response.tail if isinstance(response, Response) else Tail()


async def write_end(request: web.BaseRequest, stream: web.StreamResponse, last: bytes, tail: Tail) -> None:
    """Write the last piece of a stream, its end, and the trailers that its head has announced.

    Args:
        request: the client's request.
        stream: the answer to it.
        last: its last piece; may be empty.
        tail: the trailers.
    """
    writer = request.writer
    if "Trailer" in stream.headers and isinstance(writer, StreamWriter) and writer.chunked:
        fields = b"".join(b"%s: %s\r\n" % field for field in tail.fields)
        last = (b"%x\r\n%s\r\n" % (len(last), last) if last else b"") + b"0\r\n" + fields + b"\r\n"
        writer.chunked = False  # what is written from here on is the end of the last chunk, as it is
    await stream.write_eof(last)
