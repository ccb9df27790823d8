"""What becomes of a resident whose engine failed: it is told at once, and its process ended, which is the undoing that always works."""

import asyncio

from warmpool.agent.board import ENDED, Board, Record
from warmpool.errors import EngineContradicted, EngineLost, WarmpoolError
from warmpool.states import ResidentState

_EXIT_NOTICE_SECONDS = 0.5


async def fail(board: Board, record: Record, error: WarmpoolError) -> WarmpoolError:
    """Fail a resident for what went wrong, and end its engine for good.

    Returns:
        The error to tell: the process's own end, where that is what was behind it.
    """
    process = record.process
    if isinstance(error, EngineLost) and process is not None:
        # A dying process closes its sockets a little before it can be reaped, and its exit tells more than they do.
        try:
            async with asyncio.timeout(_EXIT_NOTICE_SECONDS):
                await board.until(lambda: record.state in ENDED)
        except TimeoutError:
            pass
        else:
            return EngineLost(record.failure or str(error))
    if isinstance(error, EngineContradicted):
        record.verification = error.verification
    if record.state not in ENDED:
        record.failure = str(error)
        board.move(record, ResidentState.FAILED)
    if process is not None:
        await process.stop(grace_seconds=0)
    return error


async def give_up_memory(board: Board, record: Record, reason: str) -> None:
    """End an engine because its memory is needed. It begins again when there is room, and this counts as no failure."""
    record.gave_way = True
    if record.state not in ENDED:
        record.failure = reason
        board.move(record, ResidentState.FAILED)
    if record.process is not None:
        await record.process.stop(grace_seconds=0)
