"""Faults over real sockets and processes: two controllers on the tests' API server, killed, stopped and cut off it.

Each controller has an entrance of its own to the API server, so that one of them can be cut off. What must be so at every moment is
looked at with each write, by `tests.sim.fault_schedules.invariants`, which the same faults are looked at by in virtual time.
"""

import asyncio
import contextlib
import itertools
import json
import math
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.contract.kube_rig import loopback_addresses
from tests.fakes.control_plane import controlling
from tests.fakes.kube_api import Call, Cut, KubeApi, User, kubeconfig, serving
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.kinds import BY_PATH
from tests.fakes.kube_calls import calling
from tests.fakes.ports import free_ports
from tests.integration.processes.rig import TOKEN, Processes
from tests.sim.fault_schedules.invariants import Invariants
from tests.sim.fault_schedules.invariants import serving as in_rotation
from tests.sim.fault_schedules.machines import NAMESPACE_NAME, Machines, SeatAgents, behind, control_plane
from tests.sim.fault_schedules.running import spares_beside, wanted
from tests.sim.fault_schedules.world import (
    CHAT,
    CODE,
    FLEET,
    IN_FLIGHT,
    POLICIES,
    POLICY_NAMES,
    sample,
)
from warmpool.seats import PolicyName, SeatName

LEASE_SECONDS = 6.0
SERVED_SECONDS = LEASE_SECONDS + 30.0
"""A lease, and what processes that have little of a busy machine take beside it: in virtual time it is measured."""
WAIT_SECONDS = 90.0
LEASES = BY_PATH["coordination.k8s.io", "v1", "leases"]
ALL, SOME = 100, 1
NAMES = ("a", "b")
End = Callable[[], object]


