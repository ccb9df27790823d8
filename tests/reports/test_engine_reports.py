"""Pausing and waking engines as others got it wrong: what was reported of engines, and what our adapters and agents do instead.

ENGINES.md beside this file lists the reports, also those that concern others.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.fakes.engine_subjects import Subject, on_fake
from tests.fakes.sglang_server import FakeSglang
from tests.fakes.vllm_server import FakeVllm
from tests.integration.agent.conftest import Agent, of, resident, running_agent
from warmpool.engines.capabilities import Capability, Ground
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.errors import EngineContradicted, EngineLost, EngineRejected, EngineTimeout

KEEP, RELEASE = KvWhenPaused.KEEP, KvWhenPaused.RELEASE
VLLM, SGLANG = "recorded vLLM", "SGLang by its source"


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds)


# -------------------------------------------------------------------- adapters


async def test_a_request_to_a_paused_engine_does_not_reach_it() -> None:
    """A request to a sleeping engine took the server down."""
    async with on_fake(VLLM) as subject:
        await subject.engine.close_guard(deadline=soon())
        await subject.engine.pause(RELEASE, deadline=soon())
        body = {"model": "chat", "prompt": "fox", "max_tokens": 1}
        url = f"{subject.public_url}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            assert response.status == 503
        assert not behind(subject).asked("POST /v1/completions")


async def test_pausing_while_tokens_are_generated_waits_for_them() -> None:
    """Putting an engine to sleep in the middle of decoding was an illegal memory access."""
    async with on_fake(VLLM) as subject, asyncio.TaskGroup() as tasks:
        request = tasks.create_task(subject.engine.complete("fox", tokens=60, deadline=soon()))
        await until(lambda: behind(subject).running == 1)
        await subject.engine.pause(RELEASE, deadline=soon())
        assert (len(await request), behind(subject).running) == (60, 0)


async def test_no_probe_copies_weights_into_host_memory() -> None:
    """After waking up the host memory that the weights had been copied to was not given back."""
    async with on_fake(VLLM) as subject:
        await subject.engine.probe(RELEASE, deadline=soon())
        await subject.engine.pause(RELEASE, deadline=soon())
        await subject.engine.resume(RELEASE, deadline=soon())
        assert not behind(subject).asked("POST /sleep")


async def test_parameters_go_where_the_engine_reads_them() -> None:
    """A level in a JSON body was ignored, and another level ran."""
    async with on_fake(VLLM) as subject:
        await subject.engine.probe(RELEASE, deadline=soon())
        await subject.engine.pause(RELEASE, deadline=soon())
        await subject.engine.park(deadline=soon())
        await subject.engine.unpark(deadline=soon())
        await subject.engine.resume(RELEASE, deadline=soon())
        sent = zip(behind(subject).calls, behind(subject).bodies, strict=True)
        told = ("POST /pause", "POST /wake_up", "POST /sleep")
        orders = [(call, body) for call, body in sent if call.startswith(told)]
        assert all("?" in call and not body for call, body in orders)
        assert {call.partition("?")[0] for call, _ in orders} == set(told)


async def test_beside_a_kv_connector_nothing_is_released_or_parked() -> None:
    """With a KV connector waking up was a 500, and the engine ended."""
    async with on_fake(VLLM, FakeVllm(kv_connector=True)) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        assert found.finding(Capability.KV_RELEASE).ground is Ground.UNCERTIFIED
        assert not behind(subject).asked("POST /release_kv_cache_memory")
        await subject.engine.pause(KEEP, deadline=soon())
        with pytest.raises(EngineRejected, match="KV connector"):
            await subject.engine.park(deadline=soon())
        assert not behind(subject).asked("POST /sleep")


async def test_an_engine_that_is_known_to_stay_in_memory_is_not_parked() -> None:
    """A sleep was answered with 200 and the memory still held, with an encoder on every device."""
    async with on_fake(VLLM, FakeVllm(encoder_mode="data")) as subject:
        await subject.engine.pause(KEEP, deadline=soon())
        with pytest.raises(EngineRejected, match="mm-encoder-tp-mode"):
            await subject.engine.park(deadline=soon())
        assert not behind(subject).asked("POST /sleep")


async def test_a_request_to_a_parked_engine_does_not_reach_it() -> None:
    """A request to a sleeping engine took the server down."""
    async with on_fake(VLLM) as subject:
        await subject.engine.close_guard(deadline=soon())
        await subject.engine.pause(RELEASE, deadline=soon())
        await subject.engine.park(deadline=soon())
        body = {"model": "chat", "prompt": "fox", "max_tokens": 1}
        url = f"{subject.public_url}/v1/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            assert response.status == 503
        with pytest.raises(EngineRejected, match="unpark first"):
            await subject.engine.complete("fox", tokens=1, deadline=soon())
        assert not behind(subject).asked("POST /v1/completions")


async def test_parking_waits_for_tokens_that_are_generated() -> None:
    """A sleep in the middle of decoding was an illegal memory access; its own default ends what runs."""
    async with on_fake(VLLM) as subject, asyncio.TaskGroup() as tasks:
        request = tasks.create_task(subject.engine.complete("fox", tokens=60, deadline=soon()))
        await until(lambda: behind(subject).running == 1)
        await subject.engine.pause(KEEP, deadline=soon())
        await subject.engine.park(deadline=soon())
        assert len(await request) == 60
        assert behind(subject).asked("POST /sleep") == ["POST /sleep?level=1&mode=wait"]


async def test_weights_are_kept_and_woken_in_named_steps() -> None:
    """Waking a level that had thrown weights away brought garbage; with some tags a crash, and a second time as well."""
    async with on_fake(VLLM) as subject:
        await subject.engine.pause(KEEP, deadline=soon())
        for _ in range(2):
            await subject.engine.park(deadline=soon())
        for _ in range(2):
            await subject.engine.unpark(deadline=soon())
        for _ in range(2):
            await subject.engine.resume(KEEP, deadline=soon())
        assert behind(subject).asked("POST /sleep") == ["POST /sleep?level=1&mode=wait"]
        assert behind(subject).asked("POST /wake_up") == [
            "POST /wake_up?tags=weights",
            "POST /wake_up?tags=kv_cache",
        ]


async def test_parking_with_the_kv_memory_away_really_moves_the_weights() -> None:
    """From vLLM's source: a sleep while anything is away is answered with 200, told in the metrics, and moves nothing."""
    async with on_fake(VLLM) as subject:
        await subject.engine.pause(RELEASE, deadline=soon())
        assert behind(subject).asleep == {"kv_cache"}
        await subject.engine.park(deadline=soon())
        assert behind(subject).asleep == {"kv_cache", "weights"}


