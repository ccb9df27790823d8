import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from scaler.gateway.routes import PolicyLimits
from scaler.gateway.settings import GatewaySettings
from scaler.signals.pushed import NameTaken, PushedSamples
from tests.fakes.openai_engine import Behaviour, OpenAIEngine, Script
from tests.integration.gateway.rig import CHAT, Controller, Rig, rig, until


@asynccontextmanager
async def rig_with(desk: "Desk") -> AsyncIterator[Rig]:
    """Serve a gateway whose one controller is `desk`."""
    async with (
        Controller(desk.take).serve() as controller,
        rig(GatewaySettings(instance="gw-1", controllers=(controller,))) as r,
    ):
        yield r


class Desk:
    """What one controller received, and when."""

    def __init__(self, status: int = 204) -> None:
        self.store = PushedSamples()
        self.received: list[tuple[float, dict[str, Any]]] = []
        self.status = status

    def take(self, body: bytes) -> int:
        now = time.time()
        try:
            self.store.ingest(body, now)
        except NameTaken:
            return 409
        self.received.append((now, json.loads(body)))
        return self.status

    def chat(self) -> tuple[int, int]:
        """Return (queued, in flight) as last received."""
        if not self.received:
            return (-1, -1)
        policy = self.received[-1][1]["policies"].get("chat", {})
        return policy.get("queued", -1), policy.get("inFlight", -1)

    async def until_chat(self, wanted: tuple[int, int]) -> None:
        await until(lambda: self.chat() == wanted)


@pytest.mark.wall_clock
async def test_samples_bring_the_right_counts_within_20_ms_of_a_change() -> None:
    desk = Desk()
    delays = []
    async with rig_with(desk) as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(gated=True))
        r.route(url, slots=2)
        asks = []
        for arrived in range(1, 9):
            asks.append(group.create_task(r.ask()))
            await r.until_demand(arrived)
            changed = time.time()
            expected = (max(0, arrived - 2), min(arrived, 2))
            await desk.until_chat(expected)
            delays.append(desk.received[-1][0] - changed)
        assert desk.received[-1][1]["policies"]["chat"]["arrived"] == 8
        engine.gate.set()
        await asyncio.gather(*asks)
        await desk.until_chat((0, 0))
        load = desk.store.load(CHAT, time.time())
        assert (load.queued.value, load.in_flight.value) == (0, 0)
        assert load.peak.value >= 8
    assert statistics.median(delays) < 0.02
    assert desk.store.rejected == 0


async def test_a_sample_bears_the_time_of_its_change() -> None:
    desk = Desk()
    async with rig_with(desk) as r, asyncio.TaskGroup() as group:
        r.route()
        await desk.until_chat((0, 0))
        before = time.time()
        ask = group.create_task(r.ask())
        await r.until_queued(1)
        after = time.time()
        await desk.until_chat((1, 0))
        at = next(body["at"] for _, body in desk.received if body["policies"]["chat"]["queued"] == 1)
        assert before <= at <= after
        _, url = await r.engine()
        r.route(url)
        await ask


@pytest.mark.wall_clock
async def test_samples_come_without_a_change_and_oftener_while_something_waits() -> None:
    desk = Desk()
    async with rig_with(desk) as r, asyncio.TaskGroup() as group:
        r.route()
        ask = group.create_task(r.ask())
        await desk.until_chat((1, 0))
        count = len(desk.received)
        begun = time.monotonic()
        await until(lambda: len(desk.received) >= count + 3)
        assert time.monotonic() - begun < 2.0
        waits = [body["policies"]["chat"]["oldestWaitSeconds"] for _, body in desk.received[count:]]
        assert waits == sorted(waits)
        assert waits[-1] >= 0.5
        _, url = await r.engine()
        r.route(url)
        await ask
        await desk.until_chat((0, 0))
        count = len(desk.received)
        await until(lambda: len(desk.received) > count)


async def test_many_changes_leave_in_few_samples_and_the_last_state_gets_out() -> None:
    desk = Desk()
    async with rig_with(desk) as r:
        _, url = await r.engine()
        r.route(url, slots=2)
        begun = time.monotonic()
        await asyncio.gather(*(r.ask() for _ in range(150)))
        seconds = time.monotonic() - begun
        await desk.until_chat((0, 0))
        assert len(desk.received) <= seconds * 100 + 5
        policy = desk.received[-1][1]["policies"]["chat"]
        assert policy["arrived"] == 150


