"""What every cluster adapter promises, run on the in-memory one, on real processes and on a Kubernetes API that misbehaves alike."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from aiohttp import web

from scaler.cluster.agents import Agents
from scaler.cluster.http_agents import HttpAgents
from scaler.cluster.kube.cluster import KubeCluster
from scaler.cluster.local.cluster import LocalCluster, SeatTemplate
from scaler.cluster.port import Cluster
from scaler.cluster.static.asking import StateReader
from scaler.cluster.static.cluster import StaticCluster
from scaler.cluster.static.listing import AgentList
from scaler.errors import Conflict, NotFound, Unreachable
from tests.contract.kube_faults import ALL, Spoil, sound
from tests.contract.kube_rig import (
    TOKEN,
    Scripted,
    connected,
    controller_api,
    fleet_of,
    kube_cluster,
    running,
)
from tests.contract.kube_rig import Agents as PodAgents
from tests.contract.kube_rig import Cluster as KubeSide
from tests.fakes.loop_clock import LoopClock
from tests.fakes.memory_cluster import MemoryAgents, MemoryCluster, Timing
from tests.fakes.ports import free_ports
from tests.fakes.scripted_agents import scripted_agents
from tests.integration.agent.conftest import agent_config, resident
from warmpool.agent.app import serve_until
from warmpool.agent.config import AgentConfig
from warmpool.claim import Errand, Term, new_claim
from warmpool.errors import AgentError, BadOrder, StaleEpoch
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Seat, SeatName, SeatValue, seat_value
from warmpool.states import ResidentState as S

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLEET, CHAT, CODE = FleetName("spares"), PolicyName("chat"), PolicyName("code")
WAIT_SECONDS = 60.0


class Rig:
    """A cluster with its agents, and a way to wait for what it becomes.

    `grow` brings the fleet to a number of seats: by `resize` where a workload makes them, else by starting agents.
    """

    def __init__(
        self,
        cluster: Cluster,
        agents: Agents,
        wall: Callable[[], float],
        grow: Callable[[int], Awaitable[None]],
    ) -> None:
        self.cluster = cluster
        self.agents = agents
        self.wall = wall
        self.grow = grow
        self.epoch = 1
        self._numbers = iter(range(1, 1000))

    def claim(
        self, operation: Operation, policy: PolicyName = CHAT, *, epoch: int = 0, **leaving: PolicyName
    ) -> Claim:
        errand = Errand(operation=operation, policy=policy, leaving=leaving.get("leaving"))
        term = Term(holder="test", epoch=epoch or self.epoch)
        return new_claim(errand, term, number=next(self._numbers), now=self.wall(), seconds=60)

    def seats(self) -> list[Seat]:
        return [seat for seat in self.cluster.seats() if seat.reachable and not seat.terminating]

    async def until(self, condition: Callable[[list[Seat]], bool]) -> list[Seat]:
        changed = asyncio.Event()
        end = self.cluster.subscribe(changed.set)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not condition(self.seats()):
                    await changed.wait()
                    changed.clear()
        finally:
            end()
        return self.seats()

    async def warm(self, seats: int) -> list[Seat]:
        await self.grown(seats)
        return await self.rested(seats)

    async def grown(self, seats: int) -> None:
        """Ask for so many seats, and again where a slow server was not reached in time."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                with contextlib.suppress(Unreachable):
                    return await self.grow(seats)

    async def rested(self, seats: int) -> list[Seat]:
        """Wait until there are so many seats, all of whose residents are paused."""
        return await self.until(
            lambda found: (
                len(found) == seats
                and all(
                    len(seat.residents) == 2 and all(r.state is S.PAUSED for r in seat.residents)
                    for seat in found
                )
            )
        )

    async def calm(self) -> None:
        """Have one seat with every resident paused and no claim, whatever the test before has left."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (seat := self.seats()[0]).claim or any(
                each.state is not S.PAUSED for each in seat.residents
            ):
                with contextlib.suppress(Conflict):  # what is seen may be a moment old
                    await self._calm_down(seat)
                await self.changed(0.25)

    async def _calm_down(self, seat: Seat) -> None:
        if seat.claim is not None:
            await self.cluster.settle(seat.name, seat.claim, serving=None)
        for each in seat.residents if seat.claim is None else ():
            if each.state in {S.SERVING, S.DRAINING}:
                await self.demoted(seat, each.policy)

    async def demoted(self, seat: Seat, policy: PolicyName) -> None:
        order = self.claim(Operation.DEMOTE, policy)
        claimed = await self.cluster.claim(seat, order)
        await self.agents.drain(claimed, order, policy, deadline=10)
        await self.agents.pause(claimed, order, policy, deadline=10)
        await self.cluster.settle(seat.name, order, serving=None)

    async def resized(self, total: int) -> None:
        """Ask until the size may be written: what is about to go must be known to be of no use first."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    return await self.cluster.resize(FLEET, total)
                except (Conflict, Unreachable):
                    await self.changed(0.25)

    async def changed(self, seconds: float) -> None:
        """Wait until something has changed, or for some seconds."""
        changed = asyncio.Event()
        end = self.cluster.subscribe(changed.set)
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            end()

    async def gone(self, seat: Seat) -> None:
        """Wait until a seat is there no more."""
        async with asyncio.timeout(WAIT_SECONDS):
            while any(each.uid == seat.uid for each in self.cluster.seats()):
                await self.changed(0.25)

    async def promoted(self, seat: Seat, policy: PolicyName = CHAT) -> Seat:
        order = self.claim(Operation.PROMOTE, policy)
        claimed = await self.cluster.claim(seat, order)
        await self.agents.resume(claimed, order, policy, deadline=10)
        return await self.cluster.settle(seat.name, order, serving=policy)


