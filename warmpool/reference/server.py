"""The OpenAI-style HTTP surface, and the guard in front of the public one."""

import asyncio
import json
import time
import uuid
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from warmpool.guard import Gate, GateClosed, Passage
from warmpool.reference.engine import Engine
from warmpool.reference.errors import EngineStopped, RequestRejected
from warmpool.reference.frontend import Frontend, Outputs
from warmpool.reference.metrics import Metrics
from warmpool.reference.openai import Generation, Json, Reader, Writer, error_body, model_list
from warmpool.reference.options import ModelOptions, ServerOptions
from warmpool.reference.sequence import FinishReason, Output
from warmpool.reference.startup import Phase, Startup
from warmpool.reference.version import VERSION

FINGERPRINT = f"emberpool-reference-{VERSION}"
MAX_BODY_BYTES = 8 << 20
READ_SECONDS = 30.0
"""A client that hasn't sent its body by then is cut off."""
WRITE_SECONDS = 60.0
"""A client that doesn't read its stream for so long is cut off."""

_PASSAGE = web.RequestKey("passage", Passage)
_ALLOWED = ("/v1/", "/health")
_METRICS = "/metrics"


class Service:
    """What the handlers of both listeners share."""

    def __init__(self, options: ServerOptions, model: ModelOptions, startup: Startup) -> None:
        self.options = options
        self.model = model
        self.startup = startup
        self.gate = Gate(is_open=options.guard_open)
        self.metrics = Metrics(options.models[0], model.max_model_len)
        self.frontend = Frontend(self.metrics, asyncio.get_running_loop())
        self.created = int(time.time())
        self._engine: Engine | None = None

    def attach(self, engine: Engine) -> None:
        """Tell the service which engine computes."""
        self._engine = engine
        self.metrics.weights(self.startup.as_json().get(str(Phase.WEIGHTS), {}))

    @property
    def engine(self) -> Engine:
        """The engine, once it is ready.

        Raises:
            RequestRejected: it is still loading.
        """
        if self._engine is None or not self.startup.is_ready:
            raise RequestRejected(
                f"the engine is loading (phase {self.startup.phase})",
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                kind="ServiceUnavailableError",
            )
        return self._engine

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health: 200 and empty when the engine can compute, also while it is paused; 503 before, and once it has failed."""
        if not self.startup.is_ready:
            state = {"status": "loading", "phase": str(self.startup.phase)}
            return web.json_response(state, status=HTTPStatus.SERVICE_UNAVAILABLE)
        if self.engine.ended.done():
            return web.json_response({"status": "failed"}, status=HTTPStatus.SERVICE_UNAVAILABLE)
        return web.Response()

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models."""
        root = str(self.model.checkpoint)
        return web.json_response(
            model_list(self.options.models, root, self.model.max_model_len, self.created)
        )

    async def metrics_page(self, request: web.Request) -> web.Response:
        """GET /metrics: the whole page, or with `?name[]=…` the samples of these names alone, as prometheus-client has it."""
        if self._engine is not None and self.startup.is_ready:
            runner = self._engine.runner
            self.metrics.kv_taken(runner.kv_taken_bytes, runner.kv_kind)
            self.metrics.parked(runner.parked_bytes)
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics.text(request.query.getall("name[]", [])), headers=headers)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        generation = self._reader().completion(await _body(request), seed=Frontend.new_seed())
        return await self._answer(request, generation, f"cmpl-{uuid.uuid4().hex[:16]}")

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        generation = self._reader().chat(await _body(request), seed=Frontend.new_seed())
        return await self._answer(request, generation, f"chatcmpl-{uuid.uuid4().hex[:16]}")

    def _reader(self) -> Reader:
        runner = self.engine.runner
        return Reader(
            models=self.options.models,
            tokenizer=runner.tokenizer,
            bos_token=runner.bos_token,
            max_model_len=self.model.max_model_len,
        )

    async def _answer(
        self, request: web.Request, generation: Generation, response_id: str
    ) -> web.StreamResponse:
        engine = self.engine
        writer = Writer(
            generation=generation,
            tokenizer=engine.runner.tokenizer,
            response_id=response_id,
            created=int(time.time()),
            fingerprint=FINGERPRINT,
        )
        passage = request.get(_PASSAGE)
        async with self.frontend.generate(engine, generation) as (key, outputs):
            if passage is not None:
                passage.on_cancel(lambda: engine.cancel(key))
            if generation.stream:
                return await _stream(request, writer, outputs)
            return await _whole(request, writer, outputs)


