"""One seat as it runs: its residents' lives, the orders to it, and what it tells of itself."""

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from warmpool.agent.ahead import LOOK_SECONDS as STAGE_SECONDS
from warmpool.agent.ahead import PENDING_SECONDS, Stager, starting, wanted
from warmpool.agent.board import Record
from warmpool.agent.equipment import Equipment
from warmpool.agent.failure import give_up_memory
from warmpool.agent.keeping import Kept, keeper_of
from warmpool.agent.life import Engines, Life
from warmpool.agent.metrics import AgentMetrics
from warmpool.agent.operations import Operations
from warmpool.agent.orders import Order, OrderBook, Refused, Result, StageOrder, StartOrder
from warmpool.agent.phases import Phases
from warmpool.engines.deadline import Deadline
from warmpool.errors import AgentBusy, AgentError, EngineError, WarmpoolError, WrongState
from warmpool.expectations import Recording
from warmpool.states import ResidentState
from warmpool.timeline import ATTACHED
from warmpool.wire import budget_to_json, gpu_word_to_json, recording_to_json, statement_to_json

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the requests in flight of a resident in rotation are read."""
HEALTH_SECONDS = 1.0
"""How often the node is asked what is said of the seat's GPUs; a promotion asks anew."""
MEASURE_SECONDS = 30.0
"""How often the engines' memory is measured."""
ORDERED_SECONDS = 180.0
"""For how long a controller's word on what the node will need counts. It is repeated each minute while it holds; where nobody repeats it, its
controller has ended, or tells another agent of the node."""
DRAIN_AT_END_SECONDS = 10.0
"""How long accepted requests may go on when the agent is told to end and nobody says how much time there is."""
_STOPPING_SECONDS = 0.5  # of the time that a launcher leaves, for asking the engines to end
_LOOK_ANSWER_SECONDS = 1.0


