"""First tokens: reported once per entry into rotation, delivered over a real socket, dropped when too old."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from scaler.errors import SampleRejected
from scaler.gateway.routes import Endpoint
from scaler.runtime.first_tokens import MOST_WAITING, FirstTokenReporter, parse
from warmpool.seats import PolicyName, SeatName

CHAT = PolicyName("chat")


def endpoint(number: int = 1) -> Endpoint:
    return Endpoint(seat=SeatName(f"seat-{number}"), uid="u", policy=CHAT, url=f"http://h:{number}", slots=1)


@dataclass
class Controller:
    url: str = ""
    status: int = 204
    told: list[dict[str, Any]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        if self.status == 204:
            self.told += (await request.json())["items"]
        self.asked.set()
        return web.Response(status=self.status)


@asynccontextmanager
async def controller() -> AsyncIterator[Controller]:
    made = Controller()
    app = web.Application()
    app.router.add_post("/v1/first-tokens", made.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def delivering(reporter: FirstTokenReporter) -> AsyncIterator[None]:
    async with aiohttp.ClientSession() as session, asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reporter.run(session))
        try:
            yield
        finally:
            running.cancel()


def content(reporter: FirstTokenReporter, of: Endpoint, at: float | None = None) -> None:
    now = time.time() if at is None else at
    reporter.first_content(CHAT, of, now - 0.2, now, 0.5)


async def test_each_entry_into_rotation_is_reported_once() -> None:
    async with controller() as hears:
        reporter = FirstTokenReporter("gw-1", (hears.url,))
        async with delivering(reporter):
            reporter.listed(CHAT, [endpoint(1).key])
            content(reporter, endpoint(1))
            content(reporter, endpoint(1))
            await hears.asked.wait()
            hears.asked.clear()
            reporter.listed(CHAT, [])
            reporter.listed(CHAT, [endpoint(1).key, endpoint(2).key])
            content(reporter, endpoint(1))
            await hears.asked.wait()
    assert [item["seat"] for item in hears.told] == ["seat-1", "seat-1"]
    (first, _) = parse(json.dumps({"items": hears.told}).encode(), time.time())
    assert (first.policy, first.queued_seconds) == ("chat", 0.5)
    assert first.at - first.dispatched == pytest.approx(0.2)


async def test_a_controller_that_is_down_gets_it_when_it_is_back() -> None:
    async with controller() as hears:
        hears.status = 503
        reporter = FirstTokenReporter("gw-1", (hears.url,))
        reporter.listed(CHAT, [endpoint().key])
        async with delivering(reporter):
            content(reporter, endpoint())
            await hears.asked.wait()
            hears.status = 204
            hears.asked.clear()
            await hears.asked.wait()
    assert len(hears.told) == 1


async def test_what_is_too_old_is_dropped_and_counted() -> None:
    dropped: list[int] = []
    async with controller() as hears:
        reporter = FirstTokenReporter("gw-1", (hears.url,), lambda: dropped.append(1))
        reporter.listed(CHAT, [endpoint(n).key for n in (1, 2)])
        content(reporter, endpoint(1), time.time() - 60)
        content(reporter, endpoint(2))
        async with delivering(reporter):
            await hears.asked.wait()
    assert [item["seat"] for item in hears.told] == ["seat-2"]
    assert len(dropped) == 1


def test_what_waits_is_bounded() -> None:
    dropped: list[int] = []
    reporter = FirstTokenReporter("gw-1", ("http://127.0.0.1:9",), lambda: dropped.append(1))
    reporter.listed(CHAT, [endpoint(n).key for n in range(MOST_WAITING + 10)])
    for number in range(MOST_WAITING + 10):
        content(reporter, endpoint(number))
    assert len(dropped) == 10


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="nothing"),
        pytest.param(b'{"items": [{"policy": "chat"}]}', id="half a token"),
        pytest.param(
            b'{"items": [{"policy":"c","seat":"s","dispatched":1,"at":NaN,"queuedSeconds":0}]}', id="no time"
        ),
        pytest.param(json.dumps({"items": [{}] * (MOST_WAITING + 1)}).encode(), id="too many"),
    ],
)
def test_malformed_reports_are_refused(body: bytes) -> None:
    with pytest.raises(SampleRejected):
        parse(body, 1.0)


def test_a_report_that_could_be_of_an_earlier_promotion_is_left_out() -> None:
    item = {"policy": "c", "seat": "s", "dispatched": 99.0, "at": 100.0, "queuedSeconds": 0}
    body = json.dumps({"items": [item]}).encode()
    assert len(parse(body, 101.0)) == 1
    assert parse(body, 200.0) == []
