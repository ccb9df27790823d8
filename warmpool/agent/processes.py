"""Engine processes: started with ports of their own, logged, watched, and never left behind.

Who the parent of engines is, is a port (`Starter`, `Process`) with two adapters: the agent itself (`OwnChildren`, here), and a
launcher, whose engines outlive the agent (`warmpool.agent.launching`).

Each engine leads a session and process group of its own, so that a signal to the agent's terminal doesn't reach it and its
whole tree can be ended. The kernel kills the agent's own children when it dies: an engine that nobody directs holds a GPU for
nothing.
"""

import asyncio
import errno
import os
import shlex
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from warmpool.engines.startup_log import telling_lines
from warmpool.errors import StartFailed
from warmpool.lifeline import die_with_parent
from warmpool.standins import stood_for

_LOG_LIMIT_BYTES = 16 * 2**20
_STEP_OF_A_START = '{"phase": '
"""How the reference engine tells how its start went on, which says nothing of its end."""
_TAIL_BYTES = 4096
_TAIL_LINES = 8
_REAP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The two listeners of one engine.

    Attributes:
        host: their address.
        public: port of the guarded listener.
        control: port of the control listener.
    """

    host: str
    public: int
    control: int

    @classmethod
    def free(cls, host: str, public: int | None = None) -> Self:
        """Return two ports on which nobody listens at present. Someone may take them before the engine does.

        Args:
            host: their address.
            public: the first of them, where it is settled already; whoever listens on it finds out if it is taken.
        """
        with socket.create_server((host, 0)) as first, socket.create_server((host, 0)) as second:
            chosen = public or first.getsockname()[1]
            return cls(host=host, public=chosen, control=second.getsockname()[1])

    @property
    def public_url(self) -> str:
        """Base URL of the guarded listener."""
        return f"http://{self.host}:{self.public}"

    @property
    def control_url(self) -> str:
        """Base URL of the control listener."""
        return f"http://{self.host}:{self.control}"

    def fill_in(self, command: Sequence[str]) -> list[str]:
        """Return the command with the ports in it. Other braces stay: arguments may be JSON."""
        return [self._filled(argument) for argument in command]

    def fill_in_values(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return variables with the ports in their values."""
        return {name: self._filled(value) for name, value in environment.items()}

    def _filled(self, text: str) -> str:
        values = {"{host}": self.host, "{port}": str(self.public), "{controlPort}": str(self.control)}
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        return text

    def taken(self) -> bool:
        """Whether someone listens on either of them."""
        return any(_is_taken(self.host, port) for port in (self.public, self.control))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How an engine is started.

    Attributes:
        name: what it is called; one of a name runs at a time.
        command: program and arguments with placeholders; empty: what its parent was given for it.
        environment: variables set beside its parent's own, with placeholders.
        placeholders: those that must occur in either.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    placeholders: Sequence[str] = ()


class Process(Protocol):
    """One engine's process, whoever its parent is."""

    @property
    def pid(self) -> int:
        """Its process id, as its parent sees it."""

    @property
    def visible_pid(self) -> int | None:
        """Its process id as this process sees it; None if it lives in a PID namespace of its own."""

    @property
    def namespace(self) -> str:
        """The PID namespace that `pid` is of, as `/proc/PID/ns/pid` links to; empty for this process's own."""

    @property
    def ports(self) -> Ports:
        """Its listeners."""

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""

    @property
    def status(self) -> int | None:
        """What it exited with; None while it runs, or if a signal ended it."""

    async def wait(self) -> str:
        """Wait for its end, and say in words how it ended, with its last log lines."""

    async def lost_its_port(self) -> bool:
        """Whether it ended because someone else has one of its ports, as far as can be told afterwards."""

    async def owns(self, pid: int) -> bool:
        """Whether `pid`, as the engine sees itself, is this process or one that it started."""

    async def remember(self, note: Mapping[str, Any]) -> None:
        """Keep, where that is possible, what an agent that comes after this one has to know of it."""

    async def telling_lines(self) -> Sequence[str]:
        """Return what it has logged of its start (`warmpool.engines.startup_log`), as far as that is still known."""

    async def stop(self, *, grace_seconds: float) -> None:
        """End the process and all that it started: SIGTERM, and what is left after `grace_seconds` SIGKILL."""


