"""How a gateway ends: what is here is finished, or gets an end that its client understands; and it takes no longer than it may."""

import asyncio
import json
import signal
import time
from typing import cast

import aiohttp
import pytest

from scaler.gateway.observe import Outcome
from tests.fakes.memory_cluster import MemoryCluster
from tests.fakes.openai_engine import Behaviour, OpenAIEngine, Script
from tests.fakes.ports import free_ports
from tests.integration.gateway.publishing import FLEET, Controller, seat
from tests.integration.gateway.raw import connected, request
from tests.integration.gateway.rig import CHAT, rig
from tests.integration.gateway.running import process

ENDLESS = Script(tokens=10_000, interval_seconds=0.01)


def last_error(text: str) -> dict[str, str]:
    error: dict[str, str] = json.loads(text.rstrip().rpartition("data: ")[2])["error"]
    return error


@pytest.mark.parametrize("spliced", [True, False], ids=["spliced", "over HTTP/1.0"])
async def test_a_stream_that_is_cut_at_the_drains_end_ends_with_its_error_event(*, spliced: bool) -> None:
    async with rig() as r, connected(r.url) as client:
        _, url = await r.engine(ENDLESS)
        r.route(url)
        sent = request()
        client.send(sent if spliced else sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.reader.readuntil(b'"text": "t"')
        began = time.monotonic()
        assert await r.gateway.drain(0.2) is False
        assert 0.2 <= time.monotonic() - began < 0.6
        rest = await (client.reader.readuntil(b"0\r\n\r\n") if spliced else client.rest())
        text = rest.decode()
        error = last_error(text.removesuffix("0\r\n\r\n"))
        assert (error["code"], "shut down" in error["message"]) == ("StreamCut", True)
        assert "[DONE]" not in text
        assert r.observed.outcomes == [Outcome.CUT]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_an_engine_still_thinks_about_at_the_drains_end_is_refused(*, stream: bool) -> None:
    async with rig() as r, asyncio.TaskGroup() as tasks:
        engine, url = await r.engine(Script(behaviour=Behaviour.HANG))
        r.route(url)
        asked = tasks.create_task(r.ask({"stream": stream}))
        await engine.until(lambda engine: len(engine.seen) == 1)
        assert await r.gateway.drain(0.05) is False
        status, text = await asked
        assert (status, json.loads(text)["error"]["code"]) == (503, "QueueClosing")
        assert r.observed.outcomes == [Outcome.CLOSED]
        await engine.until(lambda engine: engine.disconnected == 1)
        assert r.gateway.routes.state(CHAT, time.monotonic())[0]["leftAloneSeconds"] == 0


async def test_what_ends_whole_while_the_drains_end_comes_is_no_request_that_was_cut() -> None:
    """Its engine has given all; the client takes the rest when the time is over."""
    async with rig() as r, connected(r.url) as client:
        engine, url = await r.engine(Script(tokens=900_000, whole=True))
        r.route(url)
        cast("asyncio.ReadTransport", client.writer.transport).pause_reading()
        client.send(request(body=b'{"model": "m"}') * 8)
        await engine.until(lambda engine: len(engine.seen) >= 4)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(r.gateway.drain(0.1))
            await asyncio.sleep(0.15)  # past the end
            cast("asyncio.ReadTransport", client.writer.transport).resume_reading()
            taken = tasks.create_task(client.rest())
        assert draining.result() is True
        assert taken.result().count(b"HTTP/1.1 200 OK") == r.gateway.stats(CHAT).totals.completed
        assert set(r.observed.outcomes) == {Outcome.COMPLETED}


async def test_a_client_that_takes_nothing_holds_the_end_up_for_half_a_second() -> None:
    async with rig() as r, connected(r.url) as client:
        engine, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        cast("asyncio.ReadTransport", client.writer.transport).pause_reading()
        client.send(request())
        before = -1
        while engine.sent_bytes != before:  # until nobody takes anything
            before = engine.sent_bytes
            await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await r.gateway.drain(0.05) is False
        assert time.monotonic() - began < 1.0


@pytest.mark.wall_clock
async def test_a_process_ends_within_its_drain_and_at_once_when_it_is_told_twice() -> None:
    """Two processes one after the other, each of which takes seconds to begin."""
    cluster = MemoryCluster({FLEET: [CHAT]}, lambda: 1.0)
    engine, controller = OpenAIEngine(script=ENDLESS), Controller(cluster, term=1)
    async with engine.serve() as engine_url, controller.serve() as url, aiohttp.ClientSession() as session:
        cluster.objects.add(seat(engine_url))
        for drain, signals, longest in ((0.5, 1, 2.0), (60.0, 2, 2.0)):
            port, operators = free_ports(2)
            where = ("--port", str(port), "--metrics-port", str(operators), "--drain-seconds", str(drain))
            async with process(*where, controllers=(url,)) as running:
                async with asyncio.timeout(30):
                    while not await _ready(session, operators):
                        await asyncio.sleep(0.05)
                body = {"model": "m", "stream": True}
                response = await session.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
                await response.content.readuntil(b"\n\n")
                began = time.monotonic()
                running.send_signal(signal.SIGTERM)
                if signals > 1:
                    async with asyncio.timeout(10):
                        while await _ready(session, operators):
                            await asyncio.sleep(0.01)
                    running.send_signal(signal.SIGTERM)
                assert last_error(await response.text())["code"] == "StreamCut"
                assert await running.wait() == 1
                assert time.monotonic() - began < longest


async def _ready(session: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
