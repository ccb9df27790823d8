"""A cluster for the contract suite: the tests' API server, a workload's controller, a node, and agents at pods' addresses.

The controller and the node change objects beside the network, so that faults of the server befall the adapter alone.
"""

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.cluster import KubeCluster, Place
from scaler.cluster.kube.election import Leadership
from scaler.cluster.kube.fleets import KubeFleet
from scaler.cluster.kube.resources import DEPLOYMENT
from scaler.cluster.kube.scale import Target
from scaler.cluster.reports import Reader
from scaler.cluster.static.asking import StateReader
from tests.fakes.kube_api import Call, KubeApi, Pace, User, kubeconfig, serving
from tests.fakes.kube_api import patches as patching
from tests.fakes.kube_api.api import Target as Object
from tests.fakes.kube_api.kinds import BY_PATH, NAMESPACE, NODE, POD, Kind
from tests.fakes.kube_api.store import Change
from tests.fakes.scripted_agents import ScriptedAgents, scripted_agents
from tests.integration.kube.conftest import allowed, documented_role, written
from warmpool.claim import Term
from warmpool.seats import FLEET_LABEL, FleetName, PolicyName, Seat, SeatName

NAMESPACE_NAME = "pool"
TOKEN = "secret"
DEPLOYMENTS = BY_PATH["apps", "v1", "deployments"]
GATE = "emberpool.dev/admitted"
_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}
Body = Mapping[str, Any]


class Agents(Protocol):
    """Runs agents."""

    def begin(self, seat: Seat, address: str) -> None:
        """A pod's agent begins at its address."""

    async def end(self, name: SeatName) -> None:
        """A pod's agent ends."""


def loopback_addresses() -> Callable[[], str]:
    """Return a source of addresses of this machine that no other test uses at the same time."""
    second, third, numbers = random.randint(16, 250), os.getpid() % 250 + 1, itertools.count(1)
    return lambda: f"127.{second}.{third}.{next(numbers)}"


