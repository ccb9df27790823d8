"""Where and how a process lives: what a fork takes over from the process that it stands behind, and what it can't.

A process that was executed has its user, namespaces, cgroup, capabilities, environment, limits and open files from its parent.
A fork has the zygote's. What a process may set for itself is set; where the rest differs there is no fork, because an engine
that lives elsewhere than it was started would be a riddle to whoever looks for it.
"""

import fcntl
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SINGLE = "OPENBLAS_NUM_THREADS"
"""The one variable that a zygote sets for itself: NumPy's library would start its threads when it is loaded, and threads aren't forked.
The engine doesn't compute with it."""

_READ_WHEN_LOADED = re.compile(
    r"(PYTHON|LD_|MALLOC_|GLIBC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|NUMEXPR_|ATEN_|TORCH|PYTORCH_|TRITON_|LC_|LANG$|TZ$)"
)
"""Variables that interpreter and libraries read when they start or are loaded: a fork can't change what they said. CUDA's and NCCL's
are read when a device is initialised, which a zygote never does."""
_STATUS = re.compile(
    r"^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|Seccomp_filters):[ \t]*(.*)$",
    re.MULTILINE,
)
_LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))
_OOM = Path("/proc/self/oom_score_adj")
_SIGNALS = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))


def unchangeable(pid: int) -> Mapping[str, str]:
    """Return what a process can't take over from another one, by what it is.

    Raises:
        OSError: there is no such process, or it is somebody else's.
    """
    directory = Path(f"/proc/{pid}")
    found = dict(_STATUS.findall((directory / "status").read_text()))
    for link in sorted((directory / "ns").iterdir()):
        if not link.name.endswith("_for_children"):
            found[f"{link.name} namespace"] = str(link.readlink())
    found["cgroup"] = " ".join((directory / "cgroup").read_text().split())
    root = (directory / "root").stat()
    found["root directory"] = f"{root.st_dev}:{root.st_ino}"
    return found


def program() -> Mapping[str, Any]:
    """Return which program this process is: another interpreter, or code from elsewhere, is another one."""
    return {
        "executable": os.path.realpath(sys.executable),
        "version": sys.version,
        "flags": list(sys.flags),
        "code": str(Path(__file__).resolve().parent),
    }


def differences(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], here: str = "the zygote"
) -> Iterator[str]:
    """Yield in words what two processes differ in."""
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            yield f"{name} is {theirs.get(name)!r}, and {mine.get(name)!r} for {here}"


def read_when_loaded(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that a fork can't change the effect of."""
    return {
        name: value for name, value in environment.items() if _READ_WHEN_LOADED.match(name) and name != SINGLE
    }


def own(mask: Sequence[int]) -> Mapping[str, Any]:
    """Return what a fork can take over from this process.

    Args:
        mask: signals that were blocked in it when it started.
    """
    return {
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        "oomScoreAdjustment": int(_OOM.read_text()),
        "umask": _umask(),
        "mask": list(mask),
        "ignored": [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        "environment": dict(os.environ),
        "path": sys.path,
    }


def _umask() -> int:
    before = os.umask(0o077)  # the kernel tells it only to whoever sets it
    os.umask(before)
    return before


def take_over(told: Mapping[str, Any]) -> None:
    """Become what another process has told of itself with `own`.

    Raises:
        OSError, ValueError: this process may not: a limit or a priority can't be raised again.
    """
    os.umask(told["umask"])
    if os.getpriority(os.PRIO_PROCESS, 0) != told["niceness"]:
        os.setpriority(os.PRIO_PROCESS, 0, told["niceness"])
    if sorted(os.sched_getaffinity(0)) != told["affinity"]:
        os.sched_setaffinity(0, told["affinity"])
    for name, (soft, hard) in told["limits"].items():
        number = getattr(resource, name)
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    if int(_OOM.read_text()) != told["oomScoreAdjustment"]:
        _OOM.write_text(str(told["oomScoreAdjustment"]))
    os.environ.clear()  # and with it C's own environment: both are written through
    os.environ.update(told["environment"])
    sys.path[:] = told["path"]
    for number in _SIGNALS:
        ignored = number in told["ignored"]
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in told["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, told["mask"])


def open_files() -> list[int]:
    """Return the numbers of the open files of this process that a program which it executed would have, too."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not fcntl.fcntl(int(link.name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                found.append(int(link.name))
        except OSError:  # the one that lists them
            continue
    return sorted(found)


def above(files: Sequence[int], highest: int) -> list[int]:
    """Move open files to numbers above `highest`, so that they are in nobody's way.

    Raises:
        OSError: there can be no more open files.
    """
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, highest + 1) for file in files]
    for file in files:
        os.close(file)
    return moved


def put(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Make each of some open files available under its number, where programs that are executed have it, too.

    Args:
        files: what is moved; their own numbers are none of `numbers`.
        numbers: where to; what was there is closed.
    """
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number, inheritable=True)
        os.close(file)


def die_when_closed(file: int) -> bool:
    """Have the kernel kill this process when the other end of a socket closes, however that comes about.

    It is done by the kernel alone (fcntl(2), F_SETSIG): a process that computes can't miss it.

    Returns:
        Whether the other end is still there.
    """
    os.set_blocking(file, False)
    fcntl.fcntl(file, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | fcntl.FASYNC)
    try:
        return bool(os.read(file, 1))
    except BlockingIOError:
        return True
