"""The board of a seat: every resident's state, changed in one place, seen by all who wait for a change.

A state moves only along `warmpool.states`' table. Each change counts `seq` up and wakes whoever waits; nothing here does I/O
except reading the clocks.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from warmpool.agent.config import AgentConfig, ResidentConfig
from warmpool.agent.processes import Process
from warmpool.agent.proof import Prover
from warmpool.agent.wakes import Wakes
from warmpool.engines.arguments import staged_checkpoint
from warmpool.engines.capabilities import Capabilities, Verification
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Engine, KvWhenPaused
from warmpool.errors import EngineLost, UnknownResident
from warmpool.expectations import Ownership
from warmpool.nodehealth.preflight.findings import was_refused
from warmpool.seats import PolicyName, Resident
from warmpool.states import Depth, ResidentState, transition
from warmpool.tiers import Tier
from warmpool.timeline import StartFacts
from warmpool.wire import resident_to_json

_S = ResidentState

ROTATING = frozenset({ResidentState.PROMOTING, ResidentState.SERVING, ResidentState.DRAINING})
"""States in which a resident has the seat by order; nothing starts and nobody else computes meanwhile."""

ENDED = frozenset({ResidentState.FAILED, ResidentState.TERMINATING})
"""States in which there is no engine to speak to."""

_STARTING = frozenset({ResidentState.STARTING, ResidentState.LOADING})


@dataclass(slots=True, kw_only=True)
class Record:
    """What the agent knows of one resident.

    Attributes:
        config: what the config file says of it.
        kv: what becomes of its KV memory while it is paused.
        prover: asks its engine what it has to answer.
        since: Unix time at which it entered its state.
        memory_reason: why its memory isn't known; empty if it is.
        capabilities: what its engine was found to be able to do; None before it was asked.
        verification: what was found after the last change that its engine was told; None before the first.
        running: what its engine runs with, as far as it tells.
        process: its engine's process, while there is one.
        connection: the adapter that speaks to its engine, while there is one.
        loaded: its engine has loaded its weights.
        aside: it is loaded, and paused until its start-up can go on.
        unsure: its engine may be paused or not: whoever goes on with it resumes it first.
        captured: its engine has captured the graphs that it was to capture later, or won't.
        displaced: it was parked so that another could start, and is to come back when there is room.
        misused: its engine didn't take its arguments, which another start won't change.
        given_up: it has failed for good; nobody starts it again.
        gave_way: its engine was ended for another's sake, or with its container in good order, which is no failure.
        leaves_by: by when it has to have finished what it has, because its launcher has been told to end; else None.
        kv_bytes: size of its engine's KV memory, as that tells it.
        weights_bytes: size of its engine's weights, as that tells it.
        longest: tokens that one sequence of its engine may have, as that tells it.
        held: bytes of device memory that it held when last measured, by depth.
        spread: the same on each of the seat's GPUs, as far as that is known.
        usual: the same as `held` when it was first measured, which later measurements are compared with.
        wakes: how long its last promotions took.
    Others as in `warmpool.seats.Resident`.
    """

    config: ResidentConfig
    kv: KvWhenPaused
    prover: Prover
    state: ResidentState = ResidentState.STARTING
    since: float = field(default_factory=time.time)
    address: str = ""
    proven_at: float | None = None
    kv_released: bool = False
    in_flight: int = 0
    restarts: int = 0
    failure: str = ""
    waiting: str = ""
    loaded: bool = False
    aside: bool = False
    unsure: bool = False
    captured: bool = False
    displaced: bool = False
    misused: bool = False
    given_up: bool = False
    gave_way: bool = False
    leaves_by: Deadline | None = None
    kv_bytes: int | None = None
    weights_bytes: int | None = None
    parked_bytes: int | None = 0
    longest: int | None = None
    held: dict[Depth, int] = field(default_factory=dict)
    spread: dict[Depth, tuple[int, ...]] = field(default_factory=dict)
    usual: dict[Depth, int] = field(default_factory=dict)
    wakes: Wakes = field(default_factory=Wakes)
    running: Ownership = field(default_factory=Ownership)
    memory_bytes: int | None = None
    memory_reason: str = "not measured yet"
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    start: StartFacts | None = None
    capabilities: Capabilities | None = None
    verification: Verification | None = None
    process: Process | None = None
    connection: Engine | None = None

    @property
    def policy(self) -> str:
        """The policy that it belongs to."""
        return self.config.policy

    @property
    def checkpoint(self) -> str:
        """Where its weights come from, as the node's stage daemon knows it; empty where its engine doesn't ask that."""
        return self.config.checkpoint or staged_checkpoint(self.config.type, self.config.command)

    @property
    def engine(self) -> Engine:
        """The adapter of its engine.

        Raises:
            EngineLost: there is no engine at present.
        """
        if self.connection is None or self.state in ENDED:
            raise EngineLost(f"{self.policy}: {self.failure or 'its engine is not running'}")
        return self.connection

    @property
    def refused(self) -> bool:
        """Whether it is Failed because a pre-flight kept its engine from starting, which is no failure of the engine's."""
        return self.state is _S.FAILED and was_refused(self.failure)

    @property
    def releases_kv(self) -> bool:
        """Whether pausing it gives its KV memory back."""
        return self.kv is KvWhenPaused.RELEASE

    @property
    def paused_depth(self) -> Depth:
        """How deep pausing it brings it."""
        return Depth.KV_RELEASED if self.releases_kv else Depth.PAUSED

    @property
    def depth(self) -> Depth:
        """How deep it sleeps, or would with its KV memory where that is now."""
        if self.state is _S.PARKED:
            return Depth.PARKED
        return Depth.KV_RELEASED if self.kv_released else Depth.PAUSED

    @property
    def tier(self) -> Tier:
        """Where it stands in the seat's memory. What starts may take all that it ever takes, until it is set aside."""
        if self.process is None or self.process.exited:
            return Tier.COLD
        match self.state:
            case _S.PAUSED | _S.PARKING | _S.UNPARKING | _S.QUARANTINED:
                return Tier.PAUSED
            case _S.PARKED:
                return Tier.PARKED
            case state if state in _STARTING and self.aside:
                return Tier.PAUSED
            case _:
                return Tier.AWAKE

    @property
    def starting(self) -> bool:
        """Whether its engine starts, or has loaded and waits for the seat."""
        return self.state in _STARTING and self.process is not None

    def report(self) -> Resident:
        """Return it as everyone reads it."""
        process = self.process
        return Resident(
            policy=PolicyName(self.policy),
            state=self.state,
            since=self.since,
            address=self.address,
            proven_at=self.proven_at,
            kv_released=self.kv_released,
            in_flight=self.in_flight,
            restarts=self.restarts,
            failure=self.failure,
            refused=self.refused,
            waiting=self.waiting,
            pid=None if process is None or process.exited else process.pid,
            memory_bytes=self.memory_bytes,
            parked_bytes=self.parked_bytes,
            wake_seconds=self.wakes.medians(),
            phases=self.phases,
            start=self.start,
            capabilities=self.capabilities,
            verification=self.verification,
        )

    def to_json(self) -> dict[str, Any]:
        """Render it for the wire, with the reason where its memory isn't known."""
        return resident_to_json(self.report()) | {"memoryReason": self.memory_reason}


