"""The guard as a port of the agent's: for engines that take no middleware, with the engine itself on loopback.

Clients come to this port and get what the middleware would let them have: the same routes, the same refusals, the same ends
(`warmpool.guard_middleware` says which). The control side is the agent, which holds the port in its hands; nothing of it is on the
network. Bytes pass as they come, in both directions, and nobody reads faster than the other end takes. A path is taken literally:
vLLM and SGLang have their pause routes on the listener that this one speaks to, so what could be read in two ways doesn't pass.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from warmpool import listening
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import GuardState
from warmpool.errors import EngineUnfit
from warmpool.guard import Gate, GateClosed, Passage
from warmpool.guard_middleware import (
    BROKEN_OFF,
    CUT_OFF,
    ENDING_SECONDS,
    HEALTH,
    NO_ROUTE,
    NOT_SERVING,
    RETRY_SECONDS,
    SILENCE_SECONDS,
    TOO_SLOW,
    Events,
    Refusal,
    Routes,
)

MOST_IN_FLIGHT: Final = 4096
"""Each request in flight takes two sockets; an engine computes far fewer at once."""
KEEP_ALIVE_SECONDS: Final = 2.0
"""How long a connection to the engine is kept for the next request: less than the 5 s after which uvicorn closes it, for a request
that meets the closing is lost."""
CLIENT_KEEP_ALIVE_SECONDS: Final = 75.0
"""How long a client's connection may idle, or take to send a request's head."""
LONGEST_HEADER_BYTES: Final = 16_384
"""The longest line of a head that passes, in either direction."""

_CONNECT_SECONDS = 5.0
_LINGER_SECONDS = 1.0
_CLOSE_SECONDS = 0.5
_SCRAPES = 64
_VANISHED_SECONDS, _PROBE_SECONDS, _PROBES = 30, 10, 3
_HOP_BY_HOP = frozenset(  # https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1, and what belongs to one connection beside
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade", "host", "expect"),
    }
)
_OWN_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_GONE_WHILE_RESTARTING = 1012

_NOT_CONNECTED = Refusal(503, "the engine can't be reached", "ServiceUnavailableError", "EngineUnreachable")
_TOO_MANY = Refusal(
    503, "too many requests are in flight here already", "ServiceUnavailableError", "TooManyRequests"
)
_MALFORMED = Refusal(400, "the request's head is malformed", "BadRequestError", "BadRequest")
_NO_EXPECTATION = Refusal(417, "only 100-continue can be expected", "BadRequestError", "ExpectationFailed")


class ForwardingPort:
    """A port in front of one engine. It begins to listen with the first call, closed.

    Args:
        host: address to listen on.
        port: port to listen on.
        target: base URL of the engine's listener.
        silence_seconds: a client that neither sends its body nor takes its answer for so long is cut off.
        most_in_flight: more requests at once are refused.
    """

    def __init__(
        self,
        host: str,
        port: int,
        target: str,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        most_in_flight: int = MOST_IN_FLIGHT,
    ) -> None:
        self._host, self._port = host, port
        self._routes = Routes()
        self._most_in_flight = most_in_flight
        self._gate = Gate()
        self._engine = _Engine(target.rstrip("/"), silence_seconds, most_in_flight + _SCRAPES)
        self._runner: web.ServerRunner | None = None
        self._starting = asyncio.Lock()

    async def state(self, *, deadline: Deadline) -> GuardState:
        """Tell whether it is open, and how many requests are inside.

        Raises:
            EngineUnfit: someone else has the port.
        """
        del deadline  # listening takes no time, and nothing else is waited for
        await self._listen()
        return GuardState(is_open=self._gate.is_open, in_flight=self._gate.in_flight)

    async def open(self, *, deadline: Deadline) -> GuardState:
        """Let requests through from now on.

        Raises:
            EngineUnfit: someone else has the port.
        """
        await self._listen()
        self._gate.open()
        return await self.state(deadline=deadline)

    async def close(self, *, deadline: Deadline) -> GuardState:
        """Refuse requests from now on; those inside go on.

        Raises:
            EngineUnfit: someone else has the port.
        """
        self._gate.close()
        return await self.state(deadline=deadline)

    async def abort(self, *, deadline: Deadline) -> None:
        """End early what is inside; each request gets a well-formed error."""
        del deadline
        self._gate.cancel_all()

    async def disconnect(self) -> None:
        """Stop listening. What is inside is ended first."""
        self._gate.close()
        self._gate.cancel_all()
        runner, self._runner = self._runner, None
        if runner is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await self._gate.wait_drained()
        await self._engine.disconnect()
        await runner.cleanup()

    async def _listen(self) -> None:
        async with self._starting:
            if self._runner is not None:
                return
            try:
                listener = _listener(self._host, self._port)
            except OSError as error:
                raise EngineUnfit(
                    f"the guard's port {self._host}:{self._port} can't be listened on: {error.strerror or error}"
                ) from error
            server = web.Server(
                self._handle,
                handler_cancellation=True,
                access_log=None,
                logger=listening.FAULTS,
                auto_decompress=False,
                keepalive_timeout=CLIENT_KEEP_ALIVE_SECONDS,
                lingering_time=_LINGER_SECONDS,
                max_line_size=LONGEST_HEADER_BYTES,
                max_field_size=LONGEST_HEADER_BYTES,
            )
            runner = web.ServerRunner(server, shutdown_timeout=_CLOSE_SECONDS)
            await runner.setup()
            await listening.start(runner, listener)
            self._engine.connect()
            self._runner = runner

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if self._routes.guarded(path):
            return await self._admit(request, _Exchange)
        if self._routes.sockets(path) and _wants_socket(request):
            return await self._admit(request, _Socket)
        if self._routes.tells(path) or (path == HEALTH and self._gate.is_open):
            return await _Exchange(self._engine, request).run()
        return _refused(NOT_SERVING if path == HEALTH else NO_ROUTE)

    async def _admit(self, request: web.BaseRequest, kind: "type[_Inside]") -> web.StreamResponse:
        if self._gate.is_open and self._gate.in_flight >= self._most_in_flight:
            return _refused(_TOO_MANY)
        try:
            passage = self._gate.enter()
        except GateClosed:
            return _refused(NOT_SERVING)
        with passage:
            return await kind(self._engine, request, passage).run()


def _listener(host: str, port: int) -> socket.socket:
    """Listen on a port. A client that vanishes without a word is found out by the kernel (accepted sockets inherit this)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=listening.BACKLOG)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _VANISHED_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    return listener


