"""What both forms of the guard promise their clients, over real sockets."""

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import pytest

from tests.fakes.asgi_engine import DONE, EVENT
from tests.integration.guard.conftest import COMPLETIONS, Guarded, error_of, until
from warmpool.guard_middleware import ROUTES

LISTED = Path(__file__).resolve().parents[2] / "data/engines/vllm-0.32-routes.json"
MIB = 2**20

# ---------------------------------------------------------------- the door


async def test_it_is_born_closed(closed: Guarded) -> None:
    async with closed.post() as response:
        assert response.status == 503
    assert closed.engine.calls == []


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
async def test_a_refusal_sends_the_client_elsewhere(closed: Guarded, method: str) -> None:
    async with closed.session.request(method, f"{closed.url}{COMPLETIONS}") as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert response.headers["Connection"] == "close"
        assert response.content_type == "application/json"
        error = error_of(await response.read())
    assert (error["code"], error["type"]) == ("ResidentNotServing", "ServiceUnavailableError")
    assert await closed.in_flight() == 0


async def test_a_refusal_of_head_has_no_body(closed: Guarded) -> None:
    async with closed.raw() as raw:
        await raw.ask("/v1/models", method="HEAD")
        status, headers = await raw.head()
        assert (status, await raw.rest()) == (503, b"")
        assert int(headers["content-length"]) > 0


@pytest.mark.wall_clock
async def test_a_refusal_reaches_a_client_that_sends_all_before_it_reads(closed: Guarded) -> None:
    async with closed.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 200000\r\n\r\n".encode()
        )
        for _ in range(20):
            await asyncio.sleep(0.002)  # the refusal is on its way meanwhile, and a reset would be, too
            await raw.send(b"x" * 10_000)
        status, headers = await raw.head()
        assert (status, headers["connection"]) == (503, "close")
        body = await raw.reader.readexactly(int(headers["content-length"]))
    assert error_of(body)["code"] == "ResidentNotServing"


async def test_opening_and_closing_turn_it(closed: Guarded) -> None:
    for expected in (200, 503, 200):
        await (closed.open() if expected == 200 else closed.close())
        async with closed.post() as response:
            assert response.status == expected


async def test_a_kept_connection_ends_with_the_refusal(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(COMPLETIONS)
        status, headers = await raw.head()
        assert status == 200
        await raw.reader.readexactly(int(headers["content-length"]))
        await guarded.close()
        await raw.ask(COMPLETIONS)
        assert (await raw.head())[0] == 503
        await raw.rest()
        assert raw.reader.at_eof()


# ---------------------------------------------------------------- routes


async def test_no_other_route_of_a_real_vllm_is_there(guarded: Guarded) -> None:
    listed = json.loads(LISTED.read_text())
    others = [each for each in listed if each["path"] not in ROUTES and "{" not in each["path"]]
    others = [each for each in others if each["path"] not in {"/health", "/metrics"}]
    hidden = {each["path"] for each in others}
    assert {"/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc"} <= hidden
    assert {"/release_kv_cache_memory", "/abort_requests", "/reset_prefix_cache"} <= hidden
    for each in others:
        async with guarded.session.request(each["method"], f"{guarded.url}{each['path']}") as response:
            assert response.status == 404, each
            assert error_of(await response.read())["message"] == "Not Found"
    assert guarded.engine.calls == []


@pytest.mark.parametrize("open_it", [True, False])
async def test_what_is_not_there_is_not_there_whether_it_serves_or_not(
    closed: Guarded, *, open_it: bool
) -> None:
    if open_it:
        await closed.open()
    async with closed.session.post(f"{closed.url}/pause") as response:
        assert response.status == 404


@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_clients_routes_pass(guarded: Guarded, path: str) -> None:
    async with guarded.session.post(f"{guarded.url}{path}") as response:
        assert response.status == 200
    assert guarded.engine.paths() == [path]


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/../pause", "/v1/completions/../../pause", "/v1/completions/%2e%2e/%2e%2e/pause"),
        *("/v1%2f..%2fpause", "//pause", "/./pause", "/v1/completions/../../pause?mode=abort"),
        *("/v1/responses/../pause", "/v1/responses/a/cancel/../../../../pause", "/v1\\..\\pause"),
        *("http://127.0.0.1/pause", "*", "/v1/completions#/pause", "/v1/completions;x", "/v1"),
        *("/v1/load_lora_adapter", "/V1/COMPLETIONS", "/v1/completions%00", "/guard/open", "/guard"),
    ],
)
async def test_what_could_be_read_in_two_ways_does_not_pass(guarded: Guarded, target: str) -> None:
    async with guarded.raw() as raw:
        await raw.ask(target)
        status, _ = await raw.head()
    reached = guarded.engine.paths()
    assert status in {400, 404} or reached == [COMPLETIONS], (
        "a server may cut a fragment off, and nothing more"
    )
    assert all(path in ROUTES for path in reached)


