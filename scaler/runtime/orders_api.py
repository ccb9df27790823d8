"""`POST /v1/orders`: orders of people, taken by the controller that leads.

An answer says what will be done, and comes before it is done: the next tick carries it out. What came of it stands in the events. What
stands from then on is kept before the answer, so that it outlives whoever took it; where it can't be, the answer says so.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web

from scaler.runtime.api import authorized, unauthorized
from scaler.runtime.controller import Controller
from scaler.runtime.kept import NotKept
from scaler.runtime.order_rules import Order, OrderRefused, parse

log = structlog.get_logger(__name__)

_KEEP_SECONDS: Final = 2.5
"""How long an answer waits for what stands to be kept; who passes an order on waits for four, the command line for five."""


class OrdersApi:
    """The handler over one controller.

    Args:
        controller: takes the orders.
        token: bearer token that whoever gives one must show.
    """

    def __init__(self, controller: Controller, token: str) -> None:
        self._controller = controller
        self._token = token

    def routes(self) -> list[web.RouteDef]:
        """Return the route."""
        return [web.post("/v1/orders", self._order)]

    async def _order(self, request: web.Request) -> web.Response:
        if not authorized(request, self._token):
            return unauthorized()
        try:
            order = parse(_json(await request.read()))
            sentence = self._controller.order(order)
        except OrderRefused as refused:
            error = {"code": refused.code, "message": str(refused), "hint": refused.hint}
            return web.json_response({"error": error}, status=refused.status)
        answer = {"accepted": True, "dryRun": order.dry_run, "sentence": sentence}
        if why := await self._keep(order):
            answer["notKept"] = why
        return web.json_response(answer)

    async def _keep(self, order: Order) -> str:
        """Keep what stands since an order was taken; say why it isn't kept yet, nothing if it is, or needn't be."""
        orders = self._controller.orders
        fleet = None if order.dry_run else orders.stands_for(order)
        if fleet is None:
            return ""
        try:
            async with asyncio.timeout(_KEEP_SECONDS):
                await orders.keep(fleet)
        except NotKept as error:
            why = str(error)
        except TimeoutError:
            why = f"not written within {_KEEP_SECONDS:g} s"
        else:
            return ""
        orders.urge(fleet)  # as soon as it is its turn, and else with all that is kept each minute
        log.warning("an order stands and is not kept yet", subject=order.subject, error=why)
        return why


def _json(body: bytes) -> object:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OrderRefused("BadOrder", "an order is a JSON object", status=HTTPStatus.BAD_REQUEST) from error
    return found
