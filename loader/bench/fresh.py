"""Calls in processes of their own, each as fresh as one that has just imported torch: forked from this one, which touches neither device nor tensor.

A second load in one process reuses memory that the first had to take, so each measurement gets a process; that torch is
imported already saves the seconds that this takes every time.
"""

import json
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import IO, NoReturn, cast

_LOG_CHARACTERS = 600

Facts = Mapping[str, object]
"""What a call found out, as JSON can hold it."""


class MeasurementFailed(Exception):
    """A process ended without an answer; the text says how, with the end of what it printed."""


def call(work: Callable[[], Facts], *, limit_seconds: float) -> Facts:
    """What a call returns in a process of its own, once that has ended.

    Args:
        work: what to do; its result must be JSON. What it prints is kept from the terminal.
        limit_seconds: after this it is killed.

    Raises:
        MeasurementFailed: it raised, died, or took too long.
    """
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Libraries may have threads that wait for work; none of them is needed in the child.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _answer(work, answer, log)
        try:
            how = _ended(child, limit_seconds)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        if how:
            raise MeasurementFailed(f"{how}: {_end_of(log)}")
        answer.seek(0)
        return cast("Facts", json.load(answer))


def _answer(work: Callable[[], Facts], answer: IO[bytes], log: IO[bytes]) -> NoReturn:
    """The child's part: never returns, and runs none of the parent's handlers at exit."""
    status = 1
    try:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        answer.write(json.dumps(work()).encode())
        answer.flush()
        status = 0
    except BaseException:  # noqa: BLE001 - the parent is told
        log.write(traceback.format_exc().encode())
        log.flush()
    finally:
        os._exit(status)


def _ended(child: int, limit_seconds: float) -> str:
    """Wait for the end of a child; empty if it was a good one."""
    descriptor = os.pidfd_open(child)
    try:
        in_time = bool(select.select([descriptor], [], [], max(0.0, limit_seconds))[0])
    finally:
        os.close(descriptor)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not in_time:
        return f"not done after {limit_seconds:.0f} s"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}" if status else ""


def _end_of(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()[-_LOG_CHARACTERS:]
