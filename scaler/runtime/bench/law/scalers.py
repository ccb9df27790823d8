"""The rules that are compared, each driven as its product drives it.

HPA and KPA are asked at their fixed intervals. The law is asked as the controller asks it: at once when requests begin to
wait, when demand has grown by a tenth meanwhile, or when something about the seats has changed (at most each 50 ms); each
250 ms while anything waits; and otherwise at the moment that it named itself, at least once a second.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import (
    Decision,
    FleetSpec,
    FleetView,
    Load,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)
from scaler.runtime.bench.law import hpa, kpa
from scaler.runtime.bench.law.pool import Pool
from scaler.runtime.bench.law.replicas import Replicas
from scaler.runtime.bench.law.station import Station
from scaler.runtime.bench.law.timeline import Timeline
from scaler.runtime.observer import Views, observe
from scaler.runtime.start_times import StartTimes
from warmpool.plan import Limits, Wants, plan
from warmpool.seats import FleetName, PolicyName

SMALLEST_GAP_SECONDS: Final = 0.05
WAITING_SECONDS: Final = 0.25
LONGEST_SLEEP_SECONDS: Final = 1.0
_LIMITS: Final = Limits(proof_interval_seconds=math.inf)

Filter = Callable[[Load, float], Load]
"""What signals do to a load at a time: let it through, age it, lose it."""


def fresh(value: float) -> Reading:
    """Return what was observed just now."""
    return Reading(value=float(value), age=0.0, quality=Quality.FRESH)


_NOTHING: Final = fresh(0.0)


def load_of(station: Station) -> Load:
    """Return what a gateway says of a model."""
    peak, arrivals, completions = station.look()
    return Load(
        queued=fresh(len(station.queue)),
        in_flight=fresh(station.in_flight),
        oldest_wait=fresh(station.oldest_wait),
        peak=fresh(peak),
        arrivals=fresh(arrivals),
        completions=fresh(completions),
    )


class HpaScaler:
    """One model under a HorizontalPodAutoscaler on demand (queued + in flight), as `AverageValue`."""

    def __init__(
        self, timeline: Timeline, station: Station, replicas: Replicas, rule: hpa.Hpa, target: float
    ) -> None:
        """Begin to sync at once; each pod should carry `target` requests."""
        self._timeline, self._station, self._replicas = timeline, station, replicas
        self._rule, self._target = rule, target
        self._memory = hpa.HpaMemory()
        self.metric: Callable[[float, float], float | None] = _as_it_is
        timeline.at(timeline.now, self._sync)

    def _sync(self, _: object) -> None:
        now, replicas = self._timeline.now, self._replicas
        there = replicas.ready + replicas.starting
        metric = self.metric(float(self._station.demand), now)
        proposal = None if metric is None else hpa.average_value(self._rule, there, metric, self._target)
        wanted, self._memory = hpa.sync(self._rule, replicas.wanted, [proposal], self._memory, now)
        if wanted != replicas.wanted:
            replicas.resize(wanted)
        self._timeline.at(now + hpa.SYNC_SECONDS, self._sync)


class KpaScaler:
    """One model under Knative's autoscaler; a request that finds no pod makes it decide at once."""

    def __init__(self, timeline: Timeline, station: Station, replicas: Replicas, rule: kpa.Kpa) -> None:
        """Begin to decide at once."""
        self._timeline, self._station, self._replicas, self._rule = timeline, station, replicas, rule
        self._seen = kpa.Concurrency(rule.stable_window)
        self._memory = kpa.KpaMemory.initial(replicas.ready, timeline.now)
        self._area = station.area()
        self.reports: Callable[[float], bool] = _always
        station.waited = self._poke
        timeline.at(timeline.now + kpa.BUCKET_SECONDS, self._second, True)

    def _second(self, odd: bool) -> None:  # noqa: FBT001 - an event carries one argument
        now, area = self._timeline.now, self._station.area()
        if self.reports(now):
            mean = (area - self._area) / kpa.BUCKET_SECONDS
            self._seen.report(math.floor(now - kpa.BUCKET_SECONDS / 2), mean)
        self._area = area
        if not odd:
            self._decide(
                self._seen.mean(self._rule.stable_window, now), self._seen.mean(self._rule.panic_window, now)
            )
        self._timeline.at(now + kpa.BUCKET_SECONDS, self._second, not odd)

    def _poke(self) -> None:
        if not self._replicas.wanted:
            demand = float(self._station.demand)
            self._decide(demand, demand)

    def _decide(self, stable: float | None, panic: float | None) -> None:
        wanted, self._memory = kpa.decide(
            self._rule, self._replicas.ready, stable, panic, self._memory, self._timeline.now
        )
        if wanted is not None and wanted != self._replicas.wanted:
            self._replicas.resize(wanted)


