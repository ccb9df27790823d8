"""One look at one GPU: counters, free memory, the test, counters again. Nothing here knows a driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warmpool.nodehealth.preflight.findings import Finding, Outcome, of_counters, of_free, of_march
from warmpool.nodehealth.preflight.march import march
from warmpool.nodehealth.preflight.ports import DriverFailed, Gpu, Untestable

_MIB: Final = 2**20
RESERVE_BYTES: Final = 256 * _MIB
"""What a test leaves free: the driver wants some for itself."""
ALONE_BYTES: Final = 2048 * _MIB
"""What may be in use on a GPU that nobody has: the driver's own, and the look's context. An engine's weights are more."""
CONTEXT_BYTES: Final = 576 * _MIB
"""What the look's own context takes of a GPU, and a little more (520 MiB of an H200 with driver 580): an engine's, which takes its
place, is among what the engine needs."""
_FREE_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Limits:
    """What a look may take.

    Attributes:
        seconds: how long the test may take.
        beside_bytes: how much memory may be tested where somebody else is on the GPU, whom the test slows down.
        most_bytes: how much may be tested where nobody is, but somebody may come and want the rest; None: all that is free.
        needed_bytes: what must be free, the engine's context included; 0: nothing is asked for.
        free_seconds: how long that is waited for: who ended just now may still hold it.
    """

    seconds: float = 2.0
    beside_bytes: int = 1024 * _MIB
    most_bytes: int | None = None
    needed_bytes: int = 0
    free_seconds: float = 5.0


@dataclass(frozen=True)
class Time:
    """A clock, and a way to let time pass.

    Attributes:
        now: monotonic seconds.
        sleep: waits for so many seconds.
    """

    now: Callable[[], float]
    sleep: Callable[[float], None]


def look(gpu: Gpu, limits: Limits, time: Time) -> Finding:
    """Look at one GPU, and say what came of it."""
    try:
        before = gpu.counters()
        found = of_counters(gpu.uuid, before)
        if found is None and limits.needed_bytes:
            found = of_free(gpu.uuid, _free_in_time(gpu, limits, time), limits.needed_bytes)
        if found is not None:
            return found
        coverage = march(gpu, _most(gpu, limits), limits.seconds, time.now)
        return of_march(gpu.uuid, coverage, before, gpu.counters())
    except Untestable as failed:
        return Finding(Outcome.SKIPPED, gpu.uuid, f"its memory can't be tested: {failed}")
    except DriverFailed as failed:
        outcome = Outcome.ERRORS if failed.by_memory else Outcome.DRIVER_FAILED
        return Finding(outcome, gpu.uuid, str(failed))


def _free_in_time(gpu: Gpu, limits: Limits, time: Time) -> int:
    """Return what an engine would find free, once it is enough or has been waited for."""
    until = time.now() + limits.free_seconds
    while True:
        free = gpu.sizes()[0] + CONTEXT_BYTES
        if free >= limits.needed_bytes or time.now() >= until:
            return free
        time.sleep(_FREE_POLL_SECONDS)


def _most(gpu: Gpu, limits: Limits) -> int:
    """Return how much may be tested: little beside somebody, who may be serving."""
    free, total = gpu.sizes()
    room = max(0, free - RESERVE_BYTES)
    if total - free > ALONE_BYTES:
        return min(room, limits.beside_bytes)
    return room if limits.most_bytes is None else min(room, limits.most_bytes)
