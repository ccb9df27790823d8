"""Work that gives way."""

import asyncio

import pytest

from warmpool.agent.interruption import Interrupted, Interruption

pytestmark = pytest.mark.looptime


async def test_work_that_nobody_interrupts_returns_its_value() -> None:
    async def work() -> int:
        await asyncio.sleep(5)
        return 7

    assert await Interruption().run(work) == 7


async def test_a_request_cuts_the_work_short_and_lets_it_tidy_up() -> None:
    interruption, tidied = Interruption(), []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            tidied.append(True)

    loop = asyncio.get_running_loop()
    loop.call_later(1, interruption.request)
    loop.call_later(1, interruption.request)
    with pytest.raises(Interrupted):
        await interruption.run(work)
    assert tidied == [True]
    assert loop.time() == pytest.approx(1, abs=0.1)
    await asyncio.sleep(1)  # nothing of the request is left in the task
    with pytest.raises(Interrupted):
        await interruption.run(work)
    assert interruption.requested


async def test_the_works_own_timeout_and_errors_stay_what_they_are() -> None:
    async def late() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(2)

    async def wrong() -> None:
        raise LookupError("wrong")

    with pytest.raises(TimeoutError):
        await Interruption().run(late)
    with pytest.raises(LookupError):
        await Interruption().run(wrong)


async def test_cancelling_the_task_is_no_interruption() -> None:
    interruption, seen = Interruption(), []

    async def outer() -> None:
        try:
            await interruption.run(asyncio.Event().wait)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(outer())
        await asyncio.sleep(0)
        task.cancel()
    assert seen == ["cancelled"]
