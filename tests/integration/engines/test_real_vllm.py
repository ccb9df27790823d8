"""An agent with the real vLLM that VLLM_BIN names: started, warmed, proven, probed, paused, promoted behind the guard, paused
again, and killed."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.fakes.engine_subjects import (
    MODEL,
    VLLM_ENVIRONMENT,
    VLLM_SECONDS,
    on_process,
    serve,
    vllm_command,
)
from tests.integration.agent.conftest import Agent, of, running_agent
from warmpool.agent.budget import MISUSED
from warmpool.agent.processes import EngineProcess, Ports
from warmpool.engines.deadline import Deadline
from warmpool.engines.kinds import EngineKind
from warmpool.errors import EngineLost

PROMPTS = ("one fish", "two fish", "red fish")
WARMED_UP = {"promptTokens": [8, 32, 128, 510], "batchSizes": [1, 2, 4], "maxTokens": 2, "leftOut": 0}
"""What follows from the most tokens of a sequence, which vLLM tells in its list of models, and from what the policy holds in flight."""


@pytest.mark.timeout(600)
async def test_an_agent_brings_a_real_vllm_into_service_and_back(tmp_path: Path) -> None:
    command = vllm_command(tmp_path)
    proof = await recorded(command, tmp_path)
    resident = {
        "policy": "a",
        "model": MODEL,
        "command": ["env", "GUARD_PORT={port}", *command],
        "environment": VLLM_ENVIRONMENT,
        "type": "VLLM",
        "proof": {"prompts": proof},
        "warmup": {"prompts": ["warm"], "maxTokens": 2},
        "targetInFlight": 4,
    }
    async with running_agent(tmp_path, [resident], wait=False) as agent:
        await paused_in_time(agent)
        told = of(await agent.api.get("/v1/state"), "a")
        grounds = {name: each["ground"] for name, each in told["capabilities"]["findings"].items()}
        assert grounds == {
            "TokenIds": "Tried",
            "SchedulerPause": "Tried",
            "DrainWait": "Tried",
            "DrainAbort": "Tried",
            "KvRelease": "NotTried",
            "WeightsParking": "SwitchedOff",
        }
        assert told["verification"]["verdict"] == "Verified"
        assert {"weights", "compile", "warm-up", "proof"} <= told["phases"].keys()
        assert told["start"]["warmUp"] == WARMED_UP
        assert (await agent.api.generate("a", tokens=2))[0] == 503
        promoted = await agent.api.order("resume", "a")
        assert (promoted.status, promoted.body["state"]) == (200, "Serving")
        status, text = await agent.api.generate("a", tokens=3)
        assert status == 200
        assert text.rstrip().endswith("data: [DONE]")
        assert (await agent.api.order("drain", "a")).status == 200
        paused = await agent.api.order("pause", "a")
        assert (paused.status, paused.body["state"]) == (200, "Paused")
        await nothing_outlives_its_api_server(told["pid"])


@pytest.mark.timeout(120)
async def test_arguments_that_it_does_not_take_end_it_with_the_status_at_which_agents_give_up(
    tmp_path: Path,
) -> None:
    command = [*vllm_command(tmp_path), "--no-such-argument"]
    process = await EngineProcess.start(command, VLLM_ENVIRONMENT, Ports.free("127.0.0.1"), tmp_path / "log")
    ended = await process.wait()
    assert process.status == MISUSED, ended
    assert "unrecognized arguments: --no-such-argument" in ended


async def nothing_outlives_its_api_server(pid: int) -> None:
    """Kill the process that the agent started. What computes lives on by itself, and holds the device's memory."""
    server = psutil.Process(pid)
    others = server.children(recursive=True)
    assert len(others) >= 2, "an engine core and a worker"
    server.kill()
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, others, 30)
    assert not alive


async def paused_in_time(agent: Agent) -> None:
    """Wait until the engine is paused, for as long as a large program takes to start."""
    async with asyncio.timeout(VLLM_SECONDS):
        while of(await agent.api.get("/v1/state"), "a")["state"] != "Paused":
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await agent.controller.until(lambda state: of(state, "a")["state"] == "Paused")


async def recorded(command: list[str], directory: Path) -> list[dict[str, object]]:
    """What another process of the same engine answers: nobody is proven against its own record."""
    with serve(EngineKind.VLLM, command, directory / "log", VLLM_ENVIRONMENT) as process:
        async with on_process(process) as subject:
            ends = time.monotonic() + VLLM_SECONDS
            while time.monotonic() < ends:
                with suppress(EngineLost):
                    if (await subject.engine.startup(deadline=Deadline.after(20))).ready:
                        break
                await asyncio.sleep(0.2)
            return [
                {
                    "prompt": prompt,
                    "tokens": await subject.engine.complete(prompt, tokens=3, deadline=Deadline.after(20)),
                }
                for prompt in PROMPTS
            ]
