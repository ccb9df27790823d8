"""An open-loop client: requests leave at their times whatever becomes of earlier ones, on connections that are kept."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Final

from scaler.gateway.bench.engine import answer

_END: Final = b"0\r\n\r\n"
_CONTENT: Final = b'"content":"t'
_PROMPT: Final = "Say something of interest. " * 40


@dataclass(slots=True)
class Taken:
    """What a client saw.

    Attributes:
        first: seconds to each request's first token.
        whole: seconds to each answer's end.
        wrong: answers that aren't what the engine gives.
    """

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    wrong: int = 0


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._read = bytearray()
        self._first = 0.0
        self._done: asyncio.Future[tuple[float, bytes]] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(error or ConnectionResetError("closed in the middle"))

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._first and _CONTENT in self._read:
            self._first = time.perf_counter()
        if self._done is not None and not self._done.done() and self._ended():
            self._done.set_result((self._first, bytes(self._read)))

    async def ask(self, request: bytes) -> tuple[float, bytes]:
        """Send a request; return when its first token came, and the raw answer."""
        assert self.transport is not None
        self._read.clear()
        self._first, self._done = 0.0, asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._done

    def _ended(self) -> bool:
        if self._read.endswith(_END):
            return True
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return False
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return bool(length) and len(body) >= int(length)


class Client:
    """Asks one address.

    Args:
        host, port: whom.
        tokens: how many tokens to ask for.
    """

    def __init__(self, host: str, port: int, tokens: int) -> None:
        self._host = host
        self._port = port
        self._tokens = tokens
        self._idle: list[_Connection] = []
        self._seed = 0

    async def run(self, per_second: float, seconds: float, chance: random.Random) -> Taken:
        """Ask at a rate for a while, at random intervals; the first half second isn't counted."""
        taken, loop = Taken(), asyncio.get_running_loop()
        began = at = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while (at := at + chance.expovariate(per_second)) < began + seconds:
                await asyncio.sleep(at - loop.time())
                tasks.create_task(self._one(taken, counted=at > began + 0.5))
        return taken

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            if connection.transport is not None:
                connection.transport.close()
        self._idle.clear()

    async def _one(self, taken: Taken, *, counted: bool) -> None:
        self._seed += 1
        seed = self._seed
        asked = request(seed, self._tokens)
        begun = time.perf_counter()
        try:
            connection = await self._connection()
            first, raw = await connection.ask(asked)
        except OSError:
            taken.wrong += 1
            return
        ended = time.perf_counter()
        self._idle.append(connection)
        if body_of(raw) != answer(seed, self._tokens):
            taken.wrong += 1
        elif counted:
            taken.first.append(first - begun)
            taken.whole.append(ended - begun)

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        _, made = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return made


def request(seed: int, tokens: int) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps(
        {
            "model": "m",
            "stream": True,
            "seed": seed,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": _PROMPT}],
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer key\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def body_of(raw: bytes) -> bytes:
    """Return what a raw answer carries."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return rest
    found = bytearray()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        try:
            length = int(size, 16)
        except ValueError:
            return b""
        found += rest[:length]
        rest = rest[length + 2 :]
    return bytes(found)
