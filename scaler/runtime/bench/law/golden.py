"""What the law does under each golden trace, to the last figure, beside HPA's and KPA's rules.

    python -m scaler.runtime.bench.law.golden                          the figures of all three rules
    python -m scaler.runtime.bench.law.golden --write tests/sim/traces write them down: after a change of the law that is meant

A figure that changes without that is a fault, or an improvement that nobody has noticed.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from scaler.core.model import Decision, FleetShare, FleetSpec, Load, PolicySpec
from scaler.runtime.bench.law import hpa, kpa
from scaler.runtime.bench.law.pool import Pool, Shape
from scaler.runtime.bench.law.replicas import Replicas
from scaler.runtime.bench.law.report import table
from scaler.runtime.bench.law.scalers import HpaScaler, KpaScaler, LawScaler
from scaler.runtime.bench.law.service import Service
from scaler.runtime.bench.law.shapes import (
    GOLDEN,
    MOST_SEATS,
    MOST_SERVING,
    SPARES,
    Golden,
    engines_only,
)
from scaler.runtime.bench.law.station import Station
from scaler.runtime.bench.law.timeline import Meter, Timeline
from warmpool.seats import FleetName, PolicyName

_FLEET: Final = FleetName("seats")
_MODEL: Final = PolicyName("model")
_STEP_SECONDS: Final = 0.25
_OBJECTIVE_SECONDS: Final = 1.0


class Step(NamedTuple):
    """One decision, for those who check what must never happen.

    Attributes:
        at: when.
        wanted: residents or replicas that should serve.
        total: seats that there should be.
        unknown: the signals were stale or missing.
    """

    at: float
    wanted: int
    total: int
    unknown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one rule did under one trace.

    Attributes:
        requests: requests.
        late_share: share of them that waited longer than 1 s.
        longest_wait: seconds.
        decision_seconds: from a request that has to wait to the decision that gives more, at worst; None if none did.
        under_seconds: seconds in which demand exceeded the capacity in rotation.
        over_seconds: seconds in which a seat less in rotation, above the floor, would have done.
        seat_seconds: seconds of all seats, whatever they did.
        wasted_seat_seconds: those beyond what demand and floor took at each moment.
        promotions: promotions, switches and recalls; for other rules, replicas that became ready.
        demotions: demotions; for other rules, ready replicas that were removed.
        lowest_total, highest_total: extremes of what the workload was asked for.
        most_serving: most residents in rotation at once.
    """

    requests: int
    late_share: float
    longest_wait: float
    decision_seconds: float | None
    under_seconds: float
    over_seconds: float
    seat_seconds: float
    wasted_seat_seconds: float
    promotions: int
    demotions: int
    lowest_total: int
    highest_total: int
    most_serving: int


