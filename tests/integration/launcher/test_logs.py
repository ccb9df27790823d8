"""Engines' output: forwarded line by line, whatever the bytes, and never in an engine's way."""

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import QUIET, Agent, Launcher, Launchers, living, there, until
from warmpool.launcher import process_stat

DROPPED = re.compile(rb"\[(\w+)\] (\d+) lines \((\d+) bytes\) dropped: the log is read too slowly\n")


def restored(printed: bytes, engine: str = "chat") -> bytes:
    """What an engine wrote, from what the launcher made of it; without the end of its last line."""
    first, further = f"[{engine}] ".encode(), f"[{engine}]+ ".encode()
    pieces: list[bytes] = []
    for line in printed.split(b"\n")[:-1]:
        if line.startswith(further):
            pieces.append(line.removeprefix(further))
        elif line.startswith(first):
            pieces += (b"\n", line.removeprefix(first))
    return b"".join(pieces)[1:]


def test_each_line_says_whose_it_is_and_each_stream_stays_its_own(agent: Agent, launcher: Launcher) -> None:
    for name in ("one", "two"):
        agent.shell(name, f"echo out {name}; echo err {name} >&2; echo; echo last {name}")
        agent.event("gone", name)
    out = launcher.printed("[two] last two\n")
    err = launcher.printed("[two] err two\n", error=True)
    for name in ("one", "two"):
        assert [line for line in out.splitlines() if line.startswith(f"[{name}]")] == [
            f"[{name}] out {name}",
            f"[{name}] ",
            f"[{name}] last {name}",
        ]
        assert f"[{name}] err {name}\n" in err


