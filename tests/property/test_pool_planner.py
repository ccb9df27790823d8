"""Who plans again and again plans as if it were the first time."""

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
from warmpool.plan import Planner, plan


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
