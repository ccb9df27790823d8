"""The agent's side of the socket: engines that it starts, follows, takes up and loses."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.launcher.conftest import Launcher as Process
from tests.integration.launcher.conftest import Launchers, await_death, living
from warmpool.agent.launching import LaunchedProcess, Launcher, LauncherLost, LauncherSaidNo
from warmpool.agent.processes import Ports, Start
from warmpool.errors import StartFailed

ROOT = Path(__file__).resolve().parents[3]
SLEEP = "echo ready; exec sleep 1000"


@dataclass
class Told:
    draining: list[float] = field(default_factory=list)
    superseded: int = 0

    def supersede(self) -> None:
        self.superseded += 1


class Client(Protocol):
    def __call__(self, process: Process, told: Told | None = None, *, secret: str = "") -> Launcher: ...


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Makes agents' ends."""
    made: list[Launcher] = []

    def make(process: Process, told: Told | None = None, *, secret: str = "") -> Launcher:
        told = told or Told()
        made.append(
            Launcher(
                process.path, secret=secret, on_draining=told.draining.append, on_superseded=told.supersede
            )
        )
        return made[-1]

    yield make
    for each in made:
        await each.close()


def shell(script: str, name: str = "chat") -> Start:
    return Start(name=name, command=["sh", "-c", script, "{port}"], environment={"A": "a"})


def free() -> Ports:
    return Ports.free("127.0.0.1")


async def within(condition: Callable[[], object]) -> None:
    """Wait until something holds, and let the client work meanwhile."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def break_connections(launcher: Process) -> None:
    """Break this process's connections to a launcher."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(link.name))) as connection:
                if connection.family == socket.AF_UNIX and connection.getpeername() == str(launcher.path):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # no socket, or not connected
            continue


async def ended(process: LaunchedProcess) -> str:
    async with asyncio.timeout(30):
        return await process.wait()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo one; echo two >&2; exit 3", "exited with status 3; log: one | two"),
        ("exit 0", "exited with status 0"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
    ],
)
async def test_an_end_is_told_in_words(client: Client, launcher: Process, script: str, words: str) -> None:
    process = await client(launcher).start(shell(script), free())
    assert await ended(process) == f"engine process {process.pid} {words}"
    assert process.exited
    assert not await process.lost_its_port()


async def test_an_engine_that_ends_at_once_is_followed_to_its_end(client: Client, launcher: Process) -> None:
    agent = client(launcher)
    for number in range(40):
        process = await agent.start(shell(f"exit {number}"), free())
        assert f"exited with status {number}" in await ended(process)
        await process.stop(grace_seconds=0)


async def test_what_an_engine_logs_of_its_start_is_kept(client: Client, launcher: Process) -> None:
    said = (
        "echo nothing; echo 'INFO Loading weights took 1.5 seconds'; echo 'Capture cuda graph end. Time' >&2"
    )
    process = await client(launcher).start(shell(f"{said}; exec sleep 60"), free())
    lines: Sequence[str] = ()
    async with asyncio.timeout(30):
        while len(lines) < 2:
            lines = await process.telling_lines()
            await asyncio.sleep(0.005)
    assert lines == ["INFO Loading weights took 1.5 seconds", "Capture cuda graph end. Time"]
    await process.stop(grace_seconds=0)
    assert await process.telling_lines() == ()


async def test_the_engine_gets_its_ports_and_environment(client: Client, launcher: Process) -> None:
    ports = free()
    process = await client(launcher).start(shell("echo $0 $A"), ports)
    assert (await ended(process)).endswith(f"log: {ports.public} a")
    assert process.ports == ports
    assert process.visible_pid == process.pid


async def test_a_launcher_may_know_what_to_start(client: Client, launchers: Launchers) -> None:
    agent = client(launchers("--", "sh", "-c", "echo $0 $A", "{port}"))
    ports, start = free(), Start(name="chat", command=(), environment={"A": "a"}, placeholders=("{port}",))
    assert (await ended(await agent.start(start, ports))).endswith(f"log: {ports.public} a")
    said = replace(start, command=["sh", "-c", "echo $0", "said {port}"])
    assert (await ended(await agent.start(said, ports))).endswith(f"log: said {ports.public}")


@pytest.mark.parametrize(
    ("own", "complaint"),
    [((), "neither the config nor the launcher at .* says how"), (("--", "engine"), r"lacks \{port\}")],
)
async def test_what_a_launcher_does_not_know_is_named(
    client: Client, launchers: Launchers, own: tuple[str, ...], complaint: str
) -> None:
    agent, start = (
        client(launchers(*own)),
        Start(name="chat", command=(), environment={}, placeholders=("{port}",)),
    )
    with pytest.raises(StartFailed, match=complaint):
        await agent.start(start, free())
    assert await agent.running(start) is None


