"""nginx in front of two guards, without a gateway of ours: the flow that tests/data/gateway/nginx.json recorded.

`python -m tests.integration.gateway.flow` records it anew; it needs nginx.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scaler.gateway.bench.engine import Engine, answer
from tests.fakes.engine_server import free_port
from warmpool.agent.forwarding import ForwardingPort
from warmpool.engines.deadline import Deadline

RECORD = Path(__file__).parents[2] / "data" / "gateway" / "nginx.json"
NGINX = shutil.which("nginx")
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


async def flow(binary: str) -> dict[str, Any]:
    """Ask through nginx once, and return what passed on each side."""
    with TemporaryDirectory() as directory:
        async with guards() as (_, _, first, second):
            taps = [Tap(first), Tap(second)]
            async with taps[0].serve(), taps[1].serve():
                port = free_port()
                text = SETTINGS.format(
                    directory=directory, port=port, first=taps[0].port, second=taps[1].port
                )
                path = Path(directory) / "nginx.conf"
                path.write_text(text, "utf-8")
                log = str(Path(directory) / "early.log")
                process = await asyncio.create_subprocess_exec(
                    binary, "-p", directory, "-e", log, "-c", str(path)
                )
                try:
                    got = await _first(port)
                    while not taps[0].sent:  # it takes turns, so one of two meets the closed guard first
                        got = await exchange(port, ASKED)
                finally:
                    process.terminate()
                    await process.wait()
    return {
        "asked": ASKED.decode(),
        "toClosed": taps[0].sent[0].decode(),
        "fromClosed": taps[0].answered[0].decode(),
        "toOpen": taps[1].sent[-1].decode(),
        "fromOpen": taps[1].answered[-1].decode(),
        "got": got.decode(),
    }


async def _first(port: int) -> bytes:
    async with asyncio.timeout(10):
        while True:
            try:
                return await exchange(port, ASKED)
            except OSError:
                await asyncio.sleep(0.02)


def expected() -> bytes:
    return answer(SEED, TOKENS)


if __name__ == "__main__":
    if NGINX is None:
        sys.exit("nginx isn't here")
    RECORD.write_text(json.dumps(asyncio.run(flow(NGINX)), indent=1) + "\n", "utf-8")
