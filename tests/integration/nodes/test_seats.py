"""Seats on the stand-ins: launcher, agent and engines in pods, from the template to an end in order."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from scaler.cluster.kube.resources import POD
from tests.fakes.engine_subjects import make_checkpoint
from tests.fakes.workloads import AGENT_PORT, GATE, TOKEN, SeatFleet, reference, scripted
from tests.integration.nodes.conftest import World, agent_state, condition, is_running, ready

ROOT = Path(__file__).resolve().parents[3]
FLEET = SeatFleet(name="spares", residents=[scripted("chat", 8001), scripted("code", 8002, seed=2)])


async def paused_seat(world: World, fleet: SeatFleet = FLEET) -> dict[str, Any]:
    """Make a fleet, and wait until all residents of its one seat are paused."""
    await fleet.create(world.calls)
    (pod,) = await world.when_pods(
        lambda pods: len(pods) == 1 and is_running(pods[0]), "a running seat", app=fleet.name
    )

    async def all_paused() -> bool:
        state = await agent_state(pod)
        return state is not None and {each["state"] for each in state["residents"]} == {"Paused"}

    try:
        await world.until("paused residents", all_paused)
    except AssertionError:
        state = await agent_state(pod) or {"residents": []}
        told = [
            (each["policy"], each["state"], each["failure"], each["waiting"]) for each in state["residents"]
        ]
        pytest.fail(f"not all paused: {told}; logs: {world.tail()}")
    return pod


async def order(pod: dict[str, Any], kind: str, policy: str, claim: str) -> dict[str, Any]:
    body = {"policy": policy, "claim": claim, "epoch": 1, "deadlineSeconds": 10}
    url = f"http://{pod['status']['podIP']}:{AGENT_PORT}/v1/{kind}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers) as response,
    ):
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


@pytest.mark.long
async def test_a_seat_starts_paused_and_is_ready_once_it_is_admitted(world: World) -> None:
    pod = await paused_seat(world)
    name = pod["metadata"]["name"]
    seen = await world.when(name, lambda p: condition(p, "ContainersReady") == "True")
    assert (condition(seen, "Ready"), condition(seen, "Initialized")) == ("False", "True")
    admitted = {"type": GATE, "status": "True", "reason": "Proven"}
    await world.calls.strategic(POD, "default", name, {"status": {"conditions": [admitted]}}, "status")
    seen = await world.when(name, ready)
    assert condition(seen, GATE) == "True"
    state = await agent_state(pod)
    assert state is not None
    assert (state["seat"], state["uid"], state["fleet"]) == (name, pod["metadata"]["uid"], "spares")


async def test_what_was_accepted_is_answered_before_a_deleted_seat_ends(world: World) -> None:
    slow = scripted("chat", 8001, script={"tokenSeconds": 0.05})
    pod = await paused_seat(world, SeatFleet(name="spares", residents=[slow]))
    await order(pod, "resume", "chat", "c-1")
    state = await agent_state(pod)
    assert state is not None
    address = state["residents"][0]["address"]
    body = {"model": "chat", "prompt": "a user's", "max_tokens": 40, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{address}/v1/completions", json=body) as response,
    ):
        first = await response.content.readline()
        await world.calls.delete(POD, "default", pod["metadata"]["name"])
        rest = await asyncio.wait_for(response.content.read(), 30)
        assert (response.status, bool(first), rest.rstrip().endswith(b"data: [DONE]")) == (200, True, True)
    await world.when_gone(pod["metadata"]["name"])
    engines = world.logs / f"default_{pod['metadata']['name']}_{pod['metadata']['uid']}" / "engines"
    assert "[launcher]" in (engines / "0.log").read_text()


async def test_an_agent_that_dies_leaves_its_engines_and_their_streams_alone(world: World) -> None:
    slow = scripted("chat", 8001, script={"tokenSeconds": 0.05})
    pod = await paused_seat(world, SeatFleet(name="spares", residents=[slow]))
    await order(pod, "resume", "chat", "c-1")
    state = await agent_state(pod)
    assert state is not None
    pid = state["residents"][0]["pid"]
    killing = await asyncio.create_subprocess_exec("kill", "-9", str(state["pid"]))
    await killing.wait()

    async def taken_up() -> bool:
        found = await agent_state(pod)
        if found is None or found["pid"] == state["pid"]:
            return False
        (resident,) = found["residents"]
        return (resident["pid"], resident["state"]) == (pid, "Serving")

    await world.until("another agent that has taken up the engine", taken_up)
    name = pod["metadata"]["name"]
    seen = await world.when(name, lambda p: p["status"]["initContainerStatuses"][1]["restartCount"] == 1)
    assert seen["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the reference engine needs torch")
async def test_a_seat_with_the_reference_engine(world: World, tmp_path: Path) -> None:
    checkpoint = tmp_path / "model"
    await asyncio.to_thread(make_checkpoint, checkpoint)
    expecting = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmpool.reference", "expect", "--checkpoint", str(checkpoint)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    printed, _ = await expecting.communicate()
    proof = json.loads(printed)
    options = ("--max-num-seqs", "4", "--max-model-len", "256")
    resident = reference("code", 8002, checkpoint, proof, *options)
    pod = await paused_seat(world, SeatFleet(name="real", residents=[resident]))
    assert (await order(pod, "resume", "code", "c-1"))["state"] == "Serving"
    state = await agent_state(pod)
    assert state is not None
    address = state["residents"][0]["address"]
    body = {"model": "code", "prompt": "one fish", "max_tokens": 4}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{address}/v1/completions", json=body) as response,
    ):
        answer = await response.json()
    assert (response.status, answer["usage"]["completion_tokens"]) == (200, 4)
