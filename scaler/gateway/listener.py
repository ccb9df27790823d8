"""The gateway's listening socket: how many connections there may be, and how long one may take to say what it wants."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from scaler.gateway.messages import REQUEST_ID_HEADER, SERVER, RequestRefused, endless, request_id
from scaler.gateway.settings import GatewaySettings
from warmpool.listening import ACCEPTED_AT_ONCE, BACKLOG

log = structlog.get_logger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _raw(refused: RequestRefused) -> bytes:
    """Return a whole answer to a connection of which no request has come."""
    body = refused.body()
    head = (
        f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
        f"{REQUEST_ID_HEADER}: {request_id({})}\r\nServer: {SERVER}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _too_many() -> RequestRefused:
    message = "This gateway has as many connections as it may."
    return RequestRefused(503, message, code="TooManyConnections")


def _too_slow() -> RequestRefused:
    return RequestRefused(408, "The request's head didn't come in time.", code="request_timeout")


_UNWIND_SECONDS: Final = 1.0
"""Time that a handler gets to end whose connection was cut."""
_TOO_MANY_HEADERS: Final = "Too many headers"
"""How aiohttp's parsers begin to say so; they have no type for it."""
_IS_TLS: Final = "Received HTTPS"
_CODING: Final = "`Transfer-Encoding`"


def _unsound(error: BaseException | None, settings: GatewaySettings) -> RequestRefused:
    """Say in words of our own what aiohttp found wrong with a request; its words quote what was sent."""
    said = error.message if isinstance(error, BadHttpMessage) else ""
    if isinstance(error, LineTooLong):
        message = f"The request line, or a header, is larger than {settings.max_header_bytes} bytes."
        return RequestRefused(431, message, code="head_too_large", close=True)
    if said.startswith(_TOO_MANY_HEADERS):
        message = f"The request has more than {settings.max_headers} headers."
        return RequestRefused(431, message, code="head_too_large", close=True)
    if said.startswith(_IS_TLS):
        message = "This port speaks plain HTTP, and what came is TLS; use http:// here."
        return RequestRefused(400, message, code="bad_request", close=True)
    if _CODING in said:
        return endless()
    message = (
        "This is no sound HTTP/1.1 request: its request line, a header or the framing of its body is broken."
    )
    return RequestRefused(400, message, code="bad_request", close=True)


class _Connection(web.RequestHandler):
    """One client's connection, which must send a whole head in time once it has begun one, and a first one in any case.

    One that never sent a byte is closed without a word: an answer that nobody asked for could be taken for that to the
    request that is just on its way.
    """

    __slots__ = ("_head_by", "_heads", "_listener", "_refused", "_spoke")

    def __init__(self, listener: "Listener", **given: Any) -> None:  # noqa: ANN401 - aiohttp's own
        super().__init__(listener.server, loop=asyncio.get_running_loop(), **given)
        self._listener = listener
        self._head_by: asyncio.TimerHandle | None = None
        self._heads = -1
        self._refused = False
        self._spoke = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._listener.enter():
            self._refused = True
            cast("asyncio.Transport", transport).write(_raw(_too_many()))
            transport.close()
            return
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, error: BaseException | None) -> None:
        if self._refused:
            return
        self._listener.leave()
        if self._head_by is not None:
            self._head_by.cancel()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._spoke = True
        super().data_received(data)
        if self._head_by is None and self._heads != self._request_count and self._waits():
            self._expect_head()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's own words
    ) -> web.StreamResponse:
        """Answer what is no request, or what we failed, as everything else is answered."""
        identity = request_id(request.headers)
        if status >= 500:  # noqa: PLR2004 - HTTP
            log.error("a request failed in the gateway", request=identity, error=repr(exc), exc_info=exc)
            refused = RequestRefused(status, "The gateway failed.", code="internal_error")
        else:
            kind = type(exc).__name__  # its own words quote keys
            log.debug("a request is unsound", request=identity, kind=kind)
            refused = _unsound(exc, self._listener.settings)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        self._listener.unsound()
        response = web.Response(status=refused.status, body=refused.body(), content_type="application/json")
        response.headers[REQUEST_ID_HEADER] = identity
        response.headers["Server"] = SERVER
        response.force_close()
        return response

    def retire(self) -> None:
        """Close it if there is nothing to answer."""
        if self._waits():
            self.force_close()

    def cut(self) -> None:
        """Cut it if something is being answered, and with it whoever answers."""
        if self._request_in_progress and self.transport is not None:
            self.transport.abort()

    def _waits(self) -> bool:
        """Whether nothing is being answered: what has come is a part of a head at most."""
        return self._waiter is not None and not self._waiter.done()

    def _expect_head(self) -> None:
        self._heads = self._request_count
        loop = asyncio.get_running_loop()
        self._head_by = loop.call_later(self._listener.settings.header_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_by = None
        late, self._heads = self._heads == self._request_count, -1
        if late and self.transport is not None:
            if self._spoke:
                self.transport.write(_raw(_too_slow()))
            self.force_close()


class Listener:
    """Accepts connections and hands their requests to a handler.

    Args:
        handle: answers one request; it is cancelled when its client goes away.
        settings: the limits.
        unsound: told of each request that is none.

    Attributes:
        server: aiohttp's part of it.
        settings: the limits.
        connections: how many there are.
        refused: how many were refused, being too many.
    """

    def __init__(self, handle: Handler, settings: GatewaySettings, unsound: Callable[[], None]) -> None:
        self.server = web.Server(handle, handler_cancellation=True)
        self.connections = 0
        self.refused = 0
        self.unsound = unsound
        self.settings = settings
        self._accepting: asyncio.Server | None = None

    def enter(self) -> bool:
        """Count one more connection, if there may be one."""
        if self.connections >= self.settings.max_connections:
            self.refused += 1
            return False
        self.connections += 1
        return True

    def leave(self) -> None:
        """Count one connection less."""
        self.connections -= 1

    @asynccontextmanager
    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> AsyncIterator[tuple[str, int]]:
        """Listen, and yield address and port; on leaving end all connections, those that are still answered by cutting them.

        Raises:
            OSError: the address can't be had.
        """
        loop = asyncio.get_running_loop()
        handshake = self.settings.header_seconds if tls is not None else None
        bound = _bound(host, port)
        self._accepting = await loop.create_server(
            self._connection,
            sock=bound,
            ssl=tls,
            ssl_handshake_timeout=handshake,
            backlog=ACCEPTED_AT_ONCE,
        )
        bound.listen(
            BACKLOG
        )  # asyncio takes one number for what the system holds and for what it takes at once
        try:
            address = self._accepting.sockets[0].getsockname()
            yield address[0], address[1]
        finally:
            self.stop_accepting()
            self.server.pre_shutdown()
            for connection in self._connections():
                connection.cut()
            await self.server.shutdown(_UNWIND_SECONDS)

    def stop_accepting(self) -> None:
        """Take no new connection."""
        if self._accepting is not None:
            self._accepting.close()

    def close_idle(self) -> None:
        """Close each connection that has nothing to answer."""
        for connection in self._connections():
            connection.retire()

    def _connections(self) -> Iterator["_Connection"]:
        return (each for each in self.server.connections if isinstance(each, _Connection))

    def _connection(self) -> _Connection:
        settings = self.settings
        return _Connection(
            self,
            keepalive_timeout=settings.idle_seconds,
            access_log=None,
            auto_decompress=False,
            max_line_size=settings.max_header_bytes,
            max_field_size=settings.max_header_bytes,
            max_headers=settings.max_headers,
            lingering_time=0.0,
        )


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
