"""What the decision loop of a large controller costs: one policy's share of the law, a tick for one burst, a tick over all.

    python -m scaler.runtime.bench.core --policies 500 --seats 10000

The ticks are the controller's own, from the look at the caches to the record of the decision; only what they would have
done to seats is not begun, so what is wanted stays wanted. Loads move at every look, so that windows, rates and bursts are
at work. Rounds: the law alone for one policy with a fleet of its own; a tick woken by one policy whose load has changed; the
same with a fleet of seats that has changed; a tick over everything with the seats as they were; the same with every seat
reported anew; and an hour of virtual time, at the end of which memory is read. Garbage is collected as the processes do it: the
young between two ticks, a second apart, which is told apart.

Each figure is told twice: in time of this thread on a processor, and by the clock on the wall, in which other processes of the
machine count too. The former still holds what the kernel and the host took in between, timer interrupts above all: tens of
microseconds, which a short round meets once in a hundred times. So the law for one policy is also run several times over the
same inputs, and the least time of each round is told: what the law itself costs.
"""

import argparse
import gc
import math
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry

from scaler.cluster.port import Cluster
from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import (
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)
from scaler.runtime.actuator import Ports
from scaler.runtime.bench import estate
from scaler.runtime.bench.estate import Idle, Shape, Standing
from scaler.runtime.controller import Controller, PolicyTable, Wiring
from scaler.runtime.events import EventLog
from scaler.runtime.garbage import freeze_what_there_is, look_at_the_young
from scaler.runtime.mailbox import Mailbox, Wake
from scaler.runtime.metrics import ControllerMetrics
from warmpool.claim import Term
from warmpool.seats import FleetName, PolicyName

_EPOCH = 1_800_000_000.0
_HOUR_SECONDS = 3600
_SAMPLE_SECONDS = 0.05
_BURST_SHARE = 0.01
_REPEATS = 5
_Result = TypeVar("_Result")


class Spent(NamedTuple):
    """What something took, in seconds.

    Attributes:
        processor: of this thread on a processor.
        wall: by the clock on the wall.
    """

    processor: float
    wall: float


def _spent(do: Callable[[], _Result]) -> tuple[Spent, _Result]:
    wall, processor = time.perf_counter(), time.thread_time()
    result = do()
    took = time.thread_time() - processor
    return Spent(took, time.perf_counter() - wall), result


class _Time:
    """The clock of the bench: it stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return _EPOCH + self.now


class _Moving:
    """A load for each policy that is another at every look, as `Signals`; now and then it bursts."""

    def __init__(self) -> None:
        self._random = random.Random(20)

    def load(self, policy: PolicyName, now: float) -> Load:
        """Return the next load."""
        del policy, now
        return moving_load(self._random)

    def observed_at(self, policy: PolicyName) -> float | None:
        """Return no time."""
        del policy
        return None

    def seen(self, policies: Iterable[PolicyName]) -> None:
        """Take note of nothing."""


def moving_load(source: random.Random) -> Load:
    """Return a load as a gateway tells it: mostly near 200 requests, sometimes three times that with a queue."""
    burst = source.random() < _BURST_SHARE
    in_flight, queued = (
        source.gauss(200.0, 10.0) * (3 if burst else 1),
        source.random() * (300 if burst else 0),
    )
    in_flight = max(0.0, in_flight)
    return Load(
        queued=_fresh(queued),
        in_flight=_fresh(in_flight),
        oldest_wait=_fresh(queued / 400.0),
        peak=_fresh(queued + in_flight),
        completions=_fresh(in_flight / 4.0),
        arrivals=_fresh(in_flight / 4.0),
    )


def _fresh(value: float) -> Reading:
    return Reading(value=value, age=0.02, quality=Quality.FRESH)


# ------------------------------------------------------------------ the law for one policy


def one_policy(rounds: int) -> Sequence[Spent]:
    """Return what `decide` takes for one policy on a fleet of its own, with loads that move: the same ones at each call."""
    name, fleet = PolicyName("chat"), FleetName("chat")
    policy = PolicySpec(name=name, fleets=(FleetShare(fleet=fleet, target_in_flight=32),), serving_min=1)
    spec = FleetSpec(name=fleet, max_seats=16, spare_target=2)
    view = FleetView(serving=8, spare=8, replicas=16, supply={name: Supply(serving=8, promotable=8)})
    source, memory, found = random.Random(7), Memory.initial(0.0), []
    for number in range(rounds):
        snapshot = Snapshot(loads={name: moving_load(source)}, fleets={fleet: view})
        now = number * _SAMPLE_SECONDS
        spent, (_, memory) = _spent(partial(decide, [policy], [spec], snapshot, memory, now))
        found.append(spent)
    return found


def least(runs: Sequence[Sequence[Spent]]) -> Sequence[Spent]:
    """Return the least that each round took in runs over the same inputs: nothing but itself makes that longer."""
    return [
        Spent(min(each.processor for each in round_), min(each.wall for each in round_))
        for round_ in zip(*runs, strict=True)
    ]


# ------------------------------------------------------------------ ticks


class Bench:
    """A controller over an estate.

    Args:
        shape: how large it is.

    Attributes:
        collected: what looking for garbage took between two ticks over everything.
    """

    def __init__(self, shape: Shape) -> None:
        self.collected: list[Spent] = []
        self.table = estate.table(shape)
        self.cluster = Standing(estate.stock(self.table, _EPOCH))
        self.time = _Time()
        self.controller = _controller(self.table, self.cluster, self.time)
        self._source = random.Random(3)
        self._tick(Wake(causes={"start": 1}, everything=True), 0.0)

    def _tick(self, wake: Wake, after: float) -> Spent:
        self.time.now += after
        return _spent(partial(self.controller.tick, wake))[0]

    def woken(self, rounds: int) -> Sequence[Spent]:
        """Return what ticks take that a sample of one policy wakes; what falls due beside is not in them."""
        return [self._one(lambda _fleet: None) for _ in range(rounds)]

    def woken_with_seats(self, rounds: int) -> Sequence[Spent]:
        """Return the same where also the seats of the policy's shared fleet have changed."""
        return [self._one(self.cluster.touch) for _ in range(rounds)]

    def _one(self, change: Callable[[FleetName], None]) -> Spent:
        policy = self._source.choice(self.table.policies)
        if self.controller.due_at <= self.time.now + _SAMPLE_SECONDS:
            self._tick(Wake(causes={"deadline": 1}, everything=True), 0.0)
        change(policy.fleets[-1].fleet)
        causes = {"sample": 1, "cluster": 1}
        return self._tick(Wake(causes=causes, policies=frozenset({policy.name})), _SAMPLE_SECONDS / 1000)

    def whole(self, rounds: int, *, changed: bool) -> Sequence[Spent]:
        """Return what ticks over everything take.

        Args:
            rounds: how many.
            changed: every seat is reported anew before each.
        """
        found = []
        for _ in range(rounds):
            for fleet in self.table.fleets if changed else ():
                self.cluster.touch(fleet.name)
            self.collected.append(_spent(look_at_the_young)[0])
            found.append(self._tick(Wake(causes={"policies": 1}, everything=True), 1.0))
        return found

    def stretches(self, seconds: int) -> Sequence[Spent]:
        """Let time pass without events; return what each tick took that came of what was due."""
        found, until = [], self.time.now + seconds
        while self.time.now < until:
            wait = max(0.001, self.controller.due_at - self.time.now)
            found.append(self._tick(Wake(causes={"deadline": 1}), wait))
        return found


