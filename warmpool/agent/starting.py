"""The start-up of residents: room, process, weights, warm-up, first proof, pause; one at a time, in the order of need.

Start-ups never stand in the way of orders. An engine whose neighbour is promoted meanwhile goes on loading its weights as long as both
fit, but neither warms up nor proves: a warm-up under way is cut short, the engine paused (its KV memory given back on a shared seat),
and the resident is back in Loading until the seat is free again. A new process is started only while nobody has the seat.

Tiers fill in the config's order. Where there is no room for the next one, others are parked while it starts, the least needed first;
then it is parked itself, if it is the least needed, and they come back. One that could not even be parked stays cold, and says why.
So does one whose GPU is Bad, as the node has it: no weights are loaded onto what will be taken away, and it starts once the GPU is well.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from warmpool.agent.board import ENDED, Record
from warmpool.agent.config import GpuHealth
from warmpool.agent.equipment import Equipment
from warmpool.agent.failure import fail, give_up_memory
from warmpool.agent.interruption import Interrupted
from warmpool.agent.phases import StartPhases
from warmpool.agent.probing import PROBE_SECONDS, probe
from warmpool.agent.slot import Warming
from warmpool.agent.turns import Turns
from warmpool.agent.warmup import Sizes, sizes_of, warm_up
from warmpool.engines.capabilities import Capability
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Startup
from warmpool.engines.startup_log import read_log
from warmpool.errors import (
    AgentError,
    EngineError,
    EngineLost,
    EngineRejected,
    EngineTimeout,
    NoRoom,
    ProofFailed,
    StartFailed,
)
from warmpool.expectations import Ownership
from warmpool.seats import Verdict
from warmpool.states import ResidentState
from warmpool.tiers import Tier, Tiers
from warmpool.timeline import Phase, in_phases

_LOG = logging.getLogger(__name__)
_S = ResidentState

FIRST_PROOF_PROMPTS: Final = 4
"""Prompts that the first proof of a start asks."""
_PORT_ATTEMPTS = 5
_WARM_SECONDS = 600.0  # compiling kernels on the first requests
_PROOF_SECONDS = 120.0
_CONTROL_SECONDS = 30.0
_ASIDE_SECONDS = 2.0  # a promotion is waiting
_MOVE_SECONDS = 120.0
_CAPTURE_SECONDS = 600.0
CALM_SECONDS: Final = 5.0
"""For how long nobody must have wanted the seat before graphs are captured: while they are, controllers count its resident as not up."""
_TO_START: Final = frozenset({_S.STARTING, _S.LOADING})
_POLL_SECONDS = 0.05
POLL_ANSWER_SECONDS: Final = 5.0
"""How long one answer of an engine may take that imports or loads, and so holds its interpreter."""
_NO_ROOM_SECONDS = 2.0

Spawn = Callable[[Record], Awaitable[None]]
"""Starts a resident's process."""


class PortTaken(StartFailed):
    """Someone else took one of the engine's ports between choosing and binding it."""


class _Outcome(Enum):
    PROVEN = auto()
    SET_ASIDE = auto()
    """It had to give way."""
    UNWITNESSED = auto()
    """It has told what it answers, and nobody knows whether that is right."""


