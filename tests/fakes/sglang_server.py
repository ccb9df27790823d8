"""An SGLang without a model, after the source of release 0.5.23, with its traps: orders that end the whole server.

`pause_generation` without a mode ends requests; `release_memory_occupation` while anything runs is a failed assertion in the
scheduler, taking memory that isn't away is a missing key, and both take the server down.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.fakes.engine_server import FakeEngine, run

KV_GIB = 0.001


@dataclass
class FakeSglang(FakeEngine):
    """One such server.

    saver, backup: it was started with --enable-memory-saver, --enable-weights-cpu-backup. speculative: with speculative decoding.
    has_ready, has_loads, has_metrics: older versions lack the first two, and the page needs --enable-metrics.
    """

    saver: bool = True
    backup: bool = True
    speculative: str | None = None
    has_ready: bool = True
    has_loads: bool = True
    has_metrics: bool = False
    tells_config: bool = True
    up: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.away: set[str] = set()
        self.freed: set[str] = set()
        self.stopped = False  # the scheduler, which acts a moment after the answer

    def routes(self, app: web.Application) -> None:
        add = app.router
        add.add_get("/health", self.health)
        if self.has_ready:
            add.add_get("/ready", self.ready)
        if self.has_loads:
            add.add_get("/v1/loads", self.loads)
        if self.has_metrics:
            add.add_get("/metrics", self.metrics)
        if self.tells_config:
            add.add_get("/server_info", self.server_info)
        add.add_post("/pause_generation", self.pause)
        add.add_post("/continue_generation", self.go_on)
        add.add_post("/release_memory_occupation", self.release)
        add.add_post("/resume_memory_occupation", self.take)

    def computes(self) -> None:
        assert not self.freed, f"computing without {self.freed}"

    async def step(self) -> None:
        await super().step()
        async with self.changed:
            await self.changed.wait_for(lambda: not self.stopped)

    async def health(self, _request: web.Request) -> web.Response:
        """It computes a token, and so calls a paused server unhealthy for good."""
        if self.paused:
            self.up = False
        return web.Response(status=200 if self.up else 503)

    async def ready(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.up and not self.paused else 503)

    async def loads(self, _request: web.Request) -> web.Response:
        ranks = [{"dp_rank": 0, "num_running_reqs": self.running, "num_waiting_reqs": 0}]
        return web.json_response({"version": "0.5.23", "loads": ranks})

    async def metrics(self, _request: web.Request) -> web.Response:
        labels = '{engine_type="unified",model_name="chat",tp_rank="0"}'
        return web.Response(
            text=f"sglang:num_running_reqs{labels} {self.running}.0\nsglang:num_queue_reqs{labels} 0.0\n"
        )

    async def server_info(self, _request: web.Request) -> web.Response:
        told: dict[str, Any] = {
            "version": "0.5.23",
            "dtype": "auto",
            "tp_size": 2,
            "enable_memory_saver": self.saver,
            "enable_weights_cpu_backup": self.backup,
            "speculative_algorithm": self.speculative,
            "internal_states": [{"memory_usage": {"weight": 15.25, "kvcache": KV_GIB}}],
        }
        return web.json_response(told)

    async def pause(self, request: web.Request) -> web.Response:
        mode = json.loads(await request.text()).get("mode", "abort")
        self.paused = True
        if mode == "abort":
            self.abort_all()
        else:
            asyncio.get_running_loop().call_soon(self._stop)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    def _stop(self) -> None:
        self.stopped = self.paused

    async def go_on(self, _request: web.Request) -> web.Response:
        self.paused = self.stopped = False
        await self.note()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def release(self, request: web.Request) -> web.StreamResponse:
        tags = set(json.loads(await request.text()).get("tags") or ("kv_cache", "weights", "cuda_graph"))
        if self.running:
            return self._die(request)
        self.away |= tags
        if self.saver:
            self.freed |= tags
        return web.json_response(None)

    async def take(self, request: web.Request) -> web.StreamResponse:
        tags = set(json.loads(await request.text()).get("tags") or ("kv_cache", "weights", "cuda_graph"))
        if not tags <= self.away:
            return self._die(request)
        self.away -= tags
        self.freed -= tags
        return web.json_response(None)

    def _die(self, request: web.Request) -> web.StreamResponse:
        self.dead = True
        return self._break_off(request)


if __name__ == "__main__":
    run(FakeSglang)
