"""Changes of an engine's own state, each with a look at the memory that it holds afterwards.

An engine's word is one thing and the device's memory another: a 200 whose memory doesn't follow is a leak that the next one on the
seat pays for. So what is measured is compared with what should be there (`warmpool.agent.holding`), and what contradicts fails the
change. What can't be measured leaves the engine's word, marked as unverified.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from warmpool.agent.board import Board, Record
from warmpool.agent.holding import Holding, Judgement, judge
from warmpool.agent.memory import READ_SECONDS, MemoryReader
from warmpool.engines.capabilities import Change, Verdict, Verification
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.errors import EngineContradicted, EngineError
from warmpool.states import Depth

Told = Callable[[str, Change, Verdict], None]
"""Hears of each judgement: whose, of what change, and the verdict."""

SETTLE_SECONDS: Final = 1.0
"""How long memory may take to be given back: drivers unmap it a little after the call that frees it has returned."""
_LOOK_AGAIN_SECONDS = 0.05
_MEMORY_SETTLES: Final = frozenset({Change.RELEASE, Change.PARK, Change.UNPARK})
"""Changes that are about memory, so that a measurement completes or withdraws the engine's word."""


class Changes:
    """Tells engines to change, and finds out whether they did.

    Args:
        board: the residents.
        reader: measures what they hold.

    Attributes:
        told: hears of each judgement.
    """

    def __init__(self, board: Board, reader: MemoryReader) -> None:
        self._board = board
        self._reader = reader
        self.told: Told = lambda *_: None

    async def pause(self, record: Record, *, deadline: Deadline) -> None:
        """Pause it, and see that it holds no more than paused.

        Raises:
            EngineError: as the port says; `EngineContradicted` if its memory doesn't come back.
        """
        depth = record.paused_depth
        before = await self._before(record, depth)
        said = await record.engine.pause(record.kv, deadline=deadline)
        record.kv_released = record.releases_kv
        change = Change.RELEASE if record.releases_kv else Change.PAUSE
        holding = Holding(change=change, held=None, before=before, moved=record.kv_bytes)
        await self._verify(record, said, holding, depth, deadline)

    async def set_aside(self, record: Record, *, deadline: Deadline) -> None:
        """Pause it at once, for somebody waits for the seat; what it holds is looked at when there is time.

        Raises:
            EngineError: as the port says.
        """
        record.verification = await record.engine.pause(record.kv, deadline=deadline)
        record.kv_released = record.releases_kv

    async def resume(self, record: Record, *, deadline: Deadline) -> None:
        """Let it compute, its KV memory taken where that is away. Whether it really does shows in the first token.

        Raises:
            EngineError: as the port says.
        """
        kv = KvWhenPaused.RELEASE if record.kv_released else record.kv
        record.verification = await record.engine.resume(kv, deadline=deadline)
        record.kv_released = record.unsure = False

    async def park(self, record: Record, *, deadline: Deadline) -> None:
        """Move its weights to host memory, and see that they have left the device.

        Raises:
            EngineError: as the port says; `EngineContradicted` if its memory doesn't come back.
        """
        before = await self._before(record, Depth.PARKED)
        said = await record.engine.park(deadline=deadline)
        record.kv_released = True
        await self._learn_copy(record, deadline)
        holding = Holding(change=Change.PARK, held=None, before=before, moved=record.weights_bytes)
        await self._verify(record, said, holding, Depth.PARKED, deadline)

    async def unpark(self, record: Record, *, deadline: Deadline) -> None:
        """Move its weights back to device memory, and see that they are there. It stays paused, its KV memory given back.

        Raises:
            EngineError: as the port says; `EngineContradicted` if they aren't there, or more is.
        """
        before = await self._before(record, Depth.KV_RELEASED)
        said = await record.engine.unpark(deadline=deadline)
        record.kv_released = True
        await self._learn_copy(record, deadline)
        holding = Holding(change=Change.UNPARK, held=None, before=before, moved=record.weights_bytes)
        await self._verify(record, said, holding, Depth.KV_RELEASED, deadline)

    async def check_awake(self, record: Record, most: int | None) -> None:
        """See that it holds no more than computing takes. Nothing waits for this: whoever is cancelled in it has lost nothing.

        Args:
            record: a resident that computes.
            most: bytes that it may hold meanwhile; None if nobody knows.

        Raises:
            EngineContradicted: it holds more.
        """
        if not self._reader.answers:
            return
        reading = await self._reader.read()
        said = record.verification or Verification(change=Change.RESUME, verdict=Verdict.UNVERIFIED)
        held = reading.held.get(record.policy)
        self._conclude(record, said, judge(Holding(change=Change.RESUME, held=held, most=most)))

    # ------------------------------------------------------------------ measuring

    async def _before(self, record: Record, depth: Depth) -> int | None:
        """Measure what it holds before a change whose result has nothing yet to be compared with."""
        if depth in record.usual:
            return None
        return (await self._reader.read()).held.get(record.policy)

    async def _verify(
        self, record: Record, said: Verification, holding: Holding, depth: Depth, deadline: Deadline
    ) -> None:
        record.verification = said
        usual = record.usual.get(depth)
        if not self._reader.of_device and usual is not None:
            return  # a process tree's resident memory says nothing more
        until = deadline.at_most(SETTLE_SECONDS)
        while True:
            reading = await self._reader.read(seconds=max(0.0, min(READ_SECONDS, deadline.left_seconds)))
            held = reading.held.get(record.policy)
            found = judge(
                replace(holding, held=held, usual=usual, device=self._reader.of_device, reason=reading.reason)
            )
            if found.verdict is not Verdict.CONTRADICTED or until.left_seconds <= _LOOK_AGAIN_SECONDS:
                break
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        self._conclude(record, said, found)
        if held is not None:
            record.usual.setdefault(depth, held)
            if self._reader.of_device:
                record.held[depth] = held
                record.spread.pop(depth, None)
                if record.policy in reading.spread:
                    record.spread[depth] = reading.spread[record.policy]
        self._board.touch()

    def _conclude(self, record: Record, said: Verification, found: Judgement) -> None:
        """Put the engine's word and the measurement together.

        Raises:
            EngineContradicted: the measurement says otherwise.
        """
        self.told(record.policy, said.change, found.verdict)
        evidence = (*said.evidence, found.line)
        if found.verdict is Verdict.CONTRADICTED:
            raise EngineContradicted(
                Verification(change=said.change, verdict=Verdict.CONTRADICTED, evidence=evidence)
            )
        if self._reader.of_device:
            verdict = found.verdict if said.change in _MEMORY_SETTLES else said.verdict
            record.verification = Verification(change=said.change, verdict=verdict, evidence=evidence)

    async def _learn_copy(self, record: Record, deadline: Deadline) -> None:
        """Learn how much host memory its weights take: what the engine tells, else their size while they are there."""
        told = None
        with suppress(EngineError):  # good to know, and no reason to fail
            told = (await record.engine.startup(deadline=deadline.at_most(READ_SECONDS))).parked_bytes
        record.parked_bytes = record.weights_bytes if told is None else told
