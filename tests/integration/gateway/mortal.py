"""An engine of bare bytes, which may die at once when it has written them."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Death(Enum):
    """How a connection ends with its engine."""

    ORDERLY = "FIN"
    """As the system closes the sockets of a process that was killed."""
    RESET = "RST"
    """As it does where the process hadn't read everything, or where the machine is gone."""


@dataclass
class Mortal:
    """An engine that answers with some bytes, and dies or not."""

    given: bytes
    death: Death | None = None
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    _open: set[asyncio.Transport] = field(default_factory=set)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["Mortal"]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            try:
                yield self
            finally:
                for transport in self._open:
                    transport.abort()

    @property
    def asked(self) -> int:
        return len(self.heads)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def answer(self, transport: asyncio.Transport, head: bytes) -> None:
        self.heads.append(head)
        self._open.add(transport)
        transport.write(self.given)
        if self.death is Death.RESET:
            at_once = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            assert not transport.get_write_buffer_size(), "all of it is on its way"
            transport.abort()
        elif self.death is Death.ORDERLY:
            transport.close()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: Mortal) -> None:
        self._engine = engine
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._engine.connections += 1
        # room for a long answer, so that a death finds nothing that is still to be written
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if found and len(body) >= length:
            self._read = b""
            self._engine.answer(self._transport, head)
