import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.encoding import decode, encode
from scaler.core.windows import Maxima, Ring, Starts, next_slide, window_seconds


def ring(*readings: tuple[float, float], window: float = 60.0) -> Ring:
    one = Ring()
    for at, value in readings:
        one = one.add(at, value, value, window)
    return one


def test_each_second_weighs_the_same_however_many_readings_fall_into_it() -> None:
    busy = ring((0.0, 4.0), (1.0, 10.0), (1.1, 10.0), (1.2, 10.0), (1.3, 10.0))
    assert busy.mean(1.5, 60.0) == 7.0


def test_a_gap_is_unknown_and_not_zero() -> None:
    assert ring((0.0, 8.0), (30.0, 8.0)).mean(30.0, 60.0) == 8.0


def test_a_fresh_zero_counts() -> None:
    assert ring((0.0, 8.0), (1.0, 0.0)).mean(1.0, 60.0) == 4.0


def test_an_empty_window_has_neither_mean_nor_peak() -> None:
    old = ring((0.0, 8.0))
    assert old.mean(100.0, 10.0) is None
    assert old.peak(100.0, 10.0) is None
    assert Ring().mean(0.0, 10.0) is None


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(1001.0, 9.0, id="inside"),
        pytest.param(1003.5, 9.0, id="the window is covered wholly"),
        pytest.param(1004.0, 1.0, id="gone"),
    ],
)
def test_the_peak_leaves_with_its_second(now: float, expected: float) -> None:
    one = ring((1001.0, 9.0), (1002.0, 1.0), (1003.0, 1.0))
    assert one.peak(now, 2.0) == expected


def test_the_wakeup_is_the_moment_at_which_the_oldest_second_leaves() -> None:
    one = ring((1001.2, 9.0), (1002.0, 1.0), (1003.0, 1.0))
    slides = next_slide(1003.2, 2.0)
    assert slides == 1004.0
    assert one.peak(math.nextafter(slides, 0.0), 2.0) == 9.0
    assert one.peak(slides, 2.0) == 1.0


def test_time_that_stands_still_adds_to_the_same_second() -> None:
    one = ring((5.0, 2.0), (5.0, 4.0), (5.0, 6.0))
    assert len(one.buckets) == 1
    assert one.mean(5.0, 10.0) == 4.0
    assert one.peak(5.0, 10.0) == 6.0


def test_a_reading_that_may_only_raise_leaves_the_mean_alone() -> None:
    one = ring((0.0, 4.0)).add(0.5, None, 20.0, 60.0).add(1.0, None, 30.0, 60.0)
    assert one.mean(1.0, 60.0) == 4.0
    assert one.peak(1.0, 60.0) == 30.0


def test_the_ring_forgets_what_left_its_window() -> None:
    one = ring(*((float(second), 1.0) for second in range(1000)), window=60.0)
    assert len(one.buckets) <= 62


def plain_mean(one: Ring, now: float, window: float) -> float | None:
    first = math.floor((now - window) / 1.0)
    total, known = 0.0, 0
    for bucket in one.buckets:
        if bucket.readings and bucket.second >= first:
            total, known = total + bucket.mean, known + 1
    return total / known if known else None


def plain_peak(one: Ring, now: float, window: float) -> float | None:
    first = math.floor((now - window) / 1.0)
    return max((bucket.peak for bucket in one.buckets if bucket.second >= first), default=None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from((0.0, 0.01, 0.3, 1.0, 2.5, 30.0)),
            st.one_of(st.none(), st.floats(0.0, 1e6)),
            st.sampled_from((2.0, 10.0)),
        ),
        max_size=40,
    )
)
def test_what_is_remembered_of_seconds_that_are_over_changes_neither_mean_nor_peak(
    steps: list[tuple[float, float | None, float]],
) -> None:
    """To the last bit: a ledger is replayed by looks that may come at other times."""
    one, now = Ring(), 0.0
    for passed, value, window in steps:
        now += passed
        one = one.add(now, value, value or 7.0, 10.0)
        for at in (now, now + 0.4, now + 3.0):
            assert one.mean(at, window) == plain_mean(one, at, window)
            assert one.peak(at, window / 2) == plain_peak(one, at, window / 2)


def test_what_is_remembered_of_a_sum_is_no_part_of_the_value() -> None:
    asked, fresh = ring((0.0, 3.0), (1.0, 4.0)), ring((0.0, 3.0), (1.0, 4.0))
    asked.mean(1.0, 60.0)
    asked.peak(1.0, 6.0)
    assert (asked, repr(asked), encode(asked)) == (fresh, repr(fresh), encode(fresh))
    assert decode(Ring, encode(asked)) == fresh


def test_a_flat_ring_is_one_that_time_does_not_change() -> None:
    assert ring((0.0, 3.0), (1.0, 3.0)).flat
    assert not ring((0.0, 3.0), (1.0, 4.0)).flat
    assert not ring((0.0, 3.0)).add(0.5, None, 5.0, 60.0).flat


@pytest.mark.parametrize(
    ("window", "usable"),
    [
        pytest.param(60.0, 60.0, id="as it is"),
        pytest.param(0.0, 1.0, id="zero"),
        pytest.param(-5.0, 1.0, id="negative"),
        pytest.param(math.nan, 1.0, id="not a number"),
        pytest.param(math.inf, 3600.0, id="endless"),
    ],
)
def test_any_window_can_be_used(window: float, usable: float) -> None:
    assert window_seconds(window) == usable


def test_a_smaller_value_rules_once_the_larger_was_not_asked_for_during_the_window() -> None:
    maxima = Maxima().add(0.0, 5, 10.0).add(4.0, 5, 10.0).add(5.0, 2, 10.0)
    assert maxima.highest == 5
    assert maxima.falls_at(10.0) == 14.0
    assert maxima.add(13.9, 2, 10.0).highest == 5
    assert maxima.add(14.0, 2, 10.0).highest == 2


def test_a_value_alone_never_falls() -> None:
    assert Maxima().add(0.0, 5, 10.0).falls_at(10.0) == math.inf
    assert Maxima().highest == 0


def test_starts_count_for_a_minute() -> None:
    starts = Starts().add(0.0, 3).add(30.0, 2).add(40.0, 0)
    assert starts.count == 5
    assert starts.frees_at == 60.0
    assert starts.at(59.9).count == 5
    assert starts.at(60.0).count == 2
    assert starts.at(90.0).count == 0
