"""The source over real sockets: each engine is a real HTTP server."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from structlog.testing import capture_logs

from scaler.signals.engine_metrics import EngineMetricsSource, EngineScrapes
from scaler.signals.engine_scrape import MAX_PAGE_BYTES
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import Part, SignalKey
from scaler.signals.scrape_pace import ScrapePace
from tests.fakes.ports import free_port
from warmpool.seats import PolicyName

KEY = SignalKey(PolicyName("chat"), "engines")
QUICK = EngineScrapes(interval=0.05, timeout=0.3, objective=1.0)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def text(running: float, waiting: float = 0) -> str:
    return f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"


@dataclass
class Engine:
    """What one server was asked."""

    page: str
    target: EngineTarget
    asked: list[str] = field(default_factory=list)
    peers: set[object] = field(default_factory=set)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, request: web.BaseRequest) -> None:
        """Take note of a request."""
        assert request.transport is not None
        self.asked.append(request.raw_path)
        self.peers.add(request.transport.get_extra_info("peername"))
        self._came.set()

    async def times(self, count: int) -> None:
        """Wait until it has been asked so often."""
        async with asyncio.timeout(10):
            while len(self.asked) < count:
                self._came.clear()
                await self._came.wait()


class Told:
    """A sink that remembers, and tells who waits."""

    def __init__(self) -> None:
        self.readings: list[tuple[Mapping[Part, float], float]] = []
        self.failures: list[str] = []
        self._news = asyncio.Event()

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        del lacking
        assert key == KEY
        self.readings.append((dict(parts), at))
        self._news.set()

    def failed(self, key: SignalKey, why: str) -> None:
        assert key == KEY
        self.failures.append(why)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await self._news.wait()
                self._news.clear()

    async def requests(self, wanted: float) -> None:
        """Wait until the newest reading has so many requests."""
        await self.until(lambda: bool(self.readings) and self.readings[-1][0].get(Part.REQUESTS) == wanted)

    async def more(self, count: int) -> None:
        """Wait for so many further readings."""
        wanted = len(self.readings) + count
        await self.until(lambda: len(self.readings) >= wanted)

    async def failure(self, part: str) -> None:
        """Wait for a failure that says so."""
        await self.until(lambda: any(part in why for why in self.failures))


class Rig:
    """Engines, the source that reads them, and what it told."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.engines: list[Engine] = []
        self.targets: list[EngineTarget] = []
        self.told = Told()
        self.pace = ScrapePace()
        self.source = EngineMetricsSource(KEY, QUICK, lambda _: self.targets, self.pace)
        self._reading: asyncio.Task[None] | None = None

    async def engine(self, page: str = "", *, answer: Answer | None = None, port: int = 0) -> Engine:
        """Start a server that answers with its page, or as it is told to, and put it into rotation."""

        async def serve(request: Any) -> web.StreamResponse:
            made.note(request)
            return web.Response(text=made.page) if answer is None else await answer(request)

        runner = web.ServerRunner(web.Server(serve, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        number = len(self.engines) + 1
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        made = Engine(page=page, target=EngineTarget(f"uid-{number}", url, f"seat-{number}"))
        self.engines.append(made)
        if made.target not in self.targets:
            self.targets.append(made.target)
        return made

    def read(self, scrapes: EngineScrapes = QUICK) -> None:
        """Begin to read."""
        self.source = EngineMetricsSource(KEY, scrapes, lambda _: self.targets, self.pace)
        self._reading = asyncio.get_running_loop().create_task(self.source.run(self.told))

    async def stop(self) -> None:
        """End reading."""
        if self._reading is not None:
            self._reading.cancel()
            async with asyncio.timeout(1):
                await asyncio.gather(self._reading, return_exceptions=True)
            assert self._reading.cancelled()
            self._reading = None


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        made = Rig(stack)
        stack.push_async_callback(made.stop)
        yield made


async def hang(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


# ------------------------------------------------------------------ reading


async def test_engines_are_read_added_up_and_shown(rig: Rig) -> None:
    for running in (3, 4, 5):
        await rig.engine(text(running, waiting=1))
    begun = asyncio.get_running_loop().time()
    rig.read()
    await rig.told.requests(15)
    at = rig.told.readings[-1][1]
    assert begun <= at <= asyncio.get_running_loop().time()
    view = rig.source.describe()
    assert view.interval == QUICK.interval * view.stretch
    assert [(str(each.target), each.dialect, each.running) for each in view.engines] == [
        *(("seat-1", "vLLM (vllm:)", 3), ("seat-2", "vLLM (vllm:)", 4), ("seat-3", "vLLM (vllm:)", 5))
    ]
    rig.engines[1].page = text(40)
    await rig.told.requests(50)
    assert not rig.told.failures


async def test_the_share_of_late_first_tokens_is_told_beside(rig: Rig) -> None:
    registry = CollectorRegistry()
    for name in ("running", "waiting"):
        Gauge(f"vllm:num_requests_{name}", "x", registry=registry)
    first_tokens = Histogram(
        "vllm:time_to_first_token_seconds", "x", buckets=[0.5, 1.0, 2.5], registry=registry
    )
    first_tokens.observe(2.0)
    engine = await rig.engine(generate_latest(registry).decode())
    rig.read()
    await rig.told.requests(0)
    for seconds in (0.1, 0.2, 0.3, 0.4, 2.0):
        first_tokens.observe(seconds)
    engine.page = generate_latest(registry).decode()
    await rig.told.until(lambda: rig.told.readings[-1][0].get(Part.LATE_SHARE) == pytest.approx(0.2))


async def test_connections_are_kept(rig: Rig) -> None:
    engine = await rig.engine(text(1))
    rig.read()
    await engine.times(5)
    assert len(engine.peers) == 1


async def test_without_engines_in_rotation_there_are_no_requests(rig: Rig) -> None:
    rig.read()
    await rig.told.more(3)
    assert {reading[0][Part.REQUESTS] for reading in rig.told.readings} == {0}
    assert rig.told.readings[0][1] < rig.told.readings[-1][1]


async def test_an_engine_enters_and_leaves_the_sum_with_its_place_in_rotation(rig: Rig) -> None:
    one, _two = await rig.engine(text(1)), await rig.engine(text(2))
    rig.read()
    await rig.told.requests(3)
    rig.targets.remove(one.target)
    await rig.told.requests(2)
    asked = len(one.asked)
    await rig.told.more(3)
    assert len(one.asked) == asked
    rig.targets.append(one.target)
    await rig.told.requests(3)


@pytest.mark.wall_clock
async def test_a_promoted_engine_is_read_at_once_whatever_the_interval(rig: Rig) -> None:
    rig.read(EngineScrapes(interval=60.0, timeout=1.0, objective=1.0))
    await rig.told.requests(0)
    begun = asyncio.get_running_loop().time()
    await rig.engine(text(7))
    await rig.told.requests(7)
    assert asyncio.get_running_loop().time() - begun < 5


async def test_a_stretched_pace_shows_and_stretches_how_long_a_reading_is_fresh(rig: Rig) -> None:
    rig.pace.stretch = 4.0
    rig.read()
    assert rig.source.interval == pytest.approx(4 * QUICK.interval)
    assert rig.source.freshness == pytest.approx(1.5 * 4 * QUICK.interval + QUICK.timeout)
    assert rig.source.describe().stretch == 4.0


# ------------------------------------------------------------------ what goes wrong


async def test_an_engine_that_hangs_delays_no_other_and_keeps_its_place_in_the_sum(rig: Rig) -> None:
    hangs = False

    async def answer(request: web.Request) -> web.StreamResponse:
        return await hang(request) if hangs else web.Response(text=text(5))

    slow, quick = await rig.engine(answer=answer), await rig.engine(text(1))
    rig.read()
    await rig.told.requests(6)
    hangs, asked, count = True, len(quick.asked), len(slow.asked)
    await rig.told.failure("1 of 2 engines silent: seat-1: no answer within 0.3 s")
    quick.page = text(2)
    await rig.told.requests(7)
    assert len(quick.asked) - asked > len(slow.asked) - count
    ages = [asyncio.get_running_loop().time() - at for _, at in rig.told.readings[-1:]]
    assert ages[0] >= 0.3


async def test_an_engine_that_goes_and_comes_back_is_told_and_logged_once(rig: Rig) -> None:
    port = free_port()
    target = EngineTarget("uid-1", f"http://127.0.0.1:{port}", "seat-1")
    rig.targets.append(target)
    with capture_logs() as logs:
        rig.read()
        await rig.told.until(lambda: len(rig.told.failures) >= 3)
        assert not rig.told.readings
        await rig.engine(text(2), port=port)
        await rig.told.requests(2)
        await rig.told.more(1)
    assert all(why.startswith("1 of 1 engines silent: seat-1: connect") for why in rig.told.failures)
    events = [entry["event"] for entry in logs]
    assert events == ["engines silent", "engine metrics found", "all engines answer again"]


async def test_failures_are_told_once_a_round(rig: Rig) -> None:
    rig.targets += [
        EngineTarget(f"uid-{n}", f"http://127.0.0.1:{free_port()}", f"seat-{n}") for n in (1, 2, 3)
    ]
    begun = asyncio.get_running_loop().time()
    rig.read()
    await rig.told.until(lambda: len(rig.told.failures) >= 4)
    rounds = (asyncio.get_running_loop().time() - begun) / QUICK.interval
    assert len(rig.told.failures) <= rounds + 1


async def streamed(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(MAX_PAGE_BYTES // 65536 + 2):
        await response.write(b"x" * 65535 + b"\n")
    return response


def answered(**facts: Any) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(**facts)

    return answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(answered(status=404), "/metrics: answered 404", id="not there"),
        pytest.param(answered(text="[]", content_type="application/json"), "/metrics: it is JSON", id="JSON"),
        pytest.param(answered(status=503), "answered 503", id="a closed gate"),
        pytest.param(
            answered(status=302, headers={"Location": "/elsewhere"}), "answered 302", id="elsewhere"
        ),
        pytest.param(answered(text="<html>"), "no running requests under any known name", id="HTML"),
        pytest.param(
            answered(body=b"#" * (MAX_PAGE_BYTES + 1)),
            f"has {MAX_PAGE_BYTES + 1} bytes, at most",
            id="too large",
        ),
        pytest.param(streamed, f"more than {MAX_PAGE_BYTES} bytes", id="too large, unannounced"),
        pytest.param(
            answered(body=gzip.compress(b"x", mtime=0), headers={"Content-Encoding": "gzip"}),
            "packed (gzip)",
            id="packed",
        ),
        pytest.param(answered(text=text(float("nan"))), "running is nan", id="no number"),
        pytest.param(hang, "no answer within 0.3 s", id="silent"),
    ],
)
async def test_what_is_no_page_is_a_failure_and_no_load(rig: Rig, answer: Answer, why: str) -> None:
    await rig.engine(answer=answer)
    rig.read()
    await rig.told.failure(why)
    assert not rig.told.readings


@pytest.mark.parametrize(
    ("url", "why"),
    [
        pytest.param("", "its address isn't known yet", id="none yet"),
        pytest.param("nonsense", "seat-1: ", id="no URL"),
        pytest.param("http://[::1", "seat-1: ", id="a torn URL"),
    ],
)
async def test_a_target_that_cannot_be_asked_is_silent(rig: Rig, url: str, why: str) -> None:
    rig.targets.append(EngineTarget("uid-1", url, "seat-1"))
    rig.read()
    await rig.told.failure(why)


async def test_an_engine_has_one_reading_at_a_time_and_none_outlives_the_source(rig: Rig) -> None:
    slow, quick = await rig.engine(answer=hang), await rig.engine(text(1))
    rig.read(EngineScrapes(interval=0.05, timeout=60.0, objective=1.0))
    await slow.times(1)
    await quick.times(len(quick.asked) + 5)
    assert len(slow.asked) == 1
    await rig.stop()


# ------------------------------------------------------------------ where the page is, and how much of it


async def test_the_page_is_found_at_tensorrt_llms_path(rig: Rig) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            return web.json_response([{"iter": 1}])
        return web.Response(text="trtllm_num_requests_running 2\ntrtllm_num_requests_waiting 1\n")

    engine = await rig.engine(answer=answer)
    rig.read()
    await rig.told.requests(3)
    await rig.told.more(4)
    assert [path.split("?")[0] for path in engine.asked].count("/metrics") == 1
    assert rig.source.describe().engines[0].dialect == "TensorRT-LLM (trtllm_)"


async def test_an_engine_that_knows_names_is_asked_for_the_wanted_ones_alone(rig: Rig) -> None:
    registry = CollectorRegistry()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "other"):
        Gauge(name, "x", registry=registry).set(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        """Do with names what prometheus-client's own exporters do."""
        names: Sequence[str] = request.query.getall("name[]", [])
        return web.Response(body=generate_latest(registry.restricted_registry(names) if names else registry))

    engine = await rig.engine(answer=answer)
    rig.read()
    await engine.times(4)
    await rig.told.requests(2)
    assert engine.asked[0] == "/metrics"
    assert all("name%5B%5D=vllm%3Anum_requests_running" in path for path in engine.asked[1:])
    assert not rig.told.failures


async def test_a_passing_fault_does_not_cost_an_engine_its_small_pages(rig: Rig) -> None:
    faulty = False

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=503) if faulty else web.Response(text=text(2))

    engine = await rig.engine(answer=answer)
    rig.read()
    await engine.times(3)
    faulty = True
    await rig.told.failure("/metrics: answered 503")
    faulty = False
    await rig.told.more(3)
    asked = len(engine.asked)
    await engine.times(asked + 3)
    assert all("?" in path for path in engine.asked[asked:])


async def test_an_engine_that_loses_samples_by_names_is_asked_for_whole_pages(rig: Rig) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="" if request.query_string else text(2))

    engine = await rig.engine(answer=answer)
    rig.read()
    await engine.times(5)
    await rig.told.requests(2)
    assert ["?" in path for path in engine.asked[:5]] == [False, True, False, False, False]
    assert not rig.told.failures
