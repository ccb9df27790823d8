"""What means harm gets a status, or the end of its connection, and nothing else happens."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import aiohttp
import pytest

from scaler.gateway.garbage import collector_lent, freeze_what_there_is
from scaler.gateway.settings import MIB, GatewaySettings
from tests.fakes.openai_engine import Script
from tests.integration.gateway.raw import BODY, connected, request
from tests.integration.gateway.rig import rig, until

POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = b"GET /v1/stolen HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
            id="a length and chunks",
        ),
        pytest.param(
            POST + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\nxxxxx" + SMUGGLED, id="two lengths"
        ),
        pytest.param(POST + b"Content-Length: +5\r\n\r\nxxxxx" + SMUGGLED, id="a signed length"),
        pytest.param(POST + b"Content-Length: 5, 5\r\n\r\nxxxxx" + SMUGGLED, id="a list of lengths"),
        pytest.param(POST + b"Content-Length: 0x5\r\n\r\nxxxxx" + SMUGGLED, id="a length in hex"),
        pytest.param(
            POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED, id="chunks not last"
        ),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED, id="another coding"),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
            id="chunks twice",
        ),
        pytest.param(
            POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, id="a space in a name"
        ),
        pytest.param(POST + b"X: a\r\n b\r\n\r\n" + SMUGGLED, id="a folded header"),
        pytest.param(POST + b"X: a\x00b\r\n\r\n" + SMUGGLED, id="a zero"),
        pytest.param(POST + b"X: a\rb\r\n\r\n" + SMUGGLED, id="a lone carriage return"),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + SMUGGLED, id="a negative chunk"),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + SMUGGLED, id="a huge chunk"
        ),
        pytest.param(POST + b"Transfer-Encoding: chunked\r\n\r\n5\nxxxxx" + SMUGGLED, id="a bare newline"),
        pytest.param(b"POST /v1/completions HTTP/3.9\r\nHost: a\r\n\r\n" + SMUGGLED, id="a version"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", id="HTTP/2"),
        pytest.param(b"GET http://other/v1/models HTTP/1.1\r\nHost: a\r\n\r\n", id="another host's address"),
        pytest.param(b"CONNECT other:80 HTTP/1.1\r\nHost: other\r\n\r\n", id="a tunnel"),
        pytest.param(b"GET /v1/models\r\n\r\n", id="no version"),
        pytest.param(b"G\xc3\x9cT / HTTP/1.1\r\nHost: a\r\n\r\n", id="a method that is none"),
        pytest.param(b"POST /v1/%00/../x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", id="a path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", id="a long header"),
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: x\r\n" % n for n in range(2000)) + b"\r\n",
            id="many headers",
        ),
        pytest.param(b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", id="a long address"),
    ],
)
async def test_what_is_no_sound_request_never_reaches_an_engine_nor_brings_another_one_with_it(
    sent: bytes,
) -> None:
    async with rig() as r, connected(r.url) as client:
        engine, url = await r.engine()
        r.route(url)
        client.send(sent)
        client.writer.write_eof()
        answer = await client.rest()
        first, _, rest = answer.partition(b"\r\n")
        assert first == b"" or 400 <= int(first.split()[1]) < 500
        assert rest.count(b"HTTP/1.1 ") == 0, "it was taken for two requests"
        assert engine.seen == []
        assert (await r.ask())[0] == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        pytest.param(
            b"GET / HTTP/1.1\r\nCookie: secret" + b"x" * 20_000, 431, "head_too_large", id="a header"
        ),
        pytest.param(b"GET /secret" + b"x" * 20_000 + b" HTTP/1.1", 431, "head_too_large", id="an address"),
        pytest.param(
            b"GET / HTTP/1.1" + b"".join(b"\r\nsecret%d: x" % n for n in range(200)),
            *(431, "head_too_large"),
            id="headers",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nse cret: x", 400, "bad_request", id="no header"),
        pytest.param(b"secret", 400, "bad_request", id="no request line"),
        pytest.param(b"GET /v1/secret HTTP/3.7", 400, "bad_request", id="no version"),
        pytest.param(
            b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nsecret",
            *(400, "bad_request"),
            id="no chunk",
        ),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", 400, "bad_request", id="TLS"),
        pytest.param(b"GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close", 404, "not_found", id="a path"),
        pytest.param(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close", 200, "", id="a sound one"),
    ],
)
async def test_an_answer_to_what_is_no_request_quotes_nothing_of_it_and_names_no_software(
    sent: bytes, status: int, code: str
) -> None:
    async with rig() as r, connected(r.url) as client:
        r.route()
        client.send(sent + b"\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        assert b"secret" not in body
        assert b"aiohttp" not in head + body
        assert b"\r\nServer: emberpool" in head
        assert b"\r\nX-Request-Id: " in head or not code
        assert not code or json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(b'{"model": "\xff\xfe"}', b"application/json", id="a model that is no UTF-8"),
        pytest.param(b"\xff" * 1000, b"application/json", id="no text at all"),
        pytest.param(b"[" * 500_000, b"application/json", id="a bomb"),
        pytest.param(b'{"a":' * 100_000, b"application/json", id="another one"),
        pytest.param(b'{"model": "\\ud800"}', b"application/json", id="half a pair"),
        pytest.param(b'{"model": "' + b"m" * 100_000 + b'"}', b"application/json", id="a long model"),
        pytest.param(b"<model>m</model>", b"text/xml", id="XML"),
        pytest.param(b"model=m", b"application/x-www-form-urlencoded", id="a form"),
        pytest.param(b"--x\r\n\r\n--x--", b"multipart/form-data; boundary=x", id="an empty form"),
        pytest.param(b"--x", b"multipart/form-data; boundary=" + b"(" * 60, id="an odd boundary"),
        pytest.param(b"{}", b"\xff/\xff; charset=\xff", id="a type that is none"),
    ],
)
async def test_a_body_that_names_no_model_of_ours_gets_4xx(body: bytes, content_type: bytes) -> None:
    async with rig() as r, connected(r.url) as client:
        engine, url = await r.engine()
        r.route(url)
        client.send(request("/v1/completions", body, b"Content-Type: " + content_type))
        assert 400 <= await client.status() < 500
        assert engine.seen == []
        assert (await r.ask())[0] == 200


@pytest.mark.parametrize(
    ("version", "coding", "status"),
    [
        (b"1.1", b"gzip, chunked", 501),
        (b"1.1", b"gzip", 400),
        (b"1.1", b"chunked, gzip", 400),
        (b"1.0", b"chunked", 400),
    ],
)
async def test_a_transfer_coding_that_others_may_read_differently_is_refused(
    version: bytes, coding: bytes, status: int
) -> None:
    async with rig() as r, connected(r.url) as client:
        engine, url = await r.engine()
        r.route(url)
        head = b"POST /v1/completions HTTP/%s\r\nHost: a\r\nTransfer-Encoding: %s\r\n\r\n" % (version, coding)
        client.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
        answer = await client.rest()
        assert answer.split(b" ", 2)[1] == b"%d" % status
        assert answer.count(b"\nX-Request-Id: ") == 1
        assert engine.seen == []


async def test_a_head_that_comes_too_slowly_is_408_and_one_that_never_begins_ends_silently() -> None:
    async with rig(GatewaySettings(header_seconds=0.1)) as r:
        async with connected(r.url) as idle, connected(r.url) as half:
            half.send(b"POST /v1/x HTTP/1.1\r\nHos")
            assert await half.status() == 408
            rest = await half.rest()
            assert b"Connection: close" in rest
            assert b"X-Request-Id: " in rest
            assert await idle.rest() == b""
        await until(lambda: r.gateway.state()["connections"] == 0)


async def test_a_head_that_trickles_in_on_a_connection_that_was_used_is_408() -> None:
    async with rig(GatewaySettings(header_seconds=0.1)) as r, connected(r.url) as client:
        _, url = await r.engine()
        r.route(url)
        for _ in range(2):
            client.send(request("/v1/completions", b'{"model": "m"}'))
            assert await client.status() == 200
            await client.reader.readuntil(b"}]}")
            await asyncio.sleep(0.15)  # longer than a head may take: a rest between requests is none
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(client.status())
            for byte in b"POST /v1/completions HTTP/1.1\r\nX: " + b"x" * 1000:
                client.send(bytes([byte]))
                if (await asyncio.wait({answer}, timeout=0.01))[0]:
                    break
        assert answer.result() == 408


async def test_a_connection_that_rests_too_long_is_closed() -> None:
    async with rig(GatewaySettings(idle_seconds=0.1, header_seconds=30.0)) as r, connected(r.url) as client:
        client.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await client.status() == 200
        assert (await client.rest()).endswith(b"ok\n")


async def test_a_long_answer_is_no_rest() -> None:
    settings = GatewaySettings(idle_seconds=0.05, header_seconds=0.05)
    async with rig(settings) as r, connected(r.url) as client:
        _, url = await r.engine(Script(tokens=3, interval_seconds=0.05))
        r.route(url)
        client.send(request())
        assert b"[DONE]" in await client.rest()


async def test_connections_are_bounded_and_who_is_one_too_many_is_told() -> None:
    async with rig(GatewaySettings(max_connections=2)) as r, AsyncExitStack() as stack:
        first = await stack.enter_async_context(connected(r.url))
        await stack.enter_async_context(connected(r.url))
        await until(lambda: r.gateway.state()["connections"] == 2)
        async with connected(r.url) as third:
            assert await third.status() == 503
            answer = await third.rest()
            assert b"\r\nRetry-After: 1\r\n" in answer
            assert b"TooManyConnections" in answer
        first.writer.close()
        await until(lambda: r.gateway.state()["connections"] == 1)
        async with r.session.get(r.url + "/livez") as response:
            assert response.status == 200


async def test_a_body_that_is_too_large_is_413_however_it_comes() -> None:
    async def pieces() -> object:
        yield b'{"x": "'
        piece = b"x" * 65_536
        for _ in range(100 * MIB // len(piece)):
            yield piece

    async with rig(GatewaySettings(max_body_bytes=MIB)) as r:
        engine, url = await r.engine()
        r.route(url)
        async with connected(r.url) as client:
            client.send(POST + b"Content-Length: %d\r\n\r\n" % (100 * MIB))
            assert await client.status() == 413
        for _ in range(2):
            try:
                async with r.session.post(r.url + "/v1/completions", data=pieces()) as response:
                    assert response.status == 413
            except aiohttp.ClientConnectionError:
                pass  # it was closed while we still sent
        assert engine.seen == []
        assert r.gateway.state()["heldBytes"] == 0


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """A gateway's garbage is collected while nobody waits, and what other tests left behind is none of its."""
    with collector_lent():
        freeze_what_there_is(1_000_000)
        yield


