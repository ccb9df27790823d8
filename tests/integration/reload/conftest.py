"""A controller process with policy files that change under it, over its real HTTP API.

Nobody answers at its agents' addresses: what is looked at here is which policies are in force, and what it says of that.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.ports import free_ports
from tests.integration.processes.rig import TOKEN, Processes, recorded_in, silent_agents

FLEET = """\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {name: spares}
spec: {maxSeats: 2, seat: {gpus: 0}}
"""
POLICY = """\
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {name: NAME}
spec:
  fleets: [{name: spares, targetInFlight: 4}]
  serving: {min: 0, max: 2}
"""
Json = dict[str, Any]


def policy(name: str, most: int = 2) -> str:
    return POLICY.replace("NAME", name).replace("max: 2", f"max: {most}")


@dataclass
class Reloading:
    """A controller process and the directory that its policies are in."""

    directory: Path
    policies: Path
    url: str
    processes: Processes
    session: aiohttp.ClientSession

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as answer:
            assert answer.status == 200
            return await answer.json()

    async def status(self) -> Json:
        return dict(await self.get("/v1/policies/status"))

    async def until(self, condition: Callable[[Json], object]) -> Json:
        """Wait until the status fulfils a condition."""
        last: Json = {}
        try:
            async with asyncio.timeout(40):
                while not condition(last := await self.status()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"last: {last}; log: {self.processes.log('controller')}") from None
        return last

    async def names(self) -> set[str]:
        """Policies that the last tick decided for."""
        return {item["name"] for item in (await self.get("/v1/policies"))["items"]}

    async def in_force(self, *names: str) -> None:
        async with asyncio.timeout(40):
            while await self.names() != set(names):
                await asyncio.sleep(0.05)

    async def post(self, token: str = TOKEN) -> tuple[int, Json]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(f"{self.url}/-/reload", headers=headers) as answer:
            return answer.status, await answer.json()

    async def metric(self, name: str) -> float:
        async with self.session.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"emberpool_{name} "))

    def hang_up(self) -> None:
        self.processes.signal("controller", signal.SIGHUP)

    async def event(self) -> Json:
        """Wait for the one event about policies on the record."""
        (event,) = await recorded_in(self.directory / "state", "policies")
        return event

    def log(self) -> list[Json]:
        lines = self.processes.log("controller").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@asynccontextmanager
async def controller(directory: Path, policies: Path) -> AsyncIterator[Reloading]:
    """Run a controller over the policies, and wait until its reader has read them."""
    (directory / "agents.yaml").write_text(silent_agents(2), "utf-8")
    (port,) = free_ports(1)
    timeout = aiohttp.ClientTimeout(total=30)
    async with Processes(directory) as processes, aiohttp.ClientSession(timeout=timeout) as session:
        await processes.emberpool(
            "controller",
            *("controller", "--policy", str(policies), "--agents", str(directory / "agents.yaml")),
            *("--port", str(port), "--state-dir", str(directory / "state")),
        )
        rig = Reloading(directory, policies, f"http://127.0.0.1:{port}", processes, session)
        async with asyncio.timeout(40):
            while True:
                try:
                    await rig.status()
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        yield rig


@pytest.fixture
async def reloading(tmp_path: Path) -> AsyncIterator[Reloading]:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "fleet.yaml").write_text(FLEET, "utf-8")
    (policies / "chat.yaml").write_text(policy("chat"), "utf-8")
    (policies / "code.yaml").write_text(policy("code"), "utf-8")
    async with controller(tmp_path, policies) as rig:
        await rig.in_force("chat", "code")
        yield rig
