import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.runtime.bench.law.endless import Endless
from scaler.runtime.bench.law.pool import Latencies, Pool, Shape
from scaler.runtime.bench.law.station import Station
from scaler.runtime.bench.law.timeline import Meter, Timeline
from warmpool.plan import Action, Demote, Limits, Promote, Recall, Replace, Resize, Switch, Wants, plan
from warmpool.seats import FleetName, PolicyName, Seat, SeatValue, seat_value
from warmpool.states import COMPUTING, ResidentState

F = FleetName("f")
A, B = PolicyName("a"), PolicyName("b")
TIMES = Latencies(promote=0.1, switch=0.2, recall=0.05, pause=0.3, end=0.5)


class World:
    """Two models on one fleet, ten slots each, ten seconds to start."""

    def __init__(
        self,
        requests: Sequence[tuple[float, float]] = (),
        *,
        start: Callable[[float], float] = lambda _: 10.0,
        batch: bool = False,
    ) -> None:
        self.timeline = Timeline(0.0)
        self.meter = Meter(self.timeline)
        self.station = Station(self.timeline, requests)
        other = Endless(self.timeline, 7.0) if batch else Station(self.timeline, [])
        shape = Shape(slots={A: 10, B: 10}, start=start)
        lent = frozenset({B}) if batch else frozenset()
        self.pool = Pool(self.timeline, self.meter, {F: shape}, {A: self.station, B: other}, lent, TIMES)

    def seats(self) -> Sequence[Seat]:
        return self.pool.stock()[F]

    @property
    def seat(self) -> Seat:
        (seat,) = self.seats()
        return seat

    def do(self, make: Callable[[Seat], Action]) -> None:
        self.pool.carry_out([make(self.seat)])

    def promote(self, policy: PolicyName) -> None:
        self.do(lambda seat: Promote(seat=seat, policy=policy, why=""))

    def at(self, when: float) -> Seat:
        self.timeline.run(when)
        return self.seat

    def states(self) -> dict[PolicyName, ResidentState]:
        return {resident.policy: resident.state for resident in self.seat.residents}


def test_a_promotion_serves_after_its_time() -> None:
    world = World([(0.0, 1.0)])
    world.pool.fill(F, 1)
    world.promote(A)
    assert seat_value(world.at(0.09)) is SeatValue.PROMOTING
    assert seat_value(world.at(0.11)) is SeatValue.SERVING
    assert world.station.waits == [pytest.approx(0.1)]
    assert world.pool.promotions == 1


def test_a_demotion_waits_for_what_was_accepted_and_pauses_then() -> None:
    world = World([(0.5, 4.0)])
    world.pool.fill(F, 1)
    world.promote(A)
    world.at(1.0)
    world.do(lambda seat: Demote(seat=seat, policy=A, why=""))
    assert seat_value(world.at(4.4)) is SeatValue.DRAINING
    assert seat_value(world.at(4.7)) is SeatValue.DRAINING  # it is being paused
    assert seat_value(world.at(4.9)) is SeatValue.SPARE
    assert world.pool.demotions == 1


def test_a_switch_drains_first() -> None:
    world = World([(0.5, 4.0)])
    world.pool.fill(F, 1)
    world.promote(A)
    world.at(1.0)
    world.do(lambda seat: Switch(seat=seat, leaving=A, policy=B, why=""))
    world.at(4.6)
    assert world.states() == {A: ResidentState.DRAINING, B: ResidentState.PAUSED}
    assert world.at(4.8).serving == {B}
    assert world.states() == {A: ResidentState.PAUSED, B: ResidentState.SERVING}


def test_a_recall_serves_again_while_requests_still_finish() -> None:
    world = World([(0.5, 8.0), (3.0, 1.0)])
    world.pool.fill(F, 1)
    world.promote(A)
    world.at(1.0)
    world.do(lambda seat: Demote(seat=seat, policy=A, why=""))
    world.at(2.0)
    world.do(lambda seat: Recall(seat=seat, policy=A, why=""))
    assert world.at(2.1).serving == {A}
    assert seat_value(world.at(20.0)) is SeatValue.SERVING
    assert world.station.waits == [0.0, 0.0]


