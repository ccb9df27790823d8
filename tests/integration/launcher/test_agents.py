"""Agents: who is heard, what one that comes back is told, and what nonsense on the socket does."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import (
    LAUNCHER,
    QUIET,
    Agent,
    Launcher,
    Launchers,
    living,
    since_boot,
    until,
)

# ---------------------------------------------------------------------- coming back


def test_engines_do_not_mind_that_the_agent_is_gone(launcher: Launcher) -> None:
    first = launcher.heard()
    engine = first.shell("chat", "echo ready; while :; do sleep 0.02; echo tick; done", note={"port": 7})
    first.close()
    launcher.printed("is gone", error=True)
    back = launcher.agent()
    (known,) = back.hello()["engines"]
    assert {key: known[key] for key in ("pid", "startTime", "spec", "token", "note", "state")} == {
        key: engine[key] for key in ("pid", "startTime", "spec", "token", "note", "state")
    }
    ticks = launcher.out.read_text().count("tick")
    until(lambda: launcher.out.read_text().count("tick") > ticks)
    back.stop("chat")
    assert back.event("exit")["cause"] == "Asked"


def test_an_end_while_nobody_was_there_is_told_until_it_is_acknowledged(launcher: Launcher) -> None:
    first = launcher.heard()
    first.shell("chat", "read line < /dev/null; sleep 0.3; exit 9")
    first.close()
    launcher.printed("is gone", error=True)
    for _ in range(2):
        back = launcher.heard()
        report = back.event("exit", "chat")
        assert report["status"] == 9
        gone = back.event("gone", "chat")
        assert gone["sequence"] > report["sequence"]
    assert back.ask("acknowledge", sequence=report["sequence"])["kind"] == "done"
    assert launcher.heard().event("gone", "chat") == gone
    last = launcher.heard()
    last.event("gone", "chat")
    last.ask("acknowledge", sequence=gone["sequence"])
    after = launcher.heard()
    after.ask("list")
    assert after.events == []


def test_reports_that_nobody_acknowledges_are_bounded_and_the_lost_are_counted(
    agent: Agent, launcher: Launcher
) -> None:
    for number in range(103):
        agent.start("chat", "true") if number == 0 else agent.ask(
            "start", engine="chat", token=f"t{number}", command=["true"]
        )
        agent.event("gone", "chat")
    back = launcher.agent()
    assert back.hello()["reportsLost"] == 6
    back.ask("list")
    assert len(back.events) == 200


# ---------------------------------------------------------------------- one agent at a time


def test_the_agent_that_started_later_is_heard_and_the_other_told(launcher: Launcher) -> None:
    older, newer = since_boot() - 1000, since_boot() - 500
    first = launcher.heard(agent="first", generation=older)
    engine = first.shell("chat", QUIET)
    second = launcher.heard(agent="second", generation=newer)
    assert first.read()["code"] == "Superseded"
    assert first.read() == {}
    refused = launcher.agent().hello(agent="first", generation=older)
    assert refused["code"] == "Superseded"
    assert "second" in refused["message"]
    assert second.list()["chat"]["pid"] == engine["pid"]


def test_an_older_agent_is_not_heard_even_when_the_later_one_is_gone(launcher: Launcher) -> None:
    launcher.heard(agent="later", generation=since_boot()).close()
    launcher.printed("is gone", error=True)
    assert launcher.agent().hello(agent="older", generation=since_boot() - 60_000)["code"] == "Superseded"


def test_an_agent_may_connect_again(launcher: Launcher) -> None:
    generation = since_boot()
    launcher.heard(agent="a", generation=generation)
    again = launcher.heard(agent="a", generation=generation)
    assert again.list() == {}
    assert launcher.agent().hello(agent="b", generation=generation)["code"] == "Superseded"


@pytest.mark.parametrize("generation", [0, -1, 2**62, True, "1", 1.5, None])
def test_a_generation_that_cannot_be_is_refused_and_locks_nobody_out(
    launcher: Launcher, generation: object
) -> None:
    assert launcher.agent().hello(generation=generation)["code"] == "BadMessage"
    launcher.heard()


# ---------------------------------------------------------------------- who may


@pytest.mark.parametrize("by_file", [False, True])
def test_a_wrong_secret_is_refused_and_disturbs_nobody(
    launchers: Launchers, tmp_path: Path, *, by_file: bool
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    launcher = (
        launchers("--secret-file", str(tmp_path / "secret"))
        if by_file
        else launchers(environment={"EMBERPOOL_LAUNCHER_SECRET": "s3cret"})
    )
    agent = launcher.heard(secret="s3cret")
    for wrong in ({}, {"secret": ""}, {"secret": "s3cret\n"}, {"secret": "\ud800é"}):
        assert launcher.agent().hello(**wrong)["code"] == "Secret"
    assert agent.list() == {}


SAY_HELLO = """
import contextlib, json, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
generation = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
hello = {"kind": "hello", "protocol": 1, "agent": "x", "generation": generation}
with contextlib.suppress(BrokenPipeError):  # it may have been refused already
    s.sendall(json.dumps(hello).encode() + b"\\n")
