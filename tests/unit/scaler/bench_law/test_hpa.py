"""HorizontalPodAutoscaler's rule against its published formulas and examples."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import ChangeLimit, Pace, Select
from scaler.core.pace import Changes, highest_total, lowest_total
from scaler.runtime.bench.law.hpa import (
    DEFAULT_DOWN,
    DEFAULT_UP,
    SYNC_SECONDS,
    Hpa,
    HpaMemory,
    average_value,
    sync,
    value,
)

RULE = Hpa(max_replicas=100)


def percent(number: int, period: float = 60.0) -> ChangeLimit:
    return ChangeLimit(value=number, percent=True, period=period)


def pods(number: int, period: float = 60.0) -> ChangeLimit:
    return ChangeLimit(value=number, percent=False, period=period)


def follow(
    rule: Hpa, replicas: int, desired: list[int | None], every: float = SYNC_SECONDS, start: float = 0.0
) -> list[int]:
    """Sync once per entry of `desired`, and return the replicas after each."""
    memory, seen = HpaMemory(), []
    for number, proposal in enumerate(desired):
        replicas, memory = sync(rule, replicas, [proposal], memory, start + number * every)
        seen.append(replicas)
    return seen


# ------------------------------------------------------------------ the formulas


@pytest.mark.parametrize(
    ("replicas", "metric", "target", "expected"),
    [
        (3, 200.0, 100.0, 6),  # twice the target doubles
        (4, 50.0, 100.0, 2),  # half of it halves
        (10, 110.0, 100.0, 10),  # a tenth above is tolerated
        (10, 110.1, 100.0, 12),  # ceil(10 × 1.101)
        (10, 90.0, 100.0, 10),  # a tenth below is tolerated
        (10, 89.0, 100.0, 9),
        (3, 100.0, 100.0, 3),
    ],
)
def test_a_value_scales_the_ready_pods_by_its_ratio_to_the_target(
    replicas: int, metric: float, target: float, expected: int
) -> None:
    assert value(RULE, replicas, replicas, metric, target) == expected


def test_a_value_counts_ready_pods_only_and_so_asks_for_less_while_others_start() -> None:
    assert value(RULE, 6, 2, 200.0, 100.0) == 4


def test_a_value_at_no_replicas_is_the_ratio_alone() -> None:
    assert value(RULE, 0, 0, 350.0, 100.0) == 4
    assert value(RULE, 0, 0, 0.0, 100.0) == 0


@pytest.mark.parametrize(
    ("replicas", "total", "target", "expected"),
    [
        (1, 96.0, 32.0, 3),
        (5, 97.0, 32.0, 4),  # whatever there is: ceil(97 / 32)
        (10, 11.0, 1.0, 10),  # 1.1 times the target is within tolerance
        (11, 12.0, 1.0, 11),
        (9, 10.0, 1.0, 10),
        (2, 0.0, 32.0, 0),
        (0, 1.0, 32.0, 1),
        (0, 0.0, 32.0, 0),
    ],
)
def test_an_average_value_asks_for_the_total_over_the_target(
    replicas: int, total: float, target: float, expected: int
) -> None:
    assert average_value(RULE, replicas, total, target) == expected


def test_binary_fractions_ask_for_no_further_pod() -> None:
    total = 0.1 + 0.2
    assert math.ceil(total / 0.1) == 4  # which is why thousandths are divided
    assert average_value(RULE, 1, total, 0.1) == 3


def test_a_tolerance_of_its_own_holds_in_its_direction_only() -> None:
    rule = Hpa(max_replicas=100, up=Pace(limits=DEFAULT_UP.limits, tolerance=0.05))
    assert value(rule, 100, 100, 105.0, 100.0) == 100
    assert value(rule, 100, 100, 106.0, 100.0) == 106
    assert value(rule, 100, 100, 91.0, 100.0) == 100


# ------------------------------------------------------------------ rates


def test_the_default_lets_four_pods_or_as_many_as_there_are_come_in_fifteen_seconds() -> None:
    assert follow(RULE, 1, [50] * 5) == [5, 10, 20, 40, 50]


def test_a_rate_counts_what_came_within_its_period() -> None:
    assert follow(RULE, 1, [50] * 5, every=5.0) == [5, 5, 5, 10, 10]


def test_the_published_scale_down_example_takes_eight_of_eighty_then_eight_then_four_at_a_time() -> None:
    down = Pace(limits=(pods(4), percent(10)), window=0.0)
    seen = follow(Hpa(max_replicas=100, down=down), 80, [10] * 14, every=60.0)
    assert seen[:3] == [72, 64, 57]
    below = [replicas for replicas in seen if replicas < 40]
    assert all(before - after == 4 for before, after in pairwise(below) if after > 10)
    assert seen[-1] == 10


def test_select_min_takes_the_rate_that_changes_least() -> None:
    down = Pace(limits=(percent(10), pods(5)), select=Select.MIN, window=0.0)
    assert follow(Hpa(max_replicas=100, down=down), 100, [1], every=60.0) == [95]
    assert follow(Hpa(max_replicas=100, down=down), 20, [1], every=60.0) == [18]


def test_a_disabled_direction_stays_as_it_is() -> None:
    rule = Hpa(max_replicas=100, down=Pace(limits=DEFAULT_DOWN.limits, select=Select.DISABLED))
    assert follow(rule, 10, [1, 20, 1]) == [10, 20, 20]


def test_what_was_removed_within_the_period_may_come_back_beyond_the_rate() -> None:
    rule = Hpa(max_replicas=100, down=Pace(limits=(percent(100, 15.0),), window=0.0))
    assert follow(rule, 20, [2, 40], every=10.0) == [2, 40]


# ------------------------------------------------------------------ windows


def test_the_default_keeps_the_highest_proposal_of_five_minutes() -> None:
    seen = follow(RULE, 1, [4, *[2] * 25])
    assert seen[:20] == [4] * 20
    assert seen[20:] == [2] * 6


def test_the_first_sync_counts_what_there_is_as_a_proposal() -> None:
    assert follow(RULE, 9, [1] * 21) == [9] * 20 + [1]


def test_a_scale_up_window_takes_its_lowest_proposal() -> None:
    rule = Hpa(max_replicas=100, up=Pace(window=60.0))
    assert follow(rule, 2, [8, 6, 7, 8, 8, 8]) == [2, 2, 2, 2, 6, 7]


# ------------------------------------------------------------------ bounds and failures


def test_what_lies_outside_the_bounds_is_brought_within_them_at_once() -> None:
    rule = Hpa(max_replicas=10, min_replicas=3)
    assert follow(rule, 40, [40]) == [10]
    assert follow(rule, 1, [1]) == [3]


def test_a_workload_turned_off_by_hand_stays_off() -> None:
    assert follow(RULE, 0, [5, 5]) == [0, 0]


def test_with_a_minimum_of_zero_it_goes_to_zero_and_back() -> None:
    rule = Hpa(max_replicas=10, min_replicas=0)
    assert follow(rule, 1, [0] * 21 + [3])[-2:] == [0, 3]


def test_unreadable_metrics_change_nothing() -> None:
    assert follow(RULE, 4, [None] * 30) == [4] * 30


def test_one_unreadable_metric_of_several_prevents_down_and_not_up() -> None:
    down, memory = sync(RULE, 4, [2, None], HpaMemory(), 1000.0)
    up, _ = sync(RULE, 4, [7, None], memory, 1015.0)
    assert (down, up) == (4, 7)


def test_of_several_metrics_the_highest_proposal_counts() -> None:
    assert sync(RULE, 4, [5, 7, 6], HpaMemory(), 0.0)[0] == 7


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(5, 50),
)
def test_it_never_leaves_its_bounds(proposals: list[int], least: int, most: int) -> None:
    rule = Hpa(min_replicas=least, max_replicas=most)
    assert all(least <= replicas <= most for replicas in follow(rule, least, list(proposals)))


@given(
    st.integers(1, 80),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 80)), min_size=1, max_size=25),
    st.lists(
        st.builds(ChangeLimit, value=st.integers(1, 200), percent=st.booleans(), period=st.just(60.0)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([Select.MAX, Select.MIN]),
)
def test_its_rates_agree_with_those_of_our_own_law(
    replicas: int, steps: list[tuple[int, int]], limits: list[ChangeLimit], select: Select
) -> None:
    """Two arithmetics, written apart, of one published rule."""
    pace = Pace(limits=tuple(limits), select=select)
    rule = Hpa(min_replicas=0, max_replicas=1_000_000, up=pace, down=pace)
    memory, changes, now = HpaMemory(), Changes(), 0.0
    for seconds, proposal in steps:
        now += seconds
        if proposal > replicas:
            expected = min(proposal, highest_total(pace, changes, replicas, now))
        else:
            expected = max(proposal, lowest_total(pace, changes, replicas, now))
        after, memory = sync(rule, replicas, [proposal], memory, now)
        assert after == expected
        changes = changes.add(now, replicas, after)
        replicas = after
