"""One seat as a process: start an agent from a configuration file, watch it, end it with everything under it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from warmpool.lifeline import child_environment

_DRAIN_SECONDS = 20.0
"""How long an agent may take over SIGTERM: its own drain (10 s) and its engines' exit (5 s), with room."""


@dataclass(slots=True)
class SeatProcess:
    """A running agent with its files."""

    name: str
    process: asyncio.subprocess.Process
    config: Path
    log: BinaryIO

    @property
    def pid(self) -> int:
        """The agent's process id, which is also its session's."""
        return self.process.pid


async def start(
    name: str, config: Mapping[str, Any], directory: Path, environment: Mapping[str, str]
) -> SeatProcess:
    """Start the agent of one seat.

    It runs in a session of its own, so that Ctrl-C in the terminal reaches this process alone and the agents drain
    when we say so; it dies with us if we are killed.
    """
    path = directory / f"{name}.json"
    await asyncio.to_thread(path.write_text, json.dumps(config, indent=1), "utf-8")
    log = (directory / "logs" / f"{name}.agent.log").open("ab")
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "warmpool.agent",
            "--config",
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=child_environment({**os.environ, **environment}),
        )
    except BaseException:  # cancelled in mid-start too: asyncio ends the process, the files are ours
        log.close()
        path.unlink(missing_ok=True)
        raise
    return SeatProcess(name=name, process=process, config=path, log=log)


async def stop(seat: SeatProcess) -> None:
    """End the agent and everything under it: SIGTERM, wait for its drain, then SIGKILL what is left."""
    family = descendants(seat.pid)
    try:
        with suppress(ProcessLookupError):
            seat.process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await seat.process.wait()
    finally:
        kill(seat, family)
        await asyncio.shield(seat.process.wait())
        close(seat)


def kill(seat: SeatProcess, family: list[psutil.Process]) -> None:
    """SIGKILL the agent and every process that was or is under it."""
    if seat.process.returncode is None:
        family = [*family, *descendants(seat.pid)]
        with suppress(ProcessLookupError):
            seat.process.kill()
    for process in family:
        with suppress(psutil.Error):
            process.kill()  # psutil compares the start time, so a reused pid is never hit


def close(seat: SeatProcess) -> None:
    """Give back the files of a seat whose agent has ended. Idempotent."""
    seat.log.close()
    seat.config.unlink(missing_ok=True)


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes under `pid`, itself not included."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []
