import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.runtime.bench.law.station import Server, Station
from scaler.runtime.bench.law.timeline import Timeline


def server(slots: int) -> Server:
    return Server(slots, lambda: None)


def test_a_request_that_finds_a_free_slot_does_not_wait() -> None:
    timeline = Timeline(0.0)
    station = Station(timeline, [(1.0, 2.0), (1.5, 2.0)])
    station.open(server(2))
    timeline.run(10.0)
    assert station.waits == [0.0, 0.0]
    assert station.demand == 0


def test_requests_are_served_in_order_of_their_coming() -> None:
    timeline = Timeline(0.0)
    station = Station(timeline, [(0.0, 4.0), (1.0, 1.0), (2.0, 1.0)])
    station.open(server(1))
    timeline.run(10.0)
    assert station.waits == [0.0, 3.0, 3.0]


def test_the_seat_with_the_fewest_requests_takes_the_next() -> None:
    timeline = Timeline(0.0)
    station = Station(timeline, [(float(at), 100.0) for at in range(5)])
    first, second = server(8), server(8)
    station.open(first)
    timeline.run(2.5)
    station.open(second)
    timeline.run(5.0)
    assert (first.in_flight, second.in_flight) == (3, 2)


def test_a_packed_station_fills_one_seat_after_the_other() -> None:
    timeline = Timeline(0.0)
    station = Station(timeline, [(float(at), 100.0) for at in range(5)], packed=True)
    first, second = server(3), server(3)
    station.open(first)
    station.open(second)
    timeline.run(5.0)
    assert (first.in_flight, second.in_flight) == (3, 2)


def test_a_seat_that_leaves_keeps_what_it_has_and_says_when_it_is_empty() -> None:
    timeline, emptied = Timeline(0.0), []
    station = Station(timeline, [(0.0, 3.0), (1.0, 4.0), (2.0, 1.0)])
    leaving = Server(4, lambda: emptied.append(timeline.now))
    station.open(leaving)
    timeline.run(1.5)
    station.close(leaving)
    timeline.run(10.0)
    assert emptied == [5.0]
    assert len(station.queue) == 1
    assert station.oldest_wait == pytest.approx(8.0)


def test_a_request_that_has_to_wait_is_told_of() -> None:
    timeline, told = Timeline(0.0), []
    station = Station(timeline, [(1.0, 5.0), (2.0, 1.0)])
    station.open(server(1))
    station.waited = lambda: told.append(timeline.now)
    timeline.run(3.0)
    assert told == [2.0]


def test_a_longer_line_is_told_of_again_when_demand_has_grown_by_a_tenth() -> None:
    timeline, told = Timeline(0.0), []
    station = Station(timeline, [(float(at), 1000.0) for at in range(60)])
    station.open(server(20))

    def tell() -> None:
        told.append(station.demand)
        station.look()

    station.waited = tell
    timeline.run(60.0)
    assert told == [21, 24, 27, 30, 33, 37, 41, 46, 51, 57]


def test_a_look_gives_the_peak_since_the_last_one_and_rates() -> None:
    timeline = Timeline(0.0)
    station = Station(timeline, [(0.5, 1.0), (0.6, 1.0), (0.7, 1.0)])
    station.open(server(8))
    timeline.run(2.0)
    assert station.look() == (3, pytest.approx(1.0), pytest.approx(1.0))
    timeline.run(5.0)
    assert station.look() == (0, 0.0, 0.0)


def test_the_lead_is_served_and_not_counted() -> None:
    timeline = Timeline(-10.0)
    station = Station(timeline, [(-5.0, 1.0), (1.0, 1.0)])
    station.open(server(1))
    timeline.run(5.0)
    assert station.waits == [0.0]


@given(
    requests=st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(0.1, 5.0)), max_size=40),
    slots=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    packed=st.booleans(),
)
def test_every_request_is_served_once_and_no_seat_has_more_than_its_slots(
    *, requests: list[tuple[float, float]], slots: list[int], packed: bool
) -> None:
    timeline = Timeline(0.0)
    station = Station(timeline, sorted(requests), packed=packed)
    servers = [server(number) for number in slots]
    for one in servers:
        station.open(one)
    for until in range(1, 300):
        timeline.run(float(until))
        assert all(0 <= one.in_flight <= one.slots for one in servers)
        assert not station.queue or all(one.in_flight == one.slots for one in servers)
    assert len(station.waits) == len(requests)
    assert station.demand == 0
    assert station.area() == pytest.approx(sum(station.waits) + sum(seconds for _, seconds in requests))
