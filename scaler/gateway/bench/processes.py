"""A bench's own processes: each says in one line where it listens, and stays until its input ends."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

START_SECONDS: Final = 120.0
"""A process that doesn't listen by then never will, on however busy a machine."""


@asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a module as a process; on leaving its input ends, and it is waited for."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def place(process: Process) -> str:
    """Return where a process listens, once it does.

    Raises:
        TimeoutError: it doesn't.
    """
    assert process.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        return (await process.stdout.readline()).decode().strip()


async def stay(where: object) -> None:
    """Tell the parent where we listen, and stay until it closes our input."""
    print(where, flush=True)  # noqa: T201 - the parent reads it
    await asyncio.to_thread(sys.stdin.read)
