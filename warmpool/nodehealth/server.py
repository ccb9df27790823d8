"""The node agent's HTTP API, on a Unix socket, where the kernel says who asks, and with a token on TCP.

`/healthz` is open. It answers 503 where only a new process helps, and 200 otherwise: starting anew mends no device that hangs.
"""

import asyncio
import hmac
import logging
import socket
import struct
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from warmpool.nodehealth.client import MOST_FAULT_CHARACTERS, TOKEN_VARIABLE
from warmpool.nodehealth.health_service import HealthService
from warmpool.nodehealth.metrics import Asked, NodeMetrics
from warmpool.nodehealth.reader import DriverState, Reader, TooSlow
from warmpool.nodehealth.service import (
    OLDEST_SECONDS,
    AskError,
    MemoryService,
    Peer,
    Question,
)
from warmpool.nodehealth.wire import answer_to_json, health_to_json

_LOG = logging.getLogger(__name__)
_OPEN_ROUTES = frozenset({"/healthz"})
PARAMETERS = frozenset({"pod", "pid", "gpu", "maxAgeMilliseconds"})
"""What a question after memory may have."""
HEALTH_PARAMETERS = frozenset({"pod", "gpu"})
"""What a question after health may have."""
CANARY_PARAMETERS = HEALTH_PARAMETERS | {"passed", "proof", "fault"}
"""What may be said of a canary."""
_MOST_NAMED = 256
_POD_CHARACTERS = 64
_PROOF_CHARACTERS = 64
_SCRAPE_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred of sys/socket.h: pid, uid, gid


class Unauthorized(AskError):
    """The token is missing or wrong."""

    code = "Unauthorized"
    status = 401


class NodeApi:
    """The routes.

    Args:
        service: who answers questions after memory.
        health: who answers those after health.
        reader: the GPUs.
        metrics: what counts.
        token: what callers on TCP have to send as bearer token.
    """

    def __init__(
        self, service: MemoryService, health: HealthService, reader: Reader, metrics: NodeMetrics, token: str
    ) -> None:
        self._service = service
        self._health = health
        self._reader = reader
        self._metrics = metrics
        self._token = token

    def application(self) -> web.Application:
        """Return the web application."""
        app = web.Application(middlewares=[_errors, self._wants_token()])
        app.router.add_get("/v1/memory", self._memory)
        app.router.add_get("/v1/health", self._gpu_health)
        app.router.add_post("/v1/canary", self._canary)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._page)
        return app

    async def _memory(self, request: web.Request) -> web.Response:
        began_at, outcome = asyncio.get_running_loop().time(), Asked.REFUSED
        try:
            question = _question(request, PARAMETERS)
            answer = answer_to_json(await self._service.answer(question, _peer(request)))
            outcome = Asked.VERIFIED if answer["verified"] else Asked.UNVERIFIED
            return web.json_response(answer)
        finally:
            self._metrics.asked(outcome, asyncio.get_running_loop().time() - began_at)

    async def _gpu_health(self, request: web.Request) -> web.Response:
        question = _question(request, HEALTH_PARAMETERS)
        return web.json_response(health_to_json(await self._health.answer(question, _peer(request))))

    async def _canary(self, request: web.Request) -> web.Response:
        question, passed = _question(request, CANARY_PARAMETERS), request.query.get("passed", "")
        if passed not in {"true", "false"}:
            raise AskError("passed: takes true or false")
        proof, fault = (
            _text(request, "proof", _PROOF_CHARACTERS),
            _text(request, "fault", MOST_FAULT_CHARACTERS),
        )
        if fault and passed == "true":
            raise AskError("fault: says why something failed, and passed is true")
        gpus, says = await self._health.canary(
            question, _peer(request), passed=passed == "true", proof=proof, fault=fault
        )
        return web.json_response({"gpus": sorted(gpus), "counts": says})

    async def _healthz(self, _request: web.Request) -> web.Response:
        reader = self._reader
        outdated, well = reader.state is DriverState.OUTDATED, reader.state is DriverState.OPEN
        body = {
            "status": "Ok" if well and not reader.hanging else ("Failed" if outdated else "Degraded"),
            "nvml": str(reader.state),
            "reason": reader.reason,
            "hanging": list(reader.hanging),
            "gpus": [device.uuid for device in reader.listing.devices if not device.parent],
        }
        return web.json_response(body, status=503 if outdated else 200)

    async def _page(self, _request: web.Request) -> web.Response:
        with suppress(TooSlow):
            await self._reader.read(max_age_seconds=_SCRAPE_SECONDS, seconds=_SCRAPE_SECONDS)
        page = generate_latest(self._metrics.registry)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _wants_token(self) -> Middleware:
        expected = f"Bearer {self._token}".encode()

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            given = request.headers.get("Authorization", "").encode(errors="replace")
            known = bool(self._token) and hmac.compare_digest(given, expected)
            if known or request.path in _OPEN_ROUTES or _peer(request) is not None:
                return await handler(request)
            raise Unauthorized(f"the bearer token is missing or wrong; send the one in {TOKEN_VARIABLE}")

        return check


def _peer(request: web.Request) -> Peer | None:
    """Return who is at the other end of a Unix socket; None on TCP."""
    its = request.get_extra_info("socket")
    if its is None or its.family != socket.AF_UNIX:
        return None
    pid, uid, _gid = _CREDENTIALS.unpack(
        its.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Peer(pid, uid)


def _question(request: web.Request, parameters: frozenset[str]) -> Question:
    """Read the query.

    Raises:
        AskError: something in it isn't as it has to be.
    """
    query = request.query
    for name in query:
        if name not in parameters:
            raise AskError(f"{name}: there is no such parameter; there are {', '.join(sorted(parameters))}")
        if len(query.getall(name)) > 1:
            raise AskError(f"{name}: given twice; several values are parted by commas")
    pod = query.get("pod", "")
    if len(pod) > _POD_CHARACTERS:
        raise AskError("pod: that is no pod's UID")
    pids = [_whole("pid", text, 2**31 - 1) for text in _parts(query.get("pid", ""), "pid")]
    if 0 in pids:
        raise AskError("pid: 0 is no process id")
    oldest = query.get("maxAgeMilliseconds")
    longest = round(OLDEST_SECONDS * 1000)
    return Question(
        pod=pod,
        pids=frozenset(pids),
        gpus=tuple(_parts(query.get("gpu", ""), "gpu")),
        oldest_seconds=(
            OLDEST_SECONDS if oldest is None else _whole("maxAgeMilliseconds", oldest, longest) / 1000
        ),
    )


def _text(request: web.Request, name: str, most: int) -> str:
    text = request.query.get(name, "")
    if len(text) > most or not text.isprintable():
        raise AskError(f"{name}: takes a line of at most {most} characters")
    return text


def _parts(text: str, name: str) -> list[str]:
    parts = text.split(",") if text else []
    if not all(parts) or len(parts) > _MOST_NAMED:
        raise AskError(f"{name}: takes 1 to {_MOST_NAMED} values parted by commas")
    return parts


def _whole(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or int(text) > most:
        raise AskError(f"{name}: {text!r} is no whole number from 0 to {most}")
    return int(text)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(AskError.code, f"{request.method} {request.path}: {error.reason}", error.status)
    except AskError as error:
        return _error(error.code, str(error), error.status)
    except Exception:  # noqa: BLE001 (the last net: one bad request must not end the node agent)
        _LOG.exception("%s %s", request.method, request.path)
        return _error("Internal", "a fault in the node agent; its log has the details", 500)


def _error(code: str, message: str, status: int) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