class _Engine:
    """The way to the engine: where it is, and the connections that are kept for it.

    Args:
        base: base URL of its listener.
        silence_seconds: as `ForwardingPort` has it.
        connections: the most at once.
    """

    def __init__(self, base: str, silence_seconds: float, connections: int) -> None:
        self._base = base
        self._connections = connections
        self._kept: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None
        self._suspect_until = 0.0
        self.silence_seconds = silence_seconds

    def connect(self) -> None:
        """Begin to keep connections."""
        self._kept = self._session(
            aiohttp.TCPConnector(limit=self._connections, keepalive_timeout=KEEP_ALIVE_SECONDS)
        )
        self._single = self._session(aiohttp.TCPConnector(limit=self._connections, force_close=True))

    async def disconnect(self) -> None:
        """Close the connections."""
        for session in (self._kept, self._single):
            if session is not None:
                await session.close()
        self._kept = self._single = None

    def session(self) -> aiohttp.ClientSession:
        """Return what to send with: for a while after a server's fault, connections that weren't kept.

        uvicorn answers 500 for what a handler raised, and closes the connection without having said so; the next request on it
        would be lost.
        """
        session = self._single if _now() < self._suspect_until else self._kept
        assert session is not None
        return session

    def answered(self, status: int) -> None:
        """Take note of an answer's status."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._suspect_until = _now() + KEEP_ALIVE_SECONDS

    @staticmethod
    def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
        # Bodies pass as they are, and an answer may take as long as it likes: the client's deadline rules.
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_OWN_HEADERS,
            max_line_size=LONGEST_HEADER_BYTES,
            max_field_size=LONGEST_HEADER_BYTES,
        )

    def url(self, request: web.BaseRequest) -> URL:
        """Return where a request goes: target and query as the client wrote them."""
        return URL(self._base + request.raw_path, encoded=True)


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Over(Exception):
    """The response can't become whole.

    Attributes:
        cause: why, as its client is told.
    """

    def __init__(self, cause: Refusal) -> None:
        super().__init__(cause.message)
        self.cause = cause


class _Inside:
    """A request on its way through, until its response has ended.

    Args:
        engine: the way to the engine.
        request: the client's request.
        passage: its passage; None if it isn't counted.
    """

    def __init__(self, engine: _Engine, request: web.BaseRequest, passage: Passage | None = None) -> None:
        self._engine = engine
        self._request = request
        self._passage = passage
        # A timeout without a time is a cancel scope that tells its own cancellation from the client's hanging up.
        self._scope = asyncio.timeout(None)
        self._cause: Refusal | None = None
        self._passing = True
        self._waits: dict[str, float] = {}

    async def run(self) -> web.StreamResponse:
        """Pass it on, and see the response to its end."""
        watch = _Watch(self._engine.silence_seconds, self._waits, lambda: self._cut(TOO_SLOW))
        try:
            async with self._scope:
                if self._passage is not None:
                    self._passage.on_cancel(lambda: self._cut(CUT_OFF))
                return await self._pass()
        except _Over as over:
            cause = over.cause
        except TimeoutError:
            if self._cause is None:
                raise
            cause = self._cause
        finally:
            self._passing = False
            watch.stop()
        return await self._ended(cause)

    async def _pass(self) -> web.StreamResponse:
        raise NotImplementedError

    def _so_far(self) -> web.StreamResponse:
        """Return the response as far as it has come; an empty one before that."""
        raise NotImplementedError

    async def _end(self, cause: Refusal) -> web.StreamResponse:
        """Tell the client that it is over, as far as it can still be told."""
        raise NotImplementedError

    async def _ended(self, cause: Refusal) -> web.StreamResponse:
        """Tell the client, or cut it off if it doesn't listen."""
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                return await self._end(cause)
        except (TimeoutError, ConnectionError):
            self._hang_up()
            return self._so_far()

    def _cut(self, cause: Refusal) -> None:
        if self._passing and self._cause is None:
            self._cause = cause
            self._scope.reschedule(_now())

    def _hang_up(self) -> None:
        """Reset the connection: nothing else says that an answer isn't whole."""
        if self._request.transport is not None:
            self._request.transport.abort()

    @contextmanager
    def _client(self, does: str) -> Iterator[None]:
        """Wait for the client, which may not take for ever."""
        self._waits[does] = _now()
        try:
            yield
        finally:
            del self._waits[does]


