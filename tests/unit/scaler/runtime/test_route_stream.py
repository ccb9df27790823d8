"""The stream of routes from a publisher to a follower, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
from aiohttp import web
from structlog.testing import capture_logs

from scaler.cluster.port import Cluster
from scaler.core.model import FleetShare, PolicySpec
from scaler.runtime.published_routes import Change, PublishedTable, from_line
from scaler.runtime.route_follower import RouteFollower
from scaler.runtime.route_publisher import RoutePublisher
from scaler.runtime.routing import routes
from tests.fakes.memory_cluster import MemoryCluster
from warmpool.seats import FleetName, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

FLEET, CHAT = FleetName("spares"), PolicyName("chat")
POLICY = PolicySpec(name=CHAT, fleets=(FleetShare(fleet=FLEET, target_in_flight=6),))
REST = PolicySpec(name=PolicyName("rest"), fleets=(FleetShare(fleet=FLEET, target_in_flight=6),))
MODELS = {CHAT: ("chat",), REST.name: ("rest",)}


def seat(number: int) -> Seat:
    resident = Resident(
        policy=CHAT, state=ResidentState.SERVING, since=1.0, proven_at=1.0, address=f"http://h:{number}"
    )
    return Seat(
        name=SeatName(f"seat-{number}"),
        uid=f"u{number}",
        version="",
        fleet=FLEET,
        residents=(resident,),
        serving=frozenset({CHAT}),
    )


class Published:
    """One controller's publisher on a port that it can have again."""

    def __init__(self, cluster: Cluster, term: int | None = 1, gateways: tuple[str, ...] = ()) -> None:
        self.publisher = RoutePublisher(
            cluster, lambda seats: routes([POLICY, REST], MODELS, seats), lambda: gateways, term
        )
        self.url = ""

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/v1/routes", self.publisher.stream)
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.publisher.run())
            try:
                yield
            finally:
                running.cancel()
                self.publisher.close()
                await runner.cleanup()


class Followed:
    """What a follower has taken."""

    def __init__(self) -> None:
        self.tables: list[PublishedTable] = []
        self.changed: list[Collection[PolicyName] | None] = []
        self._changed = asyncio.Event()

    def take(self, table: PublishedTable, changed: Collection[PolicyName] | None) -> None:
        self.tables.append(table)
        self.changed.append(changed)
        self._changed.set()

    async def until(self, condition: Callable[[PublishedTable], bool]) -> PublishedTable:
        async with asyncio.timeout(10):
            while not (self.tables and condition(self.tables[-1])):
                self._changed.clear()
                await self._changed.wait()
        return self.tables[-1]


@asynccontextmanager
async def following(*urls: str) -> AsyncIterator[Followed]:
    followed = Followed()
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(RouteFollower(urls, followed.take).run(session))
        try:
            yield followed
        finally:
            running.cancel()


def cluster(*numbers: int) -> MemoryCluster:
    made = MemoryCluster({FLEET: [CHAT]}, lambda: 1.0)
    for number in numbers:
        made.objects.add(seat(number))
    return made


def seats(table: PublishedTable) -> list[str]:
    return [each.seat for each in table.policies[CHAT].endpoints]


async def test_each_change_of_rotation_arrives_as_a_whole_table() -> None:
    made = cluster(1)
    published = Published(made)
    async with published.served(), following(published.url) as followed:
        first = await followed.until(lambda table: seats(table) == ["seat-1"])
        assert [each.slots for each in first.policies[CHAT].endpoints] == [6]
        for number in (2, 3):  # of one moment: one table
            made.objects.add(seat(number))
        second = await followed.until(lambda table: len(seats(table)) == 3)
        assert second.version == first.version + 1


async def test_live_gateways_are_published_once_all_can_have_been_heard() -> None:
    published = Published(cluster(1), gateways=("gw-2", "gw-1"))
    async with published.served(), following(published.url) as followed:
        first = await followed.until(lambda _: True)
        assert first.gateways is None
        later = await followed.until(lambda table: table.gateways is not None)
        assert later.gateways == ("gw-1", "gw-2")


async def test_nothing_is_published_before_the_cluster_is_synced() -> None:
    made = cluster(1)
    made.synced = False
    published = Published(made)
    async with published.served(), following(published.url) as followed:
        await asyncio.sleep(0.2)
        assert followed.tables == []
        made.synced = True
        await followed.until(lambda table: seats(table) == ["seat-1"])


async def test_the_last_table_holds_while_no_controller_is_there_and_the_next_one_is_followed() -> None:
    first = Published(cluster(1), term=5)
    async with first.served():
        port = int(first.url.rpartition(":")[2])
        async with following(first.url) as followed:
            await followed.until(lambda table: table.term == 5)
            first.publisher.close()
            await asyncio.sleep(0)
            assert seats(followed.tables[-1]) == ["seat-1"]
    second = Published(cluster(2), term=6)
    async with following(f"http://127.0.0.1:{port}") as followed, second.served(port):
        await followed.until(lambda table: seats(table) == ["seat-2"])