async def _body(request: web.Request) -> object:
    try:
        async with asyncio.timeout(READ_SECONDS):
            return json.loads(await request.read())
    except ValueError as error:
        raise RequestRejected(f"the body isn't JSON: {error}") from error


def _failure(request: web.Request, output: Output) -> Json | None:
    """The error with which a request ends that the gate or the engine cut off; None if it ended well."""
    passage = request.get(_PASSAGE)
    if output.finish is FinishReason.ABORT and passage is not None and passage.cancelled:
        return not_serving("the request was cut off: its resident stops serving")
    if output.finish is FinishReason.ERROR:
        return error_body(output.error or "the engine failed", kind="InternalServerError", code=500)
    return None


def not_serving(message: str) -> Json:
    """The guard's error."""
    return error_body(message, kind="ServiceUnavailableError", code="ResidentNotServing")


async def _whole(request: web.Request, writer: Writer, outputs: Outputs) -> web.Response:
    collected = [output async for output in outputs]
    failure = _failure(request, collected[-1])
    if failure is None:
        return web.json_response(writer.answer(collected), dumps=_dumps)
    if failure["error"]["code"] == "ResidentNotServing":
        return _unavailable(failure)
    return web.json_response(failure, status=HTTPStatus.INTERNAL_SERVER_ERROR)


async def _stream(request: web.Request, writer: Writer, outputs: Outputs) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.prepare(request)
        async for output in outputs:
            failure = _failure(request, output)
            events = [failure] if failure is not None else writer.chunks(output)
            if outputs.ended and failure is None and writer.generation.include_usage:
                events.append(writer.usage_chunk())
            data = "".join(f"data: {_dumps(event)}\n\n" for event in events)
            # An error's event ends a stream: what isn't whole isn't marked as done.
            end = "data: [DONE]\n\n" if outputs.ended and failure is None else ""
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write((data + end).encode())
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write_eof()
    except ConnectionResetError:
        # The client has gone; leaving the generation's context cancels it.
        return response
    return response


def _dumps(value: Any) -> str:  # noqa: ANN401 (as json.dumps)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _unavailable(body: Json) -> web.Response:
    headers = {"Retry-After": "1", "Connection": "close"}
    response = web.json_response(body, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)
    response.force_close()
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors in OpenAI's form."""
    try:
        return await handler(request)
    except RequestRejected as error:
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return _unavailable(error_body(str(error), kind=error.kind, code=error.status, param=error.param))
        body = error_body(str(error), kind=error.kind, code=error.status, param=error.param)
        return web.json_response(body, status=error.status)
    except EngineStopped as error:
        return _unavailable(error_body(str(error), kind="ServiceUnavailableError", code=503))
    except TimeoutError:
        body = error_body("the request wasn't sent in time", kind="TimeoutError", code=408)
        return web.json_response(body, status=HTTPStatus.REQUEST_TIMEOUT)
    except web.HTTPException as error:
        body = error_body(error.reason, kind=error.__class__.__name__.removeprefix("HTTP"), code=error.status)
        return web.json_response(body, status=error.status)


def guard(gate: Gate) -> Middleware:
    """The middleware in front of the public listener.

    Other paths than the allowed ones don't exist. With the gate closed every answer is 503 and the connection is closed, so
    that a kept-alive client connects anew, and elsewhere. Requests under /v1/ are in flight until their response has ended.
    The metrics page passes whatever the gate, and is never in flight: it only tells, and whoever counts an engine's requests
    must not wait for it to serve, nor be drained.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == _METRICS:
            return await handler(request)
        if not request.path.startswith(_ALLOWED[0]) and request.path != _ALLOWED[1]:
            raise web.HTTPNotFound
        if request.path == _ALLOWED[1] and gate.is_open:
            return await handler(request)
        try:
            passage = gate.enter()
        except GateClosed:
            return _unavailable(not_serving("this resident isn't serving at the moment; another one may be"))
        with passage:
            request[_PASSAGE] = passage
            return await handler(request)

    return middleware


def add_openai_routes(app: web.Application, service: Service) -> None:
    """The routes that both listeners have."""
    app.router.add_get("/health", service.health)
    app.router.add_get(_METRICS, service.metrics_page)
    app.router.add_get("/v1/models", service.models)
    app.router.add_post("/v1/completions", service.completions)
    app.router.add_post("/v1/chat/completions", service.chat_completions)


def public_app(service: Service) -> web.Application:
    """What the world may reach."""
    app = web.Application(middlewares=[errors_as_json, guard(service.gate)], client_max_size=MAX_BODY_BYTES)
    add_openai_routes(app, service)
    return app
