"""The control surface, for the agent alone: vLLM's pause and sleep routes as vLLM has them, the guard's, the start's phases, metrics.

What moves memory answers once it has moved. `/emberpool/memory` tells at any moment where everything is, also while it moves.
"""

import asyncio
import os
from concurrent.futures import Future
from http import HTTPStatus

from aiohttp import web

from warmpool.reference.errors import (
    NotEnoughHostMemory,
    NotEnoughMemory,
    WeightsDamaged,
    WrongEngineState,
)
from warmpool.reference.place import Place
from warmpool.reference.scheduler import PauseMode, SchedulerState
from warmpool.reference.server import MAX_BODY_BYTES, Service, add_openai_routes, errors_as_json
from warmpool.reference.version import VERSION
from warmpool.wire import ownership_to_json

ORDER_SECONDS = 60.0
"""An order that only waits for the step that runs now, and for memory, is done long before."""
MOVE_SECONDS = 600.0
"""Weights may take so long on their way: page-locking memory for a large model takes minutes on some machines."""
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
                web.post("/sleep", self.sleep),
                web.post("/wake_up", self.wake_up),
                web.get("/is_sleeping", self.is_sleeping),
                web.get("/version", self.version),
                web.get("/guard", self.guard),
                web.post("/guard/open", self.open_guard),
                web.post("/guard/close", self.close_guard),
                web.post("/guard/abort", self.abort),
                web.get("/emberpool/memory", self.memory),
                web.post("/emberpool/capture", self.capture),
                web.get("/emberpool/startup", self.startup),
            ]
        )
        return app

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause?mode=abort|wait|keep&clear_cache=true|false.

        There is no prefix cache, so there is nothing that `clear_cache` could clear. With `wait` the answer comes when the last
        running request has ended; the deadline is the caller's.
        """
        if request.query.get("clear_cache", "true").lower() not in {"true", "false", "1", "0"}:
            return _wrong("clear_cache: true or false is wanted", HTTPStatus.BAD_REQUEST)
        return await self._pause(request) or web.json_response({"status": "paused"})

    async def _pause(self, request: web.Request) -> web.Response | None:
        """Pause as the query says. Returns None once the pause is complete, else why it isn't."""
        mode = request.query.get("mode", PauseMode.ABORT)
        if mode not in set(PauseMode):
            return _wrong(
                f"mode: one of {', '.join(PauseMode)} is wanted, not {mode}", HTTPStatus.BAD_REQUEST
            )
        try:
            await asyncio.wrap_future(self._service.engine.pause(PauseMode(mode)))
        except WrongEngineState as error:
            return _wrong(str(error))
        return None

    async def resume(self, _request: web.Request) -> web.Response:
        """POST /resume."""
        return await self._order(self._service.engine.resume()) or web.json_response({"status": "resumed"})

    async def release_kv(self, _request: web.Request) -> web.Response:
        """POST /release_kv_cache_memory: 500 unless a pause is complete and the memory is there."""
        wrong = await self._order(self._service.engine.give_back_kv())
        return wrong or web.json_response({"status": "released"})

    async def sleep(self, request: web.Request) -> web.Response:
        """POST /sleep?level=0|1&mode=abort|wait|keep: pauses; at level 1 the weights go to host memory, and the KV memory is dropped.

        Level 2 throws weights away, and nothing here would load them again. Tags are refused, for what is asked for with them would
        not be what happens.
        """
        level = request.query.get("level", "1")
        if level not in {"0", "1"} or "tags" in request.query:
            return _wrong(
                "level: 0 or 1 is wanted, and no tags; POST /release_kv_cache_memory releases KV memory alone",
                HTTPStatus.BAD_REQUEST,
            )
        wrong = await self._pause(request)
        if wrong is None and level == "1":
            wrong = await self._order(self._service.engine.park(), MOVE_SECONDS)
        return wrong or web.json_response({"status": "sleeping", "level": int(level)})

    async def wake_up(self, request: web.Request) -> web.Response:
        """POST /wake_up?tags=weights&tags=kv_cache: brings back what is named, or everything that is away.

        With the KV memory scheduling resumes. On CUDA the answer comes when first requests can be computed; the rest of the memory is
        taken in the background, and `kvTakenBytes` of GET /emberpool/memory tells how much there is.
        """
        tags = request.query.getall("tags", [])
        wanted = set(tags) or _TAGS
        if not wanted <= _TAGS:
            return _wrong(
                f"tags: {', '.join(sorted(_TAGS))} are known, not {', '.join(sorted(wanted))}",
                HTTPStatus.BAD_REQUEST,
            )
        engine = self._service.engine
        wrong: web.Response | None = None
        if "weights" in wanted:
            wrong = await self._order(engine.unpark(), MOVE_SECONDS)
        if "kv_cache" in wanted and wrong is None:
            wrong = await self._order(engine.wake_up())
        if wrong is not None:
            return wrong
        status = "sleeping" if self._away() else "awake"
        return web.json_response({"status": status, "tags": tags or None})

    def _away(self) -> bool:
        """Whether something is not in device memory."""
        runner = self._service.engine.runner
        return runner.weights_place is not Place.HELD or not runner.kv_is_taken

    def _note_sleep(self) -> None:
        parked = self._service.engine.runner.weights_place is Place.PARKED
        self._service.metrics.sleep(asleep=self._away(), parked=parked)

    async def is_paused(self, _request: web.Request) -> web.Response:
        """GET /is_paused: true once a pause is complete."""
        state, _ = await self._state()
        return web.json_response({"is_paused": state is SchedulerState.PAUSED})

    async def is_sleeping(self, _request: web.Request) -> web.Response:
        """GET /is_sleeping: true while the KV memory is given back, and so while the weights are parked."""
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
                "parkedBytes": runner.parked_bytes,
                "graphs": str(runner.graphs),
                "ownership": ownership_to_json(runner.ownership),
            }
        return web.json_response(facts)

    async def memory(self, _request: web.Request) -> web.Response:
        """GET /emberpool/memory: where the weights are, what is taken, and why they can't be parked if they can't."""
        runner = self._service.engine.runner
        return web.json_response(
            {
                "weights": str(runner.weights_place),
                "weightsTakenBytes": runner.weights_taken_bytes,
                "kvTakenBytes": runner.kv_taken_bytes,
                "parkedBytes": runner.parked_bytes,
                "cannotPark": runner.cannot_park,
            }
        )

    async def capture(self, _request: web.Request) -> web.Response:
        """POST /emberpool/capture: capture the CUDA graphs that are pending, while nothing else is to be computed.

        Whoever hangs up ends it; what has been captured stays, and the next call goes on.
        """
        engine = self._service.engine
        wrong = await self._order(engine.capture(), MOVE_SECONDS)
        return wrong or web.json_response({"graphs": str(engine.runner.graphs)})

    async def _order(self, order: "Future[None]", seconds: float = ORDER_SECONDS) -> web.Response | None:
        """Wait for an order. Returns None once it is carried out, else why it isn't."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wrap_future(order)
        except WrongEngineState as error:
            return _wrong(str(error))
        except WeightsDamaged as error:
            return _wrong(str(error), HTTPStatus.GONE)
        except (NotEnoughMemory, NotEnoughHostMemory) as error:
            return _wrong(f"{error} (hint: {error.hint})")
        self._note_sleep()
        return None


def _wrong(message: str, status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR) -> web.Response:
    return web.json_response({"error": message}, status=status)
