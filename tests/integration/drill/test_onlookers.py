"""Who looks on while a drill runs: Grafana, as a real HTTP server with its API or one that misbehaves, and Prometheus."""

import asyncio
import contextlib
import io
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from scaler.drill import DrillOptions
from scaler.drill.annotations import Grafana, annotating
from scaler.drill.child import ChildFailed
from scaler.drill.figures import ArmFigures
from scaler.drill.run import drill
from scaler.errors import UserError
from tests.fakes.ports import free_port

TOKEN = "glsa_right"
Middleware = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class GrafanaServer:
    """Annotations as Grafana keeps them: `POST /api/annotations`, `PATCH /api/annotations/ID`, a token for each call."""

    def __init__(self) -> None:
        self.annotations: dict[int, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.first: Middleware | None = None
        """What happens to a call before it is looked at; an answer ends it there."""
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["GrafanaServer"]:
        app = web.Application()
        app.router.add_post("/grafana/api/annotations", self.post)
        app.router.add_patch("/grafana/api/annotations/{id}", self.patch)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/grafana"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def refused(self, request: web.Request) -> web.StreamResponse | None:
        self.calls.append(request.method)
        if self.first is not None and (answer := await self.first(request)) is not None:
            return answer
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        return None

    async def post(self, request: web.Request) -> web.StreamResponse:
        if (answer := await self.refused(request)) is not None:
            return answer
        body = await request.json()
        if not body.get("text"):
            return web.json_response({"message": "text field should not be empty"}, status=400)
        number = len(self.annotations) + 1
        self.annotations[number] = {"timeEnd": body["time"], **body}
        return web.json_response({"message": "Annotation added", "id": number})

    async def patch(self, request: web.Request) -> web.StreamResponse:
        if (answer := await self.refused(request)) is not None:
            return answer
        found = self.annotations.get(int(request.match_info["id"]))
        if found is None:
            return web.json_response({"message": "Annotation not found"}, status=404)
        found.update(await request.json())
        return web.json_response({"message": "Annotation patched"})


@pytest.fixture
async def server() -> AsyncIterator[GrafanaServer]:
    async with GrafanaServer().running() as running:
        yield running


class Said:
    """What a person is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        self.lines.append(text)


async def note_three(target: Grafana, say: Said, *, pause: float = 0.0) -> None:
    """A region with a moment in it, as a drill makes them."""
    async with annotating(target, "two", say) as notes:
        region = notes.begin("burst", "warm", 100.0)
        await asyncio.sleep(pause)
        notes.mark("killed", ["warm"], 101.0)
        notes.end(region, 102.0)


# ------------------------------------------------------------------ a whole drill


class Told(io.StringIO):
    """A console's file that knows where the metrics are, and when the last stage has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = ""
        self.last = asyncio.Event()

    def write(self, text: str) -> int:
        if found := re.search(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", text):
            self.metrics = found[1]
        if "after (Decay" in text:
            self.last.set()
        return super().write(text)


class Page:
    """What Prometheus reads."""

    def __init__(self, text: str) -> None:
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    @classmethod
    async def of(cls, url: str) -> "Page":
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert response.status == 200
            return cls(await response.text())

    def value(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


STAGES = """
  stages:
    - {name: burst, kind: Burst, seconds: 2, loads: [{policy: chat, percent: 300}]}
    - {name: after, kind: Decay, seconds: 1, loads: [{policy: chat, percent: 100, ramp: Linear}]}
  faults: [{type: KillEngine, atSeconds: 1, policy: chat}]
"""
THRESHOLDS = "  thresholds: {maxFailures: 0, maxInterruptedStreams: 4, replacementSeconds: 20}\n"


async def test_a_drill_with_a_killed_engine_is_told_to_everybody(
    options: Callable[..., DrillOptions], short: Callable[..., Path], server: GrafanaServer
) -> None:
    told = Told()
    given = options(
        scenario=short(stages=STAGES, thresholds=THRESHOLDS),
        grafana=Grafana(url=server.url, token=TOKEN),
        metrics_port=0,
        shape="small",
        console=Console(file=told, width=150, force_terminal=True),  # the live panel, too
    )
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(drill(given))
        await told.last.wait()
        page = await Page.of(told.metrics)
    result = running.result()
    assert result.passed, result.report.checks
    assert "burst drill" in told.getvalue()
    assert "warning" not in told.getvalue()
    assert (result.report.policies[0].shape, result.report.policies[0].checkpoint) == ("small", "small-seed1")
    (arm,) = result.report.arms
    check_fault(arm)
    check_annotations(server, arm)
    assert page.value("emberpool_drill_info", scenario="smoke", arm="warm") == 1
    assert page.value("emberpool_drill_stage") == page.value("emberpool_drill_stage", stage="after") == 1
    assert page.value("emberpool_drill_objective_seconds", policy="chat") == 0.5
    assert page.value("emberpool_drill_in_flight", arm="warm", policy="chat") > 0
    burst = next(row for row in arm.stages if row.stage == "burst")
    assert 0 < page.value("emberpool_drill_requests_total", stage="burst", outcome="Ok") <= burst.ok
    assert page.value("emberpool_drill_ttft_seconds_count", stage="burst") > 0
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(told.metrics)


def check_fault(arm: ArmFigures) -> None:
    (fault,) = arm.faults
    assert fault.error == ""
    assert fault.pid is not None
    assert fault.seat
    assert fault.noticed_seconds is not None
    assert fault.replaced_seconds is not None
    assert 1 <= sum(row.failures.get("InterruptedStream", 0) for row in arm.stages) <= 4


def check_annotations(server: GrafanaServer, arm: ArmFigures) -> None:
    by_text = {one["text"].split(" ")[0]: one for one in server.annotations.values()}
    burst, fault, after, verdict = (by_text[word] for word in ("burst", "KillEngine", "after", "drill"))
    start = round(arm.load_started_at * 1000)
    assert (burst["time"], burst["timeEnd"]) == (start, start + 2000)
    assert (after["time"], after["timeEnd"]) == (start + 2000, start + 3000)
    assert burst["text"] == "burst (Burst, 2 s): chat 30.0/s"
    assert after["text"] == "after (Decay, 1 s): chat 30.0 to 10.0/s"
    assert fault["text"] == f"KillEngine chat: process {arm.faults[0].pid} on {arm.faults[0].seat}"
    assert start + 1000 <= fault["time"] == fault["timeEnd"] < start + 2000
    assert verdict["text"].startswith("drill smoke: pass, ")
    assert all(one["tags"] == ["emberpool", "drill", "smoke", "warm"] for one in server.annotations.values())


@pytest.mark.parametrize("name", ["metrics_port", "controller_port"])
async def test_a_port_in_use_is_told_before_anything_starts(
    options: Callable[..., DrillOptions], name: str
) -> None:
    other = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with other:
        port = other.sockets[0].getsockname()[1]
        given = options(**{name: port})
        with pytest.raises(UserError, match=f"can't listen on 127.0.0.1:{port}") as caught:
            await drill(given)
    assert f"--{name.replace('_', '-')} N" in caught.value.hint
    assert not given.checkpoint_cache.exists()


# ------------------------------------------------------------------ a Grafana that is well


async def test_a_region_is_there_from_its_start(server: GrafanaServer) -> None:
    arrived = asyncio.Event()

    async def look(_: web.Request) -> None:
        arrived.set()

    server.first = look
    async with annotating(Grafana(url=server.url, token=TOKEN), "two", Said()) as notes:
        region = notes.begin("burst", "warm", 100.0)
        async with asyncio.timeout(30):
            await arrived.wait()
        notes.end(region, 102.0)
    assert server.calls == ["POST", "PATCH"]
    assert server.annotations[1]["timeEnd"] == 102_000


async def test_a_start_that_was_lost_is_sent_with_the_end(server: GrafanaServer) -> None:
    async def once(_: web.Request) -> web.StreamResponse | None:
        return web.json_response({"message": "later"}, status=503) if len(server.calls) == 1 else None

    server.first = once
    say = Said()
    await note_three(Grafana(url=server.url, token=TOKEN), say)
    assert sorted((one["text"], one["time"], one["timeEnd"]) for one in server.annotations.values()) == [
        ("burst", 100_000, 102_000),
        ("killed", 101_000, 101_000),
    ]
    assert len(say.lines) == 1
    assert "it answers 503" in say.lines[0]


async def test_a_drill_that_is_broken_off_says_so(
    options: Callable[..., DrillOptions], server: GrafanaServer
) -> None:
    with pytest.raises(ChildFailed):
        await drill(options("DieAtStart", grafana=Grafana(url=server.url, token=TOKEN)))
    assert [one["text"] for one in server.annotations.values()] == ["drill smoke: broken off, no verdict"]


# ------------------------------------------------------------------ one that isn't


@pytest.mark.parametrize(
    ("token", "mend"), [("", "holds no token"), ("wrong", "holds no token with annotations:write")]
)
async def test_without_a_right_token_it_is_asked_once(server: GrafanaServer, token: str, mend: str) -> None:
    say = Said()
    await note_three(Grafana(url=server.url, token=token), say)
    assert server.calls == ["POST"]
    assert say.lines[0].endswith(f"it answers 401: EMBERPOOL_GRAFANA_TOKEN {mend}")
    assert "the drill goes on without them" in say.lines[1]
    assert token == "" or token not in "".join(say.lines)


@pytest.mark.wall_clock
async def test_a_grafana_that_hangs_is_given_up_and_changes_nothing(
    options: Callable[..., DrillOptions], short: Callable[..., Path], server: GrafanaServer
) -> None:
    async def hang(_: web.Request) -> None:
        await asyncio.Event().wait()

    server.first = hang
    out = io.StringIO()
    stages = "\n  stages: [{name: only, kind: Baseline, seconds: 1}]\n"
    scenario = short(stages=stages, thresholds="  thresholds: {}\n")
    target = Grafana(url=server.url, token=TOKEN, call_seconds=0.3)
    result = await drill(options(scenario=scenario, grafana=target, console=Console(file=out, width=200)))
    assert result.passed
    assert len(server.calls) == 3
    assert out.getvalue().count("no answer within 0.3 s") == 1
    assert out.getvalue().count("no further annotations are sent") == 1
    lag = result.report.arms[0].generator.lag
    assert lag is not None
    assert lag.p50 < 100  # no request waited for a call


@pytest.mark.wall_clock
async def test_the_end_of_a_drill_waits_for_grafana_for_a_bounded_time(server: GrafanaServer) -> None:
    async def hang(_: web.Request) -> None:
        await asyncio.Event().wait()

    server.first = hang
    say = Said()
    begun = time.monotonic()

    async def broken_off() -> None:
        async with annotating(Grafana(url=server.url, call_seconds=60), "two", say) as notes:
            notes.mark("killed", ["warm"], 1.0)
            raise ChildFailed("died")

    with pytest.raises(ChildFailed, match="died"):
        await broken_off()
    assert time.monotonic() - begun < 5
    assert say.lines == ["warning: Grafana is too slow; not all annotations are there"]


async def test_a_cancelled_drill_still_sends_what_it_noted(server: GrafanaServer) -> None:
    noted = asyncio.Event()

    async def cancelled() -> None:
        async with annotating(Grafana(url=server.url, token=TOKEN), "two", Said()) as notes:
            region = notes.begin("burst", "warm", 100.0)
            noted.set()
            try:
                await asyncio.Event().wait()
            finally:
                notes.end(region, 101.0)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(cancelled())
        await noted.wait()
        task.cancel()
    assert task.cancelled()
    assert server.annotations[1]["timeEnd"] == 101_000


async def test_nobody_there_is_a_warning() -> None:
    say = Said()
    await note_three(Grafana(url=f"http://127.0.0.1:{free_port()}"), say)
    assert "didn't take an annotation: can't connect: " in say.lines[0]


async def test_a_redirect_is_not_followed_with_the_token(server: GrafanaServer) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse | None:
        raise web.HTTPTemporaryRedirect(f"http://localhost:{request.url.port}/elsewhere")

    server.first = redirect
    say = Said()
    await note_three(Grafana(url=server.url, token=TOKEN), say)
    assert "it answers 307" in say.lines[0]


async def test_an_answer_without_an_id_is_not_grafanas(server: GrafanaServer) -> None:
    async def other(_: web.Request) -> web.StreamResponse | None:
        return web.Response(text="<html>hello</html>", content_type="text/html")

    server.first = other
    say = Said()
    await note_three(Grafana(url=server.url, token=TOKEN), say)
    assert "didn't take an annotation" in say.lines[0]


async def test_too_many_notes_are_dropped_and_counted(server: GrafanaServer) -> None:
    say = Said()
    async with annotating(Grafana(url=server.url, token=TOKEN), "two", say) as notes:
        for number in range(300):  # without a pause in which they could be sent
            notes.mark(f"note {number}", ["warm"], 1.0)
    assert len(server.annotations) == 256
    assert say.lines == ["warning: 44 annotations were dropped: 256 waited already"]
