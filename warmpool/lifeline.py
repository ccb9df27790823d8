"""Tying a process's life to its parent's, so that a killed parent leaves no engine on a GPU."""

import ctypes
import os
import signal
from collections.abc import Mapping

from warmpool.errors import StartFailed

VARIABLE = "EMBERPOOL_DIE_WITH_PARENT"
"""Environment variable that holds the process id of the parent to die with. The id is the parent's word, because a process that
asks for its parent only after it has started may already have been inherited by another."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, death_signal: signal.Signals) -> None:
    """Have the kernel send this process `death_signal` when the thread that started it ends.

    Args:
        parent: process id of the parent, as it was when this process was started.
        death_signal: what to send.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), death_signal)


def follow_parent(environment: Mapping[str, str]) -> None:
    """End with SIGTERM when the parent that the environment names ends; without the variable, live on.

    Raises:
        StartFailed: the variable holds no process id.
    """
    parent = environment.get(VARIABLE, "")
    if not parent:
        return
    if not parent.isdigit():
        raise StartFailed(f"{VARIABLE} is {parent!r}; it takes the process id of the parent")
    die_with_parent(int(parent), signal.SIGTERM)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that ties a child of this process to it."""
    return {**environment, VARIABLE: str(os.getpid())}
