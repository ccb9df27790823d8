"""Random schedules of faults, each a pure function of its seed. PURE but for `carry_out`."""

import asyncio
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scaler.runtime.kube_controller import LEASE
from tests.fakes.kube_api import Call, Cut
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.faults import Answer
from tests.fakes.kube_api.kinds import BY_PATH, POD
from tests.fakes.kube_api.kinds import Kind as ApiKind
from tests.sim.fault_schedules.invariants import serving
from tests.sim.fault_schedules.machines import FRONT, NAMESPACE_NAME
from tests.sim.fault_schedules.world import CHAT, CODE, FLEET, IN_FLIGHT, POLICY_NAMES, REPLICAS, World
from warmpool.seats import PolicyName, SeatName

LEASES = BY_PATH["coordination.k8s.io", "v1", "leases"]
_MORE_OFTEN = 0.6
End = Callable[[], object]


class Kind(StrEnum):
    """What goes wrong, or only changes."""

    KILL_LEADER = "kill the leader"
    KILL_STANDBY = "kill who stands by"
    KILL_BOTH = "kill both controllers"
    STOP_LEADER = "stop the leader"
    CUT_LEADER = "cut the leader off the API server"
    CUT_STANDBY = "cut who stands by off the API server"
    CUT_AGENTS = "cut the leader off the agents"
    CUT_REPLICAS = "cut the controllers off each other"
    API_REFUSES = "API server refuses connections"
    API_HANGS = "API server hangs"
    API_FAILS = "API server fails now and then"
    API_SLOW = "API server is slow"
    ANSWERS_LOST = "answers of writes are lost"
    WATCHES_SILENT = "watches are silent"
    WATCHES_END = "watches end, and their versions have expired"
    CLOCK = "a controller's clock jumps"
    LEASE_GONE = "the lease is deleted"
    KILL_ENGINE = "kill an engine that serves"
    KILL_NEIGHBOUR = "kill an engine that doesn't serve"
    KILL_AGENT = "kill an agent"
    GPU = "a GPU is unfit"
    ROLLOUT = "roll out"
    BLIND_ROLLOUT = "roll out with no controller running"
    DELETE_POD = "delete a pod that serves"
    LOAD = "the load changes"


