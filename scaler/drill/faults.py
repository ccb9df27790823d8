"""What a drill breaks on purpose: the engine with most to lose gets a SIGKILL."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp

from scaler.drill.collect import Hit
from scaler.drill.load import Tally
from scaler.drill.scenario import Fault

_REQUEST_SECONDS = 2.0


async def inject(faults: Sequence[Fault], controller: str, tally: Tally, tell: Callable[[Hit], None]) -> None:
    """Wait for each fault's time and inject it; `tell` gets what was hit."""
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for fault in sorted(faults, key=lambda one: one.at_seconds):
            await asyncio.sleep(max(0.0, fault.at_seconds - tally.now()))
            tell(await _kill_engine(fault, session, controller, tally))


async def _kill_engine(fault: Fault, session: aiohttp.ClientSession, controller: str, tally: Tally) -> Hit:
    try:
        async with session.get(f"{controller}/v1/seats") as response:
            seats = (await response.json())["items"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
        return Hit(type=fault.type, policy=fault.policy, at=tally.now(), error=f"no list of seats: {error!r}")
    victim = choose(seats, fault.policy)
    if victim is None:
        message = f"no seat serves {fault.policy} with a process that can be seen"
        return Hit(type=fault.type, policy=fault.policy, at=tally.now(), error=message)
    seat, pid = victim
    at = tally.now()
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        return Hit(
            type=fault.type, policy=fault.policy, at=at, error=f"can't kill process {pid}: {error.strerror}"
        )
    neighbours = tuple(
        (str(resident["policy"]), int(resident["pid"]))
        for resident in seat.get("residents", ())
        if resident["policy"] != fault.policy and resident.get("pid")
    )
    return Hit(
        type=fault.type, policy=fault.policy, at=at, seat=str(seat["name"]), pid=pid, neighbours=neighbours
    )


def choose(seats: Sequence[Mapping[str, Any]], policy: str) -> tuple[Mapping[str, Any], int] | None:
    """Choose the seat in rotation for `policy` with most requests in flight; its engine's process comes along."""
    candidates = [
        (int(resident.get("inFlight") or 0), str(seat["name"]), int(resident["pid"]), seat)
        for seat in seats
        if policy in seat.get("serving", ())
        for resident in seat.get("residents", ())
        if resident["policy"] == policy and resident.get("pid")
    ]
    if not candidates:
        return None
    _, _, pid, seat = max(candidates, key=lambda candidate: candidate[:2])
    return seat, pid
