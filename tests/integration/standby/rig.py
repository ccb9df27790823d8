"""Two controller processes on the tests' API server, with a workload's controller, a node, and agents at pods' addresses."""

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from scaler.keda.client import CallFailed, KedaClient, ScaledObject, connected
from tests.contract.kube_rig import NAMESPACE_NAME, Cluster
from tests.fakes.kube_api import Call, KubeApi, User, kubeconfig, serving
from tests.fakes.memory_cluster import Timing
from tests.fakes.ports import free_ports
from tests.fakes.scripted_agents import ScriptedAgents, scripted_agents
from tests.integration.kube.conftest import allowed, documented_role
from tests.integration.processes.rig import TOKEN, Processes
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

LEASE_SECONDS = 6.0
WAIT_SECONDS = 60.0
FLEET, CHAT = FleetName("spares"), PolicyName("chat")
POLICIES = f"""\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {{name: spares, namespace: {NAMESPACE_NAME}}}
spec:
  maxSeats: 6
  seat: {{gpus: 0}}
  spare: {{mode: Fixed, min: 1}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: chat, namespace: {NAMESPACE_NAME}}}
spec:
  fleets: [{{name: spares, targetInFlight: 4}}]
  serving: {{min: 1, max: 4, queueDrainSeconds: 1}}
  burst: {{thresholdPercent: 150, windowSeconds: 2, stableWindowSeconds: 60, demoteAfterSeconds: 30}}
  signals: [{{name: gateway, type: Pushed}}]
"""
ASKER = ScaledObject("spares", NAMESPACE_NAME, {"fleet": FLEET})
ROLE = documented_role() | {
    (resource, verb)
    for resource, verbs in {
        "configmaps": "get list create update",
        "services": "list watch",
        "scaledobjects.keda.sh": "list watch",
        "horizontalpodautoscalers.autoscaling": "list watch",
    }.items()
    for verb in verbs.split()
}
OPTIONAL = frozenset({"inferencepools"})
"""What a controller looks at where it may, and goes without where it may not."""
_WRITES = frozenset({"create", "update", "patch", "delete"})


@dataclass
class PodAgents:
    """Agents of pods, which report to every controller."""

    scripted: ScriptedAgents
    controllers: Sequence[str]
    gpus: Mapping[str, str] = field(default_factory=dict)
    """The GPU that all seats of a node have, by the node's name; those of other nodes have none."""

    def begin(self, seat: Seat, address: str) -> None:
        if seat.node in self.gpus:  # told from the first word on: nobody is promoted who seems to have none
            self.scripted.gpus[seat.name] = [self.gpus[seat.node]]
        self.scripted.begin(seat, address, [CHAT], self.controllers)

    async def end(self, name: SeatName) -> None:
        self.scripted.end(name)


@dataclass
class Replica:
    """One controller process."""

    name: str
    port: int
    keda_port: int
    calls: list[tuple[float, Call]] = field(default_factory=list)
    refused: list[Call] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def may(self, call: Call) -> bool:
        """It may do what its Role says, and is watched."""
        self.calls.append((time.monotonic(), call))
        if allowed(ROLE, call):
            return True
        self.refused.append(call)
        return False

    def writes(self, since: float = 0.0) -> list[Call]:
        return [call for at, call in self.calls if at >= since and call.verb in _WRITES]


