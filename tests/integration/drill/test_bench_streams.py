"""What a client can make of an answer's end, against real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from scaler.drill.bench.streams import Answer, Question, ask
from scaler.drill.records import Outcome
from tests.fakes.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
QUESTION = Question(model="chat", prompt=[256, 65], tokens=3)


@pytest.fixture
async def answer_of() -> AsyncIterator[Callable[..., Awaitable[Answer]]]:
    runners: list[web.AppRunner] = []
    async with aiohttp.ClientSession() as session:

        async def asked(handler: Handler, seconds: float = 30.0) -> Answer:
            app = web.Application()
            app.router.add_post("/v1/completions", handler)
            runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.1))
            await runners[-1].setup()
            await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
            return await ask(session, url, QUESTION, seconds=seconds)

        yield asked
    for runner in runners:
        await runner.cleanup()


def token(number: int) -> dict[str, object]:
    return {"choices": [{"text": "x", "token_ids": [number]}]}


def streaming(*events: object, cut: bool = False, hang: bool = False) -> Handler:
    async def handler(incoming: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(incoming)
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {text}\n\n".encode())
        if cut and incoming.transport is not None:
            incoming.transport.abort()
        if hang:
            await asyncio.Event().wait()
        return response

    return handler


def refusing(status: int, text: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return handler


THREE = (token(1), token(2), token(3))


@pytest.mark.parametrize(
    ("handler", "outcome", "tokens"),
    [
        pytest.param(streaming(*THREE, "[DONE]"), Outcome.OK, [1, 2, 3], id="whole"),
        pytest.param(
            streaming(token(1), {"error": {"message": "cut"}}), Outcome.INTERRUPTED, [1], id="error-event"
        ),
        pytest.param(refusing(503, '{"error": {"message": "full"}}'), Outcome.HTTP_5XX, [], id="refused"),
        pytest.param(refusing(404, '{"error": {"message": "no model"}}'), Outcome.HTTP_4XX, [], id="unknown"),
    ],
)
async def test_an_end_that_tells_the_client_what_became_of_its_request(
    answer_of: Callable[..., Awaitable[Answer]], handler: Handler, outcome: Outcome, tokens: list[int]
) -> None:
    answer = await answer_of(handler)
    assert (answer.outcome, answer.tokens, answer.understood) == (outcome, tokens, True)


@pytest.mark.parametrize(
    ("handler", "outcome"),
    [
        pytest.param(streaming(*THREE), Outcome.BROKEN, id="no-done"),
        pytest.param(streaming(token(1), cut=True), Outcome.BROKEN, id="cut"),
        pytest.param(streaming(token(1), hang=True), Outcome.TIMEOUT, id="silence"),
        pytest.param(streaming(token(1), "[DONE]"), Outcome.TRUNCATED, id="too-few"),
        pytest.param(streaming("not json"), Outcome.BROKEN, id="garbage"),
        pytest.param(refusing(502, "Bad Gateway"), Outcome.BROKEN, id="a-status-without-a-word"),
    ],
)
async def test_an_end_that_leaves_the_client_in_the_dark(
    answer_of: Callable[..., Awaitable[Answer]], handler: Handler, outcome: Outcome
) -> None:
    answer = await answer_of(handler, 0.5 if outcome is Outcome.TIMEOUT else 30.0)
    assert (answer.outcome, answer.understood) == (outcome, False)
    assert answer.detail


async def test_nobody_listening_is_no_end_that_a_client_understands() -> None:
    async with aiohttp.ClientSession() as session:
        answer = await ask(session, f"http://127.0.0.1:{free_port()}", QUESTION, seconds=5)
    assert (answer.outcome, answer.understood) == (Outcome.CONNECT, False)


def test_tokens_agree_as_far_as_they_came() -> None:
    answer = Answer(model="chat", sent=0.0, tokens=[1, 2])
    assert answer.agrees([1, 2, 3])
    assert not answer.agrees([1, 3, 3])
