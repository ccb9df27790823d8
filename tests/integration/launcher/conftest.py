"""A launcher as a process of its own, and an agent's end of its socket, both without any of the agent's code."""

import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from warmpool.launcher import process_stat

LAUNCHER = Path(__file__).resolve().parents[3] / "warmpool/launcher.py"
WAIT_SECONDS = 30.0
Json = dict[str, Any]

STUBBORN = "trap '' TERM HUP INT; echo ready; while :; do sleep 1 & wait; done"
"""A shell that refuses to end."""
QUIET = "echo ready; exec sleep 1000"


def since_boot() -> int:
    """What an agent that starts now has as its generation."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Look again and again until something holds, and return it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"didn't come about within {WAIT_SECONDS} s: {what or condition}")
        time.sleep(0.005)
    return found


def living(pid: int) -> bool:
    found = process_stat(pid)
    return found is not None and found.state != "Z"


def there(pid: int) -> bool:
    """Whether a process or its zombie is there."""
    return process_stat(pid) is not None


@dataclass
class Agent:
    """An agent's end of the socket."""

    socket: socket.socket
    events: list[Json] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.socket.settimeout(WAIT_SECONDS)
        self.reader = self.socket.makefile("rb")

    def hello(self, **others: Any) -> Json:
        self.send({"kind": "hello", "protocol": 1, "agent": "a", "generation": since_boot()} | others)
        return self.read()

    def send(self, message: Json) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> Json:
        """The next message; empty when the connection has been closed."""
        try:
            line = self.reader.readline()
        except ConnectionResetError:
            return {}
        message: Json = json.loads(line) if line else {}
        return message

    def ask(self, kind: str, **fields: Any) -> Json:
        """The answer to a request; what else comes before it is kept in `events`."""
        self.asked += 1
        self.send({"kind": kind, "id": self.asked, **fields})
        while (message := self.read()).get("id") != self.asked:
            assert message, f"{kind}: the connection was closed"
            self.events.append(message)
        return message

    def start(self, engine: str, *command: str, **others: Any) -> Json:
        answer = self.ask("start", engine=engine, token=f"{engine}-1", command=list(command), **others)
        assert answer["kind"] == "done", answer
        started: Json = answer["engine"]
        return started

    def shell(self, engine: str, script: str, **others: Any) -> Json:
        return self.start(engine, "sh", "-c", script, **others)

    def event(self, kind: str, engine: str = "") -> Json:
        """The next event of a kind, of an engine if one is named; those before it stay."""
        place = 0
        while True:
            while place < len(self.events):
                event = self.events[place]
                if event["kind"] == kind and engine in {"", event.get("engine")}:
                    return self.events.pop(place)
                place += 1
            message = self.read()
            assert message, f"the connection was closed before {kind} came"
            self.events.append(message)

    def list(self) -> dict[str, Json]:
        return {each["engine"]: each for each in self.ask("list")["engines"]}

    def stop(self, engine: str, **others: Any) -> None:
        assert self.ask("stop", engine=engine, token=f"{engine}-1", **others)["kind"] == "done"

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


@dataclass
class Launcher:
    """A launcher's process."""

    directory: Path
    options: Sequence[str] = ()
    environment: Json = field(default_factory=dict)
    before: Sequence[str] = ()
    output: Any = None
    python: str = sys.executable

    def __post_init__(self) -> None:
        self.path = self.directory / "s"
        self.out, self.err = self.directory / "out", self.directory / "err"
        self.agents: list[Agent] = []
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*self.before, self.python, str(LAUNCHER), "--socket", str(self.path), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=out if self.output is None else self.output,
                stderr=err,
                env=os.environ | self.environment,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def agent(self) -> Agent:
        """Somebody who has connected and said nothing yet."""
        agent = Agent(until(self._connect, "a connection"))
        self.agents.append(agent)
        return agent

    def _connect(self) -> socket.socket | None:
        assert self.process.poll() is None, self.err.read_text()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        return connection

    def heard(self, **hello: Any) -> Agent:
        """An agent that the launcher listens to."""
        agent = self.agent()
        assert agent.hello(**hello)["kind"] == "welcome"
        return agent

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def status(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def printed(self, text: str, *, error: bool = False) -> str:
        """Wait until something has been printed, and return all that was."""
        path = self.err if error else self.out
        wanted = text.encode()
        until(lambda: wanted in path.read_bytes(), f"{text} in {path.name}: {path.read_bytes()[-500:]!r}")
        return path.read_bytes().decode(errors="replace")

    def keeper(self, engine: Json) -> int:
        stat = process_stat(engine["pid"])
        assert stat is not None
        return stat.parent

    def close(self) -> None:
        for agent in self.agents:
            agent.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_SECONDS)


@dataclass
class Launchers:
    """Starts launchers for one test, and ends what is left of them."""

    directory: Path
    started: list[Launcher] = field(default_factory=list)

    def __call__(self, *options: str, **others: Any) -> Launcher:
        directory = self.directory / str(len(self.started))
        directory.mkdir()
        launcher = Launcher(directory, options, **others)
        self.started.append(launcher)
        return launcher


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Launchers]:
    each = Launchers(tmp_path)
    yield each
    for launcher in each.started:
        launcher.close()


@pytest.fixture
def launcher(launchers: Launchers) -> Launcher:
    return launchers("--drain-seconds", "20", "--grace-seconds", "5")


@pytest.fixture
def agent(launcher: Launcher) -> Agent:
    return launcher.heard()


@pytest.fixture
def pid_namespace() -> list[str]:
    """What runs a command as process 1 of a PID namespace of its own."""
    before = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        tried = subprocess.run([*before, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if tried.returncode:
        pytest.skip(f"no PID namespace may be made here: {tried.stderr.decode().strip()}")
    return before


def await_death(pid: int) -> None:
    """Wait until a process has ended; return at once if it has already."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(WAIT_SECONDS * 1000), f"process {pid} lives on"
        finally:
            os.close(fd)


def pid_of(launcher: Launcher, word: str) -> int:
    """The process id that an engine has printed behind a word."""
    found = until(lambda: re.search(rf"\b{word} (\d+)\n", launcher.out.read_text()), word)
    return int(found[1])


FAMILY = f"""
import os, signal, subprocess, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
wait = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
child = subprocess.Popen([{sys.executable!r}, "-c", wait])
print("child", child.pid, flush=True)
loner = subprocess.Popen([{sys.executable!r}, "-c", wait], start_new_session=True)
print("loner", loner.pid, flush=True)
# an orphan in a session of its own: its parent ends at once
orphaner = "import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True); print('orphan', p.pid, flush=True)"
subprocess.run([{sys.executable!r}, "-c", orphaner, wait])
print("complete", os.getpid(), flush=True)
while True:
    signal.pause()
"""
"""An engine that ignores SIGTERM, with a child that does so too, one that has left its session, and an orphan of its own."""


@dataclass
class Family:
    engine: Json
    members: dict[str, int]

    def all_dead(self) -> None:
        for pid in (self.engine["pid"], *self.members.values()):
            await_death(pid)


def start_family(launcher: Launcher, agent: Agent, name: str = "family") -> Family:
    engine = agent.start(name, sys.executable, "-c", FAMILY)
    pid_of(launcher, "complete")
    return Family(engine, {word: pid_of(launcher, word) for word in ("child", "loner", "orphan")})
