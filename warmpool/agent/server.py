"""The agent's HTTP API: orders in, state and metrics out.

Every route but `/livez` wants the bearer token. An error is JSON with a code of `warmpool.errors`. An order goes on when its
caller hangs up: what has been begun is ended or undone, never left half-way.
"""

import hmac
import logging

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from warmpool.agent.orders import OrderKind, Result, parse_order, parse_stage_order, parse_start_order
from warmpool.agent.seat import LiveSeat
from warmpool.errors import AgentError, BadOrder, EngineError, WarmpoolError
from warmpool.wire import recording_from_json

_LOG = logging.getLogger(__name__)
_OPEN_ROUTES = frozenset({"/livez"})
_BODY_LIMIT_BYTES = 64 * 1024


def make_app(seat: LiveSeat, token: str) -> web.Application:
    """Return the web application of one seat.

    Args:
        seat: the seat.
        token: what callers have to send as bearer token.
    """
    app = web.Application(middlewares=[_errors, _wants_token(token)], client_max_size=_BODY_LIMIT_BYTES)
    api = _Api(seat)
    app.router.add_get("/livez", api.livez)
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/v1/state", api.state)
    app.router.add_get("/v1/proof/{policy}", api.get_proof)
    app.router.add_put("/v1/proof/{policy}", api.put_proof)
    app.router.add_put("/v1/starts", api.put_starts)
    app.router.add_put("/v1/stage", api.put_stage)
    for kind in OrderKind:
        app.router.add_post(f"/v1/{kind}", api.order)
    return app


class _Api:
    def __init__(self, seat: LiveSeat) -> None:
        self._seat = seat

    async def livez(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._seat.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def state(self, _request: web.Request) -> web.Response:
        return web.json_response(self._seat.state())

    async def order(self, request: web.Request) -> web.Response:
        kind = OrderKind(request.path.rsplit("/", 1)[-1])
        order = parse_order(kind, await _body(request))
        return web.json_response(_result_json(await self._seat.order(order)))

    async def get_proof(self, request: web.Request) -> web.Response:
        return web.json_response(self._seat.proof(request.match_info["policy"]))

    async def put_proof(self, request: web.Request) -> web.Response:
        policy, body = request.match_info["policy"], await _body(request)
        if not isinstance(body, dict):
            raise BadOrder("the body is no JSON object")
        epoch = body.get("epoch")
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            raise BadOrder("epoch: the controller's term, a whole number")
        self._seat.take_recording(policy, recording_from_json(body), epoch=epoch)
        return web.json_response(self._seat.proof(policy))

    async def put_starts(self, request: web.Request) -> web.Response:
        return web.json_response(self._seat.take_start_order(parse_start_order(await _body(request))))

    async def put_stage(self, request: web.Request) -> web.Response:
        return web.json_response(self._seat.take_stage_order(parse_stage_order(await _body(request))))


async def _body(request: web.Request) -> object:
    try:
        return await request.json()
    except ValueError as error:
        raise BadOrder(f"the body is no JSON: {error}") from error


def _result_json(result: Result) -> dict[str, object]:
    return {
        "policy": result.policy,
        "state": str(result.state),
        "phases": dict(result.phases),
        "aborted": result.aborted,
    }


def _wants_token(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="replace")
        if request.path in _OPEN_ROUTES or hmac.compare_digest(given, expected):
            return await handler(request)
        error = BadOrder("the bearer token is missing or wrong; send the one in EMBERPOOL_AGENT_TOKEN")
        return _error_response(error, status=401)

    return check


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        answer = {
            "error": {"code": "BadOrder", "message": f"{request.method} {request.path}: {error.reason}"}
        }
        return web.json_response(answer, status=error.status)
    except WarmpoolError as error:
        return _error_response(error)
    except Exception:  # noqa: BLE001 (the last net: one bad request must not end the agent)
        _LOG.exception("%s %s", request.method, request.path)
        return _error_response(AgentError("a fault in the agent; its log has the details"))


def _error_response(error: WarmpoolError, status: int | None = None) -> web.Response:
    code, fitting = describe(error)
    return web.json_response({"error": {"code": code, "message": str(error)}}, status=status or fitting)


def describe(error: WarmpoolError) -> tuple[str, int]:
    """Return an error's code and HTTP status."""
    match error:
        case AgentError():
            return error.code, error.status
        case EngineError():
            return "EngineFailed", 502
        case _:
            return AgentError.code, AgentError.status