print(s.makefile().readline())
"""


def test_another_user_is_refused_unless_allowed() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    other = 4242

    def answer_to(path: Path) -> dict[str, object]:
        asked = subprocess.run(
            ["/usr/bin/env", "python3", "-c", SAY_HELLO, str(path)],
            user=other,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if not asked.stdout:
            return {"code": asked.stderr.splitlines()[-1]}
        answer: dict[str, object] = json.loads(asked.stdout)
        return answer

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        closed = Launcher(_made(directory / "closed"))
        opened = Launcher(_made(directory / "opened"), ["--allow-uid", str(other)])
        elsewhere = Launcher(_made(directory / "elsewhere"), ["--allow-uid", "4243"])
        try:
            for each in (closed, opened, elsewhere):
                each.heard(generation=since_boot() - 1000)
            assert "PermissionError" in str(answer_to(closed.path)["code"])
            assert answer_to(opened.path)["kind"] == "welcome"
            assert answer_to(elsewhere.path)["code"] == "Credentials"
        finally:
            for each in (closed, opened, elsewhere):
                each.close()


def _made(directory: Path) -> Path:
    directory.mkdir()
    directory.chmod(0o755)
    return directory


def test_an_engine_cannot_be_the_agent(agent: Agent, launcher: Launcher) -> None:
    script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.makefile().readline())"
    agent.start("chat", "sh", "-c", '"$0" -c "$1" "$2"', sys.executable, script, str(launcher.path))
    assert '"code":"Credentials"' in agent.event("exit")["outTail"]
    agent.event("gone")
    assert agent.list() == {}


# ---------------------------------------------------------------------- nonsense

_HELLO = {"kind": "hello", "protocol": 1, "agent": "a", "generation": 1}
NONSENSE = {
    "no JSON": (b"hello\n", "BadMessage"),
    "no object": (b"[1]\n", "BadMessage"),
    "an empty line": (b"\n", "BadMessage"),
    "bytes": (bytes(range(128, 256)) + b"\n", "BadMessage"),
    "no number": (b'{"kind": NaN}\n', "BadMessage"),
    "too deep": (b"[" * 8000 + b"\n", "BadMessage"),
    "too long without an end": (b"x" * 10_000, "TooLong"),
    "too long": (b'{"kind":"hello","x":"' + b"x" * 10_000 + b'"}\n', "TooLong"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "BadMessage"),
    "an order before hello": (b'{"kind":"list","id":1}\n', "BadMessage"),
    "no kind": (b"{}\n", "BadMessage"),
    "another protocol": (json.dumps(_HELLO | {"protocol": 2}).encode() + b"\n", "Protocol"),
    "no protocol": (json.dumps(_HELLO | {"protocol": None}).encode() + b"\n", "Protocol"),
    "no name": (json.dumps(_HELLO | {"agent": ""}).encode() + b"\n", "BadMessage"),
    "a name too long": (json.dumps(_HELLO | {"agent": "x" * 200}).encode() + b"\n", "BadMessage"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_its_own_connection_alone(agent: Agent, launcher: Launcher, name: str) -> None:
    sent, code = NONSENSE[name]
    engine = agent.shell("chat", QUIET)
    stranger = launcher.agent()
    stranger.socket.sendall(sent)
    assert stranger.read().get("code") == code
    assert stranger.read() == {}
    assert agent.list()["chat"]["pid"] == engine["pid"]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\n",
        b'"text"\n',
        b'{"kind":"list"}\n{"kind"\n',
        b"x" * 1_100_000,
        b'{"kind":"note","engine":"chat","token":"chat-1","note":{"a":NaN}}\n',
    ],
)
def test_nonsense_of_the_agent_ends_its_connection_and_no_engine(
    agent: Agent, launcher: Launcher, sent: bytes
) -> None:
    engine = agent.shell("chat", QUIET)
    with suppress(BrokenPipeError):  # what is too long isn't read to its end
        agent.socket.sendall(sent)
    while message := agent.read():
        assert message["kind"] in {"done", "error"}
    assert launcher.heard().list()["chat"]["pid"] == engine["pid"]


@pytest.mark.parametrize("identity", [None, 0, "text", {"a": [1]}, [None]])
def test_an_answer_carries_the_id_as_it_came(agent: Agent, identity: object) -> None:
    agent.send({"kind": "list", "id": identity})
    assert agent.read()["id"] == identity


def test_messages_in_pieces_and_in_one_piece_are_the_same(agent: Agent) -> None:
    for byte in b'{"kind":"list","id":1}\n':
        agent.socket.sendall(bytes([byte]))
    assert agent.read()["id"] == 1
    agent.socket.sendall(b"".join(b'{"kind":"list","id":%d}\n' % number for number in range(500)))
    assert [agent.read()["id"] for _ in range(500)] == list(range(500))


def test_a_message_of_the_greatest_length_passes(agent: Agent) -> None:
    start = b'{"kind":"list","id":1,"padding":"'
    agent.socket.sendall(start + b"x" * (1_048_576 - len(start) - 3) + b'"}\n')
    assert agent.read()["kind"] == "done"


def test_who_says_nothing_is_sent_away(launcher: Launcher) -> None:
    assert launcher.agent().read()["message"] == "no hello within 5 s"


def test_a_crowd_at_the_socket_is_bounded_and_leaves_the_agent_alone(
    agent: Agent, launcher: Launcher
) -> None:
    crowd = [launcher.agent() for _ in range(40)]
    until(lambda: sum(_refused(each.socket) for each in crowd) == 40 - 15)
    assert agent.list() == {}


def _refused(connection: socket.socket) -> bool:
    """Whether a connection was closed without a word; who says nothing for long is told so."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_an_agent_that_does_not_read_is_disconnected_and_loses_nothing(
    agent: Agent, launcher: Launcher
) -> None:
    for number in range(20):
        agent.shell(f"e{number}", QUIET, note={"text": "x" * 8000})
    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012 (until it breaks)
        for _ in range(10_000):
            agent.socket.sendall(b'{"kind":"list"}\n')
    launcher.printed("reads too slowly", error=True)
    assert len(launcher.heard().list()) == 20


