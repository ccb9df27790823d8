"""`emberpool local` follows its policy files too, as far as the engines that it has started can follow."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.ports import free_ports
from tests.integration.processes.rig import Processes

POLICIES = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: local}
spec: {maxSeats: 1, seat: {gpus: 0}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: chat}
spec:
  fleets: [{name: local, targetInFlight: 2}]
  serving: {min: 0}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: code}
spec:
  fleets: [{name: local, targetInFlight: 2}]
  serving: {min: 0}
"""
ENGINE = "spec:\n  engine: {args: [--max-model-len, '64']}\n  fleets: [{name: local, targetInFlight: 3}]\n"
Json = dict[str, Any]


@dataclass
class Local:
    """One `emberpool local` and its policy file."""

    policies: Path
    controller: str
    gateway: str
    processes: Processes
    session: aiohttp.ClientSession

    async def until(self, url: str, condition: Callable[[Json], object]) -> Json:
        last: object = None
        try:
            async with asyncio.timeout(90):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with self.session.get(url) as answer:
                            last = body = dict(await answer.json())
                        if condition(body):
                            return body
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"last: {last}; log: {self.processes.log('local')[-3000:]}") from None

    async def status(self, condition: Callable[[Json], object] = bool) -> Json:
        return await self.until(f"{self.controller}/v1/policies/status", condition)

    async def attempt(self, outcome: str) -> Json:
        """Wait for an attempt with this outcome."""
        return await self.status(lambda body: (body["lastAttempt"] or {}).get("outcome") == outcome)

    async def models(self, *names: str) -> None:
        await self.until(
            f"{self.gateway}/v1/models", lambda body: {each["id"] for each in body["data"]} == set(names)
        )


@contextlib.asynccontextmanager
async def local(directory: Path) -> AsyncIterator[Local]:
    policies = directory / "policies.yaml"
    policies.write_text(POLICIES, "utf-8")
    ports = free_ports(2)
    async with Processes(directory) as processes, aiohttp.ClientSession() as session:
        make = [sys.executable, "-m", "warmpool.reference", "make-checkpoint", "--shape", "tiny"]
        await processes.start("checkpoint", [*make, str(directory / "model")], {})
        assert await processes.wait("checkpoint") == 0
        model = directory / "model"
        await processes.emberpool(
            "local",
            *("local", "--policy", str(policies), "--device", "cpu", "--state-dir", str(directory / "state")),
            *("--checkpoint", f"chat={model}", "--checkpoint", f"code={model}"),
            *("--controller-port", str(ports[0]), "--gateway-port", str(ports[1])),
            *("--gateway", "queue-seconds=7", "--gateway", "comment-seconds=3"),
        )
        controller, gateway = (f"http://127.0.0.1:{port}" for port in ports)
        yield Local(policies, controller, gateway, processes, session)


@pytest.mark.long
async def test_a_running_local_follows_its_files_as_far_as_its_engines_can(tmp_path: Path) -> None:
    async with local(tmp_path) as rig:
        await rig.models("chat", "code")
        begun = (await rig.status())["hash"]
        without_code = POLICIES[: POLICIES.rindex("---")]
        fleets = "spec:\n  fleets: [{name: local, targetInFlight: 2}]\n"
        rig.policies.write_text(without_code.replace(fleets, ENGINE), "utf-8")
        loaded = await rig.attempt("Loaded")
        assert loaded["hash"] != begun
        assert loaded["lastAttempt"]["removed"] == ["ScalingPolicy/code"]
        assert [note.partition(";")[0] for note in loaded["notChangedLive"]] == [
            "policy chat: spec.engine is not what its engines were started with",
            "policy code is in no policy file: its engines are left as they are",
        ]
        await rig.models("chat")
        rig.policies.write_text(POLICIES.replace("name: code", "name: math"), "utf-8")
        rig.processes.signal("local", signal.SIGHUP)
        shown = await rig.until(f"{rig.controller}/v1/gateway", bool)
        assert (
            shown["assumptions"]["gatewayQueueSeconds"],
            shown["settings"]["keepAliveCommentSeconds"],
        ) == (7, 3)
        refused = await rig.attempt("Rejected")
        assert refused["hash"] == loaded["hash"]
        (fault,) = refused["lastAttempt"]["faults"]
        assert fault["line"] == 15
        assert fault["message"].startswith("policy math can't be added while `emberpool local` runs")
        rig.policies.write_text(POLICIES, "utf-8")
        assert (await rig.attempt("Loaded"))["hash"] == begun
        await rig.models("chat", "code")
        assert await rig.processes.end("local") == 0