@dataclass
class Rig:
    """Everything that runs."""

    directory: Path
    entrances: Mapping[str, KubeApi]
    machines: Machines
    looking: Invariants
    processes: Processes
    session: aiohttp.ClientSession
    ports: Mapping[str, int]
    kedas: Mapping[str, int]
    load: dict[PolicyName, int] = field(default_factory=lambda: {CHAT: 2, CODE: 2})
    alive: set[str] = field(default_factory=set)

    async def start(self, name: str) -> None:
        """Begin a controller's process, unless it runs."""
        if name not in self.alive:
            self.alive.add(name)
            self.machines.agents.forget(name)
            await self.processes.emberpool(
                name,
                *("controller", "--policy", str(self.directory / "policies.yaml"), "--kubernetes"),
                *(
                    "--kubeconfig",
                    str(self.directory / f"{name}.kubeconfig"),
                    "--port",
                    str(self.ports[name]),
                ),
                *("--keda-port", str(self.kedas[name])),
            )

    def signal(self, name: str, number: int) -> None:
        self.looking.tell(f"{name} gets {signal.Signals(number).name}")
        if name in self.alive:
            self.processes.signal(name, number)
        if number == signal.SIGKILL:
            self.alive.discard(name)

    @property
    def leader(self) -> str:
        """Who holds the lease, or held it last."""
        lease = self.machines.api.store.get(LEASES, (NAMESPACE_NAME, "emberpool-controller"))
        address = (
            ""
            if lease is None
            else (lease.body["metadata"].get("annotations") or {}).get("emberpool.dev/api", "")
        )
        return next((name for name in NAMES if address.endswith(f":{self.ports[name]}")), NAMES[0])

    async def push(self) -> None:
        """Tell the load to controllers again and again."""
        for number in itertools.count(1):
            for name in NAMES:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    url = f"http://127.0.0.1:{self.ports[name]}/v1/signals"
                    timeout = aiohttp.ClientTimeout(total=0.5)
                    async with self.session.post(
                        url, json=sample(self.load, number, time.time()), timeout=timeout
                    ):
                        pass
            await asyncio.sleep(0.5)

    async def answered(self, name: str, path: str) -> str:
        """Return what a controller answers; nothing where it doesn't, or says that it can't."""
        url = f"http://127.0.0.1:{self.ports[name]}{path}"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self.session.get(url, timeout=aiohttp.ClientTimeout(total=1.0)) as answer:
                return await answer.text() if answer.status == 200 else ""
        return ""

    async def leads(self, name: str) -> bool:
        page = await self.answered(name, "/metrics")
        return re.search(r"^emberpool_leader 1\.0$", page, re.MULTILINE) is not None

    async def stands_ready(self) -> None:
        """Wait until both controllers run, one leads, and everything is as it should be."""
        for name in NAMES:
            await self.start(name)
        await self.led()
        async with asyncio.timeout(WAIT_SECONDS):
            for name in NAMES:
                while not await self.answered(name, "/readyz"):
                    await asyncio.sleep(0.1)
        await self.settle()

    async def led(self) -> None:
        """Wait until one leads: processes that have just been started take what a busy machine gives them."""
        async with asyncio.timeout(WAIT_SECONDS):
            while [await self.leads(name) for name in NAMES].count(True) != 1:
                await asyncio.sleep(0.1)

    async def served(self) -> float:
        """Wait until every policy has what it needs, and return how long that took."""
        return await self.looking.until(lambda: self.looking.unserved(wanted(self.load)), WAIT_SECONDS)

    async def settle(self) -> float:
        need = wanted(self.load)
        spares = spares_beside(need)
        return await self.looking.until(lambda: self.looking.unsettled(need, spares), WAIT_SECONDS)

    def words(self) -> str:
        logs = [f"{name}: {self.processes.log(name)[-1500:]}" for name in NAMES]
        return "\n".join(
            (*self.looking.told[-80:], *self.looking.broken, *self.machines.agents.faults, *logs)
        )

    def check(self) -> None:
        assert not self.looking.broken, self.words()
        assert not self.machines.agents.faults, self.words()


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Rig]:
    """Run everything, until the context is left."""
    users = {name: User(name=name) for name in (*NAMES, "plane")}
    api = KubeApi(users)
    entrances = {name: behind(api, users, time.time) for name in NAMES}
    ports, kedas = dict(zip(NAMES, free_ports(2), strict=True)), dict(zip(NAMES, free_ports(2), strict=True))
    (directory / "policies.yaml").write_text(POLICIES, "utf-8")
    async with AsyncExitStack() as stack:
        for name, entrance in (*entrances.items(), ("plane", api)):
            url = await stack.enter_async_context(serving(entrance))
            (directory / f"{name}.kubeconfig").write_text(json.dumps(kubeconfig(url, name, NAMESPACE_NAME)))
        agents = SeatAgents(time.time)
        runner = agents.runner()
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        agents.port = runner.addresses[0][1]
        token = {"Authorization": f"Bearer {TOKEN}"}
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=token))
        urls = [f"http://127.0.0.1:{port}" for port in ports.values()]
        machines = Machines(api, agents, POLICY_NAMES, urls, loopback_addresses())
        machines.make(FLEET, 3)
        calls = await stack.enter_async_context(calling(str(directory / "plane.kubeconfig")))
        await stack.enter_async_context(controlling(calls, control_plane()))
        processes = await stack.enter_async_context(Processes(directory))
        looking = Invariants(machines=machines)
        rig = Rig(directory, entrances, machines, looking, processes, session, ports, kedas)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        behind_it = [
            tasks.create_task(part) for part in (agents.serve(runner, session), machines.run(), rig.push())
        ]
        looking.begin()
        try:
            await rig.stands_ready()
            yield rig
        finally:
            for task in behind_it:
                task.cancel()


# ---------------------------------------------------------------- random schedules


