"""A process that behaves as an engine does towards its agent, computes nothing, and misbehaves on demand.

Routes, statuses and the meaning of pausing follow what a real vLLM 0.32 was seen to do: `/pause` without `mode=wait` ends what
runs, a paused engine holds requests, `/release_kv_cache_memory` before a completed pause is a 500, `/wake_up?tags=kv_cache`
resumes scheduling, `/health` is 200 while paused. Tokens are a function of seed and prompt.

Script (`--script JSON`, or POSTed to `/script` on the control listener while it runs):
  faults: {"POST /pause": {"do": "hang" | "refuse" | "lie" | "crash" | "slow", "seconds": s, "times": n}}
          hang: never answers; refuse: 500; lie: 200 and nothing done; crash: exit status 3; slow: waits, then does it
  wrongTokens: answers with other tokens than it should
  loadSeconds: from the first answer of /health until it is ready
  tokenSeconds: per token
  kvBytes, weightsBytes: what it claims its KV memory and its weights to be
  cannotPark: why it can't be parked; it then refuses to
  exitStatus: ends with it at once, instead of starting
A POST of `forget` empties the list of calls. `GET /script` tells which calls came, and when it was computing.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KV_BYTES = 1_048_576
WEIGHTS_BYTES = 4096


def expected_tokens(seed: int, prompt: str, count: int) -> list[int]:
    """What an engine with this seed answers."""
    return [
        int.from_bytes(hashlib.sha256(f"{seed}/{prompt}/{place}".encode()).digest()[:2], "big")
        for place in range(count)
    ]


def expected_logprobs(tokens: list[int]) -> list[float]:
    """What it says of their probabilities."""
    return [-token / 65536 for token in tokens]


class ScriptedEngine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.script: dict[str, Any] = {"loadSeconds": 0.05, "tokenSeconds": 0.001} | json.loads(
            options.script
        )
        self.born = time.monotonic()
        self.calls: list[str] = []
        self.computed: list[list[float]] = []
        self.open = False
        self.in_flight = 0
        self.running = 0
        self.waiting = 0
        self.paused = False
        self.kv_held = True
        self.weights = "Held"
        self.parked_bytes = 0
        self.guarded: set[asyncio.Event] = set()
        self.aborts: set[asyncio.Event] = set()
        self.changed = asyncio.Condition()

    @property
    def ready(self) -> bool:
        return time.monotonic() - self.born >= float(self.script["loadSeconds"])

    async def note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # ---------------------------------------------------------------- faults

    @web.middleware
    async def misbehave(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        route = f"{request.method} {request.path}"
        if request.path == "/script":
            return await handler(request)
        query = f"?{request.query_string}" if request.query_string else ""
        self.calls.append(route + query)
        fault = self.script.get("faults", {}).get(route)
        if not fault or fault.get("times", 1) <= 0:
            return await handler(request)
        if "times" in fault:
            fault["times"] -= 1
        match fault["do"]:
            case "hang":
                await asyncio.Event().wait()
            case "refuse":
                return web.json_response({"error": {"message": "scripted refusal"}}, status=500)
            case "lie":
                return web.json_response({"status": "ok"})
            case "crash":
                sys.stderr.write("scripted crash\n")
                sys.stderr.flush()
                os._exit(3)
            case "slow":
                await asyncio.sleep(fault["seconds"])
        return await handler(request)

    async def get_script(self, _request: web.Request) -> web.Response:
        return web.json_response({"calls": self.calls, "computed": self.computed})

    async def post_script(self, request: web.Request) -> web.Response:
        change = await request.json()
        if change.pop("forget", False):
            self.calls.clear()
        self.script |= change
        return web.json_response({})

    # ---------------------------------------------------------------- control

    async def health(self, _request: web.Request) -> web.Response:
        if not self.ready:
            return web.json_response({"status": "loading", "phase": "weights"}, status=503)
        return web.json_response({"status": "ok"})

    async def startup(self, _request: web.Request) -> web.Response:
        phases = {"import": 0.1, "weights": self.script["loadSeconds"]}
        return web.json_response(
            {
                "phases": phases,
                "pid": os.getpid(),
                "kvBytes": self.script.get("kvBytes", KV_BYTES),
                "weightsBytes": self.weights_bytes,
                "parkedBytes": self.parked_bytes,
                "ownership": self.script.get("ownership", {"engineVersion": "scripted"}),
            }
        )

    @property
    def weights_bytes(self) -> int:
        return int(self.script.get("weightsBytes", WEIGHTS_BYTES))

    async def memory(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "weights": self.weights,
                "weightsTakenBytes": self.weights_bytes if self.weights == "Held" else 0,
                "kvTakenBytes": self.script.get("kvBytes", KV_BYTES) if self.kv_held else 0,
                "parkedBytes": self.parked_bytes,
                "cannotPark": self.script.get("cannotPark", ""),
            }
        )

    async def pause(self, request: web.Request) -> web.Response:
        if request.query.get("mode") != "wait":
            for abort in tuple(self.aborts):
                abort.set()
        self.paused = True
        async with self.changed:
            await self.changed.wait_for(lambda: self.running == 0 or not self.paused)
        return web.json_response({"status": "paused"})

    async def is_paused(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused and self.running == 0})

    async def resume(self, _request: web.Request) -> web.Response:
        self.paused = False
        await self.note()
        return web.json_response({"status": "resumed"})

    async def release(self, _request: web.Request) -> web.Response:
        if not self.paused or self.running or not self.kv_held:
            return web.json_response({"error": {"message": "pause first"}}, status=500)
        self.kv_held = False
        return web.json_response({"status": "released"})

    async def sleep(self, request: web.Request) -> web.Response:
        if self.script.get("cannotPark") or (request.query.get("level"), request.query.get("mode")) != (
            "1",
            "wait",
        ):
            return web.json_response({"error": {"message": "it can't be parked like that"}}, status=500)
        await self.pause(request)
        self.kv_held, self.weights, self.parked_bytes = False, "Parked", self.weights_bytes
        return web.json_response({"status": "sleeping", "level": 1})

    async def wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        if tags == ["weights"]:
            self.weights = "Held"  # its copy in host memory stays
            return web.json_response({"status": "awake" if self.kv_held else "sleeping", "tags": tags})
        if tags != ["kv_cache"] or self.weights != "Held":
            return web.json_response(
                {"error": {"message": f"weights are {self.weights}, tags are {tags}"}}, status=500
            )
        self.kv_held = True
        return await self.resume(request)

    async def is_sleeping(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": not self.kv_held or self.weights != "Held"})

    async def guard(self, _request: web.Request) -> web.Response:
        return web.json_response({"open": self.open, "inFlight": self.in_flight})

    async def guard_open(self, request: web.Request) -> web.Response:
        self.open = True
        return await self.guard(request)

    async def guard_close(self, request: web.Request) -> web.Response:
        self.open = False
        return await self.guard(request)

    async def guard_abort(self, request: web.Request) -> web.Response:
        for abort in tuple(self.guarded):
            abort.set()
        return await self.guard(request)

    async def metrics(self, _request: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.options.model}"}}'
        text = "".join(
            f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {float(value)}\n"
            for name, value in (
                ("num_requests_running", self.running),
                ("num_requests_waiting", self.waiting),
            )
        )
        return web.Response(text=text)

    # ---------------------------------------------------------------- completions

    async def guarded_completions(self, request: web.Request) -> web.StreamResponse:
        if not self.open:
            error = {"error": {"message": "not serving", "code": "ResidentNotServing"}}
            return web.json_response(error, status=503, headers={"Retry-After": "1", "Connection": "close"})
        abort = asyncio.Event()
        self.in_flight += 1
        self.guarded.add(abort)
        try:
            return await self.answer(request, abort)
        finally:
            self.in_flight -= 1
            self.guarded.discard(abort)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, asyncio.Event())

    async def answer(self, request: web.Request, abort: asyncio.Event) -> web.StreamResponse:
        body = await request.json()
        if body["model"] != self.options.model:
            return web.json_response({"error": {"message": f"no model {body['model']}"}}, status=404)
        tokens = expected_tokens(self.options.seed, body["prompt"], body["max_tokens"])
        if self.script.get("wrongTokens"):
            tokens = [token + 1 for token in tokens]
        self.waiting += 1
        try:
            async with self.changed:
                await self.changed.wait_for(lambda: not self.paused)
        finally:
            self.waiting -= 1
        async with self.computing(abort):
            if body.get("stream"):
                return await self.stream(request, tokens, abort)
            if await self.generate(tokens, abort):
                return web.json_response({"error": {"message": "aborted"}}, status=500)
            choice = {"index": 0, "text": "", "token_ids": tokens}
            if "logprobs" in body:
                choice["logprobs"] = {"token_logprobs": expected_logprobs(tokens)}
            return web.json_response({"choices": [choice]})

    @contextlib.asynccontextmanager
    async def computing(self, abort: asyncio.Event) -> Any:
        assert self.kv_held, "computing without KV memory"
        assert self.weights == "Held", "computing without weights"
        self.running += 1
        self.aborts.add(abort)
        interval = [time.time(), time.time() + 3600]
        self.computed.append(interval)
        try:
            yield
        finally:
            interval[1] = time.time()
            self.aborts.discard(abort)
            self.running -= 1
            await self.note()

    async def generate(self, tokens: list[int], abort: asyncio.Event) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(abort.wait(), self.script["tokenSeconds"] * len(tokens))
        return abort.is_set()

    async def stream(
        self, request: web.Request, tokens: list[int], abort: asyncio.Event
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for token in tokens:
            if await self.generate([token], abort):  # an error's event ends a stream; no [DONE] follows it
                await response.write(b'data: {"error": {"message": "aborted", "code": "Aborted"}}\n\n')
                return response
            await response.write(f'data: {{"choices": [{{"token_ids": [{token}]}}]}}\n\n'.encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def control_app(engine: ScriptedEngine) -> web.Application:
    app = web.Application(middlewares=[engine.misbehave])
    app.router.add_get("/script", engine.get_script)
    app.router.add_post("/script", engine.post_script)
    app.router.add_get("/health", engine.health)
    app.router.add_get("/emberpool/startup", engine.startup)
    app.router.add_get("/emberpool/memory", engine.memory)
    app.router.add_get("/is_paused", engine.is_paused)
    app.router.add_get("/is_sleeping", engine.is_sleeping)
    app.router.add_get("/guard", engine.guard)
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_post("/pause", engine.pause)
    app.router.add_post("/resume", engine.resume)
    app.router.add_post("/release_kv_cache_memory", engine.release)
    app.router.add_post("/sleep", engine.sleep)
    app.router.add_post("/wake_up", engine.wake_up)
    app.router.add_post("/guard/open", engine.guard_open)
    app.router.add_post("/guard/close", engine.guard_close)
    app.router.add_post("/guard/abort", engine.guard_abort)
    app.router.add_post("/v1/completions", engine.completions)
    return app


async def serve(options: argparse.Namespace) -> None:
    engine = ScriptedEngine(options)
    if "exitStatus" in engine.script:
        sys.stderr.write("scripted end at start\n")
        sys.exit(engine.script["exitStatus"])
    public = web.Application()
    public.router.add_post("/v1/completions", engine.guarded_completions)
    for app, port in ((control_app(engine), options.control_port), (public, options.port)):
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, options.host, port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--model", default="chat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--script", default="{}")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
