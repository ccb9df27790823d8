"""How much a reload of the policies delays the decision loop of a large controller.

    python -m scaler.runtime.bench.reload --policies 500 --seats 10000

A controller ticks at fixed moments over policies that are read from files and seats that stand still. A tick is delayed
by the time from its moment to its end, less the time for which its thread computed: by waiting for the loop, for the
interpreter's lock and, on a machine that is busy with other things, for a processor; the first round tells how much that
is. The longest turn is what else the loop did at a stretch between ticks, in its thread's own time; a collection of all
garbage, which takes long where so many seats are known, falls into some turn or tick of every round, and its time is
printed too. Rounds: nothing else; one file changed; every file changed; and, to compare, every file read by a thread of
the same process instead of by the reader's.
"""

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from scaler.cluster.port import Cluster, Stock
from scaler.core.model import Load, Quality, Reading
from scaler.errors import PolicyFault
from scaler.policy import reading
from scaler.policy.bench.reading import model_text, write_policies
from scaler.policy.compile import PolicySet
from scaler.policy.reading import PolicyFiles
from scaler.runtime.actuator import Ports
from scaler.runtime.bench.estate import Idle, Standing, stock
from scaler.runtime.clock import SystemClock
from scaler.runtime.controller import Controller, PolicyTable, Wiring
from scaler.runtime.events import EventLog
from scaler.runtime.garbage import freeze_what_there_is
from scaler.runtime.mailbox import Mailbox, Wake
from scaler.runtime.metrics import ControllerMetrics
from scaler.runtime.policy_process import PolicyReader
from scaler.runtime.reload import Cause, Reloader, Told
from warmpool.claim import Term
from warmpool.seats import PolicyName

_FRESH = Reading(value=40.0, age=0.1, quality=Quality.FRESH)
_NOTHING = Reading(value=0.0, age=0.1, quality=Quality.FRESH)
_LOAD = Load(queued=_NOTHING, in_flight=_FRESH, peak=_FRESH)
_EVERYTHING = Wake(causes={"sample": 1}, everything=True)


class _Steady:
    """The same load for every policy, as `Signals`."""

    def load(self, policy: PolicyName, now: float) -> Load:
        del policy, now
        return _LOAD

    def observed_at(self, policy: PolicyName) -> float | None:
        del policy
        return None

    def seen(self, policies: Iterable[PolicyName]) -> None:
        pass


