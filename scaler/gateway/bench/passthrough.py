"""What the gateway adds to a request: the same requests straight to an engine and through a gateway, in turn.

Client, gateway and engine are processes of their own, so that each has its own event loop:

    python -m scaler.gateway.bench.passthrough --requests 2000

The engine answers at once with a few events, so what is measured is the way and nothing else. With fewer free cores
than processes the figures include waiting for a core.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.gateway.bench.processes import place, started, stay
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.gateway.settings import GatewaySettings
from warmpool.seats import PolicyName, SeatName

_MODEL = "bench"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"token"},"finish_reason":null}]}\n\n'
_LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
_WHOLE = {"choices": [{"index": 0, "message": {"content": "token"}, "finish_reason": "length"}]}
_TOKENS = 8


async def _engine() -> None:
    """Serve an engine that answers at once."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if not json.loads(await request.read()).get("stream"):
            return web.json_response(_WHOLE)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(_TOKENS):
            await response.write(_EVENT)
        await response.write(_LAST)
        await response.write_eof()
        return response

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    await stay(f"http://127.0.0.1:{runner.addresses[0][1]}")


async def _gateway(engine: str) -> None:
    """Serve a gateway in front of `engine`."""
    gateway = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
    policy = PolicyName("bench")
    endpoint = Endpoint(seat=SeatName("bench-0"), uid="bench-0", policy=policy, url=engine, slots=1024)
    async with gateway.serve("127.0.0.1", 0) as url:
        gateway.routes.replace({policy: PolicyRoutes(models=(_MODEL,), endpoints=(endpoint,))})
        await stay(url)


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[str]:
    async with started("scaler.gateway.bench.passthrough", *arguments) as process:
        yield await place(process)


async def _ask(session: aiohttp.ClientSession, url: str, *, stream: bool) -> tuple[float, float]:
    """Return the seconds to the first byte of the body and to its end."""
    begun = time.perf_counter()
    body = {"model": _MODEL, "stream": stream, "messages": [{"role": "user", "content": "x" * 500}]}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        await response.content.readany()
        first = time.perf_counter()
        await response.read()
        response.raise_for_status()
    return first - begun, time.perf_counter() - begun


def _show(name: str, direct: list[float], through: list[float]) -> None:
    def quantile(values: list[float], percent: int) -> float:
        return statistics.quantiles(values, n=100)[percent - 1] * 1000

    cells = [
        f"p{p} {quantile(direct, p):6.2f} → {quantile(through, p):6.2f} (+{quantile(through, p) - quantile(direct, p):5.2f})"
        for p in (50, 90, 99)
    ]
    print(f"{name:28} {'  '.join(cells)} ms")  # noqa: T201 - the bench's output


async def _sequential(session: aiohttp.ClientSession, urls: tuple[str, str], requests: int) -> None:
    for stream in (True, False):
        times: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        for _ in range(requests):
            for url, taken in zip(urls, times, strict=True):
                taken.append(await _ask(session, url, stream=stream))
        direct, through = ([list(column) for column in zip(*taken, strict=True)] for taken in times)
        kind = "stream" if stream else "whole"
        _show(f"{kind}, first byte", direct[0], through[0])
        _show(f"{kind}, all", direct[1], through[1])


async def _together(
    session: aiohttp.ClientSession, urls: tuple[str, str], requests: int, clients: int
) -> None:
    """Measure throughput with several clients."""

    async def client(url: str) -> None:
        for _ in range(requests // clients):
            await _ask(session, url, stream=True)

    for name, url in zip(("straight", "gateway"), urls, strict=True):
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client(url))
        rate = requests // clients * clients / (time.perf_counter() - begun)
        print(f"{name}, {clients} clients: {rate:.0f} streams/s of {_TOKENS} tokens")  # noqa: T201 - the bench's output


async def _measure(requests: int, clients: int) -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(_process("engine"))
        gateway = await stack.enter_async_context(_process("gateway", "--engine", engine))
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=60)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
        await _sequential(session, (engine, gateway), requests)
        await _together(session, (engine, gateway), requests, clients)


def main() -> None:
    """Run the bench, or one of its processes."""
    parser = argparse.ArgumentParser(description="What the gateway adds to a request.")
    parser.add_argument("role", nargs="?", choices=["measure", "engine", "gateway"], default="measure")
    parser.add_argument("--engine", default="", help="URL of the engine, for the gateway's process")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    arguments = parser.parse_args()
    match arguments.role:
        case "engine":
            asyncio.run(_engine())
        case "gateway":
            asyncio.run(_gateway(arguments.engine))
        case _:
            asyncio.run(_measure(arguments.requests, arguments.clients))


if __name__ == "__main__":
    main()
