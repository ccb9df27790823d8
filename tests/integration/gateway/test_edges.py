import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from scaler.gateway.observe import Outcome, SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.gateway.settings import GatewaySettings
from tests.fakes.openai_engine import Behaviour, OpenAIEngine, Script
from tests.integration.gateway.raw import connected, request
from tests.integration.gateway.rig import CHAT, port_of, rig, until
from warmpool.seats import PolicyName, SeatName


async def test_an_unknown_model_is_404_and_names_the_valid_ones() -> None:
    async with rig() as r:
        r.route()
        status, text = await r.ask({"model": "nope"})
        assert status == 404
        assert (
            json.loads(text)["error"]["message"]
            == "The model `nope` does not exist. Valid models: m, m-chat."
        )


async def test_a_gateway_without_routes_says_try_again_and_not_that_there_is_no_such_model() -> None:
    async with rig() as r, r.post() as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (await response.json())["error"]["code"] == "NoRoutes"


async def test_models_are_listed_from_all_policies() -> None:
    async with rig() as r:
        r.route()
        async with r.session.get(r.url + "/v1/models") as response:
            listed = await response.json()
        assert [model["id"] for model in listed["data"]] == ["m", "m-chat"]
        for name, status in (("m", 200), ("nope", 404)):
            async with r.session.get(f"{r.url}/v1/models/{name}") as response:
                assert response.status == status


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("POST", "/v1/completions", b"{", 400, id="bad JSON"),
        pytest.param("POST", "/v1/completions", b"{}", 400, id="no model"),
        pytest.param("POST", "/v1/completions", b"x" * 2000, 413, id="a body too large"),
        pytest.param("GET", "/v1/completions", None, 405, id="a method"),
        pytest.param("POST", "/pause", b"{}", 404, id="an engine's control route"),
        pytest.param("GET", "/metrics", None, 404, id="a route of others"),
    ],
)
async def test_bad_requests_get_errors_in_openai_style(
    method: str, path: str, body: bytes | None, status: int
) -> None:
    async with rig(GatewaySettings(max_body_bytes=1000)) as r:
        r.route()
        async with r.session.request(method, r.url + path, data=body) as response:
            error = (await response.json())["error"]
        assert response.status == status
        assert set(error) == {"message", "type", "param", "code"}


async def test_a_body_of_unknown_length_is_bounded_too() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 500

    async with rig(GatewaySettings(max_body_bytes=1000)) as r:
        r.route()
        async with r.session.post(r.url + "/v1/completions", data=pieces()) as response:
            assert response.status == 413


async def test_an_encoded_body_is_refused() -> None:
    async with rig() as r:
        headers = {"Content-Encoding": "gzip"}
        async with r.session.post(r.url + "/v1/completions", data=b"x", headers=headers) as response:
            assert response.status == 415


async def test_too_long_headers_are_refused() -> None:
    async with rig(GatewaySettings(max_header_bytes=2000)) as r:
        response = await r.session.get(r.url + "/livez", headers={"X-Long": "x" * 3000})
        await response.read()
        assert response.status == 431


async def test_all_bodies_together_are_bounded_and_let_go_with_the_first_content() -> None:
    async with rig(GatewaySettings(max_held_bytes=1000)) as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(tokens=2, interval_seconds=0.05))
        r.route()
        large = {"prompt": "x" * 600}
        waiting = group.create_task(r.ask(large))
        await r.until_queued(1)
        status, text = await r.ask(large)
        assert (status, json.loads(text)["error"]["code"]) == (503, "TooMuchHeld")
        r.route(url, slots=2)
        assert (await waiting)[0] == 200
        async with r.post(large) as first:  # its first content is here, so its body is gone
            assert engine.in_flight == 1
            assert (await r.ask(large))[0] == 200
            await first.read()


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with rig() as r:
        _, url = await r.engine()
        r.route(url)
        async with r.post(expect100=True) as response:
            assert response.status == 200
            assert (await response.text()).endswith("[DONE]\n\n")