def test_a_line_without_an_end_is_forwarded_after_a_second_and_goes_on_behind_another_prefix(
    agent: Agent, launcher: Launcher, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    os.mkfifo(first)
    os.mkfifo(second)
    script = f"printf Loading...; read line < {first}; printf ' done\\nnext\\n'; printf half; read line < {second}; echo; echo whole"
    agent.shell("chat", f"{script}; {QUIET}")
    launcher.printed("[chat] Loading...\n")
    first.write_text("go\n")
    launcher.printed("[chat] half\n")
    second.write_text("go\n")
    out = launcher.printed("whole\n")
    assert "[chat] Loading...\n[chat]+  done\n[chat] next\n[chat] half\n[chat] whole\n" in out
    assert agent.list()["chat"]["log"]["cuts"] == 2


@pytest.mark.parametrize("size", [1_000_000, 3_333_333])
def test_long_lines_arrive_whole(agent: Agent, launcher: Launcher, size: int) -> None:
    script = f"import sys; [sys.stdout.write(letter * {size} + '\\n') for letter in 'abc']"
    agent.start("chat", sys.executable, "-c", script)
    agent.event("gone")
    launcher.printed("c\n")
    wanted = b"\n".join(letter * size for letter in (b"a", b"b", b"c"))
    until(lambda: len(launcher.out.read_bytes()) >= len(wanted))
    printed = launcher.out.read_bytes()
    assert restored(printed) == wanted
    if size <= 2**20:
        assert b"]+ " not in printed


def test_bytes_stay_what_they_are(agent: Agent, launcher: Launcher, tmp_path: Path) -> None:
    blob = os.urandom(2_000_000).replace(b"[chat]", b"[xxxx]") + bytes(range(256)) + b"the end"
    (tmp_path / "blob").write_bytes(blob)
    agent.shell("chat", f"cat {tmp_path / 'blob'}")
    agent.event("gone")
    until(lambda: b"the end\n" in launcher.out.read_bytes())
    assert restored(launcher.out.read_bytes()) == blob


# ---------------------------------------------------------------------- floods and slow readers

FLOOD = """
import os, sys, time
megabyte = (b"x" * 99 + b"\\n") * 10_486
megabyte = megabyte[: 2**20]
longest, begun = 0.0, time.monotonic()
for number in range(300):
    at = time.monotonic()
    view = memoryview(megabyte)
    while view:
        view = view[os.write(1, view) :]
    longest = max(longest, time.monotonic() - at)
    time.sleep(max(0.0, begun + (number + 1) * 0.01 - time.monotonic()))
print(f"took {time.monotonic() - begun:.2f} longest {longest:.3f}", file=sys.stderr, flush=True)
"""
"""Writes 100 MiB a second for three seconds, if it can."""


@contextmanager
def unread_pipe(launchers: Launchers) -> Iterator[tuple[Launcher, int]]:
    """A launcher whose standard output is a pipe that nobody reads yet."""
    read, write = os.pipe()
    try:
        launcher = launchers(output=write)
        os.close(write)
        yield launcher, read
    finally:
        os.close(read)


def test_a_flood_does_not_wait_for_a_reader(launchers: Launchers) -> None:
    with unread_pipe(launchers) as (launcher, _read):
        agent = launcher.heard()
        agent.start("flood", sys.executable, "-c", FLOOD)
        told = launcher.printed("longest", error=True)
        found = re.search(r"took ([0-9.]+) longest ([0-9.]+)", told)
        assert found is not None
        seconds, longest = float(found[1]), float(found[2])
        assert seconds < 15.0  # the machine may do other things, too; an engine that is held up never ends
        assert longest < 5.0


def test_what_is_dropped_is_the_oldest_and_is_counted(launchers: Launchers) -> None:
    with unread_pipe(launchers) as (launcher, read):
        agent = launcher.heard()
        agent.shell("calm", f"echo calm speaks; {QUIET}")
        agent.start(
            "flood",
            sys.executable,
            "-c",
            f"[print(n) for n in range(1_000_000)]\nprint('end', flush=True)\n{_wait()}",
        )
        until(lambda: agent.list()["flood"]["log"]["lines"] == 1_000_001)
        log = agent.list()["flood"]["log"]
        assert 0 < log["droppedLines"] < 1_000_001
        assert agent.list()["calm"]["log"]["droppedLines"] == 0
        printed = _read_until(read, b"[flood] end\n")
    assert b"[calm] calm speaks\n[calm] ready\n" in printed
    marks = [(match[1], int(match[2]), int(match[3])) for match in DROPPED.finditer(printed)]
    assert sum(lines for _name, lines, _size in marks) == log["droppedLines"]
    assert sum(size for _name, _lines, size in marks) == log["droppedBytes"]
    assert {name for name, _lines, _size in marks} == {b"flood"}
    numbers = [int(each) for each in re.findall(rb"^\[flood\] (\d+)$", printed, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 999_999
    assert len(numbers) + log["droppedLines"] == 1_000_000


def _wait() -> str:
    return "import signal; signal.pause()"


def _read_until(fd: int, end: bytes) -> bytes:
    read = b""
    while not read.endswith(end):
        piece = os.read(fd, 1 << 20)
        assert piece
        read += piece
    return read


def test_a_flooding_engine_does_not_keep_a_neighbour_from_the_log(launchers: Launchers) -> None:
    with unread_pipe(launchers) as (launcher, read):
        agent = launcher.heard()
        agent.start("flood", "yes", "x" * 100)
        until(lambda: agent.list()["flood"]["log"]["droppedLines"])
        lines: list[bytes] = []
        reader = threading.Thread(target=_collect, args=(read, lines, b"[calm] 20"))
        reader.start()
        agent.shell("calm", "for n in $(seq 20); do echo $n; sleep 0.01; done")
        reader.join(20)
        assert not reader.is_alive()


def _collect(fd: int, lines: list[bytes], last: bytes) -> None:
    with os.fdopen(os.dup(fd), "rb") as pipe:
        for line in pipe:
            lines.append(line)
            if line.startswith(last):
                return


def test_a_socket_that_nobody_reads_holds_up_no_engine(launchers: Launchers) -> None:
    """As under systemd, whose journal reads a socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        launcher = launchers(output=theirs)
        agent = launcher.heard()
        agent.shell("chat", "seq 1 1000000; echo ready >&2; exec sleep 1000")
        launcher.printed("ready", error=True)
        until(lambda: agent.list()["chat"]["log"]["lines"] == 1_000_001)
        read = ours.recv(1 << 20)
        while not read.endswith(b"[chat] 1000000\n"):
            read = read[-100:] + ours.recv(1 << 20)


def test_lines_stay_whole_when_both_streams_go_to_one_pipe(launchers: Launchers) -> None:
    read, write = os.pipe()
    launcher = launchers(output=write, before=["sh", "-c", 'exec "$@" 2>&1', "sh"])
    os.close(write)
    agent = launcher.heard()
    script = "seq -f 'out %.0f' 1 50000 & seq -f 'err %.0f' 1 50000 >&2 & wait; echo end; echo end >&2"
    agent.shell("chat", script)
    with os.fdopen(read, "rb") as pipe:
        lines: list[bytes] = []
        ends = 0
        while ends < 2:
            lines.append(pipe.readline())
            ends += lines[-1] == b"[chat] end\n"
        launcher.close()
        lines += pipe
    assert [line for line in lines if not re.fullmatch(rb"\[(chat|launcher)\] .*\n", line)] == []
    for stream in (b"out", b"err"):
        numbers = [int(line.split()[-1]) for line in lines if line.startswith(b"[chat] " + stream)]
        assert numbers == list(range(1, 50_001))


def test_a_reader_that_is_gone_stops_no_engine(launchers: Launchers) -> None:
    with unread_pipe(launchers) as (launcher, _read):
        agent = launcher.heard()
    engine = agent.shell("chat", "echo one; echo two; echo three >&2; echo ready >&2; exec sleep 1000")
    launcher.printed("ready", error=True)
    assert living(engine["pid"])
    until(lambda: agent.list()["chat"]["log"]["droppedLines"] == 2)


def test_a_full_disk_stops_no_engine(launchers: Launchers) -> None:
    with Path("/dev/full").open("wb") as full:
        launcher = launchers(output=full)
    agent = launcher.heard()
    engine = agent.shell("chat", "echo one; echo two; echo ready >&2; exec sleep 1000")
    launcher.printed("ready", error=True)
    until(lambda: agent.list()["chat"]["log"]["droppedLines"] == 2)
    assert living(engine["pid"])


def test_the_last_of_each_stream_is_told_with_its_end(agent: Agent) -> None:
    agent.shell("chat", "seq 1 5000; echo 'what went wrong' >&2; seq 1 500000; printf 'the end'")
    report = agent.event("exit")
    assert report["errTail"] == "what went wrong\n"
    assert report["outTail"].endswith("\n500000\nthe end\n")
    assert len(report["outTail"]) == 4096


def test_what_was_written_last_is_told_even_if_the_launcher_had_no_time_to_read_it(
    agent: Agent, launcher: Launcher
) -> None:
    engine = agent.shell("chat", "echo ready; kill -STOP $$; seq 1 100000; printf 'the end'")
    launcher.printed("ready")
    until(lambda: (stat := process_stat(engine["pid"])) is not None and stat.state == "T")
    os.kill(launcher.pid, signal.SIGSTOP)
    os.kill(engine["pid"], signal.SIGCONT)
    until(lambda: not there(engine["pid"]))
    os.kill(launcher.pid, signal.SIGCONT)
    assert agent.event("exit")["outTail"].endswith("\n100000\nthe end\n")


def test_output_of_an_engine_that_has_ended_is_complete(agent: Agent, launcher: Launcher) -> None:
    begun = time.monotonic()
    agent.shell("chat", "seq 1 200000")
    agent.event("gone")
    launcher.printed("[chat] 200000\n")
    assert restored(launcher.out.read_bytes()) == "\n".join(map(str, range(1, 200_001))).encode()
    assert time.monotonic() - begun < 20
