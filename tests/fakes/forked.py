"""`emberpool` in a process of its own that has its imports already: forked from one that made them.

A start of Python and the imports of a command take a second of computing each time. What is forked here is a whole process all the
same, with its own standard streams, session, signals and exit code, and it can be killed; it only isn't this process's child. Where
the imports, the encoding of the streams or what the process weighs is the point, a test starts Python itself.

    server = Emberpool.shared()
    forked = server.start(["policy", "get"], stdout=descriptor)
    forked.wait()

The one that forks is a file of its own program (`python -m tests.fakes.forked SOCKET`): it has no threads, and each request goes to a
fork that makes the command's process and waits for it.
"""

import asyncio
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TextIO

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 100.0
"""What a busy machine may take to make all imports."""
_PATH_VARIABLE = "FORKED_PATH"
"""Where it listens, for the workers of a run of tests: they share one."""
_PACKAGES = (
    "scaler.cli",
    "scaler.runtime",
    "scaler.keda",
    "scaler.gateway",
    "scaler.signals",
    "scaler.cluster",
    "warmpool.agent",
)
_NOT_THESE = {"bench", "_pb", "generate", "reference", "__main__"}
_HEAD_BYTES = 1 << 20


# -------------------------------------------------------------------- the one that asks


@dataclass
class Forked:
    """A process that was asked for."""

    pid: int
    _told: socket.socket
    _returncode: int | None = field(default=None, init=False)

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the negative number of the signal that killed it; None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """Look whether it has ended."""
        if self._returncode is None and select.select([self._told], [], [], 0)[0]:
            self._read()
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended by then.
        """
        if self._returncode is None and not select.select([self._told], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        self._read()
        assert self._returncode is not None
        return self._returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is there still."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _read(self) -> None:
        if self._returncode is None:
            line = _line(self._told)
            self._returncode = int(line) if line else -signal.SIGKILL
            self._told.close()


class AwaitedFork:
    """A process that was asked for, with what asyncio's have."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self.pid = forked.pid

    @property
    def returncode(self) -> int | None:
        """As a Forked's."""
        return self._forked.poll()

    async def wait(self) -> int:
        """Wait for its end."""
        while (code := self._forked.poll()) is None:
            await asyncio.sleep(0.01)  # between two looks
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is there still."""
        self._forked.send_signal(number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def share() -> None:
    """Start the process that forks, for this one and for all that it starts from now on; it ends with this one."""
    folder = tempfile.TemporaryDirectory(prefix="emberpool-forked-")
    path = Path(folder.name) / "s"
    with path.with_name("log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.forked", str(path)],
            stdin=subprocess.PIPE,  # its end is the end of who asks
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )

    def close() -> None:
        """End it; what it has forked goes on."""
        server.kill()
        server.wait()
        if server.stdin is not None:
            server.stdin.close()
        folder.cleanup()

    atexit.register(close)
    os.environ[_PATH_VARIABLE] = str(path)


class Emberpool:
    """Who asks the process that forks."""

    _shared: ClassVar[Self | None] = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name("log")

    @classmethod
    def shared(cls) -> Self:
        """Return the one of this process, or of the one whose worker it is; wait until it can be asked."""
        if cls._shared is None:
            if _PATH_VARIABLE not in os.environ:
                share()
            cls._shared = cls(Path(os.environ[_PATH_VARIABLE]))
        cls._shared._wait()
        return cls._shared

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._path.exists():
            assert time.monotonic() < deadline, (
                f"the imports fail or take too long: {self._log.read_text('utf-8')}"
            )
            time.sleep(0.01)  # between two looks

    def command(self, folder: Path) -> Path:
        """Write an `emberpool` for shells into a folder, which asks here; return its path."""
        path = folder / "emberpool"
        path.write_text(_COMMAND.format(python=sys.executable, path=str(self._path)), "utf-8")
        path.chmod(0o755)
        return path

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        streams: tuple[int, int, int],
        directory: Path | None = None,
        session: bool = False,
        module: str = "scaler.cli.app",
    ) -> Forked:
        """Start `emberpool` with these arguments, or another module's `main`, with three descriptors for its streams."""
        told = socket.socket(socket.AF_UNIX)
        told.connect(str(self._path))
        wanted = {
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
            "directory": str(directory or Path.cwd()),
            "session": session,
            "module": module,
        }
        socket.send_fds(told, [json.dumps(wanted).encode() + b"\n"], list(streams))
        line = _line(told)
        assert line, self._log.read_text("utf-8")
        return Forked(int(line), told)