async def test_a_port_that_somebody_else_has_is_seen(client: Client, launcher: Process) -> None:
    ports = free()
    with socket.create_server(("127.0.0.1", ports.control)):
        process = await client(launcher).start(shell("exit 1"), ports)
        await ended(process)
        assert await process.lost_its_port()
    said = await client(launcher).start(shell(f"echo {os.strerror(98)} >&2; exit 1", "other"), free())
    await ended(said)
    assert await said.lost_its_port()


async def test_what_cannot_be_started_is_named(client: Client, launcher: Process) -> None:
    start = Start(name="chat", command=["no-such-engine"], environment={})
    with pytest.raises(StartFailed, match="launcher: command: no-such-engine can't be started: No such file"):
        await client(launcher).start(start, free())


async def test_stopping_ends_the_family_and_twice_is_once(client: Client, launcher: Process) -> None:
    process = await client(launcher).start(
        shell("trap '' TERM; setsid sh -c 'echo loner $$; exec sleep 1000' & echo ready; wait; wait"), free()
    )
    launcher.printed("ready")
    launcher.printed("loner")
    loner = int(next(line for line in launcher.out.read_text().splitlines() if "loner" in line).split()[-1])
    assert await process.owns(loner)
    assert await process.owns(process.pid)
    assert not await process.owns(1)
    await process.stop(grace_seconds=0.2)
    assert "SIGKILL" in await ended(process)
    await_death(loner)
    await process.stop(grace_seconds=0.2)
    assert not await process.owns(loner)


async def test_an_agent_that_comes_back_takes_up_what_runs(client: Client, launcher: Process) -> None:
    start, ports = shell(SLEEP), free()
    before = await client(launcher).start(start, ports)
    await before.remember({"state": "Paused", "provenAt": 1.5})
    after = client(launcher)
    found = await after.running(start)
    assert found is not None
    process, note = found
    assert (process.pid, process.token, process.ports) == (before.pid, before.token, ports)
    assert (note["state"], note["provenAt"]) == ("Paused", 1.5)
    await process.stop(grace_seconds=5)
    assert "SIGTERM" in await ended(process)


async def test_what_runs_otherwise_is_not_taken_up_but_makes_room(client: Client, launcher: Process) -> None:
    before = await client(launcher).start(shell(SLEEP), free())
    after = client(launcher)
    assert await after.running(shell(f"{SLEEP} # otherwise")) is None
    assert await after.running(shell(SLEEP, "other")) is None
    assert living(before.pid)
    process = await after.start(shell(f"{SLEEP} # otherwise"), free())
    assert not living(before.pid)
    assert living(process.pid)


async def test_what_belongs_to_nobody_is_ended(client: Client, launcher: Process) -> None:
    first = client(launcher)
    mine, other = (
        await first.start(shell(SLEEP, "mine"), free()),
        await first.start(shell(SLEEP, "other"), free()),
    )
    await client(launcher).end_others(["mine", "future"])
    await_death(other.pid)
    assert living(mine.pid)


async def test_an_end_that_happened_while_the_connection_was_broken_is_told(
    client: Client, launcher: Process
) -> None:
    """The launcher drops an agent that doesn't read; nothing is lost by it."""
    agent = client(launcher)
    process = await agent.start(shell("read line < /dev/null; sleep 0.2; exit 5"), free())
    await agent.ask("list", {})
    break_connections(launcher)
    assert "exited with status 5" in await ended(process)


async def test_requests_survive_a_broken_connection(client: Client, launcher: Process) -> None:
    agent = client(launcher)
    process = await agent.start(shell(SLEEP), free())
    for _ in range(3):
        break_connections(launcher)
        assert await process.owns(process.pid)
        assert [each["pid"] for each in (await agent.ask("list", {}))["engines"]] == [process.pid]


async def test_engines_end_with_their_launcher_and_that_is_seen_at_once(
    client: Client, launcher: Process
) -> None:
    agent = client(launcher)
    processes = [await agent.start(shell(SLEEP, name), free()) for name in ("one", "two")]
    waiting = [asyncio.ensure_future(ended(process)) for process in processes]  # noqa: TID251
    os.kill(launcher.pid, signal.SIGKILL)
    assert await asyncio.gather(*waiting) == ["the launcher has ended, and the engine with it"] * 2
    for process in processes:
        await process.stop(grace_seconds=5)
        await_death(process.pid)
        with pytest.raises(LauncherLost):
            await process.owns(1)


async def test_a_new_launcher_in_its_place_is_waited_for_and_used(
    client: Client, launchers: Launchers
) -> None:
    first = launchers()
    agent = client(first)
    lost = await agent.start(shell(SLEEP), free())
    os.kill(first.pid, signal.SIGKILL)
    assert "launcher has ended" in await ended(lost)
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(agent.start(shell(SLEEP), free()))
        await asyncio.sleep(0)
        second = Process(first.directory)
    try:
        assert living(starting.result().pid)
        assert second.keeper({"pid": starting.result().pid}) > 0
    finally:
        second.close()


