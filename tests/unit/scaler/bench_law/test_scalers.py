"""When each rule is asked, and with what."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from scaler.core.model import Decision, FleetShare, FleetSpec, PolicySpec
from scaler.runtime.bench.law.hpa import Hpa
from scaler.runtime.bench.law.kpa import Kpa
from scaler.runtime.bench.law.pool import Pool, Shape
from scaler.runtime.bench.law.replicas import Replicas
from scaler.runtime.bench.law.scalers import HpaScaler, KpaScaler, LawScaler, ServingSparesScaler
from scaler.runtime.bench.law.station import Station
from scaler.runtime.bench.law.timeline import Meter, Timeline
from warmpool.seats import FleetName, PolicyName

A, F = PolicyName("a"), FleetName("f")


def burst(begin: float, count: int, seconds: float) -> list[tuple[float, float]]:
    return [(begin + 0.001 * number, seconds) for number in range(count)]


class World:
    """One model, ten slots a replica, twenty seconds to start."""

    def __init__(self, requests: Sequence[tuple[float, float]], ready: int = 1) -> None:
        self.timeline = Timeline(0.0)
        self.meter = Meter(self.timeline)
        self.station = Station(self.timeline, requests)
        self.replicas = Replicas(self.timeline, self.meter, self.station, 10, lambda _: 20.0)
        self.replicas.fill(ready)
        self.asked: list[tuple[float, int]] = []
        self.replicas.resized = lambda number: self.asked.append((round(self.timeline.now, 3), number))


def law(world: World) -> tuple[Pool, LawScaler, list[tuple[float, Decision]]]:
    shape = Shape(slots={A: 10}, start=lambda _: 20.0)
    pool = Pool(world.timeline, world.meter, {F: shape}, {A: world.station})
    pool.fill(F, 3)
    policy = PolicySpec(name=A, fleets=(FleetShare(fleet=F, target_in_flight=10),), serving_min=1)
    fleet = FleetSpec(name=F, max_seats=10, spare_target=2)
    scaler = LawScaler(world.timeline, {A: world.station}, pool, [policy], [fleet])
    seen: list[tuple[float, Decision]] = []
    scaler.decided = lambda decision: seen.append((world.timeline.now, decision))
    return pool, scaler, seen


def test_an_hpa_sees_a_burst_at_its_next_sync() -> None:
    world = World(burst(31.0, 30, 60.0))
    HpaScaler(world.timeline, world.station, world.replicas, Hpa(max_replicas=9), 10.0)
    world.timeline.run(60.0)
    assert world.asked == [(45.0, 3)]


def test_an_hpa_without_metrics_changes_nothing() -> None:
    world = World(burst(31.0, 30, 60.0))
    scaler = HpaScaler(world.timeline, world.station, world.replicas, Hpa(max_replicas=9), 10.0)
    scaler.metric = lambda demand, now: demand if now >= 60.0 else None
    world.timeline.run(70.0)
    assert world.asked == [(60.0, 3)]


def test_a_kpa_panics_within_two_ticks() -> None:
    world = World(burst(31.0, 30, 60.0))
    KpaScaler(world.timeline, world.station, world.replicas, Kpa(target=10.0, max_scale=9))
    world.timeline.run(60.0)
    assert world.asked[0][0] <= 34.0  # the first or the second tick after it
    assert world.asked[-1][1] == 3


def test_a_kpa_at_zero_is_woken_by_the_first_request() -> None:
    world = World([(31.3, 1.0)], ready=0)
    KpaScaler(world.timeline, world.station, world.replicas, Kpa(target=10.0))
    world.timeline.run(32.0)
    assert world.asked == [(31.3, 1)]


def test_a_kpa_without_reports_changes_nothing() -> None:
    world = World(burst(31.0, 30, 60.0))
    scaler = KpaScaler(world.timeline, world.station, world.replicas, Kpa(target=10.0, min_scale=1))
    scaler.reports = lambda now: now < 30.0
    world.timeline.run(120.0)
    assert world.asked == []


def test_the_law_is_asked_at_once_when_a_request_has_to_wait() -> None:
    world = World(burst(31.3, 25, 10.0), ready=0)
    pool, _, seen = law(world)
    world.timeline.run(31.5)
    waited = 31.3 + 0.001 * 10
    first = next(at for at, _ in seen if at >= waited)
    assert first == pytest.approx(waited)
    assert pool.serving(A) == 3
    assert max(world.station.waits) < 0.15  # 50 ms until it is asked again, 61 ms for a promotion


def test_the_law_is_asked_at_most_each_fifty_milliseconds_and_at_least_each_second() -> None:
    world = World(burst(31.3, 200, 10.0), ready=0)
    _, _, seen = law(world)
    world.timeline.run(60.0)
    times = [at for at, _ in seen]
    gaps = [after - before for before, after in pairwise(times)]
    busy = [at for at in times if 31.3 <= at < 32.0]
    assert len(busy) <= 0.7 / 0.05 + 8  # and its own wake-ups
    assert max(gaps) <= 1.0 + 1e-9


def test_signals_pass_through_what_ails_them() -> None:
    world = World(burst(31.3, 25, 10.0), ready=0)
    pool, scaler, _ = law(world)
    scaler.signals = lambda load, now: type(load)() if now >= 30.0 else load
    world.timeline.run(60.0)
    assert pool.serving(A) == 1  # nothing is known, so nothing changes


def test_spares_that_serve_are_counted_by_the_law_and_used_at_once() -> None:
    world = World(burst(31.3, 25, 10.0), ready=3)
    policy = PolicySpec(name=A, fleets=(FleetShare(fleet=F, target_in_flight=10),), serving_min=1)
    fleet = FleetSpec(name=F, max_seats=10, spare_target=2)
    ServingSparesScaler(world.timeline, world.station, world.replicas, policy, fleet)
    world.timeline.run(35.0)
    assert max(world.station.waits) == 0.0
    assert world.asked[-1][1] == 5  # three serve, two more are spare
    assert math.isfinite(world.asked[-1][0])
