"""HTTP to one engine's control listener: each call ends by its deadline, what comes back is bounded, every failure has a type.

The listener may be half broken: silent after the connection, cut in the middle, without end, or something else altogether. A call
that is cancelled or late closes its connection, which is how engines learn that nobody waits any more.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from warmpool.engines.deadline import Deadline
from warmpool.errors import (
    EngineError,
    EngineLacksRoute,
    EngineLost,
    EngineRejected,
    EngineTimeout,
    EngineUnfit,
)

MAX_ANSWER_BYTES: Final = 8 * 2**20
"""The most that an answer may hold, unpacked. A metrics page of vLLM 0.32 has 60 kB, its route list 300 kB."""
NO_ROUTE: Final = frozenset({404, 405, 501})
"""Statuses that say that a route isn't there."""

_KEEPALIVE_SECONDS = 2.0  # below uvicorn's 5 s: a POST on a connection that the server is just closing would look like a lost engine
_SHOWN_CHARACTERS = 300
_SERVER_FAULT = 500
_GONE = 410


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine answered.

    Attributes:
        what: the request, as messages name it.
        status: HTTP's status.
        text: the body, as far as it is text.
    """

    what: str
    status: int
    text: str

    @property
    def missing(self) -> bool:
        """Whether it says that there is no such route."""
        return self.status in NO_ROUTE

    @property
    def ok(self) -> bool:
        """Whether it says that all went well."""
        return 200 <= self.status < 300  # noqa: PLR2004 (HTTP's success)

    def checked(self) -> "Answer":
        """Return it if it is a success.

        Raises:
            EngineLacksRoute: the engine has no such route.
            EngineUnfit: what was asked for is gone for good.
            EngineRejected: it said no.
        """
        if self.status == _GONE:
            raise EngineUnfit(f"{self.what}: answered {self.status}: {shown(self.text)}")
        if self.missing:
            raise EngineLacksRoute(
                f"{self.what}: the engine has no such route ({self.status}): {shown(self.text)}"
            )
        if not self.ok:
            raise EngineRejected(f"{self.what}: answered {self.status}: {shown(self.text)}")
        return self

    def json(self) -> Mapping[str, Any]:
        """Return the JSON object that it holds.

        Raises:
            EngineUnfit: it holds something else.
        """
        try:
            told = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise EngineUnfit(f"{self.what}: the answer is no JSON: {shown(self.text)}") from error
        if not isinstance(told, dict):
            raise EngineUnfit(f"{self.what}: the answer is no JSON object: {shown(self.text)}")
        return told

    def flag(self, name: str) -> bool:
        """Return a member of its JSON object that is true or false.

        Raises:
            EngineUnfit: there is no such member.
        """
        value = self.json().get(name)
        if not isinstance(value, bool):
            raise EngineUnfit(f"{self.what}: {name} is no boolean: {shown(self.text)}")
        return value


class Transport:
    """One engine's control listener. Belongs to the event loop in which it was made.

    Args:
        base: its URL.
    """

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")
        self._pooled = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE_SECONDS, limit=0)
        )
        self._single = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0))
        self._suspect_until = 0.0

    async def close(self) -> None:
        """Close the connections."""
        await self._pooled.close()
        await self._single.close()

    async def get(self, path: str, deadline: Deadline, *, params: Mapping[str, str] | None = None) -> Answer:
        """GET `path`.

        Raises:
            EngineError: no answer came: `EngineTimeout`, `EngineLost`, or `EngineUnfit` if it was too long.
        """
        async with self.exchange("GET", path, deadline, params=params) as response:
            return await _answer(response, f"GET {path}")

    async def post(
        self,
        path: str,
        deadline: Deadline,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Answer:
        """POST to `path`, with `body` as JSON.

        Raises:
            EngineError: no answer came: `EngineTimeout`, `EngineLost`, or `EngineUnfit` if it was too long.
        """
        async with self.exchange("POST", path, deadline, params=params, body=body) as response:
            return await _answer(response, f"POST {path}")

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and give its response to be read; the deadline and the types of errors hold while it is.

        Raises:
            EngineError: no answer came, or not all of it: `EngineTimeout`, `EngineLost`.
        """
        what = f"{method} {path}"
        seconds = deadline.left_seconds
        if seconds <= 0:  # to aiohttp a total of 0 means "for ever"
            raise EngineTimeout(f"{what}: no time was left for it")
        try:
            async with self._session().request(
                method,
                f"{self._base}{path}",
                params=params,
                json=body,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,  # a control listener that sends elsewhere is none
            ) as response:
                if response.status >= _SERVER_FAULT:
                    self._suspect_until = _now() + _KEEPALIVE_SECONDS
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _engine_error(error, what, seconds) from error

    def _session(self) -> aiohttp.ClientSession:
        """Return the session to send with: one without kept connections for a while after a server fault.

        uvicorn answers 500 for what a handler raised and then closes the connection: the next request on it would be lost.
        """
        return self._single if _now() < self._suspect_until else self._pooled


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _answer(response: aiohttp.ClientResponse, what: str) -> Answer:
    """Read a response whole.

    Raises:
        EngineUnfit: it is longer than any answer of an engine.
    """
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            response.close()
            raise EngineUnfit(
                f"{what}: the answer has more than {MAX_ANSWER_BYTES >> 20} MiB: {shown(_text(body))}"
            )
    return Answer(what, response.status, _text(body))


def _text(body: bytes | bytearray) -> str:
    return body.decode(errors="replace")


def _engine_error(error: Exception, what: str, seconds: float) -> EngineError:
    """The one place where errors of the HTTP client become ours."""
    match error:
        case TimeoutError():
            return EngineTimeout(f"{what}: no answer within {seconds:.3g} s")
        case aiohttp.InvalidURL():
            return EngineUnfit(f"{what}: the engine's address is no URL: {error}")
        case aiohttp.ClientPayloadError() | aiohttp.ClientResponseError():
            return EngineLost(f"{what}: the answer was cut short or malformed: {error}")
        case _:
            return EngineLost(f"{what}: {str(error) or type(error).__name__}")


def shown(text: str) -> str:
    """Return a text as messages show it: one line, not too long."""
    line = " ".join(text[: 4 * _SHOWN_CHARACTERS].split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"
