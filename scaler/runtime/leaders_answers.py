"""What a controller that stands by answers to people: the leader's own answer, fetched from it, or a clear word why there is none.

What each replica has of its own each answers for itself: metrics, probes, who of KEDA has asked, what was found about its objects,
which policy files are in force here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

import aiohttp
from aiohttp import web

from scaler.cluster.kube.lease import Record
from scaler.runtime.api import TOKEN_HEADER

LEADERS: Final[Mapping[str, frozenset[str]]] = {
    "GET": frozenset(
        {"/v1/decisions", "/v1/events", "/v1/fleets", "/v1/nodes", "/v1/policies", "/v1/seats", "/v1/status"}
    ),
    "POST": frozenset({"/v1/orders"}),
}
"""By method, the paths that the leader alone can answer."""
_LEADERS_BELOW: Final = "/v1/nodes/"
"""What is posted below this path the leader alone can carry out."""
_KEPT: Final = ("Authorization", TOKEN_HEADER, "Content-Type")
"""Headers of a question that go with it."""
LEADER_HEADER: Final = "Emberpool-Leader"
"""On an answer: whose it is."""
_PASSED_ON: Final = "Emberpool-Passed-On"
"""On a question: it was passed on already, and goes no further."""
_SECONDS: Final = 4.0
"""The command line waits for five."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LeadersAnswers:
    """Passes questions on.

    Args:
        session: asks the leader.
        leading: whether this process leads.
        leader: returns the lease of who leads; None while nobody does.
        identity: who we are.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        leading: Callable[[], bool],
        leader: Callable[[], Record | None],
        identity: str,
    ) -> None:
        self._session = session
        self._leading = leading
        self._leader = leader
        self._identity = identity

    def serve_on(self, app: web.Application) -> None:
        """Have an application pass on what the leader alone can answer."""

        @web.middleware
        async def passing(request: web.Request, handler: _Handler) -> web.StreamResponse:
            below = request.method == "POST" and request.path.startswith(_LEADERS_BELOW)
            if self._leading() or not (below or request.path in LEADERS.get(request.method, ())):
                return await handler(request)
            return await self._ask(request)

        app.middlewares.append(passing)

    async def _ask(self, request: web.Request) -> web.Response:
        leader = self._leader()
        if leader is None or leader.holder == self._identity:
            return _nobody("this controller stands by, and nobody leads at the moment")
        if _PASSED_ON in request.headers:
            return _nobody(f"this controller stands by, and knows {leader.holder} as the leader")
        if not leader.address:
            return _nobody(
                f"this controller stands by, and its leader {leader.holder} doesn't say where it is"
            )
        kept = {name: request.headers[name] for name in _KEPT if name in request.headers}
        try:
            async with (
                asyncio.timeout(_SECONDS),
                self._session.request(
                    request.method,
                    leader.address.rstrip("/") + request.path_qs,
                    data=await request.read() or None,
                    headers={**kept, _PASSED_ON: self._identity},
                    allow_redirects=False,
                ) as answer,
            ):
                body = await answer.read()
                return web.Response(
                    body=body,
                    status=answer.status,
                    content_type=answer.content_type,
                    headers={LEADER_HEADER: leader.holder},
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {_SECONDS:g} s"
            return _nobody(
                f"this controller stands by, and its leader {leader.holder} at {leader.address} can't be asked: {why}"
            )


def _nobody(message: str) -> web.Response:
    return web.json_response(
        {
            "error": {
                "code": "NotLeading",
                "message": message,
                "hint": "ask again in some seconds: another takes over once the lease has ended",
            }
        },
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        headers={"Retry-After": "2"},
    )
