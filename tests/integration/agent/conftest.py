"""A whole agent in the test's loop: real sockets, engine processes, and a controller that hears it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web

from tests.fakes.scripted_engine import expected_tokens
from warmpool.agent.app import serve_until
from warmpool.agent.config import AgentConfig

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "tests/fakes/scripted_engine.py"
TOKEN = "secret"
PROMPTS = ("one fish", "two fish", "red fish", "blue fish", "black fish")
WAIT_SECONDS = 60.0
Json = dict[str, Any]


def engine_command(*, seed: int, script: Json | None = None) -> list[str]:
    command = [
        sys.executable,
        str(ENGINE),
        "--host",
        "{host}",
        "--port",
        "{port}",
        "--control-port",
        "{controlPort}",
    ]
    return [*command, "--seed", str(seed), "--model", "chat", "--script", json.dumps(script or {})]


def resident(
    policy: str, *, seed: int = 1, script: Json | None = None, warmup: tuple[str, ...] = ("warm",)
) -> Json:
    return {
        "policy": policy,
        "model": "chat",
        "command": engine_command(seed=seed, script=script),
        "environment": {"EMBERPOOL_TEST": policy},
        "type": "Reference",
        "proof": {"prompts": [{"prompt": p, "tokens": expected_tokens(seed, p, 3)} for p in PROMPTS]},
        "warmup": {"prompts": list(warmup), "maxTokens": 2},
        "memoryMiB": 64,
    }


def reference_command(checkpoint: Path, *options: str) -> list[str]:
    """The reference engine, with placeholders for what an agent chooses."""
    command = [sys.executable, "-m", "warmpool.reference", "serve", "--model", "chat"]
    command += ["--checkpoint", str(checkpoint), "--host", "{host}", "--port", "{port}"]
    return [*command, "--control-port", "{controlPort}", "--guard", "closed", *options]


def agent_config(directory: Path, residents: list[Json], **others: Any) -> Json:
    return {
        "seat": "spares-0",
        "fleet": "spares",
        "uid": "uid-1",
        "logDirectory": str(directory / "logs"),
        "residents": residents,
    } | others


@dataclass
class Controller:
    """A controller's end: keeps every state that it was told."""

    url: str = ""
    told: list[Json] = field(default_factory=list)
    status: int = 200
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        body = await request.json()
        async with self.heard:
            if self.status == 200:
                self.told.append(body)
            self.heard.notify_all()
        return web.json_response({}, status=self.status)

    async def until(self, condition: Callable[[Json], bool]) -> Json:
        """Wait until the newest state that it was told fulfils a condition."""
        async with asyncio.timeout(WAIT_SECONDS), self.heard:
            await self.heard.wait_for(lambda: bool(self.told) and condition(self.told[-1]))
            return self.told[-1]

    async def until_states(self, **states: str) -> Json:
        def fulfilled(told: Json) -> bool:
            now = {each["policy"]: each["state"] for each in told["residents"]}
            return all(now[policy] == state for policy, state in states.items())

        try:
            return await self.until(fulfilled)
        except TimeoutError:
            last = (
                [(r["policy"], r["state"], r["failure"]) for r in self.told[-1]["residents"]]
                if self.told
                else "nothing"
            )
            pytest.fail(f"wanted {states}, was told {last}")

    def seen(self, policy: str) -> list[str]:
        """The states of a resident that it was told, without repeats in a row."""
        states: list[str] = []
        for told in self.told:
            state = of(told, policy)["state"]
            if not states or states[-1] != state:
                states.append(state)
        return states


@asynccontextmanager
async def controller() -> AsyncIterator[Controller]:
    each = Controller()
    app = web.Application()
    app.router.add_post("/v1/agents", each.listen)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        each.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield each
    finally:
        await runner.cleanup()


def of(state: Json, policy: str) -> Json:
    """One resident of a state."""
    found: Json = next(each for each in state["residents"] if each["policy"] == policy)
    return found


