"""The openai package against the gateway, with its own defaults."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from scaler.gateway.keys import Keys
from scaler.gateway.observe import Outcome
from scaler.gateway.routes import PolicyLimits
from scaler.gateway.settings import GatewaySettings
from tests.fakes.openai_engine import Behaviour, Script
from tests.integration.gateway.rig import CHAT, Rig, rig, until
from tests.integration.gateway.test_passing import behind

openai: Any = None
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Its import computes for longer than these tests: only who runs them pays for it, not whoever collects them."""
    global openai  # noqa: PLW0603
    openai = pytest.importorskip("openai")


@asynccontextmanager
async def client(r: Rig, **more: object) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{r.url}/v1", api_key="key-1", **more) as made:
        yield made


async def test_the_openai_package_streams() -> None:
    async with rig() as r, client(r) as ask:
        engine, url = await r.engine(Script(tokens=5, interval_seconds=0.005))
        r.route(url)
        stream = await ask.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        pieces = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(filter(None, pieces)) == "ttttt"
        assert engine.seen[0].headers["Authorization"] == "Bearer key-1"


async def test_the_openai_package_gets_whole_answers_models_and_text_completions() -> None:
    async with rig() as r, client(r) as ask:
        _, url = await r.engine()
        r.route(url)
        answer = await ask.chat.completions.create(model="m", messages=MESSAGES)
        assert answer.choices[0].message.content == "ttt"
        text = await ask.completions.create(model="m-chat", prompt="x")
        assert text.choices[0].text == "ttt"
        assert [model.id async for model in ask.models.list()] == ["m", "m-chat"]
        assert (await ask.models.retrieve("m")).id == "m"


async def test_the_openai_package_reads_streams_that_begin_with_comments() -> None:
    async with (
        rig(GatewaySettings(keep_alive_comment_seconds=0.02)) as r,
        client(r) as ask,
        asyncio.TaskGroup() as group,
    ):
        r.route()
        create = ask.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        stream = await group.create_task(create)  # its head is here while it waits
        _, url = await r.engine()
        r.route(url)
        pieces = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(filter(None, pieces)) == "ttt"


async def test_the_openai_package_is_told_what_fails_after_comments() -> None:
    settings = GatewaySettings(keep_alive_comment_seconds=0.02)
    async with rig(settings, PolicyLimits(max_age_seconds=0.1)) as r, client(r, max_retries=0) as ask:
        r.route()
        stream = await ask.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="No capacity became free"):
            [chunk async for chunk in stream]


async def test_the_openai_package_is_told_of_a_stream_that_is_cut() -> None:
    async with rig() as r, client(r, max_retries=0) as ask:
        _, url = await r.engine(Script(behaviour=Behaviour.DIE, tokens=2))
        r.route(url)
        stream = await ask.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        pieces = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
        assert pieces == ["", "t", "t"]
        with pytest.raises(openai.APIError, match="broke off in the middle"):
            await anext(stream)


async def test_the_openai_package_is_told_of_a_response_that_is_cut() -> None:
    async def cut(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        delta = {
            "type": "response.output_text.delta",
            "delta": "t",
            "item_id": "i",
            "logprobs": [],
        } | dict.fromkeys(("content_index", "output_index", "sequence_number"), 0)
        event = f"event: response.output_text.delta\ndata: {json.dumps(delta)}\n\n"
        await response.write(event.encode())
        assert request.transport is not None
        request.transport.close()
        return response

    async with rig() as r, behind(r, cut), client(r, max_retries=0) as ask:
        stream = await ask.responses.create(model="m", input="x", stream=True)
        assert (await anext(stream)).type == "response.output_text.delta"
        with pytest.raises(openai.APIError):
            await anext(stream)


async def test_the_openai_package_tries_again_what_is_refused() -> None:
    settings = GatewaySettings(retry_after_seconds=0)  # its own pause is half a second
    async with (
        rig(settings, PolicyLimits(max_requests=1)) as r,
        client(r) as ask,
        asyncio.TaskGroup() as group,
    ):
        engine, url = await r.engine(Script(gated=True))
        r.route(url)
        asks = [
            group.create_task(ask.chat.completions.create(model="m", messages=MESSAGES)) for _ in range(3)
        ]
        await until(lambda: r.gateway.stats(CHAT).totals.refused >= 1)
        engine.gate.set()
        answers = await asyncio.gather(*asks)
        assert [answer.choices[0].message.content for answer in answers] == ["ttt"] * 3
        assert len(engine.seen) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_the_openai_package_s_time_outs_end_the_work(stream: bool) -> None:  # noqa: FBT001
    async with rig() as r, client(r, timeout=0.1, max_retries=1) as ask:
        engine, url = await r.engine(Script(behaviour=Behaviour.HANG))
        r.route(url)
        with pytest.raises(openai.APITimeoutError):
            await ask.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
        await engine.until(lambda engine: engine.disconnected == 2)
        assert (await r.observed.until_outcomes(2)) == [Outcome.ABANDONED] * 2
        assert r.gateway.stats(CHAT).demand == 0


async def test_leaving_a_stream_of_the_openai_package_ends_the_work() -> None:
    async with rig() as r, client(r) as ask:
        engine, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        async with await ask.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        await engine.until(lambda engine: engine.disconnected == 1)
        assert await r.observed.until_outcomes(1) == [Outcome.ABANDONED]


async def test_the_openai_package_knows_our_errors() -> None:
    async with rig(limits=PolicyLimits(max_requests=0)) as r, client(r, max_retries=0) as ask:
        r.route()
        with pytest.raises(openai.NotFoundError) as missing:
            await ask.chat.completions.create(model="nope", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.InternalServerError) as full:
            await ask.chat.completions.create(model="m", messages=MESSAGES)
        assert (full.value.status_code, full.value.code) == (503, "QueueTooMany")
        r.gateway.keys = Keys(["key-2"])
        with pytest.raises(openai.AuthenticationError):
            await ask.models.list()
