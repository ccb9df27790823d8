"""The command over a real connection, and a controller process that KEDA is answered by: whole processes, so they are few."""

import asyncio
import json
from pathlib import Path

import pytest

from scaler.keda.client import CallFailed, KedaClient, Metric, NotReached, ScaledObject, connected
from tests.fakes import forked
from tests.fakes.ports import free_ports
from tests.integration.keda.conftest import Desk
from tests.integration.processes.rig import Processes, silent_agents

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares, namespace: serving}
spec: {maxSeats: 2, seat: {gpus: 0}, resizedBy: Keda, spare: {min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat, namespace: serving}
spec: {fleets: [{name: spares, targetInFlight: 4}], serving: {min: 0, max: 2}}
"""


async def emberpool(*arguments: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(forked.run, *arguments)
    return done.returncode, done.stdout, done.stderr


async def first_answer(client: KedaClient, asker: ScaledObject) -> list[Metric]:
    """Ask until the controller is there and has decided."""
    async with asyncio.timeout(30):
        while True:
            try:
                await client.reach()
                return await client.metrics(asker, "")
            except (NotReached, CallFailed):
                await asyncio.sleep(0.05)


async def test_the_command_shows_each_call_and_what_follows(desk: Desk) -> None:
    address = ("--address", f"127.0.0.1:{desk.port}", "--listen", "0")
    good, bad = await asyncio.gather(
        emberpool("keda", "check", *address, "--fleet", "spares", "--replicas", "5", "-o", "json"),
        emberpool("keda", "check", *address, "--fleet", "spare"),
    )
    page = json.loads(good[1])
    assert good[0] == 0
    calls = [call["call"] for call in page["calls"]]
    assert calls == [
        *("GetMetricSpec", "StreamIsActive", "GetMetricSpec", "GetMetrics", "IsActive", "StreamMetricSpec")
    ]
    assert (page["value"], page["active"]) == (3.0, True)
    assert "it asks for 3 in place of 5" in page["forecast"][1]
    assert bad[0] == 1
    assert "NOT_FOUND: no policy file has a fleet named 'spare'; did you mean spares?" in bad[1]


async def test_a_controller_answers_keda_and_ends_its_streams_with_ok(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, "utf-8")
    (tmp_path / "agents.yaml").write_text(silent_agents(2), "utf-8")
    port, keda = free_ports(2)
    asker = ScaledObject("spares", "serving", {"fleet": "serving/spares", "team": "x"})
    async with Processes(tmp_path) as processes:
        await processes.emberpool(
            "controller",
            *("controller", "--policy", str(tmp_path / "policies.yaml")),
            *("--agents", str(tmp_path / "agents.yaml"), "--port", str(port), "--keda-port", str(keda)),
        )
        async with connected(f"127.0.0.1:{keda}") as client:
            metrics = await first_answer(client, asker)
            assert [(each.name, each.value) for each in metrics] == [("emberpool-fleet-spares-total", 2.0)]
            async with client.pushed(asker) as pushed:
                assert await anext(pushed)
                assert await processes.end("controller") == 0
                with pytest.raises(StopAsyncIteration):
                    await anext(pushed)
