"""A process that has imported all that an engine needs, and forks into one when it is asked: a start without its imports.

It never touches a device, starts no thread and runs no event loop, so that a fork is as good as a process that was started. What
it has imported is shared by all forks until one of them writes to it. It is asked by stand-ins (`zygote_standin`), each for a fork
of its own, and tells each how its fork ended. No fork needs it after that: when it is killed, they go on.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmpool.reference import zygote_place as place
from warmpool.reference import zygote_wire as wire
from warmpool.reference.errors import CannotStart
from warmpool.reference.startup import Origin, process_start

_MODULES = ("cli", "serve", "runner", "expect")
_COMPILER = (
    ("triton.runtime.cache", "triton_key"),
    ("triton.compiler.compiler", "triton_key"),  # before 3.5
    ("triton.experimental.gluon", ""),
)
"""What Triton makes once in a process: modules, and functions that keep what they return."""
_READ_SECONDS = 5.0
"""How long one that asks may take over its words. It is on this machine and has nothing else to do."""
_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")
_ENDING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a fork is to become.

    Attributes:
        arguments: of its command line.
        origin: how it came to be.
    """

    arguments: Sequence[str]
    origin: Origin


def serve(path: Path) -> Asked | None:
    """Import, and fork for whoever asks at a socket, until SIGTERM or SIGINT.

    Returns:
        None in this process, at its end; in a fork what it is to become.

    Raises:
        CannotStart: the socket can't be had, or what was imported can't be forked.
    """
    began = time.monotonic()
    told = place.read_when_loaded(os.environ)
    listener = _listen(path)
    try:
        _import_all()
        _say("ready", seconds=round(time.monotonic() - began, 3), **memory("self"))
        asked = _Zygote(listener, told).run()
    except CannotStart:
        path.unlink(missing_ok=True)
        raise
    if asked is None:
        path.unlink(missing_ok=True)
    return asked


def memory(process: str) -> Mapping[str, int]:
    """Return the memory of a process in bytes, by name: all of it, its share of it, and what is its own alone.

    `pssBytes` of a zygote and its forks add up to what they take together (proc(5), `smaps_rollup`); `rssBytes` count what is
    shared once for each.

    Raises:
        OSError: there is no such process any more.
    """
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    size = {words[0]: int(words[1]) * 1024 for line in text.splitlines()[1:] if (words := line.split())}
    return {
        "rssBytes": size["Rss:"],
        "pssBytes": size["Pss:"],
        "privateBytes": size["Private_Clean:"] + size["Private_Dirty:"],
    }


def ask_for_memory(path: Path) -> Mapping[str, Any]:
    """Ask a zygote what it and its forks take.

    Raises:
        CannotStart: there is none at this socket.
    """
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
            wire.address(path) as address,
        ):
            connection.connect(address)
            wire.send(connection, {"protocol": wire.PROTOCOL, "memory": True})
            return wire.receive(connection)[0]
    except (OSError, wire.BadMessage) as error:
        raise CannotStart(
            f"no zygote answers at {path}: {error}", hint="start one: python -m warmpool.reference zygote"
        ) from error


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with wire.address(path) as address:
            if path.is_socket():
                _see_that_nobody_listens(path, address)
                path.unlink()
            before = os.umask(0o177)
            try:
                listener.bind(address)
            finally:
                os.umask(before)
            listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(
            f"--socket: can't listen at {path}: {error.strerror or error}", hint="choose another path"
        ) from error
    except CannotStart:
        listener.close()
        raise
    return listener


def _see_that_nobody_listens(path: Path, address: str) -> None:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        contextlib.suppress(ConnectionRefusedError),
    ):
        probe.connect(address)
        raise CannotStart(
            f"--socket: another process listens at {path}", hint="use that one, or choose another path"
        )


def _import_all() -> None:
    """Import what an engine imports sooner or later, and see that all of it can be forked.

    Raises:
        CannotStart: it can't.
    """
    os.environ[place.SINGLE] = "1"
    gc.disable()  # nothing of this is garbage
    for name in _MODULES:
        importlib.import_module(f"warmpool.reference.{name}")
    torch: Any = sys.modules["torch"]
    if torch.version.cuda is not None and importlib.util.find_spec("triton") is not None:
        importlib.import_module("warmpool.reference.fused")
        _know_compiler()
    gc.enable()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every object, and no page would stay shared
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise CannotStart(
            f"the imports started {threads - 1} threads, which a fork wouldn't have",
            hint="start engines without --zygote",
        )
    if torch.cuda.is_initialized() or any(_is_device(link) for link in Path("/proc/self/fd").iterdir()):
        raise CannotStart(
            "the imports opened a GPU, which can't be shared with a fork",
            hint="start engines without --zygote",
        )


def _know_compiler() -> None:
    """Have Triton read itself now.

    Every process that asks for a kernel, were it compiled long ago, makes one digest of all files of the compiler, which takes a third to
    half of a second, and imports languages that it compares the kernel's with. Triton keeps both for as long as the process lives, and
    so do its forks.
    """
    for where, what in _COMPILER:
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(where)
            if what:
                getattr(found, what)()


