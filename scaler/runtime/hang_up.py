"""SIGHUP: to a service it says "read your configuration again", to a program in a terminal that the terminal is gone."""

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack


def reload_on_hang_up(stack: AsyncExitStack, stop: asyncio.Event) -> asyncio.Event:
    """Return an event that SIGHUP sets until the stack is left; if our terminal is gone, SIGHUP sets `stop` instead.

    Without that a closed window would leave engines on the GPUs with nobody who sees them.
    """
    reload, terminals = asyncio.Event(), [stream for stream in (0, 1, 2) if os.isatty(stream)]

    def hung_up() -> None:
        gone = [
            stream for stream in terminals if not os.isatty(stream)
        ]  # once hung up it no longer answers as one
        _forget(gone)
        (stop if gone else reload).set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, hung_up)
    stack.callback(loop.remove_signal_handler, signal.SIGHUP)
    return reload


def _forget(streams: Iterable[int]) -> None:
    """Let what is still written to these streams go nowhere: what is said while ending must not fail."""
    for stream in streams:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, stream)
        os.close(nowhere)
