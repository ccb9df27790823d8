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

Tests start many of these, so its HTTP is its own: to import aiohttp computes for longer than to start all the rest.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

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


# -------------------------------------------------------------------- HTTP


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query_string: str
    body: bytes
    connection: "Connection"

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.query_string)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Response:
    body: bytes
    status: int = 200
    content_type: str = "application/json; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def answered(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(body).encode(), status, headers=headers or {})


Handler = Callable[[Request], Awaitable[Response | None]]
"""None: it has been streamed."""
Routes = Mapping[tuple[str, str], Handler]


class Connection(asyncio.Protocol):
    """Answers one request after another; who closes the connection takes back what it asked."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._received = bytearray()
        self._answering: asyncio.Task[None] | None = None
        self._transport: Any = None
        self._streaming = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next()

    def connection_lost(self, _: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()

    def _next(self) -> None:
        if self._answering is None and (read := read_request(self._received, self)) is not None:
            request, length, close = read
            del self._received[:length]
            loop = asyncio.get_running_loop()
            self._answering = loop.create_task(self._answer(request, close=close))

    async def _answer(self, request: Request, *, close: bool) -> None:
        try:
            response = await self._handler(request)
        except Exception:  # noqa: BLE001 - as servers do
            traceback.print_exc()
            if self._streaming:
                self._transport.abort()
                return
            response = Response(b"500: Internal Server Error", 500, "text/plain; charset=utf-8")
        if response is None:
            self.stream(b"")
            self._streaming = False
        else:
            headers = {"Content-Type": response.content_type, **response.headers}
            self._head(response.status, {"Content-Length": str(len(response.body)), **headers})
            self._transport.write(response.body)
            close = close or headers.get("Connection") == "close"
        self._answering = None
        if close:
            self._transport.close()
        else:
            self._next()

    def begin_stream(self) -> None:
        self._streaming = True
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})

    def stream(self, piece: bytes) -> None:
        """Send a piece of what has been begun; an empty one is its end."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._transport.write("\r\n".join([*lines, "", ""]).encode())


def read_request(received: bytearray, connection: Connection) -> tuple[Request, int, bool] | None:
    """Return the first request, how many bytes it takes and whether it is the connection's last; None if it isn't whole yet."""
    head_length = received.find(b"\r\n\r\n")
    if head_length < 0:
        return None
    first, *lines = received[:head_length].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, end = read_chunks(received, head_length + 4)
    else:
        end = head_length + 4 + int(headers.get("content-length", 0))
        body = bytes(received[head_length + 4 : end])
    if end < 0 or len(received) < end:
        return None
    request = Request(method, unquote(path), query, body, connection)
    return request, end, headers.get("connection", "").lower() == "close"


def read_chunks(received: bytearray, at: int) -> tuple[bytes, int]:
    """Return a chunked body and where it ends, -1 while its last chunk hasn't come."""
    body = b""
    while (line_end := received.find(b"\r\n", at)) >= 0:
        size = int(received[at:line_end].split(b";")[0], 16)
        at = line_end + 2 + size + 2
        body += received[line_end + 2 : at - 2]
        if size == 0:
            return body, at
    return body, -1


async def routed(routes: Routes, request: Request) -> Response | None:
    handler = routes.get((request.method, request.path))
    if handler is not None:
        return await handler(request)
    status = 405 if any(path == request.path for _, path in routes) else 404
    return Response(f"{status}: {HTTPStatus(status).phrase}".encode(), status, "text/plain; charset=utf-8")


