import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.signals.scrape_pace import BUSIEST, LATEST, LONGEST_STRETCH, ScrapePace, stretched


@pytest.mark.parametrize(
    ("stretch", "busy", "lateness", "next_one"),
    [
        pytest.param(1.0, 0.4, 0.01, 1.0, id="room enough"),
        pytest.param(1.0, BUSIEST, 0.0, 1.0, id="at the limit"),
        pytest.param(1.0, 0.9, 0.0, 1.2, id="too busy"),
        pytest.param(1.0, 0.1, 0.3, 1.5, id="somebody else has the processor"),
        pytest.param(2.0, 0.1, 9.0, 4.0, id="doubled at most"),
        pytest.param(30.0, 1.0, 1.0, LONGEST_STRETCH, id="the longest"),
        pytest.param(10.0, 0.0, 0.0, 8.0, id="back in steps"),
        pytest.param(1.1, 0.2, 0.0, 1.0, id="and never faster than asked"),
    ],
)
def test_intervals_stretch_by_the_load(stretch: float, busy: float, lateness: float, next_one: float) -> None:
    assert stretched(stretch, busy, lateness) == pytest.approx(next_one)


@given(st.floats(0.001, 0.05), st.integers(1, 20_000), st.floats(0.0, 0.3))
def test_the_rule_settles_where_the_loop_is_as_busy_as_it_may_be(
    cost: float, engines: int, other: float
) -> None:
    stretch = 1.0
    for _ in range(400):
        busy = min(1.0, other + engines * cost / (0.25 * stretch))
        stretch = stretched(stretch, busy, 0.0)
    wanted = engines * cost / 0.25 / (BUSIEST - other)
    assert stretch == pytest.approx(min(LONGEST_STRETCH, max(1.0, wanted)), rel=0.02)


@pytest.mark.long
def test_a_loop_that_computes_all_the_time_is_seen_and_stretches() -> None:
    pace, until = ScrapePace(), time.monotonic() + 20
    begun, ran = time.monotonic(), time.thread_time()
    while pace.stretch == 1.0 and time.monotonic() < until:
        pace.began(late=0.0, interval=0.25)
    share = (time.thread_time() - ran) / (time.monotonic() - begun)
    if pace.stretch == 1.0 and share < BUSIEST:
        pytest.skip(f"this thread got {share:.0%} of a processor: it cannot compute all the time")
    assert 1.0 < pace.stretch <= 2.0


def test_late_readings_are_seen_and_stretch() -> None:
    pace = ScrapePace()
    deadline = time.monotonic() + 5
    while pace.stretch == 1.0 and time.monotonic() < deadline:
        pace.began(late=2 * LATEST * 0.25, interval=0.25)
    assert pace.stretch == pytest.approx(2.0, rel=0.1)