class Kind(StrEnum):
    """What goes wrong."""

    KILL_LEADER = "kill the leader"
    KILL_BOTH = "kill both"
    STOP_LEADER = "stop the leader past its lease"
    CUT_LEADER = "cut the leader off the API server"
    CUT_BOTH = "the API server is down"
    HANG = "the API server hangs"
    WATCHES_SILENT = "watches are silent"
    ANSWERS_LOST = "answers of writes are lost"
    KILL_ENGINE = "kill an engine that serves"
    KILL_AGENT = "kill an agent"
    GPU = "a GPU is unfit"
    BLIND_ROLLOUT = "roll out with no controller running"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, for how many seconds, and whom it befalls (0 to 1)."""

    kind: Kind
    seconds: float
    choice: float


def schedule(seed: int) -> list[Fault]:
    """Make one or two faults that happen at the same time. PURE."""
    drawn = random.Random(f"sockets {seed}")
    kinds = [list(Kind)[seed % len(Kind)], *drawn.choices(list(Kind), k=drawn.randint(0, 1))]
    longest = {Kind.STOP_LEADER: (6.5, 9.0), Kind.CUT_BOTH: (2.0, 30.0), Kind.GPU: (4.0, 8.0)}
    return [
        Fault(kind=kind, seconds=drawn.uniform(*longest.get(kind, (0.5, 8.0))), choice=drawn.random())
        for kind in dict.fromkeys(kinds)
    ]


class Faulty:
    """Lets faults befall a rig."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._versions = itertools.count(1)

    async def carry_out(self, faults: list[Fault], load: Mapping[PolicyName, int]) -> None:
        """Let all begin at once, and the load change meanwhile; wait for the end of the last."""
        self._leader = self._rig.leader
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(self._one(fault))
            await asyncio.sleep(min(fault.seconds for fault in faults) / 2)
            self._rig.load.update(load)
            self._rig.looking.tell(f"the load is {load}")
        for entrance in self._rig.entrances.values():
            entrance.faults.clear()
        for name in NAMES:
            await self._rig.start(name)

    async def _one(self, fault: Fault) -> None:
        rig = self._rig
        rig.looking.tell(f"-- {fault}")
        ways: Mapping[Kind, Callable[[], End | None]] = {
            Kind.KILL_LEADER: lambda: rig.signal(self._leader, signal.SIGKILL),
            Kind.KILL_BOTH: self._kill_both,
            Kind.STOP_LEADER: self._stop,
            Kind.CUT_LEADER: lambda: self._cut(self._leader),
            Kind.CUT_BOTH: lambda: self._cut(*NAMES),
            Kind.HANG: self._hang,
            Kind.WATCHES_SILENT: self._silence,
            Kind.ANSWERS_LOST: self._lose_answers,
            Kind.KILL_ENGINE: lambda: self._kill_engine(fault.choice),
            Kind.KILL_AGENT: lambda: self._kill_agent(fault.choice),
            Kind.GPU: lambda: self._unfit(fault.choice),
            Kind.BLIND_ROLLOUT: self._roll_out,
        }
        end = ways[fault.kind]()
        await asyncio.sleep(fault.seconds)
        if end is not None:
            end()
        rig.looking.tell(f"-- over: {fault.kind}")

    def _kill_both(self) -> None:
        for name in NAMES:
            self._rig.signal(name, signal.SIGKILL)

    def _stop(self) -> End:
        stopped = self._leader
        self._rig.signal(stopped, signal.SIGSTOP)
        return lambda: self._rig.signal(stopped, signal.SIGCONT)

    def _cut(self, *names: str) -> End:
        """Cut off whoever asks, and what is open."""
        cut = [self._rig.entrances[name].faults for name in names]
        for faults in cut:
            faults.cut(Cut.BEFORE, _everything)
            faults.drop_watches()
        return lambda: self._clear(names)

    def _clear(self, names: Iterable[str]) -> None:
        for name in names:
            self._rig.entrances[name].faults.clear()

    def _hang(self) -> End:
        entrances = self._rig.entrances.values()
        for entrance in entrances:
            entrance.faults.silent = True
            entrance.faults.delay(60.0, _everything)
        return self._be_heard

    def _silence(self) -> End:
        entrances = self._rig.entrances.values()
        for entrance in entrances:
            entrance.faults.silent = True
        return self._be_heard

    def _be_heard(self) -> None:
        """Let dead connections be known to be dead."""
        for entrance in self._rig.entrances.values():
            entrance.faults.clear()
            entrance.faults.drop_watches()

    def _lose_answers(self) -> End:
        entrances, chance = self._rig.entrances.values(), random.Random(1)
        for entrance in entrances:
            entrance.faults.cut(Cut.AFTER, lambda call: call.verb == "patch" and chance.random() < 0.5)
        return lambda: self._clear(NAMES)

    def _seat(self, choice: float) -> tuple[SeatName, PolicyName]:
        found = [
            (SeatName(pod["metadata"]["name"]), policy)
            for pod in self._rig.machines.pods()
            for policy in sorted(in_rotation(pod))
            if pod["metadata"]["name"] in self._rig.machines.agents.addresses
        ]
        return found[math.floor(choice * len(found))]

    def _kill_engine(self, choice: float) -> None:
        self._rig.machines.agents.kill_engine(*self._seat(choice))

    def _kill_agent(self, choice: float) -> None:
        self._rig.machines.agents.kill_agent(self._seat(choice)[0], 1.0)

    def _unfit(self, choice: float) -> End:
        words, seat = self._rig.machines.agents.words, self._seat(choice)[0]
        words[seat] = "Bad" if choice < 0.5 else "Suspect"
        return lambda: words.pop(seat, None)

    def _roll_out(self) -> None:
        self._kill_both()
        self._rig.machines.roll_out(FLEET, f"version {next(self._versions)}")


