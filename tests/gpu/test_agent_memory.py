"""An agent with real engines on a real device: what it reads after each change, who has room, and a leak that it finds."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.conftest import ROOT, Agent, of, running_agent
from warmpool.engines.deadline import Deadline
from warmpool.nodehealth.client import NodeAgent, NoMemory
from warmpool.nodehealth.local import local_node_agent
from warmpool.nodehealth.nvml import NvmlError, driver
from warmpool.nodehealth.proc_files import ProcFiles

MIB = 2**20
MAKE = "import pathlib, sys; from warmpool.reference.checkpoints import make_checkpoint as m; "
MAKE += "m(pathlib.Path(sys.argv[1]), shape='llama-1b', seed=1)"
WEIGHTS_MIB, KV_MIB = 2_357, 4_096
"""Of that shape in bfloat16, and of 16 sequences of 8192 tokens."""
CONTEXT_MIB = 1_200
"""What a process holds beside: its context, kernels and graphs. Only for the config; what is measured counts."""


def _no_gpu() -> str:
    try:
        nvml = driver()
        nvml.start()
    except NvmlError as error:
        return str(error)
    nvml.stop()
    return "" if ProcFiles().sees_all() else "this isn't the initial PID namespace"


REASON = _no_gpu()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(REASON), reason=f"needs a GPU: {REASON}"),
    pytest.mark.timeout(400),
]


def say(what: str, told: object) -> None:
    """Tell a figure; `pytest -s` shows it."""
    sys.stdout.write(f"{what}: {json.dumps(told)}\n")


def resident(policy: str, checkpoint: Path) -> dict[str, Any]:
    command = [
        *(
            sys.executable,
            "-m",
            "warmpool.reference",
            "serve",
            "--model",
            "chat",
            "--checkpoint",
            str(checkpoint),
        ),
        *("--host", "{host}", "--port", "{port}", "--control-port", "{controlPort}", "--guard", "closed"),
        *("--device", "cuda", "--max-num-seqs", "16", "--max-model-len", "8192"),
    ]
    return {
        "policy": policy,
        "model": "chat",
        "command": command,
        "environment": {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        "proof": {"prompts": [{"prompt": "one fish two fish"}], "agree": True, "maxTokens": 8},
        "warmup": {"prompts": ["fish", "more fish"]},
        "memoryMiB": WEIGHTS_MIB + CONTEXT_MIB,
        "kvMiB": KV_MIB,
        "activationMiB": 2_048,
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "1b"
    subprocess.run([sys.executable, "-c", MAKE, str(directory)], cwd=ROOT, check=True, timeout=300)
    return directory


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[str]:
    """A node agent's address."""
    async with local_node_agent(tmp_path) as address:
        asked = NodeAgent(address, NoMemory("it doesn't answer"))
        async with asyncio.timeout(60):
            while not (told := await asked.read(["0"], deadline=Deadline.after(5))).verified:
                say("node agent", told.reason)
                await asyncio.sleep(0.5)
        await asked.close()
        yield address


async def witnessed(agent: Agent, policy: str) -> None:
    """Have somebody else agree with what a resident answers."""
    await agent.controller.until(lambda told: "NeedsWitness" in of(told, policy)["waiting"])
    statement = (await agent.api.get(f"/v1/proof/{policy}"))["statement"]
    body = {
        "epoch": 1,
        "ownership": statement["ownership"],
        "answers": statement["answers"],
        "witnesses": ["other"],
    }
    assert (await agent.api.put(f"/v1/proof/{policy}", body)).status == 200


async def look(agent: Agent, what: str) -> Any:
    state = await agent.api.get("/v1/state")
    residents = [
        {
            "policy": each["policy"],
            "state": each["state"],
            "heldMiB": None if each["memoryBytes"] is None else each["memoryBytes"] // MIB,
            "parkedMiB": (each["parkedBytes"] or 0) // MIB,
            "wakeSeconds": each["wakeSeconds"],
            "verification": each["verification"],
            "waiting": each["waiting"],
        }
        for each in state["residents"]
    ]
    say(what, {"memory": state["memory"], "residents": residents})
    return state


async def test_tiers_orders_and_verification_on_a_device(tmp_path: Path, checkpoint: Path, node: str) -> None:
    """Three residents where two fit paused."""
    paused = WEIGHTS_MIB + CONTEXT_MIB
    device = int((2.6 * paused + KV_MIB + 2_048) / 0.98)
    residents = [resident(policy, checkpoint) for policy in "abc"]
    memory = {"deviceMiB": device, "hostMiB": 16_384}
    async with running_agent(
        tmp_path, residents, gpus=["0"], nodeAgent=node, memory=memory, wait=False
    ) as agent:
        for policy in "abc":
            await witnessed(agent, policy)
        await agent.controller.until_states(a="Paused", b="Paused", c="Parked")
        state = await look(agent, "started")
        assert state["memory"]["verified"]
        assert state["memory"]["freeBytes"] >= 0
        for kind, policy in (
            *(("resume", "a"), ("drain", "a"), ("pause", "a"), ("park", "b"), ("unpark", "b")),
            *(("resume", "c"), ("drain", "c"), ("pause", "c"), ("prove", "a")),
        ):
            answer = await agent.api.order(kind, policy, seconds=30)
            assert answer.status == 200, answer.body
            say(f"{kind} {policy}", answer.body["phases"])
            state = await look(agent, f"after {kind} {policy}")
            assert state["memory"]["freeBytes"] >= 0
            if kind in {"park", "unpark", "pause"}:
                assert of(state, policy)["verification"]["verdict"] == "Verified"
        assert of(state, "b")["state"] == "Parked"  # it made room for c
        for _ in range(5):
            for policy in ("a", "c"):
                for kind in ("resume", "drain", "pause"):
                    assert (await agent.api.order(kind, policy, seconds=30)).status == 200
        await look(agent, "after ten more promotions")
