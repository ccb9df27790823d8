"""One seat as it runs: its residents' lives, the orders to it, and what it tells of itself."""

import asyncio
import logging
import os
import random
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from warmpool.agent.board import Board, Record
from warmpool.agent.config import AgentConfig
from warmpool.agent.life import Life
from warmpool.agent.metrics import AgentMetrics
from warmpool.agent.operations import Operations
from warmpool.agent.orders import Order, OrderBook, Refused, Result
from warmpool.agent.phases import Phases
from warmpool.agent.proof import Prover
from warmpool.agent.slot import Slot
from warmpool.engines.deadline import Deadline
from warmpool.errors import AgentBusy, AgentError, EngineError, WarmpoolError
from warmpool.states import ResidentState

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the requests in flight of a resident in rotation are read."""
MEASURE_SECONDS = 30.0
"""How often the engines' memory is measured."""
DRAIN_AT_END_SECONDS = 10.0
"""How long accepted requests may go on when the agent is told to end."""
_LOOK_ANSWER_SECONDS = 1.0


class LiveSeat:
    """Everything of one seat but its listener.

    Args:
        config: the seat.
        tasks: where its tasks live; it ends them itself in `shut_down`.

    Attributes:
        board: its residents.
        metrics: what it counts.
        address: base URL of its API; set once it listens.
    """

    def __init__(self, config: AgentConfig, tasks: asyncio.TaskGroup) -> None:
        self.board = Board(config)
        self.metrics = AgentMetrics(self.board)
        self.address = ""
        self._config = config
        self._tasks = tasks
        self._slot = Slot()
        self._book = OrderBook()
        self._provers = {record.policy: self._prover(record) for record in self.board.records}
        self._operations = Operations(self.board, self._slot, self._prover_of)
        self._life = Life(config, self.board, self._slot, self._operations, self._prover_of)
        self._background: set[asyncio.Task[None]] = set()

    def _prover(self, record: Record) -> Prover:
        observer = partial(self.metrics.proved, record.policy)
        return Prover(record.config.proof.prompts, random.Random(), observer)

    def start(self) -> None:
        """Begin the residents' lives."""
        for record in self.board.records:
            self._spawn(self._life.live(record))
        self._spawn(self._look())
        self._spawn(self._measure())

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
            "operation": None if running is None else running.to_json(),
            "residents": [record.to_json() for record in self.board.records],
            "at": time.time(),
        }

    async def shut_down(self) -> None:
        """Take no more orders, drain what serves within bounds, and stop all engines. Nothing of them is left afterwards."""
        self._slot.closed = "the agent is ending"
        deadline = Deadline.after(DRAIN_AT_END_SECONDS)
        async with asyncio.TaskGroup() as draining:
            for record in self.board.records:
                draining.create_task(self._drain_at_end(record, deadline))
        async with asyncio.TaskGroup() as stopping:
            for record in self.board.records:
                stopping.create_task(self._life.stop(record))
        for task in tuple(self._background):
            task.cancel()

    async def abandon(self) -> None:
        """Kill whatever engines are left, whatever has gone wrong. After `shut_down` there are none."""
        self._slot.closed = "the agent is ending"
        for record in self.board.records:
            await self._life.stop(record, grace_seconds=0)

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
                    if state.in_flight != record.in_flight:
                        record.in_flight = state.in_flight
                        self.board.touch()

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_SECONDS)
            for record in self.board.records:
                await self._life.measure(record)

    def _prover_of(self, record: Record) -> Prover:
        return self._provers[record.policy]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
