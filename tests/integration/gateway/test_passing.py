"""What is passed on and how: paths, methods, headers, bodies, and answers that come in other forms than streams."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from scaler.gateway.observe import Outcome
from scaler.gateway.settings import GatewaySettings
from tests.fakes.openai_engine import Behaviour, Script
from tests.integration.gateway.mortal import Mortal, chunk
from tests.integration.gateway.raw import BODY, connected, request
from tests.integration.gateway.rig import CHAT, Rig, rig

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def behind(r: Rig, *handlers: Handle) -> AsyncIterator[None]:
    """Put engines behind the gateway that answer as they are told."""
    runners = []
    try:
        for handle in handlers:
            runner = web.ServerRunner(
                web.Server(handle, access_log=None, auto_decompress=False), shutdown_timeout=0.1
            )
            await runner.setup()
            runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        r.route(*(f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners))
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    """Answer with what came."""
    body = await request.read()
    said = {"method": request.method, "path": request.raw_path, "body": body.decode("latin-1")}
    return web.json_response({**said, "headers": dict(request.headers)})


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/new"],
)
async def test_every_path_whose_body_names_a_model_goes_to_its_policy(path: str) -> None:
    async with rig() as r, behind(r, echo), r.post(path=path) as response:
        assert (await response.json())["path"] == path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        pytest.param("POST", "/v1/load", b"\x00\xff", id="a body that is no JSON"),
        pytest.param("POST", "/v1/load", b'{"a": 1}', id="a body without a model"),
        pytest.param("POST", "/v1/load", None, id="no body"),
        pytest.param("GET", "/v1/responses/resp_1?stream=true", None, id="another method"),
        pytest.param("DELETE", "/v1/files/f-1", None, id="a third one"),
    ],
)
async def test_what_names_no_model_goes_to_the_default_policy(
    method: str, path: str, body: bytes | None
) -> None:
    async with rig(GatewaySettings(default_policy="chat")) as r, behind(r, echo):
        async with r.session.request(method, r.url + path, data=body) as response:
            seen = await response.json()
        assert (seen["method"], seen["path"], seen["body"]) == (method, path, (body or b"").decode("latin-1"))
        assert r.gateway.stats(CHAT).totals.completed == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        pytest.param("POST", "/v1/completions", b"{}", 400, "missing_model", id="a model is needed there"),
        pytest.param("POST", "/v1/completions", b"{", 400, "invalid_json", id="and JSON"),
        pytest.param("POST", "/v1/load", b'{"model": "x"}', 404, "model_not_found", id="an unknown model"),
        pytest.param("GET", "/metrics", None, 404, "not_found", id="not below /v1"),
    ],
)
async def test_a_default_policy_is_no_way_round_what_a_request_must_say(
    method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    async with (
        rig(GatewaySettings(default_policy="chat")) as r,
        behind(r, echo),
        r.session.request(method, r.url + path, data=body) as response,
    ):
        assert (response.status, (await response.json())["error"]["code"]) == (status, code)


async def test_an_upload_goes_where_its_form_says() -> None:
    async with rig() as r, behind(r, echo):
        form = aiohttp.FormData()
        form.add_field("file", b"RIFF" * 50_000, filename="a.wav")
        form.add_field("model", "m")
        async with r.session.post(r.url + "/v1/audio/transcriptions", data=form) as response:
            seen = await response.json()
        assert response.status == 200
        assert seen["headers"]["Content-Type"].startswith("multipart/form-data; boundary=")
        assert seen["body"].count("RIFF") == 50_000


async def test_an_upload_that_says_no_model_is_refused() -> None:
    async with rig() as r, behind(r, echo):
        form = aiohttp.FormData()
        form.add_field("file", b"RIFF", filename="a.wav")
        async with r.session.post(r.url + "/v1/audio/transcriptions", data=form) as response:
            assert response.status == 400


async def test_headers_for_those_behind_us_go_on() -> None:
    sent = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b",
        "X-Request-Id": "mine",
        "X-Custom": "x",
        "Accept": "text/event-stream",
    }
    async with rig() as r, behind(r, echo), r.post(headers=sent) as response:
        seen = {name.lower(): value for name, value in (await response.json())["headers"].items()}
    assert {name: seen[name.lower()] for name in sent} == sent
    assert "user-agent" in seen


async def test_compressed_answers_stay_as_they_are() -> None:
    body = gzip.compress(json.dumps({"choices": []}).encode())

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert "gzip" in request.headers["Accept-Encoding"]
        return web.Response(
            body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
        )

    async with (
        rig() as r,
        behind(r, answer),
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(r.url + "/v1/completions", json={"model": "m"}) as response,
    ):
        assert response.headers["Content-Encoding"] == "gzip"
        assert await response.read() == body


async def test_a_stream_that_an_engine_compresses_all_the_same_passes_as_it_comes() -> None:
    """Nothing of it can be told apart, least of all where an event ends."""
    more, packer = asyncio.Event(), zlib.compressobj(wbits=31)
    first = packer.compress(b'data: {"choices":[{"text":"a"}]}\n\n') + packer.flush(zlib.Z_SYNC_FLUSH)

    async def compresses(request: web.BaseRequest) -> web.StreamResponse:
        response = await stream(request, first, content_type="text/event-stream", encoding="gzip")
        await more.wait()
        await response.write(packer.compress(b"data: [DONE]\n\n") + packer.flush())
        return response

    async with rig() as r, behind(r, compresses), r.post() as response:
        async with asyncio.timeout(5):
            assert (await response.content.readany()).endswith(b'"a"}]}\n\n')
        more.set()
        assert await response.read() == b"data: [DONE]\n\n"


async def stream(
    request: web.BaseRequest, *pieces: bytes, content_type: str, encoding: str = ""
) -> web.StreamResponse:
    await request.read()
    response = web.StreamResponse(headers={"Content-Type": content_type})
    if encoding:
        response.headers["Content-Encoding"] = encoding
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    return response


async def test_an_answer_in_one_piece_that_breaks_off_is_tried_elsewhere() -> None:
    """It comes chunked, so that nothing says how long it would have been."""

    async def breaks(request: web.BaseRequest) -> web.StreamResponse:
        response = await stream(request, b'{"choi', content_type="application/json")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with rig() as r, behind(r, breaks, echo):
        statuses = [(await r.ask({"stream": False}))[0] for _ in range(3)]
        assert statuses == [200] * 3
        assert r.gateway.stats(CHAT).totals.failed == 0


async def test_bytes_of_other_kinds_pass_as_they_come() -> None:
    more = asyncio.Event()

    async def speech(request: web.BaseRequest) -> web.StreamResponse:
        response = await stream(request, b"first", content_type="audio/mpeg")
        await more.wait()
        await response.write(b"second")
        return response

    async with rig() as r, behind(r, speech), r.post(path="/v1/audio/speech") as response:
        assert await response.content.readany() == b"first"
        more.set()
        assert await response.read() == b"second"


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b'data: {"error":{"message":"x","code":500}}\n\n', id="a status"),
        pytest.param(b'data: {"error":{"message":"x","type":"server_error"}}\n\n', id="a type alone"),
        pytest.param(b'data: {"error":{"message":"x","code":"ResidentNotServing"}}\n\n', id="a word"),
        pytest.param(b"event: error\ndata: x\n\n", id="a name"),
        pytest.param(b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n', id="an end"),
    ],
)
async def test_an_error_event_before_any_content_is_tried_elsewhere(event: bytes) -> None:
    async def fails(request: web.BaseRequest) -> web.StreamResponse:
        return await stream(request, ROLE, event, content_type="text/event-stream")

    async def answers(request: web.BaseRequest) -> web.StreamResponse:
        content = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
        return await stream(request, ROLE, content, content_type="text/event-stream")

    async with rig() as r, behind(r, fails, answers):
        for _ in range(3):
            status, text = await r.ask()
            assert (status, text.count("[DONE]"), text.count("error")) == (200, 1, 0)


async def test_an_error_event_of_all_engines_becomes_a_status() -> None:
    async def fails(request: web.BaseRequest) -> web.StreamResponse:
        error = b'data: {"error":{"message":"out of memory","code":507}}\n\n'
        return await stream(request, ROLE, error, content_type="text/event-stream")

    async with rig() as r, behind(r, fails), r.post() as response:
        error = (await response.json())["error"]
        assert (response.status, error["message"], error["code"]) == (507, "out of memory", "EngineFailed")
        assert r.gateway.stats(CHAT).totals.failed == 1


async def test_a_client_s_mistake_in_an_event_passes_and_is_not_tried_again() -> None:
    seen = []

    async def refuses(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        error = b'data: {"error":{"message":"too long","type":"invalid_request_error","code":400}}\n\n'
        return await stream(request, error, content_type="text/event-stream")

    async with rig() as r, behind(r, refuses):
        status, text = await r.ask()
        assert (status, "too long" in text, len(seen)) == (200, True, 1)


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        pytest.param(Behaviour.RESET, 502, id="an engine may have worked on it"),
        pytest.param(Behaviour.GUARD_CLOSED, 200, id="no engine saw it"),
    ],
)
async def test_who_wants_no_second_attempt_gets_none_once_an_engine_may_have_worked(
    behaviour: Behaviour, status: int
) -> None:
    async with rig() as r:
        _, bad = await r.engine(Script(behaviour=behaviour))
        good, good_url = await r.engine()
        r.route(bad, good_url)
        found, _ = await r.ask(headers={"X-Emberpool-Retry": "never"})
        assert found == status
        assert len(good.seen) == (status == 200)
        assert all("X-Emberpool-Retry" not in each.headers for each in good.seen)


async def test_priority_and_tenant_come_from_the_headers_that_are_named() -> None:
    settings = GatewaySettings(priority_header="X-Priority", tenant_header="X-Tenant")
    async with rig(settings) as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(gated=True))
        r.route(url)
        running = group.create_task(r.ask())
        await engine.until(lambda engine: engine.in_flight == 1)
        asks = []
        for number, headers in enumerate(
            ({"X-Tenant": "a"}, {"X-Tenant": "a"}, {"X-Tenant": "b"}, {"X-Tenant": "a", "X-Priority": "3"})
        ):
            asks.append(group.create_task(r.ask({"prompt": number}, headers=headers)))
            await r.until_queued(number + 1)
        engine.gate.set()
        await asyncio.gather(running, *asks)
        assert [json.loads(each.body).get("prompt") for each in engine.seen] == [None, 3, 0, 2, 1]


async def test_a_priority_that_is_none_is_refused() -> None:
    async with rig(GatewaySettings(priority_header="X-Priority")) as r:
        r.route()
        async with r.post(headers={"X-Priority": "first"}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_priority")


async def test_an_end_s_kind_is_counted_and_said() -> None:
    async with rig() as r:
        _, url = await r.engine(Script(tokens=4, first_seconds=0.03, interval_seconds=0.01))
        r.ttft_seconds = 0.01
        r.route(url)
        await r.ask()
        assert await r.observed.until_outcomes(1) == [Outcome.COMPLETED]
        totals = r.gateway.stats(CHAT).totals
        assert (totals.answered, totals.late) == (1, 1)
        assert 0.03 <= totals.first_seconds < 1.0
        assert totals.gaps >= 3
        assert 0.02 < totals.gap_seconds < 1.0


TRAILED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: x-digest\r\n\r\n"
    b"2\r\n{}\r\n0\r\nx-digest: 7\r\nx-unannounced: 8\r\n\r\n"
)


TAKES = (b"TE: trailers", b"Connection: TE")


@pytest.mark.parametrize(
    ("taken", "stream"),
    [pytest.param(True, False, id="taken"), pytest.param(True, True, id="of a stream"), (False, False)],
)
async def test_an_engine_s_trailers_go_to_who_takes_them_and_nobody_gets_another_s(
    *, taken: bool, stream: bool
) -> None:
    """Two answers on one connection: what came behind the first is no part of the second."""
    given = TRAILED.replace(b"application/json", b"text/event-stream") if stream else TRAILED
    async with rig() as r, Mortal(given).serve() as engine, connected(r.url) as client:
        r.route(engine.url)
        for takes in (taken, not taken, taken):
            client.send(request("/v1/completions", b'{"model": "m"}', *(TAKES if takes else ())))
            async with asyncio.timeout(5):
                head = (await client.reader.readuntil(b"\r\n\r\n")).lower()
                if takes:
                    rest = await client.reader.readuntil(b"0\r\n")
                    rest += await client.reader.readuntil(b"\r\n\r\n")
                    assert rest == b"2\r\n{}\r\n0\r\nx-digest: 7\r\n\r\n"
                else:
                    assert await client.reader.readexactly(2) == b"{}"
            assert (b"\r\ntrailer: x-digest\r\n" in head, b"x-unannounced" in head) == (takes, False)
            assert (b"\r\ncontent-length: 2\r\n" in head) != takes
            assert (b"\r\nte: trailers" in engine.heads[-1].lower()) == takes, "asked for by who takes them"
        assert (engine.asked, engine.connections) == (3, 1)


async def test_who_reads_no_chunks_gets_no_trailers() -> None:
    async with rig() as r, Mortal(TRAILED).serve() as engine, connected(r.url) as client:
        r.route(engine.url)
        asked = request("/v1/completions", b'{"model": "m"}', *TAKES)
        client.send(asked.replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert (b"trailer" in head.lower(), body) == (False, b"{}")


async def test_a_long_stream_ends_with_its_trailers() -> None:
    event = b'data: {"choices":[{"text":"a"}]}\n\n'
    head = TRAILED[: TRAILED.index(b"2\r\n")].replace(b"application/json", b"text/event-stream")

    async with rig() as r, connected(r.url) as client:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"stream")
            writer.write(head)
            for _ in range(20):
                writer.write(chunk(event))
                await writer.drain()
                await asyncio.sleep(0.001)
            writer.write(b"0\r\nX-Dig")
            await asyncio.sleep(0.01)
            writer.write(b"est: 7\r\n\r\n")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            r.route(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            client.send(request("/v1/completions", BODY, *TAKES))
            async with asyncio.timeout(5):
                raw = await client.reader.readuntil(b"\r\n0\r\n")
                assert await client.reader.readuntil(b"\r\n\r\n") == b"X-Digest: 7\r\n\r\n"
            assert raw.count(event) == 20
            await r.stack.aclose()
            client.writer.close()


async def test_a_client_s_trailers_end_here() -> None:
    """They come after the body, which has gone to no engine yet: a second attempt would have to repeat them."""
    async with rig() as r, behind(r, echo), connected(r.url) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: x-digest\r\n\r\n"
        client.send(head + chunk(b'{"model": "m"}') + b"0\r\nx-digest: 7\r\n\r\n")
        async with asyncio.timeout(5):
            await client.reader.readuntil(b"\r\n\r\n")
            seen = json.loads(await client.reader.readuntil(b"}}"))
        assert seen["body"] == '{"model": "m"}'
        assert not {name.lower() for name in seen["headers"]} & {"trailer", "x-digest"}
