"""Start-up, what controllers are told, and the end: nothing is left behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
from aiohttp import web

from tests.fakes import forked
from tests.integration.agent.conftest import (
    ROOT,
    TOKEN,
    Agent,
    Api,
    Controller,
    agent_config,
    controller,
    of,
    resident,
    running_agent,
)
from warmpool.agent.app import serve_until
from warmpool.agent.config import AgentConfig

COMPUTING = {"Warming", "Proving", "Promoting", "Serving", "Draining"}


async def test_residents_start_one_after_the_other_and_are_born_paused(pair: Agent) -> None:
    state = await pair.api.get("/v1/state")
    assert (state["seat"], state["fleet"], state["uid"], state["operation"]) == (
        "spares-0",
        "spares",
        "uid-1",
        None,
    )
    for each in state["residents"]:
        own = {"waiting", "process", "import", "weights", "warm-up", "proof", "paused"}
        assert each["phases"].keys() == own
        assert each["start"]["told"]
        assert each["start"]["firstRequestSeconds"] > 0
        assert each["kvReleased"]
        assert each["provenAt"] <= time.time()
        assert each["memoryBytes"] > 10 * 2**20
        assert each["address"].startswith("http://127.0.0.1:")
        assert (await pair.api.generate(each["policy"], tokens=1))[0] == 503
    for told in pair.controller.told:
        assert sum(each["state"] in COMPUTING for each in told["residents"]) <= 1
        if of(told, "b")["pid"] is not None:
            assert of(told, "a")["state"] == "Paused"
    seqs = [told["seq"] for told in pair.controller.told]
    assert seqs == sorted(seqs)


async def test_the_heartbeat_comes_without_a_change(single: Agent) -> None:
    told = single.controller.told
    beat = await single.controller.until(lambda _: len(told) > 1 and told[-2]["seq"] == told[-1]["seq"])
    assert beat["at"] - told[-2]["at"] > 0.5


@pytest.mark.wall_clock
async def test_a_controller_that_is_down_delays_nothing(tmp_path: Path) -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with socket.create_server(("127.0.0.1", 0)) as closed:
        down = f"http://127.0.0.1:{closed.getsockname()[1]}"
    app = web.Application()
    app.router.add_post("/v1/agents", hang)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hung = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with running_agent(tmp_path, [resident("a")], controllers=(down, hung)) as agent:
            await agent.api.order("resume", "a")
            state = await agent.controller.until_states(a="Serving")
            assert time.time() - of(state, "a")["since"] < 1
    finally:
        await runner.cleanup()


async def test_the_last_change_reaches_a_controller_that_was_failing(single: Agent) -> None:
    single.controller.status = 500
    await single.api.order("resume", "a")
    assert single.controller.seen("a")[-1] == "Paused"
    single.controller.status = 200
    await single.controller.until_states(a="Serving")


# -------------------------------------------------------------------- as a process of its own


@asynccontextmanager
async def agent_process(
    directory: Path, command: list[str], residents: list[dict[str, object]]
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Api, Controller]]:
    """Start an agent (or something that starts one) as a user would, and wait until its residents are paused."""
    async with controller() as hears, aiohttp.ClientSession() as session:
        path = directory / "agent.json"
        path.write_text(json.dumps(agent_config(directory, residents, controllers=[hears.url])))
        environment = os.environ | {"EMBERPOOL_AGENT_TOKEN": TOKEN, "PYTHONPATH": str(ROOT)}
        with (directory / "agent.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command, "--config", str(path), env=environment, stdout=log, stderr=log
            )
            try:
                told = await hears.until_states(**{str(each["policy"]): "Paused" for each in residents})
                yield process, Api(told["agent"], session), hears
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()


AGENT = [sys.executable, "-m", "warmpool.agent"]
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "warmpool.agent", *sys.argv[1:]], env={**os.environ, "EMBERPOOL_DIE_WITH_PARENT": str(os.getpid())})
child.wait()
"""


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes runs."""
    async with asyncio.timeout(20):
        while any(
            psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids
        ):
            await asyncio.sleep(0.01)


async def test_sigterm_drains_what_serves_and_leaves_nothing(tmp_path: Path) -> None:
    residents = [resident("a", script={"tokenSeconds": 0.005}), resident("b", seed=2)]
    async with agent_process(tmp_path, AGENT, residents) as (process, api, hears):
        engines = [each["pid"] for each in (await api.get("/v1/state"))["residents"]]
        memory = psutil.Process(process.pid).memory_info().rss
        assert memory < 60 * 2**20, f"{memory >> 20} MiB"
        await api.order("resume", "a")
        started = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(api.generate("a", tokens=150, started=started))
            await started.wait()
            process.send_signal(signal.SIGTERM)
            await hears.until_states(a="Draining")
            assert (await api.order("resume", "b")).code == "Busy"
            assert await asyncio.wait_for(process.wait(), 20) == 0
        assert request.result()[1].count("token_ids") == 150
        assert {each["state"] for each in hears.told[-1]["residents"]} == {"Terminating"}
        await gone(engines)


async def test_an_agent_that_is_cancelled_leaves_no_engine(tmp_path: Path) -> None:
    async with controller() as hears, asyncio.TaskGroup() as tasks:
        config = AgentConfig.model_validate(agent_config(tmp_path, [resident("a")], controllers=[hears.url]))
        agent = tasks.create_task(serve_until(config, TOKEN, asyncio.Event()))
        told = await hears.until_states(a="Paused")
        agent.cancel()
    await gone([of(told, "a")["pid"]])


@pytest.mark.parametrize("command", [AGENT, [sys.executable, "-c", PARENT]], ids=["the agent", "its parent"])
async def test_engines_die_with_the_agent_and_the_agent_with_its_parent(
    tmp_path: Path, command: list[str]
) -> None:
    async with agent_process(tmp_path, command, [resident("a")]) as (process, api, _):
        state = await api.get("/v1/state")
        process.kill()
        await process.wait()
        await gone([state["pid"], of(state, "a")["pid"]])


@pytest.mark.parametrize(
    ("change", "token", "words"),
    [
        pytest.param({"residents": []}, TOKEN, "agent.json: residents: ", id="bad key"),
        pytest.param({}, "", "EMBERPOOL_AGENT_TOKEN is not set", id="no token"),
        pytest.param({"host": "192.0.2.1"}, TOKEN, "192.0.2.1:0 can't be listened on", id="no such address"),
    ],
)
def test_a_config_that_cannot_work_is_refused_in_words(
    tmp_path: Path, change: dict[str, object], token: str, words: str
) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps(agent_config(tmp_path, [resident("a")]) | change))
    environment = os.environ | {"EMBERPOOL_AGENT_TOKEN": token}
    ended = forked.run("--config", str(path), environment=environment, module="warmpool.agent.__main__")
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_agent_imports_neither_torch_nor_the_loader() -> None:
    check = "import sys, warmpool.agent.__main__; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'loader', 'scaler')])"
    ended = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout.strip() == "[]"


async def test_an_agent_whose_parent_is_gone_already_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps(agent_config(tmp_path, [resident("a")])))
    environment = os.environ | {"EMBERPOOL_AGENT_TOKEN": TOKEN, "EMBERPOOL_DIE_WITH_PARENT": "1"}
    process = await asyncio.create_subprocess_exec(*AGENT, "--config", str(path), env=environment)
    async with asyncio.timeout(20):
        assert await process.wait() == -signal.SIGTERM
