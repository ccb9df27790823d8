"""How long rates take, and what tolerances swallow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import ChangeLimit, Pace, Select
from scaler.core.pace import tolerated
from scaler.policy.lint.assumptions import HPA_DOWN, HPA_UP
from scaler.policy.lint.stepping import MOST_CHANGES, Way, dead_from, ignored, last_start, way

HALF_A_MINUTE = ChangeLimit(value=50, percent=True, period=60.0)
FOUR_A_MINUTE = ChangeLimit(value=4, percent=False, period=60.0)


@pytest.mark.parametrize(
    ("pace", "start", "goal", "expected"),
    [
        pytest.param(Pace(), 1, 40, Way(0.0, 40), id="no-rates"),
        pytest.param(HPA_UP, 1, 40, Way(45.0, 40), id="hpa-up:1-5-10-20-40"),
        pytest.param(HPA_UP, 40, 41, Way(0.0, 41), id="hpa-up-one"),
        pytest.param(HPA_DOWN, 40, 1, Way(0.0, 1), id="hpa-down-at-once"),
        pytest.param(Pace(limits=(HALF_A_MINUTE,)), 44, 2, Way(180.0, 2), id="half:44-22-11-5-2"),
        pytest.param(Pace(limits=(FOUR_A_MINUTE,)), 1, 10, Way(120.0, 10), id="four-a-minute"),
        pytest.param(
            Pace(limits=(HALF_A_MINUTE, FOUR_A_MINUTE), select=Select.MIN),
            40,
            20,
            Way(240.0, 20),
            id="the-slower",
        ),
        pytest.param(
            Pace(limits=(HALF_A_MINUTE, FOUR_A_MINUTE), select=Select.MAX),
            40,
            20,
            Way(0.0, 20),
            id="the-faster",
        ),
        pytest.param(Pace(select=Select.DISABLED), 4, 5, Way(0.0, 4), id="never"),
        pytest.param(Pace(limits=(HALF_A_MINUTE,)), 0, 1, Way(0.0, 0), id="no-percentage-of-nothing"),
    ],
)
def test_rates_take_their_time(pace: Pace, start: int, goal: int, expected: Way) -> None:
    assert way(pace, start, goal) == expected


def test_a_change_of_just_before_uses_up_the_first_period() -> None:
    pace = Pace(limits=(FOUR_A_MINUTE,))
    assert way(pace, 8, 12, before=0) == Way(60.0, 12)
    assert way(pace, 8, 12, before=6) == Way(60.0, 12)  # two at once, two more a minute later
    assert way(pace, 8, 12, before=8) == Way(0.0, 12)


def test_a_way_of_too_many_changes_is_followed_so_far_only() -> None:
    slow = Pace(limits=(ChangeLimit(value=1, percent=False, period=1800.0),))
    assert way(slow, 0, 100_000) == Way(1800.0 * MOST_CHANGES, MOST_CHANGES)


@pytest.mark.parametrize(
    ("percent", "first", "at_44"), [(0, None, 0), (1, 100, 0), (10, 10, 4), (30, 4, 13), (100, 1, 44)]
)
def test_a_tolerance_swallows_changes_from_a_total_on(percent: int, first: int | None, at_44: int) -> None:
    assert (dead_from(percent), ignored(44, percent)) == (first, at_44)


@given(total=st.integers(1, 10_000), percent=st.integers(1, 100))
def test_the_law_leaves_alone_what_is_said_to_be_ignored(total: int, percent: int) -> None:
    step, pace = ignored(total, percent), Pace(tolerance=percent / 100)
    assert not tolerated(pace, total, total + step + 1)
    assert step <= 1 or tolerated(pace, total, total + step - 1)


@pytest.mark.parametrize(
    ("seats", "concurrent", "per_minute", "start", "expected"),
    [
        pytest.param(4, 4, 12, 100.0, 0.0, id="all-at-once"),
        pytest.param(5, 4, 12, 100.0, 100.0, id="the-fifth-waits-for-a-place"),
        pytest.param(13, 100, 12, 100.0, 60.0, id="the-thirteenth-waits-for-the-minute"),
        pytest.param(3, 1, 1, 10.0, 120.0, id="the-minute-is-longer-than-a-start"),
        pytest.param(9, 4, 6, 45.0, 90.0, id="both"),
    ],
)
def test_the_last_of_many_seats_waits_for_the_replenish_limits(
    seats: int, concurrent: int, per_minute: int, start: float, expected: float
) -> None:
    assert last_start(seats, concurrent=concurrent, per_minute=per_minute, start_seconds=start) == expected


@given(
    seats=st.integers(1, 60),
    concurrent=st.integers(1, 10),
    per_minute=st.integers(1, 20),
    start=st.integers(0, 300),
)
def test_replenishing_never_breaks_its_limits_and_never_idles(
    seats: int, concurrent: int, per_minute: int, start: int
) -> None:
    limits = {"concurrent": concurrent, "per_minute": per_minute, "start_seconds": float(start)}
    begun = [last_start(count, **limits) for count in range(1, seats + 1)]
    for index, at in enumerate(begun):
        starting = sum(1 for other in begun[:index] if other + start > at)
        recent = sum(1 for other in begun[:index] if other + 60.0 > at)
        assert starting < concurrent
        assert recent < per_minute
        could_not_be_earlier = at == 0.0 or any(
            at in {other + start, other + 60.0} for other in begun[:index]
        )
        assert could_not_be_earlier
