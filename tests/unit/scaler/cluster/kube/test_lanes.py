"""Rates of writes, and what a lane does when the server asks to wait."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.cluster.kube.lanes import Budget, Lane, TokenBucket

BUDGET = Budget(per_second=10, burst=5, at_once=2)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=100))
def test_no_window_of_time_sees_more_calls_than_the_budget(pauses: list[float]) -> None:
    bucket, now, calls = TokenBucket(BUDGET, 0.0), 0.0, list[float]()
    for pause in pauses:
        now += pause
        calls.append(now + bucket.take(now))
    assert calls == sorted(calls)
    for first in range(len(calls)):
        for last in range(first, len(calls)):
            allowed = BUDGET.burst + BUDGET.per_second * (calls[last] - calls[first])
            assert last - first + 1 <= allowed + 1e-6


def test_a_rest_gives_the_burst_back_and_no_more() -> None:
    bucket = TokenBucket(BUDGET, 0.0)
    assert [bucket.take(0.0) for _ in range(6)] == [0, 0, 0, 0, 0, pytest.approx(0.1)]
    assert [bucket.take(100.0) for _ in range(6)] == [0, 0, 0, 0, 0, pytest.approx(0.1)]


@pytest.mark.looptime
async def test_a_lane_that_is_asked_to_wait_makes_no_call_until_then() -> None:
    loop = asyncio.get_running_loop()
    lane = Lane(BUDGET, loop.time)
    lane.pause(7)
    lane.pause(3)
    async with lane.turn():
        assert loop.time() >= 7


@pytest.mark.looptime
async def test_so_many_calls_are_under_way_at_once_and_no_more() -> None:
    loop = asyncio.get_running_loop()
    lane = Lane(Budget(per_second=1000, burst=100, at_once=2), loop.time)
    under_way, most = 0, 0

    async def call() -> None:
        nonlocal under_way, most
        async with lane.turn():
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(1)
            under_way -= 1

    await asyncio.gather(*(call() for _ in range(6)))
    assert most == 2
