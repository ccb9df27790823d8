"""Calls that may never return, and who waits for them. In real time: a thread knows no other."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from warmpool.nodehealth.lanes import Lane, LaneBusy

SOON, LONG = 0.01, 10.0


class Stuck:
    """Calls that return when they are let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = 0

    def __call__(self) -> str:
        self.begun += 1
        self.let_go.wait()
        return "late"


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.let_go.set()


def lane(hung: Callable[[], None] = lambda: None, *, hang_seconds: float = LONG) -> Lane:
    return Lane("the lane", hung, hang_seconds=hang_seconds)


async def free(its: Lane) -> None:
    """Wait until a lane's call has returned."""
    async with asyncio.timeout(LONG):
        while its.busy:
            await asyncio.sleep(0.001)


async def test_a_call_is_made_in_another_thread_and_its_result_comes_back() -> None:
    made = lane()
    assert await made.call(threading.get_ident, seconds=LONG) != threading.get_ident()
    made.close()


async def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    made = lane()
    with pytest.raises(ZeroDivisionError):
        await made.call(lambda: 1 / 0, seconds=LONG)
    assert await made.call(lambda: "next", seconds=LONG) == "next"
    made.close()


async def test_a_call_that_does_not_return_is_waited_for_as_long_as_was_said(stuck: Stuck) -> None:
    made = lane()
    with pytest.raises(LaneBusy, match="the lane: a call has not returned"):
        await made.call(stuck, seconds=SOON)
    assert made.busy
    stuck.let_go.set()
    await free(made)
    made.close()


async def test_no_second_call_is_begun_while_one_has_not_returned(stuck: Stuck) -> None:
    made = lane()
    for _ in range(5):
        with pytest.raises(LaneBusy):
            await made.call(stuck, seconds=SOON)
    assert stuck.begun == 1
    stuck.let_go.set()
    await free(made)
    made.close()


async def test_a_lane_whose_call_has_returned_late_takes_the_next(stuck: Stuck) -> None:
    made = lane()
    with pytest.raises(LaneBusy):
        await made.call(stuck, seconds=SOON)
    stuck.let_go.set()
    await free(made)
    assert await made.call(lambda: "next", seconds=LONG) == "next"
    made.close()


async def test_a_call_that_hangs_is_told_of_once(stuck: Stuck) -> None:
    told = []
    made = lane(lambda: told.append(1), hang_seconds=SOON)
    with pytest.raises(LaneBusy):
        await made.call(stuck, seconds=5 * SOON)
    with pytest.raises(LaneBusy) as refused:
        await made.call(stuck, seconds=5 * SOON)
    assert refused.value.hangs
    assert made.hangs
    assert told == [1]
    stuck.let_go.set()
    await free(made)
    assert not made.hangs
    made.close()


async def test_a_caller_that_gives_up_leaves_the_lane_busy(stuck: Stuck) -> None:
    made = lane()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SOON):
            await made.call(stuck, seconds=LONG)
    assert made.busy
    stuck.let_go.set()
    await free(made)
    made.close()


def test_a_hanging_call_keeps_no_loop_from_ending(stuck: Stuck) -> None:
    made = lane()

    async def give_up() -> None:
        with pytest.raises(LaneBusy):
            await made.call(stuck, seconds=SOON)

    asyncio.run(give_up())
    stuck.let_go.set()
    made.close()


async def test_a_lane_that_was_closed_ends_its_thread() -> None:
    made = lane()
    thread = await made.call(threading.current_thread, seconds=LONG)
    made.close()
    await asyncio.to_thread(thread.join, LONG)
    assert not thread.is_alive()
