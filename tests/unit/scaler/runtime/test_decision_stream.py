"""The stream of decisions from a leader to one who stands by, over a real socket."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from scaler.cluster.kube.lease import Record
from scaler.keda.published import Board, FleetFigures, PolicyFigures
from scaler.runtime.clock import SystemClock
from scaler.runtime.decision_feed import PATH, DecisionFeed
from scaler.runtime.decision_follower import DecisionFollower
from scaler.runtime.told_decisions import Told
from warmpool.claim import Term

TOKEN = "secret"


def board() -> Board:
    found = Board()
    found.follow({"spares": "serving", "own": "serving"}, {"chat": "serving"})
    return found


def publish(on: Board, total: int, age: float = 0.0) -> None:
    figures = FleetFigures(at=time.monotonic() - age, total=total, serving=total, spare=0)
    on.publish({"spares": figures}, {"chat": PolicyFigures(at=time.monotonic() - age, serving=total)})


@dataclass
class Leader:
    """A replica that may lead."""

    board: Board = field(default_factory=board)
    address: str = ""

    def __post_init__(self) -> None:
        self.feed = DecisionFeed(self.board, SystemClock(), TOKEN)

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Leader"]:
        app = web.Application()
        app.router.add_get(PATH, self.feed.stream)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@dataclass
class Standby:
    """What one who stands by knows, and hears."""

    board: Board = field(default_factory=board)
    lease: Record | None = None
    lines: list[Told] = field(default_factory=list)

    def take(self, told: Told) -> None:
        self.lines.append(told)
        self.board.publish(told.fleets, told.policies)

    def follow(self, leader: Leader, epoch: int = 1, holder: str = "leader") -> None:
        self.lease = Record(holder=holder, epoch=epoch, duration=6, address=leader.address)

    @property
    def total(self) -> int | None:
        figures = self.board.current.fleets.get("spares")
        return None if figures is None else figures.total

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DecisionFollower]:
        follower = DecisionFollower(lambda: self.lease, "me", self.take, SystemClock())
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            task = asyncio.get_running_loop().create_task(follower.run(session))
            try:
                yield follower
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_is_decided_before_and_after_is_heard_with_its_age() -> None:
    standby = Standby()
    async with Leader().served() as leader, standby.running() as follower:
        publish(leader.board, 3, age=40.0)
        with leader.feed.of(Term(holder="leader", epoch=1)):
            assert not follower.heard
            standby.follow(leader)
            await until(lambda: standby.total == 3)
            age = time.monotonic() - standby.board.current.fleets["spares"].at
            assert 40.0 <= age < 60.0
            publish(leader.board, 4)
            await until(lambda: standby.total == 4)
            assert standby.board.current.policies["chat"].serving == 4
            assert follower.heard


async def test_a_line_holds_what_changed_since_the_one_before() -> None:
    standby = Standby()
    async with Leader().served() as leader, standby.running():
        publish(leader.board, 3)
        with leader.feed.of(Term(holder="leader", epoch=1)):
            standby.follow(leader)
            await until(lambda: standby.total == 3)
            own = FleetFigures(at=time.monotonic(), total=1, serving=1, spare=0)
            leader.board.publish({"own": own}, {})
            await until(lambda: "own" in standby.board.current.fleets)
            assert standby.lines[-1].fleets.keys() == {"own"}


async def test_when_another_leads_it_is_the_one_who_is_followed() -> None:
    standby = Standby()
    async with Leader().served() as old, Leader().served() as new, standby.running():
        publish(old.board, 3)
        publish(new.board, 5)
        with old.feed.of(Term(holder="old", epoch=1)), new.feed.of(Term(holder="new", epoch=2)):
            standby.follow(old, 1, "old")
            await until(lambda: standby.total == 3)
            standby.follow(new, 2, "new")
            await until(lambda: standby.total == 5)
            standby.follow(old, 1, "old")  # a lease that was read from a server that lags behind
            publish(old.board, 9)
            await asyncio.sleep(1.0)
            assert standby.total == 5


async def test_nobody_follows_themselves_or_one_who_is_nowhere() -> None:
    standby = Standby()
    async with Leader().served() as leader, standby.running() as follower:
        publish(leader.board, 3)
        with leader.feed.of(Term(holder="me", epoch=1)):
            standby.follow(leader, holder="me")
            await asyncio.sleep(0.6)
            standby.lease = Record(holder="leader", epoch=1, duration=6)
            await asyncio.sleep(0.6)
            assert not follower.heard


async def test_a_leader_whose_term_ends_ends_its_streams() -> None:
    async with Leader().served() as leader, aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with leader.feed.of(Term(holder="leader", epoch=1)):
            answer = await session.get(leader.address + PATH, headers=headers)
            assert await answer.content.readline()
        async with asyncio.timeout(10):
            assert await answer.content.read() == b""
        async with session.get(leader.address + PATH, headers=headers) as after:
            assert after.status == 503
        async with session.get(leader.address + PATH) as unknown:
            assert unknown.status == 401
