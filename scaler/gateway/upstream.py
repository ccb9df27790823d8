"""One attempt at one endpoint: until the first content is there, nothing of it counts.

What fails before that raises `AttemptFailed`, and the request can be tried elsewhere.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from scaler.errors import ScalerError
from scaler.gateway.messages import guard_refusal
from scaler.gateway.routes import Endpoint, Failure, Pulse
from scaler.gateway.settings import MIB, GatewaySettings
from scaler.gateway.sse import Begun, EventBuffer, EventKind, classify
from scaler.gateway.trailers import Tail
from scaler.gateway.wires import Connector, Resolver, Response, Wire

HELD_BYTES: Final = MIB
"""How much of an answer is held back to see whether it comes whole or begins well."""
BROKEN: Final = (aiohttp.ClientError, OSError)
"""What reading from a broken connection raises."""
_HEALTH_PATH: Final = "/health"
"""Of engines' own routes the one that guards let through (docs/guard.md). What the answer says doesn't matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as it goes to an engine.

    Attributes:
        method: HTTP's.
        path: path and query as the client sent them.
        headers: the client's end-to-end headers.
        body: the client's body, unchanged, as it came.
    """

    method: str
    path: str
    headers: CIMultiDict[str]
    body: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is here whole: status, headers, body."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An answer whose first content is here and of which the client has got nothing.

    Attributes:
        response: the engine's answer, still open unless `complete`.
        body: what has come of it.
        events: what holds back incomplete events; None when it is no event stream.
        complete: nothing more comes.
        taken: bytes that were taken of an event stream.
        pulse: where the engine's signs of life are noted.
    """

    response: Response
    body: bytes
    events: EventBuffer | None
    complete: bool
    pulse: Pulse
    taken: int = 0

    @property
    def tail(self) -> Tail:
        """What is known of its trailers."""
        return self.response.tail

    @property
    def wire(self) -> Wire | None:
        """Its connection, as long as it is open."""
        return self.response.wire


class AttemptFailed(ScalerError):
    """An endpoint brought no content.

    Attributes:
        failure: in what way.
        answer: the engine's error, when it gave one as an answer.
        error: the same when it gave one as an event.
    """

    def __init__(
        self,
        failure: Failure,
        message: str,
        *,
        answer: Answer | None = None,
        error: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.answer = answer
        self.error = error


def open_session(settings: GatewaySettings) -> aiohttp.ClientSession:
    """Open the one session through which endpoints are reached. Slots bound its connections, not the pool.

    Connecting and finding out an address have a time-out each, and not every request, most of which find a connection. It knows none
    for reading: until the first content the request's deadline ends it, and after that whoever passes it on.
    """
    connector = Connector(
        limit=0,
        keepalive_timeout=settings.keep_alive_seconds,
        resolver=Resolver(settings.connect_seconds),
    )
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_seconds)
    return aiohttp.ClientSession(
        connector=connector,
        response_class=Response,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    )


async def attempt(
    session: aiohttp.ClientSession, request: Outgoing, endpoint: Endpoint, *, pulse: Pulse
) -> Held:
    """Send a request and wait for its first content. The caller sets the deadline.

    Args:
        session: through which endpoints are reached.
        request: what is sent.
        endpoint: where to.
        pulse: where the endpoint's signs of life are noted.

    Raises:
        AttemptFailed: there was none.
    """
    url = URL(endpoint.url.rstrip("/") + request.path, encoded=True)
    try:
        response = await _sent(session, request, url)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
        raise AttemptFailed(Failure.NOT_CONNECTED, str(error)) from error
    except BROKEN as error:
        raise AttemptFailed(Failure.CUT, str(error) or type(error).__name__) from error
    pulse.at = time.monotonic()
    try:
        return await _hold(response, pulse)
    except BROKEN as error:
        response.close()
        raise AttemptFailed(Failure.CUT, str(error) or type(error).__name__) from error
    except BaseException:
        response.close()
        raise


async def answers(session: aiohttp.ClientSession, endpoint: Endpoint, *, seconds: float) -> bool:
    """Whether an engine, or its guard, answers anything at all within so many seconds."""
    url = URL(endpoint.url.rstrip("/") + _HEALTH_PATH, encoded=True)
    try:
        async with asyncio.timeout(seconds), session.get(url, allow_redirects=False):
            return True
    except (*BROKEN, TimeoutError):
        return False


async def _sent(session: aiohttp.ClientSession, request: Outgoing, url: URL) -> Response:
    headers, body = request.headers, request.body
    if len(body) > 1:
        headers = CIMultiDict(headers)
        headers["Content-Length"] = str(sum(map(len, body)))
        data: bytes | AsyncIterator[bytes] | None = _each(body)
    else:
        data = body[0] if body else None
    answer = await session.request(request.method, url, data=data, headers=headers, allow_redirects=False)
    return cast("Response", answer)  # the session's own kind


async def _each(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def _hold(response: Response, pulse: Pulse) -> Held:
    if response.status >= 500:  # noqa: PLR2004 - HTTP
        body, _ = await _read(response, pulse)
        failure = guard_refusal(response.status, body) or Failure.ENGINE_ERROR
        raise AttemptFailed(failure, f"status {response.status}", answer=_answer(response, body))
    encoded = response.headers.get("Content-Encoding", "identity").lower() != "identity"
    if response.content_type == "text/event-stream" and not encoded:  # of one that is, nothing can be seen
        return await _hold_events(response, pulse)
    if response.content_type != "application/json" and (response.content_length or MIB) >= HELD_BYTES:
        first = await response.content.readany()
        return Held(response=response, body=first, events=None, complete=not first, pulse=pulse)
    body, complete = await _read(response, pulse)
    return Held(response=response, body=body, events=None, complete=complete, pulse=pulse)


async def _hold_events(response: Response, pulse: Pulse) -> Held:
    events = EventBuffer()
    held, taken = b"", 0
    while chunk := await response.content.readany():
        pulse.at = time.monotonic()
        taken += len(chunk)
        whole = events.feed(chunk)
        held = held + whole if held else whole
        begun = classify(whole)
        if begun.kind is EventKind.FAILED:
            raise _failed(begun)
        if response.content.at_eof():
            break  # all of it came at once
        if begun.kind is EventKind.CONTENT or len(held) > HELD_BYTES:
            return Held(response=response, body=held, events=events, complete=False, pulse=pulse, taken=taken)
    return Held(response=response, body=held + events.flush(), events=events, complete=True, pulse=pulse)


def _failed(begun: Begun) -> AttemptFailed:
    error = dict(begun.error or {})
    return AttemptFailed(Failure.ENGINE_ERROR, f"error event: {str(error.get('message'))[:200]}", error=error)


async def _read(response: Response, pulse: Pulse) -> tuple[bytes, bool]:
    """Read an answer to its end, or as much as is held back; return whether it ended."""
    parts: list[bytes] = []
    size = 0
    while size < HELD_BYTES:
        part = await response.content.readany()
        if not part:
            return b"".join(parts), True
        pulse.at = time.monotonic()
        parts.append(part)
        size += len(part)
    return b"".join(parts), False


def _answer(response: Response, body: bytes) -> Answer:
    return Answer(status=response.status, headers=CIMultiDict(response.headers), body=body)
