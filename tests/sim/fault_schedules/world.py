"""Two whole controllers in virtual time, on machines that can fail: processes that are killed and stopped, a network that is cut.

What runs is `scaler.runtime.kube_controller.Replica` as it is, with its client of the API server, its caches, its election, its agents
and its API. Left out are gRPC, the process that reads policy files, and the collector of garbage, none of which lives in virtual time.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from scaler.cluster.kube.cluster import Place
from scaler.cluster.kube.fleets import find_fleets
from scaler.cluster.kube.lease import Candidate
from scaler.errors import ClusterError
from scaler.policy.reading import PolicyFiles, Reading
from scaler.runtime.controller import heartbeat
from scaler.runtime.controller_options import ControllerOptions, KubernetesOptions
from scaler.runtime.controller_wiring import Begin
from scaler.runtime.kube_controller import Replica, Role, Site
from scaler.runtime.led import led_lanes
from tests.fakes.loop_clock import EPOCH
from tests.sim.fault_schedules.invariants import Invariants
from tests.sim.fault_schedules.machines import (
    FRONT,
    NAMESPACE_NAME,
    PRIORITIES,
    TOKEN,
    VirtualMachines,
    client,
)
from tests.sim.fault_schedules.processes import Process, State
from tests.sim.fault_schedules.wires import Network, WireConnector
from warmpool import listening
from warmpool.seats import FleetName, PolicyName

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
POLICY_NAMES = (CHAT, CODE)
IN_FLIGHT, MAX_SEATS = 4, 5
"""What one seat can hold."""
PORT = 9080
REPLICAS = ("a", "b")
POLICIES = f"""\
apiVersion: emberpool.dev/v1alpha1
kind: Fleet
metadata: {{name: spares, namespace: {NAMESPACE_NAME}}}
spec:
  maxSeats: {MAX_SEATS}
  seat: {{gpus: 0}}
  spare: {{mode: Fixed, min: 1}}
  scaleDown: {{stabilizationWindowSeconds: 20}}
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: chat, namespace: {NAMESPACE_NAME}}}
spec:
  fleets: [{{name: spares, targetInFlight: {IN_FLIGHT}}}]
  priority: {PRIORITIES[CHAT]}
  serving: {{min: 1, max: 3, queueDrainSeconds: 1}}
  burst: {{thresholdPercent: 150, windowSeconds: 2, stableWindowSeconds: 10, demoteAfterSeconds: 5}}
  signals: [{{name: gateway, type: Pushed}}]
---
apiVersion: emberpool.dev/v1alpha1
kind: ScalingPolicy
metadata: {{name: code, namespace: {NAMESPACE_NAME}}}
spec:
  fleets: [{{name: spares, targetInFlight: {IN_FLIGHT}}}]
  priority: {PRIORITIES[CODE]}
  serving: {{min: 1, max: 3, queueDrainSeconds: 1}}
  burst: {{thresholdPercent: 150, windowSeconds: 2, stableWindowSeconds: 10, demoteAfterSeconds: 5}}
  signals: [{{name: gateway, type: Pushed}}]
"""
_PUSH_SECONDS = 1.0


@cache
def policies() -> Reading:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "policies.yaml"
        path.write_text(POLICIES, "utf-8")
        return PolicyFiles([path]).read()


class ProcessClock:
    """The `Clock` port; a process' wall clock may be wrong."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return EPOCH + asyncio.get_running_loop().time() + self._process.skew


