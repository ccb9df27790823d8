"""The life of residents: started one at a time in the config's order, warmed, proven, paused; restarted when they fail.

A resident is born out of rotation: its guard is closed before anything else is asked of it. Start-ups never stand in the way of
orders. An engine whose neighbour is promoted meanwhile goes on loading its weights, but neither warms up nor proves: a warm-up
under way is cut short, the engine paused (its KV memory given back on a shared seat), and the resident is back in Loading until
the seat is free again. A new process is started only while nobody has the seat.

Where a launcher is the engines' parent, they may have outlived an earlier agent. Those are taken up before anything is started:
who serves goes on serving, and who was paused and proven still is.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from types import MappingProxyType

from warmpool.agent.adoption import Note, state_of
from warmpool.agent.board import Board, Record
from warmpool.agent.budget import FAILURES, WINDOW_SECONDS, FailureBudget
from warmpool.agent.config import AgentConfig
from warmpool.agent.guarding import connect_guarded
from warmpool.agent.interruption import Interrupted
from warmpool.agent.launching import Launcher
from warmpool.agent.memory import measure
from warmpool.agent.operations import Operations
from warmpool.agent.phases import Phases
from warmpool.agent.processes import OwnChildren, Ports, Process, Start, Starter
from warmpool.agent.proof import Prover
from warmpool.agent.slot import Slot, Warming
from warmpool.agent.warmup import warm_up
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import Startup
from warmpool.errors import EngineLost, EngineTimeout, EngineUnfit, StartFailed, WarmpoolError
from warmpool.launcher import SECRET_VARIABLE
from warmpool.states import ResidentState

_LOG = logging.getLogger(__name__)
_S = ResidentState
_ENDED = frozenset({_S.FAILED, _S.TERMINATING})

STOP_GRACE_SECONDS = 5.0
"""How long an engine may take to end by itself."""
FIRST_PROOF_PROMPTS = 4
"""Prompts that the first proof of a start asks."""
_PORT_ATTEMPTS = 5
_WARM_SECONDS = 600.0  # compiling kernels on the first requests
_PROOF_SECONDS = 120.0
_CONTROL_SECONDS = 30.0
_ASIDE_SECONDS = 2.0  # a promotion is waiting
_POLL_SECONDS = 0.05
_POLL_ANSWER_SECONDS = 5.0  # an engine that imports or loads may hold its interpreter for long
_SUPERSEDED_STATUS = 3
_TELLING_KV_BYTES = 64 * 2**20  # less drowns in what else a process allocates and frees


class _PortTaken(StartFailed):
    """Someone else took one of the engine's ports between choosing and binding it."""


