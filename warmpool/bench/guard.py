"""What the guard adds to a request, in both forms: the same request with and without, in turn, in one run.

    python -m warmpool.bench.guard --requests 3000

One process has three listeners of one ASGI server: the engine's bare app, the same once more, and the app with the middleware. The
forwarding port is a process of its own, in front of the first. The client is this process: it asks each of the four once per round, in
random order, each on a connection that it keeps. The engine answers at once with a few events, so what is measured is the way and
nothing else. The second bare listener says how much of a difference is none.

It needs uvicorn; with uvloop and httptools installed they are used, as engines use them.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any

from warmpool.agent.forwarding import ForwardingPort
from warmpool.engines.deadline import Deadline
from warmpool.guard_middleware import Guard, Settings

TARGETS_MILLISECONDS = {"middleware": 0.05, "port": 0.5}
"""The most that the first byte of an answer may be later by, as the difference of the medians."""

_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"token"},"finish_reason":null}]}\n\n'
_DONE = b"data: [DONE]\n\n"
_BARE, _AGAIN, _MIDDLEWARE, _PORT = "bare", "bare again", "middleware", "port"
_START_SECONDS = 30.0


async def _app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 (as ASGI has it)
    """Answer at once with as many events as the query asks for, as frameworks send them."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    events = json.loads(body)["events"]
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(events):
        await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": _DONE, "more_body": False})


async def _serve_engine(directory: str) -> None:
    """Serve the app three times, and say where."""
    import uvicorn  # noqa: PLC0415 (the other processes do without)

    guard = Guard(_app, Settings(control=f"unix:{directory}/guard.sock"))
    servers, ports = [], []
    for app in (_app, _app, guard):
        listener = socket.create_server(("127.0.0.1", 0))
        ports.append(listener.getsockname()[1])
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
        servers.append((server, listener))
    async with asyncio.TaskGroup() as tasks:
        for server, listener in servers:
            tasks.create_task(server.serve(sockets=[listener]))
        while not all(server.started for server, _ in servers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # uvicorn has nothing to wait for
        guard.gate.open()
        await _stay(*ports)
        for server, _ in servers:
            server.should_exit = True


async def _serve_port(engine: int) -> None:
    """Serve a forwarding port in front of an engine, and say where."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    guard = ForwardingPort("127.0.0.1", port, f"http://127.0.0.1:{engine}")
    await guard.open(deadline=Deadline.after(_START_SECONDS))
    await _stay(port)
    await guard.disconnect()


async def _stay(*ports: int) -> None:
    """Tell the parent where we listen, and stay until it closes our input."""
    _say(*ports)
    await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[list[int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmpool.bench.guard", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline()
        yield [int(port) for port in line.split()]
    finally:
        process.stdin.close()
        await process.wait()


class _Client:
    """One connection that is kept. It blocks, for an event loop would measure itself."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[float, float]:
        """Return the milliseconds to the answer's first event and to its end.

        Raises:
            RuntimeError: it is no whole answer.
        """
        begun = time.perf_counter()
        self._socket.sendall(request)
        read = b""
        first = 0.0
        while not read.endswith(b"0\r\n\r\n"):
            piece = self._socket.recv(65_536)
            read += piece
            if not first and b"data:" in read:
                first = time.perf_counter()
            if not piece:
                raise RuntimeError(f"no whole answer: {read[:200]!r}")
        ended = time.perf_counter()
        if not read.startswith(b"HTTP/1.1 200 ") or not first:
            raise RuntimeError(f"no answer of the engine: {read[:200]!r}")
        return (first - begun) * 1000, (ended - begun) * 1000

    def close(self) -> None:
        self._socket.close()


def _request(events: int) -> bytes:
    body = json.dumps({"events": events, "messages": [{"role": "user", "content": "x" * 2000}]}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer key\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _measure(ports: dict[str, int], rounds: int, events: int) -> dict[str, list[tuple[float, float]]]:
    """Ask everyone once per round, in random order."""
    clients = {name: _Client(port) for name, port in ports.items()}
    names, request, order = list(clients), _request(events), random.Random(1)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds + rounds // 10):
        order.shuffle(names)
        for name in names:
            times = clients[name].ask(request)
            if number >= rounds // 10:  # what is compiled, cached and connected first has been by then
                taken[name].append(times)
    for client in clients.values():
        client.close()
    return taken


def _show(
    taken: dict[str, list[tuple[float, float]]], what: str, of: Callable[[tuple[float, float]], float]
) -> None:
    bare = [of(times) for times in taken[_BARE]]
    for name, each in taken.items():
        values = [of(times) for times in each]
        cells = [
            f"p{percent} {_quantile(values, percent):7.3f} ({_quantile(values, percent) - _quantile(bare, percent):+7.3f})"
            for percent in (50, 90, 99)
        ]
        _say(f"{what:12} {name:12} {'  '.join(cells)} ms")


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def _judge(taken: dict[str, list[tuple[float, float]]]) -> bool:
    met = True
    bare = statistics.median(first for first, _ in taken[_BARE])
    for name, target in TARGETS_MILLISECONDS.items():
        added = statistics.median(first for first, _ in taken[name]) - bare
        met = met and added <= target
        verdict = "met" if added <= target else "missed"
        _say(f"{name}: first byte later by {added:.3f} ms at the median; target {target} ms: {verdict}")
    return met


async def _run(rounds: int, events: int) -> bool:
    with TemporaryDirectory() as directory:
        async with (
            _process("engine", "--directory", directory) as (bare, again, middleware),
            _process("port", "--engine", str(bare)) as (port,),
        ):
            ports = {_BARE: bare, _AGAIN: again, _MIDDLEWARE: middleware, _PORT: port}
            _say(
                f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {rounds} rounds, {events} events an answer"
            )
            taken = _measure(ports, rounds, events)
    _show(taken, "first byte", lambda times: times[0])
    _show(taken, "whole answer", lambda times: times[1])
    return _judge(taken)


def _say(*what: object) -> None:
    """Print at once: the bench's output, and what its processes tell each other."""
    print(*what, flush=True)  # noqa: T201


def main() -> None:
    """Run the bench, or one of its processes. Exits with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="What the guard adds to a request.")
    parser.add_argument("role", nargs="?", choices=["measure", "engine", "port"], default="measure")
    parser.add_argument("--requests", type=int, default=3000, help="rounds; everyone is asked once in each")
    parser.add_argument("--events", type=int, default=8, help="events of an answer")
    parser.add_argument("--engine", type=int, default=0, help="port of the engine, for the port's process")
    parser.add_argument("--directory", default="", help="where the engine's process puts its control socket")
    arguments = parser.parse_args()
    match arguments.role:
        case "engine":
            with asyncio.Runner(loop_factory=_engines_loop()) as runner:
                runner.run(_serve_engine(arguments.directory))
        case "port":
            asyncio.run(_serve_port(arguments.engine))
        case _:
            sys.exit(0 if asyncio.run(_run(arguments.requests, arguments.events)) else 1)


def _engines_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop that engines' servers run in, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 (optional)
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