async def test_one_response_of_the_responses_api_is_a_client_s_route(guarded: Guarded) -> None:
    async with guarded.session.post(f"{guarded.url}/v1/responses/resp_12ab-c/cancel") as response:
        assert response.status == 200


async def test_health_passes_while_it_serves_and_is_not_counted(closed: Guarded) -> None:
    async with closed.session.get(f"{closed.url}/health") as response:
        assert response.status == 503
    await closed.open()
    async with closed.raw() as raw:
        await raw.ask("/health?do=hold", method="GET")
        await until(lambda: closed.engine.running == 1)
        assert await closed.in_flight() == 0
    await closed.idle()


async def test_metrics_pass_whether_it_serves_or_not_and_are_not_counted(closed: Guarded) -> None:
    for turn in (closed.close, closed.open):
        await turn()
        async with closed.session.get(f"{closed.url}/metrics") as response:
            assert response.status == 200
    assert closed.engine.paths() == ["/metrics", "/metrics"]


# ---------------------------------------------------------------- what passes


async def test_a_request_reaches_the_engine_as_it_was_sent(guarded: Guarded) -> None:
    headers = [("X-Trace", "one"), ("X-Trace", "two"), ("Authorization", "Bearer key"), ("Accept", "a/b")]
    url = f"{guarded.url}{COMPLETIONS}?a=1&b=%C3%A4+%2F&a=2"
    async with guarded.session.post(
        aiohttp.client.URL(url, encoded=True), data=b"\x00body", headers=headers
    ) as response:
        assert response.status == 200
    (call,) = guarded.engine.calls
    assert (call.method, call.target, call.body) == (
        "POST",
        COMPLETIONS + "?a=1&b=%C3%A4+%2F&a=2",
        b"\x00body",
    )
    assert call.header("x-trace") == ["one", "two"]
    assert (call.header("authorization"), call.header("accept")) == (["Bearer key"], ["a/b"])
    assert call.header("content-length") == ["5"]


async def test_an_answer_reaches_the_client_as_it_was_given(guarded: Guarded) -> None:
    extra = json.dumps({"set-cookie": ["a=1", "b=2"], "x-request-id": ["7"]})
    async with guarded.post(
        urlencode({"headers": extra, "status": "422", "answer": '{"error":"no"}'})
    ) as response:
        assert (response.status, await response.text()) == (422, '{"error":"no"}')
        assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
        assert response.headers["X-Request-Id"] == "7"
        assert response.headers["Content-Length"] == "14"


async def test_headers_of_one_connection_stay_there(guarded: Guarded) -> None:
    if guarded.form != "port":
        pytest.skip("the middleware has no connection of its own to the engine")
    named = "Connection: keep-alive, X-Mine\r\nX-Mine: 1\r\nTE: trailers\r\nKeep-Alive: timeout=5\r\nX-Other: 2\r\n"
    async with guarded.raw() as raw:
        await raw.ask(COMPLETIONS, headers=named)
        await raw.head()
    (call,) = guarded.engine.calls
    names = {name for name, _ in call.headers}
    assert "x-other" in names
    assert not names & {"x-mine", "te", "keep-alive"}