class Life:
    """Starts, watches and restarts the residents of one seat.

    Args:
        config: the seat.
        board: its residents.
        slot: who may work on them.
        operations: how a resident is failed.
        prover: makes the prover of a resident.
    """

    def __init__(
        self,
        config: AgentConfig,
        board: Board,
        slot: Slot,
        operations: Operations,
        prover: Callable[[Record], Prover],
    ) -> None:
        self._config = config
        self._board = board
        self._slot = slot
        self._operations = operations
        self._prover = prover
        self._turn = asyncio.Lock()  # fair: first come, first served, so the config's order holds
        self._starter = _starter(config)
        self._unlooked = {record.policy for record in board.records}
        self._looked = asyncio.Barrier(len(board.records))

    async def live(self, record: Record) -> None:
        """Keep one resident alive until it is given up or terminated."""
        budget = FailureBudget()
        while True:
            await self._one_life(record)
            if record.state is _S.TERMINATING:
                return
            wait_seconds = budget.failed(time.monotonic())
            _LOG.warning("resident %s failed: %s", record.policy, record.failure)
            if wait_seconds is None:
                record.failure = (
                    f"given up after {FAILURES} failures in {WINDOW_SECONDS:.0f} s: {record.failure}"
                )
                self._board.touch()
                return
            await asyncio.sleep(wait_seconds)
            record.restarts += 1

    async def stop(self, record: Record, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stop one resident for good: SIGTERM, and after `grace_seconds` SIGKILL. Stopping twice is stopping once."""
        if record.state is not _S.TERMINATING:
            self._board.move(record, _S.TERMINATING)
        if record.process is not None:
            await record.process.stop(grace_seconds=grace_seconds)
        await self._disconnect(record)
        self._board.touch()
        if all(each.process is None or each.process.exited for each in self._board.records):
            await self._starter.close()

    async def _one_life(self, record: Record) -> None:
        """Start it, and return once it has failed or been terminated and nothing of it is left."""
        async with asyncio.TaskGroup() as tasks:
            try:
                if not await self._take_up(record, tasks):
                    async with self._turn:
                        await self._start_up(record, tasks)
            except WarmpoolError as error:
                await self._operations.fail(record, error)
            await self._board.until(lambda: record.state in _ENDED)
        if record.process is not None:
            await record.process.stop(grace_seconds=0)
            record.process = None
        await self._disconnect(record)

    async def _disconnect(self, record: Record) -> None:
        connection, record.connection = record.connection, None
        if connection is not None:
            await connection.close()

    async def _start_up(self, record: Record, tasks: asyncio.TaskGroup) -> None:
        phases = Phases()
        await self._board.until(lambda: self._seat_is_free(record))
        taken_up = record.process is not None
        await self._load(record, tasks, phases)
        aside = taken_up and await record.engine.is_paused(deadline=Deadline.after(_CONTROL_SECONDS))
        while not await self._warm_and_prove(record, phases, aside=aside):
            aside = True
        record.phases = MappingProxyType(dict(phases.seconds))
        self._board.touch()

    # ------------------------------------------------------------------ process and weights

    async def _load(self, record: Record, tasks: asyncio.TaskGroup, phases: Phases) -> None:
        """Start its process and wait until the weights are loaded; with other ports if someone took them meanwhile."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                if attempt > 1 or record.process is None:
                    await self._spawn(record, tasks, phases)
                await self._await_weights(record, phases)
            except _PortTaken:
                _LOG.warning("resident %s: a port was taken meanwhile (attempt %d)", record.policy, attempt)
                if record.process is not None:
                    await record.process.stop(grace_seconds=0)
                await self._disconnect(record)
            else:
                return
        raise StartFailed(
            f"{record.policy}: {_PORT_ATTEMPTS} times someone else took a port before the engine could"
        )

    async def _spawn(self, record: Record, tasks: asyncio.TaskGroup, phases: Phases) -> None:
        if record.state is not _S.STARTING:
            if (
                record.state is not _S.FAILED
            ):  # a port was taken while it loaded; the table's way back is through Failed
                record.failure = "a port was taken by someone else"
                self._board.move(record, _S.FAILED)
            self._board.move(record, _S.STARTING)
        _forget_last_life(record)
        with phases.step("spawn"):
            process = await self._starter.start(_start_of(record), Ports.free(self._config.host))
        self._attend(record, process, tasks)

    def _attend(self, record: Record, process: Process, tasks: asyncio.TaskGroup) -> None:
        """Make a process the resident's own: speak to it, watch it, note what becomes of it."""
        record.process, record.address = process, process.ports.public_url
        record.connection = connect_guarded(record.config, process.ports)
        tasks.create_task(self._watch(record, process))
        if self._config.launcher is not None:
            tasks.create_task(self._keep_noting(record, process))
        self._board.touch()

    async def _keep_noting(self, record: Record, process: Process) -> None:
        """Note whatever an agent that comes after this one has to know, whenever it changes."""
        noted = None
        while record.process is process and not process.exited:
            seq, note = self._board.seq, _note_of(record)
            if note != noted:
                try:
                    await process.remember(note.to_json())
                    noted = note
                except WarmpoolError as error:  # the process's end is seen elsewhere
                    _LOG.warning("resident %s: its state can't be noted: %s", record.policy, error)
            await self._change_after(seq)

    async def _change_after(self, seq: int) -> None:
        await self._board.until(lambda: self._board.seq != seq)

    # ------------------------------------------------------------------ engines of an earlier agent

    async def _take_up(self, record: Record, tasks: asyncio.TaskGroup) -> bool:
        """Take up the engine that an earlier agent has left, if it has left one.

        All residents have been looked after once this returns: nothing is started while somebody may serve unseen.

        Returns:
            Whether the resident needs no start-up.
        """
        if self._config.launcher is None or record.policy not in self._unlooked:
            return False
        self._unlooked.discard(record.policy)
        try:
            found = await self._starter.running(_start_of(record))
            if found is not None:
                process, note = found
                _LOG.info("resident %s: taking up engine process %d", record.policy, process.pid)
                self._attend(record, process, tasks)
                await self._find_out(record, Note.from_json(note))
        except WarmpoolError as error:
            await self._operations.fail(record, error)
        if await self._looked.wait() == 0:
            try:
                await self._starter.end_others([each.policy for each in self._board.records])
            except WarmpoolError as error:
                _LOG.warning("engines that belong to nobody may be left: %s", error)
        return record.state is not _S.STARTING

    async def _find_out(self, record: Record, note: Note) -> None:
        """Place a resident where its engine is in its life; one that has to be warmed up or proven stays in Starting."""
        engine, deadline = record.engine, Deadline.after(_CONTROL_SECONDS)
        try:
            startup = await engine.startup(deadline=deadline.at_most(_POLL_ANSWER_SECONDS))
        except (EngineLost, EngineTimeout):
            return  # its listener isn't there yet
        if not startup.ready:
            return
        guard = await engine.guard(deadline=deadline)
        state = state_of(note, guard, paused=await engine.is_paused(deadline=deadline))
        record.kv_released = note.kv_released
        engine.assume(kv_released=note.kv_released)
        if state is _S.LOADING:
            # Its KV memory stays as it is: taking it to be sure could take it from a neighbour that serves.
            await engine.close_guard(deadline=deadline)
            return
        record.kv_bytes = startup.kv_bytes
        record.proven_at = note.proven_at
        record.in_flight = guard.in_flight
        record.state = state  # found, not moved to: no arrow leads there from Starting
        record.since = time.time()
        self._board.touch()

    # ------------------------------------------------------------------ weights

    async def _watch(self, record: Record, process: Process) -> None:
        """Fail the resident at once when its process ends."""
        ended = await process.wait()
        starting = record.state in {_S.STARTING, _S.LOADING}
        if starting and await process.lost_its_port():
            self._board.touch()  # the start-up sees it and tries other ports
            return
        if record.process is process and record.state not in {_S.FAILED, _S.TERMINATING}:
            record.failure = ended
            self._board.move(record, _S.FAILED)
        self._board.touch()

    async def _await_weights(self, record: Record, phases: Phases) -> None:
        deadline = Deadline.after(self._config.start_deadline_seconds)
        with phases.step("process"):
            ready = await self._poll(record, deadline)
        self._board.advance(record, _S.LOADING)
        with phases.step("load"):
            while not ready:
                await asyncio.sleep(_POLL_SECONDS)
                ready = await self._poll(record, deadline)
        startup = await record.engine.startup(deadline=deadline)
        await self._check_identity(record, startup)
        if startup.phases:  # the engine tells more precisely what its start consists of
            phases.seconds.clear()
            phases.seconds.update(startup.phases)
        record.kv_bytes = startup.kv_bytes
        await record.engine.close_guard(deadline=Deadline.after(_CONTROL_SECONDS))

    async def _poll(self, record: Record, deadline: Deadline) -> bool:
        """Wait for an answer of the engine's control listener, and tell whether the weights are loaded."""
        while True:
            await self._check_process(record)
            try:
                return (await record.engine.startup(deadline=deadline.at_most(_POLL_ANSWER_SECONDS))).ready
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
            raise _PortTaken(f"{record.policy}: port taken")
        raise EngineLost(await process.wait())

    async def _check_identity(self, record: Record, startup: Startup) -> None:
        """Make sure that it was this engine that answered, and not another that has got the port."""
        process = record.process
        if process is None or startup.pid is None or await process.owns(startup.pid):
            return
        await process.stop(grace_seconds=0)
        raise _PortTaken(f"{record.policy}: process {startup.pid} answers on the port that was chosen for it")

    # ------------------------------------------------------------------ warm-up and first proof

    async def _warm_and_prove(self, record: Record, phases: Phases, *, aside: bool) -> bool:
        """Warm up, prove and pause, once the seat is free.

        Args:
            record: the resident, loaded.
            phases: where the time goes.
            aside: it was set aside before, and so is paused.

        Returns:
            False if it had to give way and has been set aside; it is to be tried again.
        """
        if not aside and not self._seat_is_free(record):
            await self._set_aside(record)
            return False
        await self._board.until(lambda: record.state in _ENDED or self._seat_is_free(record))
        engine, prover = record.engine, self._prover(record)
        self._board.advance(record, _S.WARMING)
        warming = self._slot.warming = Warming(record)
        try:
            await warming.interruption.run(lambda: self._warm(record, phases, aside=aside))
            self._board.advance(record, _S.PROVING)
            with phases.step("proof"):
                proof = Deadline.after(_PROOF_SECONDS)
                await warming.interruption.run(
                    lambda: prover.prove(engine, prompts=FIRST_PROOF_PROMPTS, deadline=proof)
                )
            record.proven_at = time.time()
            with phases.step("probe"):
                await warming.interruption.run(lambda: self._operations.probe(record))
            with phases.step("pause"):
                await self._pause(record)
            self._board.advance(record, _S.PAUSED)
        except Interrupted:
            if warming.keep_awake and record.state is _S.PROVING:
                return True  # the order that took it over goes on from here
            await self._set_aside(record)
            return False
        finally:
            self._slot.warming = None
            self._board.touch()
        return True

    async def _warm(self, record: Record, phases: Phases, *, aside: bool) -> None:
        deadline = Deadline.after(_WARM_SECONDS)
        if aside:
            with phases.step("kv" if record.kv_released else "resume"):
                record.verification = await record.engine.resume(record.kv, deadline=deadline)
            record.kv_released = False
        with phases.step("warmup"):
            await warm_up(record.engine, record.config.warmup, deadline=deadline)

    async def _pause(self, record: Record) -> None:
        """Pause it for the first time, and see whether the KV memory that it says it gives back really comes back."""
        await self.measure(record)
        before = record.memory_bytes
        record.verification = await record.engine.pause(record.kv, deadline=Deadline.after(_CONTROL_SECONDS))
        self._paused(record)
        await self.measure(record)
        after, kv = record.memory_bytes, record.kv_bytes or 0
        if not record.releases_kv or before is None or after is None or kv < _TELLING_KV_BYTES:
            return
        if before - after < kv / 2:
            raise EngineUnfit(
                f"{record.policy}: it answered that {kv >> 20} MiB of KV memory were released, "
                f"and the memory that it holds went from {before >> 20} to {after >> 20} MiB"
            )

    async def _set_aside(self, record: Record) -> None:
        """Stop it from computing, for somebody else has the seat; what it has loaded stays."""
        if record.state in {_S.WARMING, _S.PROVING}:
            self._board.move(record, _S.LOADING)
        record.verification = await record.engine.pause(record.kv, deadline=Deadline.after(_ASIDE_SECONDS))
        self._paused(record)

    def _paused(self, record: Record) -> None:
        record.kv_released = record.releases_kv

    async def measure(self, record: Record) -> None:
        """Measure the memory that its engine holds."""
        process = record.process
        if process is None or process.exited:
            record.memory_bytes, record.memory_reason = None, "its engine is not running"
            return
        if process.visible_pid is None:
            record.memory_bytes, record.memory_reason = None, "its engine runs in another PID namespace"
            return
        memory = await measure(process.visible_pid, gpus=bool(self._config.gpus))
        record.memory_bytes, record.memory_reason = memory.held_bytes, memory.reason

    def _seat_is_free(self, record: Record) -> bool:
        """Whether a start-up may compute: no order under way, and nobody else has the seat."""
        if self._board.rival(record) is not None:
            return False
        running = self._slot.running
        return running is None or not self._config.exclusive


def _starter(config: AgentConfig) -> Starter:
    if config.launcher is None:
        return OwnChildren(config.log_directory, config.seat)
    secret = os.environ.get(SECRET_VARIABLE, "")
    return Launcher(config.launcher, secret=secret, on_draining=_end_agent, on_superseded=_cease)


def _end_agent(seconds: float) -> None:
    """End as on SIGTERM: the seat is drained, and its engines are stopped."""
    _LOG.info("the launcher has been told to end; %.0f s are left for draining", seconds)
    signal.raise_signal(signal.SIGTERM)


def _cease() -> None:
    """End at once and leave everything as it is: it is another agent's now, and ending in order would stop its engines."""
    _LOG.critical("an agent that has started later has the launcher now; this one ends")
    os._exit(_SUPERSEDED_STATUS)


def _start_of(record: Record) -> Start:
    config = record.config
    return Start(name=config.policy, command=config.command, environment=config.environment)


def _note_of(record: Record) -> Note:
    return Note(state=record.state, proven_at=record.proven_at, kv_released=record.kv_released)


def _forget_last_life(record: Record) -> None:
    record.failure = ""
    record.proven_at = None
    record.kv_released = False
    record.capabilities, record.verification = None, None
    record.in_flight = 0
    record.memory_bytes, record.memory_reason = None, "not measured yet"
    record.phases = MappingProxyType({})