@dataclass
class Rig:
    """Everything that runs."""

    directory: Path
    api: KubeApi
    kube: Cluster
    agents: ScriptedAgents
    processes: Processes
    session: aiohttp.ClientSession
    a: Replica
    b: Replica
    url: str
    _sequence: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @property
    def replicas(self) -> tuple[Replica, Replica]:
        return self.a, self.b

    async def start(self, replica: Replica) -> None:
        path = self.directory / f"{replica.name}.kubeconfig"
        path.write_text(json.dumps(kubeconfig(self.url, replica.name, NAMESPACE_NAME)))
        await self.processes.emberpool(
            replica.name,
            *("controller", "--policy", str(self.directory / "policies.yaml")),
            *("--kubernetes", "--kubeconfig", str(path), "--port", str(replica.port)),
            *("--keda-port", str(replica.keda_port)),
        )

    # ---- looking

    async def get(self, replica: Replica, path: str) -> tuple[int, str, Mapping[str, str]]:
        """One GET; status 0 when nobody answers."""
        try:
            async with self.session.get(replica.url + path) as response:
                return response.status, await response.text(), response.headers
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, "", {}

    async def leads(self, replica: Replica) -> bool:
        _, page, _ = await self.get(replica, "/metrics")
        return re.search(r"^emberpool_leader 1\.0$", page, re.MULTILINE) is not None

    async def until(self, what: str, condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Wait until an awaited condition is true, and return it; the deadline names what was waited for."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if found := await condition():
                return found
            await asyncio.sleep(0.05)
        logs = "\n".join(
            path.read_text("utf-8")[-3000:]
            for each in self.replicas
            if (path := self.directory / f"{each.name}.log").exists()  # else it hasn't been started
        )
        raise AssertionError(f"waited for {what}; the controllers' last words:\n{logs}")

    async def ready(self, replica: Replica) -> None:
        async def answers() -> bool:
            return (await self.get(replica, "/readyz"))[0] == 200

        await self.until(f"{replica.name} to be ready", answers)

    async def warm(self, replica: Replica) -> None:
        """Wait until the fleet is as its policies want it, as a replica tells."""

        async def told() -> bool:
            status, text, _ = await self.get(replica, "/v1/status")
            return status == 200 and json.loads(text)["ready"]

        await self.until("a warm fleet", told)

    async def up(self, replica: Replica, seats: int) -> None:
        """Wait until a replica tells of so many seats whose residents have all been proven."""

        async def told() -> bool:
            status, text, _ = await self.get(replica, "/v1/seats")
            found = json.loads(text)["items"] if status == 200 else []
            proven = [each["provenAt"] for seat in found for each in seat["residents"]]
            return len(found) == len(proven) == seats and all(proven)

        await self.until(f"{seats} seats to be up", told)

    async def push(self, queued: int, in_flight: int = 0) -> None:
        """Push a gateway's sample to controllers."""
        numbers = {
            **dict.fromkeys(("arrived", "completed", "refused", "failed"), 0),
            "inFlight": in_flight,
            "queued": queued,
            "oldestWaitSeconds": 0.1 if queued else 0,
            "peak": in_flight + queued,
        }
        body = {
            "instance": "gateway-1",
            "kind": "Gateway",
            "sequence": next(self._sequence),
            "at": time.time(),
            "policies": {CHAT: numbers},
        }
        for replica in dict.fromkeys(each.url for each in reversed(self.replicas)):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            try:
                async with self.session.post(
                    f"{replica}/v1/signals",
                    json=body,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=2.0),
                ) as answer:
                    assert answer.status in {200, 204}, await answer.text()
            except (aiohttp.ClientError, TimeoutError):
                continue  # it was killed, or stopped


async def total(client: KedaClient) -> float | None:
    """Ask as KEDA does; None where there is no answer."""
    try:
        (metric,) = await client.metrics(ASKER, "")
    except CallFailed:
        return None
    return metric.value


@asynccontextmanager
async def keda(*replicas: Replica) -> AsyncIterator[list[KedaClient]]:
    """Connect to each as KEDA does."""
    async with (
        connected(f"127.0.0.1:{replicas[0].keda_port}") as first,
        connected(f"127.0.0.1:{replicas[-1].keda_port}") as last,
    ):
        yield [first, last]


@asynccontextmanager
async def running(directory: Path, gpus: Mapping[str, str] | None = None) -> AsyncIterator[Rig]:
    """Run a cluster and start both controllers: `a` leads by the time that `b` starts. `gpus` are those of nodes' seats."""
    (directory / "policies.yaml").write_text(POLICIES, "utf-8")
    ports = free_ports(4)
    a, b = Replica("a", ports[0], ports[1]), Replica("b", ports[2], ports[3])
    api = KubeApi({each.name: User(name=each.name, may=each.may) for each in (a, b)})
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        serving(api) as url,
        scripted_agents(TOKEN, Timing(start=0.2)) as agents,
        aiohttp.ClientSession(timeout=timeout) as session,
        Processes(directory) as processes,
        asyncio.TaskGroup() as tasks,
    ):
        kube = Cluster(api, PodAgents(agents, [a.url, b.url], gpus or {}))
        kube.make(FLEET, {"emberpool.dev/agent-port": str(agents.port)}, replicas=2)
        behind = tasks.create_task(kube.run())
        rig = Rig(directory, api, kube, agents, processes, session, a, b, url)
        try:
            await rig.start(a)
            await rig.warm(a)
            await rig.start(b)
            await rig.ready(b)
            yield rig
            refused = {(call.verb, call.resource) for each in rig.replicas for call in each.refused}
            assert {each for each in refused if each[1] not in OPTIONAL} == set(), refused
        finally:
            behind.cancel()
