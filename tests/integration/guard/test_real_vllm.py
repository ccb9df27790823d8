"""The middleware inside the real vLLM that VLLM_BIN names, its one file copied beside it: every route that it has, and every end."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import pytest

from tests.fakes.engine_subjects import MODEL, VLLM_ENVIRONMENT, VLLM_SECONDS, Process, serve, vllm_command
from tests.integration.guard.conftest import TOKEN, error_of
from warmpool import guard_middleware
from warmpool.engines.deadline import Deadline
from warmpool.engines.kinds import EngineKind
from warmpool.engines.port import KvWhenPaused
from warmpool.engines.vllm import VllmEngine
from warmpool.errors import EngineError, EngineTimeout
from warmpool.guard_middleware import HEALTH, METRICS, Routes

pytestmark = pytest.mark.timeout(600)
LONG = {"model": MODEL, "prompt": "fox", "max_tokens": 400, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 3}
COMPLETIONS = "/v1/completions"


def soon(seconds: float = 60.0) -> Deadline:
    return Deadline.after(seconds)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("vllm")
    command = ["{port}" if word == "{controlPort}" else word for word in vllm_command(directory)]
    command = ["env", "EMBERPOOL_GUARD_CONTROL=127.0.0.1:{controlPort}", *command]
    command += ["--middleware", "guard_middleware.Guard"]
    shutil.copy(guard_middleware.__file__, directory)
    environment = VLLM_ENVIRONMENT | {"PYTHONPATH": str(directory), "EMBERPOOL_GUARD_TOKEN": TOKEN}
    with serve(EngineKind.VLLM, command, directory / "log", environment) as process:
        yield process


@dataclass
class Inside:
    """A vLLM with the middleware inside."""

    engine: VllmEngine
    public: str
    control: str
    session: aiohttp.ClientSession

    async def in_flight(self) -> int:
        return (await self.engine.guard(deadline=soon())).in_flight


@pytest.fixture
async def vllm(process: Process) -> AsyncIterator[Inside]:
    control = process.ports.control_url.replace("://", f"://agent:{TOKEN}@")
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        VllmEngine(control, model=MODEL) as engine,
        aiohttp.ClientSession(timeout=timeout) as session,
        asyncio.timeout(VLLM_SECONDS + 120),
    ):
        while process.process.poll() is None:
            with suppress(EngineError):
                if (await engine.startup(deadline=soon())).ready:
                    break
            await asyncio.sleep(0.2)
        assert process.process.poll() is None, process.log.read_text()[-3000:]
        await engine.close_guard(deadline=soon())
        yield Inside(engine, process.ports.public_url, control, session)
        await engine.resume(KvWhenPaused.KEEP, deadline=soon())
        await engine.abort(deadline=soon())
        while (await engine.guard(deadline=soon())).in_flight:
            await asyncio.sleep(0.01)


async def test_none_of_its_other_routes_is_there(vllm: Inside) -> None:
    async with vllm.session.get(f"{vllm.control}/openapi.json") as answer:
        paths = (await answer.json())["paths"]
    routes = Routes()
    await vllm.engine.open_guard(deadline=soon())
    hidden = {
        path
        for path in paths
        if not routes.guarded(path) and path not in {HEALTH, METRICS} and "{" not in path
    }
    assert {"/pause", "/resume", "/collective_rpc"} <= hidden
    for path in sorted(hidden):
        for method in paths[path]:
            async with vllm.session.request(method, f"{vllm.public}{path}") as answer:
                assert answer.status == 404, (method, path)
    assert not await vllm.engine.is_paused(deadline=soon())


async def test_while_closed_clients_are_refused_and_the_agent_is_answered(vllm: Inside) -> None:
    async with vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=SHORT) as answer:
        assert (answer.status, answer.headers["Retry-After"], answer.headers["Connection"]) == (
            503,
            "1",
            "close",
        )
        assert error_of(await answer.read())["code"] == "ResidentNotServing"
    assert len(await vllm.engine.complete("fox", tokens=3, deadline=soon())) == 3
    async with vllm.session.get(f"{vllm.public}{METRICS}") as answer:
        assert "vllm:num_requests_running" in await answer.text()


async def test_while_open_answers_and_streams_pass(vllm: Inside) -> None:
    await vllm.engine.open_guard(deadline=soon())
    async with vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=SHORT) as answer:
        assert (answer.status, len((await answer.json())["choices"])) == (200, 1)
    async with vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=SHORT | {"stream": True}) as answer:
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    assert await vllm.in_flight() == 0


async def test_a_drain_waits_for_what_is_inside(vllm: Inside) -> None:
    await vllm.engine.open_guard(deadline=soon())
    async with vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=LONG | {"stream": True}) as answer:
        await answer.content.readuntil(b"\n\n")
        assert (await vllm.engine.close_guard(deadline=soon())).in_flight == 1
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    assert await vllm.in_flight() == 0
    await vllm.engine.pause(KvWhenPaused.KEEP, deadline=soon())
    with pytest.raises(EngineTimeout):
        await vllm.engine.complete("fox", tokens=1, deadline=soon(1.0))


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_in_flight_means_that_nothing_computes(vllm: Inside, *, stream: bool) -> None:
    await vllm.engine.open_guard(deadline=soon())

    async def ask() -> tuple[int, str]:
        body = LONG | {"stream": stream}
        async with vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=body) as answer:
            return answer.status, await answer.text()

    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask())
        while (await vllm.engine.load(deadline=soon())).running == 0:
            await asyncio.sleep(0.005)
        await vllm.engine.close_guard(deadline=soon())
        await vllm.engine.abort(deadline=soon())
        async with asyncio.timeout(5):
            while await vllm.in_flight():
                await asyncio.sleep(0.005)
        status, text = await asking
    assert status == (200 if stream else 503)
    assert error_of(text.rstrip().rpartition("data: ")[2])["code"] == "ResidentNotServing"
    assert "[DONE]" not in text
    async with asyncio.timeout(1):  # its metrics lag by a step
        while (await vllm.engine.load(deadline=soon())).running:
            await asyncio.sleep(0.005)


async def test_a_client_that_hangs_up_is_counted_no_longer(vllm: Inside) -> None:
    await vllm.engine.open_guard(deadline=soon())
    async with vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=LONG | {"stream": True}) as answer:
        await answer.content.readuntil(b"\n\n")
        assert await vllm.in_flight() == 1
        answer.close()
    async with asyncio.timeout(5):
        while await vllm.in_flight():
            await asyncio.sleep(0.005)


async def test_a_held_request_of_a_paused_engine_is_sent_elsewhere(vllm: Inside) -> None:
    await vllm.engine.open_guard(deadline=soon())
    await vllm.engine.pause(KvWhenPaused.KEEP, deadline=soon())
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(vllm.session.post(f"{vllm.public}{COMPLETIONS}", json=SHORT))  # type: ignore[arg-type]
        while await vllm.in_flight() == 0:
            await asyncio.sleep(0.005)
        await vllm.engine.close_guard(deadline=soon())
        await vllm.engine.abort(deadline=soon())
        answer = await asking
        assert (answer.status, json.loads(await answer.read())["error"]["code"]) == (
            503,
            "ResidentNotServing",
        )
    assert await vllm.in_flight() == 0