@pytest.mark.wall_clock
@pytest.mark.usefixtures("_no_collector")
async def test_large_bodies_of_others_hold_nobody_up() -> None:
    """None of the stretches in which it is looked at takes a third of what parsing it at once does."""
    body = b'{"x": [' + b'"y", {},' * 500_000 + b'0], "model": "nope"}'
    async with rig() as r, asyncio.TaskGroup() as group:
        stretches = []

        async def watch() -> None:
            while True:
                begun = time.thread_time()  # what others take from us is no stretch of ours
                await asyncio.sleep(0)
                stretches.append(time.thread_time() - begun)

        watching = group.create_task(watch())
        r.route()
        async with connected(r.url) as client:
            client.send(request("/v1/completions", body))
            assert await client.status() == 404
        watching.cancel()
    begun = time.thread_time()
    json.loads(body)
    at_once = time.thread_time() - begun
    assert max(stretches) < at_once / 3


async def test_half_requests_and_idle_connections_cost_nobody_else_anything() -> None:
    async with rig() as r, AsyncExitStack() as stack:
        _, url = await r.engine()
        r.route(url)
        for number in range(150):
            client = await stack.enter_async_context(connected(r.url))
            client.send(
                [b"", POST, POST + b"Content-Length: 9\r\n\r\n{", request()[: -len(BODY) // 2]][number % 4]
            )
        await until(lambda: r.gateway.state()["connections"] == 150)
        assert [(await r.ask())[0] for _ in range(20)] == [200] * 20
