"""Many short calls at the same time, and no more of them at once than their other end should bear."""

import asyncio
from collections.abc import Coroutine, Iterable


async def side_by_side(work: Iterable[Coroutine[None, None, None]], at_once: int) -> None:
    """Run all of these, at most so many at the same time; return when all have ended.

    Raises:
        ExceptionGroup: one has failed, and the others were cancelled.
    """
    limit = asyncio.Semaphore(at_once)

    async def one(part: Coroutine[None, None, None]) -> None:
        async with limit:
            await part

    async with asyncio.TaskGroup() as tasks:
        for part in work:
            tasks.create_task(one(part))
