"""Without a gateway of ours: what passes through nginx or Envoy is seen by the engines' own numbers, read straight and from Prometheus."""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from textwrap import indent

import aiohttp
import pytest

from scaler.policy.compile import load_policies
from scaler.policy.signals import Prometheus
from scaler.signals.engine_metrics import EngineMetricsSource, EngineScrapes
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import Part
from scaler.signals.prometheus import PrometheusServers, PrometheusSource
from scaler.signals.scrape_pace import ScrapePace
from tests.fakes.vllm_server import FakeVllm
from tests.integration.gateway import flow
from tests.integration.gateway.rig import port_of
from tests.integration.gateway.watched import POLICIES
from tests.integration.signals.rig import Heard, Word, key, prometheus, running

STREAMS = 5


def documented(folder: Path) -> Prometheus:
    """Return the signal of Prometheus that docs/gateway.md gives a policy without a gateway of ours."""
    (block,) = re.findall(r"```yaml\n(signals:\n.*?)```", flow.PAGE.read_text("utf-8"), re.DOTALL)
    file = folder / "policies.yaml"
    ours = block.replace("llama-8b", "tiny")  # as the recorded page calls its model
    before, _, _ = POLICIES.replace("MODEL", "chat").replace("{min: 0}", "{min: 1}").partition("  signals:")
    file.write_text(before + indent(ours, "  "), "utf-8")
    (policy,) = load_policies([file]).policies.values()
    (signal,) = [each for each in policy.spec.signals if isinstance(each, Prometheus)]
    return signal


def straight(*engines: FakeVllm) -> EngineMetricsSource:
    targets = tuple(EngineTarget(uid=each.url, url=each.url) for each in engines)
    scrapes = EngineScrapes(interval=0.25, timeout=0.25, objective=1.0)
    return EngineMetricsSource(key("engine"), scrapes, lambda _: targets, ScrapePace())


def asked(server: str, folder: Path) -> PrometheusSource:
    signal = documented(folder).model_copy(update={"server": server, "interval_seconds": 1})
    return PrometheusSource(key("prometheus"), signal, PrometheusServers())


async def all_say(heard: Heard, requests: float, *names: str) -> None:
    """Wait until each of these signals says that engines have so many requests."""
    for name in names:
        wanted = partial(_says, name, requests)
        await heard.until(wanted, f"{name}: {requests} requests", after=len(heard.words))


def _says(name: str, requests: float, word: Word) -> bool:
    return word.key.signal == name and word.parts is not None and word.parts.get(Part.REQUESTS) == requests


@asynccontextmanager
async def streams(url: str, count: int) -> AsyncIterator[None]:
    """Hold so many streams open, each of which has begun."""
    body = {"model": "chat", "prompt": "a", "max_tokens": 10_000, "stream": True}
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(count):
            response = await stack.enter_async_context(session.post(f"{url}/v1/completions", json=body))
            assert response.status == 200
            assert (await response.content.readany()).startswith(b"data: ")
        yield


fronts = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} isn't here"))
        for name in flow.FRONTS
    ],
)


@asynccontextmanager
async def passing(name: str) -> AsyncIterator[tuple[FakeVllm, FakeVllm, str]]:
    """Run a program in front of two engines, and yield these and where it is."""
    async with (
        FakeVllm(token_seconds=0.05) as first,
        FakeVllm(token_seconds=0.05) as second,
        flow.front(name, port_of(first.url), port_of(second.url)) as port,
    ):
        await flow.first_answer(port)
        yield first, second, f"http://127.0.0.1:{port}"


@fronts
async def test_what_passes_is_seen_by_the_engines_numbers(name: str) -> None:
    async with passing(name) as (first, second, url), running(straight(first, second)) as heard:
        async with streams(url, STREAMS):
            assert min(first.running, second.running) > 0, "it takes turns"
            await all_say(heard, STREAMS, "engine")
        await all_say(heard, 0, "engine")


@pytest.mark.long  # a Prometheus takes seconds to begin, and looks each second
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus isn't here")
@fronts
async def test_what_passes_is_seen_by_prometheus_too(name: str, tmp_path: Path) -> None:
    async with passing(name) as (first, second, url):
        targets = "','".join(each.url.removeprefix("http://") for each in (first, second))
        async with (
            prometheus(tmp_path, targets) as server,
            running(straight(first, second), asked(server.url, tmp_path)) as heard,
        ):
            async with streams(url, STREAMS):
                await all_say(heard, STREAMS, "engine", "prometheus")
            await all_say(heard, 0, "engine", "prometheus")
