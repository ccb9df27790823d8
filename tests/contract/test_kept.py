"""What every place promises in which a controller keeps what must outlive it: files, and ConfigMaps on an API server."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from scaler.cluster.kube.access import AccessOptions, find_access
from scaler.cluster.kube.client import KubeClient
from scaler.cluster.kube.config_maps import KeptConfigMaps
from scaler.cluster.kube.lanes import Budget, Lane, Lanes, lanes
from scaler.cluster.kube.writing import Writing
from scaler.core.rises import Rises
from scaler.runtime.kept import Archive, Kept, NotKept
from scaler.runtime.kept_config_maps import FILE, ConfigMapArchive
from scaler.runtime.kept_files import LEARNED, ORDERS, FileArchive
from scaler.store import standing_orders
from scaler.store.histories import History
from scaler.store.standing_orders import Drain, Freeze, OfFleet
from tests.fakes.kube_api import Call, KubeApi, User, kubeconfig, serving
from tests.fakes.kube_api.api import Target
from tests.fakes.kube_api.faults import Answer, Cut
from tests.fakes.kube_api.kinds import BY_PATH, NAMESPACE
from tests.integration.kube.conftest import allowed, documented_role, written
from warmpool.expectations import Answer as Said
from warmpool.expectations import Ownership, Recording
from warmpool.seats import FleetName, PolicyName, SeatName

SPARES, OWN = FleetName("spares"), FleetName("own")
CHAT, CODE = PolicyName("chat"), PolicyName("code")
CONFIG_MAPS = BY_PATH["", "v1", "configmaps"]


@dataclass
class Clock:
    """A clock of a machine that has been up for a while."""

    up: float = 1000.0

    def monotonic(self) -> float:
        return time.monotonic() + self.up

    def wall(self) -> float:
        return time.time()


def recording(token: int, engine: str = "1") -> Recording:
    answers = (Said(prompt="p", tokens=(token,)),)
    return Recording(
        ownership=Ownership(engine_version=engine), answers=answers, witnesses=frozenset({"a", "b"})
    )


def rises(now: float, days: int = 1) -> Rises:
    found = Rises()
    for number in range(days * 40):
        at = now - days * 86_400.0 + number * 2160.0
        found = found.add(at, float(number % 7 * number % 50), 60.0)
    return found


@dataclass
class Rig:
    """A place, as one controller after the other opens it, and ways to spoil it."""

    open: Callable[[Clock], Archive]
    garble: Callable[[], Awaitable[None]]
    break_down: Callable[[], Awaitable[None]]
    lose_an_answer: Callable[[], None] | None = None
    open_behind: Callable[[Clock], Archive] | None = None
    hold_a_write: Callable[[float], None] | None = None
    losing: Callable[..., AbstractContextManager[None]] | None = None


@asynccontextmanager
async def files(directory: Path) -> AsyncIterator[Rig]:
    kept = directory / "state"
    kept.mkdir()

    async def garble() -> None:
        (kept / LEARNED).write_text("{")

    async def break_down() -> None:
        for path in kept.iterdir():
            path.unlink()
        kept.rmdir()
        kept.write_text("")  # no directory any more

    yield Rig(lambda clock: FileArchive(kept, clock), garble, break_down)


@asynccontextmanager
async def config_maps(directory: Path) -> AsyncIterator[Rig]:
    api = KubeApi({"test": User(name="test", may=partial(allowed, documented_role()))})
    api.create(Target(kind=NAMESPACE, namespace=""), {"metadata": {"name": "pool"}}, {})
    homes = {CHAT: SPARES, CODE: OWN}
    async with serving(api) as url:
        path = written(directory / "kubeconfig", kubeconfig(url, "test", "pool"))
        async with KubeClient(await find_access(AccessOptions(kubeconfig=path), {})) as client:

            def opened(clock: Clock, through: Lanes | None = None) -> ConfigMapArchive:
                maps = KeptConfigMaps(Writing(client), through or lanes(), "pool")
                return ConfigMapArchive(maps, clock, lambda: homes)

            def open_behind(clock: Clock) -> ConfigMapArchive:
                """One whose housekeeping has had its turns for today."""
                slow = Budget(per_second=1e-5, burst=1, at_once=1)
                return opened(clock, replace(lanes(), housekeeping=Lane(slow)))

            async def garble() -> None:
                target = Target(kind=CONFIG_MAPS, namespace="pool", name="emberpool-kept-spares")
                api.patch(target, "application/merge-patch+json", {"data": {FILE: "{"}}, {})

            async def break_down() -> None:
                api.faults.answer(Answer(status=503), lambda _: True)

            def lose_an_answer() -> None:
                api.faults.cut(Cut.AFTER, lambda call: call.verb in {"create", "update"}, 1)

            def replaces(call: Call) -> bool:
                return call.verb == "update"

            def hold_a_write(seconds: float) -> None:
                """Let the next replacement arrive some seconds late."""
                api.faults.delay(seconds, replaces, 1)

            @contextmanager
            def losing(cut: Cut, seconds: float = 0.0) -> Iterator[None]:
                """Lose replacements, which clients send twice."""
                api.faults.delay(seconds, replaces)
                api.faults.cut(cut, replaces)
                yield
                api.faults.clear()

            yield Rig(opened, garble, break_down, lose_an_answer, open_behind, hold_a_write, losing)


@pytest.fixture(params=[files, config_maps], ids=["files", "ConfigMaps"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    make: Callable[[Path], AbstractAsyncContextManager[Rig]] = request.param
    async with make(tmp_path) as found:
        yield found


def freeze(by: str) -> OfFleet:
    return OfFleet(freeze=Freeze(until=9.5, reason="driver", by=by, since=7.0), drains={})


def kept(clock: Clock) -> Kept:
    return Kept(
        histories={SPARES: History(rises=rises(clock.monotonic()), starts=(40.0, 50.0))},
        recordings={CHAT: (recording(1), recording(2, "2")), CODE: (recording(3),)},
    )


async def write(archive: Archive, what: Kept, fleet: FleetName | None = None) -> None:
    await archive.write(lambda: what, fleet)


async def test_there_is_nothing_at_first(rig: Rig) -> None:
    assert await rig.open(Clock()).read() == Kept()


async def test_what_was_kept_is_found_in_the_time_of_another_clock(rig: Rig) -> None:
    clock, later = Clock(), Clock(up=7.0)
    before = kept(clock)
    await write(rig.open(clock), before)
    found = await rig.open(later).read()
    assert found.recordings == before.recordings
    assert found.histories.keys() == {SPARES}
    was, now = before.histories[SPARES], found.histories[SPARES]
    assert now.starts == was.starts
    assert was.rises.since is not None
    assert now.rises.since is not None
    assert now.rises.since == pytest.approx(was.rises.since + later.up - clock.up, abs=5.0)


async def test_what_is_kept_later_counts(rig: Rig) -> None:
    clock = Clock()
    archive = rig.open(clock)
    await archive.read()
    await write(archive, kept(clock))
    await write(archive, replace(kept(clock), recordings={CHAT: (recording(9),), CODE: (recording(3),)}))
    assert (await rig.open(clock).read()).recordings[CHAT] == (recording(9),)


async def test_orders_that_stand_are_found_and_those_that_have_ended_are_not(rig: Rig) -> None:
    clock = Clock()
    told = {"reason": "driver", "by": "anna", "since": 7.0}
    drained = {SeatName("spares-0"): Drain(uid="u", **told)}
    orders = {
        SPARES: OfFleet(freeze=Freeze(until=9.5, **told), drains={}),
        OWN: OfFleet(drains=drained),
    }
    archive = rig.open(clock)
    await archive.read()
    await write(archive, Kept(orders=orders))
    assert (await rig.open(clock).read()).orders == orders
    ended = {**orders, SPARES: OfFleet(drains={})}
    await write(archive, Kept(orders=ended))
    assert (await rig.open(clock).read()).orders == ended


async def test_orders_of_one_fleet_are_kept_by_themselves(rig: Rig) -> None:
    clock = Clock()
    archive, before = rig.open(clock), kept(clock)
    await archive.read()
    await write(archive, before)
    stands = freeze("anna")
    later = replace(before, recordings={CODE: (recording(9),)}, orders={SPARES: stands})
    await write(archive, later, SPARES)
    found = await rig.open(clock).read()
    assert found.orders == {SPARES: stands}
    assert found.recordings[CODE] == before.recordings[CODE]
    assert found.histories[SPARES].starts == before.histories[SPARES].starts


async def test_what_is_kept_at_the_same_time_of_all_and_of_one_is_what_was_present_last(rig: Rig) -> None:
    clock = Clock()
    archive = rig.open(clock)
    await archive.read()
    present = [kept(clock)]
    stands = freeze("anna")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(archive.write(lambda: present[0]))
        await asyncio.sleep(0)
        present[0] = replace(present[0], orders={SPARES: stands})
        tasks.create_task(archive.write(lambda: present[0], SPARES))
    found = await rig.open(clock).read()
    assert found.orders == {SPARES: stands}
    assert found.recordings == present[0].recordings


async def test_what_cannot_be_understood_is_lost_and_all_else_is_found(rig: Rig) -> None:
    clock = Clock()
    await write(rig.open(clock), kept(clock))
    await rig.garble()
    found = await rig.open(clock).read()
    assert SPARES not in found.histories
    assert found.recordings[CODE] == (recording(3),)


async def test_a_place_that_fails_says_so(rig: Rig) -> None:
    clock = Clock()
    archive = rig.open(clock)
    await write(archive, kept(clock))
    await rig.break_down()
    with pytest.raises(NotKept):
        await archive.read()
    with pytest.raises(NotKept):
        await write(archive, kept(clock))


# ---------------------------------------------------------------- files alone


async def test_a_write_that_nobody_waits_for_any_more_and_the_next_are_not_mixed(tmp_path: Path) -> None:
    """A disk hangs, its write is given up, and the next comes before it has ended."""
    clock, hangs = Clock(), tmp_path / f".{ORDERS}.{os.getpid()}"
    archive = FileArchive(tmp_path, clock)
    stands = [{SPARES: freeze(by)} for by in ("anna", "bert")]
    os.mkfifo(hangs)  # who writes into it waits for who reads
    async with asyncio.TaskGroup() as tasks:
        given_up = tasks.create_task(write(archive, Kept(orders=stands[0]), SPARES))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.shield(given_up)
        given_up.cancel()
        following = tasks.create_task(write(archive, Kept(orders=stands[1]), SPARES))
        written = await asyncio.to_thread(hangs.read_text, "utf-8")
        assert standing_orders.from_json(json.loads(written)) == stands[0]
        await following
    assert (await archive.read()).orders == stands[1]


# ---------------------------------------------------------------- ConfigMaps alone


async def test_what_a_person_waits_for_waits_for_no_housekeeping(tmp_path: Path) -> None:
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        assert rig.open_behind is not None
        archive = rig.open_behind(clock)
        await archive.read()
        stands = {SPARES: freeze("anna"), OWN: freeze("bert")}
        async with asyncio.TaskGroup() as tasks:
            everything = tasks.create_task(write(archive, kept(clock)))
            for fleet in stands:
                await write(archive, Kept(orders=stands), fleet)
            assert (await rig.open(clock).read()).orders == stands
            assert not everything.done()
            everything.cancel()


async def test_a_config_map_stays_below_its_bound_and_what_is_oldest_goes(tmp_path: Path) -> None:
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        answers = tuple(Said(prompt=f"p{n}", tokens=tuple(range(400))) for n in range(8))
        long = [replace(recording(number), answers=answers) for number in range(8)]
        history = History(rises=rises(clock.monotonic(), days=60), starts=(1.0,))
        archive = rig.open(clock)
        await write(archive, Kept(histories={SPARES: history}, recordings={CHAT: tuple(long)}))
        found = await rig.open(clock).read()
        assert 0 < len(found.recordings[CHAT]) < 8
        assert found.recordings[CHAT][-1] == long[-1]
        assert found.histories[SPARES].starts == (1.0,)


async def test_what_another_has_written_since_is_not_overwritten(tmp_path: Path) -> None:
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        mine, theirs = rig.open(clock), rig.open(clock)
        await write(mine, kept(clock))
        await theirs.read()
        await write(theirs, replace(kept(clock), recordings={CHAT: (recording(7),)}))
        with pytest.raises(NotKept):
            await write(mine, kept(clock))
        assert (await rig.open(clock).read()).recordings[CHAT] == (recording(7),)
        await mine.read()
        await write(mine, kept(clock))


@pytest.mark.parametrize("first", [True, False], ids=["made", "replaced"])
async def test_a_write_whose_answer_is_lost_is_no_conflict_with_the_next(
    tmp_path: Path, *, first: bool
) -> None:
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        archive = rig.open(clock)
        if not first:
            await write(archive, kept(clock))
        assert rig.lose_an_answer is not None
        rig.lose_an_answer()
        with suppress(NotKept):  # nobody knows; a replacement that was sent twice is recognised
            await write(archive, kept(clock))
        recordings = {CHAT: (recording(7),), CODE: (recording(8),)}
        await write(archive, replace(kept(clock), recordings=recordings))
        assert (await rig.open(clock).read()).recordings == recordings


async def test_a_write_that_arrives_after_the_next_has_looked_costs_neither_that_nor_those_after_it(
    tmp_path: Path,
) -> None:
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        archive, before = rig.open(clock), kept(clock)
        await write(archive, before)
        assert rig.hold_a_write is not None
        assert rig.losing is not None
        with rig.losing(Cut.LATE, 0.5), pytest.raises(NotKept):
            await write(archive, replace(before, recordings={CHAT: (recording(7),)}), SPARES)
        rig.hold_a_write(1.5)  # it looks, finds what was there before, and is overtaken on its way
        for by in ("anna", "bert"):
            await write(archive, Kept(orders={SPARES: freeze(by)}), SPARES)
            assert (await rig.open(clock).read()).orders == {SPARES: freeze(by)}


async def test_what_somebody_else_writes_after_a_lost_answer_is_not_overwritten(tmp_path: Path) -> None:
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        mine, theirs, before = rig.open(clock), rig.open(clock), kept(clock)
        await write(mine, before)
        assert rig.losing is not None
        with rig.losing(Cut.BEFORE), pytest.raises(NotKept):
            await write(mine, replace(before, recordings={CHAT: (recording(7),)}), SPARES)
        await theirs.read()
        await write(theirs, Kept(orders={SPARES: freeze("anna")}), SPARES)
        for _ in range(2):
            with pytest.raises(NotKept):
                await write(mine, before, SPARES)
        assert (await rig.open(clock).read()).orders == {SPARES: freeze("anna")}


async def test_an_order_does_not_wait_for_a_write_of_its_fleet_that_waits_for_its_turn(
    tmp_path: Path,
) -> None:
    """With many fleets what is written each minute waits for seconds, and a person is told 2.5 s after an order at the latest."""
    async with config_maps(tmp_path) as rig:
        clock = Clock()
        assert rig.open_behind is not None
        archive, before = rig.open_behind(clock), kept(clock)
        await write(archive, before, SPARES)
        async with asyncio.TaskGroup() as tasks:
            everything = tasks.create_task(write(archive, before))
            while OWN not in (await maps_of(rig, clock)):
                await asyncio.sleep(0.01)
            ordered = replace(before, orders={SPARES: freeze("anna")})
            async with asyncio.timeout(2.0):
                async with asyncio.TaskGroup() as orders:
                    for _ in range(3):  # one of several takes its place
                        orders.create_task(write(archive, ordered, SPARES))
                await everything  # which has nothing left to write
        found = await rig.open(clock).read()
        assert found.orders == {SPARES: freeze("anna")}
        assert found.recordings == before.recordings


async def maps_of(rig: Rig, clock: Clock) -> set[FleetName]:
    """Return the fleets of which anything is kept."""
    homes = {CHAT: SPARES, CODE: OWN}
    return {homes[policy] for policy in (await rig.open(clock).read()).recordings}