class _Watch:
    """One timer per request, whatever it waits for: sees whether the client has kept it waiting for too long."""

    def __init__(self, seconds: float, waits: dict[str, float], late: Callable[[], None]) -> None:
        self._seconds = seconds
        self._waits = waits
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = _now()
        left = min(self._waits.values(), default=now) + self._seconds - now
        if left <= 0:
            self._late()
        else:
            self._timer = self._loop.call_later(left, self._look)


class _Response(web.StreamResponse):
    """A response whose head goes out with the first piece of its body if that is there already: a write costs more than all else."""

    _send_headers_immediately = False


class _Exchange(_Inside):
    """One request over HTTP. Its response can be ended while it hasn't begun, or between two events."""

    _response: web.StreamResponse | None = None
    _events: Events | None = None

    async def _pass(self) -> web.StreamResponse:
        request = self._request
        if request.headers.get("Expect", "100-continue").lower() != "100-continue":
            return _refused(_NO_EXPECTATION)
        try:
            async with self._engine.session().request(
                request.method,
                self._engine.url(request),
                data=self._body(),
                headers=_passed_on(request.headers),
                allow_redirects=False,
            ) as answer:
                self._engine.answered(answer.status)
                return await self._pass_back(answer)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Over(_NOT_CONNECTED) from error
        except UnicodeEncodeError as error:  # of a head with bytes that are no text
            raise _Over(_MALFORMED) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Over(BROKEN_OFF) from error

    def _body(self) -> bytes | AsyncIterator[bytes] | None:
        request = self._request
        if not request.body_exists:
            return None
        if request.content.is_eof() and request.content.exception() is None:
            return request.content.read_nowait()  # it is here already, and goes out with the head
        return self._upload()

    async def _upload(self) -> AsyncIterator[bytes]:
        request = self._request
        if "Expect" in request.headers and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not request.content.at_eof():
            with self._client("sends"):
                piece = await request.content.readany()
            if piece:
                yield piece

    async def _pass_back(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = _Response(status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers))
        if _is_plain_stream(answer.headers):
            self._events = Events()
        with self._client("takes"):
            writer = await response.prepare(self._request)
        assert writer is not None
        self._response = response
        content, events = answer.content, self._events
        piece = content.read_nowait()
        while not content.at_eof():
            passing = piece if events is None else events.feed(piece)
            if passing:
                with self._client("takes"):
                    await response.write(passing)
            else:
                writer.send_headers()
            piece = await content.readany()
        if events is not None:
            piece = events.feed(piece) + events.rest()
        with self._client("takes"):
            await response.write_eof(piece)
        return response

    def _so_far(self) -> web.StreamResponse:
        return web.Response() if self._response is None else self._response

    async def _end(self, cause: Refusal) -> web.StreamResponse:
        response = self._response
        if response is None:
            return _refused(cause)
        response.force_close()
        if self._events is not None and self._events.between and cause is not TOO_SLOW:
            await response.write(cause.event)
            await response.write_eof()
        else:
            self._hang_up()
        return response