async def test_of_two_controllers_the_one_of_the_later_term_counts() -> None:
    old, new = cluster(1), cluster(2)
    earlier, later = Published(old, term=5), Published(new, term=6)
    async with earlier.served(), later.served(), following(earlier.url, later.url) as followed:
        await followed.until(lambda table: table.term == 6)
        old.objects.add(seat(3))
        await asyncio.sleep(0.1)
        new.objects.add(seat(4))
        last = await followed.until(lambda table: "seat-4" in seats(table))
        assert last.term == 6
        assert "seat-3" not in {name for table in followed.tables for name in seats(table) if table.term == 6}
        after = followed.tables[[table.term for table in followed.tables].index(6) :]
        assert {table.term for table in after} == {6}


async def test_a_table_that_can_not_be_used_leaves_the_last_one() -> None:
    made = cluster(1)
    published = Published(made)
    taken: list[PublishedTable] = []
    refused = asyncio.Event()

    def take(table: PublishedTable, changed: Collection[PolicyName] | None) -> None:
        if len(seats(table)) == 2:
            refused.set()
            raise ValueError("two policies claim one model")
        taken.append(table)

    async with published.served(), aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(RouteFollower((published.url,), take).run(session))
        async with asyncio.timeout(10):
            while not taken:
                await asyncio.sleep(0.01)
            made.objects.add(seat(2))
            await refused.wait()
            made.objects.add(replace(seat(2), serving=frozenset()))
            while len(taken) < 2:
                await asyncio.sleep(0.01)
        running.cancel()
    assert [seats(table) for table in taken] == [["seat-1"], ["seat-1"]]


async def test_after_the_first_table_only_what_changed_is_sent() -> None:
    made = cluster(1)
    published = Published(made)
    async with (
        published.served(),
        aiohttp.ClientSession() as session,
        session.get(f"{published.url}/v1/routes?changes=1") as stream,
        session.get(f"{published.url}/v1/routes") as old,
    ):
        lines = [from_line(await each.content.readline()) for each in (stream, old)]
        assert isinstance(lines[0], PublishedTable)
        assert lines[0] == lines[1]
        made.objects.add(seat(2))
        change, whole = [from_line(await each.content.readline()) for each in (stream, old)]
        assert isinstance(change, Change)
        assert isinstance(whole, PublishedTable)
        assert change.on(lines[0]) == whole
        assert len(whole.policies) == 2
        assert list(change.policies) == [CHAT]


async def test_a_follower_says_which_policies_changed() -> None:
    made = cluster(1)
    published = Published(made)
    async with published.served(), following(published.url) as followed:
        await followed.until(lambda table: seats(table) == ["seat-1"])
        made.objects.add(seat(2))
        await followed.until(lambda table: len(seats(table)) == 2)
        assert [None if each is None else list(each) for each in followed.changed] == [None, [CHAT]]


async def test_a_controller_that_hears_no_agent_says_so_until_it_hears_one() -> None:
    made = MemoryCluster({FLEET: [CHAT]}, lambda: 1.0)
    made.objects.add(replace(seat(1), reachable=False))
    published = Published(made)
    async with published.served(), following(published.url) as followed:
        first = await followed.until(lambda _: True)
        assert (first.blind, seats(first)) == (True, [])
        made.objects.report(SeatName("seat-1"), "u1", 1, "http://agent", seat(1).residents)
        second = await followed.until(lambda table: not table.blind)
        assert seats(second) == ["seat-1"]


async def test_a_controller_without_seats_is_not_blind() -> None:
    published = Published(cluster())
    async with published.served(), following(published.url) as followed:
        assert not (await followed.until(lambda _: True)).blind


async def test_a_controller_that_comes_to_lead_publishes_on_streams_that_are_open_already() -> None:
    made = cluster(1)
    published = Published(made, term=None)
    async with published.served(), following(published.url) as followed:
        await asyncio.sleep(0.3)
        assert published.publisher.table is None
        published.publisher.lead(4)
        await followed.until(lambda table: (table.term, seats(table)) == (4, ["seat-1"]))
        published.publisher.stand_by()
        made.objects.add(seat(2))
        await asyncio.sleep(0.5)
        assert seats(followed.tables[-1]) == ["seat-1"]
        published.publisher.lead(6)
        await followed.until(lambda table: (table.term, len(seats(table))) == (6, 2))


async def test_what_keeps_routes_away_is_said_once_for_each_reason() -> None:
    asked, changed = 0, asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked == 6:
            changed.set()
        return web.Response(status=404 if asked > 2 else 500)

    app = web.Application()
    app.router.add_get("/v1/routes", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with capture_logs() as said:
            async with following(f"http://127.0.0.1:{runner.addresses[0][1]}"), asyncio.timeout(20):
                await changed.wait()
    finally:
        await runner.cleanup()
    problems = [each["problem"] for each in said if each["event"].startswith("no routes")]
    assert problems == ["status 500", "it publishes no routes (`emberpool local` has a gateway of its own)"]
