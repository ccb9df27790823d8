"""A container's process: process 1 of what runs in it, its log, and its end with all that it has started."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from scaler.cluster.local.processes import descendants
from tests.fakes.kubelet.environment import Unmakeable
from warmpool.lifeline import die_with_parent

REAP_SECONDS = 5.0
"""Until what was killed has ended; what sleeps in the kernel ends when it wakes."""
_CLONE_NEWUTS = 0x04000000  # linux/sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Start:
    """What is run.

    Attributes:
        words: program and arguments.
        environment: all its variables.
        directory: where it starts.
        before: what stands in front of the words: the place of its network.
        host_name: what it is to find as its host's name; root alone can have that.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    before: tuple[str, ...] = ()
    host_name: str = ""


class Process:
    """A running container; make it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, start: Start, log: Path) -> Self:
        """Start it; its output goes to the end of a file.

        Raises:
            Unmakeable: there is no such program.
        """
        parent = os.getpid()

        name = start.host_name.encode()

        def begin() -> None:
            die_with_parent(parent, signal.SIGKILL)
            if _LIBC.unshare(_CLONE_NEWUTS) == 0:
                _LIBC.sethostname(name, len(name))

        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *start.before,
                    *start.words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(start.environment),
                    cwd=start.directory,
                    start_new_session=True,
                    preexec_fn=begin,
                )
            except OSError as error:
                raise Unmakeable("CreateContainerError", f"{start.words[0]}: {error.strerror}") from error
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end, end what is left of its session, and return its status as a shell tells it."""
        code = await self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self, seconds: float) -> bool:
        """Send SIGTERM, kill after some seconds; say whether it had to be killed."""
        family = await asyncio.to_thread(descendants, self.pid)
        self.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._process.wait()
        forced = self._process.returncode is None
        await self.destroy(family)
        return forced

    async def destroy(self, family: Sequence[psutil.Process] = ()) -> None:
        """Kill as `kill` does, and wait for it: a loop that ends before its children leaves them behind."""
        self.kill(family)
        with suppress(TimeoutError):  # what sleeps in the kernel ends when it wakes
            async with asyncio.timeout(REAP_SECONDS):
                await self._process.wait()

    def kill(self, family: Sequence[psutil.Process] = ()) -> None:
        """SIGKILL it, and all that it has started."""
        if self._process.returncode is None:
            family = [*family, *descendants(self.pid)]
            self.signal(signal.SIGKILL)
        for each in family:
            with suppress(psutil.Error):
                each.kill()