async def test_nothing_is_added_to_what_the_client_accepts(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(COMPLETIONS)
        await raw.head()
    (call,) = guarded.engine.calls
    assert {name for name, _ in call.headers} == {"host", "content-length"}


async def test_a_compressed_request_stays_compressed(guarded: Guarded) -> None:
    packed = gzip.compress(b'{"prompt": "fox"}')
    async with guarded.post(data=packed, headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 200
    (call,) = guarded.engine.calls
    assert (call.body, call.header("content-encoding")) == (packed, ["gzip"])


async def test_a_compressed_answer_stays_compressed(guarded: Guarded) -> None:
    headers = json.dumps({"content-encoding": ["gzip"]})
    async with guarded.post(urlencode({"headers": headers, "answer": "not really gzip"})) as response:
        assert (await response.read(), response.headers["Content-Encoding"]) == (b"not really gzip", "gzip")


@pytest.mark.parametrize("status", [204, 304, 401, 500])
async def test_statuses_pass(guarded: Guarded, status: int) -> None:
    async with guarded.post(f"status={status}") as response:
        assert response.status == status


async def test_head_passes_with_the_length_and_without_the_body(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask("/v1/models?answer=fourteen-bytes", method="HEAD", headers="Connection: close\r\n")
        status, headers = await raw.head()
        assert (status, headers["content-length"], await raw.rest()) == (200, "14", b"")
    assert guarded.engine.calls[0].method == "HEAD"


async def test_options_passes(guarded: Guarded) -> None:
    async with guarded.session.options(f"{guarded.url}{COMPLETIONS}", headers={"Origin": "x"}) as response:
        assert response.status == 200
    assert guarded.engine.calls[0].method == "OPTIONS"


async def test_an_upgrade_that_nobody_knows_is_an_ordinary_request(guarded: Guarded) -> None:
    if guarded.form == "middleware-httptools":
        pytest.skip("there uvicorn itself loses the body of such a request")
    async with guarded.raw() as raw:
        await raw.ask(
            COMPLETIONS,
            headers="Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n",
            body=b"12345",
        )
        assert (await raw.head())[0] == 200
    assert guarded.engine.calls[0].body == b"12345"


async def test_a_client_of_http_1_0_is_served(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(f"POST {COMPLETIONS}?do=stream HTTP/1.0\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        status, _ = await raw.head()
        assert status == 200
        assert DONE in await raw.rest()
    await guarded.idle()


# ---------------------------------------------------------------- as it comes


async def test_a_stream_passes_event_by_event(guarded: Guarded) -> None:
    async with guarded.post("do=stream&wait=1&events=3") as response:
        for _ in range(3):
            guarded.engine.go.release()
            assert await response.content.readuntil(b"\n\n") == EVENT
        assert await response.content.read() == DONE


async def test_the_head_of_a_stream_passes_before_its_first_event(guarded: Guarded) -> None:
    async with guarded.post("do=stream&wait=1&events=1") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert guarded.engine.calls[0].sent == 0
        guarded.engine.go.release()
        await response.read()


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_an_upload_passes_as_it_is_sent(guarded: Guarded, framing: str) -> None:
    head = "Transfer-Encoding: chunked" if framing == "chunked" else "Content-Length: 10"
    pieces = [b"5\r\nfirst\r\n", b"5\r\nother\r\n0\r\n\r\n"] if framing == "chunked" else [b"first", b"other"]
    async with guarded.raw() as raw:
        await raw.send(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\n{head}\r\n\r\n".encode())
        await raw.send(pieces[0])
        await until(lambda: [call.body for call in guarded.engine.calls] == [b"first"])
        await raw.send(pieces[1])
        assert (await raw.head())[0] == 200
    (call,) = guarded.engine.calls
    assert call.body == b"firstother"
    assert call.header("content-length") == ([] if framing == "chunked" else ["10"])


async def test_a_client_that_does_not_read_stops_the_engine(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?do=flood&bytes={256 * MIB}")
        await until(lambda: bool(guarded.engine.calls))
        sent = await settled(lambda: guarded.engine.calls[0].sent)
        assert sent < 32 * MIB, "sockets' buffers hold that much at most"
        assert guarded.engine.running == 1
    await guarded.idle()


async def test_an_engine_that_does_not_read_stops_the_client(guarded: Guarded) -> None:
    size = 64 * MIB
    async with guarded.raw() as raw, asyncio.TaskGroup() as tasks:
        await raw.send(
            f"POST {COMPLETIONS}?do=ignore HTTP/1.1\r\nHost: guard\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        sent = 0

        async def upload() -> None:
            nonlocal sent
            while sent < size:
                await raw.send(b"x" * MIB)
                sent += MIB

        tasks.create_task(upload())
        assert await settled(lambda: sent) < 32 * MIB
        guarded.engine.go.release()
        status, headers = await raw.head()
        assert status == 200
        body = await raw.reader.readexactly(int(headers["content-length"]))
    assert json.loads(body) == {"got": size}


async def test_an_answer_to_half_an_upload_passes(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS}?do=early HTTP/1.1\r\nHost: guard\r\nContent-Length: 1000000\r\n\r\n".encode()
        )
        await raw.send(b"x" * 1000)
        assert (await raw.head())[0] == 413
    await guarded.idle()


async def test_a_client_that_asks_first_is_told_to_go_on(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert (await raw.head())[0] == 100
        await raw.send(b"abc")
        assert (await raw.head())[0] == 200
    assert guarded.engine.calls[0].body == b"abc"


async def test_a_client_that_asks_first_is_refused_before_it_sends(closed: Guarded) -> None:
    async with closed.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert (await raw.head())[0] == 503


async def test_an_event_that_comes_in_two_pieces_passes_whole(guarded: Guarded) -> None:
    async with guarded.post(urlencode({"do": "stream", "events": "1", "piece": "data: half"})) as response:
        assert await response.content.readuntil(b"\n\n") == EVENT
        guarded.engine.go.release()
        assert await response.content.read() == b"data: half" + DONE


async def test_a_stream_that_ends_without_a_blank_line_passes_to_its_end(guarded: Guarded) -> None:
    async with guarded.post(urlencode({"do": "stream", "events": "1", "tail": "data: last\n"})) as response:
        assert await response.read() == EVENT + b"data: last\n"


async def settled(count: Callable[[], int]) -> int:
    """Wait until a count has been the same for a while, and return it."""
    last, same = -1, 0
    async with asyncio.timeout(20):
        while same < 50:
            await asyncio.sleep(0.005)
            same = same + 1 if count() == last else 0
            last = count()
    return last
