"""Whose turn it is to start: one resident at a time, and of those that could, the one that is needed most.

Who is needed, and in which order, is told by the controller; who isn't named comes after those who are, and without a word the config's
order holds. A start-up that has only begun gives way to a resident that is wanted now, once: what it has done by then is little, and
waiting for it may take minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from warmpool.agent.board import Board, Record
from warmpool.agent.failure import give_up_memory
from warmpool.states import ResidentState

YOUNG_SECONDS: Final = 10.0
"""For how long after its beginning a start-up gives way: a controller has heard of a new agent by then, and what is lost is bounded."""
_HAS_ONLY_BEGUN: Final = frozenset({ResidentState.STARTING, ResidentState.LOADING})


class Turns:
    """The turns of one seat.

    Args:
        board: its residents.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        # Who has come to it, or needn't. The first time they come in the order of need.
        self._come: set[str] = set()
        self._waiting: list[Record | None] = []
        self._taken = False
        self._holder: Record | None = None
        self._since = 0.0
        self._gave_way: set[str] = set()

    def come(self, record: Record) -> None:
        """Note that nobody needs to wait for a resident's first start any more."""
        if record.policy not in self._come:
            self._come.add(record.policy)
            self._board.touch()

    async def first_come(self, record: Record) -> None:
        """Wait until those that are needed more have come, too: whoever is a moment earlier isn't first for that."""
        await self._board.until(lambda: self._come.issuperset(self._before(record)))
        self.come(record)

    def _before(self, record: Record) -> Sequence[str]:
        policies = [each.policy for each in self._board.by_need]
        return policies[: policies.index(record.policy)]

    @asynccontextmanager
    async def turn(self, record: Record | None) -> AsyncIterator[None]:
        """Have the turn inside, after those that are needed more; None is for what is quickly done, and comes first."""
        self._waiting.append(record)
        try:
            while self._taken or self._next() is not record:
                seq = self._board.seq
                if not await self._cut_short(record):
                    await self._board.change_after(seq)
        finally:
            self._waiting.remove(record)
        self._taken, self._holder, self._since = True, record, asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._taken, self._holder = False, None
            self._board.touch()

    def _next(self) -> Record | None:
        if None in self._waiting:
            return None
        return next(each for each in self._board.by_need if each in self._waiting)

    async def _cut_short(self, record: Record | None) -> bool:
        """Have the start-up that has the turn give way to one that is needed more and wanted now; return whether it was asked to."""
        holder, wanted = self._holder, self._board.wanted
        if record is None or holder is None or record.policy not in wanted or holder.policy in wanted:
            return False
        young = asyncio.get_running_loop().time() - self._since <= YOUNG_SECONDS
        if not young or holder.policy in self._gave_way or holder.process is None:
            return False
        if holder.state not in _HAS_ONLY_BEGUN or holder.loaded or record.policy not in self._before(holder):
            return False
        self._gave_way.add(holder.policy)
        await give_up_memory(self._board, holder, f"its start-up gave way: {record.policy} is wanted now")
        return True
