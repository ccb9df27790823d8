"""The launcher: the process in an engine's container that stays, whatever becomes of the engines and of the agent.

    python3 launcher.py --socket PATH [options]                     engines on the agent's word
    python3 launcher.py --socket PATH [options] -- COMMAND ARGUMENT…  the same, with what its engine's container runs
    python3 launcher.py -- COMMAND ARGUMENT…                        one engine, and no agent

It is mounted into images that we don't make, so it needs nothing but Linux and Python's standard library, 3.9 or newer, and
it imports nothing of Emberpool. docs/launcher.md describes what it promises and the messages on its socket.

Each engine has a *keeper* between itself and the launcher: a fork of this process that is the engine's parent and the reaper
of whatever the engine starts. Orphans fall to the keeper of their own engine, so an engine's end is the end of its whole
tree, wherever in it processes have moved to; and the keeper notices the launcher's death, however sudden. Each of these
processes has one thread: the kernel's parent-death signal is tied to the thread that forked.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import heapq
import hmac
import json
import os
import re
import secrets
import selectors
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

PROTOCOL = 1
"""Version of the messages. Fields may be added within a version; whoever reads ignores those that it doesn't know."""
MESSAGE_BYTES = 1_048_576
"""Longest message, with its newline. A longer one ends the connection."""
HELLO_BYTES = 8_192
"""Longest first message: until an agent has introduced itself, little is read of it."""
SECRET_VARIABLE = "EMBERPOOL_LAUNCHER_SECRET"  # noqa: S105 (a variable's name)
"""Environment variable that holds what an agent must know to be heard. Engines don't get it."""
ENDED, UNSAID, UNFIT, STUBBORN, BROKEN = 0, 3, 2, 4, 70
"""Exit statuses: ended as told; the agent never said that it had drained; wrong use; an engine had to be killed; nobody can tell
how the engine that ran alone has ended. Else that engine's status is the launcher's."""

STAND_IN = "zygote stand-in"
"""What a process is called (proc(5), `comm`) that was started and stands for a fork of a zygote, which is not its child."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PIDFD = re.compile(r"^Pid:\t([1-9][0-9]*)$", re.MULTILINE)  # of one that has ended it says -1
_MOST_ENGINES = 64
_MOST_CONNECTIONS = 16
_MOST_REPORTS = 200
_MOST_TOKENS = 1_000  # of engines that have ended, so that a start that is repeated late starts nothing
_HELLO_SECONDS = 5.0
_UNSENT_BYTES = 8 * 2**20  # a connection whose end doesn't read
_STUCK_SECONDS = 5.0  # after SIGKILL; what is left by then sleeps in the kernel
_KEEPER_SECONDS = 2.0  # beyond that, a keeper that hasn't told its engine's end doesn't work
_SWEEP_SECONDS = 0.02
_OOM_LOOK_SECONDS = 5.0
_OOM_REMEMBERED_SECONDS = 60.0
_FLUSH_SECONDS = 2.0
_FAULT_SECONDS = 0.1  # one that comes back at once must not take all of a core
_LINE_BYTES = 2**20
_QUEUE_BYTES = 4 * 2**20
_READ_BYTES = 65_536
_PIPE_BYTES = 2**20  # the most that /proc/sys/fs/pipe-max-size lets unprivileged processes have
_PARTIAL_SECONDS = 1.0
_TAIL_BYTES = 4_096
_MOST_MARKS = 32
_MARK_CHARACTERS = 128
_MOST_KEPT = 256  # lines of one stream
_KEPT_BYTES = 1_024  # of one line
_SURELY_WRITABLE_BYTES = 4_096  # PIPE_BUF: what a pipe that polls writable takes without blocking
_AHEAD_MILLISECONDS = 1_000
_MOST_SECONDS = 86_400
_FIRST_OWN_FD = 3
_NICENESS = range(-20, 20)

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
_F_SETPIPE_SZ = 1031  # linux/fcntl.h; Python names it from 3.10 on
_PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_ENDING = (signal.SIGTERM, signal.SIGINT)
_LIBC = ctypes.CDLL(None, use_errno=True)

Message = Mapping[str, Any]


class LauncherError(Exception):
    """The launcher can't run as it was told; the message says why.

    Attributes:
        status: the exit status for it.
    """

    status = UNFIT


class NotStarted(LauncherError):
    """The engine that was to run alone can't be started. The status is the one that shells have for this."""

    status = 127