@asynccontextmanager
async def memory_rig(_: Path) -> AsyncIterator[Rig]:
    clock = LoopClock()
    cluster = MemoryCluster({FLEET: [CHAT, CODE]}, clock.wall, Timing(start=0.2))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cluster.run())
        yield Rig(cluster, MemoryAgents(cluster.engines), clock.wall, partial(cluster.resize, FLEET))
        running.cancel()


@asynccontextmanager
async def hearing(report: Callable[[dict[str, object]], None]) -> AsyncIterator[str]:
    """A controller's end of agents' pushes."""

    async def take(request: web.Request) -> web.Response:
        try:
            report(json.loads(await request.read()))
        except BadOrder as error:
            return web.Response(status=400, text=str(error))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/v1/agents", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def local_rig(directory: Path) -> AsyncIterator[Rig]:
    (directory / "logs").mkdir()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clusters: list[LocalCluster] = []

        def report(body: dict[str, object]) -> None:
            clusters[0].report(body)

        url = await stack.enter_async_context(hearing(report))
        template = SeatTemplate(
            fleet=FLEET,
            residents=[resident(CHAT, seed=1), resident(CODE, seed=2)],
            placements=[()] * 4,
            environment={"EMBERPOOL_AGENT_TOKEN": TOKEN},
        )
        cluster = LocalCluster([template], directory, [url])
        clusters.append(cluster)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(cluster.run())
            try:
                yield Rig(cluster, HttpAgents(session, TOKEN), time.time, partial(cluster.resize, FLEET))
            finally:
                running.cancel()


@asynccontextmanager
async def static_rig(directory: Path, *, pushing: bool = True) -> AsyncIterator[Rig]:
    """A list of two agents; they run in this loop, their engines as processes."""
    seats = [(f"seat-{i}", port) for i, port in enumerate(free_ports(2))]
    listed = AgentList.model_validate_json(json.dumps(agent_list(seats)))
    ending = asyncio.Event()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        cluster = StaticCluster(listed, StateReader(session, TOKEN))
        url = await stack.enter_async_context(hearing(cluster.report))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())

        async def grow(count: int) -> None:
            for name, port in seats[:count]:
                config = agent_config(
                    directory / name,
                    [resident(CHAT, seed=1), resident(CODE, seed=2)],
                    seat=name,
                    fleet=FLEET,
                    uid=f"uid-{name}",
                    port=port,
                    controllers=[url] if pushing else [],
                )
                tasks.create_task(serve_until(AgentConfig.model_validate(config), TOKEN, ending))
            await cluster.discover()

        running = tasks.create_task(cluster.run())
        try:
            yield Rig(cluster, HttpAgents(session, TOKEN), time.time, grow)
        finally:
            running.cancel()
            ending.set()


