"""What a controller works on, in virtual time: an API server, the cluster's own controllers, nodes, and the agents of seats.

The API server and the control plane are the tests' own (`tests.fakes.kube_api`, `tests.fakes.control_plane`), over a network without
sockets. The control plane has an entrance of its own to the same objects, so that faults of the server befall controllers alone.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from scaler.cluster.kube.access import Access
from scaler.errors import NotFound
from tests.fakes.control_plane import controlling
from tests.fakes.control_plane.deployments import Deployments
from tests.fakes.control_plane.endpoint_slices import EndpointSlices
from tests.fakes.control_plane.garbage import Garbage
from tests.fakes.control_plane.loops import Controller
from tests.fakes.control_plane.pods import condition
from tests.fakes.control_plane.replica_sets import ReplicaSets
from tests.fakes.kube_api import KubeApi, User, patches
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import BY_PATH, NAMESPACE, NODE, POD
from tests.fakes.kube_api.server import Server
from tests.fakes.kube_api.store import Change
from tests.fakes.kube_calls import Calls
from tests.fakes.loop_clock import EPOCH
from tests.fakes.memory_cluster import S, Timing
from tests.fakes.scripted_agents import ScriptedAgents
from tests.sim.fault_schedules.processes import Process
from tests.sim.fault_schedules.wires import Network, WireConnector, WiredClient
from warmpool.agent.orders import OrderKind
from warmpool.errors import AgentBusy, EngineLost, GpuUnfit
from warmpool.seats import FLEET_LABEL, SERVING_LABEL_PREFIX, FleetName, PolicyName, Seat, SeatName
from warmpool.states import COMPUTING

Body = dict[str, Any]
NAMESPACE_NAME, TOKEN, GATE = "pool", "secret", "emberpool.dev/admitted"
PRIORITIES = {"chat": 100, "code": 0}
"""Of the policies."""
DEPLOYMENT, SERVICE = BY_PATH["apps", "v1", "deployments"], BY_PATH["", "v1", "services"]
API_PORT, AGENT_PORT = 6443, 9081
FRONT, BEHIND = "api", "behind"
"""Hosts at which the API server answers: to controllers, and to the cluster's own parts."""
_ENDING_SECONDS = 2.0
_STARTS = (S.LOADING, S.WARMING, S.PROVING, S.PAUSED)