class StartUps:
    """Starts the residents of one seat.

    Args:
        equipment: the seat's parts.
        ready: whether a resident's engine could be started now, its parent being there.
    """

    def __init__(self, equipment: Equipment, ready: Callable[[str], bool]) -> None:
        self._config = equipment.config
        self._board = equipment.board
        self._reader = equipment.reader
        self._slot = equipment.slot
        self._room = equipment.room
        self._changes = equipment.changes
        self._mover = equipment.mover
        self._turns = Turns(equipment.board)
        self._ready = ready

    async def run(self, record: Record, spawn: Spawn) -> None:
        """Bring a resident to Paused: from nothing, or from where its engine was when it was taken up.

        Raises:
            EngineError: its engine failed.
            StartFailed: its engine can't be started.
        """
        phases = StartPhases()
        outcome = _Outcome.SET_ASIDE
        await self._turns.first_come(record)
        while outcome is not _Outcome.PROVEN:
            await self._until_it_may_go_on(record, outcome)
            async with self._turns.turn(record):
                if not await self._has_room(record):
                    continue
                self._board.wait(record, "")
                await self._load(record, spawn, phases)
                outcome = await self._warmed_and_proven(record, phases)
                if outcome is _Outcome.PROVEN:
                    record.phases, record.start = phases.seconds(), phases.facts
                    self._board.touch()
                    await self._settle()

    async def capture_later(self, record: Record) -> None:
        """Have its engine capture its graphs once it could be promoted, whenever nobody has the seat; return when that is done.

        A promotion ends it at once: the engine goes on as it is, and the rest is captured another time.
        """
        while record.state not in ENDED and _has_graphs_to_come(record):
            await self._board.until(lambda: record.state in ENDED or self._may_capture(record))
            if not await self._stays_calm(record):
                continue
            async with self._turns.turn(record):
                if self._may_capture(record):
                    await self._capture(record)

    def come(self, record: Record) -> None:
        """Note that nobody needs to wait for a resident's first start any more."""
        self._turns.come(record)

    async def settle(self) -> None:
        """Bring back those who were parked so that another could start, if there is room for them now."""
        if any(record.displaced for record in self._board.records):
            async with self._turns.turn(None):
                await self._settle()

    # ------------------------------------------------------------------ room

    async def _until_it_may_go_on(self, record: Record, outcome: _Outcome) -> None:
        """Wait until there is room for it, or until it is known what it should answer, and say what it waits for."""

        def may() -> bool:
            if record.state in ENDED and record.process is not None:
                return True
            if record.process is not None:
                reason = record.prover.missing if outcome is _Outcome.UNWITNESSED else ""
            elif not self._ready(record.policy):
                return False
            else:
                reason = self._obstacle(record)
            self._hold_back(record, reason)
            return not reason

        await self._board.until(may)

    def _obstacle(self, record: Record) -> str:
        """Say in words what keeps it cold; nothing if it may start once the seat is free."""
        if unfit := self._bad_gpus():
            return unfit
        if self._room.fits(record, Tier.AWAKE):
            return ""
        try:
            self._room.displaced(record, Tier.AWAKE)
        except NoRoom as error:
            return str(error) if self._seat_is_free(record) else ""  # whoever computes may be parked later
        if self._room.filled[record.policy] is Tier.COLD:
            return f"{self._room.refusal(record, Tier.AWAKE)}; the residents before it need the room"
        return ""

    def _bad_gpus(self) -> str:
        """Say which of the seat's GPUs are Bad, as the node said last; nothing where that isn't acted on.

        What is Suspect keeps nobody from starting: the first proof may be what clears it.
        """
        if self._config.gpu_health is not GpuHealth.ENFORCE:
            return ""
        bad = [word for word, _ in self._reader.words if word.word == Verdict.BAD]
        return "; ".join(f"GPU {each.uuid} is {each.word}: {each.reason}" for each in bad)

    def _hold_back(self, record: Record, reason: str) -> None:
        if reason and record.state is _S.FAILED and record.process is None:
            forget_last_life(record)
            self._board.move(record, _S.STARTING)
        self._board.wait(record, reason)

    async def _has_room(self, record: Record) -> bool:
        """Make room for its start once the seat is free. Whoever is parked for it comes back later."""
        if record.process is not None:
            return True
        await self._until_the_seat_is_free(record)
        await self._reader.unfit()  # what the node says now, and not a second ago
        ready = self._ready(record.policy)
        if not ready or self._obstacle(record):  # it comes back to this when there is none any more
            return False
        deadline = Deadline.after(_MOVE_SECONDS)
        try:
            for other in self._room.displaced(record, Tier.AWAKE):
                await self._mover.give_room(other, to=record, deadline=deadline)
                other.displaced = other.state is _S.PARKED
            await self._room.look(record, Tier.AWAKE, deadline=deadline)
        except AgentError as error:
            self._hold_back(record, str(error))
            await asyncio.sleep(_NO_ROOM_SECONDS)  # what keeps it may be outside the seat
            return False
        fits = self._room.fits(record, Tier.AWAKE)
        return fits and self._seat_is_free(record) and self._ready(record.policy)

    async def _settle(self) -> None:
        """Give everyone the tier that the seat's figures leave, the least needed first: down where that is needed, then up."""
        try:
            for record in reversed(self._board.records):
                await self._sink(record)
            for record in self._board.records:
                await self._rise(record)
        except AgentError as error:
            _LOG.warning("residents can't be brought to their tiers: %s", error)

    async def _sink(self, record: Record) -> None:
        if record.state is not _S.PAUSED:
            return
        filled = self._room.filled
        if not self._too_little_room(filled):
            return
        match filled[record.policy]:
            case Tier.PARKED:
                await self._move(record, _S.PAUSED, self._mover.park)
            case Tier.COLD:
                reason = "there is no room for it beside the residents before it"
                await give_up_memory(self._board, record, reason)

    def _too_little_room(self, filled: Tiers) -> bool:
        """Whether somebody has to go: what is there doesn't fit, or somebody who was displaced has no room to come back."""
        return not self._room.budget.fits or any(
            _is_to_come_back(record, filled) and not self._room.fits(record, Tier.PAUSED)
            for record in self._board.records
        )

    async def _rise(self, record: Record) -> None:
        if _is_to_come_back(record, self._room.filled) and self._room.fits(record, Tier.PAUSED):
            await self._move(record, _S.PARKED, self._mover.unpark)

    async def _move(self, record: Record, state: ResidentState, move: Callable[..., Awaitable[None]]) -> None:
        """Move a resident's weights once the seat is free, if it is still where it was."""
        await self._board.until(lambda: self._seat_is_free(record))
        if record.state is not state:
            return
        try:
            await move(record, deadline=Deadline.after(_MOVE_SECONDS))
        except EngineError as error:
            await fail(self._board, record, error)

    # ------------------------------------------------------------------ process and weights

    async def _load(self, record: Record, spawn: Spawn, phases: StartPhases) -> None:
        """Start its process and wait until the weights are loaded; with other ports if someone took them meanwhile."""
        if record.loaded:  # it was taken up, or has been set aside
            if record.state is _S.STARTING:
                self._board.advance(record, _S.LOADING)
            return
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                with phases.step(Phase.OTHER):
                    if attempt > 1 or record.process is None:
                        await spawn(record)
                    startup = await self._await_weights(record)
                await self._learn(record, startup, phases)
            except PortTaken:
                _LOG.warning("resident %s: a port was taken meanwhile (attempt %d)", record.policy, attempt)
                phases.explain({}, Phase.PROCESS)
                if record.process is not None:
                    await record.process.stop(grace_seconds=0)
                await disconnect(record)
            else:
                return
        raise StartFailed(
            f"{record.policy}: {_PORT_ATTEMPTS} times someone else took a port before the engine could"
        )

    async def _await_weights(self, record: Record) -> Startup:
        """Wait until its engine has loaded its weights, and return what that tells of itself."""
        deadline = Deadline.after(self._config.start_deadline_seconds)
        ready = await self._poll(record, deadline)
        if record.state is not _S.LOADING:
            self._board.advance(record, _S.LOADING)
        while not ready:
            await asyncio.sleep(_POLL_SECONDS)
            ready = await self._poll(record, deadline)
        startup = await record.engine.startup(deadline=deadline)
        await self._check_identity(record, startup)
        return startup

    async def _learn(self, record: Record, startup: Startup, phases: StartPhases) -> None:
        """Take over what an engine tells of its start and of itself; what it only logs is read there."""
        if startup.phases:
            phases.explain(in_phases(startup.phases), Phase.PROCESS)
            load, cache = startup.load, startup.compile_cache
        else:
            process = record.process
            logged = read_log(() if process is None else await process.telling_lines())
            phases.explain(in_phases(logged.phases), Phase.OTHER)
            load, cache = logged.load, logged.compile_cache
        phases.facts = replace(phases.facts, told=bool(startup.phases), weights=load, compile_cache=cache)
        learn_sizes(record, startup)
        await record.engine.close_guard(deadline=Deadline.after(_CONTROL_SECONDS))
        record.loaded = True

    async def _poll(self, record: Record, deadline: Deadline) -> bool:
        """Wait for an answer of the engine's control listener, and tell whether the weights are loaded."""
        while True:
            await self._check_process(record)
            try:
                return (await record.engine.startup(deadline=deadline.at_most(POLL_ANSWER_SECONDS))).ready
            except (EngineLost, EngineTimeout):
                await self._check_process(record)
            if deadline.left_seconds <= 0:
                seconds = self._config.start_deadline_seconds
                raise EngineTimeout(
                    f"{record.policy}: not ready within startDeadlineSeconds ({seconds:.0f} s)"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def _check_process(self, record: Record) -> None:
        process = record.process
        if process is None or not process.exited:
            return
        if await process.lost_its_port():
            raise PortTaken(f"{record.policy}: port taken")
        raise EngineLost(record.failure or await process.wait())

    async def _check_identity(self, record: Record, startup: Startup) -> None:
        """Make sure that it was this engine that answered, and not another that has got the port."""
        process = record.process
        if process is None or startup.pid is None or await process.owns(startup.pid):
            return
        await process.stop(grace_seconds=0)
        raise PortTaken(f"{record.policy}: process {startup.pid} answers on the port that was chosen for it")

    # ------------------------------------------------------------------ warm-up and first proof

    async def _warmed_and_proven(self, record: Record, phases: StartPhases) -> _Outcome:
        """Warm up, prove and pause, once the seat is free; again for as long as it has to give way."""
        outcome = _Outcome.SET_ASIDE
        while outcome is _Outcome.SET_ASIDE:
            outcome = await self._warm_and_prove(record, phases)
        return outcome

    async def _warm_and_prove(self, record: Record, phases: StartPhases) -> _Outcome:
        if not record.aside and not self._seat_is_free(record):
            await self._set_aside(record)
            return _Outcome.SET_ASIDE
        await self._until_the_seat_is_free(record)
        self._board.advance(record, _S.WARMING)
        warming = self._slot.warming = Warming(record)
        try:
            await warming.interruption.run(lambda: self._warm(record, phases))
            self._board.advance(record, _S.PROVING)
            if record.prover.missing:
                with phases.step(Phase.PROOF):
                    await warming.interruption.run(lambda: self._state_answers(record))
                await self._set_aside(record)
                return _Outcome.UNWITNESSED
            with phases.step(Phase.PROOF):
                await warming.interruption.run(lambda: self._prove(record))
            record.proven_at = time.time()
            if record.capabilities is None:
                with phases.step(Phase.PROOF):
                    await warming.interruption.run(lambda: self._probe(record))
                record.prover.require_owner(record.running)
            await warming.interruption.run(lambda: self._reader.tell_proof(record, passed=True))
            with phases.step(Phase.PAUSED):
                await self._changes.pause(record, deadline=Deadline.after(_CONTROL_SECONDS))
            self._board.advance(record, _S.PAUSED)
        except Interrupted:
            if warming.keep_awake and record.state is _S.PROVING:
                return _Outcome.PROVEN  # the order that took it over goes on from here
            await self._set_aside(record)
            return _Outcome.SET_ASIDE
        finally:
            self._slot.warming = None
            self._board.touch()
        return _Outcome.PROVEN

    async def _warm(self, record: Record, phases: StartPhases) -> None:
        deadline = Deadline.after(_WARM_SECONDS)
        with phases.step(Phase.WARM_UP):
            if record.aside:
                await self._changes.resume(record, deadline=deadline)
                record.aside = False
            done = await warm_up(record.engine, _sizes(record), phases.note_request, deadline=deadline)
        phases.facts = replace(phases.facts, warm_up=done)

    def _may_capture(self, record: Record) -> bool:
        """Whether its engine could capture graphs now: it is paused and known, and nobody has the seat or waits for it."""
        if record.state is not _S.PAUSED or not _has_graphs_to_come(record) or record.leaves_by is not None:
            return False
        if any(other.state in _TO_START and not other.waiting for other in self._board.records):
            return False  # who can't be promoted at all comes first
        free = self._slot.warming is None and self._slot.running is None and self._seat_is_free(record)
        return free and self._room.fits(record, Tier.AWAKE)

    async def _stays_calm(self, record: Record) -> bool:
        """Whether it still may after a while: whoever waited for this seat has had the time to take it."""
        try:
            async with asyncio.timeout(CALM_SECONDS):
                await self._board.until(lambda: not self._may_capture(record))
        except TimeoutError:
            return True
        return False

    async def _capture(self, record: Record) -> None:
        """Resume it out of rotation, capture, prove it with its graphs, and pause it again."""
        warming = self._slot.warming = Warming(record)
        try:
            self._board.advance(record, _S.PROVING)
            hurry = await self._captured(record, warming)
            if record.state is _S.PROVING and not warming.keep_awake:
                await self._pause_again(record, hurry=hurry)
        except EngineError as error:
            await fail(self._board, record, error)
        finally:
            self._slot.warming = None
            self._board.touch()

    async def _captured(self, record: Record, warming: Warming) -> bool:
        """Capture and prove; return whether that was cut short by somebody who waits for the seat.

        Raises:
            EngineError: the engine failed, or answers otherwise with its graphs.
        """
        clock, deadline = asyncio.get_running_loop().time, Deadline.after(_CAPTURE_SECONDS)
        began = clock()
        try:
            await warming.interruption.run(lambda: self._changes.resume(record, deadline=deadline))
            has_graphs = await warming.interruption.run(lambda: _has_captured(record, deadline))
            record.captured = True
            if has_graphs:
                await warming.interruption.run(lambda: self._prove(record))
                record.proven_at = time.time()
        except Interrupted:
            return True
        finally:
            took = record.phases.get(Phase.LATE_CAPTURE, 0.0) + clock() - began
            record.phases = MappingProxyType({**record.phases, Phase.LATE_CAPTURE: took})
        return False

    async def _pause_again(self, record: Record, *, hurry: bool) -> None:
        if hurry:
            await self._changes.set_aside(record, deadline=Deadline.after(_ASIDE_SECONDS))
        else:
            await self._changes.pause(record, deadline=Deadline.after(_CONTROL_SECONDS))
        self._board.advance(record, _S.PAUSED)

    async def _prove(self, record: Record) -> None:
        """Compare tokens. Where they differ because the proof belongs to another engine, say that."""
        prover = record.prover
        prover.require_owner(record.running)
        try:
            await prover.prove(
                record.engine, prompts=FIRST_PROOF_PROMPTS, deadline=Deadline.after(_PROOF_SECONDS)
            )
        except ProofFailed:
            if record.capabilities is None:
                await self._probe(record)  # it tells its version
            prover.require_owner(record.running)
            await self._reader.tell_proof(record, passed=False)
            raise

    async def _state_answers(self, record: Record) -> None:
        """Have it tell what it answers, and what it runs with: only those that run with the same can agree."""
        if record.capabilities is None:
            await self._probe(record)
        record.prover.require_owner(record.running)
        await record.prover.state_answers(
            record.engine, record.running, deadline=Deadline.after(_PROOF_SECONDS)
        )

    async def _probe(self, record: Record) -> None:
        await probe(self._board, record, Deadline.after(PROBE_SECONDS))

    async def _set_aside(self, record: Record) -> None:
        """Stop it from computing, for somebody else has the seat; what it has loaded stays."""
        if record.state in {_S.WARMING, _S.PROVING}:
            self._board.move(record, _S.LOADING)
        await self._changes.set_aside(record, deadline=Deadline.after(_ASIDE_SECONDS))
        record.aside = True
        self._board.touch()

    async def _until_the_seat_is_free(self, record: Record) -> None:
        """Wait until a start-up may compute, or its engine has ended, and say who has the seat meanwhile."""

        def may() -> bool:
            if self._seat_is_free(record) or (record.process is not None and record.state in ENDED):
                self._board.wait(record, "")
                return True
            rival = self._board.rival(record)
            self._board.wait(
                record, "an order is under way" if rival is None else f"{rival.policy} has the seat"
            )
            return False

        await self._board.until(may)

    def _seat_is_free(self, record: Record) -> bool:
        """Whether a start-up may compute: no order under way, and nobody else has the seat."""
        if self._board.rival(record) is not None:
            return False
        return self._slot.running is None or not self._config.exclusive


def _is_to_come_back(record: Record, filled: Tiers) -> bool:
    """Whether a resident that was displaced has its place paused."""
    return record.displaced and record.state is _S.PARKED and filled[record.policy] is Tier.PAUSED


def _has_graphs_to_come(record: Record) -> bool:
    """Whether its engine was found to have graphs to capture, as far as anybody has asked it."""
    found = record.capabilities
    return not record.captured and (found is None or found.has(Capability.LATE_CAPTURE))


async def _has_captured(record: Record, deadline: Deadline) -> bool:
    """Have its engine capture its graphs; False if it won't: it computes as before, and would say the same the next time."""
    try:
        await record.engine.capture(deadline=deadline)
    except EngineRejected as error:
        _LOG.warning("resident %s: its graphs aren't captured: %s", record.policy, error)
        return False
    return True


def _sizes(record: Record) -> Sizes:
    """Return what a resident is warmed up with."""
    config = record.config
    return sizes_of(config.warmup, in_flight=config.target_in_flight, longest=record.longest)


def learn_sizes(record: Record, startup: Startup) -> None:
    """Take over what an engine tells of itself once it is ready."""
    record.kv_bytes = startup.kv_bytes
    record.weights_bytes = startup.weights_bytes
    record.parked_bytes = startup.parked_bytes or 0
    record.longest = startup.longest
    record.running = startup.ownership


async def disconnect(record: Record) -> None:
    """Close the connections to a resident's engine, if there are any."""
    connection, record.connection = record.connection, None
    if connection is not None:
        await connection.close()


def forget_last_life(record: Record) -> None:
    """Forget what belonged to an engine that has ended. What it held remains the best guess of what the next one will."""
    record.failure = ""
    record.proven_at = None
    record.kv_released = record.loaded = record.aside = record.unsure = record.displaced = False
    record.capabilities, record.verification = None, None
    record.captured = record.misused = False
    record.running, record.leaves_by = Ownership(), None
    record.in_flight = 0
    record.parked_bytes = 0
    record.usual.clear()
    record.memory_bytes, record.memory_reason = None, "not measured yet"
    record.phases, record.start = MappingProxyType({}), None
