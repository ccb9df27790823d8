"""Which seats are lent."""

from dataclasses import replace

from scaler.cluster.port import Stock
from scaler.core.model import FleetShare, Floor, Mode, PolicyDecision, PolicySpec
from scaler.runtime.lending import Lending
from tests.fakes.stock import stock_of
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Seat, SeatName

OWN, SPARES = FleetName("own"), FleetName("spares")
BATCH, CHAT = PolicyName("batch"), PolicyName("chat")


def seat(name: str, fleet: FleetName, *serving: PolicyName, lent: bool = False) -> Seat:
    return Seat(
        name=SeatName(name), uid=name, version="1", fleet=fleet, serving=frozenset(serving), lent=lent
    )


def policy(name: PolicyName = BATCH, floor: int = 0, *, preemptible: bool = True) -> PolicySpec:
    shares = tuple(FleetShare(fleet=fleet, target_in_flight=8) for fleet in (OWN, SPARES))
    return PolicySpec(name=name, fleets=shares, preemptible=preemptible, serving_min=floor)


def lent(stock: Stock) -> set[str]:
    return {each.name for seats in stock.values() for each in seats if each.lent}


def decision(serving: dict[FleetName, int], lent: dict[FleetName, int]) -> PolicyDecision:
    return PolicyDecision(
        policy=BATCH,
        mode=Mode.HOLD,
        demand=None,
        needed=0.0,
        capacity=0.0,
        wanted=serving,
        serving=serving,
        lent=lent,
    )


def test_what_serves_beyond_the_floor_only_borrows() -> None:
    seats = [
        seat("a", SPARES, BATCH),
        seat("b", OWN, BATCH),
        seat("c", SPARES, BATCH),
        seat("d", SPARES, CHAT),
    ]
    policies = [policy(floor=1), policy(CHAT, preemptible=False)]
    assert lent(Lending().mark(policies, {}, {}, stock_of(seats))) == {"a", "c"}


def test_the_clocks_floor_makes_seats_its_own() -> None:
    seats = [seat("a", SPARES, BATCH), seat("b", SPARES, BATCH)]
    assert lent(
        Lending().mark([policy()], {BATCH: Floor(value=1, schedule="night")}, {}, stock_of(seats))
    ) == {"b"}


def draining(name: str, policy: PolicyName = BATCH) -> Seat:
    held = Claim(id=name, policy=policy, operation=Operation.DEMOTE, holder="h", epoch=1, since=0, deadline=9)
    return replace(seat(name, SPARES), claim=held)


def test_whoever_drains_borrows_its_seat_unless_that_is_one_it_owns() -> None:
    seats = [draining("a"), seat("b", SPARES, BATCH), draining("c", CHAT), seat("d", SPARES)]
    assert lent(Lending().mark([policy()], {}, {}, stock_of(seats))) == {"a", "b"}
    assert lent(Lending().mark([policy(floor=1)], {}, {}, stock_of(seats))) == {"a"}
    assert lent(Lending().mark([policy(floor=2)], {}, {}, stock_of(seats))) == set()


def test_a_mark_goes_when_the_borrower_does() -> None:
    assert lent(Lending().mark([policy()], {}, {}, stock_of([seat("a", SPARES, lent=True)]))) == set()


def test_what_has_not_changed_stays_the_same_object() -> None:
    lending, seats = Lending(), stock_of([seat("a", SPARES, BATCH), seat("b", SPARES), seat("c", OWN)])
    first = lending.mark([policy()], {}, {}, seats)
    again = lending.mark([policy()], {}, {}, seats)
    assert first[SPARES] is again[SPARES]
    assert first[OWN] is seats[OWN]


def test_of_a_fleet_that_has_changed_the_other_seats_stay_the_same_objects() -> None:
    lending, seats = Lending(), [seat("a", SPARES, BATCH), seat("b", SPARES)]
    first = lending.mark([policy()], {}, {}, stock_of(seats))[SPARES]
    again = lending.mark([policy()], {}, {}, stock_of([seats[0], replace(seats[1], version="2")]))[SPARES]
    assert again[0] is first[0]
    assert again[1].version == "2"


def test_what_a_fallback_gave_while_signals_were_missing_is_its_own() -> None:
    seats = stock_of([seat("a", SPARES, BATCH), seat("b", SPARES, BATCH), seat("c", SPARES, BATCH)])
    held = {BATCH: decision({SPARES: 3}, {SPARES: 1})}
    assert lent(Lending().mark([policy()], {}, held, seats)) == {"c"}
