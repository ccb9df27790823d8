"""Who plans again and again plans as if it were the first time."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_pool_plan import (
    NOW,
    any_left_alone,
    any_limits,
    any_seats,
    any_settled,
    any_wants,
    pods,
)
from warmpool.plan import Limits, Planner, Wants, plan
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

FLEET, CHAT, CODE = FleetName("pool"), PolicyName("chat"), PolicyName("code")


@settings(max_examples=30)
@given(st.data())
def test_what_was_planned_before_changes_no_plan(data: st.DataObject) -> None:
    planner, now = Planner(), NOW
    seats, wants = data.draw(any_seats), data.draw(any_wants)
    limits, settled, left_alone = data.draw(any_limits), data.draw(any_settled), data.draw(any_left_alone)
    for _ in range(data.draw(st.integers(2, 5))):
        known = {"settled": settled, "left_alone": left_alone}
        assert planner.plan(wants, seats, limits, now, **known) == plan(wants, seats, limits, now, **known)
        now += data.draw(st.sampled_from((0.0, 0.5, limits.report_lag_seconds, 1000.0)))
        match data.draw(st.sampled_from(("time", "seat", "order", "settled", "left alone", "wants"))):
            case "seat" if seats:
                place = data.draw(st.integers(0, len(seats) - 1))
                seats = [*seats[:place], data.draw(pods(st.text(max_size=1))), *seats[place + 1 :]]
            case "order":
                seats = list(reversed(seats))
            case "settled":
                settled = data.draw(any_settled) or dict.fromkeys([seat.name for seat in seats[:1]], now)
            case "left alone":
                left_alone = data.draw(any_left_alone)
            case "wants":
                wants = data.draw(any_wants)


def _seat(number: int, proven_at: float, *, serves: bool, state: ResidentState) -> Seat:
    """Return a seat of two residents, of which the first may serve and the second stands in a state."""
    return Seat(
        name=SeatName(f"pool-{number}"),
        uid=str(number),
        version="1",
        fleet=FLEET,
        residents=(
            Resident(
                policy=CHAT,
                state=ResidentState.SERVING if serves else ResidentState.PAUSED,
                since=0.0,
                proven_at=proven_at,
            ),
            Resident(policy=CODE, state=state, since=0.0, proven_at=proven_at),
        ),
        serving=frozenset({CHAT}) if serves else frozenset(),
        admitted=True,
        ready=True,
    )


_standing = st.sampled_from((ResidentState.PAUSED, ResidentState.PARKED, ResidentState.FAILED))
_NONE: Mapping[FleetName, Mapping[PolicyName, int]] = {}
_of_code = st.sampled_from((_NONE, *({FLEET: {CODE: count}} for count in (0, 1, 5))))
_seats = st.builds(
    lambda number, age, serves, state: _seat(number, NOW - age, serves=serves, state=state),
    st.integers(0, 9),
    st.sampled_from((0.0, 10.0, 290.0)),
    st.booleans(),
    _standing,
)


@settings(max_examples=200)
@given(st.data())
def test_a_fleet_that_has_what_is_wanted_is_planned_as_if_for_the_first_time(data: st.DataObject) -> None:
    planner, now = Planner(), NOW
    seats = data.draw(st.lists(_seats, min_size=1, max_size=5, unique_by=lambda seat: seat.name))
    stock, limits = {FLEET: seats}, Limits()
    has = sum(CHAT in seat.serving for seat in seats)
    serving, warm, starting = {CHAT: has, CODE: 0}, _NONE, _NONE
    for _ in range(data.draw(st.integers(2, 8))):
        wants = Wants(serving={FLEET: serving}, warm=warm, starting=starting)
        once = plan(wants, seats, limits, now, settled={})
        assert planner.plan_fleets(wants, stock, limits, now, settled={}) == once
        # One thing at a time: were all of it drawn anew, hardly ever would one alone be what a plan of before lacks.
        match data.draw(st.sampled_from(("time", "limits", "serving", "warm", "starting"))):
            case "time":
                now += data.draw(st.sampled_from((5.0, 20.0, 400.0)))
            case "limits":
                limits = data.draw(st.sampled_from((Limits(), Limits(proof_interval_seconds=1.0))))
            case "serving":
                more = st.sampled_from((0, 0, 1))
                serving = {CHAT: has + data.draw(more), CODE: data.draw(more)}
            case "warm":
                warm = data.draw(_of_code)
            case "starting":
                starting = data.draw(_of_code)


def test_a_fleet_that_had_nothing_to_do_is_proven_when_its_next_proof_is_due() -> None:
    paused = ResidentState.PAUSED
    seats = [_seat(1, NOW - 10, serves=True, state=paused), _seat(2, NOW - 10, serves=False, state=paused)]
    planner, wants = Planner(), Wants(serving={FLEET: {CHAT: 1, CODE: 0}})
    due = NOW + 400.0
    first = planner.plan_fleets(wants, {FLEET: seats}, Limits(), NOW, settled={})
    later = planner.plan_fleets(wants, {FLEET: seats}, Limits(), due, settled={})
    assert first.actions == ()
    assert later.actions
    assert later == plan(wants, seats, Limits(), due, settled={})
