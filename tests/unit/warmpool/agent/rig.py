"""A whole seat without processes and sockets: engines that live in this process, on a device whose memory adds up.

Time may be virtual. An engine's memory follows what it was told, unless a test has it leak; what it says follows its own state.
"""
# ruff: noqa: ARG002 (a port's methods take more than a fake of them needs)

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmpool.agent.board import Record
from warmpool.agent.config import AgentConfig, ResidentConfig
from warmpool.agent.equipment import Equipment
from warmpool.agent.life import Engines
from warmpool.agent.orders import OrderKind, Result, parse_order
from warmpool.agent.processes import Ports, Process, Start
from warmpool.agent.seat import LiveSeat
from warmpool.engines.capabilities import (
    Capabilities,
    Capability,
    Change,
    Finding,
    Ground,
    Verdict,
    Verification,
)
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Completion, EngineLoad, GuardState, KvWhenPaused, Prompt, Startup
from warmpool.errors import EngineError, EngineLost, EngineRejected, EngineTimeout
from warmpool.expectations import Ownership
from warmpool.nodehealth.client import SeatHealth, SeatMemory
from warmpool.seats import Verdict as GpuVerdict
from warmpool.states import ResidentState
from warmpool.timeline import WeightLoad

MIB = 2**20
GIB = 2**30
Json = dict[str, Any]
PROMPTS = ("one", "two")


def tokens(seed: int, prompt: Prompt, count: int) -> tuple[int, ...]:
    """What a sound engine answers."""
    return tuple(seed * 1000 + len(prompt) * 10 + place for place in range(count))