class Credentials:
    """A token that stays."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def authorization(self) -> str:
        return f"Bearer {self._token}"

    async def renew(self) -> None:
        """There is no other."""


def client(network: Network, host: str, token: str) -> WiredClient:
    """Make a client of the API server."""
    made = WiredClient(
        Access(
            server=f"http://{host}:{API_PORT}",
            namespace=NAMESPACE_NAME,
            credentials=Credentials(token),
            source="a test",
        )
    )
    made.network = network
    return made


def virtual_wall() -> float:
    return EPOCH + asyncio.get_running_loop().time()


class SeatAgents(ScriptedAgents):
    """Agents whose engines and themselves can be killed, and who know what their GPUs are worth.

    Args:
        wall: Unix seconds.

    Attributes:
        words: what is said of seats' GPUs, where it isn't Ok.
        addresses: of seats.
        faults: what an engine was made to do that it must not.
        unfit: since when a controller has known that a seat's GPU is unfit, by seat and host.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(TOKEN, Timing(start=0.4))
        self.engines.wall = self.wall = wall
        self.engines.refuse = self._refuse
        self.words: dict[SeatName, str] = {}
        self.addresses: dict[SeatName, str] = {}
        self.faults: list[str] = []
        self.unfit: dict[tuple[SeatName, str], float] = {}
        self._open: dict[SeatName, set[asyncio.Transport]] = {}
        self._lives: dict[SeatName, int] = {}
        self._generations: dict[tuple[SeatName, PolicyName], int] = {}
        self._work: set[asyncio.Task[Any]] = set()

    async def serve(self, runner: web.BaseRunner, session: aiohttp.ClientSession) -> None:
        """Push over a session until cancelled; the runner answers."""
        self._session = session
        try:
            await asyncio.Event().wait()
        finally:
            for name in list(self.addresses):
                self.end(name)
            for task in self._work:
                task.cancel()
            await runner.cleanup()

    def runner(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def answer(self, request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None
        name = self._at.get(transport.get_extra_info("sockname")[0])
        if name is not None:
            self._open.setdefault(name, set()).add(transport)
        if request.method == "PUT":
            return web.json_response({})  # hints that change nothing here
        return await super().answer(request)

    def _cut(self, name: SeatName) -> None:
        for transport in self._open.pop(name, ()):
            transport.abort()

    def begin(
        self, seat: Seat, address: str, policies: Sequence[PolicyName], controllers: Sequence[str]
    ) -> None:
        self.addresses[seat.name] = address
        self._lives[seat.name] = 1
        self.gpus[seat.name] = [f"GPU-{seat.name}"]
        super().begin(seat, address, policies, controllers)

    def end(self, name: SeatName) -> None:
        self.silent.discard(name)
        self.words.pop(name, None)
        self._cut(name)
        del self.addresses[name]
        super().end(name)

    def state(self, name: SeatName) -> Body:
        said = {
            "uuid": self.gpus[name][0],
            "verdict": self.words.get(name, "Ok"),
            "reason": "",
            "ageMilliseconds": 0,
        }
        return {**super().state(name), "pid": self._lives[name], "at": self.wall(), "gpuHealth": [said]}

    async def _tell(self, name: SeatName, controller: str) -> bool:
        word, host = self.words.get(name), str(URL(controller).host)
        told = await super()._tell(name, controller)
        if told and word is not None:
            self.unfit.setdefault((name, host), asyncio.get_running_loop().time())
        if (told and word is None) or name not in self.words:
            self.unfit.pop((name, host), None)
        return told

    def forget(self, host: str) -> None:
        """A controller has begun anew, and knows nothing yet."""
        self.unfit = {key: since for key, since in self.unfit.items() if key[1] != host}

    # ------------------------------------------------------------ faults

    def kill_agent(self, name: SeatName, seconds: float) -> None:
        """The agent dies, and another takes its place after a while; engines and what they were told stay."""
        self.silent.add(name)
        self._lives[name] += 1
        self._sequences[name] = 0
        self._cut(name)
        asyncio.get_running_loop().call_later(seconds, self.silent.discard, name)

    def kill_engine(self, name: SeatName, policy: PolicyName) -> None:
        """An engine dies as by SIGKILL; its agent starts another when nothing else computes on the seat."""
        if self.engines.state(name, policy) is S.FAILED:
            return
        self._born(name, policy)
        self.engines.move(name, policy, S.FAILED, failure="killed by signal 9")
        self._spawn(self._restart(name, policy, self._generations[name, policy]))

    # ------------------------------------------------------------ engines

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    def _born(self, name: SeatName, policy: PolicyName) -> int:
        number = self._generations.get((name, policy), 0) + 1
        self._generations[name, policy] = number
        return number

    async def _live(self, name: SeatName, policies: Sequence[PolicyName]) -> None:
        for policy in policies:
            await self._start(name, policy, self._born(name, policy))

    async def _restart(self, name: SeatName, policy: PolicyName, generation: int) -> None:
        await asyncio.sleep(0.3)
        try:
            if await self._idle(name, policy, generation):
                self.engines.move(name, policy, S.STARTING)
                await self._start(name, policy, generation)
        except NotFound:
            return

    async def _start(self, name: SeatName, policy: PolicyName, generation: int) -> None:
        for state in _STARTS:
            await asyncio.sleep(self.engines.timing.start / 4)
            if not await self._idle(name, policy, generation):
                return
            self.engines.move(name, policy, state)

    async def _idle(self, name: SeatName, policy: PolicyName, generation: int) -> bool:
        """Wait until nobody else computes on a seat; False if another engine has taken this one's place."""
        while self._generations[name, policy] == generation:
            if self._computing(name, policy) is None:
                return True
            await asyncio.sleep(0.05)
        return False

    def _computing(self, name: SeatName, but: PolicyName) -> PolicyName | None:
        residents = self.objects.get(name).residents
        return next(
            (each.policy for each in residents if each.policy != but and each.state in COMPUTING), None
        )

    # ------------------------------------------------------------ orders

    def _refuse(self, verb: str, name: SeatName, policy: PolicyName) -> Exception | None:
        if verb == OrderKind.RESUME and name in self.words:
            return GpuUnfit(f"its GPU is {self.words[name]}")
        if (
            verb in {OrderKind.RESUME, OrderKind.PROVE}
            and (other := self._computing(name, policy)) is not None
        ):
            return AgentBusy(f"{other} computes")
        if verb == OrderKind.PAUSE and self.engines.state(name, policy) is S.FAILED:
            return EngineLost(f"{policy} died")
        return None

    async def _carry_out(self, name: SeatName, verb: str, body: object) -> Mapping[str, Any]:
        """Carry an order out whether or not anybody waits for the answer."""
        carried_out = super()._carry_out

        async def work() -> Mapping[str, Any]:
            try:
                return await carried_out(name, verb, body)
            except AssertionError as error:
                self.faults.append(str(error))
                raise

        task = self._spawn(work())
        task.add_done_callback(_seen)
        answer: Mapping[str, Any] = await asyncio.shield(task)
        return answer


def _seen(task: "asyncio.Task[Any]") -> None:
    """Take note of what came of it: whoever waited for the answer may be gone."""
    if not task.cancelled():
        task.exception()


class Machines:
    """Objects, nodes that run pods, and people who change things.

    Args:
        api: the server, as controllers see it.
        agents: of the seats.
        policies: of every seat's residents.
        controllers: base URLs to which agents report.
        address: makes pods' addresses.
    """

    def __init__(
        self,
        api: KubeApi,
        agents: SeatAgents,
        policies: Sequence[PolicyName],
        controllers: Sequence[str],
        address: Callable[[], str],
    ) -> None:
        self.api = api
        self.agents = agents
        self.policies = policies
        self._controllers = controllers
        self._address = address
        self._woken = asyncio.Event()
        self._begun: set[str] = set()
        self._ending: set[str] = set()

    def wall(self) -> float:
        return self.agents.wall()

    def make(self, fleet: FleetName, replicas: int) -> None:
        """Make the objects that people make."""
        self._make(Target(kind=NAMESPACE, namespace=""), {"metadata": {"name": NAMESPACE_NAME}})
        for name in ("node-a", "node-b"):
            self._make(Target(kind=NODE, namespace=""), {"metadata": {"name": name}})
        for policy in self.policies:
            self._make(Target(kind=SERVICE, namespace=NAMESPACE_NAME), _service(fleet, policy))
        deployment = _deployment(fleet, replicas, self.agents.port)
        self._make(Target(kind=DEPLOYMENT, namespace=NAMESPACE_NAME), deployment)

    def _make(self, target: Target, body: Body) -> None:
        self.api.create(target, body, {})

    # ------------------------------------------------------------ nodes

    async def run(self) -> None:
        """Bind pods to nodes, run them, and end them."""
        self.api.store.listen(POD, self._heard)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._woken.clear()
                for item in self.api.store.all(POD, NAMESPACE_NAME):
                    self._run(item.body, tasks)
                await self._woken.wait()
                await asyncio.sleep(0.02)

    def _heard(self, _: Change) -> None:
        self._woken.set()

    def _run(self, pod: Mapping[str, Any], tasks: asyncio.TaskGroup) -> None:
        name = pod["metadata"]["name"]
        if "deletionTimestamp" in pod["metadata"]:
            if name not in self._ending:
                self._ending.add(name)
                tasks.create_task(self._end(name))
        elif name not in self._begun:
            self._begin(pod)
        elif condition(pod, GATE).get("status") == "True" and condition(pod, "Ready").get("status") != "True":
            self.status(name, {"conditions": [{"type": "Ready", "status": "True"}]})

    def _begin(self, pod: Mapping[str, Any]) -> None:
        metadata, address = pod["metadata"], self._address()
        name = metadata["name"]
        self._begun.add(name)
        node = ("node-a", "node-b")[len(self._begun) % 2]
        target = Target(kind=POD, namespace=NAMESPACE_NAME, name=name, subresource="binding")
        self.api.bind(target, {"target": {"name": node}}, {})
        ready = [{"type": "Ready", "status": "False"}]
        self.status(
            name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
        )
        fleet = FleetName(metadata["labels"][FLEET_LABEL])
        seat = Seat(name=SeatName(name), uid=metadata["uid"], version="", fleet=fleet)
        self.agents.begin(seat, address, self.policies, self._controllers)

    async def _end(self, name: str) -> None:
        await asyncio.sleep(_ENDING_SECONDS)
        if name in self._begun:
            self.agents.end(SeatName(name))
        target = Target(kind=POD, namespace=NAMESPACE_NAME, name=name)
        self.api.delete(target, {"gracePeriodSeconds": 0}, {})

    def status(self, name: str, status: Body) -> None:
        """Write a part of a pod's status, as its kubelet does."""
        target = Target(kind=POD, namespace=NAMESPACE_NAME, name=name, subresource="status")
        self.api.patch(target, patches.STRATEGIC, {"status": status}, {})

    # ------------------------------------------------------------ people

    def roll_out(self, fleet: FleetName, version: str) -> None:
        """Change the pod template."""
        change = {"spec": {"template": {"metadata": {"annotations": {"version": version}}}}}
        target = Target(kind=DEPLOYMENT, namespace=NAMESPACE_NAME, name=fleet)
        self.api.patch(target, patches.MERGE, change, {})

    def pods(self) -> list[Mapping[str, Any]]:
        return [item.body for item in self.api.store.all(POD, NAMESPACE_NAME)]


class VirtualMachines(Machines):
    """All that in virtual time, each part a process of its own.

    Args:
        network: over which it is reached.
        policies: of every seat's residents.
        controllers: base URLs to which agents report.

    Attributes:
        processes: the parts.
    """

    def __init__(self, network: Network, policies: Sequence[PolicyName], controllers: Sequence[str]) -> None:
        users = {name: User(name=name) for name in ("a", "b", "plane")}
        numbers = itertools.count(1)
        agents = SeatAgents(virtual_wall)
        agents.port = AGENT_PORT
        super().__init__(
            KubeApi(users, wall=virtual_wall),
            agents,
            policies,
            controllers,
            lambda: f"10.0.0.{next(numbers)}",
        )
        self.processes = {name: Process(name) for name in ("api", "plane", "agents")}
        self._network = network
        self._behind = behind(self.api, users, virtual_wall)

    def start(self, fleet: FleetName, replicas: int) -> None:
        """Make the objects, and begin to run everything."""
        self.make(fleet, replicas)
        self.processes["api"].spawn(self._serve())
        self.processes["agents"].spawn(self._run_agents())
        self.processes["agents"].spawn(self.run())
        self.processes["plane"].spawn(self._plane())

    async def _serve(self) -> None:
        for host, api in ((FRONT, self.api), (BEHIND, self._behind)):
            app = web.Application(client_max_size=2**24)
            app.router.add_route("*", "/{path:.*}", Server(api).handle)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await _listen(self._network, runner, host, API_PORT)
        await asyncio.Event().wait()

    async def _run_agents(self) -> None:
        runner = self.agents.runner()
        await _listen(self._network, runner, "*", AGENT_PORT)
        connector, token = WireConnector(self._network), {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(connector=connector, headers=token) as session:
            await self.agents.serve(runner, session)

    async def _plane(self) -> None:
        async with (
            client(self._network, BEHIND, "plane") as opened,
            controlling(Calls(opened), control_plane()),
        ):
            await asyncio.Event().wait()


def behind(api: KubeApi, users: Mapping[str, User], wall: Callable[[], float]) -> KubeApi:
    """Make another entrance to a server's objects, whom its faults don't befall."""
    made = KubeApi(users, wall=wall)
    made.store = api.store
    return made


def control_plane() -> list[Controller]:
    """Return the cluster's own controllers that are needed here."""
    return [Deployments(), ReplicaSets(), EndpointSlices(), Garbage()]


async def _listen(network: Network, runner: web.AppRunner, host: str, port: int) -> None:
    """Let a runner answer at a host, within the running process."""
    await runner.setup()
    assert runner.server is not None
    network.listen(host, port, runner.server)


def _service(fleet: FleetName, policy: PolicyName) -> Body:
    selector = {f"{SERVING_LABEL_PREFIX}{policy}": "true", FLEET_LABEL: fleet}
    return {
        "metadata": {"name": policy},
        "spec": {"selector": selector, "ports": [{"port": 80, "targetPort": 8001}]},
    }


def _deployment(fleet: FleetName, replicas: int, port: int) -> Body:
    labels = {"app": fleet, FLEET_LABEL: fleet}
    pod = {
        "metadata": {"labels": labels, "annotations": {"emberpool.dev/agent-port": str(port)}},
        "spec": {
            "readinessGates": [{"conditionType": GATE}],
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "seat", "image": "emberpool.invalid/seat"}],
        },
    }
    rolling = {"maxSurge": 1, "maxUnavailable": 0}
    return {
        "metadata": {"name": fleet},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": fleet}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": pod,
        },
    }