class _Socket(_Inside):
    """One web socket, message by message. It may be silent for as long as it likes."""

    _client_end: web.WebSocketResponse | None = None

    async def _pass(self) -> web.StreamResponse:
        offered = [
            name.strip()
            for value in self._request.headers.getall("Sec-WebSocket-Protocol", ())
            for name in value.split(",")
        ]
        try:
            async with self._engine.session().ws_connect(
                self._engine.url(self._request),
                headers=_passed_on(self._request.headers, but="sec-websocket-"),
                protocols=offered,
                max_msg_size=0,
            ) as engine:
                return await self._pass_both_ways(engine)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Over(_NOT_CONNECTED) from error
        except aiohttp.WSServerHandshakeError as error:
            return _refused(Refusal(error.status, "the engine opens no web socket", "APIError", error.status))
        except (aiohttp.ClientError, OSError) as error:
            raise _Over(BROKEN_OFF) from error

    async def _pass_both_ways(self, engine: aiohttp.ClientWebSocketResponse) -> web.StreamResponse:
        client = web.WebSocketResponse(
            protocols=[engine.protocol] if engine.protocol else (), max_msg_size=0, compress=False
        )
        with self._client("takes"):
            await client.prepare(self._request)
        self._client_end = client
        async with asyncio.TaskGroup() as tasks:
            up = tasks.create_task(self._pump(client, engine))
            await self._pump(engine, client)
            up.cancel()
        return client

    async def _pump(self, source: "_End", sink: "_End") -> None:
        """Pass messages on until the source closes, and then close the other end as it did."""
        with suppress(ConnectionError):  # either end may go at any moment; closing the other follows
            async for message in source:
                with self._client("takes") if sink is self._client_end else nullcontext():
                    if message.type is aiohttp.WSMsgType.TEXT:
                        await sink.send_str(message.data)
                    elif message.type is aiohttp.WSMsgType.BINARY:
                        await sink.send_bytes(message.data)
        code = source.close_code
        broken = code is None or code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE
        await sink.close(code=aiohttp.WSCloseCode.GOING_AWAY if broken or code is None else code)

    def _so_far(self) -> web.StreamResponse:
        return web.Response() if self._client_end is None else self._client_end

    async def _end(self, cause: Refusal) -> web.StreamResponse:
        client = self._client_end
        if client is None:
            return _refused(cause)
        await client.close(code=_GONE_WHILE_RESTARTING, message=cause.message.encode())
        return client


_End = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


def _wants_socket(request: web.BaseRequest) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def _is_plain_stream(headers: CIMultiDictProxy[str]) -> bool:
    """Whether a response is a stream of events into which one more can be put."""
    if "Content-Length" in headers or "Content-Encoding" in headers:
        return False
    return headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/event-stream"


def _passed_on(headers: CIMultiDictProxy[str], *, but: str = "\n") -> CIMultiDict[str]:
    """Return the headers that go on to the other end.

    Args:
        headers: those that came.
        but: those that begin so stay here too.
    """
    stay = _HOP_BY_HOP
    named = headers.get("Connection")
    if named is not None:
        stay |= {name.strip().lower() for name in named.split(",")}
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in stay and not lower.startswith(but):
            passed.add(name, value)
    return passed


def _refused(refusal: Refusal) -> web.Response:
    response = web.Response(status=refusal.status, body=refusal.body, content_type="application/json")
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    if refusal.closes or refusal is _MALFORMED:
        response.force_close()
    return response
