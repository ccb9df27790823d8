"""The life of residents: started, watched, restarted when they fail, stopped at the end.

A resident is born out of rotation: its guard is closed before anything else is asked of it.

Where a launcher is the engines' parent, they may have outlived an earlier agent. Those are taken up before anything is started:
who serves goes on serving, and who was paused and proven still is.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from warmpool.agent.adoption import Note, note_of, state_of
from warmpool.agent.board import ENDED, Record
from warmpool.agent.budget import FAILURES, MISUSED, WINDOW_SECONDS, FailureBudget
from warmpool.agent.config import GraphCapture, ResidentConfig
from warmpool.agent.equipment import Equipment
from warmpool.agent.failure import fail
from warmpool.agent.moving import once_arrived
from warmpool.agent.processes import Ports, Process, Start, Starter
from warmpool.agent.starting import (
    POLL_ANSWER_SECONDS,
    StartUps,
    disconnect,
    forget_last_life,
    learn_sizes,
)
from warmpool.engines.deadline import Deadline
from warmpool.engines.kinds import EngineKind
from warmpool.engines.port import Engine
from warmpool.errors import EngineLacksRoute, EngineLost, EngineTimeout, WarmpoolError
from warmpool.nodehealth.preflight.findings import OF_THE_GPU, told_in
from warmpool.states import MOVING, ResidentState

_LOG = logging.getLogger(__name__)
_S = ResidentState

DEFER_VARIABLE = "EMBERPOOL_DEFER_CAPTURE"
"""Environment variable by which the reference engine is told to capture its graphs later."""
STOP_GRACE_SECONDS = 5.0
"""How long an engine may take to end by itself."""
_CONTROL_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Engines:
    """How engines come to be.

    Attributes:
        starter: their parent.
        connect: returns the adapter that speaks to a resident's engine at its ports.
    """

    starter: Starter
    connect: Callable[[ResidentConfig, Ports], Engine]


class Life:
    """Starts, watches and restarts the residents of one seat.

    Args:
        equipment: the seat's parts.
        engines: how engines come to be.
    """

    def __init__(self, equipment: Equipment, engines: Engines) -> None:
        self._config = equipment.config
        self._board = equipment.board
        self._reader = equipment.reader
        self._engines = engines
        self._starts = StartUps(equipment, engines.starter.ready)
        self._unlooked = {record.policy for record in self._board.records}
        self._looked = asyncio.Barrier(len(self._board.records))

    async def live(self, record: Record) -> None:
        """Keep one resident alive until it is given up or terminated."""
        budget = FailureBudget()
        while True:
            await self._one_life(record)
            if record.state is _S.TERMINATING:
                return
            if record.gave_way:
                record.gave_way = False
                record.restarts += 1
                forget_last_life(record)
                self._board.move(record, _S.STARTING)  # it waits for its turn, and nothing is wrong with it
                continue
            await self._starts.settle()
            _LOG.warning("resident %s failed: %s", record.policy, record.failure)
            now = asyncio.get_running_loop().time()
            refused = record.refused
            if record.misused and not refused:
                self._give_up(record, f"given up, for another start would end alike: {record.failure}")
                return
            wait_seconds = budget.refused(now) if refused else budget.failed(now)
            if wait_seconds is None:
                often = f"{FAILURES} failures in {WINDOW_SECONDS:.0f} s"
                self._give_up(record, f"given up after {often}: {record.failure}")
                return
            await asyncio.sleep(wait_seconds)
            record.restarts += 1

    def _give_up(self, record: Record, failure: str) -> None:
        record.failure, record.given_up = failure, True
        self._board.touch()

    async def stop(self, record: Record, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Stop one resident for good: SIGTERM, and after `grace_seconds` SIGKILL. Stopping twice is stopping once."""
        if record.state is not _S.TERMINATING:
            self._board.move(record, _S.TERMINATING)
        if record.process is not None:
            await record.process.stop(grace_seconds=grace_seconds)
        await disconnect(record)
        self._board.touch()

    async def attend(self) -> None:
        """Keep in touch with the engines' parents until cancelled."""
        await self._engines.starter.attend()

    async def end_with_its_parent(self, record: Record) -> None:
        """End a drained engine whose parent has been told to end. It begins again under the next one, and this is no failure."""
        if record.process is not None and record.state not in ENDED:
            record.gave_way = True
            await record.process.stop(grace_seconds=STOP_GRACE_SECONDS)

    async def let_go(self) -> None:
        """Let go of engines as they are: their parent, where that isn't the agent, keeps them for the next one."""
        for record in self._board.records:
            await disconnect(record)
        await self._engines.starter.close()

    async def _one_life(self, record: Record) -> None:
        """Start it, and return once it has failed or been terminated and nothing of it is left."""
        async with asyncio.TaskGroup() as tasks:
            try:
                if await self._take_up(record, tasks):
                    self._starts.come(record)
                else:
                    await self._starts.run(record, lambda each: self._spawn(each, tasks))
            except WarmpoolError as error:
                await fail(self._board, record, error)
            if record.config.graph_capture is GraphCapture.WHILE_PAUSED:
                await self._starts.capture_later(record)
            await self._board.until(lambda: record.state in ENDED)
        if record.process is not None:
            await record.process.stop(grace_seconds=0)
            record.process = None
        record.loaded = record.aside = record.kv_released = False
        record.leaves_by = None
        record.parked_bytes, record.memory_bytes = 0, None
        record.memory_reason = "it has no process"
        await disconnect(record)
        self._board.touch()

    # ------------------------------------------------------------------ processes

    async def _spawn(self, record: Record, tasks: asyncio.TaskGroup) -> None:
        if record.state is not _S.STARTING:
            if (
                record.state is not _S.FAILED
            ):  # a port was taken while it loaded; the table's way back is through Failed
                record.failure = "a port was taken by someone else"
                self._board.move(record, _S.FAILED)
            self._board.move(record, _S.STARTING)
        forget_last_life(record)
        process = await self._engines.starter.start(
            _start_of(record), Ports.free(self._config.host, record.config.port)
        )
        self._attend(record, process, tasks)

    def _attend(self, record: Record, process: Process, tasks: asyncio.TaskGroup) -> None:
        """Make a process the resident's own: speak to it, watch it, note what becomes of it."""
        record.process, record.address = process, process.ports.public_url
        record.connection = self._engines.connect(record.config, process.ports)
        tasks.create_task(self._watch(record, process))
        if self._config.launcher is not None:
            tasks.create_task(self._keep_noting(record, process))
        self._board.touch()

    async def _watch(self, record: Record, process: Process) -> None:
        """Fail the resident at once when its process ends."""
        ended = await process.wait()
        starting = record.state in {_S.STARTING, _S.LOADING}
        if starting and await process.lost_its_port():
            self._board.touch()  # the start-up sees it and tries other ports
            return
        if record.process is process and record.state not in ENDED:
            record.failure = ended
            record.misused = starting and process.status == MISUSED
            self._board.move(record, _S.FAILED)
        self._board.touch()
        found = told_in(ended) if starting else None
        if found is not None and found.outcome in OF_THE_GPU:
            await self._reader.tell_fault(
                found.gpu, f"a pre-flight found {found.outcome.value}: {found.text}"
            )

    async def _keep_noting(self, record: Record, process: Process) -> None:
        """Note whatever an agent that comes after this one has to know, whenever it changes."""
        noted = None
        while record.process is process and not process.exited:
            seq, note = self._board.seq, note_of(record)
            if note != noted:
                try:
                    await process.remember(note.to_json())
                    noted = note
                except WarmpoolError as error:  # the process's end is seen elsewhere
                    _LOG.warning("resident %s: its state can't be noted: %s", record.policy, error)
            await self._board.change_after(seq)

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
            found = await self._engines.starter.running(_start_of(record))
            if found is not None:
                process, note = found
                _LOG.info("resident %s: taking up engine process %d", record.policy, process.pid)
                self._attend(record, process, tasks)
                await self._find_out(record, Note.from_json(note))
        except WarmpoolError as error:
            await fail(self._board, record, error)
        if await self._looked.wait() == 0:
            try:
                await self._engines.starter.end_others([each.policy for each in self._board.records])
            except WarmpoolError as error:
                _LOG.warning("engines that belong to nobody may be left: %s", error)
        return record.state is not _S.STARTING

    async def _find_out(self, record: Record, note: Note) -> None:
        """Place a resident where its engine is in its life; one that has to be warmed up or proven stays in Starting."""
        engine, deadline = record.engine, Deadline.after(_CONTROL_SECONDS)
        try:
            startup = await engine.startup(deadline=deadline.at_most(POLL_ANSWER_SECONDS))
        except (EngineLost, EngineTimeout):
            return  # its listener isn't there yet
        if startup.ready:
            learn_sizes(record, startup)
        elif not note.loaded:
            return
        note.recall(record)  # a paused engine may call itself not ready, and tell nothing of itself
        record.loaded = True
        engine.assume(kv_released=record.kv_released, parked=note.parked, capabilities=record.capabilities)
        if note.state in MOVING:
            await once_arrived(lambda: record.engine.unpark(deadline=deadline), deadline)
            record.kv_released = True
        guard = await engine.guard(deadline=deadline)
        paused = await self._is_paused(record, note, deadline)
        if (
            not paused and record.kv_released
        ):  # an order to take it was carried out, and nobody was left to note that
            record.kv_released = False
            engine.assume(kv_released=False, capabilities=record.capabilities)
        state = state_of(note, guard, paused=paused)
        if state is _S.LOADING:
            # Its KV memory stays as it is: taking it to be sure could take it from a neighbour that serves.
            await engine.close_guard(deadline=deadline)
            record.aside = paused
            record.proven_at = None
            return
        record.in_flight = guard.in_flight
        record.state = state  # found, not moved to: no arrow leads there from Starting
        record.since = time.time()
        self._board.touch()

    async def _is_paused(self, record: Record, note: Note, deadline: Deadline) -> bool:
        try:
            return await record.engine.is_paused(deadline=deadline)
        except EngineLacksRoute:  # then what was noted is all that is known
            return note.state in {_S.PAUSED, _S.PARKED, *MOVING}


def _start_of(record: Record) -> Start:
    config = record.config
    later = config.graph_capture is GraphCapture.WHILE_PAUSED
    told = {DEFER_VARIABLE: "1"} if later and config.type is EngineKind.REFERENCE else {}
    return Start(
        name=config.policy,
        command=config.command,
        environment={**told, **config.environment},
        placeholders=config.placeholders,
    )