async def test_an_engine_that_starts_computing_when_half_of_it_is_awake_is_contradicted() -> None:
    """From vLLM's source: before 0.32 waking the weights alone started the scheduler, without KV memory."""
    async with on_fake(VLLM, FakeVllm(resumes_in_part=True)) as subject:
        await subject.engine.pause(KEEP, deadline=soon())
        await subject.engine.park(deadline=soon())
        with pytest.raises(EngineContradicted, match="is_paused: false"):
            await subject.engine.unpark(deadline=soon())


@pytest.mark.parametrize("away", ["weights", "kv_cache"])
async def test_a_vllm_that_tells_more_is_asked_for_it(away: str) -> None:
    """From vLLM's tests: versions after 0.32 tell of weights and KV memory each by itself."""

    class Forgetful(FakeVllm):
        async def sleep(self, request: web.Request) -> web.Response:
            answer = await super().sleep(request)
            self.asleep.discard(away)
            return answer

        async def release(self, request: web.Request) -> web.Response:
            answer = await super().release(request)
            self.asleep.discard(away)
            return answer

    async with on_fake(VLLM, Forgetful(tells_components=True)) as subject:
        if away == "kv_cache":
            with pytest.raises(EngineContradicted, match="its KV memory is still there"):
                await subject.engine.pause(RELEASE, deadline=soon())
        else:
            await subject.engine.pause(KEEP, deadline=soon())
            with pytest.raises(EngineContradicted, match="still in the device's memory"):
                await subject.engine.park(deadline=soon())


