"""`emberpool local` as a child process: started as a user would, waited for, and always ended with all that it started."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil

from scaler.drill.annotations import TOKEN_VARIABLE
from scaler.drill.cpu import ProcessTree
from scaler.errors import ScalerError
from warmpool.lifeline import child_environment

_POLL_SECONDS = 0.1
_REQUEST_SECONDS = 5.0
_STOP_SECONDS = 30.0
"""How long the child may take to drain and to end its engines after SIGTERM."""
_ORPHAN_SECONDS = 3.0
"""How long what the child started may outlive it: engines notice the death of their parent at once."""
_LOG_LINES = 15


class ChildFailed(ScalerError):
    """The child died, or didn't get ready in time; the message quotes the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the child answers.

    Attributes:
        gateway: base URL of the gateway.
        controller: base URL of the controller.
    """

    gateway: str
    controller: str


class Child:
    """One running child.

    Attributes:
        state: its state directory.
        log: the file that holds what it writes to stdout and stderr.
        tree: the child and what it started.
        left: what had to be killed after it had ended, in words; filled when the context is left.
    """

    def __init__(self, process: asyncio.subprocess.Process, state: Path, log: Path) -> None:
        self._process = process
        self.state = state
        self.log = log
        self.tree = ProcessTree.of(process.pid)
        self.left: list[str] = []

    async def ready(
        self, seconds: float, waiting: Callable[[str], None], listens: Callable[[Endpoints], None]
    ) -> Endpoints:
        """Wait until it serves.

        Args:
            seconds: how long that may take.
            waiting: called with what it is waited for, as it changes.
            listens: called once, with where it answers, long before it is ready.

        Raises:
            ChildFailed: it ended, or isn't ready in time.
        """
        deadline = time.monotonic() + seconds
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        last = "the start of its processes"
        endpoints: Endpoints | None = None
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while time.monotonic() < deadline:
                self._check()
                self.tree.look()
                if endpoints is None and (endpoints := await asyncio.to_thread(self._endpoints)) is not None:
                    listens(endpoints)
                if endpoints is not None:
                    ready, last = await status(session, endpoints, last)
                    if ready:
                        return endpoints
                waiting(last)
                await asyncio.sleep(_POLL_SECONDS)
        message = f"emberpool local is not ready after {seconds:.0f} s; it waits for {last}"
        raise ChildFailed(_with_log(message, self.log))

    async def watch(self) -> None:
        """Wait for the end of the child.

        Raises:
            ChildFailed: always, once it has ended: it has no business to while it is needed.
        """
        await self._process.wait()
        self._check()

    def _check(self) -> None:
        if self._process.returncode is not None:
            raise _ended(self._process.returncode, self.log)

    def _endpoints(self) -> Endpoints | None:
        try:
            data = json.loads((self.state / "local.json").read_text(encoding="utf-8"))
            return Endpoints(gateway=data["gateway"].rstrip("/"), controller=data["controller"].rstrip("/"))
        except (OSError, ValueError, KeyError):
            return None  # not written, or not to the end

    async def stop(self) -> None:
        """End it in order, and by force where that takes too long; then end what it left behind."""
        self.tree.look()
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        if self._process.returncode is None:
            self.left.append(
                f"emberpool local ({self._process.pid}) ignored SIGTERM for {_STOP_SECONDS:.0f} s"
            )
            self.kill()
            await self._process.wait()
        await self._end_orphans()

    def kill(self) -> None:
        """End the child's process group and everything it is known to have started, at once."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for process in self.tree.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()

    async def _end_orphans(self) -> None:
        if alive := self.tree.alive():
            await asyncio.to_thread(psutil.wait_procs, alive, _ORPHAN_SECONDS)
            alive = self.tree.alive()
        self.left += [_describe(process) for process in alive]
        self.kill()


@contextlib.asynccontextmanager
async def running(command: Sequence[str], state: Path) -> AsyncIterator[Child]:
    """Run the child while the context is open; on every way out it and all that it started are gone.

    Args:
        command: the whole command line.
        state: its state directory, which exists.

    Raises:
        ChildFailed: it can't be started.
    """
    log = state / "local.log"
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                # a group of its own: Ctrl-C in the terminal reaches the drill alone, which ends the child in order
                start_new_session=True,
                env=child_environment(environment()),
            )
        except OSError as error:
            raise ChildFailed(f"can't start {command[0]}: {error.strerror or error}") from error
    try:
        child = Child(process, state, log)
    except psutil.NoSuchProcess:  # it has ended already, and was waited for
        raise _ended(await process.wait(), log) from None
    try:
        yield child
    except BaseException:
        await _stop_whatever_comes(child)
        raise
    else:
        await _stop_whatever_comes(child)


def environment() -> dict[str, str]:
    """The drill's own environment without its token for Grafana: what it starts has no business with that."""
    return {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}


def _ended(code: int, log: Path) -> ChildFailed:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return ChildFailed(_with_log(f"emberpool local {how}", log))


def _with_log(message: str, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    if not lines:
        return f"{message}; it wrote nothing"
    return "\n".join([f"{message}; its last lines:", *(f"  {line}" for line in lines)])


async def _stop_whatever_comes(child: Child) -> None:
    """Stop in order; should that be broken off (a second Ctrl-C), kill at once."""
    try:
        await child.stop()
    except BaseException:
        child.kill()
        raise


async def status(session: aiohttp.ClientSession, endpoints: Endpoints, last: str) -> tuple[bool, str]:
    """Ask whether it is ready; what it waits for, or `last` where it can't say."""
    try:
        async with session.get(f"{endpoints.controller}/v1/status") as response:
            data = await response.json()
        return bool(data["ready"]), ", ".join(data.get("waitingFor") or ()) or last
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
        return False, last


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return str(process.pid)
