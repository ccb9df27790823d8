"""A vLLM without a model, put together as vLLM puts its server together: Starlette, middleware by name, handlers that listen for
their client's leaving. It runs as a process of its own (`python -m uvicorn starlette_vllm:app`) and imports nothing of Emberpool.
"""

import asyncio
import functools
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response | None]]
TOKEN_SECONDS = 0.002


class Engine:
    """What computes: nothing. It counts."""

    def __init__(self) -> None:
        self.running = 0
        self.ended_early = 0
        self.going = asyncio.Event()
        self.going.set()

    async def tokens(self, count: int) -> AsyncIterator[int]:
        await self.going.wait()
        self.running += 1
        made = 0
        try:
            for made in range(1, count + 1):
                await asyncio.sleep(TOKEN_SECONDS)
                yield made
        finally:
            self.running -= 1
            self.ended_early += made < count


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
    app.state.engine = Engine()
    yield {"from": "the app's life"}


def with_cancellation(handler: Handler) -> Handler:
    """Run a handler until its client leaves. What it started goes on if only the call is cancelled."""

    @functools.wraps(handler)
    async def wrapper(request: Request) -> Response | None:
        async def leaves() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        loop = asyncio.get_running_loop()
        handling, listening = loop.create_task(handler(request)), loop.create_task(leaves())  # type: ignore[arg-type]
        done, pending = await asyncio.wait([handling, listening], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return handling.result() if handling in done else JSONResponse(None)

    return wrapper


async def read_first(request: Request) -> Response:
    """Read the body, as frameworks do before they call a handler, and answer."""
    request.state.body = json.loads(await request.body())
    return await completions(request)  # type: ignore[return-value]


@with_cancellation
async def completions(request: Request) -> Response:
    body, engine = request.state.body, request.app.state.engine
    tokens = engine.tokens(body["max_tokens"])
    if body.get("stream"):
        return StreamingResponse(events(tokens), media_type="text/event-stream")
    ids = [token async for token in tokens]
    choice = {"index": 0, "text": "x" * len(ids), "finish_reason": "length", "token_ids": ids}
    return JSONResponse({"choices": [choice]})


async def events(tokens: AsyncIterator[int]) -> AsyncIterator[str]:
    async for token in tokens:
        choice = {"index": 0, "text": "x", "finish_reason": None, "token_ids": [token]}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n"
    yield "data: [DONE]\n\n"


async def health(_request: Request) -> Response:
    return Response()


async def metrics(request: Request) -> Response:
    running = request.app.state.engine.running
    return PlainTextResponse(
        f'vllm:num_requests_running{{engine="0"}} {running}.0\nvllm:num_requests_waiting{{engine="0"}} 0.0\n'
    )


async def pause(request: Request) -> Response:
    request.app.state.engine.going.clear()
    while request.query_params.get("mode") == "wait" and request.app.state.engine.running:
        await asyncio.sleep(TOKEN_SECONDS)
    return JSONResponse({"status": "paused"})


async def resume(request: Request) -> Response:
    request.app.state.engine.going.set()
    return JSONResponse({"status": "resumed"})


async def is_paused(request: Request) -> Response:
    return JSONResponse({"is_paused": not request.app.state.engine.going.is_set()})


async def known(request: Request) -> Response:
    """What the tests ask about the process itself."""
    engine: Engine = request.app.state.engine
    facts: dict[str, Any] = {
        "modules": sorted(sys.modules),
        "running": engine.running,
        "endedEarly": engine.ended_early,
        "state": request.scope["state"]["from"],
    }
    return JSONResponse(facts)


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/completions", read_first, methods=["POST"]),
        Route("/pause", pause, methods=["POST"]),
        Route("/resume", resume, methods=["POST"]),
        Route("/is_paused", is_paused),
        Route("/known", known),
    ],
)
app.add_middleware(CORSMiddleware, allow_origins=["*"])
for _name in os.environ.get("MIDDLEWARE", "").split():
    _module, _, _class = _name.rpartition(".")
    app.add_middleware(getattr(importlib.import_module(_module), _class))
