"""Lent seats and UIDs, with no more looks than are needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from scaler.core.islands import Island
from scaler.core.model import FleetSpec
from scaler.runtime.controller import Tick
from scaler.runtime.seat_names import LentSeats
from warmpool.seats import FleetName, Seat, SeatName

OWN, SPARES = FleetName("own"), FleetName("spares")


def seat(name: str, fleet: FleetName = SPARES, *, lent: bool = False, uid: str = "") -> Seat:
    return Seat(name=SeatName(name), uid=uid or name, version="1", fleet=fleet, lent=lent)


@dataclass
class Looked:
    """What a tick says, as far as it is asked here."""

    looked: Island
    stock: dict[FleetName, Sequence[Seat]]


def tick(stock: dict[FleetName, Sequence[Seat]], *looked: FleetName) -> Tick:
    fleets = tuple(FleetSpec(name=name, max_seats=9, spare_target=1) for name in looked)
    return cast("Tick", Looked(Island((), fleets), stock))


def test_lent_are_the_seats_of_the_last_look_at_each_fleet() -> None:
    lent = LentSeats()
    stock: dict[FleetName, Sequence[Seat]] = {
        OWN: (seat("a", OWN, lent=True),),
        SPARES: (seat("b", lent=True), seat("c")),
    }
    assert lent.take(tick(stock, OWN, SPARES)) == {"a", "b"}
    later = {**stock, SPARES: (seat("b"), seat("c", lent=True))}
    assert lent.take(tick(later, OWN)) == {"a", "b"}  # it wasn't looked at
    found = lent.take(tick(later, SPARES))
    assert found == {"a", "c"}
    assert lent.take(tick({**later, OWN: (seat("a", OWN, lent=True),)}, OWN, SPARES)) is found
    assert lent.take(tick({}, OWN, SPARES)) == set()
