"""Looking on while the load runs: polls of the controller, samples of CPU. What can't be read is missed, never fatal."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from scaler.drill.collect import Evidence, SeatsPoll, load_point
from scaler.drill.cpu import CpuMeter, CpuSample, ProcessTree
from scaler.drill.load import Tally

_POLL_SECONDS = 0.5
_CPU_SECONDS = 1.0
_REQUEST_SECONDS = 2.0


@dataclass(slots=True)
class Live:
    """The latest answers, for the display.

    Attributes:
        policies: items of `GET /v1/policies`, by name.
        seats: items of `GET /v1/seats`.
        cpu: the latest CPU sample; None before the first.
        missed: polls without an answer.
    """

    policies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    seats: list[Mapping[str, Any]] = field(default_factory=list)
    cpu: CpuSample | None = None
    missed: int = 0


async def poll(controller: str, tally: Tally, evidence: Evidence, live: Live) -> None:
    """Poll policies and seats until cancelled; answers go to `evidence` and `live`."""
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            await _poll_once(session, controller, tally, evidence, live)
            await asyncio.sleep(_POLL_SECONDS)


async def _poll_once(
    session: aiohttp.ClientSession, controller: str, tally: Tally, evidence: Evidence, live: Live
) -> None:
    policies = await _items(session, f"{controller}/v1/policies")
    seats = await _items(session, f"{controller}/v1/seats")
    at = tally.now()
    if policies is None or seats is None:
        live.missed += 1
        return
    live.policies = {str(item.get("name")): item for item in policies}
    live.seats = sorted(seats, key=lambda item: (str(item.get("fleet")), str(item.get("name"))))
    evidence.seats.append(SeatsPoll(at=at, seats=seats))
    for name, item in live.policies.items():
        evidence.load.setdefault(name, []).append(load_point(item, at))


async def _items(session: aiohttp.ClientSession, url: str) -> list[Mapping[str, Any]] | None:
    try:
        async with session.get(url) as response:
            items = (await response.json())["items"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
        return None
    return items if isinstance(items, list) else None


async def meter(tree: ProcessTree, tally: Tally, samples: list[CpuSample], live: Live) -> None:
    """Sample CPU until cancelled; looking through /proc takes milliseconds, so it is done in a thread."""
    meter_ = await asyncio.to_thread(CpuMeter, tree)
    while True:
        await asyncio.sleep(_CPU_SECONDS)
        sample = await asyncio.to_thread(meter_.sample, tally.now())
        samples.append(sample)
        live.cpu = sample
