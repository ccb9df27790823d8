"""The gateway: an HTTP server that holds requests until an endpoint has room and passes answers on.

The answer's headers are withheld until its first content; until then whatever fails is tried elsewhere and the client
knows nothing of it. After that a broken event stream ends with an error event and without `[DONE]`, and any other
broken answer with its connection.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from prometheus_client import CollectorRegistry

from scaler.gateway.intake import Intake
from scaler.gateway.messages import (
    RequestRefused,
    answer_headers,
    model_of,
    request_id,
    routable,
    unknown_model,
)
from scaler.gateway.observe import GatewayMetrics, GatewayObserver, Outcome
from scaler.gateway.queue import Dispatcher, Lease, PolicyStats, Refusal, Ticket
from scaler.gateway.relay import relay
from scaler.gateway.routes import RouteTable
from scaler.gateway.samples import SamplePusher
from scaler.gateway.settings import GatewaySettings
from scaler.gateway.upstream import Answer, AttemptFailed, Held, Outgoing, attempt, open_session, outgoing
from warmpool.seats import PolicyName

_CLOSING_SECONDS = 1.0
"""Time that handlers get to write their last words when the server closes."""


class Call:
    """One request on its way: its place, its slot, and what it holds."""

    def __init__(self, policy: PolicyName, request: Outgoing, received_at: float) -> None:
        self.policy = policy
        self.request: Outgoing | None = request
        self.received_at = received_at
        self.ticket = Ticket(
            policy=policy,
            size_bytes=len(request.body),
            arrived_at=received_at,
            granted=self._granted,
            refused=self._refused,
        )
        self.lease: Lease | None = None
        self.held: Held | None = None
        self.failed_attempts = 0
        self._waiter: asyncio.Future[Lease | Refusal] | None = None

    def wait(self) -> asyncio.Future[Lease | Refusal]:
        """Return what the ticket's callbacks will fill."""
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _granted(self, lease: Lease) -> bool:
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_result(lease)
        return True

    def _refused(self, refusal: Refusal) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(refusal)


