"""Waits between restarts, and when they end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.agent.budget import FAILURES, LONGEST_WAIT_SECONDS, WINDOW_SECONDS, FailureBudget


@pytest.mark.parametrize(
    ("times", "waits"),
    [
        pytest.param([0, 1, 3, 7, 15], [1, 2, 4, 8, None], id="five in a row are the end"),
        pytest.param(
            [0, 80, 160, 240, 320, 400, 480], [1, 2, 4, 8, 16, 30, 30], id="slow failures wait ever longer"
        ),
        pytest.param([0, 301, 602], [1, 1, 1], id="a quiet window ends the streak"),
        pytest.param([0, 0, 0, 0, 301, 302], [1, 2, 4, 8, 1, 2], id="old failures are forgotten"),
    ],
)
def test_waits(times: list[float], waits: list[float | None]) -> None:
    budget = FailureBudget()
    assert [budget.failed(now) for now in times] == waits


@given(st.lists(st.floats(min_value=0, max_value=1000), min_size=1, max_size=60))
def test_given_up_exactly_when_too_many_fall_into_one_window(gaps: list[float]) -> None:
    budget, now, times = FailureBudget(), 0.0, []
    for gap in gaps:
        now += gap
        times.append(now)
        recent = [time for time in times if now - time <= WINDOW_SECONDS]
        wait = budget.failed(now)
        assert (wait is None) == (len(recent) >= FAILURES)
        assert wait is None or 1 <= wait <= LONGEST_WAIT_SECONDS