@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"], ids=["", "kept"])
@pytest.mark.parametrize(
    ("body", "comments"),
    [
        pytest.param(b'{"model": "m", "stream": true}', 0.0, id="stream"),
        pytest.param(b'{"model": "m", "stream": true}', 0.01, id="stream, with comments before it"),
        pytest.param(b'{"model": "m"}', 0.0, id="whole"),
    ],
)
async def test_a_client_of_http_1_0_gets_no_chunks_and_an_end(
    body: bytes, comments: float, keep_alive: bytes
) -> None:
    async with rig(GatewaySettings(keep_alive_comment_seconds=comments)) as r, connected(r.url) as client:
        _, url = await r.engine(Script(first_seconds=0.05))
        r.route(url)
        sent = request("/v1/completions", body).replace(b"HTTP/1.1", b"HTTP/1.0")
        client.send(sent.replace(b"Host: a\r\n", b"Expect: 100-continue\r\n" + keep_alive))
        head, _, rest = (await client.reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        assert head == b"HTTP/1.0 200 OK", "older clients know no 100 Continue"
        assert b"transfer-encoding" not in rest.lower()
        if b"\nContent-Length: " in rest:
            length = int(rest.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            whole = await client.reader.readexactly(length)
            assert json.loads(whole)["choices"][0]["text"] == "ttt"
        else:
            whole = await client.rest()
            assert whole.endswith(b"\n\ndata: [DONE]\n\n")
            assert (b": waiting" in whole) is (comments > 0)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/chat/completions", "POST"),
        ("GET", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD, POST"),
        ("PUT", "/v1/models/m", "GET, HEAD, POST"),
        ("DELETE", "/livez", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_answered_with_those_that_it_has(
    method: str, path: str, allowed: str
) -> None:
    async with rig() as r:
        r.route()
        async with r.session.request(method, r.url + path) as response:
            assert response.status == 405
            assert response.headers["Allow"] == allowed
            assert response.headers["X-Request-Id"]
            assert (await response.json())["error"]["code"] == "method_not_allowed"


async def test_an_engines_software_is_not_named_to_clients() -> None:
    async with rig() as r:
        _, url = await r.engine()
        r.route(url)
        for stream in (True, False):
            async with r.post({"stream": stream}) as response:
                assert response.headers.getall("Server") == ["emberpool"]


async def test_readiness_follows_routes_and_draining() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:

        async def status(path: str) -> int:
            async with r.session.get(r.url + path) as response:
                return response.status

        assert [await status(path) for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        r.route()
        assert [await status(path) for path in ("/livez", "/readyz", "/health")] == [200, 200, 200]
        draining = group.create_task(r.gateway.drain(10.0, settle_seconds=5.0))
        await until(lambda: not r.gateway.ready)
        assert [await status(path) for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        _, url = await r.engine()
        r.route(url)
        async with r.post() as response:  # whoever hasn't heard of it yet is still served
            assert (response.status, response.headers["Connection"]) == (200, "close")
        draining.cancel()


async def test_draining_finishes_what_is_here_and_takes_no_new_connection() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(gated=True))
        r.route(url)
        running = [group.create_task(r.ask()) for _ in range(2)]
        await r.until_queued(1)
        async with r.session.get(r.url + "/livez"):
            pass  # leaves an idle connection
        draining = group.create_task(r.gateway.drain(10.0))
        await asyncio.sleep(0)
        async with aiohttp.ClientSession() as other:
            with pytest.raises(aiohttp.ClientConnectionError):
                await other.post(r.url + "/v1/completions", json={"model": "m"})
        assert not draining.done()
        engine.gate.set()
        assert await draining is True
        assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]


async def test_a_request_on_a_connection_that_outlives_the_drains_beginning_is_refused_with_retry_after() -> (
    None
):
    async with rig() as r, asyncio.TaskGroup() as group:
        _, url = await r.engine(Script(tokens=3, interval_seconds=0.02))
        r.route(url)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(r.url))
        body = b'{"model": "m", "stream": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        begun = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: close" not in begun
        draining = group.create_task(r.gateway.drain(10.0))
        await asyncio.sleep(0)
        writer.write(head + body)
        answer = await reader.read()
        stream, _, refusal = answer.partition(b"0\r\n\r\n")
        assert b"[DONE]" in stream
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"\r\nRetry-After: 1\r\n" in refusal
        assert b'"Draining"' in refusal
        assert await draining is True
        writer.close()
        await writer.wait_closed()


async def test_draining_has_a_deadline_at_which_what_waits_is_refused() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        r.route()
        waiting = group.create_task(r.ask())
        await r.until_queued(1)
        assert await r.gateway.drain(0.05) is False
        status, text = await waiting
        assert (status, json.loads(text)["error"]["code"]) == (503, "QueueClosing")
        assert r.observed.outcomes == [Outcome.CLOSED]
        totals = r.gateway.stats(CHAT).totals
        assert (totals.refused, totals.failed) == (0, 1), "it was refused, and not for lack of room"


async def test_what_waits_for_a_policy_that_goes_is_not_refused_for_lack_of_room() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(gated=True))
        r.route(url, slots=1)
        running, waiting = group.create_task(r.ask()), group.create_task(r.ask())
        await r.until_queued(1)
        r.gateway.routes.replace({})
        refused = await next(asyncio.as_completed((running, waiting)))
        assert (refused[0], json.loads(refused[1])["error"]["code"]) == (503, "QueueGone")
        assert r.observed.outcomes == [Outcome.GONE]
        totals = r.gateway.stats(CHAT).totals
        assert (totals.refused, totals.failed) == (0, 1)
        engine.gate.set()


async def test_leaving_cuts_what_is_left_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with asyncio.TaskGroup() as group:
        async with rig() as r:
            _, url = await r.engine(Script(behaviour=Behaviour.HANG))
            _, endless = await r.engine(Script(behaviour=Behaviour.FLOOD))
            r.route(url)

            async def fails() -> bool:
                try:
                    status, _ = await r.ask()
                except aiohttp.ClientError:
                    return True
                return status == 503

            asks = [group.create_task(fails()) for _ in range(2)]
            await r.until_queued(1)
            r.route(endless)
            r.route()
            observed = r.observed
        assert all([await ask for ask in asks])
    assert asyncio.all_tasks() == before
    assert set(observed.outcomes) <= {Outcome.ABANDONED, Outcome.CLOSED, Outcome.CUT}
    assert len(observed.outcomes) == 2


async def test_an_error_of_the_embedder_comes_out_as_it_is() -> None:
    gateway = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
    with pytest.raises(LookupError):
        async with gateway.serve("127.0.0.1", 0):
            raise LookupError


async def test_a_port_that_is_taken_is_an_os_error() -> None:
    async with rig() as r:
        other = Gateway(GatewaySettings(), SilentObserver(), CollectorRegistry())
        with pytest.raises(OSError, match="ddress already in use"):
            async with other.serve("127.0.0.1", port_of(r.url)):
                pass


@pytest.mark.parametrize(
    "hit",
    [
        pytest.param(lambda writer: writer.write(b"\x16\x03\x01 nonsense\r\n\r\n"), id="no HTTP"),
        pytest.param(lambda writer: writer.write(b"POST /v1/x HTTP/1.1\r\nHost: a\r\n"), id="half a head"),
        pytest.param(
            lambda writer: writer.write(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"),
            id="half a body",
        ),
    ],
)
async def test_a_broken_client_costs_nobody_else_anything(
    hit: Callable[[asyncio.StreamWriter], None],
) -> None:
    async with rig() as r:
        _, url = await r.engine()
        r.route(url)
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(r.url))
        hit(writer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await r.ask())[0] == 200
        assert r.gateway.stats(CHAT).demand == 0


async def test_a_body_that_comes_too_slowly_is_408() -> None:
    async with rig(GatewaySettings(receive_seconds=0.1)) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(r.url))
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        async with asyncio.timeout(5):
            assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        await writer.wait_closed()


class Broken(SilentObserver):
    def first_content(
        self, policy: PolicyName, endpoint: Endpoint, dispatched_at: float, at: float, queued_before: float
    ) -> None:
        del policy, endpoint, dispatched_at, at, queued_before
        raise LookupError("a fault of ours")


async def test_a_fault_of_ours_is_a_500_like_any_other_error_and_frees_the_slot() -> None:
    engine, chat = OpenAIEngine(), PolicyName("chat")
    gateway = Gateway(GatewaySettings(), Broken(), CollectorRegistry())
    async with engine.serve() as url, gateway.serve("127.0.0.1", 0) as served:
        endpoint = Endpoint(seat=SeatName("s"), uid="u", policy=chat, url=url, slots=1)
        gateway.routes.replace({chat: PolicyRoutes(models=("m",), endpoints=(endpoint,))})
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(f"{served}/v1/completions", json={"model": "m"}) as response:
                    assert response.status == 500
                    assert (await response.json())["error"]["code"] == "internal_error"
        assert gateway.stats(chat).in_flight == 0


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/v1/models", "/v1/models/m"])
async def test_head_gets_what_get_does_but_for_the_body(path: str) -> None:
    async with rig() as r:
        r.route()
        async with r.session.get(r.url + path) as whole, r.session.head(r.url + path) as head:
            assert (head.status, head.headers["Content-Length"]) == (200, whole.headers["Content-Length"])
            assert await head.read() == b""


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "GET"])
async def test_a_method_that_is_not_served_is_405_and_says_which_is(method: str) -> None:
    async with rig() as r, r.session.request(method, r.url + "/v1/completions") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_a_body_that_trickles_in_costs_no_more_than_its_bytes() -> None:
    body = b'{"model": "m", "x": "' + b"x" * 3000 + b'"}'
    async with rig() as r, connected(r.url) as client:
        engine, url = await r.engine()
        r.route(url)
        client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in body:
            client.send(b"1;ext=ignored\r\n%c\r\n" % byte)
            if byte == ord("x"):
                await asyncio.sleep(0)
        client.send(b"0\r\nTrailer: dropped\r\n\r\n")
        assert await client.status() == 200
        assert engine.seen[0].body == body