class Gateway:
    """A queueing reverse proxy for OpenAI-style HTTP, to be embedded by the runtime.

    Attributes:
        routes: the table that the runtime replaces at each change of rotation.
    """

    def __init__(
        self, settings: GatewaySettings, observer: GatewayObserver, registry: CollectorRegistry
    ) -> None:
        """Make a gateway that isn't served yet; its metrics go to `registry`."""
        self.routes = RouteTable()
        self._settings = settings
        self._observer = observer
        self._dispatcher = Dispatcher(self.routes, changed=self._note)
        self._intake = Intake(settings)
        self._metrics = GatewayMetrics(registry, self._all_stats, self._intake)
        self._pusher = SamplePusher(settings, self._dispatcher, self._metrics)
        self._session: aiohttp.ClientSession | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._routed = False
        self.routes.watch(self._on_routes)

    # -------------------------------------------------------------- life

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[str]:
        """Serve on `host` and `port` (0 picks one) and yield the base URL; end what is left on leaving.

        Call `drain` first to leave without cutting anything.

        Raises:
            OSError: the address can't be had.
        """
        settings = self._settings
        server = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=settings.max_header_bytes,
            max_field_size=settings.max_header_bytes,
            max_headers=settings.max_headers,
            lingering_time=2.0,
        )
        runner = web.ServerRunner(server, shutdown_timeout=_CLOSING_SECONDS)
        async with open_session(settings) as session:
            self._session = session
            await runner.setup()
            try:
                site = web.TCPSite(runner, host, port, backlog=1024)
                await site.start()
                async with self._pushing(session):
                    name = f"[{host}]" if ":" in host else host
                    yield f"http://{name}:{runner.addresses[0][1]}"
            finally:
                self._draining = True
                self._dispatcher.close()
                await runner.cleanup()
                self._disarm()
                self._metrics.close()

    @asynccontextmanager
    async def _pushing(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Push samples meanwhile; what the caller raises goes on as it is and not as a group."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(self._pusher.run(session), name="samples")
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised again outside of the group
                failure = error
            finally:
                pushing.cancel()
        if failure is not None:
            raise failure

    async def drain(self, deadline_seconds: float) -> bool:
        """Take no new requests and finish what is here; what still waits at the deadline is refused.

        Returns:
            Whether everything was finished in time.
        """
        self._draining = True
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._idle.wait()
        except TimeoutError:
            self._dispatcher.close()
            return False
        return True

    def stats(self, policy: PolicyName) -> PolicyStats:
        """Return a policy's numbers at this moment; all zero for one that is unknown."""
        return self._dispatcher.stats(policy, time.monotonic())

    # -------------------------------------------------------------- changes and time

    def _all_stats(self) -> Mapping[PolicyName, PolicyStats]:
        now = time.monotonic()
        return {policy: self._dispatcher.stats(policy, now) for policy in self._dispatcher.policies()}

    def _note(self, policy: PolicyName) -> None:
        self._pusher.note(policy, *self._dispatcher.demand(policy))

    def _on_routes(self) -> None:
        self._routed = True
        self._advance()

    def _advance(self) -> None:
        self._dispatcher.advance(time.monotonic())
        if self._session is not None:
            self._arm()

    def _arm(self) -> None:
        """Set the one timer to the next moment at which time alone changes something."""
        self._disarm()
        now = time.monotonic()
        at = self._dispatcher.next_event(now)
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._advance)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -------------------------------------------------------------- requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._active += 1
        self._idle.clear()
        identity = request_id(request.headers)
        try:
            response = await self._route(request, identity)
        except RequestRefused as refused:
            if refused.outcome not in _COUNTED:  # it never got as far as a policy
                self._metrics.finished(None, refused.outcome)
            response = self._refusal(refused, identity)
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()
        if self._draining and not response.prepared:
            response.force_close()
        return response

    async def _route(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        match request.method, path:
            case "GET", "/livez":
                return web.Response(text="ok\n")
            case "GET", "/readyz" | "/health":
                return self._readiness()
            case "GET", "/v1/models":
                models = [_model(name) for name in self.routes.models]
                return web.json_response({"object": "list", "data": models})
            case "GET", _ if path.startswith("/v1/models/"):
                name = request.path.removeprefix("/v1/models/")
                if self.routes.policy_of(name) is None:
                    raise unknown_model(name, self.routes.models)
                return web.json_response(_model(name))
            case "POST", _ if routable(path):
                return await self._proxy(request, identity)
            case _, _ if routable(path):
                raise RequestRefused(405, f"{request.method} is not served here.", code="method_not_allowed")
        raise RequestRefused(404, f"Nothing is served at {path[:200]}.", code="not_found")

    def _readiness(self) -> web.Response:
        if self._draining:
            return web.Response(status=503, text="draining\n")
        if not self._routed:
            return web.Response(status=503, text="waiting for routes\n")
        return web.Response(text="ok\n")

    def _refusal(self, refused: RequestRefused, identity: str) -> web.Response:
        headers = {"X-Request-Id": identity}
        if refused.retry:
            headers["Retry-After"] = str(self._settings.retry_after_seconds)
        response = web.Response(
            status=refused.status, body=refused.body(), headers=headers, content_type="application/json"
        )
        if refused.close:
            response.force_close()
        return response

    async def _proxy(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        if self._draining:
            message = "This gateway is shutting down; try again."
            raise RequestRefused(503, message, code="Draining", outcome=Outcome.DRAINING, close=True)
        async with self._intake.receive(request) as body:
            received_at = time.monotonic()
            model = model_of(body.data)
            policy = self.routes.policy_of(model)
            if policy is None:
                raise unknown_model(model, self.routes.models)
            headers = CIMultiDict(request.headers)
            call = Call(policy, outgoing(request.raw_path, headers, body.data, identity), received_at)
            outcome: Outcome | None = None  # none while the client may go away
            try:
                answer = await self._first_content(call)
                body.drop()
                call.request = None
                if isinstance(answer, Answer):
                    outcome = Outcome.ENGINE_ERROR
                    return _whole(answer.status, answer.headers, answer.body, identity)
                response, outcome = await self._pass_on(request, call, answer, identity)
            except RequestRefused as refused:
                outcome = refused.outcome
                raise
            else:
                return response
            finally:
                self._finish(call, outcome or self._abandoned(call))

    async def _pass_on(
        self, request: web.BaseRequest, call: Call, held: Held, identity: str
    ) -> tuple[web.StreamResponse, Outcome]:
        upstream = held.response
        if held.complete:
            self._release(call)
            response = _whole(upstream.status, CIMultiDict(upstream.headers), held.body, identity)
            return response, _outcome(upstream.status)
        headers = answer_headers(upstream.headers, identity, whole=False)
        stream = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        if self._draining:
            stream.force_close()
        outcome = await relay(
            request,
            stream,
            held,
            stall_seconds=self._settings.client_stall_seconds,
            gap=self._metrics.gap(call.policy),
            ended=lambda: self._release(call),
        )
        return stream, outcome or _outcome(upstream.status)

    # -------------------------------------------------------------- until the first content

    async def _first_content(self, call: Call) -> Held | Answer:
        """Try endpoints until one brings content; an `Answer` is the engines' last error.

        Raises:
            RequestRefused: the queue is full, the wait was too long, or the deadline has passed.
        """
        remaining = call.received_at + self._settings.deadline_seconds - time.monotonic()
        try:
            async with asyncio.timeout(remaining):
                while True:
                    held = await self._attempt(call)
                    if held is not None:
                        break
        except TimeoutError:
            message = f"No engine answered within {self._settings.deadline_seconds:g} s; try again."
            raise RequestRefused(
                503, message, code="DeadlineExceeded", outcome=Outcome.DEADLINE_EXCEEDED
            ) from None
        if isinstance(held, Held) and held.response.status < 400:  # noqa: PLR2004 - HTTP
            self._observe_first(call)
        return held

    async def _attempt(self, call: Call) -> Held | Answer | None:
        """Wait for a slot and try it; None when the request goes once more."""
        assert self._session is not None
        assert call.request is not None
        lease = call.lease = await self._lease(call)
        try:
            call.held = await attempt(self._session, call.request, lease.endpoint)
        except AttemptFailed as failed:
            return self._failed(call, lease, failed)
        self.routes.succeeded(lease.endpoint, dispatched_at=lease.granted_at)
        return call.held

    async def _lease(self, call: Call) -> Lease:
        """Wait for a slot.

        Raises:
            RequestRefused: the queue is full, or the wait was too long.
        """
        waiter = call.wait()
        given = self._dispatcher.submit(call.ticket, time.monotonic())
        if given is None:
            self._arm()
            try:
                given = await waiter
            except asyncio.CancelledError:
                self._leave(call, waiter)
                raise
        if isinstance(given, Refusal):
            raise _queue_refusal(given)
        return given

    def _leave(self, call: Call, waiter: "asyncio.Future[Lease | Refusal]") -> None:
        """Leave the queue; a slot that came at the same moment goes to the next."""
        now = time.monotonic()
        if waiter.done() and not waiter.cancelled():
            given = waiter.result()
            if isinstance(given, Lease):
                self._dispatcher.release(given, now)
        self._dispatcher.withdraw(call.ticket, now)

    def _failed(self, call: Call, lease: Lease, failed: AttemptFailed) -> Answer | None:
        """Note a failed attempt; return what the client gets when there is none left."""
        now = time.monotonic()
        self.routes.failed(lease.endpoint, failed.failure, dispatched_at=lease.granted_at, now=now)
        if failed.failure.reached_engine:
            call.failed_attempts += 1
            call.ticket.avoid.add(lease.endpoint.key)
        self._dispatcher.release(lease, now)
        self._arm()
        if call.failed_attempts < self._settings.max_failed_attempts:
            self._metrics.retried(call.policy, failed.failure)
            return None
        if failed.answer is not None:
            return failed.answer
        message = f"{call.failed_attempts} engines broke off before they answered; last: {failed}."
        raise RequestRefused(502, message, code="EngineFailed", outcome=Outcome.ENGINE_ERROR) from failed

    def _observe_first(self, call: Call) -> None:
        lease = call.lease
        assert lease is not None
        now = time.monotonic()
        unix = time.time()
        waited = lease.waited_seconds
        self._metrics.first_content(call.policy, ttft=now - call.received_at, waited=waited)
        dispatched_at = unix - (now - lease.granted_at)
        self._observer.first_content(call.policy, lease.endpoint, dispatched_at, unix, waited)

    # -------------------------------------------------------------- the end

    def _release(self, call: Call) -> None:
        if call.lease is not None:
            self._dispatcher.release(call.lease, time.monotonic())

    def _abandoned(self, call: Call) -> Outcome:
        """Return how a request ended whose client went away: before its first content it may be that we were too slow."""
        here = time.monotonic() - call.received_at
        if call.request is not None and here > self.routes.ttft_seconds(call.policy):
            return Outcome.ABANDONED_WAITING
        return Outcome.ABANDONED

    def _finish(self, call: Call, outcome: Outcome) -> None:
        if call.held is not None and not call.held.complete:
            call.held.response.close()  # no effect after its end; before it, the engine stops working
        counts = self._dispatcher.counts(call.policy)
        field = _COUNTED[outcome]
        setattr(counts, field, getattr(counts, field) + 1)
        self._release(call)
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


def _outcome(status: int) -> Outcome:
    return Outcome.COMPLETED if status < 300 else Outcome.CLIENT_ERROR  # noqa: PLR2004 - HTTP


_REFUSALS: Mapping[Refusal, tuple[str, Outcome]] = {
    Refusal.TOO_MANY: ("The queue for this model is full; try again.", Outcome.REFUSED),
    Refusal.TOO_LARGE: ("The queue for this model is full; try again.", Outcome.REFUSED),
    Refusal.TOO_OLD: ("No capacity became free in time; try again.", Outcome.EXPIRED),
    Refusal.GONE: ("This model is no longer served here.", Outcome.GONE),
    Refusal.CLOSING: ("This gateway is shutting down; try again.", Outcome.CLOSED),
}


def _queue_refusal(refusal: Refusal) -> RequestRefused:
    message, outcome = _REFUSALS[refusal]
    code = f"Queue{refusal.value}"
    return RequestRefused(503, message, code=code, outcome=outcome, close=refusal is Refusal.CLOSING)


def _whole(status: int, headers: CIMultiDict[str], body: bytes, identity: str) -> web.Response:
    return web.Response(status=status, body=body, headers=answer_headers(headers, identity, whole=True))


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "emberpool"}
