"""The gateway: an HTTP server that holds requests until an endpoint has room and passes answers on.

The answer's headers are withheld until its first content; until then whatever fails is tried elsewhere and the client
knows nothing of it. After that a broken event stream ends with an error event and without `[DONE]`, and any other
broken answer with its connection.
"""

import asyncio
import math
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
from aiohttp import HttpVersion11, web
from prometheus_client import CollectorRegistry

from scaler.gateway.attempts import Attempts, Call
from scaler.gateway.early import Early
from scaler.gateway.failure_log import FailureLog
from scaler.gateway.intake import Body, Intake
from scaler.gateway.keys import Keys
from scaler.gateway.listener import Listener
from scaler.gateway.messages import (
    MODEL_PATHS,
    REQUEST_ID_HEADER,
    RETRY_HEADER,
    SERVER,
    RequestRefused,
    answer_headers,
    check_framing,
    not_allowed,
    priority,
    request_headers,
    request_id,
    routable,
    unknown_model,
)
from scaler.gateway.observe import GatewayMetrics, GatewayObserver, Outcome, Sides, Times
from scaler.gateway.queue import PolicyStats
from scaler.gateway.relay import NEVER_BLOCKS, SHUT_DOWN, STREAM_CUT, Relay, abort
from scaler.gateway.routes import RouteTable
from scaler.gateway.samples import SamplePusher
from scaler.gateway.settings import GatewaySettings
from scaler.gateway.slots import Place, Slots
from scaler.gateway.upstream import Answer, Held, Outgoing, open_session
from scaler.meanwhile import meanwhile
from warmpool.seats import PolicyName

_READING: Final = ("GET", "HEAD")
_LINGER_SECONDS: Final = 0.5
"""How long a connection stays whose request was refused before all of it had come."""
_LAST_WORDS_SECONDS: Final = 0.5
"""Time in which clients must take their last words when the gateway ends."""


class _Progress:
    """Takes note of how one stream goes."""

    __slots__ = ("_call", "_counts", "_gaps", "_slots")

    def __init__(self, call: Call, slots: Slots, gaps: Times) -> None:
        self._call = call
        self._slots = slots
        self._counts = slots.dispatcher.counts(call.policy)
        self._gaps = gaps

    def gap(self, seconds: float) -> None:
        """See `scaler.gateway.relay.Progress`, as all below."""
        self._counts.gaps += 1
        self._counts.gap_seconds += seconds
        self._gaps.add(seconds)

    def ended(self) -> None:
        """Let another request have its slot."""
        if self._call.lease is not None:
            self._slots.release(self._call.lease)

    def cut(self) -> Mapping[str, Any]:
        """Say whose end it was."""
        return SHUT_DOWN if self._call.ended else STREAM_CUT


