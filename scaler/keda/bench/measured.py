"""A process that is measured: it is told what to do through its input, a line at a time, and answers each on its output.

`settle` takes what there is out of the garbage collector's sight, as the controller does; `usage` prints its processor seconds so far,
the most memory that it has held, in MiB, and the seconds that it has waited for a core. What else there is belongs to each.
"""

import asyncio
import gc
import resource
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_THRESHOLDS: Final = (100_000, 20, 1_000_000)
_YOUNG: Final = 20_000
"""What the controller has the garbage collector do, and when it has the young looked at (`scaler.runtime.garbage`)."""
_SCHEDSTAT: Final = Path("/proc/self/schedstat")
"""Of the first thread, which does all the work here: nanoseconds on a core, and waiting for one (proc_pid_schedstat)."""


async def lines() -> AsyncIterator[list[str]]:
    """Yield the words of each line that isn't answered here, until the input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while words := (await reader.readline()).decode().split():
        match words[0]:
            case "settle":
                _keep_garbage_quiet()
                say("settled")
            case "usage":
                say(*_usage())
            case _:
                yield words


def say(*words: object) -> None:
    """Answer."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def look_at_young_garbage() -> None:
    """Do what the controller does between two ticks, once it is settled."""
    if gc.get_threshold()[0] == _THRESHOLDS[0] and gc.get_count()[0] >= _YOUNG:
        gc.collect(0)


def _keep_garbage_quiet() -> None:
    """Do what the controller does once it has decided (`scaler.runtime.garbage`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _usage() -> tuple[float, float, float]:
    """Return processor seconds, the most memory held in MiB, and seconds of waiting for a core."""
    waited = int(_SCHEDSTAT.read_text("ascii").split()[1]) / 1e9
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, waited
