"""Trailers of engines' answers: what comes behind a body that was sent in chunks, for clients that say that they take it.

aiohttp reads them and hands them to nobody. So of a request whose client asked for them the answer's bytes are looked at before
aiohttp gets them (`wires`): its head, and where that announces trailers the chunks, too. `Tail` is pure: bytes in, fields out.
"""

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final

from aiohttp import web
from aiohttp.http import StreamWriter

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

    __slots__ = ("_at", "_held", "_part", "_skip", "announced", "fields")

    def __init__(self) -> None:
        self.announced: Sequence[bytes] = ()
        self.fields: Sequence[Field] = ()
        self._part = _Part.HEAD
        self._held = b""
        self._at = 0
        self._skip = 0

    def feed(self, data: bytes) -> bool:
        """Take the next bytes, and return whether there is any need of more."""
        self._held = self._held + data if self._held else data
        while (more := self._step()) is None:
            pass
        self._held, self._at = self._held[self._at :] if more else b"", 0
        return more

    def _step(self) -> bool | None:
        """Take one step; return whether more bytes are needed, or None if there may be another step."""
        match self._part:
            case _Part.HEAD:
                return self._head()
            case _Part.DATA:
                skipped = min(self._skip, len(self._held) - self._at)
                self._at += skipped
                self._skip -= skipped
                if self._skip:
                    return True
                self._part = _Part.SIZE
            case _Part.SIZE:
                return self._size()
            case _Part.TAIL:
                return self._tail()
        return None

    def _head(self) -> bool | None:
        end = self._held.find(b"\r\n\r\n", self._at)
        if end < 0:
            return len(self._held) - self._at <= _LONGEST_HEAD
        head, self._at = self._held[self._at : end], end + 4
        status = _STATUS.match(head)
        if status is None:
            return False
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
        end = self._held.find(b"\r\n", self._at)
        if end < 0:
            return len(self._held) - self._at <= _LONGEST_LINE
        line, self._at = self._held[self._at : end], end + 2
        try:
            size = int(line.partition(b";")[0].strip(), 16)
        except ValueError:
            return False  # for aiohttp to complain of
        self._skip = size + 2
        self._part = _Part.DATA if size else _Part.TAIL
        return None

    def _tail(self) -> bool:
        text, found, _ = (b"\r\n" + self._held[self._at :]).partition(b"\r\n\r\n")
        if not found:
            return len(self._held) - self._at <= _LONGEST_TAIL
        wanted = {name.lower() for name in self.announced}
        read = (_FIELD.fullmatch(line) for line in text.split(b"\r\n"))
        self.fields = tuple((each[1], each[2]) for each in read if each and each[1].lower() in wanted)
        return False


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
