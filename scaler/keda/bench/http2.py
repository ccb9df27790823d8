"""As much of HTTP/2 and gRPC as a client needs that costs next to nothing beside the server that it measures.

RFC 9113 for frames, RFC 7541 for headers, which are sent as plain literals; what comes back is not decoded but for gRPC's
messages: a call counts as answered when a whole message and the end of its stream have come, and not when its stream ends without
a message or is reset. Our server sends an empty message with a refusal; whoever reads messages has to look. It can also do what no decent client does, which tests of hostile callers want.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE: Final = 4
_LARGEST_WINDOW: Final = 2**31 - 1
_FIRST_WINDOW: Final = 65_535
_HEAD: Final = 9
_MESSAGE_HEAD: Final = 5
_SMALL: Final = 127

Told = Callable[["Stream"], None]


class Stream:
    """One call.

    Attributes:
        number: its number in the connection.
        began: `time.perf_counter` when it was sent.
        ended: when its end came; None before.
        messages: what has come.
        reset: the error code with which it was reset; None where it wasn't.
    """

    __slots__ = ("_told", "began", "buffer", "ended", "messages", "number", "reset")

    def __init__(self, number: int, told: Told) -> None:
        self.number = number
        self.began = time.perf_counter()
        self.ended: float | None = None
        self.buffer = b""
        self.messages: list[bytes] = []
        self.reset: int | None = None
        self._told = told

    @property
    def answered(self) -> bool:
        """Whether it ended with a message."""
        return self.ended is not None and bool(self.messages) and self.reset is None

    def take(self, data: bytes) -> None:
        """Take the payload of a DATA frame."""
        self.buffer += data
        while len(self.buffer) >= _MESSAGE_HEAD:
            end = _MESSAGE_HEAD + int.from_bytes(self.buffer[1:_MESSAGE_HEAD], "big")
            if len(self.buffer) < end:
                return
            self.messages.append(self.buffer[_MESSAGE_HEAD:end])
            self.buffer = self.buffer[end:]
            self._told(self)

    def end(self, reset: int | None = None) -> None:
        """Its end has come."""
        if self.ended is None:
            self.ended, self.reset = time.perf_counter(), reset
            self._told(self)


class Connection(asyncio.Protocol):
    """One connection, cleartext with prior knowledge.

    Args:
        reads: whether windows are opened; without it the server may send 65,535 bytes and no more.

    Attributes:
        settled: set once the server's settings have come.
        lost: set once it is gone.
    """

    def __init__(self, *, reads: bool = True) -> None:
        self.settled = asyncio.Event()
        self.lost = asyncio.Event()
        self.streams: dict[int, Stream] = {}
        self._reads = reads
        self._buffer = b""
        self._next = 1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        window = _LARGEST_WINDOW if self._reads else 0
        transport.write(
            PREFACE
            + frame(SETTINGS, 0, 0, _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big"))
        )
        if self._reads:
            transport.write(frame(WINDOW_UPDATE, 0, 0, (_LARGEST_WINDOW - _FIRST_WINDOW).to_bytes(4, "big")))

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is open."""
        del exc
        self.lost.set()
        for stream in tuple(self.streams.values()):
            stream.end(reset=-1)

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        buffer, at = self._buffer + data, 0
        while len(buffer) - at >= _HEAD:
            end = at + _HEAD + int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) < end:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            number = int.from_bytes(buffer[at + 5 : at + 9], "big") & _LARGEST_WINDOW
            self._frame(kind, flags, number, buffer[at + _HEAD : end])
            at = end
        self._buffer = buffer[at:]

    def call(self, path: str, message: bytes, told: Told) -> Stream:
        """Send a call with its one message; `told` is called at each message and at the end."""
        stream = self.open(path, told)
        self.write(frame(DATA, END_STREAM, stream.number, _framed(message)))
        return stream

    def open(self, path: str, told: Told, *metadata: tuple[str, str]) -> Stream:
        """Send a call's head, and nothing more."""
        stream = Stream(self._next, told)
        self._next += 2
        self.streams[stream.number] = stream
        head = b"".join(_literal(name, value) for name, value in (*_head(path), *metadata))
        self.write(frame(HEADERS, END_HEADERS, stream.number, head))
        return stream

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def close(self) -> None:
        """Close without a word."""
        if self._transport is not None:
            self._transport.abort()

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            self.write(frame(SETTINGS, ACK, 0, b""))
            self.settled.set()
        elif kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        stream = self.streams.get(number)
        if stream is None:
            return
        if kind == DATA:
            stream.take(payload)
        if kind == RST_STREAM:
            stream.end(reset=int.from_bytes(payload, "big"))
        elif kind in {DATA, HEADERS} and flags & END_STREAM:
            stream.end()
        if stream.ended is not None:
            self.streams.pop(number, None)


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + payload


async def connect(host: str, port: int, *, reads: bool = True) -> Connection:
    """Return a connection whose server has sent its settings."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(reads=reads), host, port)
    await connection.settled.wait()
    return connection


def _head(path: str) -> tuple[tuple[str, str], ...]:
    return (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "keda"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )


def _literal(name: str, value: str) -> bytes:
    """Write a header without indexing (RFC 7541, 6.2.2)."""
    return b"\x00" + _string(name.encode()) + _string(value.encode())


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < _SMALL:
        return bytes((size,)) + text
    left, head = size - _SMALL, bytearray((_SMALL,))
    while left >= 128:  # noqa: PLR2004 - RFC 7541, 5.1
        head.append(left % 128 + 128)
        left //= 128
    head.append(left)
    return bytes(head) + text


def _framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message