class _Watch:
    """Looks on, four times a second and at every decision."""

    def __init__(self, golden: Golden) -> None:
        self.golden = golden
        self.trace = golden.make()
        service = Service()
        self.timeline = Timeline(0.0)
        self.meter = Meter(self.timeline)
        requests = [(arrival.at, service.seconds(arrival)) for arrival in self.trace.arrivals]
        self.station = Station(self.timeline, requests)
        self.steps: list[Step] = []
        self._waiting_since: float | None = None
        self._delays: list[float] = []
        self._under = self._over = self._wasted = 0.0
        self._most = 0

    def start(self, now: float) -> float:
        """Return how long a replica takes to start: one that can't start is tried until it can."""
        fault, seconds = self.golden.fault, self.golden.start
        return seconds if fault is None or not fault.fails_starts(now) else fault.end - now + seconds

    def begin(self) -> None:
        """Look on from now: whoever wants to be told of waiting requests has said so."""
        self._ask = self.station.waited
        self.station.waited = self._waits
        self.timeline.at(0.0, self._look)

    def decided(self, wanted: int, total: int) -> None:
        """Take a decision."""
        fault, now = self.golden.fault, self.timeline.now
        blind = fault is not None and fault.signals is not None and fault.holds(now)
        more = bool(self.steps) and wanted > self.steps[-1].wanted
        self.steps.append(Step(now, wanted, total, blind))
        if more and self._waiting_since is not None:
            self._delays.append(now - self._waiting_since)
            self._waiting_since = None

    def finish(self, promotions: Callable[[], tuple[int, int]]) -> Figures:
        """Run to the end, and say what it came to."""
        self.timeline.run(self.trace.seconds)
        waits = self.station.waits + self.station.leftover(0.0)
        totals = [step.total for step in self.steps]
        up, down = promotions()
        return Figures(
            requests=len(waits),
            late_share=_rounded(sum(wait > _OBJECTIVE_SECONDS for wait in waits) / len(waits), 6),
            longest_wait=_rounded(max(waits)),
            decision_seconds=_rounded(max(self._delays)) if self._delays else None,
            under_seconds=self._under,
            over_seconds=self._over,
            seat_seconds=_rounded(sum(self.meter.read().values())),
            wasted_seat_seconds=self._wasted,
            promotions=up,
            demotions=down,
            lowest_total=min(totals),
            highest_total=max(totals),
            most_serving=self._most,
        )

    def _waits(self) -> None:
        if len(self.station.queue) == 1:
            self._waiting_since = self.timeline.now
        self._ask()

    def _look(self, _: object) -> None:
        demand, capacity, slots = self.station.demand, self.station.capacity, self.golden.slots
        serving = capacity // slots
        needed = max(self.golden.floor, -(-demand // slots))
        self._most = max(self._most, serving)
        self._under += _STEP_SECONDS if demand > capacity else 0.0
        self._over += _STEP_SECONDS if serving > needed else 0.0
        self._wasted += _STEP_SECONDS * max(0, self.meter.all - needed)
        self.timeline.at(self.timeline.now + _STEP_SECONDS, self._look)


def law(golden: Golden) -> tuple[Figures, Sequence[Step]]:
    """Run a trace under the law, with paused spares."""
    watch = _Watch(golden)
    shape = Shape(slots={_MODEL: golden.slots}, start=lambda now: _start(golden, now))
    pool = Pool(watch.timeline, watch.meter, {_FLEET: shape}, {_MODEL: watch.station})
    pool.fill(_FLEET, golden.floor + SPARES)
    policy = PolicySpec(
        name=_MODEL,
        fleets=(FleetShare(fleet=_FLEET, target_in_flight=golden.slots),),
        serving_min=golden.floor,
        serving_max=MOST_SERVING,
        ttft_objective=_OBJECTIVE_SECONDS,
    )
    fleet = FleetSpec(name=_FLEET, max_seats=MOST_SEATS, spare_target=SPARES)
    scaler = LawScaler(watch.timeline, {_MODEL: watch.station}, pool, [policy], [fleet])
    scaler.signals = _Signals(golden)
    scaler.decided = lambda decision: watch.decided(*_counts(decision))
    watch.begin()
    return watch.finish(lambda: (pool.promotions, pool.demotions)), watch.steps


def hpa_rule(golden: Golden) -> tuple[Figures, Sequence[Step]]:
    """Run a trace under a HorizontalPodAutoscaler of the same bounds, on demand."""
    watch, replicas = _replicas(golden, max(1, golden.floor))
    rule = hpa.Hpa(min_replicas=max(1, golden.floor), max_replicas=MOST_SERVING)
    scaler = HpaScaler(watch.timeline, watch.station, replicas, rule, float(golden.slots))
    fault = golden.fault
    if fault is not None:
        scaler.metric = lambda demand, now: fault.metric(demand) if fault.holds(now) else demand
    watch.begin()
    return watch.finish(lambda: (replicas.started, replicas.stopped)), watch.steps


def kpa_rule(golden: Golden) -> tuple[Figures, Sequence[Step]]:
    """Run a trace under Knative's autoscaler of the same bounds, at 70 % of the slots."""
    watch, replicas = _replicas(golden, golden.floor)
    rule = kpa.Kpa(
        target=kpa.TARGET_UTILIZATION * golden.slots, min_scale=golden.floor, max_scale=MOST_SERVING
    )
    scaler = KpaScaler(watch.timeline, watch.station, replicas, rule)
    fault = golden.fault
    if fault is not None:
        scaler.reports = lambda now: fault.reports or not fault.holds(now)
    watch.begin()
    return watch.finish(lambda: (replicas.started, replicas.stopped)), watch.steps


RULES: Final[Mapping[str, Callable[[Golden], tuple[Figures, Sequence[Step]]]]] = {
    "law": law,
    "hpa": hpa_rule,
    "kpa": kpa_rule,
}


def _replicas(golden: Golden, begin: int) -> tuple[_Watch, Replicas]:
    watch = _Watch(golden)
    replicas = Replicas(watch.timeline, watch.meter, watch.station, golden.slots, watch.start)
    replicas.fill(begin)
    watch.decided(begin, begin)
    replicas.resized = lambda number: watch.decided(number, number)
    return watch, replicas


def _start(golden: Golden, now: float) -> float:
    fault = golden.fault
    return golden.start if fault is None or not fault.fails_starts(now) else math.inf


class _Signals:
    """What the law is told: the truth, or what a fault leaves of it."""

    def __init__(self, golden: Golden) -> None:
        self._fault = golden.fault
        self._before = Load()

    def __call__(self, load: Load, now: float) -> Load:
        fault = self._fault
        if fault is None or fault.signals is None:
            return load
        told = engines_only(load)
        if not fault.holds(now):
            self._before = told
            return told
        return fault.signals(told, self._before)


def _counts(decision: Decision) -> tuple[int, int]:
    return sum(decision.policies[_MODEL].wanted.values()), decision.fleets[_FLEET].total


def _rounded(number: float, digits: int = 3) -> float:
    return round(number, digits)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m scaler.runtime.bench.law.golden",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [golden.name for golden in GOLDEN]
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write a file for each trace")
    parser.add_argument("--only", choices=names, action="append", help="one trace; may be repeated")
    options = parser.parse_args(arguments)
    rows: list[tuple[str, ...]] = [("trace", "rule", *_HEADS)]
    for golden in GOLDEN:
        if golden.name not in (options.only or names):
            continue
        figures = {name: rule(golden)[0] for name, rule in RULES.items()}
        if options.write is not None:
            _write(options.write, golden, figures)
        rows += [(golden.name, name, *_cells(each)) for name, each in figures.items()]
    sys.stdout.write("\n".join(table(rows)) + "\n")
    return 0


def _write(folder: Path, golden: Golden, figures: Mapping[str, Figures]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"about": golden.about, **{name: asdict(each) for name, each in figures.items()}}
    (folder / f"{golden.name}.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


_HEADS: Final = (
    "requests", "late %", "longest wait s", "decision s", "under s", "over s",
    "seat-seconds", "wasted", "up", "down", "totals", "most serving",
)  # fmt: skip


def _cells(figures: Figures) -> tuple[str, ...]:
    decision = figures.decision_seconds
    return (
        f"{figures.requests}",
        f"{100.0 * figures.late_share:.2f}",
        f"{figures.longest_wait:.2f}",
        "" if decision is None else f"{decision:.2f}",
        f"{figures.under_seconds:.2f}",
        f"{figures.over_seconds:.2f}",
        f"{figures.seat_seconds:.0f}",
        f"{figures.wasted_seat_seconds:.0f}",
        f"{figures.promotions}",
        f"{figures.demotions}",
        f"{figures.lowest_total}..{figures.highest_total}",
        f"{figures.most_serving}",
    )


if __name__ == "__main__":
    sys.exit(main())
