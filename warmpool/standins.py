"""Stand-ins: processes that were started and stand for a fork of a zygote, which does their work and isn't their child.

Whoever counts, asks or ends the processes of an engine takes the fork with the stand-in. It is found by what the kernel tells:
the stand-in's name, and the pidfd by which it holds its fork.
"""

import re
from collections.abc import Sequence
from pathlib import Path

_PIDFD = re.compile(r"^Pid:\t([1-9][0-9]*)$", re.MULTILINE)  # of one that has ended it says -1

VARIABLE = "EMBERPOOL_ZYGOTE"
"""Environment variable by which `python -m warmpool.reference` finds a zygote's socket; empty for none."""
NAME = "zygote stand-in"
"""What a stand-in is called (proc(5), `comm`). Others hold pidfds, too, and stand for nobody."""


def stood_for(pid: int) -> Sequence[int]:
    """Return the living processes that a process stands for: one or none. None, too, where it can't be looked into."""
    directory = Path(f"/proc/{pid}")
    try:
        if (directory / "comm").read_text() != f"{NAME}\n":
            return ()
        held = [each.read_text() for each in (directory / "fdinfo").iterdir()]
    except OSError:  # it has just ended, or is another user's
        return ()
    return [int(pid) for text in held for pid in _PIDFD.findall(text)]


def forks_of(pid: int) -> Sequence[int]:
    """Return the living processes that a process stands for, and those that its fork's own children stand for, as ranks of an engine do.

    Children are told by the kernel (proc(5), `/proc/PID/task/TID/children`); where it doesn't tell, those of the fork are missing.
    """
    found = list(stood_for(pid))
    for fork in found:
        found += [below for child in _children(fork) for below in stood_for(child) if below not in found]
    return found


def _children(pid: int) -> Sequence[int]:
    try:
        told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has just ended
        return ()
    return [int(child) for text in told for child in text.split()]
