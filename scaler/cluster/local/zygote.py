"""The zygote of this machine's engines: one process that has imported what they need, kept running while the seats are.

Engines find it by an environment variable (`warmpool.standins`). While there is none they start without it, so nothing waits for its return.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_RESTART_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pause before it is started again, by how many ended in a row."""
_SOUND_SECONDS = 60.0
"""One that has lived for so long has ended for another reason than the one before it."""
_STOP_SECONDS = 2.0
_LISTEN_SECONDS = 5.0
"""How long the first one may take until it listens, which comes before its imports. Whoever asks earlier would import by itself."""
_LOOK_SECONDS = 0.01


@asynccontextmanager
async def zygote(socket: Path, output: Path) -> AsyncIterator[None]:
    """Keep a zygote running while the context is open.

    Args:
        socket: where engines ask it.
        output: file that what it writes is appended to.
    """
    await asyncio.to_thread(socket.unlink, missing_ok=True)  # of one that was killed
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(_keep(socket, output))
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_SECONDS):
                while not await asyncio.to_thread(socket.exists):  # noqa: ASYNC110 (another process makes it)
                    await asyncio.sleep(_LOOK_SECONDS)
        yield
        keeping.cancel()


async def _keep(socket: Path, output: Path) -> None:
    loop, ended = asyncio.get_running_loop(), 0
    while True:
        began = loop.time()
        code = await _run(socket, output)
        ended = 1 if loop.time() - began > _SOUND_SECONDS else ended + 1
        pause = _RESTART_BACKOFF_SECONDS[min(ended, len(_RESTART_BACKOFF_SECONDS)) - 1]
        log.warning("zygote ended; engines start without it", exit_code=code, log=str(output), again_in=pause)
        await asyncio.sleep(pause)


async def _run(socket: Path, output: Path) -> int | str:
    """Run one to its end; return its exit code, or why it can't be started."""
    command = [sys.executable, "-m", "warmpool.reference", "zygote", "--socket", str(socket)]
    try:
        with output.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--die-with-parent",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
    except OSError as error:
        return error.strerror or str(error)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await asyncio.shield(_stop(process))


async def _stop(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
            return
    process.kill()  # it was importing
    await process.wait()
