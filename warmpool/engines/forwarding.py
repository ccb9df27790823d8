"""The guard for engines that have none: a port on which requests are passed on to the engine, which itself stays on loopback.

Only the routes that clients need are passed on. vLLM and SGLang have their pause routes on the same listener as `/v1`, and whoever
reaches those can stop the engine, so a path is taken literally and anything that could be read in two ways is refused.
"""

import asyncio
import json
import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from yarl import URL

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import GuardState
from warmpool.errors import EngineUnfit
from warmpool.guard import Gate, GateClosed, Passage

ROUTES: Final = frozenset(
    {
        *("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
        *("/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/classify"),
        *("/v1/audio/transcriptions", "/v1/audio/translations", "/tokenize", "/detokenize", "/health"),
    }
)
"""What clients may reach while the guard is open."""
METRICS: Final = "/metrics"
"""What may be read whether or not the guard is open."""

MAX_BODY_BYTES: Final = 64 * 2**20
"""The longest request that is passed on: long contexts and pictures, and no more than an agent can hold of several at once."""
RETRY_SECONDS: Final = 1
"""What a refused client is told to wait."""

_CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 0.5
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "content-length", "host", "expect"),
    }
)
_SSE = "text/event-stream"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_LONGEST_EVENT_BYTES = 2**20


class ForwardingGuard:
    """A port in front of one engine. It begins to listen with the first call, closed.

    Args:
        host: address to listen on.
        port: port to listen on.
        target: base URL of the engine's listener.
    """

    def __init__(self, host: str, port: int, target: str) -> None:
        self._host, self._port = host, port
        self._target = target.rstrip("/")
        self._gate = Gate(is_open=False)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._starting = asyncio.Lock()

    async def state(self, *, deadline: Deadline) -> GuardState:
        """Tell whether it is open, and how many requests are inside.

        Raises:
            EngineUnfit: someone else has the port.
        """
        await self._listen()
        del deadline
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
        """Stop listening; what is still inside is cut off."""
        self._gate.close()
        runner, self._runner = self._runner, None
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if runner is not None:
            await runner.cleanup()

    async def _listen(self) -> None:
        async with self._starting:
            if self._runner is not None:
                return
            app = web.Application(client_max_size=MAX_BODY_BYTES)
            app.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(
                app, access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_SECONDS
            )
            await runner.setup()
            try:
                await web.TCPSite(runner, self._host, self._port).start()
            except OSError as error:
                await runner.cleanup()
                raise EngineUnfit(
                    f"the guard's port {self._host}:{self._port} can't be listened on: {error.strerror or error}"
                ) from error
            self._runner = runner
            # Bodies are passed on as they are, and an answer may take as long as it likes: the client's deadline rules.
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = _literal(request)
        if path == METRICS and request.method == "GET":
            return await self._forward(request, _Reply(request))
        if path not in ROUTES and not _one_response(path):
            return _refusal(
                404, f"{request.method} {request.path}: the guard passes no such route on", "NotFound"
            )
        try:
            passage = self._gate.enter()
        except GateClosed:
            return _not_serving("the resident is not serving")
        with passage:
            return await self._forward_until_cut(request, passage)

    async def _forward_until_cut(self, request: web.Request, passage: Passage) -> web.StreamResponse:
        reply = _Reply(request)
        # A timeout without a time is a cancel scope that tells its own cancellation from the client's hanging up.
        scope = asyncio.timeout(None)
        try:
            async with scope:
                passage.on_cancel(lambda: scope.reschedule(asyncio.get_running_loop().time()))
                return await self._forward(request, reply)
        except TimeoutError:
            if not scope.expired():
                raise
            return await reply.cut("the request was cut off: its resident stops serving")

    async def _forward(self, request: web.Request, reply: "_Reply") -> web.StreamResponse:
        assert self._session is not None
        url = URL(f"{self._target}{request.raw_path}", encoded=True)
        body = await request.read() if request.body_exists else None
        try:
            async with self._session.request(
                request.method, url, data=body, headers=_passed_on(request.headers), allow_redirects=False
            ) as answer:
                return await reply.pass_on(answer)
        except _ClientGone:
            return reply.begun
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return await reply.broken(f"the engine broke off: {str(error) or type(error).__name__}")


