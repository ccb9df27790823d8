"""Weights on their way between device and host memory: parked, unparked, and parked so that another has room.

A move that isn't done in time is undone: a resident that was to be parked is paused again, one that was to be unparked parked again.
An engine that says no has changed nothing, and its resident is where it was. One that fails otherwise is replaced.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from warmpool.agent.board import Board, Record
from warmpool.agent.changes import Changes
from warmpool.agent.failure import fail
from warmpool.agent.room import SeatRoom
from warmpool.engines.deadline import Deadline
from warmpool.errors import (
    DeadlineExceeded,
    EngineError,
    EngineRejected,
    EngineTimeout,
    NoRoom,
    WrongState,
)
from warmpool.states import MOVING, ResidentState

_S = ResidentState
_UNDO_SHARE: Final = 0.4
_AGAIN_SECONDS = 0.05


class Mover:
    """Moves weights of one seat's residents.

    Args:
        board: the residents.
        room: what fits.
        changes: how engines are told.
    """

    def __init__(self, board: Board, room: SeatRoom, changes: Changes) -> None:
        self._board = board
        self._room = room
        self._changes = changes

    @property
    def moving(self) -> bool:
        """Whether any weights are on their way."""
        return any(record.state in MOVING for record in self._board.records)

    def require_parking(self, record: Record) -> None:
        """See that a paused resident may be parked now.

        Raises:
            WrongState: its engine can't be parked.
            NoRoom: host memory isn't enough.
        """
        unfit = self._room.unparkable(record)
        if unfit:
            raise WrongState(f"{record.policy} can't be parked: {unfit}")
        self._room.require_parking(record)

    async def park(self, record: Record, *, deadline: Deadline) -> None:
        """Park a paused resident.

        Raises:
            WrongState: its engine can't be parked, or won't now; it is paused.
            NoRoom: host memory isn't enough; it is paused.
            DeadlineExceeded: it wasn't done in time; it is paused again.
            EngineError: the engine failed.
        """
        self.require_parking(record)
        self._board.advance(record, _S.PARKING)
        try:
            await self._changes.park(record, deadline=_for_work(deadline))
        except EngineRejected as error:
            self._board.advance(record, _S.PAUSED)
            raise WrongState(f"park: {error}; {record.policy} is paused as before") from error
        except EngineTimeout as error:
            await self._undo(lambda: self._changes.unpark(record, deadline=deadline), deadline, error)
            self._late(record, _S.PAUSED, f"park: {error}; {record.policy} is paused again", error)
        self._board.advance(record, _S.PARKED)

    async def unpark(self, record: Record, *, deadline: Deadline) -> None:
        """Unpark a parked resident, for which there is room.

        Raises:
            NoRoom: the engine finds too little device memory; it is parked.
            DeadlineExceeded: it wasn't done in time; it is parked again.
            EngineError: the engine failed.
        """
        self._board.advance(record, _S.UNPARKING)
        try:
            await self._changes.unpark(record, deadline=_for_work(deadline))
        except EngineRejected as error:
            self._board.advance(record, _S.PARKED)
            raise NoRoom(f"unpark: {error}; {record.policy} is parked as before") from error
        except EngineTimeout as error:
            await self._undo(lambda: self._changes.park(record, deadline=deadline), deadline, error)
            self._late(record, _S.PARKED, f"unpark: {error}; {record.policy} is parked again", error)
        record.displaced = False
        self._board.advance(record, _S.PAUSED)

    async def give_room(self, record: Record, *, to: Record, deadline: Deadline) -> None:
        """Park a resident so that another has its room. If its engine fails, it is replaced and has left its room all the same.

        Args:
            record: who is parked.
            to: for whom.
            deadline: by when.

        Raises:
            NoRoom: it couldn't be parked.
            DeadlineExceeded: it wasn't parked in time, and is paused again.
        """
        try:
            await self.park(record, deadline=deadline)
        except WrongState as error:
            raise NoRoom(f"no room for {to.policy}: {error}") from error
        except EngineError as error:
            await fail(self._board, record, error)

    async def _undo(
        self, back: Callable[[], Awaitable[None]], deadline: Deadline, reason: EngineTimeout
    ) -> None:
        """Move weights back whose move was not answered in time.

        Raises:
            EngineTimeout: it can't be undone in time.
        """
        try:
            await once_arrived(back, deadline)
        except EngineError as error:
            raise EngineTimeout(f"{reason}; undoing it failed too: {error}") from error

    def _late(self, record: Record, state: ResidentState, words: str, error: EngineTimeout) -> NoReturn:
        self._board.advance(record, state)
        raise DeadlineExceeded(words) from error


async def once_arrived(move: Callable[[], Awaitable[object]], deadline: Deadline) -> None:
    """Move weights as soon as they have arrived where they are on their way to: until then an engine says no.

    Raises:
        EngineRejected: it still does at the deadline.
        EngineError: as `move` says.
    """
    while True:
        try:
            await move()
        except EngineRejected:
            if deadline.left_seconds <= _AGAIN_SECONDS:
                raise
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            return


def _for_work(deadline: Deadline) -> Deadline:
    """Return the part of a deadline that a move may use; moving the weights back takes as long as moving them."""
    return deadline.earlier(_UNDO_SHARE * max(0.0, deadline.left_seconds))