class Real:
    """Agents in this loop, at pods' addresses; their engines are processes."""

    def __init__(
        self, directory: Path, port: int, controllers: Sequence[str], tasks: asyncio.TaskGroup
    ) -> None:
        self._directory = directory
        self._port = port
        self._controllers = list(controllers)
        self._tasks = tasks
        self._agents: dict[SeatName, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    def begin(self, seat: Seat, address: str) -> None:
        config = agent_config(
            self._directory / seat.name,
            [resident(CHAT, seed=1), resident(CODE, seed=2)],
            seat=seat.name,
            fleet=seat.fleet,
            uid=seat.uid,
            host=address,
            port=self._port,
            controllers=self._controllers,
        )
        ending = asyncio.Event()
        serving = self._tasks.create_task(serve_until(AgentConfig.model_validate(config), TOKEN, ending))
        self._agents[seat.name] = (ending, serving)

    async def end(self, name: SeatName) -> None:
        ending, serving = self._agents.pop(name)
        ending.set()
        await asyncio.wait([serving])

    def end_all(self) -> None:
        for ending, _ in self._agents.values():
            ending.set()


@asynccontextmanager
async def kube_rig(
    directory: Path, *, spoil: Spoil = sound, real: bool = False, pushing: bool = True
) -> AsyncIterator[Rig]:
    """The adapter on an API server, with agents at pods' addresses that push, or are asked."""
    api = controller_api()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clusters: list[KubeCluster] = []

        def report(body: dict[str, object]) -> None:
            clusters[0].report(body)

        url = await stack.enter_async_context(hearing(report))
        controllers = [url] if pushing else []
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        agents: PodAgents
        if real:
            (port,) = free_ports(1)
            agents = Real(directory, port, controllers, tasks)
            stack.callback(agents.end_all)
        else:
            scripted = await stack.enter_async_context(scripted_agents(TOKEN))
            agents, port = Scripted(scripted, [CHAT, CODE]), scripted.port
            agents.controllers = controllers
        side = KubeSide(api, agents)
        side.make(FLEET, {"emberpool.dev/agent-port": str(port)})
        client = await stack.enter_async_context(connected(api, directory))
        await stack.enter_async_context(running([side.run]))
        spoil(api)
        reader = StateReader(session, TOKEN)
        cluster = await stack.enter_async_context(kube_cluster(client, reader, [fleet_of(FLEET)]))
        clusters.append(cluster)
        yield Rig(cluster, HttpAgents(session, TOKEN), time.time, partial(cluster.resize, FLEET))
        api.faults.clear()


SPOILED = [pytest.param(partial(kube_rig, spoil=spoil), id=f"kube, {spoil.__name__}") for spoil in ALL]


def agent_list(seats: list[tuple[str, int]]) -> dict[str, object]:
    entries = [{"name": name, "agent": f"http://127.0.0.1:{port}"} for name, port in seats]
    return {
        "apiVersion": "emberpool.dev/v1alpha1",
        "kind": "AgentList",
        "metadata": {"name": "test"},
        "spec": {"fleets": [{"name": FLEET, "seats": entries}]},
    }


WITH_WORKLOAD = [
    pytest.param(memory_rig, id="memory"),
    pytest.param(local_rig, id="local"),
    pytest.param(partial(kube_rig, real=True), id="kube"),
    pytest.param(kube_rig, id="kube, scripted"),
    *SPOILED,
]


STARTING = [
    pytest.param(*each.values, id=each.id, marks=pytest.mark.long if each.id == "kube" else ())
    for each in WITH_WORKLOAD
]
"""Of the two on Kubernetes the one whose agents are real has cost seconds before a test of its own begins."""
EVERY = [*WITH_WORKLOAD, pytest.param(static_rig, id="static")]
_WITH_PROCESSES = {str(param.id) for param in EVERY} & {"local", "kube", "static"}


@pytest_asyncio.fixture(params=[*STARTING, EVERY[-1]], loop_scope="module")
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with request.param(tmp_path) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[[Any], Awaitable[Rig]]]:
    """Makes a cluster with real processes once for all tests that leave it as it was."""
    made: dict[object, Rig] = {}
    async with AsyncExitStack() as stack:

        async def get(make: Callable[[Path], contextlib.AbstractAsyncContextManager[Rig]]) -> Rig:
            if make not in made:
                made[make] = await stack.enter_async_context(make(tmp_path_factory.mktemp("lasting")))
                await made[make].warm(1)
            return made[make]

        yield get