async def test_a_dead_or_slow_controller_delays_nothing() -> None:
    desk = Desk()
    silent = OpenAIEngine(script=Script(behaviour=Behaviour.HANG))
    async with Controller(desk.take).serve() as controller, silent.serve() as hanging:
        controllers = ("http://127.0.0.1:9", hanging, controller)
        async with rig(GatewaySettings(controllers=controllers)) as r:
            _, url = await r.engine()
            r.route(url, slots=8)
            for _ in range(20):
                assert (await r.ask())[0] == 200
            await desk.until_chat((0, 0))
            ttft = r.registry.get_sample_value(
                "emberpool_gateway_time_to_first_token_seconds_bucket", {"policy": "chat", "le": "0.1"}
            )
            assert ttft is not None
            assert ttft >= 18
            failed = {"controller": "http://127.0.0.1:9", "outcome": "Failed"}
            assert r.registry.get_sample_value("emberpool_gateway_samples_total", failed)


@pytest.mark.wall_clock
async def test_a_controller_that_comes_back_gets_the_present_state() -> None:
    desk = Desk(status=503)
    async with rig_with(desk) as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(gated=True))
        r.route(url, slots=2)
        asks = [group.create_task(r.ask()) for _ in range(3)]
        await engine.until(lambda engine: engine.in_flight == 2)
        await until(lambda: len(desk.received) >= 3)
        desk.status = 204
        desk.received.clear()
        await desk.until_chat((1, 2))
        assert time.time() - desk.received[-1][1]["at"] < 1.5
        engine.gate.set()
        await asyncio.gather(*asks)


async def test_what_the_gateway_turns_away_for_lack_of_room_reaches_the_controller() -> None:
    desk = Desk()
    async with rig_with(desk) as r, asyncio.TaskGroup() as group:
        r.limits, r.coming_seconds = PolicyLimits(max_requests=1), 20.0
        engine, url = await r.engine(Script(gated=True))
        r.route(url, slots=1)
        asks = [group.create_task(r.ask()) for _ in range(2)]
        await desk.until_chat((1, 1))
        turned_away = [await r.ask() for _ in range(3)]
        assert [status for status, _ in turned_away] == [503] * 3
        assert (await r.ask({"model": "nope"}))[0] == 404
        await until(lambda: desk.received[-1][1]["policies"].get("chat", {}).get("refused") == 3)
        told = desk.received[-1][1]["policies"]["chat"]["refusedSeconds"]
        assert 3 * 19 <= told <= 3 * 20, "each was told to come again when one more resident is expected"
        refused = desk.store.load(CHAT, time.time()).refused
        assert refused.known
        assert 0.0 < refused.value <= 3.0
        engine.gate.set()
        assert [status for status, _ in await asyncio.gather(*asks)] == [200, 200]


async def test_a_request_that_may_not_wait_for_a_cold_policy_is_demand_nevertheless() -> None:
    desk = Desk()
    async with rig_with(desk) as r:
        r.limits = PolicyLimits(max_requests=0)
        r.route()
        await desk.until_chat((0, 0))
        asked_at = time.time()
        assert (await r.ask())[0] == 503
        await until(lambda: desk.store.load(CHAT, time.time()).peak.value == 1)
        assert time.time() - asked_at < 0.5, "it isn't left for the next second's sample"
        load = desk.store.load(CHAT, time.time())
        assert (load.queued.value, load.in_flight.value) == (0, 0)


async def test_a_controller_that_wants_another_token_is_told_of_with_the_gateways_own_variable_first() -> (
    None
):
    desk = Desk(status=401)
    with capture_logs() as logs:
        async with rig_with(desk) as r:
            r.route()
            await until(lambda: bool(logs))
    assert "set EMBERPOOL_SIGNAL_TOKEN here" in logs[0]["problem"]


async def test_a_second_gateway_of_one_name_is_told_what_mends_it_and_the_first_ones_demand_stands() -> None:
    desk = Desk()
    async with rig_with(desk) as first, asyncio.TaskGroup() as tasks:
        first.route()
        waiting = tasks.create_task(first.ask())
        await desk.until_chat((1, 0))
        with capture_logs() as logs:
            async with rig_with(desk) as second:
                second.route()
                await until(lambda: bool(logs))
        assert "`gw-1`" in logs[0]["problem"]
        assert "give each gateway an --instance of its own" in logs[0]["problem"]
        assert desk.store.load(CHAT, time.time()).queued.value == 1
        _, url = await first.engine()
        first.route(url)
        assert (await waiting)[0] == 200
