"""One HTTP client to the API server: a deadline on every call, and one error per thing that a caller can do.

No answer is believed that isn't the API server's own: a proxy's 404 page is no "not found", and a 502 page is no event.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from scaler.cluster.kube.access import Access
from scaler.cluster.kube.errors import AlreadyExists, Expired, Forbidden, Rejected, Throttled
from scaler.cluster.kube.views import Json
from scaler.errors import ClusterError, Conflict, NotFound, Unreachable, UserError

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
_JSON: Final = "application/json"
_RETRY_AFTER_SECONDS = 1.0
"""What a 429 without `Retry-After` is taken to mean, as client-go does."""
_CONNECT_SECONDS = 5.0
_READ_BYTES = 2**18
_DEAD_PEER: Final = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 15),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 5),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
    ("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 30_000),
)
"""The kernel finds within half a minute that the other end has vanished; not every system has every option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call.

    Attributes:
        method: GET, POST, PUT, PATCH or DELETE.
        path: see `resources`.
        query: parameters.
        body: sent as JSON; None for none.
        content_type: of the body; patches have one each.
    """

    method: str = "GET"
    path: str
    query: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    body: object = None
    content_type: str = _JSON


def _socket(info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = info
    made = socket.socket(family, kind, protocol)
    for name, level, value in _DEAD_PEER:
        if (option := getattr(socket, name, None)) is not None:
            made.setsockopt(level, option, value)
    return made


class KubeClient:
    """A client of one API server; use it as an async context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._base = access.server.rstrip(
            "/"
        )  # it may have a path of its own: several clusters behind one name
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # no limit of connections: nobody waits for another's; housekeeping is limited by its lane
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._access.tls or False, socket_factory=_socket, keepalive_timeout=60
        )
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=_READ_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, request: Request, *, seconds: float) -> Any:  # noqa: ANN401 - JSON is what it is
        """Make a call and return the answer's JSON.

        Args:
            request: the call.
            seconds: the deadline, with everything: connecting, a renewal of credentials, reading.

        Raises:
            Conflict: the object has changed (`AlreadyExists`: there is one).
            NotFound: there is no such object.
            Expired: the version or the continuation is no longer known.
            Forbidden: the credentials don't allow it.
            Rejected: the request is refused for what it says, or the kind isn't served.
            Throttled: the server asks to wait; nothing was done.
            Unreachable: no answer, or not the API server's; whether anything was done is unknown.
        """
        try:
            async with asyncio.timeout(seconds), self._opened(request) as response:
                text = await response.read()
                return _body(response, text)
        except TimeoutError as error:
            raise Unreachable(f"{request.method} {request.path}: no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{request.method} {request.path}: {_words(error)}") from error

    @asynccontextmanager
    async def stream(self, request: Request, *, seconds: float) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a watch; yields its bytes, which have no deadline of their own.

        Args:
            request: the watch.
            seconds: until the server must have begun to answer.

        Raises:
            ClusterError: as `call` does; also while the bytes are read.
        """
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(seconds):
                    response = await stack.enter_async_context(self._opened(request))
                    if response.status != 200 or response.content_type != _JSON:  # noqa: PLR2004 - HTTP's OK
                        _body(response, await response.read())
                        raise Unreachable(
                            f"{request.path}: answered {response.status} {response.content_type}"
                        )
                stack.callback(response.close)  # a watch left half-read is no connection to use again
                yield response.content
        except TimeoutError as error:
            raise Unreachable(f"watch of {request.path}: no answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"watch of {request.path}: {_words(error)}") from error

    @asynccontextmanager
    async def _opened(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request; credentials that are refused are renewed once."""
        response = await self._send(request)
        try:
            if response.status == 401:  # noqa: PLR2004 - HTTP's Unauthorized
                response.release()
                await self._renew()
                response = await self._send(request)
            yield response
        finally:
            response.release()

    async def _renew(self) -> None:
        try:
            await self._access.credentials.renew()
        except UserError as error:
            raise Forbidden(
                f"the server refuses the credentials, and there are no others: {error}"
            ) from error

    async def _send(self, request: Request) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is not open; use it as a context manager")
        headers = {"Accept": _JSON}
        if authorization := await self._access.credentials.authorization():
            headers["Authorization"] = authorization
        data = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            data = json.dumps(request.body).encode()
        return await self._session.request(
            request.method,
            URL(self._base + request.path, encoded=True).with_query(dict(request.query)),
            data=data,
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS),
            server_hostname=self._access.server_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _body(response: aiohttp.ClientResponse, text: bytes) -> Any:  # noqa: ANN401 - JSON is what it is
    """Return what a good answer holds, or raise what a bad one means."""
    parsed: Any = None
    if response.content_type == _JSON:
        try:
            parsed = json.loads(text)
        except ValueError as error:
            raise Unreachable(f"the answer breaks off: {error}") from error
    if response.status < 300 and parsed is not None:  # noqa: PLR2004 - HTTP's range of success
        return parsed
    status = parsed if isinstance(parsed, dict) and parsed.get("kind") == "Status" else None
    raise _refusal(response, status, text)


def _refusal(response: aiohttp.ClientResponse, status: Json | None, text: bytes) -> ClusterError:
    code, retry_after = response.status, response.headers.get("Retry-After", "")
    if status is None:
        shown = text[:200].decode(errors="replace").strip()
        if code == 404 and shown == "404 page not found":  # noqa: PLR2004 - HTTP's Not Found
            return Rejected(f"{response.url.path}: the server doesn't serve this kind")
        if code == 429:  # noqa: PLR2004 - HTTP's Too Many Requests; the server's own filters answer in plain text
            return Throttled(f"asked to wait: {shown}", seconds_of(retry_after))
        return Unreachable(f"{response.url.path}: {code} that isn't an API server's: {shown!r}")
    return error_of(status, code=code, retry_after=retry_after)


_BY_CODE: Mapping[int, type[ClusterError]] = {
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
}
_REFUSED = range(400, 500)


def error_of(status: Json, *, code: int, retry_after: str = "") -> ClusterError:
    """Return what a Status of failure means to the caller.

    Args:
        status: the object.
        code: HTTP's, which counts where the object says none.
        retry_after: the header's value; empty where there is none.
    """
    code = int(status.get("code") or code)
    reason, message = str(status.get("reason", "")), str(status.get("message", ""))
    if reason == "AlreadyExists":
        return AlreadyExists(message)
    if code == 429 or (code == 503 and retry_after):  # noqa: PLR2004 - Too Many Requests, Service Unavailable
        return Throttled(message, seconds_of(retry_after))
    if code in _BY_CODE:
        return _BY_CODE[code](message)
    return Rejected(message) if code in _REFUSED else Unreachable(f"{code} {reason}: {message}")


def seconds_of(retry_after: str) -> float:
    """Read a `Retry-After` header; API servers send seconds, never dates."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        return _RETRY_AFTER_SECONDS
