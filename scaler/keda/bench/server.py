"""The server that is measured: a process of its own, told what to do through its input, a line at a time.

`settle` takes what there is out of the garbage collector's sight, as the controller does; `edge N` changes whether fleet N is active and prints when (CLOCK_MONOTONIC, which all processes share); `usage` prints its
processor seconds so far, the most memory that it has held, in MiB, and the seconds that it has waited for a core. Every second all
fleets are published anew, fifty at a time, as the loop does.
"""

import asyncio
import gc
import resource
import sys
import time
from pathlib import Path

from scaler.keda.published import Board, FleetFigures
from scaler.keda.server import KedaServer
from scaler.keda.settings import KedaSettings

_STRETCH = 50
"""Policies that one tick looks at when nothing happens (`scaler.runtime.lookout`)."""
_THRESHOLDS = (100_000, 20, 1_000_000)
_YOUNG = 20_000
"""What the controller has the garbage collector do, and when it has the young looked at (`scaler.runtime.garbage`)."""
_SCHEDSTAT = Path("/proc/self/schedstat")
"""Of the first thread, which does all the work here: nanoseconds on a core, and waiting for one (proc_pid_schedstat)."""


def fleet(number: int) -> str:
    """Return the name of a fleet."""
    return f"fleet-{number:04d}"


async def _serve(fleets: int) -> None:
    board, totals = Board(), dict.fromkeys(map(fleet, range(fleets)), 5)
    board.follow(dict.fromkeys(totals, "serving"), {})

    def publish(*names: str) -> None:
        now = time.monotonic()
        figures = {
            name: FleetFigures(at=now, total=totals[name], serving=totals[name], spare=2) for name in names
        }
        board.publish(figures, {})

    async def look() -> None:
        names = list(totals)
        while True:
            if gc.get_threshold()[0] == _THRESHOLDS[0] and gc.get_count()[0] >= _YOUNG:
                gc.collect(0)
            for start in range(0, len(names), _STRETCH):
                publish(*names[start : start + _STRETCH])
                await asyncio.sleep(_STRETCH / len(names))

    server = KedaServer(board, time.monotonic, time.time, KedaSettings(port=0))
    lines = await _input()
    async with server.serve() as port, asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        _say(port)
        while line := (await lines.readline()).decode().split():
            if line[0] == "settle":
                _keep_garbage_quiet()
                _say("settled")
            elif line[0] == "edge":
                name = fleet(int(line[1]))
                totals[name] = 0 if totals[name] else 5
                _say(time.monotonic())
                publish(name)
            else:
                _say(*_usage())
        looking.cancel()


def _keep_garbage_quiet() -> None:
    """Do what the controller does once it has decided (`scaler.runtime.garbage`)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def _usage() -> tuple[float, float, float]:
    """Return processor seconds, the most memory held in MiB, and seconds of waiting for a core."""
    waited = int(_SCHEDSTAT.read_text("ascii").split()[1]) / 1e9
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, waited


async def _input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