class _Asking:
    """When the law is asked."""

    def __init__(
        self, timeline: Timeline, stations: Sequence[Station], ask: Callable[[], float | None]
    ) -> None:
        """Ask at once, and from then on as the controller would; `ask` returns the law's own wake-up."""
        self._timeline, self._stations, self._ask = timeline, stations, ask
        self._last = -math.inf
        self._due = timeline.now
        for station in stations:
            station.waited = self.soon
        timeline.at(self._due, self._tick, self._due)

    def soon(self) -> None:
        """Ask at once, or 50 ms after the last time."""
        self._at(max(self._timeline.now, self._last + SMALLEST_GAP_SECONDS))

    def _at(self, when: float) -> None:
        if self._due <= self._last or when < self._due:
            self._due = when
            self._timeline.at(when, self._tick, when)

    def _tick(self, when: float) -> None:
        if when != self._due:
            return  # it was asked sooner
        now = self._last = self._timeline.now
        wakeup = self._ask()
        longest = WAITING_SECONDS if any(s.queue for s in self._stations) else LONGEST_SLEEP_SECONDS
        sleep = longest if wakeup is None else min(longest, max(0.001, wakeup - now))
        if self._due <= now:
            self._at(now + sleep)


class LawScaler:
    """The law over a pool of seats that the planner names.

    Attributes:
        signals: what happens to a load on its way to the law.
        decided: called with every decision.
    """

    def __init__(
        self,
        timeline: Timeline,
        stations: Mapping[PolicyName, Station],
        pool: Pool,
        policies: Sequence[PolicySpec],
        fleets: Sequence[FleetSpec],
    ) -> None:
        """Begin to decide at once; a policy without a station always has work that can wait."""
        self._timeline, self._stations, self._pool = timeline, stations, pool
        self._policies, self._fleets = policies, fleets
        self._memory = Memory.initial(timeline.now)
        self._starts = StartTimes()
        self._views = Views(self._starts.seconds)
        self._order = [p.name for p in sorted(policies, key=lambda p: (-p.priority, p.name))]
        self._at_once = frozenset(p.name for p in policies if p.ended_at_once)
        self.signals: Filter = _unchanged
        self.decided: Callable[[Decision], None] = _unseen
        asking = _Asking(timeline, list(stations.values()), self._tick)
        pool.changed = asking.soon

    def _load(self, policy: PolicyName) -> Load:
        station = self._stations.get(policy)
        if station is None:
            return self._endless(policy)
        return self.signals(load_of(station), self._timeline.now)

    def _endless(self, policy: PolicyName) -> Load:
        busy = float(self._pool.in_flight(policy))
        return Load(queued=_NOTHING, in_flight=fresh(busy), peak=fresh(busy), backlog=fresh(1000.0))

    def _tick(self) -> float | None:
        now, pool = self._timeline.now, self._pool
        stock = pool.stock()
        for fleet, seats in stock.items():
            self._starts.look(fleet, seats, now)
        self._views.wall = now
        snapshot = observe(
            self._policies, self._fleets, stock, pool.replicas.__getitem__, self._load, self._views
        )
        decision, self._memory = decide(self._policies, self._fleets, snapshot, self._memory, now)
        present = [seat for seats in stock.values() for seat in seats]
        planned = plan(self._wants(decision), present, _LIMITS, now, settled={})
        pool.carry_out(planned.actions)
        self.decided(decision)
        return decision.next_wakeup

    def _wants(self, decision: Decision) -> Wants:
        serving: dict[FleetName, dict[PolicyName, int]] = {fleet.name: {} for fleet in self._fleets}
        starting: dict[FleetName, dict[PolicyName, int]] = {fleet.name: {} for fleet in self._fleets}
        for policy in decision.policies.values():
            for counts, into in ((policy.serving, serving), (policy.starting, starting)):
                for fleet, seats in counts.items():
                    into[fleet][policy.policy] = seats
        return Wants(
            serving=serving,
            starting=starting,
            order=self._order,
            totals={name: fleet.total for name, fleet in decision.fleets.items()},
            replicas=self._pool.replicas,
            ended_at_once=self._at_once,
        )


class ServingSparesScaler:
    """The law over replicas that all serve: what it calls spare is in rotation too, and costs no promotion."""

    def __init__(
        self, timeline: Timeline, station: Station, replicas: Replicas, policy: PolicySpec, fleet: FleetSpec
    ) -> None:
        """Begin to decide at once."""
        self._timeline, self._station, self._replicas = timeline, station, replicas
        self._policy, self._fleet = policy, fleet
        self._memory = Memory.initial(timeline.now)
        self._given = 0
        _Asking(timeline, [station], self._tick)

    def _tick(self) -> float | None:
        replicas, name = self._replicas, self._policy.name
        ready = replicas.ready
        serving = min(self._given, ready)
        view = FleetView(
            serving=serving,
            spare=ready - serving,
            starting=replicas.starting,
            replicas=replicas.wanted,
            start_seconds=replicas.start_seconds,
            supply={name: Supply(serving=serving, promotable=ready - serving)},
        )
        snapshot = Snapshot(loads={name: load_of(self._station)}, fleets={self._fleet.name: view})
        decision, self._memory = decide(
            [self._policy], [self._fleet], snapshot, self._memory, self._timeline.now
        )
        self._given = decision.policies[name].serving[self._fleet.name]
        total = decision.fleets[self._fleet.name].total
        if total != replicas.wanted:
            replicas.resize(total)
        return decision.next_wakeup


def _as_it_is(value: float, now: float) -> float | None:
    del now
    return value


def _always(now: float) -> bool:
    del now
    return True


def _unchanged(load: Load, now: float) -> Load:
    del now
    return load


def _unseen(decision: Decision) -> None:
    del decision