def run(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    timeout: float = 60,
    module: str = "scaler.cli.app",
) -> "subprocess.CompletedProcess[str]":
    """Run `emberpool`, or another module's `main`, to its end without any input; return what it printed."""
    with (
        Path(os.devnull).open("rb") as nothing,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        streams = (nothing.fileno(), out.fileno(), err.fileno())
        forked = Emberpool.shared().start(arguments, environment, streams=streams, module=module)
        try:
            code = forked.wait(timeout)
        except subprocess.TimeoutExpired:
            forked.send_signal(signal.SIGKILL)
            raise
        printed = [_printed(file) for file in (out, err)]
    return subprocess.CompletedProcess(["emberpool", *arguments], code, *printed)


async def start(
    arguments: Sequence[str], environment: Mapping[str, str], log: int, *, module: str = "scaler.cli.app"
) -> AwaitedFork:
    """Start `emberpool`, or another module's `main`, in a session of its own, all of whose output goes to one descriptor."""
    server = await asyncio.to_thread(Emberpool.shared)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        streams = (nothing, log, log)
        return AwaitedFork(server.start(arguments, environment, streams=streams, session=True, module=module))
    finally:
        os.close(nothing)


@dataclass
class Piped:
    """A process whose output comes through pipes."""

    forked: Forked
    stdout: TextIO
    stderr: TextIO


@contextlib.contextmanager
def piped(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Piped]:
    """Run `emberpool` for as long as the block runs at the longest."""
    with contextlib.ExitStack() as stack:
        ends = [os.pipe() for _ in range(2)]
        readers = [stack.enter_context(os.fdopen(ours, encoding="utf-8")) for ours, _ in ends]
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            streams = (nothing, ends[0][1], ends[1][1])
            forked = Emberpool.shared().start(arguments, environment, streams=streams)
        finally:
            for each in (nothing, *(theirs for _, theirs in ends)):
                os.close(each)
        stack.callback(forked.wait, START_SECONDS)
        stack.callback(forked.send_signal, signal.SIGKILL)
        yield Piped(forked, *readers)


_COMMAND = """\
#!{python} -IS
import json, os, socket, sys
told = socket.socket(socket.AF_UNIX)
told.connect({path!r})
wanted = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "directory": os.getcwd(), "session": False}}
wanted["module"] = "scaler.cli.app"
socket.send_fds(told, [json.dumps(wanted).encode() + b"\\n"], [0, 1, 2])
answers = told.makefile("rb")
answers.readline()
code = int(answers.readline() or b"-9")
sys.exit(code if code >= 0 else 128 - code)
"""


def _printed(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


def _line(told: socket.socket) -> bytes:
    line = b""
    with contextlib.suppress(ConnectionError):
        while not line.endswith(b"\n") and (byte := told.recv(1)):
            line += byte
    return line


# -------------------------------------------------------------------- the one that forks


def _import_all() -> None:
    for package in _PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not _NOT_THESE & set(found.name.split(".")):
                importlib.import_module(found.name)


def _serve(path: str) -> None:
    _import_all()
    gc.collect()
    gc.freeze()  # else each fork's collector writes to all that was imported, which is memory to copy
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen(64)
        Path(path + ".new").rename(path)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            told, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _keep(told)
            told.close()


def _keep(told: socket.socket) -> NoReturn:
    """Make the process that is asked for, and tell of its beginning and its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    raw, streams, _, _ = socket.recv_fds(told, _HEAD_BYTES, 3)
    while not raw.endswith(b"\n"):
        raw += told.recv(_HEAD_BYTES)
    wanted = json.loads(raw)
    pid = os.fork()
    if pid == 0:
        told.close()
        _become(wanted, streams)
    for each in streams:
        os.close(each)
    told.sendall(b"%d\n" % pid)
    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    poll.register(told, select.POLLIN)  # readable at its end: who asked is gone
    if told.fileno() in dict(poll.poll()):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # nobody may want to know any more
        told.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(wanted: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    if wanted["session"]:
        os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
    for each in streams:
        os.close(each)
    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _writer(1)
    sys.stderr = sys.__stderr__ = _writer(2)
    sys.argv = ["emberpool", *wanted["arguments"]]
    code: object = None
    try:
        code = importlib.import_module(wanted["module"]).main()
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int):
        _end(code or 0)
    sys.exit(code)


def _end(code: int) -> None:
    """Do what Python does at its end, but for taking apart all that was imported, which computes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()  # for what complains of not having been closed or awaited
    with contextlib.suppress(Exception):  # then Python tells of it at its end
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _writer(descriptor: int) -> io.TextIOWrapper:
    raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115
    errors = "strict" if descriptor == 1 else "backslashreplace"
    return io.TextIOWrapper(
        raw, encoding="utf-8", errors=errors, line_buffering=descriptor == 2 or os.isatty(descriptor)
    )


if __name__ == "__main__":
    _serve(sys.argv[1])