async def test_an_agent_may_be_there_first(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    agent = Launcher(tmp_path / "late/s", secret="", on_draining=[].append, on_superseded=lambda: None)
    assert await agent.running(shell(SLEEP)) is None  # engines end with their launcher
    assert not agent.ready
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(agent.start(shell(SLEEP), free()))
        await asyncio.sleep(0)
        late = Process(tmp_path / "late")
    assert living(starting.result().pid)
    assert agent.ready
    await agent.close()
    late.close()


async def test_draining_is_told_once_with_the_seconds_that_are_left(
    client: Client, launchers: Launchers
) -> None:
    launcher, told = launchers("--drain-seconds", "1000"), Told()
    agent = client(launcher, told)
    process = await agent.start(shell(SLEEP), free())
    launcher.signal(signal.SIGTERM)
    await within(lambda: told.draining)
    break_connections(launcher)
    assert await process.owns(process.pid)  # over a new connection, on which it is told again
    assert len(told.draining) == 1
    assert 900 < told.draining[0] <= 1000
    with pytest.raises(StartFailed, match="it starts nothing"):
        await agent.start(shell(SLEEP, "new"), free())
    await agent.drained()
    assert await asyncio.to_thread(launcher.status) == 0


async def test_an_agent_that_is_superseded_is_told_and_gets_nothing_done(
    client: Client, launcher: Process
) -> None:
    told, newer = Told(), Told()
    older = client(launcher, told)
    process = await older.start(shell(SLEEP), free())
    await asyncio.sleep(0.002)  # generations are counted in milliseconds
    assert await client(launcher, newer).running(shell(SLEEP)) is not None
    await within(lambda: told.superseded)
    with pytest.raises(LauncherSaidNo, match="started later"):
        await older.ask("list", {})
    assert living(process.pid)
    assert newer.superseded == 0


async def test_a_wrong_secret_is_told(client: Client, launchers: Launchers) -> None:
    launcher = launchers(environment={"EMBERPOOL_LAUNCHER_SECRET": "right"})
    launcher.heard(secret="right").close()
    with pytest.raises(LauncherSaidNo, match="the secret is not the launcher's"):
        await client(launcher, secret="wrong").ask("list", {})
    assert (await client(launcher, secret="right").ask("list", {}))["engines"] == []


async def test_a_launcher_that_does_not_answer_is_told_from_one_that_is_gone(
    client: Client, launcher: Process
) -> None:
    agent = client(launcher)
    process = await agent.start(shell(SLEEP), free())
    os.kill(launcher.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LauncherLost, match="list wasn't answered within 0 s"):
            await agent.ask("list", {}, seconds=0.1)
        assert not process.exited
    finally:
        os.kill(launcher.pid, signal.SIGCONT)
    assert await process.owns(process.pid)


async def test_an_engine_in_another_namespace_is_known_to_be_there(
    client: Client, launchers: Launchers, pid_namespace: list[str]
) -> None:
    launcher = launchers(before=pid_namespace)
    process = await client(launcher).start(shell("echo $$; exec sleep 1000"), free())
    assert process.visible_pid is None
    assert f"[chat] {process.pid}\n" in launcher.printed(f"{process.pid}\n")
    assert await process.owns(process.pid)
    await process.stop(grace_seconds=5)
    assert "SIGTERM" in await ended(process)


# ---------------------------------------------------------------------- an agent that is killed, and its engine's stream

TICKER = """
import itertools, socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    connection, _ = server.accept()
    for number in itertools.count():
        connection.sendall(b"%d\\n" % number)
        time.sleep(0.005)
"""
AGENT = """
import asyncio, sys
from pathlib import Path
from warmpool.agent.launching import Launcher
from warmpool.agent.processes import Ports, Start

async def main():
    launcher = Launcher(Path(sys.argv[1]), secret="", on_draining=print, on_superseded=print)
    start = Start(name="chat", command=[sys.executable, "-c", sys.argv[2], "{port}"], environment={})
    process = await launcher.start(start, Ports.free("127.0.0.1"))
    print(process.pid, process.ports.public, flush=True)
    await process.wait()

asyncio.run(main())
"""


async def test_a_stream_does_not_break_when_the_agent_is_killed_and_comes_back(
    client: Client, launcher: Process
) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        AGENT,
        str(launcher.path),
        TICKER,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert agent.stdout is not None
        pid, port = map(int, (await agent.stdout.readline()).split())
        await within(lambda: _listens(port))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert [int(await reader.readline()) for _ in range(20)] == list(range(20))
    finally:
        agent.kill()
        await agent.wait()
    assert [int(await reader.readline()) for _ in range(20)] == list(range(20, 40))
    back = client(launcher)
    found = await back.running(
        Start(name="chat", command=[sys.executable, "-c", TICKER, "{port}"], environment={})
    )
    assert found is not None
    process, _note = found
    assert (process.pid, process.ports.public) == (pid, port)
    assert [int(await reader.readline()) for _ in range(20)] == list(range(40, 60))
    writer.close()
    await process.stop(grace_seconds=5)
    assert process.exited


def _listens(port: int) -> bool:
    wanted = f":{port:04X} 00000000:0000 0A"
    return wanted in Path("/proc/net/tcp").read_text()
