import pytest

from scaler.runtime.bench.law.replicas import Replicas
from scaler.runtime.bench.law.station import Station
from scaler.runtime.bench.law.timeline import Meter, Timeline


class World:
    def __init__(self, *requests: tuple[float, float]) -> None:
        self.timeline = Timeline(0.0)
        self.meter = Meter(self.timeline)
        self.station = Station(self.timeline, requests)
        self.replicas = Replicas(self.timeline, self.meter, self.station, 2, lambda _: 10.0)


def test_a_replica_serves_once_it_has_started() -> None:
    world = World()
    world.replicas.resize(1)
    world.timeline.run(9.9)
    assert (world.replicas.ready, world.replicas.starting, world.station.capacity) == (0, 1, 0)
    world.timeline.run(10.1)
    assert (world.replicas.ready, world.replicas.starting, world.station.capacity) == (1, 0, 2)


def test_what_is_not_ready_goes_first_and_never_serves() -> None:
    world = World()
    world.replicas.fill(1)
    world.replicas.resize(3)
    world.timeline.run(5.0)
    world.replicas.resize(1)
    world.timeline.run(20.0)
    assert (world.replicas.ready, world.station.capacity) == (1, 2)
    assert world.meter.read() == {"serving": pytest.approx(20.0), "starting": pytest.approx(10.0)}


def test_a_replica_that_goes_finishes_first_and_counts_until_then() -> None:
    world = World((1.0, 20.0))
    world.replicas.fill(1)
    world.timeline.run(5.0)
    world.replicas.resize(0)
    world.timeline.run(50.0)
    assert world.meter.read() == {"serving": pytest.approx(5.0), "draining": pytest.approx(16.0)}
    assert (world.replicas.started, world.replicas.stopped, world.meter.all) == (0, 1, 0)


def test_the_youngest_goes_first() -> None:
    world = World(*[(50.0, 1.0)] * 2)
    world.replicas.fill(1)
    world.replicas.resize(2)
    world.timeline.run(20.0)
    old = world.station.capacity
    world.replicas.resize(1)
    world.timeline.run(60.0)
    assert (old, world.station.capacity) == (4, 2)
    assert world.station.waits == [0.0, 0.0]
