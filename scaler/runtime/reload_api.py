"""`POST /-/reload`, and what `emberpool policy status` asks for."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web

from scaler.runtime.api import authorized, unauthorized
from scaler.runtime.controller import Controller
from scaler.runtime.policy_process import DEADLINE_SECONDS
from scaler.runtime.reload import Cause, Outcome, Reloader

_STATUS = {
    Outcome.LOADED: HTTPStatus.OK,
    Outcome.UNCHANGED: HTTPStatus.OK,
    Outcome.REJECTED: HTTPStatus.UNPROCESSABLE_ENTITY,
    Outcome.FAILED: HTTPStatus.SERVICE_UNAVAILABLE,
}


Conditions = Callable[[], Sequence[Mapping[str, Any]]]
"""Returns conditions of fleets: `fleet`, `type`, `reason`, `message`."""


class ReloadApi:
    """Handlers over one reloader.

    Args:
        controller: whose policies are asked for.
        reloader: None where no policy file was given.
        token: bearer token that whoever wants a reload must show.
        conditions: returns what is to be known of the fleets in force beside their numbers, as JSON.
    """

    def __init__(
        self,
        controller: Controller,
        reloader: Reloader | None,
        token: str,
        conditions: Conditions = tuple,
    ) -> None:
        self._controller = controller
        self._reloader = reloader
        self._token = token
        self._conditions = conditions

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post("/-/reload", self._reload), web.get("/v1/policies/status", self._status)]

    async def _reload(self, request: web.Request) -> web.Response:
        if not authorized(request, self._token):
            return unauthorized()
        if self._reloader is None:
            return _error(
                HTTPStatus.CONFLICT, "NoPolicyFiles", "this process was started without policy files"
            )
        try:
            async with asyncio.timeout(2 * DEADLINE_SECONDS):  # another reading may be under way
                attempt = await asyncio.shield(self._reloader.request(Cause.REQUEST))
        except TimeoutError:
            return _error(
                HTTPStatus.SERVICE_UNAVAILABLE, "Failed", "the policy files have not been read in time"
            )
        return web.json_response(attempt.as_json(), status=_STATUS[attempt.outcome])

    async def _status(self, _: web.Request) -> web.Response:
        conditions = {"conditions": list(self._conditions())}
        if self._reloader is not None:
            return web.json_response({**self._reloader.status(), **conditions})
        table = self._controller.table
        return web.json_response(
            {
                "hash": table.hash,
                "since": None,
                "fleets": len(table.fleets),
                "policies": len(table.policies),
                "files": [],
                "notChangedLive": [],
                "lastAttempt": None,
                **conditions,
            }
        )


def _error(status: HTTPStatus, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
