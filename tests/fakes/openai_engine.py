"""A small OpenAI-style streaming server on real sockets whose answers are scripted, for tests of what talks to engines.

Runs inside a test (`async with OpenAIEngine().serve() as url`) or as a process of its own:
`python tests/fakes/openai_engine.py --port 0`, which prints its URL.
"""

import argparse
import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from aiohttp import web
from multidict import CIMultiDict


class Behaviour(StrEnum):
    ANSWER = "Answer"
    HANG = "Hang"
    """Takes the request and says nothing."""
    FREEZE = "Freeze"
    """The same, and its health is no longer answered either."""
    ERROR = "Error"
    """500 with an OpenAI-style error."""
    BAD_REQUEST = "BadRequest"
    """400 with an OpenAI-style error."""
    GUARD_CLOSED = "GuardClosed"
    """The guard's 503."""
    RESET = "Reset"
    """Breaks the connection before any byte."""
    HEADERS_THEN_RESET = "HeadersThenReset"
    """Sends headers and the role event, then breaks the connection."""
    DIE = "Die"
    """Breaks the connection in the middle of an event, after some tokens."""
    DIE_WHOLE = "DieWhole"
    """Breaks the connection in the middle of an answer that is no event stream."""
    FLOOD = "Flood"
    """Streams as fast as the reader takes it, for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    behaviour: Behaviour = Behaviour.ANSWER
    tokens: int = 3
    first_seconds: float = 0.0
    interval_seconds: float = 0.0
    gated: bool = False
    """The answer waits for `OpenAIEngine.gate`."""
    whole: bool = False
    """The answer comes in one piece, whatever was asked for."""


@dataclass(slots=True, kw_only=True)
class Seen:
    path: str
    headers: CIMultiDict[str]
    body: bytes


@dataclass(slots=True)
class OpenAIEngine:
    script: Script = field(default_factory=Script)
    plan: deque[Script] = field(default_factory=deque)
    """Scripts of the next requests; `script` rules once it is empty."""
    seen: list[Seen] = field(default_factory=list)
    in_flight: int = 0
    highest_in_flight: int = 0
    disconnected: int = 0
    sent_bytes: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @asynccontextmanager
    async def serve(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            yield f"http://{host}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def until(self, true: Callable[["OpenAIEngine"], bool], *, seconds: float = 5.0) -> None:
        """Wait until something is true of the engine."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(lambda: true(self))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            if self.script.behaviour is Behaviour.FREEZE:
                await asyncio.Event().wait()
            return web.json_response({"object": "list", "data": []})
        script = self.plan.popleft() if self.plan else self.script
        self.in_flight += 1
        self.highest_in_flight = max(self.highest_in_flight, self.in_flight)
        try:
            body = await request.read() if (request.content_length or 0) < 1024**2 else await _drain(request)
            self.seen.append(Seen(path=request.raw_path, headers=CIMultiDict(request.headers), body=body))
            await self._tell()
            return await self._answer(request, script, json.loads(body))
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected += 1
            raise
        finally:
            self.in_flight -= 1
            await self._tell()

    async def _answer(
        self, request: web.BaseRequest, script: Script, body: dict[str, object]
    ) -> web.StreamResponse:
        if script.gated:
            await self.gate.wait()
        await asyncio.sleep(script.first_seconds)
        match script.behaviour:
            case Behaviour.HANG | Behaviour.FREEZE:
                await asyncio.Event().wait()
            case Behaviour.ERROR:
                return _error(500, "InternalServerError", "broken")
            case Behaviour.BAD_REQUEST:
                return _error(400, "BadRequestError", "max_tokens is wrong")
            case Behaviour.GUARD_CLOSED:
                headers = {"Retry-After": "1", "Connection": "close"}
                return _error(503, "ResidentNotServing", "not serving", headers)
            case Behaviour.RESET:
                assert request.transport is not None
                request.transport.abort()
            case Behaviour.DIE_WHOLE:
                response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
                await response.prepare(request)
                await response.write(b"x" * 1000)
                assert request.transport is not None
                request.transport.close()
                return response
        chat = request.path.endswith("chat/completions")
        if (body.get("stream") and not script.whole) or script.behaviour is not Behaviour.ANSWER:
            return await self._stream(request, script, chat=chat)
        text = "t" * script.tokens
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return web.json_response({"id": "x", "choices": [{"index": 0, "finish_reason": "length", **choice}]})

    async def _stream(self, request: web.BaseRequest, script: Script, *, chat: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat:
            await self._send(response, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        if script.behaviour is Behaviour.HEADERS_THEN_RESET:
            assert request.transport is not None
            request.transport.abort()
        tokens = 0
        while tokens < script.tokens or script.behaviour is Behaviour.FLOOD:
            piece = "t" * (8192 if script.behaviour is Behaviour.FLOOD else 1)
            await self._send(
                response, {"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]}
            )
            tokens += 1
            await asyncio.sleep(script.interval_seconds)
        if script.behaviour is Behaviour.DIE:
            assert request.transport is not None
            await response.write(b'data: {"choices": [{"te')
            request.transport.close()
            return response
        await self._send(response, {"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse, event: dict[str, object]) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        await response.write(data)
        self.sent_bytes += len(data)


async def _drain(request: web.BaseRequest) -> bytes:
    parts = []
    while part := await request.content.readany():
        parts.append(part)
    return b"".join(parts)


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> web.StreamResponse:
    error = {"message": message, "type": code, "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between tokens")
    parser.add_argument("--behaviour", type=Behaviour, default=Behaviour.ANSWER)
    arguments = parser.parse_args()
    script = Script(
        tokens=arguments.tokens, interval_seconds=arguments.interval, behaviour=arguments.behaviour
    )
    async with OpenAIEngine(script=script).serve(port=arguments.port) as url:
        print(url, flush=True)  # noqa: T201 - the caller reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
