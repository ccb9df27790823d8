"""Probing a running engine: what it can be told is found out by doing, what would be silently wrong is refused, all of it is undone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.engine_server import FakeEngine, Fault
from tests.fakes.engine_subjects import Subject, on_fake
from tests.fakes.sglang_server import FakeSglang
from tests.fakes.vllm_server import FakeVllm
from warmpool.engines.capabilities import Capability, Ground, Verdict
from warmpool.engines.deadline import Deadline
from warmpool.engines.port import KvWhenPaused
from warmpool.errors import EngineContradicted, EngineError, EngineTimeout, EngineUnfit

KEEP, RELEASE = KvWhenPaused.KEEP, KvWhenPaused.RELEASE
C, G = Capability, Ground
PROMPT = "fox"


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds)


class GarblesAfterRelease(FakeVllm):
    """Answers with other tokens once its KV memory has been away."""

    async def wake_up(self, request: web.Request) -> web.Response:
        self.wrong_tokens = "kv_cache" in self.asleep or self.wrong_tokens
        return await super().wake_up(request)


class ComputesWhilePaused(FakeVllm):
    """Says that it is paused, and goes on computing."""

    async def pause(self, request: web.Request) -> web.Response:
        answer = await super().pause(request)
        self.claims, self.paused = True, False
        await self.note()
        return answer

    async def is_paused(self, _request: web.Request) -> web.Response:
        return web.json_response({"is_paused": getattr(self, "claims", False)})

    async def resume(self, request: web.Request) -> web.Response:
        self.claims = False
        return await super().resume(request)


class RefusesWhilePaused(FakeVllm):
    """Answers 503 instead of holding requests."""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        if self.paused:
            return web.json_response({"error": {"message": "paused"}}, status=503)
        return await super().completions(request)


# -------------------------------------------------------------------- vLLM

VLLM: list[Any] = [
    pytest.param(
        FakeVllm,
        {},
        {
            C.TOKEN_IDS: G.TRIED,
            C.SCHEDULER_PAUSE: G.TRIED,
            C.DRAIN_WAIT: G.TRIED,
            C.DRAIN_ABORT: G.TRIED,
            C.KV_RELEASE: G.TRIED,
            C.WEIGHTS_PARKING: G.DECLARED,
        },
        id="all of it",
    ),
    pytest.param(
        FakeVllm,
        {"dev_mode": False},
        {
            C.TOKEN_IDS: G.TRIED,
            C.SCHEDULER_PAUSE: G.ROUTE_MISSING,
            C.DRAIN_WAIT: G.NEEDS_PAUSE,
            C.DRAIN_ABORT: G.NEEDS_PAUSE,
            C.KV_RELEASE: G.NEEDS_PAUSE,
            C.WEIGHTS_PARKING: G.ROUTE_MISSING,
        },
        id="development mode off",
    ),
    pytest.param(
        FakeVllm,
        {"obeys_mode": False},
        {C.DRAIN_WAIT: G.PARAMETER_IGNORED, C.DRAIN_ABORT: G.TRIED, C.SCHEDULER_PAUSE: G.TRIED},
        id="mode ignored, abort always",
    ),
    pytest.param(FakeVllm, {"device": False}, {C.KV_RELEASE: G.ROUTE_FAILS}, id="release answers 500"),
    pytest.param(
        FakeVllm,
        {"pool": False},
        {C.KV_RELEASE: G.SWITCHED_OFF, C.WEIGHTS_PARKING: G.SWITCHED_OFF},
        id="no pool",
    ),
    pytest.param(
        FakeVllm,
        {"kv_connector": True},
        {C.KV_RELEASE: G.UNCERTIFIED, C.WEIGHTS_PARKING: G.UNCERTIFIED},
        id="KV connector",
    ),
    pytest.param(
        FakeVllm,
        {"encoder_mode": "data"},
        {C.KV_RELEASE: G.TRIED, C.WEIGHTS_PARKING: G.UNCERTIFIED},
        id="an encoder on every device",
    ),
    pytest.param(FakeVllm, {"encoder_mode": "weights"}, {C.WEIGHTS_PARKING: G.DECLARED}, id="an encoder"),
    pytest.param(FakeVllm, {"has_release": False}, {C.KV_RELEASE: G.ROUTE_MISSING}, id="no release route"),
    pytest.param(
        FakeVllm,
        {"has_release": False, "knows_tags": "listed"},
        {C.KV_RELEASE: G.PARAMETER_IGNORED},
        id="sleep lists tags and runs level 1",
    ),
    pytest.param(
        FakeVllm,
        {"has_release": False, "knows_tags": "obeyed"},
        {C.KV_RELEASE: G.TRIED},
        id="sleep obeys tags",
    ),
    pytest.param(
        FakeVllm,
        {"tells_config": False, "lists_routes": False},
        {C.KV_RELEASE: G.TRIED, C.WEIGHTS_PARKING: G.NOT_TRIED},
        id="tells nothing of itself",
    ),
    pytest.param(FakeVllm, {"tells_ids": False}, {C.TOKEN_IDS: G.PARAMETER_IGNORED}, id="no token ids"),
    pytest.param(GarblesAfterRelease, {}, {C.KV_RELEASE: G.CONTRADICTED}, id="other tokens after a release"),
    pytest.param(
        ComputesWhilePaused,
        {},
        {C.SCHEDULER_PAUSE: G.CONTRADICTED, C.KV_RELEASE: G.NEEDS_PAUSE},
        id="computes while paused",
    ),
    pytest.param(RefusesWhilePaused, {}, {C.SCHEDULER_PAUSE: G.TRIED}, id="refuses while paused"),
    pytest.param(
        FakeVllm,
        {"faults": {"POST /pause": Fault("lie")}},
        {C.SCHEDULER_PAUSE: G.CONTRADICTED, C.KV_RELEASE: G.NEEDS_PAUSE},
        id="pause does nothing",
    ),
    pytest.param(
        FakeVllm,
        {"faults": {"POST /pause": Fault("refuse")}},
        {C.SCHEDULER_PAUSE: G.ROUTE_FAILS, C.DRAIN_WAIT: G.ROUTE_FAILS},
        id="pause answers 500",
    ),
    pytest.param(
        FakeVllm,
        {"faults": {"POST /release_kv_cache_memory": Fault("lie")}},
        {C.KV_RELEASE: G.TRIED},  # no route of vLLM tells; the agent measures the device's memory
        id="release does nothing and nothing tells",
    ),
]


@pytest.mark.parametrize(("kind", "settings", "expected"), VLLM)
async def test_vllm_gets_what_it_was_seen_to_do(
    kind: Callable[..., FakeVllm], settings: dict[str, Any], expected: dict[Capability, Ground]
) -> None:
    settings = {
        **settings,
        "faults": {route: Fault(each.do) for route, each in settings.get("faults", {}).items()},
    }
    async with on_fake("recorded vLLM", kind(**settings)) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        grounds = {capability: found.finding(capability).ground for capability in expected}
        assert grounds == expected, {each: found.finding(each).reason for each in expected}
        await assert_undone(subject)


async def assert_undone(subject: Subject) -> None:
    fake = subject.fake
    assert isinstance(fake, FakeVllm)
    fake.faults.clear()
    assert (fake.paused, fake.running, fake.held) == (False, 0, 0)
    if fake.device:
        assert not fake.asleep


@pytest.mark.wall_clock
async def test_a_request_that_was_quicker_than_the_pause_proves_nothing() -> None:
    """A short request finished before a real vLLM had acted, and that looked as if its mode had no effect."""
    quick = FakeVllm(token_seconds=0.0005, faults={"POST /pause": Fault("slow", seconds=0.05)})
    async with on_fake("recorded vLLM", quick) as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert found.finding(C.DRAIN_ABORT).ground is G.TRIED
    ignoring = FakeVllm(
        token_seconds=0.0005, obeys_mode=False, faults={"POST /pause": Fault("slow", seconds=0.05)}
    )
    async with on_fake("recorded vLLM", ignoring) as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert found.finding(C.DRAIN_WAIT).ground is G.PARAMETER_IGNORED


@pytest.mark.wall_clock
async def test_an_engine_whose_requests_are_all_too_quick_is_called_untried() -> None:
    async with on_fake("recorded vLLM", FakeVllm(token_seconds=0)) as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert found.finding(C.DRAIN_WAIT).ground is G.NOT_TRIED
        assert found.has(C.SCHEDULER_PAUSE)


async def test_what_is_refused_says_which_switch_is_off() -> None:
    async with on_fake("recorded vLLM", FakeVllm(dev_mode=False)) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        assert "VLLM_SERVER_DEV_MODE=1" in found.finding(C.SCHEDULER_PAUSE).reason
        assert "404" in found.finding(C.SCHEDULER_PAUSE).reason


@pytest.mark.parametrize(
    ("settings", "never"),
    [
        ({}, "POST /sleep"),
        ({"has_release": False}, "POST /sleep"),
        ({"pool": False}, "POST /release_kv_cache_memory"),
        ({"kv_connector": True}, "POST /release_kv_cache_memory"),
    ],
)
async def test_what_would_be_silently_wrong_is_not_even_tried(settings: dict[str, Any], never: str) -> None:
    async with on_fake("recorded vLLM", FakeVllm(**settings)) as subject:
        await subject.engine.probe(RELEASE, deadline=soon())
        assert subject.fake is not None
        assert not subject.fake.asked(never)


async def test_a_seat_that_keeps_kv_memory_has_no_release_tried() -> None:
    async with on_fake("recorded vLLM") as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert found.finding(C.KV_RELEASE).ground is G.NOT_TRIED
        assert subject.fake is not None
        assert not subject.fake.asked("POST /release_kv_cache_memory")


async def test_a_mode_is_always_sent_in_the_query() -> None:
    async with on_fake("recorded vLLM") as subject:
        await subject.engine.probe(RELEASE, deadline=soon())
        await subject.engine.pause(KEEP, deadline=soon())
        assert subject.fake is not None
        assert all("mode=" in call for call in subject.fake.asked("POST /pause"))


async def test_an_engine_that_ignores_the_mode_is_waited_for_before_it_is_paused() -> None:
    async with on_fake("recorded vLLM", FakeVllm(obeys_mode=False)) as subject:
        await subject.engine.probe(KEEP, deadline=soon())
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(subject.engine.complete(PROMPT, tokens=40, deadline=soon()))
            await until(lambda: subject.fake is not None and subject.fake.running == 1)
            await subject.engine.pause(KEEP, deadline=soon())
        assert len(request.result()) == 40


async def test_kv_memory_is_released_by_the_route_that_was_seen_to_work() -> None:
    async with on_fake("recorded vLLM", FakeVllm(has_release=False, knows_tags="obeyed")) as subject:
        await subject.engine.probe(RELEASE, deadline=soon())
        await subject.engine.pause(RELEASE, deadline=soon())
        assert isinstance(subject.fake, FakeVllm)
        assert subject.fake.asleep == {"kv_cache"}
        await subject.engine.resume(RELEASE, deadline=soon())
        assert not subject.fake.asleep


async def test_a_release_that_moves_the_weights_out_is_contradicted() -> None:
    class MovesWeights(FakeVllm):
        async def release(self, _request: web.Request) -> web.Response:
            self.asleep |= {"weights", "kv_cache"}
            return web.json_response({"status": "kv_cache_released"})

    async with on_fake("recorded vLLM", MovesWeights()) as subject:
        with pytest.raises(EngineContradicted, match="weights have left the device"):
            await subject.engine.pause(RELEASE, deadline=soon())


async def test_an_engine_that_stays_asleep_after_resuming_is_contradicted() -> None:
    async with on_fake("recorded vLLM") as subject:
        assert isinstance(subject.fake, FakeVllm)
        subject.fake.asleep.add("weights")  # somebody else's /sleep
        with pytest.raises(EngineContradicted, match="still away"):
            await subject.engine.resume(KEEP, deadline=soon())


async def test_a_pause_during_which_something_still_runs_is_contradicted() -> None:
    async with on_fake("recorded vLLM", FakeVllm(token_seconds=0.05)) as subject:
        assert subject.fake is not None
        subject.fake.faults["POST /pause"] = Fault("lie")
        subject.fake.faults["GET /is_paused"] = Fault("lie", body='{"is_paused": true}')
        async with asyncio.TaskGroup() as tasks:
            request = tasks.create_task(subject.engine.complete(PROMPT, tokens=60, deadline=soon()))
            await until(lambda: subject.fake is not None and subject.fake.running == 1)
            with pytest.raises(EngineContradicted, match="still running"):
                await subject.engine.pause(KEEP, deadline=soon())
            request.cancel()


async def test_released_kv_memory_stays_unverified_on_vllm() -> None:
    async with on_fake("recorded vLLM") as subject:
        found = await subject.engine.pause(RELEASE, deadline=soon())
        assert found.verdict is Verdict.UNVERIFIED
        assert "measurement" in found.evidence[-1]


async def test_an_engine_that_cannot_be_brought_back_fails_its_probe_in_time() -> None:
    async with on_fake("recorded vLLM") as subject:
        assert subject.fake is not None
        subject.fake.faults["POST /resume"] = Fault("hang")
        with pytest.raises(EngineTimeout):
            await asyncio.wait_for(subject.engine.probe(KEEP, deadline=soon(1.0)), 20)


async def test_a_route_that_hangs_is_refused_and_the_rest_still_found_out() -> None:
    async with on_fake("recorded vLLM") as subject:
        assert subject.fake is not None
        subject.fake.faults["POST /release_kv_cache_memory"] = Fault("hang", times=1)
        found = await subject.engine.probe(RELEASE, deadline=soon(6.0))
        assert found.finding(C.KV_RELEASE).ground is G.ROUTE_FAILS
        assert found.has(C.SCHEDULER_PAUSE)
        await assert_undone(subject)


# -------------------------------------------------------------------- SGLang

SGLANG: list[Any] = [
    pytest.param(
        {},
        {
            C.TOKEN_IDS: G.TRIED,
            C.SCHEDULER_PAUSE: G.TRIED,
            C.DRAIN_WAIT: G.NOT_OF_KIND,
            C.DRAIN_ABORT: G.DECLARED,
            C.KV_RELEASE: G.DECLARED,
            C.WEIGHTS_PARKING: G.DECLARED,
        },
        id="memory saver",
    ),
    pytest.param(
        {"backup": False},
        {C.KV_RELEASE: G.DECLARED, C.WEIGHTS_PARKING: G.SWITCHED_OFF},
        id="no copy of the weights",
    ),
    pytest.param(
        {"saver": False},
        {C.KV_RELEASE: G.SWITCHED_OFF, C.WEIGHTS_PARKING: G.SWITCHED_OFF},
        id="no memory saver",
    ),
    pytest.param(
        {"speculative": "EAGLE"},
        {C.KV_RELEASE: G.UNCERTIFIED, C.WEIGHTS_PARKING: G.UNCERTIFIED},
        id="speculative decoding",
    ),
    pytest.param(
        {"tells_config": False},
        {C.KV_RELEASE: G.NOT_TRIED, C.WEIGHTS_PARKING: G.NOT_TRIED},
        id="tells nothing",
    ),
    pytest.param(
        {"has_ready": False, "has_loads": False, "has_metrics": True},
        {C.SCHEDULER_PAUSE: G.TRIED},
        id="an older version with metrics",
    ),
    pytest.param({"has_loads": False}, {C.SCHEDULER_PAUSE: G.ROUTE_MISSING}, id="nothing tells what runs"),
    pytest.param(
        {"faults": {"POST /pause_generation": Fault("lie")}},
        {C.SCHEDULER_PAUSE: G.CONTRADICTED},
        id="pause does nothing",
    ),
]


@pytest.mark.parametrize(("settings", "expected"), SGLANG)
async def test_sglang_gets_what_it_was_seen_to_do_or_says_of_itself(
    settings: dict[str, Any], expected: dict[Capability, Ground]
) -> None:
    async with on_fake("SGLang by its source", FakeSglang(**settings)) as subject:
        found = await subject.engine.probe(RELEASE, deadline=soon())
        grounds = {capability: found.finding(capability).ground for capability in expected}
        assert grounds == expected, {each: found.finding(each).reason for each in expected}
        assert isinstance(subject.fake, FakeSglang)
        assert (subject.fake.dead, subject.fake.paused, subject.fake.stopped) == (False, False, False)
        assert not subject.fake.asked("POST /release_memory_occupation")


@pytest.fixture
async def sglang() -> Any:
    async with on_fake("SGLang by its source") as subject:
        yield subject


def behind(subject: Subject) -> FakeSglang:
    assert isinstance(subject.fake, FakeSglang)
    return subject.fake


async def test_sglang_is_never_told_to_end_what_runs(sglang: Subject) -> None:
    for kv in KvWhenPaused:
        await sglang.engine.pause(kv, deadline=soon())
        await sglang.engine.resume(kv, deadline=soon())
    sent = zip(behind(sglang).calls, behind(sglang).bodies, strict=True)
    assert {body for call, body in sent if call == "POST /pause_generation"} == {'{"mode": "in_place"}'}


async def test_sglang_releases_kv_memory_alone_and_only_once_nothing_runs(sglang: Subject) -> None:
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(sglang.engine.complete(PROMPT, tokens=40, deadline=soon()))
        await until(lambda: behind(sglang).running == 1)
        await sglang.engine.pause(RELEASE, deadline=soon())
        assert len(request.result()) == 40
    assert (behind(sglang).freed, behind(sglang).dead) == ({"kv_cache"}, False)


async def test_sglang_takes_kv_memory_only_if_it_is_away(sglang: Subject) -> None:
    await sglang.engine.resume(RELEASE, deadline=soon())
    await sglang.engine.pause(RELEASE, deadline=soon())
    for _ in range(2):
        await sglang.engine.resume(RELEASE, deadline=soon())
    assert len(behind(sglang).asked("POST /resume_memory_occupation")) == 1
    assert not behind(sglang).dead


async def test_sglang_with_kv_memory_of_unknown_state_is_unfit_and_not_asked_again(sglang: Subject) -> None:
    await sglang.engine.pause(RELEASE, deadline=soon())
    behind(sglang).faults["POST /resume_memory_occupation"] = Fault("hang", times=1)
    with pytest.raises(EngineTimeout):
        await sglang.engine.resume(RELEASE, deadline=soon(0.2))
    for call in (sglang.engine.resume, sglang.engine.pause):
        with pytest.raises(EngineUnfit, match="isn't known"):
            await call(RELEASE, deadline=soon())
    assert len(behind(sglang).asked("POST /resume_memory_occupation")) == 1


async def test_sglang_is_asked_for_its_health_by_no_call_that_may_find_it_paused(sglang: Subject) -> None:
    await sglang.engine.probe(RELEASE, deadline=soon())
    await sglang.engine.pause(RELEASE, deadline=soon())
    await sglang.engine.is_paused(deadline=soon())
    await sglang.engine.resume(RELEASE, deadline=soon())
    assert not behind(sglang).asked("GET /health")


async def test_sglang_lets_a_request_finish_that_slips_in_before_the_pause(sglang: Subject) -> None:
    fake = behind(sglang)
    engine = sglang.engine
    fake.faults["POST /pause_generation"] = Fault("slow", times=1, seconds=0.3)
    async with asyncio.TaskGroup() as tasks:
        pausing = tasks.create_task(engine.pause(KEEP, deadline=soon()))
        await until(lambda: bool(fake.asked("POST /pause_generation")))
        late = tasks.create_task(engine.complete(PROMPT, tokens=250, deadline=soon()))
    assert len(late.result()) == 250
    assert pausing.result().verdict is Verdict.VERIFIED
    assert len(fake.asked("POST /pause_generation")) >= 2


async def test_sglang_taken_over_with_kv_memory_away_takes_it_once(sglang: Subject) -> None:
    behind(sglang).away.add("kv_cache")
    behind(sglang).freed.add("kv_cache")
    sglang.engine.assume(kv_released=True)
    await sglang.engine.resume(RELEASE, deadline=soon())
    assert not behind(sglang).away
    assert not behind(sglang).dead


# -------------------------------------------------------------------- Generic


async def test_a_generic_engine_is_refused_everything_but_its_tokens() -> None:
    async with on_fake("generic") as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        refused = {each for each in Capability if found.finding(each).ground is G.NOT_OF_KIND}
        assert refused == set(Capability) - {C.TOKEN_IDS}
        assert found.has(C.TOKEN_IDS)


async def test_a_generic_engine_can_share_no_seat() -> None:
    async with on_fake("generic") as subject:
        with pytest.raises(EngineUnfit, match="can't share its seat"):
            await subject.engine.pause(RELEASE, deadline=soon())


async def test_a_generic_engine_is_not_paused_while_requests_reach_it() -> None:
    async with on_fake("generic") as subject:
        await subject.engine.open_guard(deadline=soon())
        with pytest.raises(EngineError, match="its guard is open"):
            await subject.engine.pause(KEEP, deadline=soon())
        await subject.engine.close_guard(deadline=soon())
        assert (await subject.engine.pause(KEEP, deadline=soon())).verdict is Verdict.UNVERIFIED
        assert await subject.engine.is_paused(deadline=soon())


async def test_a_server_without_token_ids_is_told_so() -> None:
    async with on_fake("generic", generic_without_ids()) as subject:
        found = await subject.engine.probe(KEEP, deadline=soon())
        assert not found.has(C.TOKEN_IDS)
        assert "tells no token ids" in found.finding(C.TOKEN_IDS).reason


def generic_without_ids() -> FakeEngine:
    return FakeEngine(tells_ids=False)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
