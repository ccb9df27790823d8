"""Seats by name and fleet."""

from dataclasses import replace

from scaler.cluster.shelf import Shelf
from warmpool.seats import FleetName, Seat, SeatName

A, B = FleetName("a"), FleetName("b")


def seat(name: str, fleet: FleetName = A) -> Seat:
    return Seat(name=SeatName(name), uid=name, version="1", fleet=fleet)


def test_only_the_fleet_that_changed_is_another_object() -> None:
    shelf = Shelf()
    for each in (seat("one"), seat("two"), seat("three", B)):
        shelf.put(each)
    before = dict(shelf.stock())
    shelf.put(replace(seat("two"), version="2"))
    after = shelf.stock()
    assert after[B] is before[B]
    assert [each.version for each in after[A]] == ["1", "2"]
    assert [each.version for each in before[A]] == ["1", "1"]


def test_a_seat_that_goes_to_another_fleet_leaves_the_first() -> None:
    shelf = Shelf()
    shelf.put(seat("one"))
    shelf.put(seat("one", B))
    assert {fleet: len(seats) for fleet, seats in shelf.stock().items()} == {B: 1}


def test_a_seat_is_removed_once() -> None:
    shelf = Shelf()
    shelf.put(seat("one"))
    assert shelf.remove(SeatName("one"))
    assert not shelf.remove(SeatName("one"))
    assert shelf.stock() == {}
    assert shelf.get(SeatName("one")) is None
    assert list(shelf) == []