class Starter(Protocol):
    """The parent of engines, or several, each of its own."""

    async def attend(self) -> None:
        """Keep in touch with them until cancelled; returns where that takes nothing."""

    def ready(self, name: str) -> bool:
        """Whether an engine of this name could be started now: its parent is there, and here to stay."""

    async def start(self, start: Start, ports: Ports) -> Process:
        """Start an engine.

        Raises:
            StartFailed: there is no such program, or it can't be started for another reason.
        """

    async def running(self, start: Start) -> tuple[Process, Mapping[str, Any]] | None:
        """Return the engine that an earlier agent has started in this way, and what that noted; None if none runs."""

    async def end_others(self, names: Sequence[str]) -> None:
        """End the engines of other names, if there are any."""

    async def close(self) -> None:
        """Let go of what it takes to reach them. Their parent, where that isn't the agent, keeps them."""


class OwnChildren:
    """The agent as the parent of its engines. They end with it, so there never is one of an earlier agent.

    Args:
        directory: where their logs go.
        seat: the seat's name.
    """

    def __init__(self, directory: Path, seat: str) -> None:
        self._directory = directory
        self._seat = seat

    async def attend(self) -> None:
        """Nobody has to be kept in touch with."""

    def ready(self, name: str) -> bool:
        """It is always there."""
        del name
        return True

    async def start(self, start: Start, ports: Ports) -> Process:
        """Start an engine.

        Raises:
            StartFailed: there is no such program, or the log can't be written.
        """
        log = self._directory / f"engine-{self._seat}-{start.name}.log"
        return await EngineProcess.start(start.command, start.environment, ports, log)

    async def running(self, start: Start) -> None:
        """There is none."""

    async def end_others(self, names: Sequence[str]) -> None:
        """There are none."""

    async def close(self) -> None:
        """Nothing is held."""