def test_a_lent_seat_that_is_wanted_ends_its_work_soon() -> None:
    world = World(batch=True)
    world.pool.fill(F, 1)
    world.promote(B)
    assert seat_value(world.at(1.0)) is SeatValue.LENT
    assert world.pool.in_flight(B) == 10
    world.do(lambda seat: Switch(seat=seat, leaving=B, policy=A, at_once=True, why=""))
    assert world.at(1.6).serving == frozenset()
    assert world.at(1.8).serving == {A}
    assert world.at(20.0).serving == {A}  # what had begun on it ends nothing any more


def test_work_that_can_wait_finishes_where_nobody_is_in_a_hurry() -> None:
    world = World(batch=True)
    world.pool.fill(F, 1)
    world.promote(B)
    world.at(1.0)
    world.do(lambda seat: Demote(seat=seat, policy=B, why=""))
    assert seat_value(world.at(7.9)) is SeatValue.DRAINING
    assert seat_value(world.at(8.4)) is SeatValue.SPARE


def test_residents_start_one_after_the_other() -> None:
    world = World()
    world.pool.carry_out([Resize(fleet=F, total=1, why="")])
    assert seat_value(world.at(9.9)) is SeatValue.STARTING
    assert seat_value(world.at(10.1)) is SeatValue.SPARE
    assert world.states() == {A: ResidentState.PAUSED, B: ResidentState.STARTING}
    world.at(20.1)
    assert world.states() == {A: ResidentState.PAUSED, B: ResidentState.PAUSED}


def test_a_neighbour_that_serves_holds_up_the_next_start() -> None:
    world = World()
    world.pool.carry_out([Resize(fleet=F, total=1, why="")])
    world.at(12.0)
    world.promote(A)
    world.at(40.0)
    assert world.states()[B] is ResidentState.STARTING
    world.do(lambda seat: Demote(seat=seat, policy=A, why=""))
    world.at(41.0)
    assert world.states() == {A: ResidentState.PAUSED, B: ResidentState.PAUSED}  # it had loaded long ago


def test_a_start_that_fails_fails_the_resident_and_a_replacement_tries_again() -> None:
    world = World(start=lambda now: math.inf if now < 5.0 else 10.0)
    world.pool.carry_out([Resize(fleet=F, total=1, why="")])
    assert set(world.states().values()) == {ResidentState.FAILED}
    world.at(6.0)
    world.do(lambda seat: Replace(seat=seat, reason="it failed", why=""))
    assert seat_value(world.at(30.0)) is SeatValue.SPARE
    assert len(world.seats()) == 1


def test_a_smaller_fleet_gives_up_spare_seats_first() -> None:
    world = World()
    world.pool.fill(F, 3)
    first = world.seats()[0]
    world.pool.carry_out([Promote(seat=first, policy=A, why="")])
    world.timeline.run(1.0)
    world.pool.carry_out([Resize(fleet=F, total=1, why="")])
    assert [seat.name for seat in world.seats()] == [first.name]
    assert world.meter.all == 1


def test_a_serving_seat_that_must_go_finishes_first() -> None:
    world = World([(0.5, 4.0)])
    world.pool.fill(F, 1)
    world.promote(A)
    world.at(1.0)
    world.pool.carry_out([Resize(fleet=F, total=0, why="")])
    assert seat_value(world.at(4.0)) is SeatValue.DOOMED
    world.timeline.run(5.0)
    assert (world.seats(), world.meter.all) == ((), 0)


def test_seats_that_nobody_touched_are_the_same_objects() -> None:
    world = World()
    world.pool.fill(F, 2)
    assert world.seats() is world.seats()


@given(
    wants=st.lists(
        st.tuples(st.floats(0.05, 20.0), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5)), max_size=25
    )
)
def test_whatever_the_planner_wants_one_resident_of_a_seat_computes(
    wants: list[tuple[float, int, int, int]],
) -> None:
    world = World([(0.3 * number, 2.0) for number in range(200)])
    world.pool.fill(F, 2)
    for pause, a, b, total in wants:
        world.timeline.run(world.timeline.now + pause)
        asked = Wants(serving={F: {A: a, B: b}}, totals={F: total}, replicas=world.pool.replicas)
        limits = Limits(proof_interval_seconds=math.inf)
        world.pool.carry_out(plan(asked, world.seats(), limits, world.timeline.now, settled={}).actions)
        for seat in world.seats():
            computing = [r for r in seat.residents if r.state in COMPUTING]
            assert len(computing) <= 1
            assert len(seat.serving) <= 1
        assert world.meter.all == len(world.seats())
    assert world.station.capacity == 10 * world.pool.serving(A)
