"""What gateways are told of residents that are on their way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.islands import Island
from scaler.core.model import (
    Decision,
    FleetShare,
    FleetView,
    Load,
    Mode,
    PolicyDecision,
    PolicySpec,
    Snapshot,
    Supply,
)
from scaler.runtime.coming import STEPS, Coming
from scaler.runtime.controller import Tick
from warmpool.plan import Plan
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

CHAT, OWN, SPARES = PolicyName("chat"), FleetName("own"), FleetName("spares")
POLICY = PolicySpec(
    name=CHAT,
    fleets=(FleetShare(fleet=OWN, target_in_flight=4), FleetShare(fleet=SPARES, target_in_flight=4)),
)
NOW = 1_796_000_000.0
RESTS = Supply(paused_wake=0.2, parked_wake=8.0)


def starting(seconds_ago: float, at: float = NOW) -> Seat:
    resident = Resident(policy=CHAT, state=ResidentState.LOADING, since=at)
    return Seat(
        name=SeatName(f"s{seconds_ago}"),
        uid=f"u{seconds_ago}",
        version="",
        fleet=OWN,
        residents=(resident,),
        created_at=at - seconds_ago,
    )


def tick(
    own: Supply, *seats: Seat, wanted: int = 1, serving: int = 0, start_seconds: float = 60.0, at: float = NOW
) -> Tick:
    view = FleetView(starting=len(seats), start_seconds=start_seconds, supply={CHAT: own})
    decided = PolicyDecision(
        policy=CHAT,
        mode=Mode.BURST,
        demand=9.0,
        needed=9.0,
        capacity=0.0,
        wanted={OWN: wanted},
        serving={OWN: serving},
    )
    return Tick(
        number=1,
        at=at,
        causes={},
        looked=Island((POLICY,), ()),
        snapshot=Snapshot(loads={CHAT: Load()}, fleets={OWN: view}),
        decision=Decision(at=at, policies={CHAT: decided}, fleets={}, next_wakeup=None, law=""),
        plan=Plan(),
        stock={OWN: seats},
    )


def told(*ticks: Tick, at: float = NOW) -> float | None:
    coming = Coming()
    for each in ticks:
        coming.take(each)
    return coming.steps(at).get(CHAT)


@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        pytest.param(tick(RESTS, wanted=0), None, id="nobody wants one"),
        pytest.param(tick(replace(RESTS, serving=1), starting(0.0)), None, id="as many serve as are wanted"),
        pytest.param(tick(replace(RESTS, promotable=1), serving=1), 1.0, id="a paused one is given a seat"),
        pytest.param(
            tick(replace(RESTS, promotable=1, parked=1), serving=1), 10.0, id="a parked one is given a seat"
        ),
        pytest.param(
            tick(replace(RESTS, promoting=1)), 10.0, id="one is on its way, from nobody knows where"
        ),
        pytest.param(tick(Supply(promoting=1)), None, id="nobody has seen one wake"),
        pytest.param(tick(RESTS), None, id="no seat starts"),
        pytest.param(tick(RESTS, starting(0.0)), 90.0, id="a seat begins to start"),
        pytest.param(tick(RESTS, starting(25.0)), 45.0, id="a seat starts: what is left"),
        pytest.param(tick(RESTS, starting(3.0), starting(50.0)), 20.0, id="two start: the first"),
        pytest.param(tick(RESTS, starting(99.0), starting(30.0)), 45.0, id="one is late: the other"),
        pytest.param(tick(RESTS, starting(99.0)), None, id="it is late: nobody knows"),
        pytest.param(tick(RESTS, starting(9.0), start_seconds=0.0), None, id="none was seen to start"),
        pytest.param(tick(RESTS, starting(0.0), start_seconds=900.0), None, id="too long to foretell"),
    ],
)
def test_when_one_more_resident_is_expected(now: Tick, seconds: float | None) -> None:
    assert told(now) == seconds


def test_the_time_runs_down_in_steps_between_ticks() -> None:
    coming = Coming()
    coming.take(tick(RESTS, starting(0.0), start_seconds=50.0))
    said = [coming.steps(NOW + second)[CHAT] for second in range(51)]
    assert sorted(set(said), reverse=True) == [60.0, 45.0, 30.0, 20.0, 10.0, 5.0, 2.0, 1.0]
    assert said == sorted(said, reverse=True)
    assert coming.steps(NOW + 51.0) == {}, "it is overdue"


@given(st.lists(st.floats(5.0, 500.0), min_size=1, max_size=40))
def test_what_was_foretold_is_not_put_off_before_it_is_over(estimates: list[float]) -> None:
    """However the estimate trembles: no gateway hears of a longer wait while the last one runs."""
    coming, last = Coming(), STEPS[-1]
    for second, estimate in enumerate(estimates):
        at = NOW + second / 10.0
        coming.take(tick(RESTS, starting(0.0, at), start_seconds=estimate, at=at))
        step = coming.steps(at)[CHAT]
        assert step <= last
        last = step


def test_a_promise_that_was_not_kept_is_followed_by_another() -> None:
    late = NOW + 61.0
    assert told(tick(RESTS, starting(0.0)), tick(RESTS, starting(10.0, late), at=late), at=late) == 60.0


def test_one_that_nobody_wants_any_more_is_forgotten() -> None:
    assert told(tick(RESTS, starting(0.0)), tick(RESTS, starting(1.0), wanted=0)) is None


def test_a_wake_that_takes_longer_than_usual_is_no_longer_foretold_until_another_one_begins() -> None:
    """A neighbour drains meanwhile, for as long as its requests take; a second more would be said again and again."""
    coming, given_a_seat = Coming(), replace(RESTS, promotable=1)
    said = []
    for second in range(6):
        at = NOW + second / 2.0
        coming.take(tick(given_a_seat, wanted=2, serving=1, at=at))
        said.append(coming.steps(at).get(CHAT))
    assert said == [1.0, 1.0, None, None, None, None]
    at = NOW + 3.0
    coming.take(tick(replace(given_a_seat, serving=1), wanted=2, serving=2, at=at))
    assert coming.steps(at).get(CHAT) == 1.0, "the first serves, and the next one is on its way"
    coming.take(tick(RESTS, wanted=0, at=at))
    coming.take(tick(given_a_seat, serving=1, at=at + 60.0))
    assert coming.steps(at + 60.0).get(CHAT) == 1.0
