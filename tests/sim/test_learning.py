"""What fleets have learned is kept through a restart."""

import asyncio
from pathlib import Path

import pytest

from scaler.core.rises import Rises
from scaler.runtime.learning import Learning
from scaler.store.histories import History
from tests.fakes.loop_clock import LoopClock
from warmpool.seats import FleetName

pytestmark = pytest.mark.looptime

SPARES = FleetName("spares")
LEARNED = {SPARES: History(rises=Rises().add(5.0, 2.0, 60.0), starts=(40.0,))}


async def test_it_is_written_each_minute_and_at_the_end(tmp_path: Path) -> None:
    kept = dict(LEARNED)
    task = asyncio.get_running_loop().create_task(Learning(tmp_path, LoopClock()).keep(lambda: kept))
    await asyncio.sleep(61)
    assert (await Learning(tmp_path, LoopClock()).read())[SPARES].starts == (40.0,)
    kept[SPARES] = History(starts=(50.0,))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await Learning(tmp_path, LoopClock()).read())[SPARES].starts == (50.0,)


async def test_a_disk_that_fails_costs_nothing_but_the_history(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    task = asyncio.get_running_loop().create_task(Learning(gone, LoopClock()).keep(lambda: LEARNED))
    await asyncio.sleep(200)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await Learning(gone, LoopClock()).read() == {}