class _Whole:
    """Puts a set in force as it is, as `Force`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def refuse(self, offered: reading.Reading) -> Sequence[PolicyFault]:
        del offered
        return ()

    def adopt(self, policies: PolicySet) -> Sequence[str]:
        self._controller.adopt(_table(policies))
        return ()


def _table(policies: PolicySet) -> PolicyTable:
    return PolicyTable(
        policies=tuple(policies.policy_specs.values()),
        fleets=tuple(policies.fleet_specs.values()),
        hash=policies.short_hash,
        models={name: policy.models for name, policy in policies.policies.items()},
        calendar=policies.calendar,
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """One controller with its reloader."""

    controller: Controller
    reloader: Reloader
    directory: Path
    policies: int
    every: float
    ticks: int

    async def round(self, meanwhile: Callable[[], Awaitable[object]] | None) -> "_Ticks":
        """Tick at fixed moments."""
        loop = asyncio.get_running_loop()
        found = _Ticks([], [], [], [])
        gc.callbacks.append(found.collected)
        async with asyncio.TaskGroup() as tasks:
            begin = loop.time() + self.every
            turning = tasks.create_task(found.take_turns())
            if meanwhile is not None:
                tasks.create_task(_later(self.every / 2, meanwhile))
            for number in range(self.ticks):
                due = begin + number * self.every
                await asyncio.sleep(due - loop.time())
                began = time.thread_time()
                self.controller.tick(_EVERYTHING)
                found.computed.append(time.thread_time() - began)
                found.delayed.append(loop.time() - due - found.computed[-1])
            turning.cancel()
        gc.callbacks.remove(found.collected)
        return found

    async def change(self, count: int, priority: int) -> None:
        """Write other files for so many models, and have them reloaded."""
        for number in range(count):
            path = self.directory / f"model-{number:04d}.yaml"
            path.write_text(model_text(number, priority=priority), "utf-8")
            await asyncio.sleep(0)  # this is the bench's own work, and not what is measured
        await self.reloader.request(Cause.REQUEST)

    async def in_a_thread(self) -> None:
        """Read everything anew in a thread of this process."""
        await asyncio.to_thread(PolicyFiles([self.directory]).read)


@dataclass(frozen=True, slots=True)
class _Ticks:
    """For each tick the seconds that it computed, and those by which it was delayed; the loop's turns between ticks."""

    computed: list[float]
    delayed: list[float]
    turns: list[float]
    collections: list[float]

    def collected(self, phase: str, facts: Mapping[str, int]) -> None:
        """Take the time of a collection of all garbage; see `gc.callbacks`."""
        if facts["generation"] == 2:  # noqa: PLR2004 - the oldest
            now = time.thread_time()
            self.collections.append(now if phase == "start" else now - self.collections.pop())

    async def take_turns(self) -> None:
        """Measure how long the loop is busy at a stretch, ticks aside."""
        while True:
            began, ticks = time.thread_time(), len(self.computed)
            await asyncio.sleep(0.0005)
            if len(self.computed) == ticks:
                self.turns.append(time.thread_time() - began)

    def __str__(self) -> str:
        """Say it in a line."""
        worst, ninth = max(self.delayed) * 1e3, sorted(self.delayed)[len(self.delayed) * 9 // 10] * 1e3
        return (
            f"{len(self.delayed)} ticks computed for {min(self.computed) * 1e3:.0f} to {max(self.computed) * 1e3:.0f} ms, "
            f"delayed by at most {worst:.1f} ms, 90 % by at most {ninth:.1f} ms; longest turn {max(self.turns) * 1e3:.1f} ms; "
            f"{len(self.collections)} collections, the longest {max(self.collections, default=0) * 1e3:.0f} ms"
        )


async def _later(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(seconds)
    began = time.perf_counter()
    await work()
    sys.stdout.write(f"(took {time.perf_counter() - began:.1f} s) ")


async def _measure(directory: Path, options: argparse.Namespace) -> None:
    policies = PolicyFiles([directory]).read().set
    controller, events, metrics = _controller(policies, options.seats)
    reader = PolicyReader([directory])
    told = Told(metrics=metrics.reloads, events=events, clock=SystemClock())
    reloader = Reloader(reader, _Whole(controller), policies, told)
    bench = _Bench(controller, reloader, directory, options.policies, options.every, options.ticks)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reloader.run())
        await reloader.request(Cause.REQUEST)  # the reader has started and has read everything once
        controller.tick(_EVERYTHING)
        freeze_what_there_is()  # as the processes do once they have decided
        _say("nothing else", await bench.round(None))
        _say("one file changed", await bench.round(lambda: bench.change(1, 1)))
        _say("every file changed", await bench.round(lambda: bench.change(options.policies, 2)))
        _say("every file, in a thread", await bench.round(bench.in_a_thread))
        running.cancel()
    await reader.close()


def _controller(policies: PolicySet, count: int) -> tuple[Controller, EventLog, ControllerMetrics]:
    table, clock, mailbox = _table(policies), SystemClock(), Mailbox()
    cluster: Cluster = Standing(_cut(stock(table, 0.0), count))
    metrics, events = ControllerMetrics(CollectorRegistry()), EventLog(lambda _: None, clock)
    ports = Ports(cluster=cluster, agents=None, clock=clock, events=events)  # type: ignore[arg-type] # nothing is done
    wiring = Wiring(
        cluster=cluster,
        signals=_Steady(),
        actuator=Idle(ports, Term(holder="bench", epoch=1), mailbox.ended),  # not run: actions are not begun
        events=events,
        clock=clock,
        metrics=metrics,
        ledger=lambda _: None,
    )
    return Controller(table, wiring, mailbox), events, metrics


def _cut(of: Stock, count: int) -> Stock:
    """Return as many seats as were asked for, of the fleets that come first."""
    left, kept = count, {}
    for fleet, seats in of.items():
        kept[fleet] = seats[:left]
        left -= len(kept[fleet])
    return kept


def _say(what: str, ticks: _Ticks) -> None:
    sys.stdout.write(f"{what}: {ticks}\n")
    sys.stdout.flush()


def main() -> int:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--seats", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=1.0, help="seconds from tick to tick")
    parser.add_argument("--ticks", type=int, default=30)
    options = parser.parse_args()
    sys.stdout.write(
        f"{options.policies} policies, {options.seats} seats; load average {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores\n"
    )
    with tempfile.TemporaryDirectory(prefix="policies-") as name:
        write_policies(Path(name), options.policies)
        asyncio.run(_measure(Path(name), options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
