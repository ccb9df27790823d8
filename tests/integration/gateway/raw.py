"""A client of bare bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tests.integration.gateway.rig import port_of

BODY = b'{"model": "m", "stream": true}'


def request(path: str = "/v1/completions", body: bytes = BODY, *headers: bytes) -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % (path.encode(), len(body))
    return head + b"".join(each + b"\r\n" for each in headers) + b"\r\n" + body


@dataclass
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Return the status of the next answer; 0 when the connection ends without one."""
        async with asyncio.timeout(30):
            line = await self.reader.readline()
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0

    async def rest(self) -> bytes:
        """Return everything until the connection ends."""
        async with asyncio.timeout(30):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def connected(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url), ssl=tls)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
