"""What stands between client and engine, each as a process of its own on one core."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import psutil
from aiohttp import web
from prometheus_client import CollectorRegistry

from scaler.gateway.bench import processes
from scaler.gateway.bench.engine import Engine
from scaler.gateway.garbage import keep_garbage_quiet
from scaler.gateway.observe import SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.gateway.settings import GatewaySettings
from warmpool.seats import PolicyName, SeatName

_SLOTS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process that listens.

    Attributes:
        port: where.
        process: for its CPU time and memory.
    """

    port: int
    process: psutil.Process

    @property
    def cpu_seconds(self) -> float:
        """CPU time that it has taken so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def mib(self) -> float:
        """Memory that it holds."""
        return float(self.process.memory_info().rss) / 2**20


@asynccontextmanager
async def started(cores: Sequence[int], *arguments: str) -> AsyncIterator[Running]:
    """Start one of this bench's own processes on some cores."""
    async with processes.started("scaler.gateway.bench", *arguments) as process:
        os.sched_setaffinity(process.pid, cores)
        port = int(await processes.place(process))
        yield Running(port=port, process=psutil.Process(process.pid))


# ------------------------------------------------------------------ processes of our own


async def serve_engine() -> None:
    """Be the engine."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=1024)
    async with server:
        await processes.stay(server.sockets[0].getsockname()[1])


async def serve_gateway(engine: int) -> None:
    """Be the gateway in front of an engine; without any it holds what comes."""
    gateway = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
    policy = PolicyName("chat")
    url = f"http://127.0.0.1:{engine}"
    endpoint = Endpoint(seat=SeatName("seat"), uid="u", policy=policy, url=url, slots=_SLOTS)
    async with gateway.serve("127.0.0.1", 0) as served:
        routes = PolicyRoutes(models=("m",), endpoints=(endpoint,) if engine else ())
        gateway.routes.replace({policy: routes})
        async with asyncio.TaskGroup() as tasks:
            quiet = tasks.create_task(keep_garbage_quiet(lambda: gateway.idle))
            await processes.stay(int(served.rpartition(":")[2]))
            quiet.cancel()


async def serve_bare(engine: int) -> None:
    """Be the least that can be written with aiohttp: read, send on, pass pieces on."""
    url = f"http://127.0.0.1:{engine}"
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.read()
            headers = {"Content-Type": request.headers["Content-Type"]}
            async with session.post(url + request.raw_path, data=body, headers=headers) as answer:
                stream = web.StreamResponse(status=answer.status)
                stream.headers["Content-Type"] = answer.headers["Content-Type"]
                await stream.prepare(request)
                while piece := await answer.content.readany():
                    await stream.write(piece)
                await stream.write_eof()
                return stream

        runner = web.ServerRunner(web.Server(handle, access_log=None))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
            await processes.stay(runner.addresses[0][1])
        finally:
            await runner.cleanup()


# ------------------------------------------------------------------ nginx

_NGINX: Final = """\
daemon off; master_process off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/f;
  uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024; keepalive_requests 1000000;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def nginx() -> str | None:
    """Return where nginx is, or None."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@asynccontextmanager
async def nginx_started(
    binary: str, engine: int, cores: Sequence[int], directory: Path
) -> AsyncIterator[Running]:
    """Start nginx in front of an engine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    settings = directory / "nginx.conf"
    text = _NGINX.format(directory=directory, engine=engine, port=port)
    await asyncio.to_thread(settings.write_text, text)
    arguments = ("-p", str(directory), "-e", str(directory / "early.log"), "-c", str(settings))
    process = await asyncio.create_subprocess_exec(binary, *arguments)
    try:
        os.sched_setaffinity(process.pid, cores)
        async with asyncio.timeout(processes.START_SECONDS):
            await _until_listening(port)
        yield Running(port=port, process=psutil.Process(process.pid))
    finally:
        process.terminate()
        await process.wait()


async def _until_listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
