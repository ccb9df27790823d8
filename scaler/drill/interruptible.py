"""Running a drill or a bench so that SIGTERM ends it in order, as Ctrl-C does: it has started processes that may hold a GPU."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in a loop of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C; everything has been left.
        SystemExit: with code 143 after SIGTERM; everything has been left.
    """
    terminated = False

    async def guarded() -> _T:
        nonlocal terminated
        this = asyncio.current_task()
        assert this is not None

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            this.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await main

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if terminated:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise


def first(failures: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first of the errors that a group of tasks ended with."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
