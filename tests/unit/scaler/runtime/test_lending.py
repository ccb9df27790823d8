"""Which seats are lent."""

from dataclasses import replace

from scaler.core.model import FleetShare, Floor, PolicySpec
from scaler.runtime.lending import Lending
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

OWN, SPARES = FleetName("own"), FleetName("spares")
BATCH, CHAT = PolicyName("batch"), PolicyName("chat")


def seat(name: str, fleet: FleetName, *serving: PolicyName, lent: bool = False) -> Seat:
    return Seat(
        name=SeatName(name), uid=name, version="1", fleet=fleet, serving=frozenset(serving), lent=lent
    )


def policy(name: PolicyName = BATCH, floor: int = 0, *, preemptible: bool = True) -> PolicySpec:
    shares = tuple(FleetShare(fleet=fleet, target_in_flight=8) for fleet in (OWN, SPARES))
    return PolicySpec(name=name, fleets=shares, preemptible=preemptible, serving_min=floor)


def lent(seats: object) -> set[str]:
    return {each.name for each in seats if each.lent}  # type: ignore[attr-defined]


def test_what_serves_beyond_the_floor_only_borrows() -> None:
    seats = [
        seat("a", SPARES, BATCH),
        seat("b", OWN, BATCH),
        seat("c", SPARES, BATCH),
        seat("d", SPARES, CHAT),
    ]
    policies = [policy(floor=1), policy(CHAT, preemptible=False)]
    assert lent(Lending().mark(policies, {}, seats)) == {"a", "c"}


def test_the_clocks_floor_makes_seats_its_own() -> None:
    seats = [seat("a", SPARES, BATCH), seat("b", SPARES, BATCH)]
    assert lent(Lending().mark([policy()], {BATCH: Floor(value=1, schedule="night")}, seats)) == {"b"}


def test_a_mark_goes_when_the_borrower_does() -> None:
    assert lent(Lending().mark([policy()], {}, [seat("a", SPARES, lent=True)])) == set()


def test_a_seat_that_has_not_changed_stays_the_same_object() -> None:
    lending, seats = Lending(), [seat("a", SPARES, BATCH), seat("b", SPARES)]
    first = lending.mark([policy()], {}, seats)
    again = lending.mark([policy()], {}, seats)
    assert all(one is other for one, other in zip(first, again, strict=True))
    changed = [replace(seats[0], version="2"), seats[1]]
    assert lending.mark([policy()], {}, changed)[0].version == "2"
