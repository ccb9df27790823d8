"""The end of a server of grpc's, of which nothing may be left when the loop ends."""

import asyncio
from typing import Final

_SECONDS: Final = 1.0
"""What grpc's tasks get to see that their calls have been ended for them; it is a few turns of the loop."""
_COROUTINES: Final = frozenset({"_schedule_rpc_coro", "_handle_exceptions"})
"""What grpc makes tasks of for each call (grpc/grpc, src/python/grpcio/grpc/_cython/_cygrpc/aio/server.pyx.pxi)."""


async def calls_ended() -> None:
    """Wait until nothing is left of calls, after their server was stopped.

    A server counts as stopped once it has ended its calls, before its tasks for them know. Whoever ended the loop then would cancel
    those tasks, and each would print a traceback: a thousand streams that nobody reads would flood the log at a restart. Calls of
    another server in the same loop are waited for too, and no longer than a second.
    """
    tasks = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") in _COROUTINES]
    if tasks:
        await asyncio.wait(tasks, timeout=_SECONDS)
