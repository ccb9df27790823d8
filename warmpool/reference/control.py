"""The control surface, for the agent alone: vLLM's pause routes as vLLM has them, the guard's, the start's phases, metrics."""

import asyncio
import os
from concurrent.futures import Future
from http import HTTPStatus

from aiohttp import web

from warmpool.reference.errors import NotEnoughMemory, WrongEngineState
from warmpool.reference.scheduler import PauseMode, SchedulerState
from warmpool.reference.server import MAX_BODY_BYTES, VERSION, Service, add_openai_routes, errors_as_json

ORDER_SECONDS = 60.0
"""An order that only waits for the step that runs now, and for memory, is done long before."""
_TAGS = frozenset({"weights", "kv_cache"})


class Control:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def app(self) -> web.Application:
        """The control listener's application."""
        app = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY_BYTES)
        add_openai_routes(app, self._service)
        app.add_routes(
            [
                web.post("/pause", self.pause),
                web.post("/resume", self.resume),
                web.get("/is_paused", self.is_paused),
                web.post("/release_kv_cache_memory", self.release_kv),
                web.post("/wake_up", self.wake_up),
                web.get("/is_sleeping", self.is_sleeping),
                web.get("/version", self.version),
                web.get("/guard", self.guard),
                web.post("/guard/open", self.open_guard),
                web.post("/guard/close", self.close_guard),
                web.post("/guard/abort", self.abort),
                web.get("/emberpool/startup", self.startup),
            ]
        )
        return app

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause?mode=abort|wait|keep&clear_cache=true|false.

        There is no prefix cache, so there is nothing that `clear_cache` could clear. With `wait` the answer comes when the last
        running request has ended; the deadline is the caller's.
        """
        mode = request.query.get("mode", PauseMode.ABORT)
        if mode not in set(PauseMode):
            return _wrong(
                f"mode: one of {', '.join(PauseMode)} is wanted, not {mode}", HTTPStatus.BAD_REQUEST
            )
        if request.query.get("clear_cache", "true").lower() not in {"true", "false", "1", "0"}:
            return _wrong("clear_cache: true or false is wanted", HTTPStatus.BAD_REQUEST)
        try:
            await asyncio.wrap_future(self._service.engine.pause(PauseMode(mode)))
        except WrongEngineState as error:
            return _wrong(str(error))
        return web.json_response({"status": "paused"})

    async def resume(self, _request: web.Request) -> web.Response:
        """POST /resume."""
        return await self._order(self._service.engine.resume(), {"status": "resumed"})

    async def release_kv(self, _request: web.Request) -> web.Response:
        """POST /release_kv_cache_memory: 500 unless a pause is complete and the memory is there."""
        answer = await self._order(self._service.engine.give_back_kv(), {"status": "released"})
        if answer.status == HTTPStatus.OK:
            self._service.metrics.sleep(asleep=True)
        return answer

    async def wake_up(self, request: web.Request) -> web.Response:
        """POST /wake_up?tags=kv_cache: takes the KV memory and resumes scheduling. Weights are never away.

        On CUDA the answer comes when first requests can be computed; the rest of the memory is taken in the background, and
        `kvTakenBytes` of GET /emberpool/startup tells how much there is.
        """
        tags = set(request.query.getall("tags", ["kv_cache"]))
        if not tags <= _TAGS:
            return _wrong(
                f"tags: {', '.join(sorted(_TAGS))} are known, not {', '.join(sorted(tags))}",
                HTTPStatus.BAD_REQUEST,
            )
        if "kv_cache" not in tags:
            return web.json_response({"status": "awake"})
        answer = await self._order(self._service.engine.wake_up(), {"status": "awake"})
        if answer.status == HTTPStatus.OK:
            self._service.metrics.sleep(asleep=False)
        return answer

    async def is_paused(self, _request: web.Request) -> web.Response:
        """GET /is_paused: true once a pause is complete."""
        state, _ = await self._state()
        return web.json_response({"is_paused": state is SchedulerState.PAUSED})

    async def is_sleeping(self, _request: web.Request) -> web.Response:
        """GET /is_sleeping: true while the KV memory is given back."""
        _, kv_is_taken = await self._state()
        return web.json_response({"is_sleeping": not kv_is_taken})

    async def _state(self) -> tuple[SchedulerState, bool]:
        async with asyncio.timeout(ORDER_SECONDS):
            return await asyncio.wrap_future(self._service.engine.state())

    async def version(self, _request: web.Request) -> web.Response:
        """GET /version."""
        return web.json_response({"version": VERSION, "engine": "emberpool-reference"})

    async def guard(self, _request: web.Request) -> web.Response:
        """GET /guard."""
        return self._guard()

    async def open_guard(self, _request: web.Request) -> web.Response:
        """POST /guard/open."""
        self._service.gate.open()
        return self._guard()

    async def close_guard(self, _request: web.Request) -> web.Response:
        """POST /guard/close: requests that are in flight go on."""
        self._service.gate.close()
        return self._guard()

    async def abort(self, _request: web.Request) -> web.Response:
        """POST /guard/abort: cut off what is in flight; streams end with an error event."""
        aborted = self._service.gate.cancel_all()
        return self._guard(aborted=aborted)

    def _guard(self, **facts: int) -> web.Response:
        gate = self._service.gate
        return web.json_response({"open": gate.is_open, "inFlight": gate.in_flight, **facts})

    async def startup(self, _request: web.Request) -> web.Response:
        """GET /emberpool/startup: how the process came up; seconds count from the process's start."""
        service, startup = self._service, self._service.startup
        facts = {
            "pid": os.getpid(),
            "model": service.options.models[0],
            "phase": str(startup.phase),
            "phases": startup.as_json(),
        }
        if startup.is_ready:
            runner = service.engine.runner
            facts |= {
                "kvBytes": runner.kv_bytes,
                "kvTakenBytes": runner.kv_taken_bytes,
                "weightsBytes": runner.weights_bytes,
            }
        return web.json_response(facts)

    async def _order(self, order: "Future[None]", answer: dict[str, str]) -> web.Response:
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                await asyncio.wrap_future(order)
        except WrongEngineState as error:
            return _wrong(str(error))
        except NotEnoughMemory as error:
            return _wrong(f"{error} (hint: {error.hint})")
        return web.json_response(answer)


def _wrong(message: str, status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR) -> web.Response:
    return web.json_response({"error": message}, status=status)