@pytest_asyncio.fixture(params=EVERY, loop_scope="module")
async def settled(
    request: pytest.FixtureRequest, tmp_path: Path, lasting: Callable[[Any], Awaitable[Rig]]
) -> AsyncIterator[Rig]:
    """A cluster with one seat, all of whose residents are paused."""
    if request.node.callspec.id in _WITH_PROCESSES:
        kept = await lasting(request.param)
        await kept.calm()
        yield kept
        return
    async with request.param(tmp_path) as made:
        await made.warm(1)
        yield made


@pytest_asyncio.fixture(params=STARTING, loop_scope="module")
async def sized(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """A cluster whose workload starts and ends seats."""
    async with request.param(tmp_path) as made:
        yield made


async def test_a_fleet_grows_to_its_size_with_every_resident_paused_and_proven(rig: Rig) -> None:
    await rig.warm(2)
    seats = await rig.until(lambda found: all(seat.admitted and seat.ready for seat in found))
    assert rig.cluster.replicas(FLEET) == 2
    assert {seat_value(seat) for seat in seats} == {SeatValue.SPARE}
    assert all(r.proven_at is not None and r.address for seat in seats for r in seat.residents)


async def test_a_promotion_and_a_demotion_go_there_and_back(settled: Rig) -> None:
    (seat,) = settled.seats()
    serving = await settled.promoted(seat)
    assert serving.serving == frozenset({CHAT})
    order = settled.claim(Operation.DEMOTE)
    claimed = await settled.cluster.claim(serving, order)
    assert claimed.serving == frozenset()
    await settled.agents.drain(claimed, order, CHAT, deadline=10)
    await settled.agents.pause(claimed, order, CHAT, deadline=10)
    await settled.cluster.settle(seat.name, order, serving=None)
    (again,) = await settled.until(lambda seats: all(r.state is S.PAUSED for r in seats[0].residents))
    assert seat_value(again) is SeatValue.SPARE


async def test_a_switch_serves_the_other_resident_of_the_same_seat(settled: Rig) -> None:
    (seat,) = settled.seats()
    serving = await settled.promoted(seat)
    order = settled.claim(Operation.SWITCH, CODE, leaving=CHAT)
    claimed = await settled.cluster.claim(serving, order)
    await settled.agents.drain(claimed, order, CHAT, deadline=10)
    await settled.agents.pause(claimed, order, CHAT, deadline=10)
    await settled.agents.resume(claimed, order, CODE, deadline=10)
    await settled.cluster.settle(seat.name, order, serving=CODE)
    (switched,) = await settled.until(
        lambda seats: {r.policy: r.state for r in seats[0].residents} == {CHAT: S.PAUSED, CODE: S.SERVING}
    )
    assert switched.serving == frozenset({CODE})


async def test_of_two_claims_on_one_seat_exactly_one_wins(settled: Rig) -> None:
    (seat,) = settled.seats()
    outcomes = await asyncio.gather(
        *(settled.cluster.claim(seat, settled.claim(Operation.PROMOTE, policy)) for policy in (CHAT, CODE)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Seat) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1
    await settled.until(lambda seats: seats[0].claim is not None)


async def test_the_agent_refuses_an_earlier_term(settled: Rig) -> None:
    (seat,) = settled.seats()
    settled.epoch += 4
    late = settled.claim(Operation.PROMOTE)
    await settled.agents.resume(seat, late, CHAT, deadline=10)
    with pytest.raises(StaleEpoch):
        await settled.agents.drain(
            seat, settled.claim(Operation.DEMOTE, epoch=settled.epoch - 1), CHAT, deadline=10
        )
    await settled.until(lambda seats: any(each.state is S.SERVING for each in seats[0].residents))


async def test_a_resident_that_is_not_there_is_refused(settled: Rig) -> None:
    (seat,) = settled.seats()
    with pytest.raises(AgentError):
        await settled.agents.resume(seat, settled.claim(Operation.PROMOTE), PolicyName("nobody"), deadline=5)


async def test_a_smaller_fleet_keeps_the_seat_that_serves(sized: Rig) -> None:
    seats = await sized.warm(2)
    await sized.promoted(seats[1])
    await sized.resized(1)
    (left,) = await sized.until(lambda found: len(found) == 1)
    assert left.name == seats[1].name


async def test_a_deleted_seat_is_made_anew_under_another_identity(sized: Rig) -> None:
    (seat,) = await sized.warm(1)
    await sized.cluster.delete(seat, reason="test")
    await sized.cluster.delete(seat, reason="again")
    # the test ends while the new seat is only being started, which an adapter must survive without leaving anything
    (fresh,) = await sized.until(lambda found: len(found) == 1 and found[0].uid != seat.uid)
    assert fresh.name != seat.name
    await sized.gone(seat)
    with pytest.raises(NotFound):
        await sized.cluster.claim(seat, sized.claim(Operation.PROMOTE))


async def test_no_wish_changes_a_list(tmp_path: Path) -> None:
    async with static_rig(tmp_path) as rig:
        (seat, _) = await rig.warm(2)
        assert isinstance(rig.cluster, StaticCluster)
        await rig.cluster.resize(FLEET, 1)
        assert (rig.cluster.replicas(FLEET), rig.cluster.drift(FLEET)) == (1, -1)
        await rig.cluster.delete(seat, reason="test")
        resting = next(s for s in rig.cluster.seats() if s.name == seat.name)
        assert seat_value(resting) is SeatValue.HELD  # it takes no promotion, and stays
        with pytest.raises(Conflict):
            await rig.cluster.claim(resting, rig.claim(Operation.PROMOTE))
        assert len(rig.seats()) == 2


@pytest.mark.parametrize("asking", [static_rig, kube_rig], ids=["static", "kube"])
async def test_an_agent_that_pushes_nothing_is_asked(asking: Callable[..., Any], tmp_path: Path) -> None:
    async with asking(tmp_path, pushing=False) as rig:
        (seat,) = await rig.warm(1)
        assert seat_value(seat) is SeatValue.SPARE


async def test_another_controller_reads_rotation_off_the_agents(tmp_path: Path) -> None:
    async with static_rig(tmp_path) as rig, aiohttp.ClientSession() as session:
        serving, spare = await rig.promoted((await rig.warm(2))[0]), rig.seats()[1]
        again = AgentList.model_validate_json(
            json.dumps(agent_list([(s.name, int(s.agent.rpartition(":")[2])) for s in rig.seats()]))
        )
        cluster = StaticCluster(again, StateReader(session, TOKEN))
        assert not cluster.synced
        await cluster.discover()
        assert cluster.synced
        assert {s.name: s.serving for s in cluster.seats()} == {serving.name: {CHAT}, spare.name: frozenset()}
        assert cluster.highest_epoch == 1


async def test_a_seat_is_found_by_its_name(settled: Rig) -> None:
    seat = settled.cluster.seats()[0]
    assert settled.cluster.seat(seat.name) == seat
    assert settled.cluster.seat(SeatName(f"{seat.name}-not")) is None


async def test_an_unknown_fleet_is_said_to_be_unknown(rig: Rig) -> None:
    with pytest.raises(NotFound):
        rig.cluster.replicas(FleetName("nothing"))


async def test_a_dead_agent_takes_its_engines_along_and_its_seat_is_replaced(tmp_path: Path) -> None:
    async with local_rig(tmp_path) as rig:
        (seat,) = await rig.warm(1)
        engines = [psutil.Process(r.pid) for r in seat.residents if r.pid is not None]
        agent = engines[0].parent()
        assert agent is not None
        agent.kill()
        await rig.until(lambda found: len(found) == 1 and found[0].uid != seat.uid)
        for engine in engines:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.wait(timeout=30)
        assert not any(engine.is_running() for engine in engines)


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_stopping_everything_leaves_no_process_and_no_file_but_logs(tmp_path: Path) -> None:
    async with local_rig(tmp_path) as rig:
        (seat,) = await rig.warm(1)
        engines = [psutil.Process(r.pid) for r in seat.residents if r.pid is not None]
    assert not any(engine.is_running() for engine in engines)
    assert names(tmp_path) == ["logs"]
