"""Nodes: registered with their GPUs, kept alive by heartbeats, and running what is bound to them."""

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from scaler.cluster.kube.errors import AlreadyExists
from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import LEASE, NODE, POD
from scaler.cluster.kube.times import micro_text, seconds_text
from scaler.errors import ClusterError
from tests.fakes.kube_calls import NAMESPACE, Object, reflected
from tests.fakes.kubelet.devices import GPU, Devices
from tests.fakes.kubelet.making import Setting
from tests.fakes.kubelet.pods import PodWorker

log = structlog.get_logger(__name__)
LEASES = "kube-node-lease"
_LEASE_SECONDS = 40


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """One node as it is registered.

    Attributes:
        name: its name.
        gpus: how many GPUs it has.
        cpu, memory: what else pods may take of it.
        labels: beside its host name's.
        taints: what keeps pods off it.
    """

    name: str
    gpus: int = 0
    cpu: str = "16"
    memory: str = "128Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()

    @property
    def devices(self) -> list[str]:
        return [f"GPU-{self.name}-{number}" for number in range(self.gpus)]

    def body(self) -> dict[str, Any]:
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            **({"nvidia.com/gpu.present": "true"} if self.gpus else {}),
            **self.labels,
        }
        return {
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"taints": [dict(each) for each in self.taints]} if self.taints else {},
        }

    def status(self, host_ip: str, now: str, *, ready: bool = True) -> dict[str, Any]:
        capacity = {"cpu": self.cpu, "memory": self.memory, "pods": "110"}
        capacity |= {GPU: str(self.gpus)} if self.gpus else {}
        said = ("KubeletReady", "kubelet is posting ready status") if ready else ("KubeletNotReady", "ended")
        verdicts = {
            "MemoryPressure": ("False", "KubeletHasSufficientMemory", ""),
            "DiskPressure": ("False", "KubeletHasNoDiskPressure", ""),
            "PIDPressure": ("False", "KubeletHasSufficientPID", ""),
            "Ready": ("True" if ready else "False", *said),
        }
        return {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": host_ip},
                {"type": "Hostname", "address": self.name},
            ],
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, (status, reason, message) in verdicts.items()
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.36.2-emberpool-stand-in",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "kernelVersion": platform.release(),
                "osImage": "",
                "containerRuntimeVersion": "processes://",
            },
        }


class _Node:
    """One node while it is there."""

    def __init__(self, options: NodeOptions, setting: Setting) -> None:
        self.options = options
        self.devices = Devices(options.devices)
        self.workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self.over: set[str] = set()
        """Pods whose end the watch hasn't told of yet."""
        self._setting = setting

    async def register(self) -> None:
        calls, name = self._setting.calls, self.options.name
        try:
            await calls.create(NODE, "", self.options.body())
        except AlreadyExists:
            await calls.merge(
                NODE, "", name, {"metadata": {"labels": self.options.body()["metadata"]["labels"]}}
            )
        status = self.options.status(self._setting.network.host_ip, seconds_text(time.time()))
        await calls.strategic(NODE, "", name, {"status": status}, "status")

    async def beat(self) -> None:
        """Renew the node's lease until cancelled."""
        while True:
            try:
                await self._renew()
            except ClusterError as error:
                log.info("a node's lease can't be renewed", node=self.options.name, error=str(error))
            await asyncio.sleep(self._setting.pace.heartbeat)

    async def _renew(self) -> None:
        calls, name = self._setting.calls, self.options.name
        renewed = {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": micro_text(time.time()),
        }
        if await calls.find(LEASE, LEASES, name) is None:
            await calls.create(LEASE, LEASES, {"metadata": {"name": name}, "spec": renewed})
        else:
            await calls.merge(LEASE, LEASES, name, {"spec": renewed})


class Nodes:
    """All nodes of the stand-in; make them with `running`."""

    def __init__(self, options: Sequence[NodeOptions], setting: Setting, tasks: asyncio.TaskGroup) -> None:
        self.setting = setting
        self._tasks = tasks
        self._nodes = {each.name: _Node(each, setting) for each in options}
        self._beating: dict[str, asyncio.Task[None]] = {}
        self._lost: set[str] = set()
        self._pods: Reflector[Object] | None = None

    async def register(self) -> None:
        """Register all nodes, and begin with their heartbeats."""
        with suppress(AlreadyExists):
            await self.setting.calls.create(NAMESPACE, "", {"metadata": {"name": LEASES}})
        for name, node in self._nodes.items():
            await node.register()
            self._beating[name] = self._tasks.create_task(node.beat())

    def follow(self, pods: Reflector[Object]) -> None:
        self._pods = pods
        self.dispatch()

    def follow_nobody(self) -> None:
        self._pods = None

    def dispatch(self) -> None:
        """Give each pod's news to whoever runs it, and take up those that are new."""
        if self._pods is None:
            return
        present = set[str]()
        for pod in self._pods.values():
            name = pod["spec"].get("nodeName")
            node = self._nodes.get(name) if name and name not in self._lost else None
            if node is None:
                continue
            uid = pod["metadata"]["uid"]
            present.add(uid)
            if uid in node.workers:
                node.workers[uid][0].update(pod)
            elif uid not in node.over and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                self._take_up(node, pod)
        for node in self._nodes.values():
            node.over &= present
            for uid in node.workers.keys() - present:
                node.workers[uid][0].removed()

    def _take_up(self, node: _Node, pod: Object) -> None:
        worker = PodWorker(pod, self.setting, node.devices)
        task = self._tasks.create_task(worker.run())
        node.workers[worker.uid] = worker, task
        task.add_done_callback(partial(self._ended, node, worker.uid))

    @staticmethod
    def _ended(node: _Node, uid: str, _task: asyncio.Task[None]) -> None:
        node.workers.pop(uid, None)
        node.over.add(uid)

    # ------------------------------------------------------------ losing nodes

    async def lose(self, name: str) -> None:
        """Let a node break down: its processes are killed, its heartbeats end, and it says nothing any more."""
        self._lost.add(name)
        self._beating.pop(name).cancel()
        await self._kill(self._nodes[name])

    async def bring_back(self, name: str) -> None:
        """Let a node come back that was lost: what is bound to it is started anew."""
        self._lost.discard(name)
        await self._nodes[name].register()
        self._beating[name] = self._tasks.create_task(self._nodes[name].beat())
        self.dispatch()

    async def close(self) -> None:
        """Kill everything; objects stay as they are, as after a power cut."""
        for task in self._beating.values():
            task.cancel()
        for node in self._nodes.values():
            await self._kill(node)

    async def _kill(self, node: _Node) -> None:
        ending = list(node.workers.values())
        for worker, task in ending:
            worker.kill()
            task.cancel()
        if ending:
            await asyncio.wait([task for _, task in ending])
        node.over.clear()
        for worker, _ in ending:
            await self.setting.network.detach(worker.address_key)
            node.devices.give_back(worker.uid)


@asynccontextmanager
async def running(options: Sequence[NodeOptions], setting: Setting) -> AsyncIterator[Nodes]:
    """Register nodes and run what is bound to them, until the context is left."""
    async with asyncio.TaskGroup() as tasks:
        nodes = Nodes(options, setting, tasks)
        await nodes.register()
        async with reflected(setting.calls, {POD: nodes.dispatch}) as held:
            nodes.follow(held[POD])
            try:
                yield nodes
            finally:
                nodes.follow_nobody()
                await nodes.close()
