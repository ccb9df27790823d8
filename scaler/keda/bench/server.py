"""The server that is measured, as `measured` says.

`edge N` changes whether fleet N is active and prints when (CLOCK_MONOTONIC, which all processes share). Every second all fleets are
published anew, fifty at a time, as the loop does.
"""

import asyncio
import sys
import time

from scaler.keda.bench import measured
from scaler.keda.published import Board, FleetFigures
from scaler.keda.server import KedaServer
from scaler.keda.settings import KedaSettings

_STRETCH = 50
"""Policies that one tick looks at when nothing happens (`scaler.runtime.lookout`)."""


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
            measured.look_at_young_garbage()
            for start in range(0, len(names), _STRETCH):
                publish(*names[start : start + _STRETCH])
                await asyncio.sleep(_STRETCH / len(names))

    server = KedaServer(board, time.monotonic, time.time, KedaSettings(port=0))
    async with server.serve() as port, asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(look())
        measured.say(port)
        async for words in measured.lines():
            name = fleet(int(words[1]))
            totals[name] = 0 if totals[name] else 5
            measured.say(time.monotonic())
            publish(name)
        looking.cancel()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