_WEIGHTS = {
    Kind.LOAD: 4,
    Kind.KILL_LEADER: 3,
    Kind.STOP_LEADER: 3,
    Kind.CUT_LEADER: 3,
    Kind.GPU: 2,
    Kind.ANSWERS_LOST: 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: what.
        at: when it begins, in seconds from the schedule's beginning.
        seconds: how long it lasts.
        choice: from 0 to 1: whom of those that there are it befalls, or how much.
    """

    kind: Kind
    at: float
    seconds: float
    choice: float

    def __str__(self) -> str:
        return f"{self.at:6.2f} s for {self.seconds:5.2f} s: {self.kind} ({self.choice:.3f})"


def schedule(seed: int) -> tuple[Fault, ...]:
    """Make a schedule: two to six faults within half a minute, some of them at once, and the load changes during some of them."""
    drawn = random.Random(f"schedule {seed}")
    kinds = [kind for kind in Kind if kind is not Kind.LOAD]
    weights = [_WEIGHTS.get(kind, 1) for kind in kinds]
    faults = []
    for kind in drawn.choices(kinds, weights, k=drawn.randint(2, 6)):
        seconds = 30.0 if kind is Kind.API_REFUSES and drawn.random() < 0.5 else drawn.uniform(0.05, 12.0)
        if kind is Kind.WATCHES_SILENT:
            seconds = drawn.uniform(5.0, 120.0)
        at = drawn.uniform(0.0, 20.0)
        faults.append(Fault(kind=kind, at=at, seconds=seconds, choice=drawn.random()))
        if drawn.random() < 0.6:
            during = at + drawn.uniform(0.0, min(15.0, seconds))
            faults.append(Fault(kind=Kind.LOAD, at=during, seconds=0.0, choice=drawn.random()))
    return tuple(sorted(faults, key=lambda fault: fault.at))


class Faulty:
    """Lets faults befall a world.

    Args:
        world: which.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._faults = world.machines.api.faults
        self._looking = world.looking
        self._versions = 0

    async def carry_out(self, faults: tuple[Fault, ...]) -> None:
        """Let all faults happen, and wait for the end of the last."""
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(self._one(fault))

    async def _one(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        self._looking.tell(f"-- {fault}")
        undo = self._begin(fault)
        await asyncio.sleep(fault.seconds)
        if undo is not None:
            undo()
            self._looking.tell(f"-- over: {fault}")

    # ------------------------------------------------------------ whom

    def leader(self) -> str:
        """Return the name of who holds the lease, or held it last."""
        lease = self._world.machines.api.store.get(LEASES, (NAMESPACE_NAME, LEASE))
        holder = "" if lease is None else str(lease.body["spec"].get("holderIdentity") or "")
        return holder.partition("-")[0] or REPLICAS[0]

    def _standby(self) -> str:
        return next(name for name in REPLICAS if name != self.leader())

    def _seat(self, choice: float, *, serves: bool | None) -> tuple[SeatName, PolicyName] | None:
        agents = self._world.machines.agents
        found = [
            (SeatName(pod["metadata"]["name"]), policy)
            for pod in self._world.machines.pods()
            for policy in POLICY_NAMES
            if pod["metadata"]["name"] in agents.addresses
            and (serves is None or (policy in serving(pod)) is serves)
        ]
        return found[math.floor(choice * len(found))] if found else None

    # ------------------------------------------------------------ what

    def _begin(self, fault: Fault) -> End | None:
        """Let a fault begin; return what ends it."""
        leader, standby = self.leader(), self._standby()
        ways: Mapping[Kind, Callable[[], End | None]] = {
            Kind.KILL_LEADER: lambda: self._kill(leader),
            Kind.KILL_STANDBY: lambda: self._kill(standby),
            Kind.KILL_BOTH: lambda: self._kill(*REPLICAS),
            Kind.STOP_LEADER: lambda: self._stop(leader),
            Kind.CUT_LEADER: lambda: self._cut(leader, "api"),
            Kind.CUT_STANDBY: lambda: self._cut(standby, "api"),
            Kind.CUT_AGENTS: lambda: self._cut(leader, "agents"),
            Kind.CUT_REPLICAS: lambda: self._cut(*REPLICAS),
            Kind.API_REFUSES: self._refuse,
            Kind.API_HANGS: lambda: self._world.network.cut(_to_api),
            Kind.API_FAILS: lambda: self._fail(fault.choice),
            Kind.API_SLOW: lambda: self._slow(fault.choice),
            Kind.ANSWERS_LOST: lambda: self._lose_answers(fault.choice),
            Kind.WATCHES_SILENT: self._silence,
            Kind.WATCHES_END: self._end_watches,
            Kind.CLOCK: lambda: self._set_clock(fault.choice),
            Kind.LEASE_GONE: self._delete_lease,
            Kind.KILL_ENGINE: lambda: self._kill_engine(fault.choice, serves=True),
            Kind.KILL_NEIGHBOUR: lambda: self._kill_engine(fault.choice, serves=False),
            Kind.KILL_AGENT: lambda: self._kill_agent(fault),
            Kind.GPU: lambda: self._unfit(fault.choice),
            Kind.ROLLOUT: self._roll_out,
            Kind.BLIND_ROLLOUT: self._roll_out_blindly,
            Kind.DELETE_POD: lambda: self._delete_pod(fault.choice),
            Kind.LOAD: lambda: self._change_load(fault.choice),
        }
        return ways[fault.kind]()

    def _stop(self, name: str) -> End | None:
        process = self._world.controllers.get(name)
        if process is None:
            return None
        process.stop()
        return process.go_on

    def _refuse(self) -> End:
        refused = self._world.network.refused
        refused.add(FRONT)
        self._world.network.reset(FRONT)
        return lambda: refused.discard(FRONT)

    def _fail(self, choice: float) -> End:
        answer = Answer(status=(500, 503, 429)[int(choice * 3)], retry_after="1")
        self._faults.answer(answer, self._now_and_then)
        return self._faults.clear

    def _slow(self, choice: float) -> End:
        self._faults.delay(0.5 + 3 * choice, self._now_and_then)
        return self._faults.clear

    def _lose_answers(self, choice: float) -> End:
        self._faults.cut(Cut.AFTER if choice < _MORE_OFTEN else Cut.BEFORE, self._some_writes)
        return self._faults.clear

    def _silence(self) -> End:
        """Let connections be dead without anybody's knowing, until it is known."""
        self._faults.silent = True

        def end() -> None:
            self._faults.clear()
            self._faults.drop_watches()

        return end

    def _end_watches(self) -> None:
        self._world.machines.api.store.compact()
        self._faults.drop_watches()

    def _set_clock(self, choice: float) -> End | None:
        process = self._world.controllers.get(REPLICAS[round(choice)])
        if process is None:
            return None
        process.skew = (choice - 0.5) * 120
        return lambda: setattr(process, "skew", 0.0)

    def _delete_lease(self) -> None:
        self._delete(LEASES, LEASE)

    def _delete_pod(self, choice: float) -> None:
        if found := self._seat(choice, serves=True):
            self._delete(POD, found[0])

    def _delete(self, kind: ApiKind, name: str) -> None:
        target, api = Target(kind=kind, namespace=NAMESPACE_NAME, name=name), self._world.machines.api
        if api.store.get(kind, target.key) is not None:
            api.delete(target, {}, {})

    def _kill_engine(self, choice: float, *, serves: bool) -> None:
        if found := self._seat(choice, serves=serves):
            self._looking.tell(f"   {found}")
            self._world.machines.agents.kill_engine(*found)

    def _kill_agent(self, fault: Fault) -> None:
        if found := self._seat(fault.choice, serves=None):
            self._looking.tell(f"   {found}")
            self._world.machines.agents.kill_agent(found[0], min(2.0, fault.seconds))

    def _change_load(self, choice: float) -> None:
        policy = CHAT if choice < _MORE_OFTEN else CODE
        load = math.ceil((choice * 7 % 1) * IN_FLIGHT * (3 if policy == CHAT else 2))
        self._world.load[policy] = load
        self._looking.tell(f"   {policy} has {load} requests in flight")

    def _unfit(self, choice: float) -> End | None:
        agents = self._world.machines.agents
        if not (found := self._seat(choice, serves=None)):
            return None
        seat = found[0]
        self._looking.tell(f"   {seat}")
        agents.words[seat] = "Bad" if int(choice * 100) % 2 else "Suspect"
        return lambda: agents.words.pop(seat, None)

    def _roll_out(self) -> None:
        self._versions += 1
        self._world.machines.roll_out(FLEET, str(self._versions))

    def _roll_out_blindly(self) -> End:
        back = self._kill(*REPLICAS)
        self._roll_out()
        return back

    def _kill(self, *names: str) -> End:
        for name in names:
            if (process := self._world.controllers.get(name)) is not None:
                self._world.kill(process)

        def restart() -> None:
            for name in names:
                if name not in self._world.controllers:
                    self._world.start(name)

        return restart

    def _cut(self, one: str, other: str) -> End:
        return self._world.network.cut(lambda a, b: {a, b} == {one, other})

    def _now_and_then(self, _: Call) -> bool:
        return self._world.random.random() < 0.3

    def _some_writes(self, call: Call) -> bool:
        return call.verb in {"patch", "update", "create"} and self._world.random.random() < 0.5


def _to_api(one: str, other: str) -> bool:
    """Whether it is between a controller and the API server."""
    return "api" in {one, other} and not {one, other}.isdisjoint(REPLICAS)
