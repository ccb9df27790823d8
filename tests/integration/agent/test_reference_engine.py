"""The agent with real engines: two reference engines on one seat, promoted, switched and proven."""

import asyncio
import contextlib
import importlib.util
from pathlib import Path

import pytest

from tests.fakes.engine_subjects import make_checkpoint
from tests.integration.agent.conftest import ROOT, Json, of, reference_command, running_agent
from warmpool.agent.processes import EngineProcess, Ports
from warmpool.engines.deadline import Deadline
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import EngineLost

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the reference engine needs torch"
)

PROMPTS = ("one fish two fish", "red fish blue fish", "black fish blue fish")


def command(checkpoint: Path) -> list[str]:
    options = ("--max-num-seqs", "8", "--max-model-len", "256", "--threads", "1", "--die-with-parent")
    return reference_command(checkpoint, *options)


async def record(directory: Path, checkpoint: Path) -> list[Json]:
    """Ask an engine of the same weights, which is where an expectation comes from: never the resident itself."""
    ports = Ports.free("127.0.0.1")
    process = await EngineProcess.start(
        command(checkpoint), {"PYTHONPATH": str(ROOT)}, ports, directory / "recorder.log"
    )
    try:
        async with VllmEngine(ports.control_url, model="chat") as engine, asyncio.timeout(60):
            while not await is_ready(engine):
                assert not process.exited
                await asyncio.sleep(0.05)
            tokens = [
                await engine.complete(prompt, tokens=4, deadline=Deadline.after(20)) for prompt in PROMPTS
            ]
    finally:
        await process.stop(grace_seconds=0)
    return [{"prompt": prompt, "tokens": list(each)} for prompt, each in zip(PROMPTS, tokens, strict=True)]


async def is_ready(engine: VllmEngine) -> bool:
    with contextlib.suppress(EngineLost):
        return (await engine.startup(deadline=Deadline.after(20))).ready
    return False


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.long
async def test_two_real_engines_share_a_seat(tmp_path: Path, checkpoint: Path) -> None:
    proof = await record(tmp_path, checkpoint)
    residents = [
        {
            "policy": policy,
            "model": "chat",
            "command": command(checkpoint),
            "environment": {"PYTHONPATH": str(ROOT)},
            "proof": {"prompts": proof},
            "warmup": {"prompts": ["fish", "more fish"]},
        }
        for policy in ("a", "b")
    ]
    async with running_agent(tmp_path, residents) as agent:
        for policy in ("a", "b", "a"):
            promoted = await agent.api.order("resume", policy)
            assert promoted.body["phases"].keys() == {"kv", "canary", "open"}, promoted.body
            status, text = await agent.api.generate(policy, tokens=5)
            assert (status, text.rstrip().endswith("data: [DONE]")) == (200, True)
            for kind, state in (("drain", "Draining"), ("pause", "Paused")):
                answer = await agent.api.order(kind, policy)
                assert (answer.status, answer.body["state"]) == (200, state)
        assert (await agent.api.order("prove", "b")).status == 200
        phases = of(await agent.api.get("/v1/state"), "a")["phases"]
        assert {"import", "weights", "warm-up", "proof", "paused"} <= phases.keys()
