"""`POST /v1/signals` takes samples of whoever shows the token; `GET /v1/signals` shows what all signals say."""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from scaler.errors import SampleRejected
from scaler.runtime.api import authorized, unauthorized
from scaler.runtime.signals import PolicySignals
from scaler.signals.pushed import TooOften
from scaler.signals.sample import MAX_BYTES

_BODY_SECONDS: Final = 2.0
"""Who takes longer to send a few kilobytes is stuck, or means harm."""


class _TooLarge(Exception):
    """A body has more bytes than a sample may have."""


class SignalApi:
    """Handlers over the signals.

    Args:
        signals: what takes samples and is shown.
        tokens: bearer tokens, one of which whoever pushes must show: a sample can raise a policy's load at will.
    """

    def __init__(self, signals: PolicySignals, tokens: Sequence[str]) -> None:
        self._signals = signals
        self._tokens = tokens

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/signals", self._listed), web.post("/v1/signals", self._sample)]

    async def _listed(self, _: web.Request) -> web.Response:
        return web.json_response({"items": self._signals.listed()})

    async def _sample(self, request: web.Request) -> web.Response:
        if not authorized(request, *self._tokens):
            self._signals.refused("Http", "Unauthorized", f"wrong token, from {request.remote}")
            return unauthorized()
        try:
            body = await _body(request)
            taken = self._signals.ingest(body)
        except TimeoutError:
            self._signals.refused("Http", "Rejected", f"no whole body from {request.remote}")
            return _refused(HTTPStatus.REQUEST_TIMEOUT, f"no whole body within {_BODY_SECONDS:g} s")
        except _TooLarge:
            problem = f"a sample of more than {MAX_BYTES} bytes; name fewer policies in one"
            self._signals.refused("Http", "TooLarge", f"{problem}, from {request.remote}")
            return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, problem)
        except TooOften as error:
            return _refused(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        except SampleRejected as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        if taken.ignored:
            return web.json_response({"ignored": list(taken.ignored)})
        return web.Response(status=HTTPStatus.NO_CONTENT)


async def _body(request: web.Request) -> bytes:
    """Read the body.

    Raises:
        _TooLarge: it is larger than any sample.
        TimeoutError: it doesn't come.
    """
    body = bytearray()
    async with asyncio.timeout(_BODY_SECONDS):
        if (request.content_length or 0) > MAX_BYTES:
            raise _TooLarge
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                raise _TooLarge
    return bytes(body)


def _refused(status: HTTPStatus, message: str) -> web.Response:
    error = {"error": {"code": "SampleRejected", "message": message}}
    headers = {"Retry-After": "1"} if status is HTTPStatus.TOO_MANY_REQUESTS else {}
    response = web.json_response(error, status=status, headers=headers)
    if status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}:
        response.force_close()  # the rest of the body is nobody's to read
    return response
