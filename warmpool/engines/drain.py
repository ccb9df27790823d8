"""Waiting until an engine has finished what it runs, for engines that can't be told to wait by themselves."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from warmpool.engines.deadline import Deadline
from warmpool.engines.port import EngineLoad
from warmpool.errors import EngineTimeout

_POLL_FIRST_SECONDS: Final = 0.002
_POLL_LAST_SECONDS: Final = 0.05


async def until_idle(load: Callable[[Deadline], Awaitable[EngineLoad]], deadline: Deadline) -> None:
    """Wait until nothing runs and nothing waits.

    Args:
        load: asks the engine.
        deadline: by when.

    Raises:
        EngineTimeout: it is not idle by then.
        EngineError: the engine can't be asked.
    """
    interval = _POLL_FIRST_SECONDS
    while True:
        now = await load(deadline)
        if now.running + now.waiting == 0:
            return
        if deadline.left_seconds <= interval:
            raise EngineTimeout(f"{now.running} requests still run and {now.waiting} wait")
        await asyncio.sleep(interval)
        interval = min(_POLL_LAST_SECONDS, 1.5 * interval)