class EngineProcess:
    """One engine's process, a child of this one, and its log. Make it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, ports: Ports, log: Path, log_start: int) -> None:
        self._process = process
        self._ports = ports
        self._log = log
        self._log_start = log_start
        self._ended = False  # once its group is gone, its id may be someone else's

    @classmethod
    async def start(
        cls, command: Sequence[str], environment: Mapping[str, str], ports: Ports, log: Path
    ) -> Self:
        """Start an engine.

        Args:
            command: program and arguments with placeholders.
            environment: variables set beside this process's own.
            ports: what to fill in.
            log: file that its output is appended to.

        Raises:
            StartFailed: there is no such program, or the log can't be written.
        """
        filled = ports.fill_in(command)
        parent = os.getpid()

        def obey_the_kernel() -> None:
            die_with_parent(parent, signal.SIGKILL)

        try:
            log_start, output = _open_log(log, filled)
        except OSError as error:
            raise StartFailed(f"logDirectory: {log} can't be written: {error.strerror or error}") from error
        try:
            process = await asyncio.create_subprocess_exec(
                *filled,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **ports.fill_in_values(environment)},
                start_new_session=True,
                preexec_fn=obey_the_kernel,
            )
        except OSError as error:
            raise StartFailed(f"command: {filled[0]} can't be started: {error.strerror or error}") from error
        finally:
            os.close(output)
        return cls(process, ports, log, log_start)

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    @property
    def visible_pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def namespace(self) -> str:
        """This process's own."""
        return ""

    @property
    def ports(self) -> Ports:
        """Its listeners."""
        return self._ports

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        return self._process.returncode is not None

    @property
    def status(self) -> int | None:
        """What it exited with; None while it runs, or if a signal ended it."""
        code = self._process.returncode
        return code if code is not None and code >= 0 else None

    async def wait(self) -> str:
        """Wait for its end, and say in words how it ended, with its last log lines."""
        code = await self._process.wait()
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        tail = await asyncio.to_thread(self._tail)
        return f"engine process {self.pid} {ended}" + (f"; log: {tail}" if tail else "")

    async def lost_its_port(self) -> bool:
        """Whether it ended because someone else has one of its ports, as far as can be told afterwards."""
        if not self.exited:
            return False
        return address_in_use(await asyncio.to_thread(self._tail)) or await asyncio.to_thread(
            self._ports.taken
        )

    async def owns(self, pid: int) -> bool:
        """Whether `pid` is this process or one that it started."""
        if pid == self.pid:
            return True
        return any(child.pid == pid for child in await asyncio.to_thread(descendants, self.pid))

    async def remember(self, note: Mapping[str, Any]) -> None:
        """Keep nothing: no agent comes after this one while the engine runs."""

    async def telling_lines(self) -> Sequence[str]:
        """Return what it has logged of its start."""
        return await asyncio.to_thread(self._telling_lines)

    async def stop(self, *, grace_seconds: float) -> None:
        """End the process and all that it started: SIGTERM, and what is left after `grace_seconds` SIGKILL."""
        if self._ended:
            return
        others, forks = await asyncio.to_thread(_tree, self.pid)
        if not self.exited and grace_seconds > 0:
            _signal_group(self.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
        _signal_group(self.pid, signal.SIGKILL)
        for other in others:  # those that left the group
            with suppress(psutil.Error):
                other.kill()
        await asyncio.to_thread(psutil.wait_procs, forks, _REAP_SECONDS)  # they hold the memory
        with suppress(
            TimeoutError
        ):  # a process in uninterruptible sleep can't be waited for; the kernel ends it when it wakes
            async with asyncio.timeout(_REAP_SECONDS):
                await self._process.wait()
        self._ended = self.exited

    def _telling_lines(self) -> Sequence[str]:
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_start)
                return telling_lines(log.read(_LOG_LIMIT_BYTES).decode(errors="replace"))
        except OSError:
            return ()

    def _tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _TAIL_BYTES))
                text = log.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        return " | ".join(telling(text)[-_TAIL_LINES:])


def telling(log: str) -> Sequence[str]:
    """Return the lines of an engine's output that may say why it has ended."""
    lines = [line.strip() for line in log.splitlines()]
    return [line for line in lines if line and not line.startswith(_STEP_OF_A_START)]


def address_in_use(log: str) -> bool:
    """Whether a log says that somebody else has an address."""
    return os.strerror(errno.EADDRINUSE).lower() in log.lower()


def _open_log(log: Path, command: Sequence[str]) -> tuple[int, int]:
    """Open a log for appending; return where this start's output begins, and the file descriptor."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.write(output, f"--- {shlex.join(command)}".replace("\n", " ").encode() + b"\n")
    return os.lseek(output, 0, os.SEEK_END), output


def descendants(pid: int) -> list[psutil.Process]:
    """Return the processes under one; a fork that is stood for counts as under its stand-in."""
    return _tree(pid)[0]


def _tree(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return the processes under one, and which of them are forks that it or one under it stands for."""
    found: list[psutil.Process] = []
    forks: list[psutil.Process] = []
    seen, roots = {pid}, [pid]
    while roots:  # a fork starts processes of its own, which may stand for forks in turn: ranks do
        below = [child for root in roots for child in _children(root)]
        stood = {fork for each in (*roots, *(child.pid for child in below)) for fork in stood_for(each)}
        found += below
        roots = sorted(stood - seen)
        seen |= stood
        for fork in roots:
            with suppress(psutil.Error):  # it has just ended
                forks.append(psutil.Process(fork))
    return [*found, *forks], forks


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _is_taken(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port)):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE
