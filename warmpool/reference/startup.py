"""How the process came up: its phases, with seconds since the kernel started it, for whoever waits for it."""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Phase(StrEnum):
    """The steps of a start, in order. A fork of a zygote begins with `fork` and has no `import`; others have no `fork`."""

    FORK = "fork"
    PROCESS = "process"
    IMPORT = "import"
    CONTEXT = "context"
    WEIGHTS = "weights"
    COMPILE = "compile"
    CAPTURE = "capture"
    READY = "ready"


def process_start(pid: int) -> float:
    """Return when the kernel started a process, in seconds since the machine's start, to a hundredth (proc(5), `starttime`).

    Raises:
        OSError: there is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How this process came to be.

    Attributes:
        started: when the process that was asked for was started, in seconds since the machine's start; None for this one.
        fork: what is known of its birth, if it is a fork of a zygote; None if it isn't.
        without_zygote: why it isn't, if it was to be.
    """

    started: float | None = None
    fork: Mapping[str, object] | None = None
    without_zygote: str = ""


class Startup:
    """The phases that are over. Written by the compute thread, read by the servers.

    Args:
        origin: how the process came to be; None for a process of its own.
    """

    def __init__(self, origin: Origin | None = None) -> None:
        self._origin = origin or Origin()
        started = self._origin.started
        if started is None:
            started = process_start(os.getpid())
        age = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
        self._offset = age - time.monotonic()
        self._lock = threading.Lock()
        self._done: dict[Phase, dict[str, Any]] = {}
        if self._origin.fork is not None:
            self.done(Phase.FORK, **self._origin.fork)

    def done(self, phase: Phase, **facts: object) -> None:
        """Record that `phase` is over now, and print it as one line of JSON on stderr."""
        if phase not in self._phases:
            return
        if phase is Phase.PROCESS and self._origin.without_zygote:
            facts |= {"withoutZygote": self._origin.without_zygote}
        entry = {"seconds": round(time.monotonic() + self._offset, 4), **facts}
        with self._lock:
            self._done[phase] = entry
        print(json.dumps({"phase": str(phase), "pid": os.getpid(), **entry}), file=sys.stderr, flush=True)  # noqa: T201 (the interface)

    @property
    def _phases(self) -> list[Phase]:
        """The phases of a start of this kind."""
        other = Phase.FORK if self._origin.fork is None else Phase.IMPORT  # the imports were the zygote's
        return [phase for phase in Phase if phase is not other]

    @property
    def phase(self) -> Phase:
        """The phase that is going on; `ready` once all are over."""
        with self._lock:
            return next((phase for phase in self._phases if phase not in self._done), Phase.READY)

    @property
    def is_ready(self) -> bool:
        """Whether all phases are over."""
        with self._lock:
            return Phase.READY in self._done

    def as_json(self) -> Mapping[str, Any]:
        """The phases that are over: name to `seconds` since the process started, and what else is known of it."""
        with self._lock:
            return {str(phase): dict(entry) for phase, entry in self._done.items()}
