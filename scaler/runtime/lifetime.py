"""How a process of ours ends: on a signal, in order, or with one clear error."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from scaler.errors import ScalerError

_Result = TypeVar("_Result")


class Stopped(Exception):
    """A signal asked for the end."""


def stop_on_signals(stack: AsyncExitStack) -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set until the stack is left."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
        stack.callback(loop.remove_signal_handler, number)
    return stop


async def or_stop(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await `work`, but not past the signal to stop.

    Raises:
        Stopped: in an exception group; the signal came first, and the work was ended.
    """
    async with asyncio.TaskGroup() as tasks:
        job, stopped = tasks.create_task(work), tasks.create_task(stop.wait())
        await asyncio.wait({job, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise Stopped
        stopped.cancel()
    return job.result()


def first_error(group: BaseExceptionGroup[ScalerError]) -> ScalerError:
    """Return the first of our own errors in a group; one cause is enough to tell a person."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ScalerError)
    return error
