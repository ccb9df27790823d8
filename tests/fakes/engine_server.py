"""A server in the test's own loop that speaks as engines do, computes nothing, and breaks in every way that a listener can.

Faults are set by route, as {"POST /pause": Fault("hang")}; the ways are in `Fault`. Tokens are a function of seed and prompt.
"""

import argparse
import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FAULTS = ("hang", "refuse", "cut", "reset", "drip", "html", "huge", "garbled", "elsewhere")
"""Ways in which any route can break; `lie` is one more, which means something else on each."""


@dataclass
class Fault:
    """How a route breaks.

    hang: the request is read and never answered; refuse: 500; lie: 200 and nothing done; cut: the connection is closed instead of
    an answer; reset: it is reset in the middle of the body; drip: a body that never ends, a byte at a time; html: 200 with a
    page for people; huge: a body without end; garbled: compressed, it says, and it isn't; elsewhere: a redirect; status: another
    status; slow: waits first, then does it; doom: 500, and the next request on the same connection is cut, as uvicorn does.
    """

    do: str
    times: int = 1_000_000
    body: str = "{}"
    status: int = 200
    seconds: float = 0.0


@dataclass
class FakeEngine:
    """What all such servers share: the listener, faults, completions."""

    model: str = "chat"
    seed: int = 1
    token_seconds: float = 0.002
    tells_ids: bool = True
    tells_logprobs: bool = True
    faults: dict[str, Fault] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    hung_up: int = 0
    running: int = 0
    held: int = 0
    paused: bool = False
    wrong_tokens: bool = False
    dead: bool = False
    address: tuple[str, int] = ("127.0.0.1", 0)

    def __post_init__(self) -> None:
        self.changed = asyncio.Condition()  # bound to a loop by its first use
        self.aborts: set[asyncio.Event] = set()
        self.url = ""
        self._doomed: set[int] = set()
        self._runner: web.AppRunner | None = None

    # ---------------------------------------------------------------- listener

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._misbehave])
        self.routes(app)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, *self.address).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def routes(self, app: web.Application) -> None:
        """Add the routes of this kind."""

    def asked(self, route: str) -> list[str]:
        """The calls of one route, with their queries."""
        return [call for call in self.calls if call.partition("?")[0] == route]

    # ---------------------------------------------------------------- faults

    @web.middleware
    async def _misbehave(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        route = f"{request.method} {request.path}"
        self.calls.append(f"{route}?{request.query_string}" if request.query_string else route)
        self.bodies.append(await request.text())
        if self.dead or id(request.transport) in self._doomed:
            return self._break_off(request)
        fault = self.faults.get(route)
        try:
            if fault is None or fault.times <= 0:
                return await handler(request)
            fault.times -= 1
            return await self._broken(request, handler, fault)
        except asyncio.CancelledError:
            self.hung_up += 1
            raise

    async def _broken(self, request: web.Request, handler: Handler, fault: Fault) -> web.StreamResponse:
        match fault.do:
            case "hang":
                await asyncio.Event().wait()
            case "slow":
                await asyncio.sleep(fault.seconds)
                return await handler(request)
            case "cut":
                return self._break_off(request)
            case "doom":
                self._doomed.add(id(request.transport))
                return web.json_response({"error": {"message": "scripted fault"}}, status=500)
            case "reset":
                return await self._reset(request)
            case "drip":
                return await self._endless(request, b" ", 0.005)
            case "huge":
                return await self._endless(request, b" " * 2**20, 0)
        return _wrong_answer(fault)

    def _break_off(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"half": ')
        return self._break_off(request)

    async def _endless(self, request: web.Request, piece: bytes, seconds: float) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(piece)
            await asyncio.sleep(seconds)

    # ---------------------------------------------------------------- completions

    def tokens(self, prompt: str, count: int) -> list[int]:
        """What this engine answers."""
        found = [
            int.from_bytes(hashlib.sha256(f"{self.seed}/{prompt}/{place}".encode()).digest()[:2], "big")
            for place in range(count)
        ]
        return [token + 1 for token in found] if self.wrong_tokens else found

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        if "logprobs" in body and not self.tells_logprobs:
            return web.json_response({"error": {"message": "logprobs: not here", "code": 400}}, status=400)
        if body["model"] != self.model:
            message = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": message, "code": 404}}, status=404)
        self.held += 1
        try:
            async with self.changed:
                await self.changed.wait_for(lambda: not self.paused)
        finally:
            self.held -= 1
        tokens = self.tokens(body["prompt"], body["max_tokens"])
        async with self._computing() as abort:
            if body.get("stream"):
                return await self._stream(request, tokens, abort)
            done = [token async for token in self._generate(tokens, abort)]
            choice = self._choice(done, self._finish(done, tokens))
            if "logprobs" in body:
                choice["logprobs"] = {"token_logprobs": [-token / 1e4 for token in done]}
            return web.json_response({"choices": [choice]})

    @asynccontextmanager
    async def _computing(self) -> AsyncIterator[asyncio.Event]:
        abort = asyncio.Event()
        self.computes()
        self.running += 1
        self.aborts.add(abort)
        try:
            yield abort
        finally:
            self.aborts.discard(abort)
            self.running -= 1
            await self.note()

    def computes(self) -> None:
        """See that it may."""

    async def _generate(self, tokens: list[int], abort: asyncio.Event) -> AsyncIterator[int]:
        for token in tokens:
            await self.step()
            if abort.is_set():
                return
            yield token

    async def step(self) -> None:
        """Take the time of one token."""
        await asyncio.sleep(self.token_seconds)

    async def _stream(
        self, request: web.Request, tokens: list[int], abort: asyncio.Event
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        done = 0
        async for token in self._generate(tokens, abort):
            done += 1
            finish = "length" if done == len(tokens) else None
            await response.write(_event({"choices": [self._choice([token], finish)]}))
        if done < len(tokens):
            await response.write(_event({"choices": [self._choice([], "abort")]}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _choice(self, tokens: list[int], finish: str | None) -> dict[str, Any]:
        choice = {
            "index": 0,
            "text": "".join(chr(97 + token % 26) for token in tokens),
            "finish_reason": finish,
        }
        return choice | ({"token_ids": tokens} if self.tells_ids else {})

    def _finish(self, done: list[int], wanted: list[int]) -> str:
        return "length" if len(done) == len(wanted) else "abort"

    async def note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.running == 0)

    def abort_all(self) -> None:
        for abort in tuple(self.aborts):
            abort.set()


def _wrong_answer(fault: Fault) -> web.Response:
    match fault.do:
        case "refuse":
            return web.json_response({"error": {"message": "scripted refusal"}}, status=500)
        case "lie":
            return web.Response(text=fault.body, content_type="application/json")
        case "status":
            return web.Response(text=fault.body, status=fault.status)
        case "html":
            return web.Response(text="<html><body>Welcome</body></html>", content_type="text/html")
        case "garbled":
            return web.Response(body=b"{}", headers={"Content-Encoding": "gzip"})
        case "elsewhere":
            return web.Response(status=307, headers={"Location": "/v1/models"})
    raise AssertionError(fault.do)


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def run(make: Callable[..., FakeEngine]) -> None:
    """Serve as a process of its own: `--port N`, and `--set name=JSON` for its settings; faults as {route: how}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    settings = {name: json.loads(value) for name, _, value in (each.partition("=") for each in options.set)}
    faults = {route: Fault(do, times=1, seconds=30) for route, do in settings.pop("faults", {}).items()}

    async def serve() -> None:
        async with make(address=(options.host, options.port), faults=faults, **settings):
            await asyncio.Event().wait()

    asyncio.run(serve())


@asynccontextmanager
async def half_open() -> AsyncIterator[str]:
    """A listener that the kernel answers for: connections are made, nobody reads them."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
