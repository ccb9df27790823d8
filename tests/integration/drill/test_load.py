"""The load generator against real sockets: what each kind of answer counts as, and that it is open loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from scaler.drill.load import Tally, Target, generate
from scaler.drill.records import Outcome, Record
from scaler.drill.schedule import Request
from tests.fakes.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def request(at: float = 0.0, *, stream: bool = True, tokens: int = 3) -> Request:
    return Request(
        at=at, policy="chat", stage="s", prompt="abc", prompt_tokens=3, max_tokens=tokens, stream=stream
    )


async def play(gateway: str, *requests: Request, within: float = 30.0) -> tuple[list[Record], Tally]:
    tally = Tally()
    tally.begin()
    async with asyncio.timeout(60):
        await generate(
            requests, Target(gateway=gateway, models={"chat": "chat-model"}, timeout=within), tally
        )
    return tally.records, tally


def streaming(*events: object, done: bool = True) -> Handler:
    async def handler(incoming: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(incoming)
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {text}\n\n".encode())
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return handler


TOKEN = {"choices": [{"text": "x", "token_ids": [120]}]}
HALF = {"choices": [{"text": "", "token_ids": [200]}]}
"""A token that has no whole character yet."""


def usage(tokens: int) -> dict[str, object]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


@pytest.mark.parametrize(
    ("handler", "outcome", "detail"),
    [
        pytest.param(streaming(TOKEN, HALF, TOKEN, usage(3)), Outcome.OK, "", id="whole"),
        pytest.param(streaming(TOKEN, usage(2)), Outcome.TRUNCATED, "2 tokens instead of 3", id="short"),
        pytest.param(streaming(TOKEN, TOKEN, TOKEN), Outcome.TRUNCATED, "no usage", id="no-usage"),
        pytest.param(
            streaming(TOKEN, done=False), Outcome.BROKEN, "without [DONE]", id="ends-without-a-word"
        ),
        pytest.param(
            streaming(TOKEN, {"error": {"message": "lost"}}), Outcome.INTERRUPTED, "lost", id="error-event"
        ),
        pytest.param(streaming(TOKEN, "{nonsense"), Outcome.BROKEN, "not JSON", id="not-json"),
    ],
)
async def test_how_a_stream_ends(serve: Serve, handler: Handler, outcome: Outcome, detail: str) -> None:
    (record,), _ = await play(await serve(handler), request())
    assert record.outcome is outcome
    assert detail in record.detail
    assert record.first is not None


@pytest.mark.parametrize(
    ("status", "outcome"),
    [pytest.param(429, Outcome.HTTP_4XX, id="429"), pytest.param(503, Outcome.HTTP_5XX, id="503")],
)
async def test_a_refusal_is_a_failure(serve: Serve, status: int, outcome: Outcome) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=status)

    (record,), _ = await play(await serve(handler), request())
    assert (record.outcome, record.first) == (outcome, None)
    assert "full" in record.detail


async def test_nobody_there_is_a_failed_connection() -> None:
    (record,), _ = await play(f"http://127.0.0.1:{free_port()}", request())
    assert record.outcome is Outcome.CONNECT


async def test_a_connection_that_breaks_in_mid_stream_is_a_broken_stream(serve: Serve) -> None:
    async def handler(incoming: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(incoming)
        await response.write(f"data: {json.dumps(TOKEN)}\n\n".encode())
        assert incoming.transport is not None
        incoming.transport.abort()
        return response

    (record,), _ = await play(await serve(handler), request())
    assert record.outcome is Outcome.BROKEN


async def test_an_answer_that_never_comes_times_out(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    (record,), tally = await play(await serve(handler), request(), within=0.2)
    assert record.outcome is Outcome.TIMEOUT
    assert tally.open == {"chat": 0}


async def test_an_answer_in_one_piece_has_no_ttft(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [{"text": "xxx"}], "usage": {"completion_tokens": 3}})

    (record,), _ = await play(await serve(handler), request(stream=False))
    assert (record.outcome, record.ttft, record.tokens) == (Outcome.OK, None, 3)


async def test_arrivals_do_not_wait_for_answers(serve: Serve) -> None:
    """The server answers nobody before all thirty are there: a closed loop would never get past the first."""
    here: list[web.Request] = []
    complete = asyncio.Event()
    answer = streaming(TOKEN, TOKEN, TOKEN, usage(3))

    async def handler(incoming: web.Request) -> web.StreamResponse:
        here.append(incoming)
        if len(here) == 30:
            complete.set()
        await complete.wait()
        return await answer(incoming)

    records, _ = await play(await serve(handler), *(request(at=index / 100) for index in range(30)))
    assert [record.outcome for record in records] == [Outcome.OK] * 30


async def test_latency_counts_from_the_intended_time(serve: Serve) -> None:
    gateway = await serve(streaming(TOKEN, TOKEN, TOKEN, usage(3)))
    (record,), _ = await play(gateway, request(at=-0.5))  # due half a second before the clock began
    assert record.sent is not None
    assert record.sent - record.intended >= 0.5
    assert record.ttft is not None
    assert record.ttft >= 0.5


async def test_gaps_between_tokens_are_counted_per_stage_and_policy(serve: Serve) -> None:
    _, tally = await play(await serve(streaming(TOKEN, TOKEN, TOKEN, usage(3))), request(), request())
    assert tally.gaps["s", "chat"].count == 4


async def test_the_request_asks_for_what_is_checked(serve: Serve) -> None:
    seen: list[dict[str, object]] = []

    async def handler(incoming: web.Request) -> web.StreamResponse:
        seen.append(await incoming.json())
        return await streaming(TOKEN, TOKEN, TOKEN, usage(3))(incoming)

    await play(await serve(handler), request())
    assert seen[0]["model"] == "chat-model"
    assert seen[0]["max_tokens"] == 3
    assert seen[0]["ignore_eos"] is True
    assert seen[0]["stream_options"] == {"include_usage": True}
