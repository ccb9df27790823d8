"""One launcher of several is told to end: its residents finish and begin anew, and their neighbours notice nothing; in virtual time."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.warmpool.agent.rig import Machine, config, live, paused, resident
from warmpool.errors import WrongState

pytestmark = pytest.mark.looptime


async def test_what_it_serves_is_finished_and_then_its_resident_begins_anew(tmp_path: Path) -> None:
    on = Machine()
    async with live(config(tmp_path, [resident("a"), resident("b")]), on) as rig:
        await rig.until(**paused("ab"))
        await rig.order("resume", "a")
        on.engine("a").in_flight = 1
        rig.seat.leave(["a"], 20.0)
        await rig.until(a="Draining")
        assert not on.engine("a").is_open
        with pytest.raises(WrongState, match="has been told to end"):
            await rig.order("resume", "a")
        await asyncio.sleep(5)
        assert not on.process("a").exited
        on.engine("a").in_flight = 0
        on.absent = {"a"}  # until there is another launcher
        await rig.until(a="Failed")
        assert on.process("a").exited
        assert (await rig.order("resume", "b")).state == "Serving"
        on.absent.clear()
        await rig.order("drain", "b")
        await rig.order("pause", "b")
        await rig.until(**paused("ab"))
        assert (on.starts("a"), on.starts("b")) == (2, 1)
        assert (await rig.order("resume", "a")).state == "Serving"


async def test_requests_that_take_too_long_are_ended_by_the_launchers_deadline(tmp_path: Path) -> None:
    on = Machine()
    async with live(config(tmp_path, [resident("a"), resident("b")]), on) as rig:
        await rig.until(**paused("ab"))
        await rig.order("resume", "a")
        engine = on.engine("a")
        engine.in_flight = 1
        began = asyncio.get_running_loop().time()
        rig.seat.leave(["a"], 20.0)
        await rig.until(a="Failed")
        assert asyncio.get_running_loop().time() - began == pytest.approx(17.5, abs=0.5)
        assert engine.in_flight == 0


async def test_containers_that_end_well_are_no_failures_however_often_they_do(tmp_path: Path) -> None:
    on = Machine()
    async with live(config(tmp_path, [resident("a"), resident("b")]), on) as rig:
        for times in range(1, 8):
            await rig.until(**paused("ab"))
            rig.seat.leave(["a"], 20.0)
            await rig.until(a="Failed")
            await rig.until(a="Paused")
            assert rig.told("a")["restarts"] == times
        assert (rig.told("b")["restarts"], on.starts("b")) == (0, 1)


@pytest.mark.long
async def test_when_the_last_is_told_each_resident_has_its_own_time(tmp_path: Path) -> None:
    on = Machine()
    async with live(config(tmp_path, [resident("a"), resident("b")], exclusive=False), on) as rig:
        await rig.until(**paused("ab"))
        for policy in "ab":
            await rig.order("resume", policy)
            on.engine(policy).in_flight = 1
        began = asyncio.get_running_loop().time()
        rig.seat.leave(["a"], 10.0)
        rig.seat.drain_within(["b"], 60.0)
        await rig.seat.shut_down()
        assert asyncio.get_running_loop().time() - began == pytest.approx(57.5, abs=0.5)
        assert on.engine("a").in_flight == on.engine("b").in_flight == 0
        assert all(each.exited for each in on.processes)