class World:
    """Everything.

    Args:
        seed: of all that is left to chance.

    Attributes:
        network, machines: on what the controllers work.
        controllers: the processes that run at present, by name.
        load: how many requests are in flight at present, as a gateway tells.
        looking: looks on.
        crashes: controllers that ended by themselves, and why.
        lives: processes that have begun so far.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.network = Network(lambda: self.random.uniform(0.0005, 0.003))
        urls = [f"http://{name}:{PORT}" for name in REPLICAS]
        self.machines = VirtualMachines(self.network, POLICY_NAMES, urls)
        self.controllers: dict[str, Process] = {}
        self.load: dict[PolicyName, int] = {CHAT: 2, CODE: 2}
        self.crashes: list[str] = []
        self.lives = 0
        self.looking = Invariants(machines=self.machines, skew=self._skew)
        self._gateway = Process("gateway")
        self._dead: list[Process] = []

    # ------------------------------------------------------------ controllers

    def start(self, name: str) -> Process:
        """Begin a controller's process."""
        process = Process(name)
        process.died = self.kill
        self.controllers[name] = process
        self.lives += 1
        process.spawn(self._controller(process, f"{name}-{self.lives}"))
        self.machines.agents.forget(name)
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        if process.state is State.KILLED:
            return
        process.kill()
        self.network.gone(process)
        self._dead.append(process)
        if self.controllers.get(process.name) is process:
            del self.controllers[process.name]

    async def _controller(self, process: Process, identity: str) -> None:
        """Run a controller, again if it ends by itself."""
        while True:
            try:
                async with AsyncExitStack() as stack:
                    await self._serve(stack, process, identity)
            except* ClusterError:
                pass  # the cluster can't be asked for the fleets' workloads
            except* Exception as group:  # noqa: BLE001 - whatever it is, it must not have been
                self.crashes.append(f"controller {identity}: {group.exceptions}")
            await asyncio.sleep(1.0)

    async def _serve(self, stack: AsyncExitStack, process: Process, identity: str) -> None:
        clock = ProcessClock(process)
        opened = await stack.enter_async_context(client(self.network, FRONT, process.name))
        session = await stack.enter_async_context(self._session())
        role = Role()
        place = Place(
            client=opened,
            namespace=NAMESPACE_NAME,
            instance=identity,
            through=led_lanes(lambda: role.leadership),
            wall=clock.wall,
            clock=clock.monotonic,
        )
        reading = policies()
        site = Site(
            place=place,
            fleets=await find_fleets(opened, NAMESPACE_NAME, reading.set.fleets.values()),
            session=session,
            me=Candidate(identity=identity, address=f"http://{process.name}:{PORT}"),
            role=role,
        )
        begin = Begin(
            options=ControllerOptions(policies=(), kubernetes=KubernetesOptions(), token=TOKEN),
            policies=reading.set,
            stop=asyncio.Event(),
            reload=asyncio.Event(),
            listener=stack.enter_context(socket.socket()),
            clock=clock,
            registry=CollectorRegistry(),
        )
        replica = Replica(stack, begin, site)
        parts = replica.parts
        runner = listening.runner(parts.app, 1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None
        self.network.listen(process.name, PORT, runner.server)
        following = await stack.enter_async_context(self._session())
        async with asyncio.TaskGroup() as tasks:
            for part in (
                parts.cluster.run(),
                parts.controller.run(),
                heartbeat(parts.controller, 30.0),
                parts.publisher.run(),
                parts.signals.run(),
                *replica.replicating(following),
            ):
                tasks.create_task(part)

    def _session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return aiohttp.ClientSession(connector=WireConnector(self.network), headers=headers)

    def _skew(self) -> float:
        return max([abs(each.skew) for each in self.controllers.values()], default=0.0)

    # ------------------------------------------------------------ a gateway

    async def _tell_load(self) -> None:
        """Push the load to every controller."""
        number = 0
        async with self._session() as session, asyncio.TaskGroup() as tasks:
            while True:
                number += 1
                body = sample(self.load, number, EPOCH + asyncio.get_running_loop().time())
                for name in REPLICAS:
                    tasks.create_task(_push(session, name, body))
                await asyncio.sleep(_PUSH_SECONDS)

    # ------------------------------------------------------------ all of it

    @contextlib.asynccontextmanager
    async def running(self, replicas: int = 3) -> AsyncIterator[None]:
        """Run everything until the context is left."""
        self.machines.start(FLEET, replicas)
        self.looking.begin()
        self._gateway.spawn(self._tell_load())
        for name in REPLICAS:
            self.start(name)
        try:
            yield
        finally:
            self.network.end()
            machines = self.machines.processes.values()
            everybody = (*self._dead, *self.controllers.values(), self._gateway, *machines)
            await asyncio.gather(*(process.bury() for process in everybody))

    @property
    def broken(self) -> tuple[str, ...]:
        """What was not as it must be so far."""
        return (*self.looking.broken, *self.crashes, *self.machines.agents.faults)

    async def until(self, what: str, condition: Callable[[], bool], seconds: float) -> float:
        """Wait until a condition holds, and return how long that took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not condition():
            if loop.time() - began > seconds:
                raise AssertionError(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(0.02)
        return loop.time() - began


def sample(load: Mapping[PolicyName, int], number: int, wall: float) -> dict[str, Any]:
    """What a gateway pushes when so many requests are in flight. PURE."""
    zero = dict.fromkeys(("queued", "arrived", "completed", "refused", "failed", "oldestWaitSeconds"), 0)
    told = {name: {**zero, "inFlight": held, "peak": held} for name, held in load.items()}
    return {"instance": "gateway-1", "kind": "Gateway", "sequence": number, "at": wall, "policies": told}


async def _push(session: aiohttp.ClientSession, name: str, body: dict[str, Any]) -> None:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(
            f"http://{name}:{PORT}/v1/signals", json=body, timeout=aiohttp.ClientTimeout(total=2.0)
        ) as answer:
            await answer.read()
