"""One attempt at one endpoint: until the first content is there, nothing of it counts.

What fails before that raises `AttemptFailed`, and the request can be tried elsewhere.
"""

import io
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from scaler.errors import ScalerError
from scaler.gateway.messages import guard_closed, request_headers
from scaler.gateway.routes import Endpoint, Failure
from scaler.gateway.settings import MIB, GatewaySettings
from scaler.gateway.sse import EventBuffer, EventKind, classify

HELD_BYTES = MIB
"""How much of an answer is held back to see whether it comes whole or begins well."""
BROKEN = (aiohttp.ClientError, OSError)
"""What reading from a broken connection raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as it goes to an engine.

    Attributes:
        path: path and query as the client sent them.
        headers: the client's end-to-end headers.
        body: the client's body, unchanged.
        identity: the request's id.
    """

    path: str
    headers: CIMultiDict[str]
    body: bytes
    identity: str


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
    """

    response: aiohttp.ClientResponse
    body: bytes
    events: EventBuffer | None
    complete: bool


class AttemptFailed(ScalerError):
    """An endpoint brought no content.

    Attributes:
        failure: in what way.
        answer: the engine's error, when it gave one.
    """

    def __init__(self, failure: Failure, message: str, answer: Answer | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.answer = answer


def open_session(settings: GatewaySettings) -> aiohttp.ClientSession:
    """Open the one session through which endpoints are reached. Slots bound its connections, not the pool."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=settings.keep_alive_seconds)
    timeout = aiohttp.ClientTimeout(
        total=None,
        connect=settings.connect_seconds,
        sock_connect=settings.connect_seconds,
        sock_read=max(settings.stream_idle_seconds, settings.deadline_seconds + 1),
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
    )


def outgoing(path: str, headers: CIMultiDict[str], body: bytes, identity: str) -> Outgoing:
    """Make a request for engines out of a client's."""
    return Outgoing(path=path, headers=request_headers(headers, identity), body=body, identity=identity)


async def attempt(session: aiohttp.ClientSession, request: Outgoing, endpoint: Endpoint) -> Held:
    """Send a request and wait for its first content. The caller sets the deadline.

    Raises:
        AttemptFailed: there was none.
    """
    url = URL(endpoint.url.rstrip("/") + request.path, encoded=True)
    # aiohttp wants large bodies as a file, which it sends in pieces
    body = request.body if len(request.body) < MIB else io.BytesIO(request.body)
    try:
        response = await session.post(url, data=body, headers=request.headers, allow_redirects=False)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
        raise AttemptFailed(Failure.NOT_CONNECTED, str(error)) from error
    except BROKEN as error:
        raise AttemptFailed(Failure.CUT, str(error) or type(error).__name__) from error
    try:
        return await _hold(response)
    except BROKEN as error:
        response.close()
        raise AttemptFailed(Failure.CUT, str(error) or type(error).__name__) from error
    except BaseException:
        response.close()
        raise


async def _hold(response: aiohttp.ClientResponse) -> Held:
    if response.status >= 500:  # noqa: PLR2004 - HTTP
        body = await _read_error(response)
        failure = Failure.NOT_SERVING if guard_closed(response.status, body) else Failure.ENGINE_ERROR
        raise AttemptFailed(failure, f"status {response.status}", _answer(response, body))
    if response.content_type == "text/event-stream":
        return await _hold_events(response)
    length = response.content_length
    if length is not None and length <= HELD_BYTES:
        return Held(response=response, body=await response.read(), events=None, complete=True)
    first = await response.content.readany()
    return Held(response=response, body=first, events=None, complete=not first)


async def _hold_events(response: aiohttp.ClientResponse) -> Held:
    events = EventBuffer()
    held = bytearray()
    while chunk := await response.content.readany():
        whole = events.feed(chunk)
        held += whole
        kind = classify(whole)
        if kind is EventKind.FAILED:
            raise AttemptFailed(Failure.ENGINE_ERROR, "error event", _answer(response, bytes(held)))
        if response.content.at_eof():
            break  # all of it came at once
        if kind is EventKind.CONTENT or len(held) > HELD_BYTES:
            return Held(response=response, body=bytes(held), events=events, complete=False)
    held += events.flush()
    return Held(response=response, body=bytes(held), events=events, complete=True)


async def _read_error(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    while len(body) < HELD_BYTES and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body)


def _answer(response: aiohttp.ClientResponse, body: bytes) -> Answer:
    return Answer(status=response.status, headers=CIMultiDict(response.headers), body=body)
