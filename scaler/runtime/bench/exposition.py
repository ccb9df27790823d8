"""How long the metrics page of a large controller takes, and how long its loop is held up by it.

    python -m scaler.runtime.bench.exposition --policies 500 --seats 10000

The estate is `scaler.runtime.bench.estate`'s, the decision the law's own. Two pages are written: one of a quiet controller, and one on which every policy has been
promoted by every operation, so that all histograms are there. While a page is written another task asks for a turn of
the loop again and again; the longest that it waits is what a tick or a promotion would wait.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest

from scaler.core.decide import decide
from scaler.core.islands import Island
from scaler.core.memory import Memory
from scaler.core.model import Load, Quality, Reading
from scaler.runtime.bench.estate import Shape, stock, table
from scaler.runtime.controller import PolicyTable, Tick
from scaler.runtime.events import PromotionRecord, Trigger
from scaler.runtime.metrics import ControllerMetrics, Page
from scaler.runtime.metrics.catalogue import PROMOTIONS
from scaler.runtime.observer import observe
from warmpool.plan import Plan
from warmpool.seats import SeatName

_STEP_SECONDS = 0.25


def ticks(of: PolicyTable, count: int) -> Sequence[Tick]:
    """Return as many ticks, decided by the law from steady loads."""
    reading = Reading(value=40.0, age=0.1, quality=Quality.FRESH)
    load = Load(queued=Reading(value=0.0, age=0.1, quality=Quality.FRESH), in_flight=reading, peak=reading)
    everything, memory, made = stock(of, 0.0), Memory.initial(0.0), []
    held = {fleet: len(seats) for fleet, seats in everything.items()}
    for number in range(1, count + 1):
        snapshot = observe(of.policies, of.fleets, everything, held.__getitem__, lambda _: load)
        decision, memory = decide(of.policies, of.fleets, snapshot, memory, number * _STEP_SECONDS)
        made.append(
            Tick(
                number=number,
                at=1e9 + number * _STEP_SECONDS,
                causes={"sample": 1},
                looked=Island(tuple(of.policies), tuple(of.fleets)),
                snapshot=snapshot,
                decision=decision,
                plan=Plan(),
                stock=everything,
            )
        )
    return made


def promote_all(metrics: ControllerMetrics, of: PolicyTable) -> None:
    """Tell of one promotion of every policy by every operation, with its first token."""
    for policy in of.policies:
        for operation in PROMOTIONS:
            record = PromotionRecord(
                claim="c",
                operation=operation,
                policy=policy.name,
                fleet=policy.fleets[0].fleet,
                seat=SeatName("s"),
                trigger=Trigger(sample=0.0, decision=0.004),
                claimed=0.012,
                resumed=0.05,
                canary=0.06,
                rotation=0.07,
            )
            metrics.promoted(record)
            metrics.answered(record, 0.09, waited=True)


async def written(page: Page) -> tuple[float, float, int]:
    """Write the page; return the seconds of work that it took, the longest wait for a turn of the loop, and its bytes.

    Work is counted in seconds of this thread on a processor, so that other processes on the machine don't count.
    """
    waits: list[float] = []
    done = asyncio.Event()

    async def take_turns() -> None:
        while not done.is_set():
            asked = time.thread_time()
            await asyncio.sleep(0)
            waits.append(time.thread_time() - asked)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take_turns())
        await asyncio.sleep(0)
        began = time.thread_time()
        text = await page.render()
        seconds = time.thread_time() - began
        done.set()
    return seconds, max(waits), len(text)


@dataclass(frozen=True, slots=True)
class Figures:
    """What some pages of one registry took.

    Attributes:
        pages: seconds of each page.
        waits: longest wait for a turn of the loop during each, in seconds.
        length: bytes of one page.
    """

    pages: Sequence[float]
    waits: Sequence[float]
    length: int


def measure(registry: CollectorRegistry, rounds: int) -> Figures:
    """Write the page again and again, as a Prometheus has it done; the first one is not counted."""
    page = Page(registry)
    asyncio.run(page.render())
    found = [asyncio.run(written(page)) for _ in range(rounds)]
    return Figures([each[0] for each in found], [each[1] for each in found], found[0][2])


def controller(shape: Shape) -> tuple[CollectorRegistry, ControllerMetrics, Sequence[float]]:
    """Return the metrics of a controller that has made five ticks, and the seconds that telling of each took."""
    of = table(shape)
    registry = CollectorRegistry()
    metrics, told = ControllerMetrics(registry), []
    for tick in ticks(of, 5):
        began = time.perf_counter()
        metrics.ticked(tick, of)
        told.append(time.perf_counter() - began)
    return registry, metrics, told


def _say(name: str, registry: CollectorRegistry, rounds: int) -> None:
    figures = measure(registry, rounds)
    began = time.perf_counter()
    whole = generate_latest(registry)
    standard = time.perf_counter() - began
    rows = sum(1 for line in whole.splitlines() if not line.startswith(b"#"))
    sys.stdout.write(
        f"{name}: {rows:,} series, {figures.length / 1e6:.1f} MB; page {_times(figures.pages)}; longest wait for the loop "
        f"{_times(figures.waits)}; the client's own writer {standard * 1e3:.0f} ms at once\n"
    )


def _times(seconds: Sequence[float]) -> str:
    return f"best {min(seconds) * 1e3:.1f}, median {statistics.median(seconds) * 1e3:.1f} ms"


def main() -> int:
    """Measure, and print a few lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--seats", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    shape = Shape(options.policies, options.seats)
    registry, metrics, told = controller(shape)
    sys.stdout.write(
        f"{shape.policies} policies, {shape.seats} seats; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
        f"told of a tick: {_times(told)}\n"
    )
    _say("quiet", registry, options.rounds)
    promote_all(metrics, table(shape))
    _say("every policy promoted by every operation", registry, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
