"""A stand-in for an engine that costs next to nothing: it streams made-up tokens at a pace that the request names.

What a request gets follows from its body alone, so that answers through a proxy can be compared with direct ones.
"""

import asyncio
import json
from typing import Final

THINK_SECONDS: Final = 0.005
"""Time from a request to its first token."""
INTERVAL_SECONDS: Final = 0.01
"""Time between tokens."""
_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_ROLE: Final = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
_END: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n',
    b"data: [DONE]\n\n",
)


def event(seed: int, number: int) -> bytes:
    """Return the event with the token of this number."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"t%d-%d "}}]}\n\n' % (seed, number)


def answer(seed: int, tokens: int) -> bytes:
    """Return the whole stream's bytes, as a client should read them."""
    return _ROLE + b"".join(event(seed, number) for number in range(tokens)) + b"".join(_END)


class Engine(asyncio.Protocol):
    """One connection: requests with a Content-Length, answered one after the other."""

    def __init__(self) -> None:
        self._read = bytearray()
        self._next: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, _error: Exception | None) -> None:
        """Stop working for a client that went away."""
        self._transport = None
        if self._next is not None:
            self._next.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer once a request is whole."""
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        self._read = rest[length:]
        body = json.loads(rest[:length])
        self.answer(int(body.get("seed", 0)), int(body.get("max_tokens", 16)))

    def answer(self, seed: int, tokens: int) -> None:
        """Begin an answer."""
        self._later(THINK_SECONDS, _HEAD + _chunk(_ROLE) + _chunk(event(seed, 0)), seed, 1, tokens)

    def write(self, data: bytes) -> None:
        """Write something to the client."""
        assert self._transport is not None
        self._transport.write(data)

    @property
    def connected(self) -> bool:
        """Whether its client still gets what is written."""
        return self._transport is not None and not self._transport.is_closing()

    def began(self, seed: int) -> None:
        """Take note that first content is about to be given."""

    def abort(self) -> None:
        """Break the connection, as the death of a process does."""
        if self._transport is not None:
            self._transport.abort()

    def _later(self, seconds: float, data: bytes, seed: int, number: int, tokens: int) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(seconds, self._send, data, seed, number, tokens)

    def _send(self, data: bytes, seed: int, number: int, tokens: int) -> None:
        if number == 1:
            self.began(seed)
        self.write(data)
        if number < tokens:
            self._later(INTERVAL_SECONDS, _chunk(event(seed, number)), seed, number + 1, tokens)
        else:
            self.write(b"".join(map(_chunk, _END)) + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