@dataclass
class Cluster:
    """What stands behind the API server: it makes pods for Deployments, runs them, and ends them.

    Attributes:
        api: the server.
        agents: run pods' agents.
        nodes: names of nodes; pods take turns.
        address: makes pods' addresses.
    """

    api: KubeApi
    agents: Agents
    nodes: Sequence[str] = ("node-a", "node-b")
    address: Callable[[], str] = field(default_factory=loopback_addresses)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _running: dict[str, str] = field(default_factory=dict)
    _ending: set[str] = field(default_factory=set)
    _turns: "itertools.count[int]" = field(default_factory=itertools.count)

    def make(self, fleet: FleetName, annotations: Mapping[str, str], replicas: int = 0) -> None:
        """Make the namespace, the nodes, and a fleet's Deployment."""
        self.create(Object(kind=NAMESPACE, namespace=""), {"metadata": {"name": NAMESPACE_NAME}})
        for name in self.nodes:
            self.create(Object(kind=NODE, namespace=""), {"metadata": {"name": name}})
        labels = {"app": fleet, FLEET_LABEL: fleet}
        template = {
            "metadata": {"labels": labels, "annotations": dict(annotations)},
            "spec": {
                "readinessGates": [{"conditionType": GATE}],
                "containers": [{"name": "seat", "image": "emberpool.invalid/seat"}],
            },
        }
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": fleet}}, "template": template}
        self.create(
            Object(kind=DEPLOYMENTS, namespace=NAMESPACE_NAME), {"metadata": {"name": fleet}, "spec": spec}
        )

    def create(self, target: Object, body: Body) -> None:
        self.api.create(target, dict(body), {})

    async def run(self) -> None:
        """Keep everything as it should be, until cancelled."""
        ends = [self.api.store.listen(kind, self._heard) for kind in (DEPLOYMENTS, POD)]
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._woken.clear()
                    self._reconcile(tasks)
                    await self._woken.wait()
                    await asyncio.sleep(0.005)
        finally:
            for end in ends:
                end()

    def _heard(self, _: Change) -> None:
        self._woken.set()

    def _reconcile(self, tasks: asyncio.TaskGroup) -> None:
        pods = [item.body for item in self.api.store.all(POD, NAMESPACE_NAME)]
        for pod in pods:
            self._run(pod, tasks)
        for item in self.api.store.all(DEPLOYMENTS, NAMESPACE_NAME):
            self._resize(item.body, [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]])

    # ------------------------------------------------------------ the workload's controller

    def _resize(self, workload: Body, pods: Sequence[Body]) -> None:
        selector, wanted = workload["spec"]["selector"]["matchLabels"], workload["spec"]["replicas"]
        mine = [pod for pod in pods if selector.items() <= (pod["metadata"].get("labels") or {}).items()]
        for pod in sorted(mine, key=_removed_first)[: max(0, len(mine) - wanted)]:
            self.api.delete(_object(pod), {}, {})
        for _ in range(wanted - len(mine)):
            template = workload["spec"]["template"]
            metadata = {
                "generateName": f"{workload['metadata']['name']}-",
                "labels": {**template["metadata"]["labels"], "pod-template-hash": "first"},
                "annotations": template["metadata"]["annotations"],
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": "first",
                        "uid": "u",
                        "controller": True,
                    }
                ],
            }
            node = self.nodes[next(self._turns) % len(self.nodes)]
            body = {"metadata": metadata, "spec": {**template["spec"], "nodeName": node}}
            self.create(Object(kind=POD, namespace=NAMESPACE_NAME), body)

    # ------------------------------------------------------------ the node

    def _run(self, pod: Body, tasks: asyncio.TaskGroup) -> None:
        metadata = pod["metadata"]
        if "deletionTimestamp" in metadata:
            if metadata["name"] not in self._ending:
                self._ending.add(metadata["name"])
                tasks.create_task(self._end(pod))
        elif metadata["name"] not in self._running:
            self._begin(pod)
        elif _condition(pod, GATE) and not _condition(pod, "Ready"):
            self.status(metadata["name"], {"conditions": [{"type": "Ready", "status": "True"}]})

    def _begin(self, pod: Body) -> None:
        metadata, address = pod["metadata"], self.address()
        self._running[metadata["name"]] = address
        ready = [{"type": "Ready", "status": "False"}]
        self.status(
            metadata["name"],
            {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready},
        )
        fleet = FleetName(metadata["labels"][FLEET_LABEL])
        seat = Seat(
            name=SeatName(metadata["name"]),
            uid=metadata["uid"],
            version="",
            fleet=fleet,
            node=pod["spec"].get("nodeName", ""),
        )
        self.agents.begin(seat, address)

    async def _end(self, pod: Body) -> None:
        await self.agents.end(SeatName(pod["metadata"]["name"]))
        self._running.pop(pod["metadata"]["name"], None)
        self.api.delete(_object(pod), {"gracePeriodSeconds": 0}, {})

    def status(self, name: str, status: Body) -> None:
        """Write a part of a pod's status, as its kubelet does."""
        target = Object(kind=POD, namespace=NAMESPACE_NAME, name=name, subresource="status")
        self.api.patch(target, patching.STRATEGIC, {"status": status}, {})


def _object(pod: Body) -> Object:
    return Object(kind=POD, namespace=NAMESPACE_NAME, name=pod["metadata"]["name"])


def _condition(pod: Body, kind: str) -> bool:
    held = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in held)


def _removed_first(pod: Body) -> tuple[Any, ...]:
    """As a ReplicaSet removes pods."""
    cost = (pod["metadata"].get("annotations") or {}).get("controller.kubernetes.io/pod-deletion-cost", "0")
    return (
        bool(pod["spec"].get("nodeName")),
        _RANK.get(pod["status"].get("phase", "Pending"), 2),
        _condition(pod, "Ready"),
        int(cost),
        pod["metadata"]["uid"],
    )


def controller_api() -> KubeApi:
    """A server on which `test` may do what the documentation says that a controller may, and nothing else."""
    users = {"test": User(name="test", may=partial(allowed, documented_role())), "admin": User(name="admin")}
    return KubeApi(users, Pace(second=0.02, bookmarks=5))


def fleet_of(name: FleetName, **changes: bool) -> KubeFleet:
    target = Target(kind=DEPLOYMENT, namespace=NAMESPACE_NAME, name=name)
    return KubeFleet(name=name, target=target, **changes)


LEADER = Leadership(Term(holder="test", epoch=1), lambda _: True)


@contextlib.asynccontextmanager
async def connected(api: KubeApi, directory: Path) -> AsyncIterator[KubeClient]:
    """A controller's client of the server."""
    async with serving(api) as url:
        path = written(directory / "kubeconfig", kubeconfig(url, "test", NAMESPACE_NAME))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) as client:
            yield client


