"""What every source of readings does, whatever it reads: one suite for all of them, over real sockets.

Each runs against a world that can be well, fail, hang and be well again.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiohttp import web

from scaler.policy.signals import Measures, Prometheus, RedisList, RedisServer, RedisStream
from scaler.signals.engine_metrics import EngineMetricsSource, EngineScrapes
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import Source
from scaler.signals.prometheus import PrometheusServers, PrometheusSource
from scaler.signals.redis_client import RedisServers
from scaler.signals.redis_queue import RedisQueueSource
from scaler.signals.scrape_pace import ScrapePace
from tests.integration.signals.rig import Heard, RedisProcess, key, open_sockets, redis, running

SLACK_SECONDS = 1.0
"""What a busy machine may take beside what is allowed."""


class World(Protocol):
    """What a source reads."""

    def well(self) -> None:
        """Answer from now on."""

    def fail(self) -> None:
        """Refuse or answer nonsense from now on."""

    def hang(self) -> None:
        """Take questions and answer none from now on."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One source in its world.

    Attributes:
        make: makes the source; each one reads the same.
        world: what it reads.
        interval: seconds between its rounds.
        timeout: seconds after which it gives up.
    """

    make: Callable[[], Source]
    world: World
    interval: float
    timeout: float


# ------------------------------------------------------------------ worlds


class HttpWorld:
    """A server that answers every GET with one body."""

    def __init__(self, body: Callable[[], str], kind: str) -> None:
        self._body = body
        self._kind = kind
        self._mode = "well"
        self._mended = asyncio.Event()

    def well(self) -> None:
        self._mode = "well"
        self._mended.set()

    def fail(self) -> None:
        self._mode = "fail"

    def hang(self) -> None:
        self._mended.clear()
        self._mode = "hang"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            self.well()
            await runner.cleanup()

    async def _answer(self, _: web.Request) -> web.StreamResponse:
        if self._mode == "hang":
            await self._mended.wait()
        if self._mode == "fail":
            return web.Response(text="<html>", content_type="text/html", status=502)
        return web.Response(text=self._body(), content_type=self._kind)


class RedisWorld:
    """A Redis that is killed, frozen and started again."""

    def __init__(self, process: RedisProcess) -> None:
        self._process = process
        self._frozen = False

    def well(self) -> None:
        if self._frozen:
            self._process.thaw()
            self._frozen = False
        else:
            self._process.restart()

    def fail(self) -> None:
        self._process.kill()

    def hang(self) -> None:
        self._process.freeze()
        self._frozen = True


@asynccontextmanager
async def prometheus_case(_: Path) -> AsyncIterator[Case]:
    def body() -> str:
        return f'{{"status": "success", "data": {{"result": [{time.time()}, "3"]}}}}'

    world = HttpWorld(body, "application/json")
    async with world.serving() as url:
        signal = Prometheus(
            type="Prometheus",
            name="queue",
            server=url,
            query="sum(x)",
            measures=Measures.REQUESTS,
            interval_seconds=1,
            timeout_seconds=1,
        )
        servers = PrometheusServers()
        yield Case(
            make=lambda: PrometheusSource(key(), signal, servers), world=world, interval=1.0, timeout=1.0
        )
        world.well()
        async with asyncio.timeout(30):
            while any(thread.name.startswith("query to") for thread in threading.enumerate()):
                await asyncio.sleep(0.01)  # between two looks


@asynccontextmanager
async def engine_case(_: Path) -> AsyncIterator[Case]:
    page = "\n".join(
        f'# TYPE vllm:num_requests_{kind} gauge\nvllm:num_requests_{kind}{{engine="0",model_name="m"}} 2.0'
        for kind in ("running", "waiting")
    )
    world = HttpWorld(lambda: f"{page}\n", "text/plain")
    async with world.serving() as url:
        targets = (EngineTarget(uid="pod-1", url=url),)
        scrapes = EngineScrapes(interval=0.2, timeout=0.2, objective=1.0)
        pace = ScrapePace()
        yield Case(
            make=lambda: EngineMetricsSource(key(), scrapes, lambda _: targets, pace),
            world=world,
            interval=0.2,
            timeout=0.2,
        )


def redis_case(cls: Any, **fields: str) -> Callable[[Path], AbstractAsyncContextManager[Case]]:
    @asynccontextmanager
    async def case(folder: Path) -> AsyncIterator[Case]:
        with redis(folder) as process:
            signal = cls(
                type=cls.__name__,
                name="queue",
                key="jobs",
                server=RedisServer(addresses=(process.address,)),
                interval_milliseconds=200,
                timeout_milliseconds=200,
                **fields,
            )
            servers = RedisServers()
            yield Case(
                make=lambda: RedisQueueSource(key(), signal, servers),
                world=RedisWorld(process),
                interval=0.2,
                timeout=0.2,
            )

    return case


@pytest.fixture(
    params=[
        pytest.param(prometheus_case, id="prometheus"),
        pytest.param(redis_case(RedisList), id="redis-list"),
        pytest.param(redis_case(RedisStream, group="workers"), id="redis-stream"),
        pytest.param(engine_case, id="engine-metrics"),
    ]
)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    sockets, tasks = open_sockets(), asyncio.all_tasks()
    async with request.param(tmp_path) as case:
        yield case
    async with asyncio.timeout(15):  # a query's thread may end last
        while open_sockets() - sockets or asyncio.all_tasks() - {asyncio.current_task()} - tasks:
            await asyncio.sleep(0.01)  # between two looks


# ------------------------------------------------------------------ the contract


@pytest.mark.wall_clock
async def test_readings_are_of_the_signal_and_were_true_a_moment_ago(case: Case) -> None:
    begun = time.monotonic()
    async with running(case.make()) as heard:
        words = [await heard.reading() for _ in range(3)]
    assert not heard.failures
    for word in words:
        assert word.key == key()
        assert word.parts
        assert begun - 0.1 <= word.at <= word.heard
        assert word.heard - word.at <= case.interval + case.timeout + SLACK_SECONDS
    assert all(before.at < after.at for before, after in itertools.pairwise(words))


async def test_a_failure_is_told_once_a_round_and_ends_nothing(case: Case) -> None:
    async with running(case.make()) as heard:
        await heard.reading()
        case.world.fail()
        first = await heard.failure()
        before = len(heard.failures)
        for _ in range(3):
            last = await heard.failure()
        rounds = (last.heard - first.heard) / (0.8 * case.interval) + 1
        assert len(heard.failures) - before <= rounds
        case.world.well()
        await heard.reading()
    assert all(0 < len(why) <= 300 and "\n" not in why for why in heard.failures)


@pytest.mark.wall_clock
async def test_what_hangs_fails_within_its_timeout_and_is_read_again(case: Case) -> None:
    async with running(case.make()) as heard:
        await heard.reading()
        case.world.hang()
        hung = time.monotonic()
        failure = await heard.failure()
        assert failure.heard - hung <= 2 * case.interval + case.timeout + SLACK_SECONDS
        case.world.well()
        await heard.reading()


@pytest.mark.wall_clock
@pytest.mark.parametrize("state", ["well", "fail", "hang"])
async def test_cancelling_ends_it_at_once(case: Case, state: str) -> None:
    async with running(case.make()) as heard:
        await heard.reading()
        match state:
            case "fail":
                case.world.fail()
                await heard.failure()
            case "hang":
                case.world.hang()
                await heard.failure()
        words, ending = len(heard.words), time.monotonic()
    assert time.monotonic() - ending < 1.0
    assert len(heard.words) == words
    if state != "well":
        case.world.well()


async def test_cancelling_leaves_nothing_whenever_it_comes(case: Case) -> None:
    for steps in range(0, 60, 3):
        source = asyncio.get_running_loop().create_task(case.make().run(Heard()))
        for _ in range(steps):
            await asyncio.sleep(0.001 if steps % 2 else 0)
        source.cancel()
        with pytest.raises(asyncio.CancelledError):
            await source


async def test_a_source_can_be_run_again(case: Case) -> None:
    source = case.make()
    for _ in range(2):
        async with running(source) as heard:
            await heard.reading()


@pytest.mark.wall_clock
async def test_two_that_read_the_same_disturb_each_other_neither_alive_nor_ending(case: Case) -> None:
    async with running(case.make()) as one:
        async with running(case.make()) as two:
            await one.reading()
            await two.reading()
        await one.reading()
        await one.reading()
    assert not one.failures
    assert not two.failures
