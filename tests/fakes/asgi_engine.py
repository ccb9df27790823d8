"""An ASGI app that behaves as an engine's server does, computes nothing, and does to each request what its query asks for.

`/v1/completions?do=stream&events=3` answers with three events, for example. It is served by a real server, in the test's own loop.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
EVENT = b'data: {"choices":[{"text":"token"}]}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Call:
    """One request that reached the engine."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    sent: int = 0
    scope: Message = field(default_factory=dict)

    def header(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each == name]


class ClientLeft(Exception):
    """The engine noticed that its client had gone."""


@dataclass
class AsgiEngine:
    """The engine. What it waits for, the test gives: `go` lets one step of a waiting answer happen.

    Attributes:
        calls: the requests that reached it.
        running: requests that it is at.
        hung_up: requests whose client it saw going.
        cancelled: requests whose call was cancelled.
        go: one step per release.
    """

    calls: list[Call] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    hung_up: int = 0
    cancelled: int = 0
    go: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        match scope["type"]:
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await self._talk(scope, receive, send)
            case _:
                await self._serve(scope, receive, send)

    def paths(self) -> list[str]:
        return [call.target.partition("?")[0] for call in self.calls]

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Message, receive: Any, send: Any) -> None:
        query = scope["query_string"].decode()
        asked = dict(parse_qsl(query))
        call = Call(
            method=scope["method"],
            target=scope["path"] + (f"?{query}" if query else ""),
            headers=[(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]],
            scope=scope,
        )
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await _Answer(self, call, receive, send).give(asked)
        except ClientLeft:
            self.hung_up += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _talk(self, scope: Message, receive: Any, send: Any) -> None:
        """Echo messages; `close:CODE` closes."""
        self.calls.append(Call(method="WEBSOCKET", target=scope["path"], headers=[]))
        self.running += 1
        try:
            await receive()
            offered = scope.get("subprotocols") or [None]
            await send({"type": "websocket.accept", "subprotocol": offered[0]})
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                if text is not None and text.startswith("close:"):
                    await send({"type": "websocket.close", "code": int(text.partition(":")[2])})
                    return
                data = {"text": text} if text is not None else {"bytes": message["bytes"]}
                await send({"type": "websocket.send", **data})
            self.hung_up += 1
        finally:
            self.running -= 1


class _Answer:
    """One answer."""

    def __init__(self, engine: AsgiEngine, call: Call, receive: Any, send: Any) -> None:
        self._engine = engine
        self._call = call
        self._receive = receive
        self._send = send

    async def give(self, asked: dict[str, str]) -> None:
        do = asked.get("do", "whole")
        if do not in {"ignore", "early"}:
            await self._read()
        answers: dict[str, Callable[[dict[str, str]], Awaitable[None]]] = {
            "whole": self._whole,
            "early": self._whole,
            "ignore": self._read_late,
            "stream": self._stream,
            "die": self._stream,
            "die-early": self._die,
            "half": self._half,
            "flood": self._flood,
            "hold": self._hold,
            "stubborn": self._stubborn,
        }
        await answers[do](asked)

    async def _read(self) -> None:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self._call.body += message.get("body", b"")
            self._call.pieces += 1
            more = message.get("more_body", False)

    async def _read_late(self, asked: dict[str, str]) -> None:
        await self._engine.go.acquire()
        await self._read()
        await self._whole(asked)

    async def _die(self, asked: dict[str, str]) -> None:
        raise RuntimeError(f"scripted death before an answer: {asked}")

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _piece(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._call.sent += len(body)

    async def _whole(self, asked: dict[str, str]) -> None:
        body = json.dumps({"got": len(self._call.body)}).encode()
        body = asked["answer"].encode() if "answer" in asked else body
        status = 413 if asked.get("do") == "early" else int(asked.get("status", "200"))
        extra = json.loads(asked.get("headers", "{}"))
        length = {} if status in {204, 304} else {"content-length": str(len(body))}
        raw = [(b"content-type", b"application/json")] if status not in {204, 304} else []
        raw += [(name.encode(), value.encode()) for name, value in length.items()]
        raw += [(name.encode(), value.encode()) for name, values in extra.items() for value in values]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        await self._piece(b"" if self._call.method == "HEAD" or not length else body, more=False)

    async def _stream(self, asked: dict[str, str]) -> None:
        await self._begin(200, {"content-type": "text/event-stream; charset=utf-8"})
        for _ in range(int(asked.get("events", "3"))):
            if "wait" in asked:
                await self._or_leave(self._engine.go.acquire())
            await self._piece(EVENT)
        if "piece" in asked:
            await self._piece(asked["piece"].encode())
            await self._or_leave(self._engine.go.acquire())
        if asked["do"] == "die":
            raise RuntimeError("scripted death in the middle of a stream")
        await self._piece(asked["tail"].encode() if "tail" in asked else DONE, more=False)

    async def _half(self, asked: dict[str, str]) -> None:
        length = {} if "chunked" in asked else {"content-length": "1000"}
        await self._begin(200, {"content-type": "application/json", **length})
        await self._piece(b'{"half": ')
        if "dies" in asked:
            raise RuntimeError("scripted death in the middle of a body")
        await self._hold(asked)

    async def _flood(self, asked: dict[str, str]) -> None:
        await self._begin(200, {"content-type": asked.get("type", "application/octet-stream")})
        block = EVENT * 400
        while self._call.sent < int(asked["bytes"]):
            await self._piece(block)
        await self._piece(b"", more=False)

    async def _hold(self, asked: dict[str, str]) -> None:
        """Compute until the client leaves."""
        del asked
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientLeft

    async def _or_leave(self, step: Any) -> None:
        """Take a step, unless the client leaves before, as frameworks do it: with a task that listens."""
        async with asyncio.TaskGroup() as tasks:
            stepping, listening = tasks.create_task(step), tasks.create_task(self._receive())
            done, _ = await asyncio.wait({stepping, listening}, return_when=asyncio.FIRST_COMPLETED)
            stepping.cancel()
            listening.cancel()
        if stepping not in done:
            raise ClientLeft

    async def _stubborn(self, asked: dict[str, str]) -> None:
        """Swallow one cancellation, as careless handlers do."""
        del asked
        await self._begin(200, {"content-type": "text/event-stream"})
        await self._piece(EVENT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._engine.cancelled += 1
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(app: Any, *, http: str = "httptools", port: int = 0) -> AsyncIterator[str]:
    """Serve an app as uvicorn does, in this loop, and give its URL. Raises SystemExit if the app's start fails, as uvicorn ends then."""
    config = uvicorn.Config(
        app, http=http, ws="websockets-sansio", log_config=None, access_log=False, lifespan="auto"
    )
    config.load()
    life = LifespanOn(config)
    await life.startup()
    if life.should_exit:
        raise SystemExit(3)
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state=life.state),  # type: ignore[call-arg]
        "127.0.0.1",
        port,
    )
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(tuple(state.tasks), timeout=5)
        for connection in tuple(state.connections):
            connection.shutdown()
        await life.shutdown()
