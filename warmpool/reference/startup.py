"""How the process came up: its phases, with seconds since the kernel started it, for whoever waits for it."""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any


class Phase(StrEnum):
    """The steps of a start, in order."""

    PROCESS = "process"
    IMPORT = "import"
    WEIGHTS = "weights"
    WARM = "warm"
    READY = "ready"


def seconds_since_process_start() -> float:
    """Seconds since the kernel started this process, to a hundredth (proc(5), `starttime`)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


class Startup:
    """The phases that are over. Written by the compute thread, read by the servers."""

    def __init__(self) -> None:
        self._offset = seconds_since_process_start() - time.monotonic()
        self._lock = threading.Lock()
        self._done: dict[Phase, dict[str, Any]] = {}

    def done(self, phase: Phase, **facts: object) -> None:
        """Record that `phase` is over now, and print it as one line of JSON on stderr."""
        entry = {"seconds": round(time.monotonic() + self._offset, 4), **facts}
        with self._lock:
            self._done[phase] = entry
        print(json.dumps({"phase": str(phase), "pid": os.getpid(), **entry}), file=sys.stderr, flush=True)  # noqa: T201 (the interface)

    @property
    def phase(self) -> Phase:
        """The phase that is going on; `ready` once all are over."""
        with self._lock:
            return next((phase for phase in Phase if phase not in self._done), Phase.READY)

    @property
    def is_ready(self) -> bool:
        """Whether all phases are over."""
        with self._lock:
            return Phase.READY in self._done

    def as_json(self) -> Mapping[str, Any]:
        """The phases that are over: name to `seconds` since the process started, and what else is known of it."""
        with self._lock:
            return {str(phase): dict(entry) for phase, entry in self._done.items()}