@contextlib.asynccontextmanager
async def running(parts: Sequence[Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Run parts until the context is left."""
    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(_awaited(part)) for part in parts]
        try:
            yield
        finally:
            for task in begun:
                task.cancel()


async def _awaited(part: Callable[[], Awaitable[None]]) -> None:
    await part()


@contextlib.asynccontextmanager
async def kube_cluster(
    client: KubeClient,
    reader: Reader,
    fleets: Sequence[KubeFleet],
    leadership: Leadership | None = LEADER,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[KubeCluster]:
    """A controller's adapter, once it has seen everything; it leads if it has a term."""
    cluster = KubeCluster(Place(client=client, namespace=NAMESPACE_NAME, clock=clock), fleets, reader)
    async with running([cluster.run]):
        leading = contextlib.nullcontext() if leadership is None else cluster.leading(leadership)
        async with leading:
            async with asyncio.timeout(30):
                await cluster.wait_synced()
            yield cluster


class Scripted:
    """Agents without engines, at pods' addresses.

    Attributes:
        controllers: whom agents that begin from now on push to.
    """

    def __init__(self, agents: ScriptedAgents, policies: Sequence[PolicyName]) -> None:
        self._agents = agents
        self._policies = policies
        self.controllers: list[str] = []

    def begin(self, seat: Seat, address: str) -> None:
        self._agents.begin(seat, address, self._policies, self.controllers)

    async def end(self, name: SeatName) -> None:
        self._agents.end(name)


@dataclass(frozen=True)
class Stage:
    """An API server with all that stands behind it, and a controller's way to it.

    Attributes:
        api: the server.
        side: makes and runs pods.
        agents: the pods' agents, which push to nobody.
        client: a controller's client.
        reader: asks agents.
        orders: gives orders to agents.
    """

    api: KubeApi
    side: Cluster
    agents: ScriptedAgents
    client: KubeClient
    reader: Reader
    orders: HttpAgents

    def controller(
        self,
        fleets: Sequence[KubeFleet],
        leadership: Leadership | None = LEADER,
        clock: Callable[[], float] = time.monotonic,
    ) -> contextlib.AbstractAsyncContextManager[KubeCluster]:
        """A controller's adapter; several may run at once, and one after another."""
        return kube_cluster(self.client, self.reader, fleets, leadership, clock)

    def pod(self, name: str) -> Body:
        found = self.api.store.get(POD, (NAMESPACE_NAME, name))
        assert found is not None
        return found.body

    def change(self, name: str, change: Body, kind: Kind = POD, subresource: str = "") -> None:
        """Merge something into an object, as whoever else writes it."""
        namespace = NAMESPACE_NAME if kind.namespaced else ""
        target = Object(kind=kind, namespace=namespace, name=name, subresource=subresource)
        self.api.patch(target, patching.MERGE, dict(change), {})

    def writes(self) -> list[Call]:
        """What controllers have written so far, Events aside."""
        return [
            call
            for call in self.api.calls
            if call.verb not in {"get", "list", "watch"} and call.resource != "events"
        ]


@contextlib.asynccontextmanager
async def stage(directory: Path, fleet: FleetName, policies: Sequence[PolicyName]) -> AsyncIterator[Stage]:
    """Everything but a controller; the fleet's Deployment has no pods yet."""
    api = controller_api()
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        agents = await stack.enter_async_context(scripted_agents(TOKEN))
        side = Cluster(api, Scripted(agents, policies))
        side.make(fleet, {"emberpool.dev/agent-port": str(agents.port)})
        client = await stack.enter_async_context(connected(api, directory))
        await stack.enter_async_context(running([side.run]))
        yield Stage(api, side, agents, client, StateReader(session, TOKEN), HttpAgents(session, TOKEN))


async def until(
    cluster: KubeCluster, condition: Callable[[Sequence[Seat]], bool], seconds: float = 30.0
) -> Sequence[Seat]:
    """Wait until the seats fulfil a condition."""
    changed = asyncio.Event()
    end = cluster.subscribe(changed.set)
    try:
        async with asyncio.timeout(seconds):
            while not condition(cluster.seats()):
                await changed.wait()
                changed.clear()
    finally:
        end()
    return cluster.seats()
