"""Ending a process that a bench has started."""

import asyncio
import signal


async def end(process: asyncio.subprocess.Process, seconds: float) -> None:
    """End a process in order, unless it has ended, and by force if that takes longer than `seconds`."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