class LiveSeat:
    """Everything of one seat but its listener.

    Args:
        equipment: its parts.
        engines: how its engines come to be.
        tasks: where its tasks live; it ends them itself in `shut_down`.

    Attributes:
        board: its residents.
        metrics: what it counts.
        address: base URL of its API; set once it listens.
        drain_seconds: how long accepted requests may go on when it is told to end.
    """

    def __init__(self, equipment: Equipment, engines: Engines, tasks: asyncio.TaskGroup) -> None:
        self.board = equipment.board
        self.metrics = AgentMetrics(equipment.board, equipment.room, equipment.stager)
        self.address = ""
        self.drain_seconds = DRAIN_AT_END_SECONDS
        self._config = equipment.config
        self._room = equipment.room
        self._reader = equipment.reader
        self._tasks = tasks
        self._slot = equipment.slot
        self._keeper = keeper_of(equipment.config)
        kept = self._keeper.read()
        self._book = OrderBook(kept.epoch)
        self._operations = Operations(equipment)
        self._life = Life(equipment, engines)
        self._stager = equipment.stager
        self._ahead: Sequence[str] = ()
        self._ahead_until = 0.0
        self._background: set[asyncio.Task[None]] = set()
        equipment.changes.told = self.metrics.judged
        for record in self.board.records:
            record.prover.observer = partial(self.metrics.proved, record.policy)
            record.prover.recording = kept.recordings.get(record.policy)

    def start(self) -> None:
        """Begin the residents' lives."""
        for record in self.board.records:
            self._spawn(self._life.live(record))
        self._spawn(self._life.attend())
        self._spawn(self._look())
        self._spawn(self._measure())
        if self._config.node_agent:
            self._spawn(self._heed_health())
        if self._stager is not None:
            self._spawn(self._stage_ahead(self._stager))

    async def order(self, order: Order) -> Result:
        """Carry out an order, or join or repeat the one that it repeats.

        Raises:
            AgentError: it was refused, or not carried out in time.
            EngineError: the engine failed.
        """
        try:
            outcome = self._book.admit(order)
        except AgentError as error:
            self.metrics.not_done(order.kind, error.code)
            raise
        self._keep()  # before anything is done in this term's name
        if outcome is None:
            outcome = self._book.begin(order)
            self._spawn(self._book.carry_out(order, self._counted))
        try:
            result = await asyncio.shield(outcome)
        except asyncio.CancelledError:
            if outcome.cancelled():
                raise AgentBusy("the agent is ending, and the order was dropped") from None
            raise
        if isinstance(result, WarmpoolError):
            raise result
        return result

    def state(self) -> dict[str, Any]:
        """Render the seat as `/v1/state` and pushes tell it."""
        running = self._slot.running
        return {
            "seat": self._config.seat,
            "fleet": self._config.fleet,
            "uid": self._config.uid,
            "agent": self.address,
            "pid": os.getpid(),
            "epoch": self._book.epoch,
            "seq": self.board.seq,
            "gpus": list(self._config.gpus),
            "gpuHealth": [
                {**gpu_word_to_json(word), "ageMilliseconds": round(age * 1000)}
                for word, age in self._reader.words
            ],
            "starts": self._starts(),
            "stage": None if self._stager is None else [each.to_json() for each in self._stager.found],
            "operation": None if running is None else running.to_json(),
            "memory": budget_to_json(self._room.budget),
            "residents": [self._told(record) for record in self.board.records],
            "at": time.time(),
        }

    # ------------------------------------------------------------------ what residents answer

    def proof(self, policy: str) -> dict[str, Any]:
        """Tell what a resident answers, and what that is compared with.

        Raises:
            UnknownResident: the seat has none of this policy.
        """
        prover = self.board.record(policy).prover
        return {
            "policy": policy,
            "uid": self._config.uid,
            "statement": None if prover.statement is None else statement_to_json(prover.statement),
            "recording": None if prover.recording is None else recording_to_json(prover.recording),
            "missing": prover.missing,
        }

    def take_recording(self, policy: str, recording: Recording, *, epoch: int) -> None:
        """Compare a resident with a recording from now on.

        Raises:
            StaleEpoch: a later term has been seen.
            UnknownResident: the seat has none of this policy.
            NeedsWitness: the resident is the recording's only witness.
            WrongState: the config has recorded tokens, or the recording belongs to another engine.
        """
        record = self.board.record(policy)
        self._book.heed(epoch)
        record.prover.accept(recording, record.running)
        self._keep()
        self.board.touch()

    def take_start_order(self, told: StartOrder) -> dict[str, Any]:
        """Start residents in another order from now on, and return in which.

        Raises:
            StaleEpoch: a later term has been seen.
        """
        self._book.heed(told.epoch)
        self._keep()
        self.board.need(told.policies, told.wanted)
        return self._starts()

    def _told(self, record: Record) -> dict[str, Any]:
        """Render a resident; where its weights lie concerns only those who can have them staged."""
        if self._stager is None or not record.checkpoint:
            return record.to_json()
        ahead = self._stager.places.get(record.checkpoint)
        told = {} if ahead is None else {"stage": str(ahead.place), "stageReason": ahead.reason}
        return record.to_json() | {"checkpoint": record.checkpoint} | told

    def take_stage_order(self, told: StageOrder) -> dict[str, Any]:
        """Have these checkpoints in the node's memory as well from now on, and return what is wanted there.

        Raises:
            StaleEpoch: a later term has been seen.
            WrongState: the seat has no stage daemon to ask.
        """
        self._book.heed(told.epoch)
        self._keep()
        if self._stager is None:
            raise WrongState("stageDaemon: the agent's config names none, so nothing can be staged here")
        before = self._ordered_ahead()
        self._ahead = tuple(told.checkpoints)
        self._ahead_until = asyncio.get_running_loop().time() + ORDERED_SECONDS
        if self._ahead != before:
            self.board.touch()
        return {"checkpoints": list(wanted(self.board.by_need, self._ahead))}

    def _starts(self) -> dict[str, Any]:
        order = [record.policy for record in self.board.by_need]
        return {"policies": order, "wanted": [policy for policy in order if policy in self.board.wanted]}

    def _keep(self) -> None:
        recordings = {
            record.policy: record.prover.recording
            for record in self.board.records
            if record.prover.recording is not None
        }
        self._keeper.write(Kept(epoch=self._book.epoch, recordings=MappingProxyType(recordings)))

    # ------------------------------------------------------------------ the end

    def drain_within(self, policies: Sequence[str], seconds: float) -> None:
        """Take note that the launcher of some residents has been told to end, with so many seconds left for draining."""
        deadline = Deadline.after(max(0.0, seconds - _STOPPING_SECONDS))
        for policy in policies:
            _LOG.info(
                "the launcher of %s has been told to end; %.0f s are left for draining", policy, seconds
            )
            self.board.record(policy).leaves_by = deadline
        self.board.touch()

    def leave(self, policies: Sequence[str], seconds: float) -> None:
        """Drain some residents, whose launcher alone has been told to end, and leave the others as they are.

        They begin anew under the launcher that comes after it.
        """
        records = [self.board.record(policy) for policy in policies]
        self.drain_within(policies, seconds)
        self._spawn(self._leave(records))

    async def _leave(self, records: Sequence[Record]) -> None:
        await self._drain_all(records)
        async with asyncio.TaskGroup() as ending:
            for record in records:
                ending.create_task(self._life.end_with_its_parent(record))

    async def _drain_all(self, records: Sequence[Record]) -> None:
        """Drain what serves, each resident by its own deadline."""
        at_end = Deadline.after(self.drain_seconds)
        async with asyncio.TaskGroup() as draining:
            for record in records:
                draining.create_task(self._drain_at_end(record, record.leaves_by or at_end))

    async def shut_down(self) -> None:
        """Take no more orders, drain what serves within bounds, and stop all engines. Nothing of them is left afterwards."""
        self._slot.closed = "the agent is ending"
        await self._drain_all(self.board.records)
        async with asyncio.TaskGroup() as stopping:
            for record in self.board.records:
                stopping.create_task(self._life.stop(record))
        for task in tuple(self._background):
            task.cancel()

    async def abandon(self) -> None:
        """End without a word, whatever has gone wrong: kill whatever engines are left, unless somebody else is their parent.

        Engines of a launcher go on, and so do their streams: the next agent takes them up. After `shut_down` there are none.
        """
        self._slot.closed = "the agent is ending"
        if self._config.launcher is None:
            for record in self.board.records:
                await self._life.stop(record, grace_seconds=0)
        await self._life.let_go()
        await self._reader.close()

    async def _counted(self, order: Order) -> Result:
        try:
            result = await self._operations.carry_out(order)
        except Refused as refused:
            self.metrics.not_done(order.kind, refused.error.code)
            raise
        except EngineError:
            self.metrics.not_done(order.kind, "EngineFailed")
            raise
        except AgentError as error:
            self.metrics.not_done(order.kind, error.code)
            raise
        self.metrics.done(order.kind, result)
        return result

    async def _drain_at_end(self, record: Record, deadline: Deadline) -> None:
        if record.state is ResidentState.SERVING:
            self.board.move(record, ResidentState.DRAINING)
        if record.state is ResidentState.DRAINING:
            with suppress(EngineError, AgentError):  # it is stopped next, whatever it says
                await self._operations.close_and_wait(record, deadline, Phases())

    async def _look(self) -> None:
        """Read the requests in flight of residents in rotation now and then."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for record in self.board.records:
                if record.state is not ResidentState.SERVING:
                    continue
                with suppress(
                    EngineError
                ):  # the process's end is seen elsewhere, and a slow answer is no news
                    state = await record.engine.guard(deadline=Deadline.after(_LOOK_ANSWER_SECONDS))
                    self.board.note_in_flight(record, state.in_flight)

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            await self._reader.read()
            await self._start_anew_what_cannot_wake()

    async def _start_anew_what_cannot_wake(self) -> None:
        """End parked engines whose weights were the stage daemon's copy, once that is gone: they could only fail a promotion."""
        for record in self.board.records:
            load = None if record.start is None else record.start.weights
            attached = load is not None and load.tier == ATTACHED
            if (
                record.state is ResidentState.PARKED
                and attached
                and self._reader.lacks_copy(record.checkpoint)
            ):
                reason = "the stage daemon holds its weights no more, so that it can't be unparked"
                _LOG.warning("resident %s: %s; it is started anew", record.policy, reason)
                await give_up_memory(self.board, record, reason)

    async def _stage_ahead(self, stager: Stager) -> None:
        """Have the node's stage daemon bring into memory what will be needed, and let go of what isn't any more."""
        try:
            while True:
                needed, seq = self._weights(), self.board.seq
                if await stager.keep(*needed):
                    told = [f"{each.checkpoint} {each.place} {each.reason}".strip() for each in stager.found]
                    _LOG.info("weights ahead: %s", "; ".join(told) or "none")
                    self.board.touch()
                    seq = self.board.seq
                with suppress(TimeoutError):
                    async with asyncio.timeout(PENDING_SECONDS if stager.pending else STAGE_SECONDS):
                        await self._until_others_are_needed(needed, seq)
        finally:
            stager.close()

    def _weights(self) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
        """Return the checkpoints that are wanted in the node's memory, those that engines are taking now, and all of the seat's."""
        by_need = self.board.by_need
        every = tuple(record.checkpoint for record in self.board.records if record.checkpoint)
        return wanted(by_need, self._ordered_ahead()), starting(by_need), every

    def _ordered_ahead(self) -> Sequence[str]:
        """Return what controllers ordered, until that lapses: one that has ended, or tells another agent, takes nothing back."""
        lapsed = asyncio.get_running_loop().time() >= self._ahead_until
        return () if lapsed else self._ahead

    async def _until_others_are_needed(self, needed: tuple[Sequence[str], ...], seq: int) -> None:
        while self._weights() == needed:
            await self.board.change_after(seq)
            seq = self.board.seq

    async def _heed_health(self) -> None:
        while True:
            await self._reader.unfit(seconds=HEALTH_SECONDS)
            await asyncio.sleep(HEALTH_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
