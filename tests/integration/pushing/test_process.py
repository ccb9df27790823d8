"""A controller as a process of its own, with signals of every way: what is pushed, heard, read, and read anew."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes import forked
from tests.fakes.ports import free_ports
from tests.integration.processes.rig import TOKEN, Processes
from tests.integration.pushing.rig import SIGNAL_TOKEN, sample
from tests.integration.signals.rig import redis

AGENTS = """\
apiVersion: emberpool.dev/v1alpha1
kind: AgentList
metadata: {name: test}
spec:
  fleets:
    - name: spares
      seats: [{name: seat-0, agent: "http://127.0.0.1:9"}]
"""
POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 1}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  signals:
    - {name: gateway, type: Pushed}
"""
JOBS = "    - {name: jobs, type: RedisList, key: jobs, intervalMilliseconds: 100, timeoutMilliseconds: 100}\n"
QUERY = "    - {name: depth, type: Prometheus, query: up, measures: QueueDepth, intervalSeconds: 1, timeoutSeconds: 1}\n"


async def signals(url: str, *arguments: str) -> str:
    """Run `emberpool signals get`; nothing while the controller doesn't answer."""
    done = await asyncio.to_thread(forked.run, "signals", "get", *arguments, "--server", url)
    return done.stdout


async def until(url: str, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for all signals until they are as they should be; return them by name."""
    found: dict[str, Any] = {}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        out = await signals(url, "-o", "json")
        found = {item["name"]: item for item in json.loads(out)["items"]} if out else {}
        if true(found):
            return found
    raise AssertionError(found)


def value(found: dict[str, Any], signal: str, part: str) -> float | None:
    parts = {each["part"]: each["value"] for each in found.get(signal, {"parts": ()})["parts"]}
    return parts.get(part)


async def test_signals_of_every_way_reach_a_controller_and_follow_its_policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES + JOBS, "utf-8")
    (tmp_path / "agents.yaml").write_text(AGENTS, "utf-8")
    port, gateway, operators, nobody = free_ports(4)
    url = f"http://127.0.0.1:{port}"
    tokens = {"EMBERPOOL_AGENT_TOKEN": TOKEN, "EMBERPOOL_SIGNAL_TOKEN": SIGNAL_TOKEN}
    with redis(tmp_path) as server:
        server.call("RPUSH", "jobs", "a", "b", "c")
        async with Processes(tmp_path) as processes, aiohttp.ClientSession() as session:
            command = [sys.executable, "-m", "scaler"]
            await processes.start(
                "controller",
                [
                    *(*command, "controller", "--policy", str(tmp_path / "policies.yaml")),
                    *("--agents", str(tmp_path / "agents.yaml"), "--port", str(port)),
                    *("--redis", server.address, "--prometheus", f"http://127.0.0.1:{nobody}"),
                ],
                tokens,
            )
            await until(url, lambda found: value(found, "jobs", "Backlog") == 3)

            # a gateway that knows nothing but the token of those who push
            await processes.start(
                "gateway",
                [
                    *(*command, "gateway", "--controller", url, "--port", str(gateway)),
                    *("--metrics-port", str(operators), "--instance", "gw-1"),
                ],
                {**dict.fromkeys(tokens, ""), "EMBERPOOL_SIGNAL_TOKEN": SIGNAL_TOKEN},
            )
            body = sample("worker-7", 1, {"backlog": 5}, intervalSeconds=60)
            headers = {"Authorization": f"Bearer {SIGNAL_TOKEN}"}
            async with session.post(f"{url}/v1/signals", json=body, headers=headers) as answer:
                assert answer.status == 204
            for path in ("signals", "first-tokens"):
                async with session.post(f"{url}/v1/{path}", json={"items": []}) as answer:
                    assert answer.status == 401
            heard = sample("worker-8", 1, {"backlog": 7}, intervalSeconds=60)
            assert server.call("PUBLISH", "emberpool:signals", json.dumps(heard)) == "1"
            found = await until(
                url, lambda found: value(found, "gateway", "Backlog") == 12 and "Queued" in str(found)
            )
            kinds = {each["name"]: each["kind"] for each in found["gateway"]["instances"]}
            assert kinds == {"gw-1": "Gateway", "worker-7": "Queue", "worker-8": "Queue"}

            # another signal, while everything runs; what the others said stays
            (tmp_path / "policies.yaml").write_text(POLICIES + JOBS + QUERY, "utf-8")
            found = await until(url, lambda found: bool(found.get("depth", {}).get("lastError")))
            assert "connection refused" in found["depth"]["lastError"]["message"]
            assert value(found, "jobs", "Backlog") == 3
            table = await signals(url, "chat", "-o", "wide")
            assert "depth     Prometheus   Queued" in table
            async with session.get(f"{url}/metrics") as answer:
                page = await answer.text()
            assert 'emberpool_signal_readings_total{policy="chat",signal="depth",outcome="Failed"}' in page
            assert "emberpool_signal_channel_connected 1.0" in page
