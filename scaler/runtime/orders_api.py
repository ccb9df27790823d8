"""`POST /v1/orders`: orders of people, taken by the controller that leads.

An answer says what will be done, and comes before it is done: the next tick carries it out. What came of it stands in the events.
"""

import json
from http import HTTPStatus

from aiohttp import web

from scaler.runtime.api import authorized, unauthorized
from scaler.runtime.controller import Controller
from scaler.runtime.order_rules import OrderRefused, parse


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
        return web.json_response({"accepted": True, "dryRun": order.dry_run, "sentence": sentence})


def _json(body: bytes) -> object:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OrderRefused("BadOrder", "an order is a JSON object", status=HTTPStatus.BAD_REQUEST) from error
    return found