class _Refused(Exception):
    """A message can't be obeyed.

    Attributes:
        code: why, as the protocol names it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


# ---------------------------------------------------------------------- what an engine is


@dataclass(frozen=True)
class Spec:
    """How an engine is started.

    Attributes:
        command: program and arguments.
        environment: variables set beside the launcher's own; None takes one away.
        working_directory: where it runs; empty for the launcher's own.
        niceness: its scheduling priority, −20 to 19; None for the launcher's own.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    working_directory: str = ""
    niceness: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Render it as the fields of a `start` message."""
        return {
            "command": list(self.command),
            "environment": dict(self.environment),
            "workingDirectory": self.working_directory,
            "niceness": self.niceness,
        }

    def digest(self) -> str:
        """Return the hash by which two starts are told to be of the same thing."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _read_spec(message: Message) -> Spec:
    command = message.get("command")
    if not isinstance(command, list) or not command or not all(_is_text(word) for word in command):
        raise _Refused("BadMessage", "command: a list of at least one text without NUL")
    environment = message.get("environment") or {}
    if not isinstance(environment, dict) or not all(
        name and "=" not in name and _is_text(name) and (value is None or _is_text(value))
        for name, value in environment.items()
    ):
        raise _Refused("BadMessage", "environment: names without '=' with texts or nulls")
    niceness = message.get("niceness")
    if niceness is not None and (not _is_integer(niceness) or niceness not in _NICENESS):
        raise _Refused("BadMessage", "niceness: an integer from -20 to 19, or null")
    return Spec(
        command=tuple(command),
        environment=environment,
        working_directory=_text(message, "workingDirectory", most=4_096, default=""),
        niceness=niceness,
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(message: Message, key: str, *, most: int, default: str | None = None) -> str:
    value = message.get(key)
    if value is None and default is not None:
        return default
    if not _is_text(value) or len(cast("str", value)) > most or (default is None and not value):
        raise _Refused("BadMessage", f"{key}: a text of at most {most} characters, without NUL")
    return cast("str", value)


def _integer(message: Message, key: str) -> int:
    value = message.get(key)
    if not _is_integer(value):
        raise _Refused("BadMessage", f"{key}: an integer")
    return cast("int", value)


def _seconds(message: Message, key: str, default: float) -> float:
    value = message.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST_SECONDS:
        raise _Refused("BadMessage", f"{key}: seconds, from 0 to {_MOST_SECONDS}")
    return float(value)


def _note(message: Message) -> dict[str, Any]:
    note = message.get("note")
    if note is None:
        return {}
    if not isinstance(note, dict) or len(json.dumps(note)) > HELLO_BYTES:
        raise _Refused("BadMessage", f"note: an object of at most {HELLO_BYTES} bytes")
    return note


def _marks(message: Message) -> Sequence[bytes]:
    marks = message.get("keep") or []
    if (
        not isinstance(marks, list)
        or len(marks) > _MOST_MARKS
        or not all(_is_text(mark) and 0 < len(mark) <= _MARK_CHARACTERS for mark in marks)
    ):
        raise _Refused(
            "BadMessage", f"keep: at most {_MOST_MARKS} texts of at most {_MARK_CHARACTERS} characters"
        )
    return [mark.encode() for mark in marks]


# ---------------------------------------------------------------------- the system


class ProcessStat(NamedTuple):
    """What `/proc/PID/stat` tells of a process.

    Attributes:
        pid: its id.
        state: R, S, D, Z, …
        parent: its parent's id.
        group: its process group.
        session: its session.
        start_time: when it started, in clock ticks since boot: with the id, its identity.
    """

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_time: int


def process_stat(pid: int) -> ProcessStat | None:
    """Read what the kernel tells of a process; None if there is none of that id."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    words = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return ProcessStat(pid, words[0].decode(), int(words[1]), int(words[2]), int(words[3]), int(words[19]))


def _all_processes() -> Iterator[ProcessStat]:
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            found = process_stat(int(directory.name))
            if found is not None:
                yield found


def _stood_for(pid: int) -> list[ProcessStat]:
    """Return the living forks of a zygote that a process stands for: it is called so, and holds a pidfd of each."""
    directory = Path(f"/proc/{pid}")
    try:
        if (directory / "comm").read_text(errors="replace") != f"{STAND_IN}\n":
            return []
        held = [each.read_text() for each in (directory / "fdinfo").iterdir()]
    except OSError:  # it has just ended, or is another user's
        return []
    forks = [process_stat(int(fork)) for text in held for fork in _PIDFD.findall(text)]
    return [fork for fork in forks if fork is not None and fork.state != "Z"]


def _below(roots: Iterable[int]) -> Iterator[ProcessStat]:
    """Yield the processes below some, parents first, each once; a fork that one of them stands for is below that one."""
    children: dict[int, list[ProcessStat]] = {}
    for each in _all_processes():
        children.setdefault(each.parent, []).append(each)
    seen = set(roots)  # a process may stand for itself, or for one above it
    below = deque(child for root in seen for child in children.get(root, ()))
    while below:
        each = below.popleft()
        if each.pid not in seen:
            seen.add(each.pid)
            below.extend(children.get(each.pid, ()))
            below.extend(_stood_for(each.pid))
            yield each


def _descendants(root: int) -> list[ProcessStat]:
    """Return the living processes below `root`, parents first."""
    return [each for each in _below([root]) if each.state != "Z"]


def _descends_from(pid: int, ancestors: Iterable[int]) -> bool:
    """Whether a process is one of some, or below one: by its parents, or else by the stand-in of a fork."""
    wanted = set(ancestors)
    seen = process_stat(pid)
    while seen is not None and seen.pid not in wanted and seen.parent > 0:
        seen = process_stat(seen.parent)
    if seen is not None and seen.pid in wanted:
        return True
    return bool(wanted) and any(each.pid == pid for each in _below(wanted))


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _prctl(option: int, value: int | bytes) -> None:
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    if _LIBC.prctl(option, argument, zero, zero, zero):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def memory_control_files(cgroups: str, mounts: str) -> list[tuple[Path, str]]:
    """Return where the kernel counts this process's cgroup's OOM kills, the most telling place first.

    Args:
        cgroups: text of `/proc/self/cgroup`.
        mounts: text of `/proc/self/mountinfo`.

    Returns:
        Files that may exist, each with what its lines begin with.
    """
    own: dict[str, str] = {}  # the own cgroup's path by controller; the unified hierarchy has none
    for line in cgroups.splitlines():
        _number, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found = []
    for line in mounts.splitlines():
        before, _dash, after = line.partition(" - ")
        (root, point), (kind, _source, options) = before.split()[3:5], after.split()[:3]
        unified = kind == "cgroup2"
        controller = "" if unified else "memory"
        if controller not in own or not (unified or (kind == "cgroup" and "memory" in options.split(","))):
            continue
        path = own[controller]
        below = path if root == "/" else path[len(root) :] if f"{path}/".startswith(f"{root}/") else ""
        directory = Path(point) / below.lstrip("/")
        found.append((directory / ("memory.events" if unified else "memory.oom_control"), "oom_kill "))
    return found


class _OomKills:
    """Counts the kills of this container's OOM killer, as far as its cgroup tells them.

    The kernel raises the counter before it kills, so whoever is reaped has been counted.
    """

    def __init__(self) -> None:
        try:
            cgroups = Path("/proc/self/cgroup").read_text(encoding="utf-8")
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
            places = memory_control_files(cgroups, mounts)
        except (OSError, ValueError):
            places = []
        self._places = [(path, start) for path, start in places if _counter(path, start) is not None]
        self._total = self._read()
        self._unexplained: deque[tuple[float, int]] = deque()

    @property
    def visible(self) -> bool:
        return self._total is not None

    def look(self) -> None:
        """Note what has been killed since the last look."""
        total = self._read()
        if total is not None and self._total is not None and total > self._total:
            self._unexplained.append((time.monotonic(), total - self._total))
        self._total = total
        while self._unexplained and self._unexplained[0][0] < time.monotonic() - _OOM_REMEMBERED_SECONDS:
            self._unexplained.popleft()

    def recent(self) -> int | None:
        """Return how many kills of late no engine's end has been put down to; None if they can't be seen."""
        return sum(count for _at, count in self._unexplained) if self.visible else None

    def explain_one(self) -> None:
        """Put one kill down to an engine's end."""
        at, count = self._unexplained.popleft()
        if count > 1:
            self._unexplained.appendleft((at, count - 1))

    def _read(self) -> int | None:
        for path, start in self._places:
            count = _counter(path, start)
            if count is not None:
                return count
        return None


def _counter(path: Path, start: str) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next((int(line[len(start) :]) for line in lines if line.startswith(start)), None)
    except (OSError, ValueError):
        return None


# ---------------------------------------------------------------------- the loop


class _Timer:
    """Something that is to be done later, unless it is cancelled."""

    def __init__(self, at: float, do: Callable[[], None]) -> None:
        self.at = at
        self.do: Callable[[], None] | None = do

    def cancel(self) -> None:
        self.do = None

    def __lt__(self, other: _Timer) -> bool:
        return self.at < other.at


class _Loop:
    """File descriptors and deadlines of one process with one thread."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # takes regular files, too
        self._timers: list[_Timer] = []

    def watch(self, fd: int, events: int, ready: Callable[[int], None]) -> None:
        """Call `ready` with the events when some of them occur; from now on these, whatever was watched before."""
        if fd in self._selector.get_map():
            if events:
                self._selector.modify(fd, events, ready)
            else:
                self._selector.unregister(fd)
        elif events:
            self._selector.register(fd, events, ready)

    def after(self, seconds: float, do: Callable[[], None]) -> _Timer:
        timer = _Timer(time.monotonic() + seconds, do)
        heapq.heappush(self._timers, timer)
        return timer

    def turn(self) -> None:
        """Wait for the next thing to do, and do it."""
        timeout = max(0.0, self._timers[0].at - time.monotonic()) if self._timers else None
        for key, events in self._selector.select(timeout):
            now = self._selector.get_map().get(key.fd)
            if now is not None and now.data == key.data:  # what was done in this turn may have closed it
                key.data(events)
        while self._timers and self._timers[0].at <= time.monotonic():
            due = heapq.heappop(self._timers)
            if due.do is not None:
                due.do()


class _Signals:
    """Signals as bytes to read: nothing is done inside a handler."""

    def __init__(self, loop: _Loop, numbers: Iterable[int], told: Callable[[int], None]) -> None:
        self._told = told
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in {*numbers, signal.SIGCHLD}:
            # A supervisor that has a signal ignored (nohup, a shell's background job) goes on having it ignored.
            if signal.getsignal(number) is not signal.SIG_IGN or number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, lambda *_: None)
        loop.watch(self._read, selectors.EVENT_READ, self._ready)

    def _ready(self, _events: int) -> None:
        for number in os.read(self._read, 4_096):
            self._told(number)


class _Lines:
    """Messages over a stream socket: JSON objects, one a line.

    Args:
        loop: who tells when there is something.
        connection: the socket.
        heard: what to do with a message.
        ended: what to do, once, when the connection has ended; its argument says why.
    """

    def __init__(
        self,
        loop: _Loop,
        connection: socket.socket,
        heard: Callable[[Message], None],
        ended: Callable[[str], None],
    ) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._connection = connection
        self._fd = connection.fileno()
        self._heard = heard
        self._ended = ended
        self._unread = bytearray()
        self._unsent = bytearray()
        self.most_bytes = MESSAGE_BYTES
        self.open = True
        loop.watch(self._fd, selectors.EVENT_READ, self._ready)

    def send(self, message: Message) -> None:
        """Send a message as soon as the other end takes it. One that reads too slowly is disconnected."""
        if not self.open:
            return
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._flush()
        if len(self._unsent) > _UNSENT_BYTES:
            self.close("the other end reads too slowly")

    def close(self, reason: str) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.watch(self._fd, 0, self._ready)
        self._connection.close()
        self._ended(reason)

    def read_rest(self) -> None:
        """Take what the other end, which is gone, sent last."""
        while self.open and self._read():
            pass

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if self.open and events & selectors.EVENT_READ:
            self._read()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(error.strerror or "the connection broke")
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._loop.watch(self._fd, wanted, self._ready)

    def _read(self) -> bool:
        """Read once; tell whether something came."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self.close(error.strerror or "the connection broke")
            return False
        if not data:
            self.close("the other end closed it")
            return False
        self._unread += data
        while self.open and (end := self._unread.find(b"\n") + 1):
            if end > self.most_bytes:
                break
            line = bytes(self._unread[:end])
            del self._unread[:end]
            self._take(line)
        if self.open and len(self._unread) > self.most_bytes:
            self._break_off("TooLong", f"a message has at most {self.most_bytes} bytes")
        return True

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._break_off("BadMessage", "a line is no JSON object")
            return
        self._heard(message)

    def _break_off(self, code: str, message: str) -> None:
        """End the connection: after this, nobody can tell where the next message begins."""
        self.send({"kind": "error", "code": code, "message": message})
        self.close(message)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# ---------------------------------------------------------------------- output


class _Queue:
    """Lines of one stream that wait for the outlet, the oldest first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._chunks: deque[bytes] = deque()
        self._bytes = 0
        self._unsaid_lines = 0
        self._unsaid_bytes = 0
        self.dropped_lines = 0
        self.dropped_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def put(self, lines: bytes) -> None:
        """Queue whole lines. When there are too many, the oldest are dropped: the newest tell what happened."""
        self._chunks.append(lines)
        self._bytes += len(lines)
        while self._bytes > _QUEUE_BYTES and len(self._chunks) > 1:
            self.drop(self._pop())

    def take(self) -> tuple[bytes, bool]:
        """Return the next whole lines; before them, if some are missing there, a line that says so (and False)."""
        if not self._unsaid_lines:
            return self._pop(), True
        lost = f"{self._unsaid_lines} lines ({self._unsaid_bytes} bytes) dropped: the log is read too slowly"
        self._unsaid_lines = self._unsaid_bytes = 0
        return f"[{self._name}] {lost}\n".encode(), False

    def give_up(self) -> None:
        """Drop all that waits."""
        while self._chunks:
            self.drop(self._pop())

    def drop(self, lines: bytes) -> None:
        """Count lines that nobody will read."""
        count = lines.count(b"\n")
        self._unsaid_lines += count
        self._unsaid_bytes += len(lines)
        self.dropped_lines += count
        self.dropped_bytes += len(lines)

    def _pop(self) -> bytes:
        lines = self._chunks.popleft()
        self._bytes -= len(lines)
        return lines


class _Outlet:
    """Standard output or error, shared by all engines in turn and never waited for."""

    def __init__(self, loop: _Loop, fd: int) -> None:
        self._loop = loop
        self._fd, self._most = _never_blocking(fd)
        self._waiting: deque[_Queue] = deque()
        self._current = b""  # being written
        self._owner: _Queue | None = None  # whose lines these are
        self._broken = False

    @property
    def idle(self) -> bool:
        return not self._current and not self._waiting

    def put(self, queue: _Queue, lines: bytes) -> None:
        """Queue whole lines of a stream."""
        if self._broken:
            queue.drop(lines)
            return
        queue.put(lines)
        if queue not in self._waiting:
            self._waiting.append(queue)
        self._loop.watch(self._fd, selectors.EVENT_WRITE, self._ready)

    def _ready(self, _events: int) -> None:
        if not self._current:
            queue = self._waiting.popleft()
            self._current, counted = queue.take()
            self._owner = queue if counted else None
            if queue:
                self._waiting.append(queue)  # behind the others
        try:
            self._current = self._current[os.write(self._fd, self._current[: self._most]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # nobody will ever read: engines go on all the same
            self._broken = True
            self._drop()
            while self._waiting:
                self._waiting.popleft().give_up()
        except OSError:  # a full disk, say: there may be room for what comes next
            self._drop()
        if self.idle:
            self._loop.watch(self._fd, 0, self._ready)

    def _drop(self) -> None:
        if self._owner is not None:
            self._owner.drop(self._current)
        self._current = b""


def _never_blocking(fd: int) -> tuple[int, int]:
    """Return a descriptor for the same file, and how much may be written at once when it polls writable.

    Making `fd` itself non-blocking would do so for every process that shares it. Pipes and terminals can be opened anew; for
    what can't, little at a time is written.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd, _QUEUE_BYTES
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{fd}", flags), _QUEUE_BYTES
    return fd, _SURELY_WRITABLE_BYTES


class _Stream:
    """Standard output or error of one engine, on its way to the launcher's own, line by line.

    The engine's pipe is always read, as fast as it comes. A line that has no end yet is forwarded when it has waited for a
    second or is too long; its rest goes on behind another prefix.
    """

    def __init__(self, loop: _Loop, name: str, outlet: _Outlet, marks: Sequence[bytes] = ()) -> None:
        self._loop = loop
        self._marks = marks
        self.kept: list[bytes] = []  # the first lines with a mark in them
        self._first, self._further = f"[{name}] ".encode(), f"[{name}]+ ".encode()
        self._outlet = outlet
        self._tail = b""
        self._queue = _Queue(name)
        self._partial = bytearray()
        self._partial_since = 0.0
        self._cut = False  # the line that is being read has begun in an earlier piece
        self._timer: _Timer | None = None
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read, False)
        self._open = True
        with contextlib.suppress(OSError):  # more room keeps an engine going while we are busy
            fcntl.fcntl(self.write_end, _F_SETPIPE_SZ, _PIPE_BYTES)
        self.lines = self.bytes = self.cuts = 0
        loop.watch(self._read, selectors.EVENT_READ, self._ready)

    @property
    def tail(self) -> str:
        """The last of what was written, whatever became of the lines in front."""
        return self._tail.decode(errors="replace")

    @property
    def dropped(self) -> tuple[int, int]:
        """Lines and bytes that nobody will read."""
        return self._queue.dropped_lines, self._queue.dropped_bytes

    def drain(self) -> None:
        """Forward what is there already, without waiting for a line's end."""
        for _ in range(2 * _PIPE_BYTES // _READ_BYTES):
            if not self._open or not self._take():
                break
        self._flush()

    def close(self) -> None:
        """Forward what is left, and read no more."""
        self.drain()
        self._end()

    def _ready(self, _events: int) -> None:
        self._take()

    def _take(self) -> bool:
        """Read once; tell whether something came."""
        try:
            data = os.read(self._read, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._flush()
            self._end()
            return False
        self._feed(data)
        return True

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.watch(self._read, 0, self._ready)
            os.close(self._read)

    def _feed(self, data: bytes) -> None:
        self.bytes += len(data)
        if self._cut and not self._partial and data.startswith(b"\n"):  # all of that line has been forwarded
            self._cut = False
            data = data[1:]
        end = data.rfind(b"\n") + 1
        if end:
            self._emit(bytes(self._partial) + data[: end - 1])
            self._cut = False
            self._partial.clear()
        if end < len(data):
            self._hold(data[end:])

    def _hold(self, data: bytes) -> None:
        if not self._partial:
            self._partial_since = time.monotonic()
        self._partial += data
        if len(self._partial) > _LINE_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.after(_PARTIAL_SECONDS, self._waited)

    def _waited(self) -> None:
        self._timer = None
        if not self._partial:
            return
        left = self._partial_since + _PARTIAL_SECONDS - time.monotonic()
        if left <= 0:
            self._flush()
        else:
            self._timer = self._loop.after(left, self._waited)

    def _flush(self) -> None:
        """Forward a line's beginning as a line of its own."""
        if self._partial:
            self._emit(bytes(self._partial))
            self._partial.clear()
            self._cut = True
            self.cuts += 1

    def _emit(self, text: bytes) -> None:
        """Forward lines, given without the last one's end."""
        start = self._further if self._cut else self._first
        self.lines += text.count(b"\n") + 1
        self._tail = (self._tail + text[-_TAIL_BYTES:] + b"\n")[-_TAIL_BYTES:]
        if any(mark in text for mark in self._marks):
            self._keep(text)
        self._outlet.put(self._queue, start + text.replace(b"\n", b"\n" + self._first) + b"\n")

    def _keep(self, text: bytes) -> None:
        """Keep the lines that the agent wants to read later. The first ones count: they are of the engine's start."""
        room = _MOST_KEPT - len(self.kept)
        told = [line for line in text.split(b"\n") if any(mark in line for mark in self._marks)]
        self.kept += [line[:_KEPT_BYTES] for line in told[:room]]
        if len(self.kept) == _MOST_KEPT:
            self._marks = ()


# ---------------------------------------------------------------------- the keeper


@dataclass(frozen=True)
class _Charge:
    """What a keeper is to keep.

    Attributes:
        name: the engine's name.
        spec: how it is started.
        environment: its whole environment.
        stdio: its standard input, output and error.
    """

    name: str
    spec: Spec
    environment: Mapping[str, str]
    stdio: tuple[int, int, int]


class _Keeper:
    """Parent of one engine and reaper of its whole tree: a process of its own.

    It ends the tree when the engine has ended, when the launcher says so, and when the launcher is gone.
    """

    def __init__(self, connection: socket.socket, charge: _Charge) -> None:
        self._charge = charge
        self._loop = _Loop()
        self._signals = _Signals(self._loop, (*_ENDING, *_PASSED_ON), self._signalled)
        self._launcher = _Lines(self._loop, connection, self._heard, self._orphaned)
        self._engine = 0
        self._reaped = False  # once it is, its id may be someone else's
        self._ending = False
        self._kill_since: float | None = None
        # By id and start: no children of this process, but they hold what the engine has.
        self._killed_forks: set[tuple[int, int]] = set()
        self._told_stuck = False

    def run(self) -> None:
        """Start the engine, and return when nothing of it is left."""
        charge = self._charge
        os.setsid()  # a terminal's signals are the launcher's business
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_NAME, f"keep {charge.name}".encode()[:15])
        try:
            self._engine = self._start()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._launcher.send({"kind": "failed", "message": _why_not_started(error, charge.spec)})
            return
        born = process_stat(self._engine)
        start_time = 0 if born is None else born.start_time
        self._launcher.send({"kind": "started", "pid": self._engine, "startTime": start_time})
        for fd in {*charge.stdio} - {0, 1, 2}:
            os.close(fd)
        self._reap()
        while not self._reaped or self._has_children() or self._forks_live():
            self._loop.turn()
        self._launcher.send({"kind": "gone", "left": []})

    def _start(self) -> int:
        charge, keeper = self._charge, os.getpid()
        if charge.spec.niceness is not None:
            os.setpriority(os.PRIO_PROCESS, 0, charge.spec.niceness)
        stdin, stdout, stderr = charge.stdio

        def die_with_the_keeper() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:  # it died before the kernel was told
                os._exit(1)

        process = subprocess.Popen(
            charge.spec.command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=dict(charge.environment),
            cwd=charge.spec.working_directory or None,
            start_new_session=True,
            preexec_fn=die_with_the_keeper,  # noqa: PLW1509 (this process has one thread)
        )
        process.returncode = 0  # it is reaped here, with all others
        return process.pid

    def _heard(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "signal" and not self._reaped:
            _kill(self._engine, message["number"])
        elif kind == "end":
            self._end(message["number"])
        elif kind == "kill":
            self._kill_tree()

    def _orphaned(self, _reason: str) -> None:
        self._kill_tree()

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()

    def _end(self, number: int = signal.SIGTERM) -> None:
        """Ask the engine to end, as it would be asked without a launcher: it ends its workers in its own order."""
        self._ending = True
        if not self._reaped:
            _kill(self._engine, number)
        else:
            for each in _descendants(os.getpid()):
                _kill(each.pid, signal.SIGTERM)

    def _kill_tree(self) -> None:
        if self._kill_since is None:
            self._kill_since = time.monotonic()
            self._sweep()

    def _sweep(self) -> None:
        """Kill all that is there, again and again: what is killed may have been about to start something."""
        left = _descendants(os.getpid())
        self._killed_forks |= {(fork.pid, fork.start_time) for each in left for fork in _stood_for(each.pid)}
        for each in left:
            _kill(each.pid, signal.SIGKILL)
        since = self._kill_since
        if left and not self._told_stuck and since is not None and time.monotonic() - since > _STUCK_SECONDS:
            self._told_stuck = True
            self._launcher.send({"kind": "stuck", "left": [each.pid for each in left]})
        self._loop.after(_SWEEP_SECONDS if not self._told_stuck else 1.0, self._sweep)

    def _reap(self) -> None:
        for pid, status in _reaped():
            if pid != self._engine:
                continue
            self._reaped = True
            self._launcher.send({"kind": "exit", "status": status})
            if not self._ending:
                self._kill_tree()
            elif self._kill_since is None:
                self._end()  # what it leaves behind is asked, too, and has what is left of the grace

    def _forks_live(self) -> bool:
        """Whether a fork that was killed, after its stand-in perhaps, still holds what it had."""
        now = [process_stat(pid) for pid, _start in self._killed_forks]
        living = {(seen.pid, seen.start_time) for seen in now if seen is not None and seen.state != "Z"}
        self._killed_forks &= living
        return bool(self._killed_forks)

    def _has_children(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


def _reaped() -> Iterator[tuple[int, int]]:
    """Reap children that have ended; yield each one's id and wait status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _why_not_started(error: Exception, spec: Spec) -> str:
    if not isinstance(error, OSError):
        return f"command: {spec.command[0]} can't be started: {error}"
    reason = error.strerror or str(error)
    if spec.working_directory and error.filename == spec.working_directory:
        return f"workingDirectory: {spec.working_directory} can't be entered: {reason}"
    if spec.niceness is not None and error.filename is None and isinstance(error, PermissionError):
        return f"niceness: {spec.niceness} can't be had: {reason}"
    return f"command: {spec.command[0]} can't be started: {reason}"


def _fork_keeper(charge: _Charge) -> tuple[int, socket.socket]:
    """Start a keeper; return its process id and this process's end of the connection to it.

    Raises:
        OSError: there can be no more processes or files.
    """
    ours, theirs = socket.socketpair()
    everything = set(signal.Signals)
    # A signal that reached the new process before it has a pipe of its own would be told to this one a second time.
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, everything)}
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _be_keeper(theirs, charge, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return pid, ours


def _be_keeper(connection: socket.socket, charge: _Charge, mask: set[int]) -> NoReturn:
    # Objects of the launcher stay alive on this stack, so that none of them closes a number that is reused here.
    status = BROKEN
    try:
        kept = {0, 1, 2, connection.fileno(), *charge.stdio}
        for fd in [int(link.name) for link in Path("/proc/self/fd").iterdir()]:
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)
        keeper = _Keeper(connection, charge)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        keeper.run()
        status = 0
    except BaseException:  # noqa: BLE001 (nothing above this may run in the fork)
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)


# ---------------------------------------------------------------------- engines, as the launcher sees them


class _Engine:
    """One engine that runs or is being ended.

    Attributes:
        name: what the agent calls it.
        token: which start it is, by the agent's choice.
        spec: how it was started.
        note: what the agent wants to be told again after its own restart.
        marks: lines of its output that contain one of these are kept for the agent.
        keeper: its keeper's process id.
        pid: its own; 0 until it is known to run.
        start_time: when it started, in clock ticks since boot.
        started_at: when it started, in Unix time.
        lines: the connection to its keeper.
        awaited: what to call when it runs, or can't be started.
        asked: somebody asked it to end.
        forced: it had to be killed.
        exited: its own process has ended.
        grace: when it will be killed.
        watchdog: when its keeper will have been silent for too long.
    """

    def __init__(self, name: str, token: str, spec: Spec, note: Mapping[str, Any]) -> None:
        self.name = name
        self.token = token
        self.spec = spec
        self.digest = spec.digest()
        self.note = note
        self.marks: Sequence[bytes] = ()
        self.keeper = self.pid = self.start_time = 0
        self.started_at = self.started_monotonic = 0.0
        self.lines: _Lines | None = None
        self.awaited: list[Callable[[str], None]] = []
        self.asked = self.forced = self.exited = False
        self.grace: _Timer | None = None
        self.watchdog: _Timer | None = None
        self.streams: list[_Stream] = []

    def identity(self) -> dict[str, Any]:
        return {
            "engine": self.name,
            "token": self.token,
            "pid": self.pid,
            "startTime": self.start_time,
            "spec": self.digest,
        }

    def to_json(self) -> dict[str, Any]:
        dropped = [stream.dropped for stream in self.streams]
        return {
            **self.identity(),
            "state": "Starting" if not self.pid else "Ending" if self.exited or self.asked else "Running",
            "startedAt": self.started_at,
            "note": dict(self.note),
            "log": {
                "lines": sum(stream.lines for stream in self.streams),
                "bytes": sum(stream.bytes for stream in self.streams),
                "cuts": sum(stream.cuts for stream in self.streams),
                "droppedLines": sum(lines for lines, _ in dropped),
                "droppedBytes": sum(size for _, size in dropped),
            },
        }


class _Reports:
    """Ends of engines that the agent hasn't acknowledged: kept while there is none, told again to the next."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque()
        self._sequence = 0
        self.lost = 0
        self.hear: Callable[[Message], None] = lambda _report: None

    def add(self, report: dict[str, Any]) -> None:
        self._sequence += 1
        report["sequence"] = self._sequence
        self._kept.append(report)
        if len(self._kept) > _MOST_REPORTS:
            self._kept.popleft()
            self.lost += 1
        self.hear(report)

    def replay(self) -> Sequence[Message]:
        return tuple(self._kept)

    def acknowledge(self, sequence: int) -> None:
        while self._kept and self._kept[0]["sequence"] <= sequence:
            self._kept.popleft()


class _Engines:
    """All engines: started, signalled, ended, and told of.

    Args:
        loop: who tells when there is something.
        outlets: where engines' output and errors go; None lets an engine have the launcher's own.
    """

    def __init__(self, loop: _Loop, outlets: tuple[_Outlet, _Outlet] | None) -> None:
        self._loop = loop
        self._outlets = outlets
        self._running: dict[str, _Engine] = {}
        self._keepers: dict[int, _Engine] = {}
        self._ended_tokens: deque[str] = deque(maxlen=_MOST_TOKENS)
        self._oom = _OomKills()
        self.reports = _Reports()
        self.any_forced = False
        self.last_status = 0
        self.changed: Callable[[], None] = lambda: None
        if self._oom.visible and outlets is not None:
            self._look_for_oom()

    def __bool__(self) -> bool:
        return bool(self._running)

    def __iter__(self) -> Iterator[_Engine]:
        return iter(tuple(self._running.values()))

    @property
    def keepers(self) -> Sequence[int]:
        return tuple(self._keepers)

    def find(self, name: str, token: str) -> _Engine:
        """Return the engine of a start.

        Raises:
            _Refused: it has ended, or there never was one.
        """
        engine = self._running.get(name)
        if engine is not None and engine.token == token:
            return engine
        if token in self._ended_tokens:
            raise _Refused("Ended", f"{name}: the engine of this token has ended")
        raise _Refused("Unknown", f"{name}: no engine of this token")

    def start(self, engine: _Engine, awaited: Callable[[str], None]) -> None:
        """Start an engine, or join the same start; `awaited` is told what went wrong, or "" when it runs.

        Raises:
            _Refused: another has the name, this one has ended already, or there are too many.
        """
        if engine.token in self._ended_tokens:
            raise _Refused("Ended", f"{engine.name}: the engine of this token has ended")
        there = self._running.get(engine.name)
        if there is not None:
            self._join(there, engine, awaited)
            return
        if len(self._running) >= _MOST_ENGINES:
            raise _Refused("TooMany", f"{_MOST_ENGINES} engines run already")
        self._fork(engine)
        engine.awaited.append(awaited)
        self._running[engine.name] = self._keepers[engine.keeper] = engine

    def _join(self, there: _Engine, engine: _Engine, awaited: Callable[[str], None]) -> None:
        if there.token != engine.token:
            raise _Refused("Occupied", f"{engine.name}: another engine of this name has not ended")
        if there.digest != engine.digest:
            raise _Refused("Differs", f"{engine.name}: this token was started with another spec")
        if there.pid:
            awaited("")
        else:
            there.awaited.append(awaited)

    def _fork(self, engine: _Engine) -> None:
        stdio, ours = (0, 1, 2), []
        try:
            if self._outlets is not None:
                ours.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                for outlet in self._outlets:
                    engine.streams.append(_Stream(self._loop, engine.name, outlet, engine.marks))
                    ours.append(engine.streams[-1].write_end)
                stdio = (ours[0], ours[1], ours[2])
            charge = _Charge(engine.name, engine.spec, _environment(engine.spec), stdio)
            engine.keeper, connection = _fork_keeper(charge)
        except OSError as error:
            for stream in engine.streams:
                stream.close()
            raise _Refused("StartFailed", f"{engine.name}: {error.strerror or error}") from error
        finally:
            for fd in ours:
                os.close(fd)
        engine.lines = _Lines(
            self._loop,
            connection,
            lambda message: self._heard(engine, message),
            lambda _reason: None,  # its end is seen when it is reaped
        )

    def pass_on(self, engine: _Engine, number: int) -> None:
        self._tell(engine, {"kind": "signal", "number": number})

    def end(self, engine: _Engine, grace_seconds: float, number: int = signal.SIGTERM) -> None:
        """Ask an engine to end, and kill what is left of it after the grace; the earlier of two such orders rules."""
        if not engine.asked:
            engine.asked = True
            if grace_seconds > 0:
                self._tell(engine, {"kind": "end", "number": number})
        at = time.monotonic() + grace_seconds
        if engine.grace is not None:
            if engine.grace.at <= at:
                return
            engine.grace.cancel()
        if grace_seconds > 0:
            engine.grace = self._loop.after(grace_seconds, lambda: self._kill(engine))
        else:
            self._kill(engine)

    def reap(self) -> None:
        for pid, status in _reaped():
            engine = self._keepers.pop(pid, None)
            if engine is not None:
                self._keeper_ended(engine)
                continue
            for orphan in self:
                if orphan.pid == pid and orphan.keeper not in self._keepers:
                    self._exited(orphan, status)

    # ------------------------------------------------------------------ what keepers tell

    def _tell(self, engine: _Engine, message: Message) -> None:
        if engine.lines is not None:
            engine.lines.send(message)

    def _heard(self, engine: _Engine, message: Message) -> None:
        kind = message["kind"]
        if kind == "started":
            engine.pid, engine.start_time = message["pid"], message["startTime"]
            engine.started_at, engine.started_monotonic = time.time(), time.monotonic()
            self._started(engine, "")
        elif kind == "failed":
            self._forget(engine)
            self._started(engine, message["message"])
            self.changed()
        elif kind == "exit":
            self._exited(engine, message["status"])
        elif kind == "stuck":
            if not engine.exited:
                self._exited(engine, None)
            self._gone(engine, message["left"])
        elif kind == "gone" and self._running.get(engine.name) is engine:
            self._gone(engine, message["left"])

    def _started(self, engine: _Engine, failure: str) -> None:
        awaited, engine.awaited = engine.awaited, []
        for each in awaited:
            each(failure)

    def _exited(self, engine: _Engine, status: int | None) -> None:
        if engine.exited:
            return
        engine.exited = True
        for stream in engine.streams:
            stream.drain()
        self._oom.look()
        code = None if status is None else os.waitstatus_to_exitcode(status)
        self.last_status = BROKEN if code is None else code if code >= 0 else 128 - code
        self.reports.add(
            {
                "kind": "exit",
                **engine.identity(),
                "status": code if code is not None and code >= 0 else None,
                "signal": signal_name(-code) if code is not None and code < 0 else None,
                "coreDumped": status is not None and os.WCOREDUMP(status),
                "oomKills": self._oom.recent(),
                "cause": self._cause(engine, code),
                "ranSeconds": round(time.monotonic() - engine.started_monotonic, 3),
                "at": time.time(),
                "outTail": engine.streams[0].tail if engine.streams else "",
                "errTail": engine.streams[1].tail if engine.streams else "",
            }
        )

    def _cause(self, engine: _Engine, code: int | None) -> str:
        if code is None:
            return "Stuck"
        if engine.forced:
            return "Forced"
        if engine.asked:
            return "Asked"
        if code == -signal.SIGKILL and self._oom.recent():
            self._oom.explain_one()
            return "OutOfMemory"
        return "Exited" if code >= 0 else "Signalled"

    def _kill(self, engine: _Engine) -> None:
        engine.forced = True
        self.any_forced = True
        self._tell(engine, {"kind": "kill"})
        if engine.watchdog is None:
            wait = _STUCK_SECONDS + _KEEPER_SECONDS
            engine.watchdog = self._loop.after(wait, lambda: _kill(engine.keeper, signal.SIGKILL))

    def _gone(self, engine: _Engine, left: Sequence[int]) -> None:
        self._forget(engine)
        self.reports.add({"kind": "gone", **engine.identity(), "left": list(left)})
        self.changed()

    def _forget(self, engine: _Engine) -> None:
        del self._running[engine.name]
        if engine.pid:
            self._ended_tokens.append(engine.token)
        for timer in (engine.grace, engine.watchdog):
            if timer is not None:
                timer.cancel()
        for stream in engine.streams:
            stream.close()

    # ------------------------------------------------------------------ a keeper that was killed

    def _keeper_ended(self, engine: _Engine) -> None:
        """End an engine whose keeper didn't live to tell that nothing of it is left."""
        if engine.lines is not None:
            engine.lines.read_rest()
        if self._running.get(engine.name) is not engine:
            return
        if not engine.pid:
            self._forget(engine)
            self._started(engine, "its keeper was killed")
            self.changed()
            return
        self._sweep(engine, time.monotonic() + _STUCK_SECONDS)

    def _sweep(self, engine: _Engine, deadline: float) -> None:
        """Kill what its keeper has left to us: the engine, whose end the kernel sees to, and the rest of its session."""
        self.reap()
        keepers = set(self._keepers)
        left = [
            each
            for each in _all_processes()
            if engine.pid in (each.pid, each.session, each.group)
            and (each.pid != engine.pid or each.start_time == engine.start_time)
            and each.state != "Z"
            and each.parent not in keepers
        ]
        for each in left:
            _kill(each.pid, signal.SIGKILL)
        if left and time.monotonic() < deadline:
            self._loop.after(_SWEEP_SECONDS, lambda: self._sweep(engine, deadline))
            return
        self.reap()  # its zombie may have come to us since
        self._exited(engine, None)
        self._gone(engine, [each.pid for each in left])

    def _look_for_oom(self) -> None:
        self._oom.look()
        self._loop.after(_OOM_LOOK_SECONDS, self._look_for_oom)


def signal_name(number: int) -> str:
    """Return a signal's name; real-time ones have none but their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _environment(spec: Spec) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, SECRET_VARIABLE: None, **spec.environment}
    return {name: value for name, value in merged.items() if value is not None}


# ---------------------------------------------------------------------- agents


@dataclass(frozen=True)
class Admission:
    """Who is heard as an agent.

    Attributes:
        secret: what it must know; empty if its user is enough.
        uids: users that it may be.
    """

    secret: str
    uids: frozenset[int]


class _Connection:
    """Somebody at the socket: nobody yet, an agent, or an agent that has been superseded.

    Attributes:
        lines: its messages.
        pid: its process id; 0 if this process can't see it.
        uid: its user.
        agent: what it calls itself; empty until it has introduced itself.
        generation: when it started, in milliseconds since boot.
    """

    def __init__(self, loop: _Loop, connection: socket.socket, agents: _Agents) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid, self.uid, _gid = struct.unpack("3i", credentials)
        self.agent = ""
        self.generation = 0
        self.lines = _Lines(
            loop,
            connection,
            lambda message: agents.heard(self, message),
            lambda reason: agents.ended(self, reason),
        )
        self.lines.most_bytes = HELLO_BYTES

    def refuse(self, refused: _Refused) -> None:
        """Say why, and close."""
        self.lines.send({"kind": "error", "code": refused.code, "message": str(refused)})
        self.lines.close(str(refused))


class _Agents:
    """The socket, and which of those at it is heard: the agent that started last.

    Args:
        loop: who tells when there is something.
        listener: the socket.
        admission: who is heard.
        launcher: what obeys.
    """

    def __init__(
        self, loop: _Loop, listener: socket.socket, admission: Admission, launcher: Launcher
    ) -> None:
        listener.setblocking(False)
        self._loop = loop
        self._listener = listener
        self._admission = admission
        self._launcher = launcher
        self._connections: set[_Connection] = set()
        self._latest = (0, "")  # generation and name of the agent that started last
        self.current: _Connection | None = None
        loop.watch(listener.fileno(), selectors.EVENT_READ, self._accept)

    @property
    def ever(self) -> bool:
        """Whether an agent has ever been heard."""
        return bool(self._latest[0])

    def tell(self, message: Message) -> None:
        """Tell the agent, if there is one."""
        if self.current is not None:
            self.current.lines.send(message)

    def heard(self, connection: _Connection, message: Message) -> None:
        try:
            if connection is self.current:
                self._launcher.obey(connection.lines, message)
            else:
                self._introduce(connection, message)
        except _Refused as refused:
            connection.refuse(refused)
        except Exception:  # noqa: BLE001 (a fault in one message must not end the engines)
            self._launcher.say(traceback.format_exc())
            connection.refuse(_Refused("Internal", "a fault in the launcher; its log has the details"))

    def ended(self, connection: _Connection, reason: str) -> None:
        self._connections.discard(connection)
        if connection is self.current:
            self.current = None
            self._launcher.say(f"agent {connection.agent} is gone ({reason}); its engines go on")

    def close(self) -> None:
        """Hear nobody any more."""
        self._loop.watch(self._listener.fileno(), 0, self._accept)
        self._listener.close()
        self.current = None
        for connection in tuple(self._connections):
            connection.lines.close("the launcher ends")

    def _accept(self, _events: int) -> None:
        try:
            accepted, _address = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= _MOST_CONNECTIONS:
            accepted.close()
            return
        connection = _Connection(self._loop, accepted, self)
        self._connections.add(connection)
        if connection.uid not in self._admission.uids:
            allowed = ", ".join(str(uid) for uid in sorted(self._admission.uids))
            connection.refuse(
                _Refused("Credentials", f"user {connection.uid} may not (those who may: {allowed})")
            )
        elif connection.pid and _descends_from(connection.pid, self._launcher.keepers):
            connection.refuse(_Refused("Credentials", "an engine is no agent"))
        else:
            self._loop.after(_HELLO_SECONDS, lambda: self._hurry(connection))

    def _hurry(self, connection: _Connection) -> None:
        if not connection.agent:
            connection.refuse(_Refused("BadMessage", f"no hello within {_HELLO_SECONDS:.0f} s"))

    def _introduce(self, connection: _Connection, message: Message) -> None:
        """Hear an agent from now on, and no other.

        Raises:
            _Refused: it isn't heard.
        """
        if message.get("kind") != "hello":
            raise _Refused("BadMessage", "the first message is a hello")
        if message.get("protocol") != PROTOCOL:
            raise _Refused("Protocol", f"this launcher speaks protocol {PROTOCOL}")
        secret = _text(message, "secret", most=4_096, default="")
        if not hmac.compare_digest(
            secret.encode(errors="replace"), self._admission.secret.encode(errors="replace")
        ):
            raise _Refused("Secret", "the secret is not the launcher's")
        name, generation = _text(message, "agent", most=128), _integer(message, "generation")
        now = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000)
        if not 0 < generation <= now + _AHEAD_MILLISECONDS:
            raise _Refused("BadMessage", "generation: when the agent started, in milliseconds since boot")
        if generation < self._latest[0] or (generation == self._latest[0] and name != self._latest[1]):
            raise _Refused("Superseded", f"agent {self._latest[1]} has started later")
        self._latest = (generation, name)
        connection.agent, connection.generation = name, generation
        connection.lines.most_bytes = MESSAGE_BYTES
        before, self.current = self.current, connection
        if before is not None:
            before.refuse(_Refused("Superseded", f"agent {name} has the launcher now"))
        self._launcher.say(f"agent {name} (process {connection.pid}, user {connection.uid}) is there")
        self._launcher.welcome(connection.lines, message.get("id"))


# ---------------------------------------------------------------------- the launcher


class Launcher:
    """Engines on the agent's word, until SIGTERM or SIGINT.

    Args:
        listener: the socket for agents; it is closed at the end.
        admission: who is heard as an agent.
        drain_seconds: how long the agent may take to drain.
        grace_seconds: how long engines may take to end after that.
        command: what its container was made to run, with placeholders, for an agent that knows none; empty if that is unsaid.
    """

    def __init__(
        self,
        listener: socket.socket,
        admission: Admission,
        *,
        drain_seconds: float,
        grace_seconds: float,
        command: Sequence[str] = (),
    ) -> None:
        self._loop = _Loop()
        out = _Outlet(self._loop, 1)
        # Two outlets of one file would cut each other's lines.
        self._outlets = (out, out if os.path.sameopenfile(1, 2) else _Outlet(self._loop, 2))
        self._words = _Queue("launcher")
        self._engines = _Engines(self._loop, self._outlets)
        self._engines.changed = self._look_for_the_end
        self._signals = _Signals(self._loop, (*_ENDING, *_PASSED_ON), self._signalled)
        self._agents = _Agents(self._loop, listener, admission, self)
        self._engines.reports.hear = self._agents.tell
        self._drain_seconds = drain_seconds
        self._grace_seconds = grace_seconds
        self._command = tuple(command)
        self._deadline: float | None = None  # of draining
        self._ending = False
        self._said = False  # the agent has said that it has drained
        self._own = process_stat(os.getpid())
        self._instance = secrets.token_hex(8)

    @property
    def keepers(self) -> Sequence[int]:
        """Process ids of the keepers."""
        return self._engines.keepers

    def run(self) -> int:
        """Obey until told to end and until no engine is left; return the exit status."""
        while not (self._ending and not self._engines):
            self._turn()
        self._agents.close()
        until = time.monotonic() + _FLUSH_SECONDS
        self._loop.after(_FLUSH_SECONDS, lambda: None)
        while not all(outlet.idle for outlet in self._outlets) and time.monotonic() < until:
            self._loop.turn()
        if self._engines.any_forced:
            return STUBBORN
        return ENDED if self._said else UNSAID

    def _turn(self) -> None:
        try:
            self._loop.turn()
        except Exception:  # noqa: BLE001 (a fault of ours must not end engines that serve)
            self.say(traceback.format_exc())
            time.sleep(_FAULT_SECONDS)

    def say(self, text: str) -> None:
        """Write to the launcher's own log."""
        lines = "".join(f"[launcher] {line}\n" for line in text.splitlines())
        self._outlets[1].put(self._words, lines.encode(errors="replace"))

    # ------------------------------------------------------------------ the agent's word

    def welcome(self, lines: _Lines, asked: object) -> None:
        """Tell a new agent how things are, and what it may have missed."""
        lines.send(
            {
                "kind": "welcome",
                "id": asked,
                "protocol": PROTOCOL,
                "launcher": {
                    "instance": self._instance,
                    "pid": os.getpid(),
                    "startTime": 0 if self._own is None else self._own.start_time,
                    "pidNamespace": str(Path("/proc/self/ns/pid").readlink()),
                    "command": list(self._command),
                },
                "engines": [engine.to_json() for engine in self._engines],
                "reportsLost": self._engines.reports.lost,
                "draining": None if self._deadline is None else self._draining(),
            }
        )
        for report in self._engines.reports.replay():
            lines.send(report)

    def obey(self, lines: _Lines, message: Message) -> None:
        """Carry out what the agent asks, and answer."""
        asked = message.get("id")
        try:
            work = self._requests().get(str(message.get("kind")))
            if work is None:
                raise _Refused("Unknown", f"kind: this launcher knows {', '.join(self._requests())}")
            answer = work(message)
        except _Refused as refused:
            lines.send({"kind": "error", "id": asked, "code": refused.code, "message": str(refused)})
            return
        if isinstance(answer, _Engine):
            self._start(answer, lines, asked)
        else:
            lines.send({"kind": "done", "id": asked, **answer})

    def _requests(self) -> Mapping[str, Callable[[Message], Message | _Engine]]:
        return {
            "start": self._asked_to_start,
            "stop": self._asked_to_stop,
            "signal": self._asked_to_signal,
            "owns": self._asked_whose,
            "note": self._asked_to_note,
            "kept": self._asked_for_lines,
            "list": lambda _message: {"engines": [engine.to_json() for engine in self._engines]},
            "acknowledge": self._told_of_receipt,
            "drained": self._told_of_draining,
        }

    def _asked_to_start(self, message: Message) -> _Engine:
        if self._deadline is not None or self._ending:
            raise _Refused("Draining", "the launcher is ending; it starts nothing")
        name = _text(message, "engine", most=63)
        if not _NAME.fullmatch(name) or name == "launcher":
            raise _Refused(
                "BadMessage",
                "engine: letters, digits, '.', '_' and '-', the first a letter or digit; not 'launcher'",
            )
        engine = _Engine(name, _text(message, "token", most=128), _read_spec(message), _note(message))
        engine.marks = _marks(message)
        return engine

    def _start(self, engine: _Engine, lines: _Lines, asked: object) -> None:
        def tell(failure: str) -> None:
            if failure:
                lines.send({"kind": "error", "id": asked, "code": "StartFailed", "message": failure})
            else:
                there = self._engines.find(engine.name, engine.token)
                lines.send({"kind": "done", "id": asked, "engine": there.to_json()})

        try:
            self._engines.start(engine, tell)
        except _Refused as refused:
            lines.send({"kind": "error", "id": asked, "code": refused.code, "message": str(refused)})

    def _asked_to_stop(self, message: Message) -> Message:
        self._engines.end(self._meant(message), _seconds(message, "graceSeconds", self._grace_seconds))
        return {}

    def _asked_to_signal(self, message: Message) -> Message:
        name = _text(message, "signal", most=16)
        if name not in signal.Signals.__members__:
            raise _Refused("BadMessage", f"signal: there is no {name}; it takes a name such as SIGUSR1")
        self._engines.pass_on(self._meant(message), signal.Signals[name])
        return {}

    def _asked_whose(self, message: Message) -> Message:
        engine, pid = self._meant(message), _integer(message, "pid")
        return {"owns": pid != engine.keeper and _descends_from(pid, [engine.keeper])}

    def _asked_to_note(self, message: Message) -> Message:
        self._meant(message).note = _note(message)
        return {}

    def _asked_for_lines(self, message: Message) -> Message:
        streams = self._meant(message).streams
        return {"lines": [line.decode(errors="replace") for stream in streams for line in stream.kept]}

    def _told_of_receipt(self, message: Message) -> Message:
        self._engines.reports.acknowledge(_integer(message, "sequence"))
        return {}

    def _told_of_draining(self, _message: Message) -> Message:
        if self._deadline is None:
            raise _Refused("NotDraining", "nobody has told the launcher to end")
        self._said = True
        self._end_engines()
        return {}

    def _meant(self, message: Message) -> _Engine:
        return self._engines.find(_text(message, "engine", most=63), _text(message, "token", most=128))

    # ------------------------------------------------------------------ the end

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._engines.reap()
        elif number not in _ENDING:
            for engine in self._engines:
                self._engines.pass_on(engine, number)
        elif self._ending:
            self.say(f"{signal_name(number)} again: killing what is left")
            for engine in self._engines:
                self._engines.end(engine, 0)
        elif self._deadline is not None:
            self.say(f"{signal_name(number)} again: not waiting for the agent any longer")
            self._end_engines()
        else:
            self.say(f"{signal_name(number)}: draining, for {self._drain_seconds:g} s at most")
            self._drain()

    def _drain(self) -> None:
        self._deadline = time.monotonic() + self._drain_seconds
        self._loop.after(self._drain_seconds, self._end_engines)
        self._agents.tell({"kind": "draining", **self._draining()})
        self._look_for_the_end()

    def _draining(self) -> Message:
        left = 0.0 if self._deadline is None else self._deadline - time.monotonic()
        return {"secondsLeft": round(max(0.0, left), 3)}

    def _look_for_the_end(self) -> None:
        """End when nothing runs any more and nothing is to be started."""
        if self._deadline is not None and not self._ending and not self._engines:
            self._said = True
            self._end_engines()

    def _end_engines(self) -> None:
        if self._ending:
            return
        self._ending = True
        self._engines.any_forced = False  # what the agent had killed before is its business
        for engine in self._engines:
            self._engines.end(engine, self._grace_seconds)


def run_alone(command: Sequence[str], *, grace_seconds: float) -> int:
    """Run one engine with this process's own input and output, and return the status that it ended with.

    Signals are passed on. What is left `grace_seconds` after SIGTERM or SIGINT is killed.

    Raises:
        NotStarted: there is no such program, or it can't be started for another reason.
    """
    loop = _Loop()
    engines = _Engines(loop, None)
    engine = _Engine("engine", "", Spec(command=tuple(command)), {})
    failures: list[str] = []

    def signalled(number: int) -> None:
        if number == signal.SIGCHLD:
            engines.reap()
        elif engine.asked and number in _ENDING:
            engines.end(engine, 0)
        elif number in _ENDING:
            engines.end(engine, grace_seconds, number)
        else:
            engines.pass_on(engine, number)

    _Signals(loop, (*_ENDING, *_PASSED_ON), signalled)
    engines.start(engine, lambda failure: failures.append(failure) if failure else None)
    while engines:
        loop.turn()
    if failures:
        raise NotStarted(failures[0])
    return engines.last_status


def listen(path: Path, *, shared: bool) -> socket.socket:
    """Open the socket for agents.

    Args:
        path: where; what an earlier launcher has left there is removed.
        shared: whether other users may connect (they are asked who they are), or this one alone.

    Raises:
        LauncherError: that isn't possible, or another launcher listens there.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
                contextlib.suppress(ConnectionRefusedError),
            ):
                probe.connect(str(path))
                raise LauncherError(f"--socket: another launcher listens at {path}")
            path.unlink()
        before = os.umask(0o111 if shared else 0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(_MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise LauncherError(f"--socket: {path} can't be listened at: {error.strerror or error}") from error
    except LauncherError:
        listener.close()
        raise
    return listener


# ---------------------------------------------------------------------- the command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py",
        usage="launcher.py --socket PATH [options] [-- COMMAND [ARGUMENT ...]]\n"
        "       launcher.py [--grace-seconds S] -- COMMAND [ARGUMENT ...]",
        description="Parent of engines: starts and ends them on an agent's word, or runs one.",
    )
    add = parser.add_argument
    add("--socket", type=Path, metavar="PATH", help="where agents connect")
    add("--secret-file", type=Path, metavar="FILE", help=f"what an agent must know (else ${SECRET_VARIABLE})")
    add(
        "--allow-uid",
        type=int,
        action="append",
        default=[],
        metavar="UID",
        help="a user that an agent may be, too",
    )
    add("--drain-seconds", type=_duration, default=20.0, metavar="S", help="for draining, after SIGTERM (20)")
    add("--grace-seconds", type=_duration, default=8.0, metavar="S", help="between SIGTERM and SIGKILL (8)")
    return parser


def _duration(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= _MOST_SECONDS:
        raise ValueError(text)
    return seconds


def _secret(options: argparse.Namespace) -> str:
    if options.secret_file is None:
        return os.environ.get(SECRET_VARIABLE, "")
    try:
        secret = cast("Path", options.secret_file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise LauncherError(f"--secret-file: {options.secret_file} can't be read: {error}") from error
    if not secret:
        raise LauncherError(f"--secret-file: {options.secret_file} is empty")
    return secret


def _run(arguments: Sequence[str]) -> int:
    own, command = list(arguments), None
    if "--" in own:
        place = own.index("--")
        own, command = own[:place], own[place + 1 :]
    options = _parser().parse_args(own)
    if command is not None and not command:
        raise LauncherError("give a command after --, or leave -- out")
    if command is None and options.socket is None:
        raise LauncherError("give --socket PATH, or a command after --")
    if os.getpid() != 1:  # orphans of the engines are to come here and not to whoever is process 1
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if options.socket is None and command is not None:
        return run_alone(command, grace_seconds=options.grace_seconds)
    admission = Admission(_secret(options), frozenset({0, os.geteuid(), *options.allow_uid}))
    listener = listen(options.socket, shared=bool(options.allow_uid))
    try:
        launcher = Launcher(
            listener,
            admission,
            drain_seconds=options.drain_seconds,
            grace_seconds=options.grace_seconds,
            command=command or (),
        )
        return launcher.run()
    finally:
        with contextlib.suppress(OSError):
            options.socket.unlink()


def main() -> int:
    """Read the command line, run, and return the exit status."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < _FIRST_OWN_FD:
        pass  # one of ours would be taken for standard input, output or error
    os.close(fd)
    try:
        return _run(sys.argv[1:])
    except LauncherError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