@dataclass
class Answer:
    status: int
    body: Json

    @property
    def code(self) -> str:
        return str(self.body.get("error", {}).get("code", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("error", {}).get("message", ""))


@dataclass
class Api:
    """A caller of one agent."""

    url: str
    session: aiohttp.ClientSession
    claims: int = 0
    epoch: int = 1

    async def order(
        self,
        kind: str,
        policy: str,
        *,
        seconds: float = 10.0,
        epoch: int | None = None,
        claim: str = "",
        **others: Any,
    ) -> Answer:
        self.claims += 1
        body = {
            "policy": policy,
            "claim": claim or f"c{self.claims}",
            "epoch": self.epoch if epoch is None else epoch,
            "deadlineSeconds": seconds,
        }
        return await self.post(f"/v1/{kind}", json=body | others)

    async def post(self, path: str, **arguments: Any) -> Answer:
        headers = arguments.pop("headers", {"Authorization": f"Bearer {TOKEN}"})
        async with self.session.post(f"{self.url}{path}", headers=headers, **arguments) as response:
            return Answer(response.status, await response.json())

    async def put(self, path: str, body: object) -> Answer:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self.session.put(f"{self.url}{path}", json=body, headers=headers) as response:
            return Answer(response.status, await response.json())

    async def get(self, path: str) -> Json:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with self.session.get(f"{self.url}{path}", headers=headers) as response:
            body: Json = await response.json()
            return body

    # ---- engines

    async def control(self, policy: str) -> str:
        """The control listener of a resident's engine, read from its command line."""
        pid = of(await self.get("/v1/state"), policy)["pid"]
        arguments = psutil.Process(pid).cmdline()
        return f"http://127.0.0.1:{arguments[arguments.index('--control-port') + 1]}"

    async def script(self, policy: str, **change: Any) -> None:
        async with self.session.post(f"{await self.control(policy)}/script", json=change) as response:
            assert response.status == 200

    async def engine_log(self, policy: str) -> Json:
        async with self.session.get(f"{await self.control(policy)}/script") as response:
            log: Json = await response.json()
            return log

    async def generate(
        self, policy: str, *, tokens: int, started: asyncio.Event | None = None
    ) -> tuple[int, str]:
        """Send a request through the guard, streaming."""
        address = of(await self.get("/v1/state"), policy)["address"]
        body = {"model": "chat", "prompt": "a user's", "max_tokens": tokens, "stream": True}
        async with self.session.post(f"{address}/v1/completions", json=body) as response:
            text = ""
            async for line in response.content:
                text += line.decode()
                if started is not None:
                    started.set()
            return response.status, text


@dataclass
class Agent:
    """A running agent, the controller that hears it, and a caller."""

    controller: Controller
    api: Api


@asynccontextmanager
async def running_agent(
    directory: Path,
    residents: list[Json],
    *,
    controllers: tuple[str, ...] = (),
    wait: bool = True,
    **others: Any,
) -> AsyncIterator[Agent]:
    """Run an agent; with `wait` until all its residents are paused."""
    ending = asyncio.Event()
    async with controller() as hears, aiohttp.ClientSession() as session:
        raw = agent_config(directory, residents, controllers=[*controllers, hears.url], **others)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve_until(AgentConfig.model_validate(raw), TOKEN, ending))
            try:
                first = await hears.until(lambda _: True)
                if wait:
                    await hears.until_states(**{each["policy"]: "Paused" for each in residents})
                yield Agent(hears, Api(first["agent"], session))
            finally:
                ending.set()


async def calm(agent: Agent) -> Agent:
    """Bring a seat's residents back to Paused, whatever the test before has left."""
    residents = (await agent.api.get("/v1/state"))["residents"]
    for each in residents:
        if each["state"] in {"Serving", "Draining"}:
            await agent.api.order("drain", each["policy"])
            await agent.api.order("pause", each["policy"])
        if each["state"] == "Parked":
            await agent.api.order("unpark", each["policy"])
    await agent.controller.until_states(**{each["policy"]: "Paused" for each in residents})
    for each in residents:
        await agent.api.script(each["policy"], faults={}, wrongTokens=False, forget=True)
    return agent


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Agent]:
    """A shared seat with two residents, both paused."""
    async with running_agent(tmp_path, [resident("a", seed=1), resident("b", seed=2)]) as agent:
        yield agent


@pytest.fixture
async def single(tmp_path: Path) -> AsyncIterator[Agent]:
    """A seat with one resident, paused."""
    async with running_agent(tmp_path, [resident("a")]) as agent:
        yield agent