# ---------------------------------------------------------------------- the socket


def test_a_second_launcher_does_not_take_the_socket(launchers: Launchers) -> None:
    first = launchers()
    agent = first.heard()
    command = [sys.executable, str(LAUNCHER), "--socket", str(first.path)]
    taken = subprocess.run(command, capture_output=True, text=True, check=False)
    assert taken.returncode == 2
    assert "another launcher listens" in taken.stderr
    assert agent.list() == {}


def test_what_a_killed_launcher_left_is_replaced(launchers: Launchers) -> None:
    first = launchers()
    first.heard()
    os.kill(first.pid, signal.SIGKILL)
    first.status()
    assert first.path.is_socket()
    second = Launcher(first.directory)
    try:
        assert second.heard().list() == {}
    finally:
        second.close()


def test_a_file_that_is_no_socket_is_left_alone(launchers: Launchers, tmp_path: Path) -> None:
    directory = tmp_path / "0"
    directory.mkdir()
    (directory / "s").write_text("precious")
    launcher = Launcher(directory)
    try:
        assert launcher.status() == 2
        assert "can't be listened at: Address already in use" in launcher.err.read_text()
        assert (directory / "s").read_text() == "precious"
    finally:
        launcher.close()


def test_the_socket_is_for_its_user_alone(launcher: Launcher) -> None:
    launcher.heard()
    assert launcher.path.stat().st_mode & 0o777 == 0o600


START_ONE = """
import json, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
answers = s.makefile()
generation = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
for message in (
    {"kind": "hello", "protocol": 1, "agent": "a", "generation": generation},
    {"kind": "start", "id": 1, "engine": "chat", "token": "chat-1", "command": ["sleep", "1000"]},
):
    s.sendall(json.dumps(message).encode() + b"\\n")
    print(answers.readline(), end="", flush=True)
time.sleep(1000)
"""


def test_a_killed_agent_leaves_engines_running(launcher: Launcher) -> None:
    launcher.heard(generation=1).close()
    with subprocess.Popen(
        [sys.executable, "-c", START_ONE, str(launcher.path)], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        assert json.loads(agent.stdout.readline())["kind"] == "welcome"
        pid = json.loads(agent.stdout.readline())["engine"]["pid"]
        agent.kill()
    launcher.printed("is gone", error=True)
    assert living(pid)
    assert launcher.heard().list()["chat"]["pid"] == pid