class Gateway:
    """A queueing reverse proxy for OpenAI-style HTTP, to be embedded by the runtime.

    Attributes:
        routes: the table that the runtime changes at each change of rotation.
        keys: what clients must show one of; None: whatever they show goes on to the engine.
    """

    def __init__(
        self, settings: GatewaySettings, observer: GatewayObserver, registry: CollectorRegistry
    ) -> None:
        """Make a gateway that isn't served yet; its metrics go to `registry`."""
        self.routes = RouteTable(settings.queue)
        self.keys: Keys | None = None
        self._settings = settings
        self._observer = observer
        self._failures = FailureLog()
        self._slots = Slots(self.routes, self._note, self._failures)
        self._intake = Intake(settings)
        self._metrics = GatewayMetrics(registry, self._slots.all_stats, self._intake, self._sides)
        self._pusher = SamplePusher(settings, self._slots.dispatcher, self._metrics)
        self._attempts = Attempts(settings, self.routes, self._slots, self._metrics, observer)
        self._session: aiohttp.ClientSession | None = None
        self._relay = Relay(settings)
        self._calls: set[Call] = set()
        self._cut_off = 0
        self._listener: Listener | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._leaving = False
        self._draining = False
        self._routed = False
        self.routes.watch(self._on_routes)

    # -------------------------------------------------------------- life

    @asynccontextmanager
    async def serve(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve on `host` and `port` (0 picks one) and yield the base URL; end what is left on leaving.

        Call `drain` first to leave without cutting anything.

        Raises:
            OSError: the address can't be had.
        """
        self._listener = Listener(
            self._handle, self._settings, lambda: self._metrics.finished(None, Outcome.INVALID)
        )
        async with open_session(self._settings) as session:
            self._session = session
            try:
                async with (
                    self._listener.listen(host, port, tls) as (name, number),
                    meanwhile(self._pusher.run(session), "samples"),
                ):
                    self._slots.open()
                    scheme, shown = "http" if tls is None else "https", f"[{name}]" if ":" in name else name
                    try:
                        yield f"{scheme}://{shown}:{number}"
                    finally:
                        await self._end()
                        self._slots.close()
            finally:
                self._metrics.close()

    async def drain(self, deadline_seconds: float, *, settle_seconds: float = 0.0) -> bool:
        """Take no new connection and finish what is here; at the deadline what has no content is refused, and what has some is cut.

        Args:
            deadline_seconds: for everything; clients have half a second more to take the end of what is cut.
            settle_seconds: a while before, in which the gateway says that it isn't ready and still takes what comes, for those
                who learn of its end later.

        Returns:
            Whether nothing was refused or cut.
        """
        self._leaving = True
        try:
            async with asyncio.timeout(deadline_seconds):
                await asyncio.sleep(settle_seconds)
                self._draining = True
                if self._listener is not None:
                    self._listener.stop_accepting()
                    self._listener.close_idle()
                await self._idle.wait()
        except TimeoutError:
            await self._end()
        return self.idle and not self._cut_off

    async def _end(self) -> None:
        """Give up what is still here, each with an end that its client understands."""
        self._draining = True
        self._slots.dispatcher.close()
        for call in self._calls:
            call.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._idle.wait()

    # -------------------------------------------------------------- what it says of itself

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self._routed and not self._leaving

    @property
    def idle(self) -> bool:
        """Whether nothing is held or answered."""
        return not self._active

    def stats(self, policy: PolicyName) -> PolicyStats:
        """Return a policy's numbers at this moment; all zero for one that is unknown."""
        return self._slots.stats(policy)

    def state(self) -> dict[str, Any]:
        """Return what people want to see, as JSON has it: settings, and per policy its numbers and endpoints."""
        now = time.monotonic()
        policies = {}
        for name, routes in self.routes.policies.items():
            stats, limits = self._slots.stats(name), self.routes.limits(name) or self._settings.queue
            wait = self._slots.expected_wait(name)
            policies[name] = {
                "models": list(routes.models),
                "queued": stats.queued,
                "inFlight": stats.in_flight,
                "oldestWaitSeconds": round(stats.oldest_wait_seconds, 3),
                "expectedWaitSeconds": None if wait is None else round(wait, 3),
                "queue": {
                    "maxRequests": limits.max_requests,
                    "maxBytes": limits.max_bytes,
                    "maxAgeSeconds": limits.max_age_seconds,
                    "maxColdSeconds": limits.max_cold_seconds,
                },
                "endpoints": self.routes.state(name, now),
            }
        return {
            "ready": self.ready,
            "draining": self._draining,
            "connections": self._listener.connections if self._listener is not None else 0,
            "heldBytes": self._intake.held_bytes,
            "settings": self._settings.shown(),
            "policies": policies,
        }

    def _sides(self) -> Sides:
        listener = self._listener
        return Sides(
            endpoints=self.routes.standing(time.monotonic()),
            connections=listener.connections if listener is not None else 0,
            refused=listener.refused if listener is not None else 0,
        )

    def _note(self, policy: PolicyName, beyond: int) -> None:
        self._pusher.note(policy, *self._slots.dispatcher.demand(policy), beyond)

    def _on_routes(self, _changed: object) -> None:
        self._routed = True

    # -------------------------------------------------------------- requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._active += 1
        self._idle.clear()
        identity = request_id(request.headers)
        try:
            check_framing(request.version, request.headers.getall("Transfer-Encoding", ()))
            response = await self._route(request, identity)
        except RequestRefused as refused:
            if refused.outcome not in _COUNTED:  # it never got as far as a policy
                self._metrics.finished(None, refused.outcome)
            response = self._refusal(refused, identity)
            if refused.close and not request.content.is_eof():
                await _linger(request, response)
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()
        if not response.prepared:
            response.headers["Server"] = SERVER
            if self._leaving:
                response.force_close()
        return response

    async def _route(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        asked = (
            "GET" if request.method == "HEAD" else request.method
        )  # what HEAD gets goes out without its body
        match asked, path:
            case "GET", "/livez":
                return web.Response(text="ok\n")
            case "GET", "/readyz" | "/health":
                return self._readiness()
            case _, "/livez" | "/readyz" | "/health":
                raise not_allowed(request.method, *_READING)
        if self.keys is not None:
            self.keys.check(request.headers.get("Authorization"))
        match asked, path:
            case "GET", "/v1/models":
                models = [_model(name) for name in self.routes.models]
                return web.json_response({"object": "list", "data": models})
            case "GET", _ if path.startswith("/v1/models/"):
                name = request.path.removeprefix("/v1/models/")
                if self.routes.policy_of(name) is None:
                    raise unknown_model(name, self.routes.models)
                return web.json_response(_model(name))
            case _ if routable(path):
                if request.method != "POST" and not self._settings.default_policy:
                    own = path == "/v1/models" or path.startswith("/v1/models/")
                    raise not_allowed(request.method, *(_READING if own else ()), "POST")
                return await self._proxy(request, identity)
        raise RequestRefused(404, f"Nothing is served at {path[:200]}.", code="not_found")

    def _readiness(self) -> web.Response:
        if self._leaving:
            return web.Response(status=503, text="draining\n")
        if not self._routed:
            return web.Response(status=503, text="waiting for routes\n")
        return web.Response(text="ok\n")

    def _refusal(self, refused: RequestRefused, identity: str) -> web.Response:
        headers = {REQUEST_ID_HEADER: identity, "Server": SERVER}
        if refused.retry:
            headers["Retry-After"] = str(self._retry_after(refused.wait_seconds))
        if refused.status == 401:  # noqa: PLR2004 - HTTP
            headers["WWW-Authenticate"] = "Bearer"
        if refused.allowed:
            headers["Allow"] = ", ".join(refused.allowed)
        response = web.Response(
            status=refused.status, body=refused.body(), headers=headers, content_type="application/json"
        )
        if refused.close:
            response.force_close()
        return response

    def _retry_after(self, wait_seconds: float | None) -> int:
        least, most = self._settings.retry_after_seconds, self._settings.max_retry_after_seconds
        return least if wait_seconds is None else max(least, min(most, math.ceil(wait_seconds)))

    async def _proxy(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        if self._draining:
            message = "This gateway is shutting down; try again."
            raise RequestRefused(503, message, code="Draining", outcome=Outcome.DRAINING, close=True)
        needs_model = request.method == "POST" and (
            request.path in MODEL_PATHS or not self._settings.default_policy
        )
        body = await self._intake.receive(request, needs_model=needs_model)
        try:
            return await self._answer(request, body, identity)
        finally:
            body.drop()

    async def _answer(self, request: web.BaseRequest, body: Body, identity: str) -> web.StreamResponse:
        call = self._call(request, body, identity)
        self._calls.add(call)
        early = self._early(request, body, call, identity)
        outcome: Outcome | None = None  # none while the client may go away
        try:
            answer = await self._first_content(call, early)
            body.drop()
            call.request = None
            response, outcome = await self._pass_on(request, call, answer, early, identity)
        except RequestRefused as refused:
            outcome = refused.outcome
            if _COUNTED[outcome] == "refused":
                counts = self._slots.dispatcher.counts(call.policy)
                counts.refused_seconds += self._retry_after(refused.wait_seconds)
            if early is None or early.stream is None:
                raise
            await early.fail(refused.error())
            return early.stream
        else:
            return response
        finally:
            self._finish(call, outcome or self._abandoned(call))

    def _call(self, request: web.BaseRequest, body: Body, identity: str) -> Call:
        """Find out where a request goes.

        Raises:
            RequestRefused: nowhere.
        """
        policy = self._policy(body)
        settings, headers = self._settings, request.headers
        place = Place(
            policy,
            body.size_bytes,
            priority=priority(headers.get(settings.priority_header)) if settings.priority_header else 0,
            tenant=headers.get(settings.tenant_header, "") if settings.tenant_header else "",
            arrived_at=time.monotonic(),
        )
        outgoing = Outgoing(
            method=request.method,
            path=request.raw_path,
            headers=request_headers(headers, identity, stream=body.stream),
            body=tuple(body.parts),
        )
        once = headers.get(RETRY_HEADER, "").lower() == "never"
        return Call(policy, outgoing, place, identity=identity, stream=body.stream, once=once)

    def _policy(self, body: Body) -> PolicyName:
        default = PolicyName(self._settings.default_policy)
        if body.model is not None:
            policy = self.routes.policy_of(body.model)
        else:
            policy = default if default in self.routes.policies else None
        if policy is not None:
            return policy
        if not self._routed:
            message = "This gateway knows no routes yet; try again."
            raise RequestRefused(503, message, code="NoRoutes", outcome=Outcome.UNROUTED)
        raise unknown_model(body.model or f"default policy {default}", self.routes.models)

    def _early(self, request: web.BaseRequest, body: Body, call: Call, identity: str) -> Early | None:
        seconds = self._settings.keep_alive_comment_seconds
        if not body.stream or not seconds:
            return None
        return Early(request, identity, seconds, lambda: self._slots.wait_of(call.place))

    async def _first_content(self, call: Call, early: Early | None) -> Held | Answer:
        assert self._session is not None
        work = self._attempts.first_content(self._session, call)
        return await (work if early is None else early.during(work))

    async def _pass_on(
        self, request: web.BaseRequest, call: Call, answer: Held | Answer, early: Early | None, identity: str
    ) -> tuple[web.StreamResponse, Outcome]:
        begun = early.stream if early is not None else None
        if isinstance(answer, Answer):
            if early is not None and begun is not None:
                await early.whole(answer.status, answer.body)
                return begun, Outcome.ENGINE_ERROR
            return _whole(answer.status, answer.headers, answer.body, identity), Outcome.ENGINE_ERROR
        upstream = answer.response
        outcome = Outcome.COMPLETED if upstream.status < 300 else Outcome.CLIENT_ERROR  # noqa: PLR2004 - HTTP
        if answer.complete:
            self._release(call)
        if early is not None and begun is not None and answer.events is None:
            await early.whole(upstream.status, answer.body)
            return begun, outcome
        trailers = _trailers(request, answer)
        if answer.complete and begun is None and not trailers:
            whole = _whole(upstream.status, upstream.headers, answer.body, identity)
            return whole, await self._sent(request, whole, len(answer.body)) or outcome
        stream = begun or self._begun(request, upstream, identity, trailers)
        progress = _Progress(call, self._slots, self._metrics.gaps(call.policy))
        ended = await self._relay.pass_on(request, stream, answer, progress)
        return stream, ended or outcome

    async def _sent(self, request: web.BaseRequest, response: web.Response, size: int) -> Outcome | None:
        """Send an answer that its client could stop at, and return how that ended; a smaller one goes out by itself."""
        if size < NEVER_BLOCKS:
            return None
        if self._leaving:
            response.force_close()
        try:
            async with asyncio.timeout(self._settings.client_stall_seconds):
                await response.prepare(request)
                await response.write_eof()
        except ConnectionError:
            return Outcome.ABANDONED
        except TimeoutError:
            abort(request)
            return Outcome.STALLED
        return None

    def _begun(
        self, request: web.BaseRequest, upstream: aiohttp.ClientResponse, identity: str, trailers: str
    ) -> web.StreamResponse:
        headers = answer_headers(upstream.headers, identity, whole=False)
        if trailers:
            headers["Trailer"] = trailers
        stream = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        if self._leaving or request.version < HttpVersion11:
            stream.force_close()  # the one tells clients of our end, the other is the end of an answer without chunks
        return stream

    # -------------------------------------------------------------- the end

    def _release(self, call: Call) -> None:
        if call.lease is not None:
            self._slots.release(call.lease)

    def _abandoned(self, call: Call) -> Outcome:
        """Return how a request ended whose client went away: before its first content it may be that we were too slow."""
        here = time.monotonic() - call.received_at
        if call.request is not None and here > self.routes.ttft_seconds(call.policy):
            return Outcome.ABANDONED_WAITING
        return Outcome.ABANDONED

    def _finish(self, call: Call, outcome: Outcome) -> None:
        self._calls.discard(call)
        self._cut_off += call.ended and outcome in _CUT_OFF
        if call.held is not None and not call.held.complete:
            call.held.response.close()  # no effect after its end; before it, the engine stops working
        counts = self._slots.dispatcher.counts(call.policy)
        field = _COUNTED[outcome]
        setattr(counts, field, getattr(counts, field) + 1)
        self._release(call)
        self._failures.request(call.identity, call.place.ticket, call.lease, outcome, problem=call.problem)
        self._metrics.finished(call.policy, outcome)
        self._observer.finished(
            call.policy,
            outcome,
            endpoint=call.lease.endpoint if call.lease is not None else None,
            at=time.time(),
            seconds=time.monotonic() - call.received_at,
        )


_COUNTED: Mapping[Outcome, str] = {
    Outcome.COMPLETED: "completed",
    Outcome.CLIENT_ERROR: "completed",
    Outcome.ENGINE_ERROR: "failed",
    Outcome.DEADLINE_EXCEEDED: "failed",
    Outcome.CUT: "failed",
    Outcome.REFUSED: "refused",
    Outcome.EXPIRED: "refused",
    Outcome.GONE: "failed",
    Outcome.CLOSED: "failed",
    Outcome.STALLED: "abandoned",
    Outcome.ABANDONED: "abandoned",
    Outcome.ABANDONED_WAITING: "abandoned",
}
"""Which total of `Counts` each outcome adds to."""


_CUT_OFF: Final = frozenset({Outcome.CUT, Outcome.CLOSED})
"""How a request ends that the gateway's end finds here."""


async def _linger(request: web.BaseRequest, response: web.Response) -> None:
    """Answer whoever still sends a body that nobody wants, and leave time to read that; what comes meanwhile stays unread."""
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write_eof()
        await asyncio.sleep(_LINGER_SECONDS)


def _whole(status: int, headers: Mapping[str, str], body: bytes, identity: str) -> web.Response:
    return web.Response(status=status, body=body, headers=answer_headers(headers, identity, whole=True))


def _trailers(request: web.BaseRequest, held: Held) -> str:
    """Return the names of the trailers that follow an answer, as its head says them; empty: none may."""
    if request.method == "HEAD" or request.version < HttpVersion11:
        return ""
    return b", ".join(held.tail.announced).decode("ascii")


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "emberpool"}
