"""A controller's word on what to start first and what to stage, over a real socket: what the client sends is what the agent takes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from scaler.cluster.http_agents import HttpAgents
from tests.unit.warmpool.agent.rig import Machine, Rig, config, live, resident
from warmpool.agent.server import make_app
from warmpool.errors import BadOrder, EngineLost, StaleEpoch, WrongState
from warmpool.seats import FleetName, PolicyName, Seat, SeatName

A, B, C = (PolicyName(name) for name in "abc")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with live(config(tmp_path, [resident(name) for name in "abc"]), Machine()) as each:
        yield each


@pytest.fixture
async def seat(rig: Rig) -> AsyncIterator[Seat]:
    runner = web.AppRunner(make_app(rig.seat, "token"), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield Seat(name=SeatName("s"), uid="uid-1", version="1", fleet=FleetName("f"), agent=address)
    await runner.cleanup()


async def test_the_word_arrives_and_one_of_an_earlier_term_is_refused(rig: Rig, seat: Seat) -> None:
    async with aiohttp.ClientSession() as session:
        agents = HttpAgents(session, "token")
        await agents.order_starts(seat, [C, B], [C], epoch=3, deadline=5)
        assert rig.seat.state()["starts"] == {"policies": ["c", "b", "a"], "wanted": ["c"]}
        with pytest.raises(StaleEpoch, match="term 3 has begun"):
            await agents.order_starts(seat, [A], [], epoch=2, deadline=5)
        await agents.order_starts(seat, [A], [], epoch=3, deadline=5)
        assert rig.seat.state()["starts"] == {"policies": ["a", "b", "c"], "wanted": []}


async def test_what_the_node_will_need_arrives_where_a_stage_daemon_is_asked(
    tmp_path: Path, seat: Seat
) -> None:
    settings = config(tmp_path, [resident("a")], stageDaemon=f"unix://{tmp_path / 'nobody.sock'}")
    async with live(settings, Machine()) as staging, aiohttp.ClientSession() as session:
        agents = HttpAgents(session, "token")
        async with TestServer(make_app(staging.seat, "token")) as server:
            there = replace(seat, agent=str(server.make_url("")).rstrip("/"))
            await agents.order_staging(there, ["/m/x"], epoch=3, deadline=5)
            with pytest.raises(StaleEpoch, match="term 3 has begun"):
                await agents.order_staging(there, ["/m/y"], epoch=2, deadline=5)
            await staging_told(staging, "/m/x")
        with pytest.raises(WrongState, match="names none"):
            await agents.order_staging(seat, ["/m/x"], epoch=3, deadline=5)


async def staging_told(rig: Rig, checkpoint: str) -> None:
    """Wait until an agent tells what has become of it: nobody listens there."""
    async with asyncio.timeout(5):
        while [each["checkpoint"] for each in rig.seat.state()["stage"]] != [checkpoint]:
            await asyncio.sleep(0.01)
    assert rig.seat.state()["stage"][0]["place"] == "LeftOut"


async def test_who_has_not_the_token_and_who_is_not_there_are_told(seat: Seat) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(BadOrder, match="token"):
            await HttpAgents(session, "another").order_starts(seat, [A], [], epoch=1, deadline=5)
        nowhere = Seat(name=seat.name, uid="u", version="1", fleet=seat.fleet)
        with pytest.raises(EngineLost, match="has not told its agent's address"):
            await HttpAgents(session, "token").order_starts(nowhere, [A], [], epoch=1, deadline=5)
