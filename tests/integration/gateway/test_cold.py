"""What requests wait for, and what their clients are told meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from scaler.gateway.observe import Outcome
from scaler.gateway.routes import PolicyLimits
from scaler.gateway.settings import GatewaySettings
from tests.fakes.openai_engine import Behaviour, Script
from tests.integration.gateway.rig import CHAT, Rig, rig

TOLD = GatewaySettings(keep_alive_comment_seconds=0.02)


@asynccontextmanager
async def waiting(r: Rig, path: str = "/v1/chat/completions") -> AsyncIterator[aiohttp.ClientResponse]:
    """Ask while nobody serves, and wait for the first comment."""
    async with r.post(path=path) as response:
        assert await response.content.readuntil(b"\n\n") == b": waiting\n\n"
        yield response


async def test_a_client_that_waits_gets_comments_and_then_its_stream() -> None:
    async with rig(TOLD) as r:
        engine, url = await r.engine()
        r.route()
        async with waiting(r) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert response.headers["X-Request-Id"]
            assert await response.content.readuntil(b"\n\n") == b": waiting\n\n", "it goes on"
            assert r.observed.first == [], "a comment is no content"
            r.route(url)
            text = (await response.read()).decode()
        events = [line for line in text.split("\n\n") if line.startswith("data: ")]
        assert [json.loads(each[6:])["choices"][0]["delta"].get("content") for each in events[:-1]] == [
            *("", "t", "t", "t"),
            None,
        ]
        assert events[-1] == "data: [DONE]"
        assert len(engine.seen) == 1
        assert await r.observed.until_outcomes(1) == [Outcome.COMPLETED]


async def test_comments_come_as_well_while_an_engine_thinks() -> None:
    async with rig(TOLD) as r:
        engine, url = await r.engine(Script(gated=True))
        r.route(url)
        async with waiting(r) as response:
            engine.gate.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a_quick_answer_has_no_comment_and_its_own_headers() -> None:
    async with rig(GatewaySettings(keep_alive_comment_seconds=5.0)) as r:
        _, url = await r.engine()
        r.route(url)
        async with r.post() as response:
            assert b": waiting" not in await response.read()
            assert "X-Emberpool-Expected-Wait" not in response.headers


async def test_what_is_no_stream_gets_no_comments() -> None:
    async with rig(TOLD, PolicyLimits(max_age_seconds=0.1)) as r:
        r.route()
        async with r.post({"stream": False}) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "QueueTooOld"


@pytest.mark.parametrize("behaviour", [Behaviour.ERROR, Behaviour.RESET, Behaviour.HEADERS_THEN_RESET])
async def test_what_fails_after_a_comment_is_still_tried_elsewhere(behaviour: Behaviour) -> None:
    async with rig(TOLD) as r:
        _, bad = await r.engine(Script(behaviour=behaviour))
        _, good = await r.engine()
        r.route()
        async with waiting(r) as response:
            r.route(bad, good)
            assert (await response.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("behaviour", "message", "outcome"),
    [
        pytest.param(Behaviour.ERROR, "broken", Outcome.ENGINE_ERROR, id="engines answer 500"),
        pytest.param(Behaviour.RESET, "engines broke off", Outcome.ENGINE_ERROR, id="engines break off"),
        pytest.param(
            Behaviour.BAD_REQUEST, "max_tokens is wrong", Outcome.CLIENT_ERROR, id="an engine refuses"
        ),
    ],
)
async def test_what_fails_for_good_after_a_comment_is_told_by_an_event(
    behaviour: Behaviour, message: str, outcome: Outcome
) -> None:
    async with rig(TOLD) as r:
        urls = [(await r.engine(Script(behaviour=behaviour)))[1] for _ in range(3)]
        r.route()
        async with waiting(r) as response:
            r.route(*urls)
            *_, event, rest = (await response.read()).decode().split("\n\n")
        assert rest == ""
        assert message in json.loads(event.removeprefix("data: "))["error"]["message"]
        assert await r.observed.until_outcomes(1) == [outcome]


async def test_a_wait_that_is_too_long_after_a_comment_is_told_by_an_event() -> None:
    async with rig(TOLD, PolicyLimits(max_age_seconds=0.2)) as r:
        r.route()
        async with waiting(r, "/v1/responses") as response:
            *_, event, _ = (await response.read()).decode().split("\n\n")
        assert event.startswith("event: error\ndata: ")
        assert json.loads(event.splitlines()[1][6:])["code"] == "QueueTooOld"
        assert await r.observed.until_outcomes(1) == [Outcome.EXPIRED]


async def test_an_engine_that_gives_no_stream_after_a_comment_has_its_answer_in_an_event() -> None:
    async with rig(TOLD) as r:
        _, url = await r.engine(Script(whole=True))
        r.route()
        async with waiting(r) as response:
            r.route(url)
            text = (await response.read()).decode()
        (event,) = [each for each in text.split("\n\n") if each.startswith("data: ")]
        assert json.loads(event[6:])["choices"][0]["message"]["content"] == "ttt"


async def test_a_stream_that_is_cut_after_comments_ends_with_one_error_event() -> None:
    async with rig(TOLD) as r:
        _, url = await r.engine(Script(behaviour=Behaviour.DIE))
        r.route()
        async with waiting(r) as response:
            r.route(url)
            text = (await response.read()).decode()
        assert json.loads(text.rstrip().rpartition("data: ")[2])["error"]["code"] == "StreamCut"


async def test_a_client_that_goes_away_while_it_gets_comments_leaves_the_queue() -> None:
    async with rig(TOLD) as r:
        r.route()
        async with waiting(r) as response:
            response.close()
        assert await r.observed.until_outcomes(1) == [Outcome.ABANDONED]
        assert r.gateway.stats(CHAT).demand == 0


async def test_what_the_controller_expects_is_told_to_who_waits() -> None:
    async with rig(TOLD) as r, asyncio.TaskGroup() as group:
        r.coming_seconds = 41.5
        r.route()
        async with r.post() as response:
            assert int(response.headers["X-Emberpool-Expected-Wait"]) == 42
            assert await response.content.readline() == b": waiting, about 42 s more\n"
            refused = group.create_task(r.gateway.drain(0.0))
            await response.read()
        assert await refused is False


async def test_a_refusal_says_when_it_is_worth_while_to_come_back() -> None:
    async with rig(limits=PolicyLimits(max_requests=0)) as r:
        for coming, retry in ((None, "1"), (0.2, "1"), (12.3, "13"), (5000.0, "60")):
            r.coming_seconds = coming
            r.route()
            async with r.post() as response:
                assert (response.status, response.headers["Retry-After"]) == (503, retry)


async def test_a_cold_policy_s_requests_have_time_of_their_own_before_the_deadline() -> None:
    settings = GatewaySettings(deadline_seconds=0.2)
    async with rig(settings, PolicyLimits(max_age_seconds=0.1, max_cold_seconds=20.0)) as r:
        r.route()
        async with asyncio.TaskGroup() as group:
            ask = group.create_task(r.ask())
            await r.until_queued(1)
            await asyncio.sleep(0.3)  # longer than both limits of a warm policy
            _, url = await r.engine()
            r.route(url)
            assert (await ask)[0] == 200