async def test_health_tells_nothing_of_a_pause() -> None:
    """`/health` was 200 while the engine could not compute."""
    async with on_fake(VLLM) as subject:
        await subject.engine.pause(KEEP, deadline=soon())
        assert (await subject.engine.startup(deadline=soon())).ready
        assert await subject.engine.is_paused(deadline=soon())


async def test_waking_up_twice_wakes_once_and_names_what_was_away() -> None:
    """Waking without tags brought garbage, with some of them a crash, and a second time as well."""
    async with on_fake(VLLM) as subject:
        await subject.engine.pause(RELEASE, deadline=soon())
        for _ in range(2):
            await subject.engine.resume(RELEASE, deadline=soon())
        assert behind(subject).asked("POST /wake_up") == ["POST /wake_up?tags=kv_cache"]


async def test_an_engine_that_answers_differently_after_a_release_is_refused_it() -> None:
    """An engine was healthy by its own word, and its text corrupted after waking up."""

    class Corrupted(FakeVllm):
        async def wake_up(self, request: web.Request) -> web.Response:
            self.wrong_tokens = True
            return await super().wake_up(request)

    async with on_fake(VLLM, Corrupted()) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        assert found.finding(Capability.KV_RELEASE).ground is Ground.CONTRADICTED


async def test_a_sleep_that_was_asked_for_kv_memory_and_took_the_weights_is_found_out() -> None:
    """A parameter that an older version didn't know was ignored, and the weights left the device."""
    async with on_fake(VLLM, FakeVllm(has_release=False, knows_tags="listed")) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        assert found.finding(Capability.KV_RELEASE).ground is Ground.PARAMETER_IGNORED
        assert not behind(subject).asleep


@pytest.mark.wall_clock
async def test_an_engine_that_has_vanished_is_lost_at_once() -> None:
    """A controller stayed bound for good to an instance that was gone."""
    async with on_fake(VLLM) as subject:
        behind(subject).dead = True
        began = time.monotonic()
        with pytest.raises(EngineLost):
            await subject.engine.is_paused(deadline=soon(30))
        assert time.monotonic() - began < 2


async def test_an_engine_without_its_development_routes_says_so_before_it_is_counted() -> None:
    """A router's look at the sleep state worked with development mode only, and otherwise told nothing."""
    async with on_fake(VLLM, FakeVllm(dev_mode=False)) as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert found.finding(Capability.SCHEDULER_PAUSE).ground is Ground.ROUTE_MISSING


async def test_memory_is_released_only_once_nothing_is_inside() -> None:
    """Releasing returned while requests were inside, and memory was taken again on top of them."""
    async with on_fake(SGLANG) as subject, asyncio.TaskGroup() as tasks:
        request = tasks.create_task(subject.engine.complete("fox", tokens=60, deadline=soon()))
        await until(lambda: subject.fake is not None and subject.fake.running == 1)
        await subject.engine.pause(RELEASE, deadline=soon())
        assert len(await request) == 60
        assert isinstance(subject.fake, FakeSglang)
        assert not subject.fake.dead


async def test_a_call_that_is_given_up_does_not_stay_in_the_engine() -> None:
    """Clients tried again and again, and each attempt stayed inside until memory ran out."""
    async with on_fake(SGLANG) as subject:
        assert subject.fake is not None
        await subject.engine.pause(KEEP, deadline=soon())
        for _ in range(3):
            with pytest.raises(EngineTimeout):
                await subject.engine.complete("fox", tokens=1, deadline=soon(0.05))
        await until(lambda: subject.fake is not None and subject.fake.held == 0)
        await subject.engine.resume(KEEP, deadline=soon())


async def test_beside_speculative_decoding_no_memory_is_released() -> None:
    """Pausing the KV memory freed the draft model's weights as well."""
    async with on_fake(SGLANG, FakeSglang(speculative="EAGLE3")) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        assert found.finding(Capability.KV_RELEASE).ground is Ground.UNCERTIFIED
        assert found.finding(Capability.WEIGHTS_PARKING).ground is Ground.UNCERTIFIED