class Board:
    """All residents of the seat, in the config's order.

    Attributes:
        wanted: policies of which more is wanted now than can be had, as far as anybody has told.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._exclusive = config.exclusive
        self._records = {
            resident.policy: Record(
                config=resident, kv=config.kv, prover=Prover(resident.proof, config.uid, random.Random())
            )
            for resident in config.residents
        }
        self._need: Sequence[str] = ()
        self.wanted: frozenset[str] = frozenset()
        self._seq = 0
        self._changed = asyncio.Event()

    @property
    def seq(self) -> int:
        """Changes so far."""
        return self._seq

    @property
    def records(self) -> Sequence[Record]:
        """All residents, in the config's order."""
        return tuple(self._records.values())

    @property
    def by_need(self) -> Sequence[Record]:
        """All residents, in the order in which they start: those first of which it was told, then the others."""
        order = dict.fromkeys((*self._need, *self._records))
        return [self._records[policy] for policy in order if policy in self._records]

    def need(self, policies: Sequence[str], wanted: Collection[str]) -> None:
        """Take note in which order residents are needed, and of which policies more is wanted now than can be had."""
        self._need, self.wanted = tuple(policies), frozenset(wanted)
        self.touch()

    def record(self, policy: str) -> Record:
        """Return the resident of `policy`.

        Raises:
            UnknownResident: the seat has none.
        """
        try:
            return self._records[policy]
        except KeyError:
            has = ", ".join(self._records)
            raise UnknownResident(f"no resident of policy {policy} on this seat; it has {has}") from None

    def move(self, record: Record, state: ResidentState) -> None:
        """Move a resident to another state.

        Raises:
            IllegalTransition: the table has no such arrow; nothing was changed.
        """
        record.state = transition(record.state, state)
        record.since = time.time()
        self.touch()

    def advance(self, record: Record, state: ResidentState) -> None:
        """Move a resident on in its work, unless its engine's end has overtaken that work.

        Raises:
            EngineLost: it has failed or is being terminated.
            IllegalTransition: the table has no such arrow; nothing was changed.
        """
        if record.state in ENDED:
            raise EngineLost(f"{record.policy}: {record.failure or 'it is being terminated'}")
        self.move(record, state)

    def wait(self, record: Record, reason: str) -> None:
        """Note why a resident's start-up doesn't go on; nothing if it does."""
        if record.waiting != reason:
            record.waiting = reason
            self.touch()

    def note_in_flight(self, record: Record, in_flight: int) -> None:
        """Note how many requests a resident's guard has accepted and not finished."""
        if record.in_flight != in_flight:
            record.in_flight = in_flight
            self.touch()

    def touch(self) -> None:
        """Tell that something about a resident or the seat has changed."""
        self._seq += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the board holds; it still holds when the caller goes on."""
        while not condition():
            await self._changed.wait()

    async def change_after(self, seq: int) -> None:
        """Wait until something has changed since the changes were `seq`."""
        await self.until(lambda: self._seq != seq)

    def rival(self, record: Record) -> Record | None:
        """Return the resident that has the seat by order, so that `record` may not compute; None if nobody has.

        Only on exclusive seats can anybody be in the way.
        """
        if not self._exclusive:
            return None
        return next(
            (other for other in self.records if other is not record and other.state in ROTATING), None
        )