def _everything(_: Call) -> bool:
    return True


async def run_schedules(directory: Path, seeds: range) -> None:
    """Run schedules one after the other on the same machines."""
    async with running(directory) as rig:
        faulty = Faulty(rig)
        for seed in seeds:
            drawn = random.Random(f"load {seed}")
            load = {CHAT: drawn.randint(1, 3 * IN_FLIGHT), CODE: drawn.randint(1, IN_FLIGHT)}
            rig.looking.tell(f"==== seed {seed}")
            await faulty.carry_out(schedule(seed), load)
            await rig.led()
            served = await rig.served()
            rig.check()
            assert served <= SERVED_SECONDS, f"seed {seed}: served after {served:.1f} s\n{rig.words()}"
            await rig.stands_ready()
            rig.check()


@pytest.mark.timeout(240)
@pytest.mark.long
async def test_some_schedules_over_real_sockets(tmp_path: Path) -> None:
    await run_schedules(tmp_path, range(SOME))


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_a_hundred_schedules_over_real_sockets(tmp_path: Path) -> None:
    await run_schedules(tmp_path, range(ALL))


# ---------------------------------------------------------------- each call of a promotion


def _of_a_promotion(call: Call) -> bool:
    return call.verb == "patch" and call.resource == "pods"


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_leader_that_is_killed_before_and_after_each_write_of_a_promotion_is_followed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as rig:
        for number, when in itertools.product(range(1, 4), (Cut.BEFORE, Cut.AFTER)):
            rig.load.update({CHAT: IN_FLIGHT})
            await rig.stands_ready()
            leader, counted = rig.leader, itertools.count(1)

            def reached(
                call: Call,
                wanted: int = number,
                name: str = leader,
                counted: "itertools.count[int]" = counted,
            ) -> bool:
                if not _of_a_promotion(call) or next(counted) != wanted:
                    return False
                rig.signal(name, signal.SIGKILL)
                return True

            rig.entrances[leader].faults.cut(when, reached)
            rig.looking.tell(f"==== killed {when.name} write {number}")
            rig.load.update({CHAT: 3 * IN_FLIGHT})
            served = await rig.served()
            rig.entrances[leader].faults.clear()
            rig.check()
            assert served <= SERVED_SECONDS, f"{when.name} {number}: {served:.1f} s\n{rig.words()}"


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_lease_is_deleted_and_the_terms_go_on(tmp_path: Path) -> None:
    """Agents would refuse a term that counts from one again, for ever."""
    async with running(tmp_path) as rig:
        rig.machines.api.delete(
            Target(kind=LEASES, namespace=NAMESPACE_NAME, name="emberpool-controller"), {}, {}
        )
        rig.load.update({CHAT: 2 * IN_FLIGHT})
        assert await rig.served() <= SERVED_SECONDS, rig.words()
        rig.check()
