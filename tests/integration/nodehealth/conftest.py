"""A whole node agent in the test's loop: real sockets, a real kubelet's gRPC, a scripted driver, a /proc on disk."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.nvml_library import FakeGpu, FakeLibrary
from tests.fakes.pod_resources import Kubelet, log_folder
from tests.fakes.proc_tree import ProcTree, pod_cgroup
from warmpool.nodehealth.app import NodeAgentOptions, serve_until
from warmpool.nodehealth.client import NodeAgent, NoMemory
from warmpool.nodehealth.nvml import DriverNvml
from warmpool.nodehealth.proc_files import ProcFiles
from warmpool.nodehealth.reader import Limits

Json = dict[str, Any]
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
MINE, YOURS = "9fb3ac5b-5a36-4a91-b9a1-0b1a2c7c5a11", "11111111-2222-3333-4444-555555555555"
TOKEN = "secret"
GB = 10**9
WAIT_SECONDS = 10.0
"""No machine is so busy that what isn't scripted to hang would look as if it did."""


@dataclass
class Node:
    """A node: two GPUs, two pods with engines on the first, and whoever calls."""

    directory: Path
    tree: ProcTree
    kubelet: Kubelet = field(default_factory=Kubelet)
    gpus: tuple[FakeGpu, FakeGpu] = field(
        default_factory=lambda: (
            FakeGpu(A, processes={70: 5 * GB, 71: GB, 90: 3 * GB}),
            FakeGpu(B, minor=1, bus_id="00000000:07:00.0"),
        )
    )
    port: int = 0

    def __post_init__(self) -> None:
        self.library = FakeLibrary(*self.gpus)
        self.kubelet.pods = {"serving/seat-0": [A], "serving/seat-1": [f"{A}::1"]}
        self.tree.add(60, ns_pids=(60, 1), cgroup=pod_cgroup(MINE))
        self.tree.add(65, ns_pids=(65, 6), parent=60, cgroup=pod_cgroup(MINE))
        self.tree.add(70, ns_pids=(70, 8), parent=65, cgroup=pod_cgroup(MINE))
        self.tree.add(71, ns_pids=(71, 9), parent=65, cgroup=pod_cgroup(MINE))
        self.tree.add(90, ns_pids=(90, 8), cgroup=pod_cgroup(YOURS, "b" * 64))
        self.caller_is(pod=MINE)

    def caller_is(self, *, pod: str = "", uid: int = 1000, cgroup: str = "0::/") -> None:
        """Say who the test's own process is, to a node agent that looks into /proc."""
        own = os.getpid()
        self.tree.add(
            own, ns_pids=(own, 3) if pod else (own,), uid=uid, cgroup=pod_cgroup(pod) if pod else cgroup
        )

    @property
    def options(self) -> NodeAgentOptions:
        return NodeAgentOptions(
            socket=self.directory / "node.sock",
            kubelet=self.directory / "kubelet.sock",
            latches=self.directory / "gpu-health.json",
            kmsg=None,
            limits=Limits(answer_seconds=WAIT_SECONDS),
            pod_logs=log_folder(self.directory / "pods", {"serving/seat-0": MINE, "serving/seat-1": YOURS}),
        )

    @asynccontextmanager
    async def agent(self, options: NodeAgentOptions | None = None) -> AsyncIterator["Caller"]:
        """Run the node agent, and call it."""
        options, ending = options or self.options, asyncio.Event()
        nvml, files = DriverNvml(self.library), ProcFiles(self.tree.root)
        connector = aiohttp.UnixConnector(str(self.directory / "node.sock"))
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(serve_until(options, nvml, files, ending))
            caller = Caller(session, self)
            try:
                await caller.until(lambda health: health["nvml"] != "Starting")
                yield caller
            finally:
                ending.set()
                await running


class Caller:
    """Whoever asks a node agent over its Unix socket."""

    def __init__(self, session: aiohttp.ClientSession, node: Node) -> None:
        self.session = session
        self.node = node

    async def ask(self, path: str = "/v1/memory", **query: str) -> tuple[int, Json]:
        async with self.session.get(f"http://node{path}", params=query) as response:
            return response.status, await response.json()

    async def memory(self, **query: str) -> Json:
        status, body = await self.ask(**query)
        assert status == 200, body
        return body

    async def page(self) -> str:
        async with self.session.get("http://node/metrics") as response:
            return await response.text()

    async def until(self, found: Callable[[Json], bool], path: str = "/healthz") -> Json:
        """Ask again until the answer is as it should be."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    _, body = await self.ask(path)
                    if found(body):
                        return body
                except aiohttp.ClientConnectionError:  # it doesn't listen yet
                    pass
                await asyncio.sleep(0.005)

    async def told_of_pods(self) -> None:
        """Wait until the kubelet has answered."""
        await self.until(lambda body: not body["notes"], "/v1/memory")

    def client(self, *, pod: str = "") -> NodeAgent:
        return NodeAgent(f"unix://{self.node.directory}/node.sock", NoMemory("nothing is there"), pod=pod)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, ProcTree(tmp_path / "proc"))


@pytest.fixture
async def caller(node: Node) -> AsyncIterator[Caller]:
    """A node agent with its kubelet, both running."""
    async with node.kubelet.listening(node.directory / "kubelet.sock"), node.agent() as calling:
        await calling.told_of_pods()
        yield calling