async def test_weights_without_a_copy_are_not_released() -> None:
    """From SGLang's source: weights that are released without --enable-weights-cpu-backup don't come back."""
    async with on_fake(SGLANG, FakeSglang(backup=False)) as subject:
        await subject.engine.pause(KEEP, deadline=soon())
        with pytest.raises(EngineRejected, match="enable-weights-cpu-backup"):
            await subject.engine.park(deadline=soon())
        assert subject.fake is not None
        assert not subject.fake.asked("POST /release_memory_occupation")


async def test_a_release_that_failed_is_undone_by_taking_the_memory_again() -> None:
    """Seen on a real vLLM 0.32: a release that failed leaves it half asleep, and `/resume` alone doesn't wake it."""
    async with on_fake(VLLM, FakeVllm(device=False)) as subject:
        with pytest.raises(EngineRejected):
            await subject.engine.pause(RELEASE, deadline=soon())
        assert behind(subject).asleep
        await subject.engine.resume(RELEASE, deadline=soon())
        assert not behind(subject).asleep


async def test_resuming_an_engine_that_somebody_put_to_sleep_is_no_success() -> None:
    """Seen on a real vLLM 0.32: `/resume` is answered with 200 while the weights are in host memory."""
    async with on_fake(VLLM) as subject:
        behind(subject).asleep |= {"weights", "kv_cache"}
        with pytest.raises(EngineContradicted):
            await subject.engine.resume(KEEP, deadline=soon())


# -------------------------------------------------------------------- with the agent


async def test_a_release_that_frees_nothing_fails_the_engine(tmp_path: Path) -> None:
    """A sleep was answered with 200, and the memory was still held."""
    liar = resident("a", script={"kvBytes": 1 << 30})
    async with running_agent(tmp_path, [liar, resident("b")], wait=False) as agent:
        told = await agent.controller.until(lambda state: of(state, "a")["state"] == "Failed")
        assert "answered that 1024 MiB of KV memory were released" in of(told, "a")["failure"]


async def test_a_wake_up_that_failed_is_not_tried_again_in_place(tmp_path: Path) -> None:
    """Memory ran out half-way through waking up, and what had been mapped leaked with each attempt."""
    async with running_agent(tmp_path, [resident("a"), resident("b", seed=2)]) as agent:
        before = of(await agent.api.get("/v1/state"), "a")["pid"]
        await script(agent, "a", "POST /wake_up", "refuse")
        assert (await agent.api.order("resume", "a")).code == "EngineFailed"
        told = await agent.controller.until(lambda state: of(state, "a")["restarts"] == 1)
        assert of(told, "a")["pid"] != before


async def test_an_engine_that_is_healthy_and_answers_nothing_is_not_promoted(tmp_path: Path) -> None:
    """An engine was healthy by its own word after a fault of the device, and got requests."""
    async with running_agent(tmp_path, [resident("a")]) as agent:
        await script(agent, "a", "POST /v1/completions", "hang")
        promoted = await agent.api.order("resume", "a", seconds=1.0)
        assert promoted.status != 200
        assert of(await agent.api.get("/v1/state"), "a")["state"] != "Serving"


async def test_an_engine_that_answers_other_tokens_never_serves(tmp_path: Path) -> None:
    """Text was corrupted after waking up, and nobody looked at it."""
    async with running_agent(tmp_path, [resident("a")]) as agent:
        await agent.api.script("a", wrongTokens=True)
        promoted = await agent.api.order("resume", "a")
        assert promoted.code == "EngineFailed"
        assert "was recorded" in promoted.message


async def test_nobody_wakes_up_while_a_neighbour_has_the_seat(tmp_path: Path) -> None:
    """An engine was woken while another one still owned the memory, and replacements crashed in a row."""
    async with running_agent(tmp_path, [resident("a"), resident("b", seed=2)]) as agent:
        await agent.api.order("resume", "a")
        await agent.api.script("b", forget=True)
        assert (await agent.api.order("resume", "b")).code == "Busy"
        assert (await agent.api.engine_log("b"))["calls"] == []


async def script(agent: Agent, policy: str, route: str, do: str) -> None:
    await agent.api.script(policy, faults={route: {"do": do}})


def behind(subject: Subject) -> FakeVllm:
    assert isinstance(subject.fake, FakeVllm)
    return subject.fake


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
