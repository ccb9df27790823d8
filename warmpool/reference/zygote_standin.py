"""The process that was started and stands for a fork of a zygote: `python -m warmpool.reference serve … --zygote SOCKET`.

Whoever starts an engine knows the process that it has started: it sends it signals, waits for its end, kills it. This process passes
signals on, ends as the fork ends, and takes it along when it is killed. It holds a pidfd of the fork for as long as both live, so
that who looks for the engine's processes finds the fork in `/proc/PID/fdinfo`. Where there is no zygote to be had, it goes on by
itself as if it had never asked.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from warmpool.reference import zygote_place as place
from warmpool.reference import zygote_wire as wire
from warmpool.standins import NAME, VARIABLE

OPTION = "--zygote"
_COMMANDS = {"serve", "expect", "rank"}
"""What a zygote has imported everything for."""
PATIENCE_SECONDS = 30.0
"""How long a zygote that is still importing is waited for. It began earlier, so it is done before this process would be."""

_KEPT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
_OWN = {signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGURG}
_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGABRT,
}
_PASSED_ON = sorted(set(signal.Signals) - _KEPT - _OWN - _FAULTS)
_END_SECONDS = 2.0
"""How long after the fork's end somebody may take to reap it, and to tell how it ended."""
_POLL_SECONDS = 0.01
_STANDARD_ERROR = 2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PIDFD_GET_INFO = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info), with the size of its first version (linux/pidfd.h)."""
_PIDFD_INFO_EXIT = 1 << 3
_INFO = struct.Struct("QQ11Ii")


class Refused(Exception):
    """There is no fork to be had; the message says why."""


class Fork(NamedTuple):
    """A fork that this process stands for.

    Attributes:
        pidfd: the process, whatever becomes of its id.
        zygote: the connection on which the zygote tells how it ended.
        lifeline: while this is open, the fork lives.
    """

    pidfd: int
    zygote: socket.socket
    lifeline: socket.socket


def asks(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return which zygote a command is to be run by, and the command without that.

    Args:
        arguments: of the command line.
        environment: where the zygote is named if no option names it.

    Returns:
        The path of its socket, empty if none is asked for, and the other arguments.
    """
    command = next(iter(arguments), "")
    path, rest = environment.get(VARIABLE, "") if command in _COMMANDS else "", []
    words = iter(arguments)
    for word in words:
        if word == OPTION:
            path = next(words, "")
        elif word.startswith(f"{OPTION}="):
            path = word.partition("=")[2]
        else:
            rest.append(word)
    return path, rest


def stand_in(path: Path, arguments: Sequence[str]) -> str:
    """Have a zygote run a command, and end as it ends.

    Args:
        path: the zygote's socket.
        arguments: the command.

    Returns:
        Why there is no fork: this process is to run the command itself.
    """
    parent = os.getppid()
    mask = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON))
    if "--die-with-parent" in arguments:
        _die_with(parent)
    try:
        fork = _ask(path, arguments, mask)
    except Refused as refused:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return str(refused)
    Path("/proc/self/comm").write_text(NAME)
    return _end_as(_Waiting(fork, mask).status())


def _die_with(parent: int) -> None:
    """Have the kernel kill this process, and with it the fork, when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _ask(path: Path, arguments: Sequence[str], mask: Sequence[int]) -> Fork:
    """Ask for a fork.

    Raises:
        Refused: there is none to be had.
    """
    numbers = place.open_files()
    if len(numbers) > wire.MOST_FILES - 2:
        raise Refused(f"{len(numbers)} open files are too many to hand over")
    with contextlib.ExitStack() as failed:
        zygote = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        lifeline, theirs = socket.socketpair()
        failed.enter_context(lifeline)
        zygote.settimeout(PATIENCE_SECONDS)
        asked = {
            "protocol": wire.PROTOCOL,
            "program": place.program(),
            "arguments": list(arguments),
            "place": place.own(mask),
            "numbers": numbers,
        }
        try:
            with theirs, wire.directory(Path()) as here, wire.address(path) as address:
                zygote.connect(address)
                wire.send(zygote, asked, [theirs.fileno(), here, *numbers])
            answer, files = wire.receive(zygote)
        except (OSError, wire.BadMessage) as error:
            raise Refused(f"{path}: {_reason(error)}") from error
        if len(files) != 1:
            raise Refused(str(answer.get("refused", "an answer that can't be understood")))
        zygote.settimeout(None)
        failed.pop_all()
    for number in numbers:
        if number > _STANDARD_ERROR:
            os.close(number)  # whoever reads from the other end is to see when the fork closes it
    return Fork(pidfd=files[0], zygote=zygote, lifeline=lifeline)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PATIENCE_SECONDS:g} s"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class _Waiting:
    """Passes signals on until the fork has ended."""

    def __init__(self, fork: Fork, mask: Sequence[int]) -> None:
        self._fork = fork
        self._told: int | None = None
        self._zygote_lives = True
        self._signals, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def status(self) -> int:
        """Return the fork's wait status once it has ended."""
        while self._told is None:
            zygote = [self._fork.zygote.fileno()] if self._zygote_lives else []
            ready = _readable(None, self._signals, self._fork.pidfd, *zygote)
            if self._signals in ready:
                self._pass_on()
            if ready & set(zygote):
                self._hear()
            elif self._fork.pidfd in ready:
                self._told = self._after_its_end()
        return self._told

    def _pass_on(self) -> None:
        for number in os.read(self._signals, 4_096):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fork.pidfd, number)

    def _hear(self) -> None:
        try:
            told, _ = wire.receive(self._fork.zygote)
            self._told = int(told["status"])
        except (OSError, wire.BadMessage):
            self._zygote_lives = False

    def _after_its_end(self) -> int:
        """Find out how it ended: from the zygote if it lives, and else from the kernel once somebody has reaped it."""
        deadline = time.monotonic() + _END_SECONDS
        if self._zygote_lives and _readable(_END_SECONDS, self._fork.zygote.fileno()):
            self._hear()
        while self._told is None and time.monotonic() < deadline:
            self._told = exit_status(self._fork.pidfd)
            time.sleep(_POLL_SECONDS)
        if self._told is None:
            sys.stderr.write("the fork has ended; its zygote is gone, and this kernel doesn't tell how\n")
            return signal.SIGKILL
        return self._told


def _readable(seconds: float | None, *files: int) -> set[int]:
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {file for file, _ in poll.poll(None if seconds is None else seconds * 1000)}


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of a process that has been reaped, whoever its parent was; None where it can't be told.

    Linux tells it from 6.15 on (PIDFD_GET_INFO with PIDFD_INFO_EXIT).
    """
    told = bytearray(_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, told)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(told)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def _end_as(status: int) -> NoReturn:
    """End with a wait status: by the same signal, if it was one, but with no core file of this process."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
