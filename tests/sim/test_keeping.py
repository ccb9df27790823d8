"""What fleets have learned is kept through a restart, and never replaced by what was learned while it couldn't be read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scaler.core.model import AutoSpare, FleetShare, FleetSpec, PolicySpec
from scaler.core.rises import Rises
from scaler.runtime.keeping import INTERVAL_SECONDS, Keeping
from scaler.runtime.kept import Kept, NotKept
from scaler.runtime.kept_files import FileArchive
from scaler.runtime.order_rules import parse
from scaler.store.histories import History
from tests.fakes.loop_clock import LoopClock
from tests.sim.world import world
from warmpool.seats import FleetName, PolicyName

pytestmark = pytest.mark.looptime

SPARES = FleetName("spares")
LEARNED = {SPARES: History(rises=Rises().add(5.0, 2.0, 60.0), starts=(40.0,))}


@dataclass
class Holder:
    """Whose it is."""

    present: Kept = field(default_factory=lambda: Kept(histories=LEARNED))
    taken: list[Kept] = field(default_factory=list)


@dataclass
class Archive:
    """An archive that can fail, and tells when it was written."""

    kept: Kept = field(default_factory=Kept)
    fails: bool = False
    written: list[float] = field(default_factory=list)
    fleets: list[FleetName | None] = field(default_factory=list)

    async def read(self) -> Kept:
        if self.fails:
            raise NotKept("no")
        return self.kept

    async def write(self, present: Callable[[], Kept], fleet: FleetName | None = None) -> None:
        if self.fails:
            raise NotKept("no")
        self.written.append(asyncio.get_running_loop().time())
        self.fleets.append(fleet)
        self.kept = present()


def keeping(archive: Archive | FileArchive, holder: Holder) -> Keeping:
    return Keeping(archive, holder.taken.append, lambda: holder.present)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_is_written_each_minute_and_at_the_end(tmp_path: Path) -> None:
    holder, archive = Holder(), FileArchive(tmp_path, LoopClock())
    kept = keeping(archive, holder)
    await kept.read()
    task = asyncio.get_running_loop().create_task(kept.run())
    await asyncio.sleep(61)
    assert (await archive.read()).histories[SPARES].starts == (40.0,)
    holder.present = Kept(histories={SPARES: History(starts=(50.0,))})
    await ended(task)
    assert (await archive.read()).histories[SPARES].starts == (50.0,)


async def test_it_is_written_once_a_minute_however_many_are_in_a_hurry() -> None:
    archive = Archive()
    kept = keeping(archive, Holder())
    await kept.read()
    task = asyncio.get_running_loop().create_task(kept.run())
    began = asyncio.get_running_loop().time()
    for _ in range(130):
        kept.hurry()
        await asyncio.sleep(1)
    assert [round(at - began) for at in archive.written] == [0, 60, 120]
    await ended(task)


async def test_what_a_person_orders_is_written_at_once_and_of_its_fleet_alone() -> None:
    archive = Archive()
    kept = keeping(archive, Holder())
    with pytest.raises(NotKept, match="not been read"):
        await kept.keep(SPARES)
    await kept.read()
    task = asyncio.get_running_loop().create_task(kept.run())
    kept.hurry()
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    for _ in range(2):
        await kept.keep(SPARES)
    kept.urge(SPARES)
    await asyncio.sleep(1)
    assert [round(at - began) for at in archive.written] == [-1, 0, 0, 0]
    assert archive.fleets == [None, SPARES, SPARES, SPARES]
    archive.fails = True
    with pytest.raises(NotKept):
        await kept.keep(SPARES)
    await ended(task)


async def test_an_order_that_was_kept_is_known_to_who_leads_next_though_the_leader_wrote_no_more() -> None:
    fleet = FleetSpec(name=SPARES, max_seats=4, spare_target=1)
    policy = PolicySpec(name=PolicyName("chat"), fleets=(FleetShare(fleet=SPARES, target_in_flight=4),))
    archive = Archive()
    async with world([policy], [fleet]) as on:
        orders = on.controller.orders
        kept = Keeping(archive, lambda _: None, lambda: Kept(orders=orders.standing))
        orders.keep = kept.keep
        await kept.read()
        await on.until(lambda: bool(on.cluster.seats()))
        await asyncio.sleep(1)
        (seat,) = on.cluster.seats()
        order = parse({"id": "1", "operation": "Drain", "seat": seat.name})
        on.controller.order(order)
        assert orders.stands_for(order) == SPARES
        await orders.keep(SPARES)
    async with world([policy], [fleet]) as on:
        on.controller.orders.learn(archive.kept.orders)
        assert on.controller.orders.drained.keys() == {seat.name}


async def test_what_could_not_be_read_is_read_again_before_anything_is_written() -> None:
    holder, archive = Holder(), Archive(kept=Kept(histories={SPARES: History(starts=(1.0,))}), fails=True)
    kept = keeping(archive, holder)
    assert not await kept.read()
    task = asyncio.get_running_loop().create_task(kept.run())
    await asyncio.sleep(3 * INTERVAL_SECONDS)
    assert not archive.written
    archive.fails = False
    await asyncio.sleep(10)
    assert [each.histories[SPARES].starts for each in holder.taken] == [(1.0,)]
    await ended(task)
    assert archive.kept == holder.present


async def test_what_was_never_read_is_not_written_at_the_end() -> None:
    archive = Archive(fails=True)
    kept = keeping(archive, Holder())
    task = asyncio.get_running_loop().create_task(kept.run())
    await asyncio.sleep(10)
    archive.fails = False
    await ended(task)
    assert not archive.written


async def test_a_disk_that_fails_costs_nothing_but_the_keeping(tmp_path: Path) -> None:
    kept = keeping(FileArchive(tmp_path / "gone", LoopClock()), Holder())
    assert await kept.read()
    task = asyncio.get_running_loop().create_task(kept.run())
    await asyncio.sleep(200)
    assert not task.done()
    await ended(task)


async def test_a_controller_takes_over_the_longer_history() -> None:
    fleet = FleetSpec(name=SPARES, max_seats=4, auto_spare=AutoSpare())
    policy = PolicySpec(name=PolicyName("chat"), fleets=(FleetShare(fleet=SPARES, target_in_flight=4),))
    async with world([policy], [fleet]) as on:
        await on.until(lambda: SPARES in on.controller.learned)
        await asyncio.sleep(30)
        now = LoopClock().monotonic()
        older = Rises().add(now - 90_000.0, 3.0, 60.0)
        own = on.controller.learned[SPARES].rises
        assert own.since is not None
        on.controller.learn({SPARES: History(rises=older, starts=tuple(map(float, range(20))))})
        learned = on.controller.learned[SPARES]
        assert learned.rises.since == older.since
        assert learned.starts == tuple(map(float, range(20)))
        younger = Rises().add(now, 3.0, 60.0)
        on.controller.learn({SPARES: History(rises=younger, starts=(1.0,))})
        assert on.controller.learned[SPARES].rises.since == older.since
        assert len(on.controller.learned[SPARES].starts) == 20
