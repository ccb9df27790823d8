"""A node agent as a child process, for who runs everything on one machine."""

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from warmpool.lifeline import child_environment
from warmpool.nodehealth.client import MOST_PATH_BYTES, UNIX

_LOG = logging.getLogger(__name__)
_RESTART_SECONDS = (1.0, 5.0, 30.0)
_STOP_SECONDS = 3.0
WITHOUT_GPU = 3
"""Exit status of one that finds no GPU; an uncaught error's is 1."""


@asynccontextmanager
async def local_node_agent(directory: Path) -> AsyncIterator[str]:
    """Run a node agent until the context is left, again whenever it ends, and yield its address for agents' configs.

    The address holds from the beginning; until the node agent listens there, agents get totals alone. Where NVML finds no GPU
    it ends, and isn't started again. It dies with this process.

    Args:
        directory: where the socket is made, if its path isn't too long for one, and the log, `logs/node-agent.log`.
    """
    log = directory / "logs" / "node-agent.log"
    with _socket_path(directory) as path:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(_keep(path, log))
            try:
                yield f"{UNIX}{path}"
            finally:
                keeping.cancel()


@contextmanager
def _socket_path(directory: Path) -> Iterator[Path]:
    path = directory / "node.sock"
    if len(os.fsencode(path)) <= MOST_PATH_BYTES:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="emberpool-node-") as shorter:
        yield Path(shorter) / "node.sock"


async def _keep(path: Path, log: Path) -> None:
    deaths = 0
    while True:
        try:
            process = await _start(path, log)
        except OSError as error:
            _LOG.warning("without a node agent memory isn't verified: it can't be started: %s", error)
            return
        try:
            status = await process.wait()
        finally:
            await _stop(process)
        if status == WITHOUT_GPU:
            _LOG.warning("without a node agent memory isn't verified: %s says why it ended", log)
            return
        _LOG.warning("the node agent ended with status %d; see %s", status, log)
        await asyncio.sleep(_RESTART_SECONDS[min(deaths, len(_RESTART_SECONDS) - 1)])
        deaths += 1


async def _start(path: Path, log: Path) -> asyncio.subprocess.Process:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "warmpool.nodehealth", "--socket", str(path)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=child_environment(os.environ),
            start_new_session=True,
        )


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
