"""A vLLM 0.32 without a model: the routes, statuses and bodies that a real one was recorded with (tests/data/engines).

What differs between versions and configurations can be set: whether the development routes are there, which parameters of `/pause` and
`/sleep` are obeyed, whether the allocator from which KV memory can be released is on, whether there is a device at all.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.engine_server import FakeEngine, run

DATA = Path(__file__).resolve().parents[1] / "data"
PAGE = (DATA / "engine-pages" / "vllm-0.32-paused.txt").read_text()
MODES = ("abort", "wait", "keep")


@dataclass
class FakeVllm(FakeEngine):
    """One such server.

    dev_mode: the control routes are there. lists_routes: /openapi.json is. obeys_mode: `/pause` reads its mode from the query;
    without, it always ends what runs. has_release: /release_kv_cache_memory is there. device: there is one; without, a
    release is a 500. pool: it was started with sleep mode. knows_tags: what `/sleep` does with tags: "obeyed", "listed" (the
    route list names them and level 1 runs all the same) or "ignored". kv_connector: it was started with one. encoder_mode: of a model
    with pictures. kv_bytes: what it claims its KV memory to be. tells_components: it has the sleep metric of versions after 0.32.
    resumes_in_part: waking a part starts the scheduler, as before 0.32.
    """

    version: str = "0.32.0"
    dev_mode: bool = True
    lists_routes: bool = True
    tells_config: bool = True
    obeys_mode: bool = True
    has_release: bool = True
    device: bool = True
    pool: bool = True
    knows_tags: str = "ignored"
    kv_connector: bool = False
    encoder_mode: str = ""
    kv_bytes: int = 1 << 20
    tells_components: bool = False
    resumes_in_part: bool = False
    ready: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asleep: set[str] = set()
        self.told_offloaded = (
            False  # what the front end last noted of a sleep, whatever the executor made of it
        )

    def routes(self, app: web.Application) -> None:
        add = app.router
        add.add_get("/version", self.get_version)
        add.add_get("/health", self.health)
        add.add_get("/metrics", self.metrics)
        if self.lists_routes:
            add.add_get("/openapi.json", self.openapi)
        if not self.dev_mode:
            return
        if self.tells_config:
            add.add_get("/server_info", self.server_info)
        add.add_get("/is_paused", self.is_paused)
        add.add_get("/is_sleeping", self.is_sleeping)
        add.add_post("/pause", self.pause)
        add.add_post("/resume", self.resume)
        add.add_post("/sleep", self.sleep)
        add.add_post("/wake_up", self.wake_up)
        if self.has_release:
            add.add_post("/release_kv_cache_memory", self.release)

    def computes(self) -> None:
        assert "kv_cache" not in self.asleep or not self.device, "computing without KV memory"
        assert "weights" not in self.asleep, "computing without weights"

    # ---------------------------------------------------------------- what it tells

    async def get_version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def openapi(self, _request: web.Request) -> web.Response:
        names: dict[str, list[str]] = {"/pause": ["mode", "clear_cache"], "/wake_up": [], "/is_paused": []}
        names["/sleep"] = ["level", "mode"] + (["tags"] if self.knows_tags != "ignored" else [])
        if self.has_release:
            names["/release_kv_cache_memory"] = []
        listed = names if self.dev_mode else {}
        paths = {
            path: {"post": {"parameters": [{"name": name, "in": "query"} for name in query]}}
            for path, query in {**listed, "/v1/completions": []}.items()
        }
        return web.json_response({"openapi": "3.1.0", "paths": paths})

    async def server_info(self, _request: web.Request) -> web.Response:
        switches = {"enable_sleep_mode": self.pool, "enable_cumem_allocator": self.pool}
        config: dict[str, Any] = {
            "model_config": {**switches, "dtype": "torch.bfloat16"},
            "parallel_config": {"tensor_parallel_size": 2},
            "kv_transfer_config": None,
            "speculative_config": None,
        }
        if self.encoder_mode:
            config["model_config"] |= {"multimodal_config": {"mm_encoder_tp_mode": self.encoder_mode}}
        if self.kv_connector:
            config["kv_transfer_config"] = {"kv_connector": "SomeConnector"}
        return web.json_response({"vllm_config": config, "vllm_env": {}, "system_env": {}})

    async def metrics(self, _request: web.Request) -> web.Response:
        """The recorded page, whole, whatever is asked for, with today's counts. Held requests count as none."""
        page = re.sub(r"(?m)^(vllm:num_requests_running\{.*\}) .*$", rf"\1 {float(self.running)}", PAGE)
        page = re.sub(r'kv_cache_memory_bytes="\d+"', f'kv_cache_memory_bytes="{self.kv_bytes}"', page)
        away = float("weights" in self.asleep or self.told_offloaded)
        page = re.sub(r'(?m)^(vllm:engine_sleep_state\{.*"awake"\}) .*$', rf"\1 {1 - away}", page)
        page = re.sub(r'(?m)^(vllm:engine_sleep_state\{.*"weights_offloaded"\}) .*$', rf"\1 {away}", page)
        return web.Response(text=page + (self._components() if self.tells_components else ""))

    def _components(self) -> str:
        states = {
            "scheduler": "paused" if self.paused else "running",
            "weights": "offloaded" if "weights" in self.asleep else "resident",
            "kv_cache": "discarded" if "kv_cache" in self.asleep else "resident",
        }
        name = "vllm:engine_sleep_component_state"
        lines = (
            f'{name}{{component="{each}",engine="0",state="{state}"}} 1.0\n' for each, state in states.items()
        )
        return f"# TYPE {name} gauge\n{''.join(lines)}"

    async def is_paused(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.paused})

    async def is_sleeping(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.paused or bool(self.asleep)})

    # ---------------------------------------------------------------- what it is told

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort") if self.obeys_mode else "abort"
        if mode not in MODES:
            return _error(f"Input should be {MODES}, not {mode}", 400)
        if mode == "abort":
            self.abort_all()
        self.paused = True
        await self.idle()
        return web.json_response({"status": "paused"})

    async def resume(self, _request: web.Request) -> web.Response:
        self.paused = False
        await self.note()
        return web.json_response({"status": "resumed"})

    async def release(self, _request: web.Request) -> web.Response:
        if not self.paused or self.running or self.held:
            return _failed("release_kv_cache_memory() requires a completed pause first")
        if self.asleep:
            return _failed("release_kv_cache_memory() requires all executor memory to be resident")
        self.asleep.add("kv_cache")  # also where it fails, as recorded
        if not self.device:
            return _failed("Worker failed with error 'Selective discard is not supported on CPU.'")
        return web.json_response({"status": "kv_cache_released"})

    async def sleep(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        if tags and self.knows_tags == "obeyed":
            self.paused = True
            await self.idle()
            self.asleep |= set(tags)
            return web.json_response({"status": "sleeping", "tags": tags})
        level = int(request.query.get("level", "1"))
        self.paused = True
        if request.query.get("mode", "abort") == "abort":
            self.abort_all()
        await self.idle()
        if level:
            self.told_offloaded = True
            if not self.asleep:  # the executor counts as asleep while anything is away, and then does nothing
                self.asleep |= {"weights", "kv_cache"}
        return web.json_response({"status": "sleeping", "level": level})

    async def wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        if not tags:
            self.asleep.clear()
        elif set(tags) <= self.asleep:
            self.asleep -= set(tags)
        if not self.asleep:
            self.told_offloaded = False
        if not self.asleep or self.resumes_in_part:
            self.paused = False
            await self.note()
        return web.json_response({"status": "sleeping" if self.asleep else "awake", "tags": tags or None})


def _failed(message: str) -> web.Response:
    return _error(f"Call to release_kv_cache_memory method failed: {message}", 500)


def _error(message: str, status: int) -> web.Response:
    body = {"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}}
    return web.Response(text=json.dumps(body), status=status, content_type="application/json")


if __name__ == "__main__":
    run(FakeVllm)