@dataclass
class FakeEngine:
    """One engine. `takes` has the seconds of its calls, and `fails` what they raise, once each."""

    seed: int = 1
    weights: int = 10 * GIB
    kv: int = 20 * GIB
    context: int = GIB
    load_seconds: float = 5.0
    version: str = "1"
    parks: bool = True
    takes: dict[str, float] = field(default_factory=dict)
    fails: dict[str, EngineError] = field(default_factory=dict)
    leaks: int = 0
    lazy_seconds: float = 0.0
    logged: Sequence[str] = ()
    tier: str = ""

    calls: list[str] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)
    computing: int = 0
    born: float = 0.0
    parked: bool = False
    kv_held: bool = True
    paused: bool = False
    is_open: bool = False
    in_flight: int = 0
    copy: int = 0
    freed: list[tuple[float, int]] = field(default_factory=list)
    closed: int = 0
    died: asyncio.Event = field(default_factory=asyncio.Event)

    def held(self, now: float) -> int:
        """Device memory at a moment; what is freed late is still there."""
        if now < self.born + self.load_seconds:
            return self.context
        late = sum(size for until, size in self.freed if now < until)
        parts = (0 if self.parked else self.weights, self.kv if self.kv_held else 0)
        return self.context + sum(parts) + self.leaks + late

    async def _call(self, name: str, deadline: Deadline) -> None:
        self.calls.append(name)
        seconds = self.takes.pop(name, 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds, deadline.left_seconds))):
                await self.died.wait()
        if self.died.is_set():
            raise EngineLost(f"{name}: connection reset")
        if deadline.left_seconds <= 0:
            raise EngineTimeout(f"{name}: no answer")
        if name in self.fails:
            raise self.fails.pop(name)

    def _free(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        if self.lazy_seconds:
            self.freed.append((now + self.lazy_seconds, size))

    def _require_weights(self) -> None:
        if self.parked:
            raise EngineRejected("the engine is parked; unpark first")

    # ---- the port

    async def startup(self, *, deadline: Deadline) -> Startup:
        loop = asyncio.get_running_loop()
        if deadline.left_seconds <= 0:
            raise EngineTimeout("startup: no time")
        if loop.time() < self.born + self.load_seconds:
            return Startup(ready=False, phase="weights")
        return Startup(
            ready=True,
            kv_bytes=self.kv,
            weights_bytes=self.weights,
            parked_bytes=self.copy,
            ownership=Ownership(dtype="bfloat16"),
            phases={"weights": self.load_seconds} if self.tier else {},
            load=WeightLoad(tier=self.tier, seconds=self.load_seconds) if self.tier else None,
        )

    async def complete(self, prompt: Prompt, *, tokens: int, deadline: Deadline) -> Completion:
        self.asked.append((len(prompt), self.computing))
        self.computing += 1
        try:
            await self._call("complete", deadline)
        finally:
            self.computing -= 1
        self._require_weights()
        assert self.kv_held, "computing without KV memory"
        assert not self.paused, "computing while paused"
        return Completion(answer(self.seed, prompt, tokens))

    def assume(
        self, *, kv_released: bool, parked: bool = False, capabilities: Capabilities | None = None
    ) -> None:
        self.calls.append(f"assume kv_released={kv_released} parked={parked}")

    async def probe(self, kv: KvWhenPaused, *, deadline: Deadline) -> Capabilities:
        await self._call("probe", deadline)
        ground = dict.fromkeys(Capability, Ground.TRIED)
        if not self.parks:
            ground[Capability.WEIGHTS_PARKING] = Ground.SWITCHED_OFF
        findings = {each: Finding(ground=ground[each], reason="scripted") for each in Capability}
        return Capabilities(kind="Reference", version=self.version, findings=findings)

    async def pause(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        await self._call("pause", deadline)
        self._require_weights()
        self.paused = True
        if kv is KvWhenPaused.RELEASE and self.kv_held:
            self.kv_held = False
            self._free(self.kv)
        return said(Change.RELEASE if kv is KvWhenPaused.RELEASE else Change.PAUSE)

    async def is_paused(self, *, deadline: Deadline) -> bool:
        await self._call("is_paused", deadline)
        return self.paused

    async def resume(self, kv: KvWhenPaused, *, deadline: Deadline) -> Verification:
        await self._call("resume", deadline)
        self._require_weights()
        if not self.kv_held:
            assert kv is KvWhenPaused.RELEASE, "its KV memory is away, and nobody says so"
        self.paused, self.kv_held = False, True
        return said(Change.RESUME)

    async def park(self, *, deadline: Deadline) -> Verification:
        await self._call("park", deadline)
        assert self.paused
        if not self.parked:
            self.parked, self.kv_held, self.copy = True, False, self.weights
            self._free(self.weights)
        return said(Change.PARK)

    async def unpark(self, *, deadline: Deadline) -> Verification:
        await self._call("unpark", deadline)
        assert self.paused
        self.parked = False
        return said(Change.UNPARK)

    async def capture(self, *, deadline: Deadline) -> None:
        await self._call("capture", deadline)
        assert self.kv_held, "capturing without KV memory"
        assert not self.paused, "capturing while paused"

    async def guard(self, *, deadline: Deadline) -> GuardState:
        return GuardState(is_open=self.is_open, in_flight=self.in_flight)

    async def open_guard(self, *, deadline: Deadline) -> None:
        await self._call("open", deadline)
        self.is_open = True

    async def close_guard(self, *, deadline: Deadline) -> GuardState:
        self.is_open = False
        return await self.guard(deadline=deadline)

    async def abort(self, *, deadline: Deadline) -> None:
        self.in_flight = 0

    async def load(self, *, deadline: Deadline) -> EngineLoad:
        return EngineLoad(running=0, waiting=0)

    async def close(self) -> None:
        self.closed += 1


answer = tokens


def said(change: Change) -> Verification:
    return Verification(change=change, verdict=Verdict.UNVERIFIED, evidence=("it says so",))


class FakeProcess:
    """An engine's process."""

    def __init__(self, pid: int, name: str, ports: Ports, engine: FakeEngine) -> None:
        self._pid, self._ports = pid, ports
        self.name, self.engine = name, engine
        self.ending = asyncio.Event()
        self.how = ""
        self.status: int | None = None
        self.note: Mapping[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def visible_pid(self) -> None:
        return None

    @property
    def namespace(self) -> str:
        return ""

    @property
    def ports(self) -> Ports:
        return self._ports

    @property
    def exited(self) -> bool:
        return self.ending.is_set()

    async def wait(self) -> str:
        await self.ending.wait()
        return self.how

    async def lost_its_port(self) -> bool:
        return False

    async def owns(self, pid: int) -> bool:
        return pid == self._pid

    async def telling_lines(self) -> Sequence[str]:
        return self.engine.logged

    async def remember(self, note: Mapping[str, Any]) -> None:
        self.note = {**note, "ports": {}}

    async def stop(self, *, grace_seconds: float) -> None:
        self.end("stopped")

    def end(self, how: str) -> None:
        if not self.exited:
            self.how = how
            self.engine.died.set()
            self.ending.set()


@dataclass
class Machine:
    """A launcher, a device and a node agent in one. What it starts comes from `engines`, by name, one start after the other."""

    total: int = 100 * GIB
    foreign: int = 0
    measures: bool = True
    gpu_health: SeatHealth = field(default_factory=lambda: SeatHealth(GpuVerdict.OK, known=True))
    canaries: list[bool] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    faults: list[tuple[str, ...]] = field(default_factory=list)
    engines: dict[str, list[FakeEngine]] = field(default_factory=dict)
    processes: list[FakeProcess] = field(default_factory=list)
    peak: int = 0
    absent: set[str] = field(default_factory=set)
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def engine(self, name: str) -> FakeEngine:
        return self.process(name).engine

    def process(self, name: str) -> FakeProcess:
        return next(each for each in reversed(self.processes) if each.name == name)

    def starts(self, name: str) -> int:
        return sum(each.name == name for each in self.processes)

    def used(self) -> int:
        now = asyncio.get_running_loop().time()
        return self.foreign + sum(each.engine.held(now) for each in self.processes if not each.exited)

    # ---- the starter

    async def attend(self) -> None:
        pass

    def ready(self, name: str) -> bool:
        return name not in self.absent

    async def start(self, start: Start, ports: Ports) -> Process:
        script = self.engines.get(start.name)
        engine = script.pop(0) if script and len(script) > 1 else (script[0] if script else FakeEngine())
        if any(each.engine is engine for each in self.processes):
            engine = FakeEngine(seed=engine.seed, weights=engine.weights, kv=engine.kv, parks=engine.parks)
        engine.born = asyncio.get_running_loop().time()
        self.environments[start.name] = start.environment
        process = FakeProcess(100 + len(self.processes), start.name, ports, engine)
        self.processes.append(process)
        return process

    async def running(self, start: Start) -> tuple[Process, Mapping[str, Any]] | None:
        for each in self.processes:
            if each.name == start.name and not each.exited:
                return each, each.note
        return None

    async def end_others(self, names: Sequence[str]) -> None:
        for each in self.processes:
            if each.name not in names:
                each.end("nobody's")

    async def close(self) -> None:
        pass

    def connect(self, config: ResidentConfig, ports: Ports) -> FakeEngine:
        return next(each.engine for each in self.processes if each.ports is ports)

    # ---- the node agent

    async def health(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatHealth:
        await asyncio.sleep(0.001)
        return self.gpu_health

    async def canary(self, gpus: Sequence[str], *, passed: bool, proof: str, deadline: Deadline) -> bool:
        self.canaries.append(passed)
        self.proofs.append(proof)
        return True

    async def fault(self, gpus: Sequence[str], *, text: str, deadline: Deadline) -> bool:
        self.faults.append((*gpus, text))
        return True

    async def read(self, gpus: Sequence[str], *, deadline: Deadline) -> SeatMemory:
        await asyncio.sleep(0.001)
        now, used = asyncio.get_running_loop().time(), self.used()
        self.peak = max(self.peak, used)
        held = {each.pid: each.engine.held(now) for each in self.processes if not each.exited}
        return SeatMemory(
            self.total,
            used,
            self.total - used,
            held if self.measures else None,
            verified=self.measures,
            reason="" if self.measures else "without a node agent the devices' totals alone are known",
            complete=self.measures,
        )


def resident(policy: str, *, paused: int = 11, kv: int = 20, **others: Any) -> Json:
    """A resident with figures in GiB, its engine of seed 1."""
    return {
        "policy": policy,
        "model": policy,
        "command": ["engine", "{port}", "{controlPort}"],
        "proof": {"prompts": [{"prompt": p, "tokens": list(tokens(1, p, 3))} for p in PROMPTS]},
        "memoryMiB": paused * 1024,
        "kvMiB": kv * 1024,
        "activationMiB": 1024,
    } | others


def config(directory: Path, residents: Sequence[Json], **others: Any) -> AgentConfig:
    raw = {
        "seat": "s",
        "fleet": "f",
        "uid": "uid-1",
        "gpus": ["GPU-1"],
        "launcher": str(directory / "launcher"),
        "kvWhenPaused": "Release",
        "memory": {"hostMiB": 100 * 1024},
        "residents": list(residents),
    }
    return AgentConfig.model_validate(raw | others)


@dataclass
class Rig:
    """A live seat and a caller."""

    seat: LiveSeat
    machine: Machine
    claims: int = 0
    seen: dict[str, list[str]] = field(default_factory=dict)

    def record(self, policy: str) -> Record:
        return self.seat.board.record(policy)

    def states(self) -> dict[str, str]:
        return {record.policy: str(record.state) for record in self.seat.board.records}

    def told(self, policy: str) -> Json:
        residents: list[Json] = self.seat.state()["residents"]
        return next(each for each in residents if each["policy"] == policy)

    async def until(self, **states: str) -> None:
        """Wait until residents are in states."""
        board = self.seat.board
        async with asyncio.timeout(10_000):
            await board.until(lambda: all(board.record(p).state == s for p, s in states.items()))

    async def calm(self) -> None:
        """Wait until nothing moves any more for a minute."""
        board = self.seat.board
        while True:
            seq = board.seq
            await asyncio.sleep(60)
            if board.seq == seq:
                return

    async def order(self, kind: str, policy: str, *, seconds: float = 30.0, **others: Any) -> Result:
        self.claims += 1
        body = {"policy": policy, "claim": f"c{self.claims}", "epoch": 1, "deadlineSeconds": seconds}
        return await self.seat.order(parse_order(OrderKind(kind), body | others))

    async def follow(self) -> None:
        """Note every state that residents are in."""
        board = self.seat.board
        while True:
            seq = board.seq
            for record in board.records:
                seen = self.seen.setdefault(record.policy, [])
                if not seen or seen[-1] != record.state:
                    seen.append(str(record.state))
            await board.change_after(seq)


@asynccontextmanager
async def live(given: AgentConfig, machine: Machine) -> AsyncIterator[Rig]:
    """Run a seat; at the end its agent is gone without a word, and its engines go on."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks, asyncio.TaskGroup() as followers:
        equipment = Equipment.of(given, machine if given.gpus else None)
        seat = LiveSeat(equipment, Engines(machine, machine.connect), tasks)
        rig = Rig(seat, machine)
        follower = followers.create_task(rig.follow())
        try:
            await equipment.reader.read()
            seat.start()
            yield rig
        except Exception as error:  # noqa: BLE001 (raised below, outside the groups, which would wrap it)
            failure = error
        finally:
            follower.cancel()
            for task in tuple(seat._background):  # as if the process had been killed
                task.cancel()
    if failure is not None:
        raise failure


def paused(policies: str) -> dict[str, ResidentState]:
    return dict.fromkeys(policies, ResidentState.PAUSED)