def _is_device(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("/dev/nvidia")
    except OSError:  # the one that lists them
        return False


@dataclass(slots=True)
class _Zygote:
    """The loop: one that asks after the other, and the ends of forks.

    Attributes:
        listener: where they ask.
        told: what was read from the environment when everything was imported.
    """

    listener: socket.socket
    told: Mapping[str, str]
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)
    _forks: dict[int, socket.socket] = field(default_factory=dict)
    _pipe: tuple[int, int] = (-1, -1)
    _ending: bool = False

    def run(self) -> Asked | None:
        """Return None at the end, and in a fork what it is to become."""
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_ENDING):
            signal.signal(number, lambda *_: None)
        self._watch(self.listener, self._accept)
        self._watch(self._pipe[0], self._signalled)
        while not self._ending:
            for key, _ in self._selector.select():
                asked: Asked | None = key.data()
                if asked is not None:
                    return asked
        return None

    def _watch(self, file: int | socket.socket, ready: Callable[[], Asked | None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, ready)

    def _signalled(self) -> None:
        self._ending = any(number in _ENDING for number in os.read(self._pipe[0], 4_096))
        while self._forks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._forks.pop(pid) as connection, contextlib.suppress(OSError):  # its stand-in was killed
                wire.send(connection, {"status": status})
            _say("ended", fork=pid, status=status)

    def _accept(self) -> Asked | None:
        connection, _ = self.listener.accept()
        connection.settimeout(_READ_SECONDS)
        by, uid, _gid = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        files: list[int] = []
        try:
            message, files = wire.receive(connection)
            if message.get("memory"):
                wire.send(connection, self._memory())
            elif reason := self._why_not(message, by, uid):
                wire.send(connection, {"refused": reason})
            elif (pid := os.fork()) == 0:
                return self._become(message, by, connection, files)
            else:
                self._forks[pid] = connection
                _say("forked", fork=pid, by=by)
                return None
        except wire.Closed:
            pass  # it only looked whether anybody is here, or has ended
        except (OSError, wire.BadMessage) as error:
            _say("failed", by=by, reason=str(error))
        finally:
            for file in files:
                os.close(file)
        connection.close()
        return None

    def _why_not(self, message: wire.Message, by: int, uid: int) -> str:
        """Say what keeps a fork from being the process that was started; empty if nothing does."""
        if message.get("protocol") != wire.PROTOCOL:
            return f"the zygote speaks version {wire.PROTOCOL}"
        if uid != os.geteuid() or by == 0:
            return "the zygote is another user's, or in another PID namespace"
        pairs = (
            (place.program(), message["program"]),
            (self.told, place.read_when_loaded(message["place"]["environment"])),
            (place.unchangeable(os.getpid()), place.unchangeable(by)),
        )
        return next((each for mine, theirs in pairs for each in place.differences(mine, theirs)), "")

    def _memory(self) -> wire.Message:
        forks = {}
        for pid in self._forks:
            with contextlib.suppress(OSError):  # it is just ending
                forks[str(pid)] = memory(str(pid))
        return {"pid": os.getpid(), **memory("self"), "forks": forks}

    # ------------------------------------------------------------------ in a fork

    def _become(self, message: wire.Message, by: int, connection: socket.socket, files: list[int]) -> Asked:
        """Take over everything from the process that asked, and tell it."""
        zygote = os.getppid()
        try:
            self._let_go()
            numbers = message["numbers"]
            answer, lifeline, here, *given = place.above(
                [connection.detach(), *files], max(numbers, default=0)
            )
            files.clear()
            with socket.socket(fileno=answer) as telling:
                try:
                    place.put(given, numbers)
                    os.setsid()
                    os.fchdir(here)
                    os.close(here)
                    place.take_over(message["place"])
                except (OSError, ValueError) as error:
                    wire.send(telling, {"refused": f"a fork can't live as this process does: {error}"})
                    os._exit(0)
                if not place.die_when_closed(lifeline):
                    os._exit(0)
                pidfd = os.pidfd_open(os.getpid())
                wire.send(telling, {"pid": os.getpid()}, [pidfd])
                os.close(pidfd)
        except BaseException as error:  # noqa: BLE001 (nothing of the zygote may run on in a fork)
            _say("failed", by=by, reason=repr(error))
            os._exit(1)
        _like_new()
        facts = {"zygote": zygote, "standIn": by, **memory("self")}
        return Asked(message["arguments"], Origin(started=process_start(by), fork=facts))

    def _let_go(self) -> None:
        """Close what is the zygote's."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for file in self._pipe:
            os.close(file)
        for each in (self.listener, *self._forks.values()):
            each.close()
        self._forks.clear()


def _like_new() -> None:
    """Undo what a fork of a process has that a process of its own wouldn't have."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # Python's own generator does so by itself, and torch's has the seed that it always has
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())


def _say(what: str, **facts: object) -> None:
    """Print one line of JSON on stderr."""
    print(json.dumps({"zygote": what, "pid": os.getpid(), **facts}), file=sys.stderr, flush=True)  # noqa: T201 (the interface)
