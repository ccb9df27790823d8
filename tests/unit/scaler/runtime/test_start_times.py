"""How long seats take to start, as a controller sees it."""

from dataclasses import replace

from scaler.runtime.start_times import StartTimes
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

FLEET, CHAT = FleetName("spares"), PolicyName("chat")


def seat(name: str, state: ResidentState, created_at: float = 100.0) -> Seat:
    resident = Resident(policy=CHAT, state=state, since=0.0)
    return Seat(
        name=SeatName(name), uid=name, version="1", fleet=FLEET, residents=(resident,), created_at=created_at
    )


def paused(one: Seat) -> Seat:
    (resident,) = one.residents
    return replace(one, residents=(replace(resident, state=ResidentState.PAUSED),))


def test_a_start_lasts_until_a_resident_can_be_promoted() -> None:
    times, starting = StartTimes(), seat("a", ResidentState.LOADING)
    times.look(FLEET, [starting], 110.0)
    times.look(FLEET, [starting], 130.0)
    assert times.seconds(FLEET) == 0.0
    times.look(FLEET, [paused(starting)], 142.0)
    assert times.seconds(FLEET) == 42.0


def test_a_seat_that_was_up_at_first_sight_says_nothing() -> None:
    times = StartTimes()
    times.look(FLEET, [seat("a", ResidentState.PAUSED)], 900.0)
    assert times.measured == {}


def test_a_seat_that_was_up_before_does_not_start_again() -> None:
    times, starting = StartTimes(), seat("a", ResidentState.LOADING)
    for at, state in enumerate((ResidentState.PAUSED, ResidentState.UNPARKING, ResidentState.FAILED)):
        times.look(FLEET, [starting], 110.0 + at)
        times.look(FLEET, [paused(starting)], 142.0 + at)
        starting = replace(starting, residents=(replace(starting.residents[0], state=state),))
    assert times.measured == {FLEET: (42.0,)}


def test_another_seat_of_the_same_name_starts_anew() -> None:
    times, first = StartTimes(), seat("a", ResidentState.LOADING)
    times.look(FLEET, [first], 110.0)
    times.look(FLEET, [paused(first)], 120.0)
    second = replace(first, uid="another", created_at=200.0)
    times.look(FLEET, [second], 210.0)
    times.look(FLEET, [paused(second)], 230.0)
    assert times.measured == {FLEET: (20.0, 30.0)}


def test_a_seat_that_goes_away_while_it_starts_says_nothing() -> None:
    times, starting = StartTimes(), seat("a", ResidentState.LOADING)
    times.look(FLEET, [starting], 110.0)
    times.look(FLEET, [], 120.0)
    times.look(FLEET, [paused(starting)], 900.0)
    assert times.measured == {}


def test_the_median_of_the_last_starts_counts() -> None:
    times = StartTimes()
    times.remember(FLEET, (10.0, 500.0))
    one = seat("a", ResidentState.STARTING)
    times.look(FLEET, [one], 101.0)
    times.look(FLEET, [paused(one)], 120.0)
    assert times.seconds(FLEET) == 20.0
    assert times.measured == {FLEET: (10.0, 500.0, 20.0)}
