"""Seats per fleet, from a flat list, as a cluster's cache gives them."""

from collections.abc import Iterable

from scaler.cluster.port import Stock
from warmpool.seats import FleetName, Seat


def stock_of(seats: Iterable[Seat]) -> Stock:
    by_fleet: dict[FleetName, list[Seat]] = {}
    for seat in seats:
        by_fleet.setdefault(seat.fleet, []).append(seat)
    return {fleet: tuple(here) for fleet, here in by_fleet.items()}