async def test_a_client_that_is_told_to_go_on_and_sends_nothing_is_408() -> None:
    async with rig(GatewaySettings(receive_seconds=0.1)) as r, connected(r.url) as client:
        r.route()
        client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 30\r\n\r\n"
        )
        assert await client.status() == 100
        assert await client.reader.readline() == b"\r\n"
        assert await client.status() == 408
        assert r.gateway.state()["heldBytes"] == 0


@pytest.mark.parametrize("body", [{"stream": True}, {"stream": False}], ids=["stream", "whole"])
async def test_a_request_leaves_nothing_of_ours_to_the_garbage_collector(body: dict[str, bool]) -> None:
    """Circles cost a pause of every stream, now and then; what has one reference goes as it comes."""
    async with rig() as r:
        _, url = await r.engine()
        r.route(url, slots=1)
        for _ in range(3):
            await r.ask(body)
        gc.collect()
        gc.disable()
        try:
            before = ours()
            for _ in range(20):
                await asyncio.gather(r.ask(body), r.ask(body))  # one of them waits
            await until(lambda: r.gateway.idle)
            left = ours() - before
        finally:
            gc.enable()
        assert all(count < 10 for count in left.values()), left


def ours() -> Counter[str]:
    """Return how many objects there are of each type of the gateway's."""
    kinds = (type(each) for each in gc.get_objects())
    return Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith("scaler.gateway"))
