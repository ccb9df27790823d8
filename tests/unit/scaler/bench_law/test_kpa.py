"""Knative's rule against its published formulas and defaults."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.runtime.bench.law.kpa import TICK_SECONDS, Concurrency, Kpa, KpaMemory, decide

RULE = Kpa(target=10.0)


def follow(rule: Kpa, ready: int, means: list[tuple[float, float]], *, starts: bool = False) -> list[int]:
    """Decide once per (stable, panic) pair; every pod asked for is ready at the next tick unless it `starts`."""
    memory, seen, desired = KpaMemory(pods=ready), [], ready
    for number, (stable, panic) in enumerate(means):
        answer, memory = decide(
            rule, ready if starts else desired, stable, panic, memory, number * TICK_SECONDS
        )
        assert answer is not None
        desired = answer
        seen.append(desired)
    return seen


@pytest.mark.parametrize(
    ("ready", "stable", "panic", "expected"),
    [
        (1, 10.0, 10.0, 1),
        (1, 10.1, 10.1, 2),  # ceil
        (5, 34.0, 34.0, 4),
        (5, 34.0, 90.0, 4),  # 9 pods aren't twice 5
    ],
)
def test_it_asks_for_concurrency_over_target(ready: int, stable: float, panic: float, expected: int) -> None:
    assert follow(RULE, ready, [(stable, panic)]) == [expected]


def test_a_panic_begins_at_twice_the_ready_pods_and_takes_the_higher_mean() -> None:
    assert follow(RULE, 2, [(15.0, 39.0)]) == [4]
    assert follow(RULE, 2, [(15.0, 30.0)]) == [2]


def test_a_panic_never_scales_down() -> None:
    assert follow(RULE, 1, [(5.0, 80.0), (6.0, 20.0), (9.0, 1.0), (9.0, 0.0)]) == [8, 8, 8, 8]


def test_a_panic_ends_one_stable_window_after_it_was_last_due() -> None:
    calm = [(9.0, 1.0)] * 40
    seen = follow(RULE, 1, [(5.0, 80.0), *calm])
    over = next(number for number, pods in enumerate(seen) if number and pods < 8)
    assert over * TICK_SECONDS == pytest.approx(62.0)  # the first tick later than 60 s


def test_a_panic_that_goes_on_ends_later() -> None:
    means = [(5.0, 80.0), *[(9.0, 1.0)] * 20, (9.0, 160.0), *[(9.0, 1.0)] * 40]
    seen = follow(RULE, 1, means)
    over = next(number for number, pods in enumerate(seen) if number > 21 and pods < 16)
    assert over * TICK_SECONDS == pytest.approx(2.0 * 21 + 62.0)


def test_one_decision_halves_the_pods_at_most() -> None:
    assert follow(RULE, 9, [(1.0, 1.0)] * 4) == [4, 2, 1, 1]


def test_one_decision_multiplies_the_pods_by_the_rate_at_most() -> None:
    rule = Kpa(target=1.0, max_up=2.0)
    assert follow(rule, 3, [(100.0, 100.0)] * 3) == [6, 12, 24]


def test_pods_that_are_not_ready_yet_don_t_count_for_rates_and_panic() -> None:
    assert follow(RULE, 1, [(25.0, 25.0)] * 3, starts=True) == [3, 3, 3]


def test_bounds_hold_last() -> None:
    rule = Kpa(target=10.0, min_scale=2, max_scale=5)
    assert follow(rule, 2, [(0.0, 0.0), (500.0, 500.0)]) == [2, 5]


def test_the_last_pod_stays_for_the_grace_period() -> None:
    seen = follow(RULE, 1, [(0.0, 0.0)] * 18)
    assert seen == [1] * 15 + [0] * 3


def test_a_request_within_the_grace_period_begins_it_anew() -> None:
    seen = follow(RULE, 1, [*[(0.0, 0.0)] * 10, (1.0, 1.0), *[(0.0, 0.0)] * 16])
    assert seen == [1] * 26 + [0]


def test_a_pod_that_starts_is_not_given_up_before_it_is_ready() -> None:
    memory = KpaMemory(pods=1)
    for now in range(0, 100, 2):
        answer, memory = decide(RULE, 0, 0.0, 0.0, memory, float(now))
        assert answer == 1
    assert decide(RULE, 1, 0.0, 0.0, memory, 100.0)[0] == 0


def test_where_there_is_no_pod_none_comes_without_demand() -> None:
    assert follow(RULE, 0, [(0.0, 0.0)] * 3) == [0, 0, 0]


def test_no_data_changes_nothing() -> None:
    memory = KpaMemory(panic_at=3.0, panic_pods=7)
    assert decide(RULE, 3, None, 5.0, memory, 10.0) == (None, memory)
    assert decide(RULE, 3, 5.0, None, memory, 10.0) == (None, memory)


def test_a_start_with_several_pods_keeps_them_for_a_stable_window() -> None:
    memory = KpaMemory.initial(4, 0.0)
    assert decide(RULE, 4, 1.0, 1.0, memory, 60.0)[0] == 4
    assert decide(RULE, 4, 1.0, 1.0, memory, 61.0)[0] == 2
    assert KpaMemory.initial(1, 0.0) == KpaMemory(pods=1)


def test_a_mean_counts_only_the_seconds_that_were_reported() -> None:
    seen = Concurrency(60.0)
    assert seen.mean(60.0, 0.0) is None
    for second, value in ((0, 4.0), (1, 8.0), (5, 6.0)):
        seen.report(second, value)
    assert seen.mean(60.0, 6.0) == pytest.approx(6.0)
    assert seen.mean(6.0, 8.0) == pytest.approx(6.0)
    assert seen.mean(60.0, 70.0) is None


def test_a_window_ends_with_the_present() -> None:
    seen = Concurrency(60.0)
    for second in range(100):
        seen.report(second, float(second))
    assert seen.mean(6.0, 100.0) == pytest.approx(sum(range(94, 100)) / 6)
    assert seen.mean(60.0, 100.0) == pytest.approx(sum(range(40, 100)) / 60)


@given(
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500)), min_size=1, max_size=60),
    st.integers(0, 3),
    st.integers(3, 12),
)
def test_it_never_leaves_its_bounds(means: list[tuple[float, float]], least: int, most: int) -> None:
    rule = Kpa(target=10.0, min_scale=least, max_scale=most)
    assert all(least <= pods <= most for pods in follow(rule, max(1, least), means))
