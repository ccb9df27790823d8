"""`POST /v1/signals` takes samples of whoever shows a token for it; `GET /v1/signals` shows what all signals say.

What a sample may cost is settled before it is read: whose it is by its token, whether there is room for it by its length, and
while it streams in by what has come. What comes too soon waits for its turn, if that is a moment away; a connection whose
sample waits sends no other, so connections take turns, and a flood over one is no faster than its turns.
"""

import asyncio
import math
from http import HTTPStatus
from typing import Final

from aiohttp import web

from scaler.errors import SampleRejected
from scaler.runtime.api import unauthorized
from scaler.runtime.push_tokens import WANTED, PushTokens
from scaler.runtime.signals import PolicySignals
from scaler.signals.pushed import NameTaken, TooOften
from scaler.signals.pushers import NotAllowed, Pusher
from scaler.signals.sample import TooLarge, check_size
from scaler.signals.throttle import Source, TooMuch, Weight

_BODY_SECONDS: Final = 2.0
"""Who takes longer to send a few kilobytes is stuck, or means harm."""
PATIENCE_SECONDS: Final = 0.5
"""So long a sample may wait for its turn: well below the second after which a gateway gives its push up."""
_MOST_WAITING: Final = 256
"""Samples that wait at once; beyond that they are refused."""
_STATUSES: Final = {
    TooOften: HTTPStatus.TOO_MANY_REQUESTS,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    NotAllowed: HTTPStatus.FORBIDDEN,
    NameTaken: HTTPStatus.CONFLICT,
}
"""The status of a refusal; any other is 400."""


class SignalApi:
    """Handlers over the signals.

    Args:
        signals: what takes samples and is shown.
        tokens: tells who pushes.
    """

    def __init__(self, signals: PolicySignals, tokens: PushTokens) -> None:
        self._signals = signals
        self._tokens = tokens
        self._waiting = 0

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/signals", self._listed), web.post("/v1/signals", self._sample)]

    async def _listed(self, _: web.Request) -> web.Response:
        return web.json_response({"items": self._signals.listed()})

    async def _sample(self, request: web.Request) -> web.Response:
        pusher = self._tokens.shown_by(request)
        if pusher is None:
            self._signals.refused("Http", "Unauthorized", f"wrong token, from {request.remote}")
            response = unauthorized(WANTED)
            response.force_close()  # the body is nobody's to read
            return response
        try:
            if not pusher.kinds:
                raise NotAllowed(f"{pusher.name} pushes no samples")
            body = await self._body(request, pusher)
        except TimeoutError:
            self._signals.refused("Http", "Rejected", f"no whole body from {request.remote}")
            return _refused(HTTPStatus.REQUEST_TIMEOUT, f"no whole body within {_BODY_SECONDS:g} s")
        except TooMuch as error:
            return _refused(HTTPStatus.TOO_MANY_REQUESTS, str(error), seconds=error.seconds)
        except TooLarge as error:
            self._signals.refused("Http", "TooLarge", f"{error}, from {request.remote}")
            return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except NotAllowed as error:
            self._signals.refused("Http", "NotAllowed", str(error))
            return _refused(HTTPStatus.FORBIDDEN, str(error))
        try:
            taken = self._signals.ingest(body, pusher)
        except SampleRejected as error:
            return _refused(_STATUSES.get(type(error), HTTPStatus.BAD_REQUEST), str(error), read=True)
        if taken.ignored:
            return web.json_response({"ignored": list(taken.ignored)})
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _body(self, request: web.Request, pusher: Pusher) -> bytes:
        """Read the body, as far as there is room for it.

        Raises:
            TooMuch: there is none.
            TooLarge: it is larger than any sample of this pusher.
            TimeoutError: it doesn't come.
        """
        source = Source(pusher.name, request.remote or "")
        told, body = request.content_length or 0, bytearray()
        check_size(told, pusher.kinds)
        await self._turn(source, Weight(1, told))
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                check_size(len(body), pusher.kinds)
                if (more := len(body) - told) > 0:  # of a length that nobody told, or unpacked
                    await self._turn(source, Weight(0, more))
                    told += more
        return bytes(body)

    async def _turn(self, source: Source, what: Weight) -> None:
        """Wait until so much may come.

        Raises:
            TooMuch: that would take too long.
        """
        patience = PATIENCE_SECONDS if self._waiting < _MOST_WAITING else 0.0
        if (seconds := self._signals.weigh(source, what, patience)) > 0.0:
            self._waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self._waiting -= 1


def _refused(status: HTTPStatus, message: str, *, seconds: float = 1.0, read: bool = False) -> web.Response:
    """Answer what isn't taken.

    Args:
        status: of the answer.
        message: why.
        seconds: after which there is room.
        read: the whole body was read; else the connection ends, for the rest of it is nobody's to read.
    """
    error = {"error": {"code": "SampleRejected", "message": message}}
    later = status is HTTPStatus.TOO_MANY_REQUESTS
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))} if later else {}
    response = web.json_response(error, status=status, headers=headers)
    if not read:
        response.force_close()
    return response