class _ClientGone(Exception):
    """The client has hung up; nobody waits for the rest."""


class _Reply:
    """The response to one client, however far it has come."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._begun: web.StreamResponse | None = None

    @property
    def begun(self) -> web.StreamResponse:
        """The response as far as it has come; an empty one before that."""
        return web.Response() if self._begun is None else self._begun

    async def pass_on(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass the engine's answer on, piece by piece."""
        response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
        if answer.content_length is not None:
            response.content_length = answer.content_length
        with _to_client():
            await response.prepare(self._request)
        self._begun = response
        pieces = answer.content.iter_any()
        async for piece in whole_events(pieces) if _is_plain_stream(response) else pieces:
            with _to_client():
                await response.write(piece)
        with _to_client():
            await response.write_eof()
        return response

    async def cut(self, message: str) -> web.StreamResponse:
        """End it early, because the resident leaves."""
        if self._begun is None:
            return _not_serving(message)
        return await self._end_badly(self._begun, message, "ResidentNotServing")

    async def broken(self, message: str) -> web.StreamResponse:
        """End it early, because the engine did."""
        if self._begun is None:
            return _refusal(502, message, "EngineUnreachable")
        return await self._end_badly(self._begun, message, "EngineUnreachable")

    async def _end_badly(self, begun: web.StreamResponse, message: str, code: str) -> web.StreamResponse:
        """Tell a stream of events what happened; any other answer that has begun can only be cut."""
        if _is_plain_stream(begun):
            event = json.dumps(_error(message, code))
            with suppress(ConnectionError):
                await begun.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())
                await begun.write_eof()
        elif self._request.transport is not None:
            self._request.transport.abort()
        return begun


def _is_plain_stream(response: web.StreamResponse) -> bool:
    return (
        response.content_type == _SSE
        and response.content_length is None
        and not response.headers.get("Content-Encoding")
    )


async def whole_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut a stream between events only, so that one more can be put after whatever has been passed on."""
    rest = b""
    async for piece in pieces:
        rest += piece
        end = max(rest.rfind(mark) + len(mark) if mark in rest else 0 for mark in _EVENT_ENDS)
        if len(rest) - end > _LONGEST_EVENT_BYTES:
            end = len(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


@contextmanager
def _to_client() -> Iterator[None]:
    """Tell a client that has hung up from an engine that has."""
    try:
        yield
    except ConnectionError as error:
        raise _ClientGone from error


def _literal(request: web.Request) -> str:
    """Return a request's path if it can be read in one way only, else nothing."""
    raw = request.raw_path.partition("?")[0]
    plain = unquote(raw)
    unambiguous = raw == plain and plain == posixpath.normpath(plain) and "\\" not in plain
    return plain if unambiguous else ""


def _one_response(path: str) -> bool:
    """Whether a path is one response of the responses API, or its cancellation."""
    rest = path.removeprefix("/v1/responses/")
    return rest != path and rest.removesuffix("/cancel").replace("_", "").replace("-", "").isalnum()


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP | named}


def _error(message: str, code: str) -> dict[str, dict[str, str]]:
    return {"error": {"message": message, "type": "ServiceUnavailableError", "code": code}}


def _refusal(status: int, message: str, code: str) -> web.Response:
    return web.json_response(_error(message, code), status=status)


def _not_serving(message: str) -> web.Response:
    """Refuse, and close the connection: the next request has to find a resident that serves."""
    response = _refusal(503, message, "ResidentNotServing")
    response.headers["Retry-After"] = str(RETRY_SECONDS)
    response.force_close()
    return response