def _controller(table: PolicyTable, standing: Standing, clock: _Time) -> Controller:
    cluster: Cluster = standing
    mailbox, events = Mailbox(), EventLog(lambda _: None, clock)
    ports = Ports(cluster=cluster, agents=None, clock=clock, events=events)  # type: ignore[arg-type] # nothing is done
    wiring = Wiring(
        cluster=cluster,
        signals=_Moving(),
        actuator=Idle(ports, Term(holder="bench", epoch=1), mailbox.ended),
        events=events,
        clock=clock,
        metrics=ControllerMetrics(CollectorRegistry()),
        ledger=lambda _: None,
    )
    return Controller(table, wiring, mailbox)


# ------------------------------------------------------------------ what is said


def _resident_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def _say(what: str, spent: Sequence[Spent], unit: tuple[str, float]) -> None:
    name, scale = unit
    if not spent:
        sys.stdout.write(f"{what}: not measured\n")
        return
    sys.stdout.write(
        f"{what}: processor {_figures([each.processor for each in spent], scale)}; "
        f"wall {_figures([each.wall for each in spent], scale)} {name} of {len(spent)}\n"
    )
    sys.stdout.flush()


def _figures(seconds: Sequence[float], scale: float) -> str:
    ordered = sorted(seconds)
    p99 = ordered[math.ceil(len(ordered) * 0.99) - 1]
    parts = {"p50": ordered[len(ordered) // 2], "p99": p99, "worst": ordered[-1]}
    return ", ".join(f"{part} {value * scale:.2f}" for part, value in parts.items())


def main() -> int:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policies", type=int, default=500)
    parser.add_argument("--seats", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2000, help="ticks for one policy")
    parser.add_argument("--whole", type=int, default=40, help="ticks over everything")
    parser.add_argument(
        "--hour", type=int, default=_HOUR_SECONDS, help="seconds of virtual time before memory is read"
    )
    options = parser.parse_args()
    sys.stdout.write(
        f"{options.policies} policies, {options.seats} seats; Python {sys.version.split()[0]}; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
    )
    micro, milli = ("µs", 1e6), ("ms", 1e3)
    freeze_what_there_is()
    one_policy(200)
    runs = [one_policy(options.rounds * 2) for _ in range(_REPEATS)]
    _say("the law for one policy", [spent for run in runs for spent in run], micro)
    _say(f"the same, the least of {_REPEATS} runs of each round", least(runs), micro)
    bench = Bench(Shape(options.policies, options.seats))
    freeze_what_there_is()
    _say("tick woken by one policy", bench.woken(options.rounds), milli)
    _say("the same, a shared fleet's seats changed", bench.woken_with_seats(options.rounds), milli)
    _say("tick over all, seats as they were", bench.whole(options.whole, changed=False), milli)
    _say("tick over all, every seat anew", bench.whole(options.whole, changed=True), milli)
    _say("garbage, between two of these ticks", bench.collected, milli)
    gc.collect()
    _say(f"ticks by time alone, {options.hour} s", bench.stretches(options.hour), milli)
    sys.stdout.write(f"memory at most: {_resident_megabytes():.0f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