# -------------------------------------------------------------------- the engine


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

    async def misbehave(self, routes: Routes, request: Request) -> Response | None:
        handler = partial(routed, routes)
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
                return answered({"error": {"message": "scripted refusal"}}, status=500)
            case "lie":
                return answered({"status": "ok"})
            case "crash":
                sys.stderr.write("scripted crash\n")
                sys.stderr.flush()
                os._exit(3)
            case "slow":
                await asyncio.sleep(fault["seconds"])
        return await handler(request)

    async def get_script(self, _request: Request) -> Response:
        return answered({"calls": self.calls, "computed": self.computed})

    async def post_script(self, request: Request) -> Response:
        change = request.json()
        if change.pop("forget", False):
            self.calls.clear()
        self.script |= change
        return answered({})

    # ---------------------------------------------------------------- control

    async def health(self, _request: Request) -> Response:
        if not self.ready:
            return answered({"status": "loading", "phase": "weights"}, status=503)
        return answered({"status": "ok"})

    async def startup(self, _request: Request) -> Response:
        phases = {"import": 0.1, "weights": self.script["loadSeconds"]}
        return answered(
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

    async def memory(self, _request: Request) -> Response:
        return answered(
            {
                "weights": self.weights,
                "weightsTakenBytes": self.weights_bytes if self.weights == "Held" else 0,
                "kvTakenBytes": self.script.get("kvBytes", KV_BYTES) if self.kv_held else 0,
                "parkedBytes": self.parked_bytes,
                "cannotPark": self.script.get("cannotPark", ""),
            }
        )

    async def pause(self, request: Request) -> Response:
        if request.query.get("mode") != ["wait"]:
            for abort in tuple(self.aborts):
                abort.set()
        self.paused = True
        async with self.changed:
            await self.changed.wait_for(lambda: self.running == 0 or not self.paused)
        return answered({"status": "paused"})

    async def is_paused(self, _request: Request) -> Response:
        return answered({"is_paused": self.paused and self.running == 0})

    async def resume(self, _request: Request) -> Response:
        self.paused = False
        await self.note()
        return answered({"status": "resumed"})

    async def release(self, _request: Request) -> Response:
        if not self.paused or self.running or not self.kv_held:
            return answered({"error": {"message": "pause first"}}, status=500)
        self.kv_held = False
        return answered({"status": "released"})

    async def sleep(self, request: Request) -> Response:
        if self.script.get("cannotPark") or (request.query.get("level"), request.query.get("mode")) != (
            ["1"],
            ["wait"],
        ):
            return answered({"error": {"message": "it can't be parked like that"}}, status=500)
        await self.pause(request)
        self.kv_held, self.weights, self.parked_bytes = False, "Parked", self.weights_bytes
        return answered({"status": "sleeping", "level": 1})

    async def wake_up(self, request: Request) -> Response:
        tags = request.query.get("tags", [])
        if tags == ["weights"]:
            self.weights = "Held"  # its copy in host memory stays
            return answered({"status": "awake" if self.kv_held else "sleeping", "tags": tags})
        if tags != ["kv_cache"] or self.weights != "Held":
            return answered(
                {"error": {"message": f"weights are {self.weights}, tags are {tags}"}}, status=500
            )
        self.kv_held = True
        return await self.resume(request)

    async def is_sleeping(self, _request: Request) -> Response:
        return answered({"is_sleeping": not self.kv_held or self.weights != "Held"})

    async def guard(self, _request: Request) -> Response:
        return answered({"open": self.open, "inFlight": self.in_flight})

    async def guard_open(self, request: Request) -> Response:
        self.open = True
        return await self.guard(request)

    async def guard_close(self, request: Request) -> Response:
        self.open = False
        return await self.guard(request)

    async def guard_abort(self, request: Request) -> Response:
        for abort in tuple(self.guarded):
            abort.set()
        return await self.guard(request)

    async def metrics(self, _request: Request) -> Response:
        labels = f'{{engine="0",model_name="{self.options.model}"}}'
        text = "".join(
            f"# TYPE vllm:{name} gauge\nvllm:{name}{labels} {float(value)}\n"
            for name, value in (
                ("num_requests_running", self.running),
                ("num_requests_waiting", self.waiting),
            )
        )
        return Response(text.encode(), content_type="text/plain; charset=utf-8")

    # ---------------------------------------------------------------- completions

    async def guarded_completions(self, request: Request) -> Response | None:
        if not self.open:
            error = {"error": {"message": "not serving", "code": "ResidentNotServing"}}
            return answered(error, status=503, headers={"Retry-After": "1", "Connection": "close"})
        abort = asyncio.Event()
        self.in_flight += 1
        self.guarded.add(abort)
        try:
            return await self.answer(request, abort)
        finally:
            self.in_flight -= 1
            self.guarded.discard(abort)

    async def completions(self, request: Request) -> Response | None:
        return await self.answer(request, asyncio.Event())

    async def answer(self, request: Request, abort: asyncio.Event) -> Response | None:
        body = request.json()
        if body["model"] != self.options.model:
            return answered({"error": {"message": f"no model {body['model']}"}}, status=404)
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
                await self.stream(request, tokens, abort)
                return None
            if await self.generate(tokens, abort):
                return answered({"error": {"message": "aborted"}}, status=500)
            choice = {"index": 0, "text": "", "token_ids": tokens}
            if "logprobs" in body:
                choice["logprobs"] = {"token_logprobs": expected_logprobs(tokens)}
            return answered({"choices": [choice]})

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

    async def stream(self, request: Request, tokens: list[int], abort: asyncio.Event) -> None:
        answer = request.connection
        answer.begin_stream()
        for token in tokens:
            if await self.generate([token], abort):  # an error's event ends a stream; no [DONE] follows it
                answer.stream(b'data: {"error": {"message": "aborted", "code": "Aborted"}}\n\n')
                return
            answer.stream(f'data: {{"choices": [{{"token_ids": [{token}]}}]}}\n\n'.encode())
        answer.stream(b"data: [DONE]\n\n")


def control_routes(engine: ScriptedEngine) -> Routes:
    return {
        ("GET", "/script"): engine.get_script,
        ("POST", "/script"): engine.post_script,
        ("GET", "/health"): engine.health,
        ("GET", "/emberpool/startup"): engine.startup,
        ("GET", "/emberpool/memory"): engine.memory,
        ("GET", "/is_paused"): engine.is_paused,
        ("GET", "/is_sleeping"): engine.is_sleeping,
        ("GET", "/guard"): engine.guard,
        ("GET", "/metrics"): engine.metrics,
        ("POST", "/pause"): engine.pause,
        ("POST", "/resume"): engine.resume,
        ("POST", "/release_kv_cache_memory"): engine.release,
        ("POST", "/sleep"): engine.sleep,
        ("POST", "/wake_up"): engine.wake_up,
        ("POST", "/guard/open"): engine.guard_open,
        ("POST", "/guard/close"): engine.guard_close,
        ("POST", "/guard/abort"): engine.guard_abort,
        ("POST", "/v1/completions"): engine.completions,
    }


async def serve(options: argparse.Namespace) -> None:
    engine = ScriptedEngine(options)
    if "exitStatus" in engine.script:
        sys.stderr.write("scripted end at start\n")
        sys.exit(engine.script["exitStatus"])
    control = partial(engine.misbehave, control_routes(engine))
    public = partial(routed, {("POST", "/v1/completions"): engine.guarded_completions})
    loop = asyncio.get_running_loop()
    for handler, port in ((control, options.control_port), (public, options.port)):
        await loop.create_server(partial(Connection, handler), options.host, port)
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
