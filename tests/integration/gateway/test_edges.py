import asyncio
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from scaler.gateway.observe import Outcome, SilentObserver
from scaler.gateway.proxy import Gateway
from scaler.gateway.settings import GatewaySettings
from tests.fakes.openai_engine import Behaviour, Script
from tests.integration.gateway.rig import CHAT, rig


async def test_an_unknown_model_is_404_and_names_the_valid_ones() -> None:
    async with rig() as r:
        r.route()
        status, text = await r.ask({"model": "nope"})
        assert status == 404
        assert (
            json.loads(text)["error"]["message"]
            == "The model `nope` does not exist. Valid models: m, m-chat."
        )


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
        assert response.status == 400


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


async def test_readiness_follows_routes_and_draining() -> None:
    async with rig() as r:

        async def status(path: str) -> int:
            async with r.session.get(r.url + path) as response:
                return response.status

        assert [await status(path) for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]
        r.route()
        assert [await status(path) for path in ("/livez", "/readyz", "/health")] == [200, 200, 200]
        await r.gateway.drain(1.0)
        assert [await status(path) for path in ("/livez", "/readyz", "/health")] == [200, 503, 503]


async def test_draining_finishes_what_is_here_and_refuses_what_comes() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(gated=True))
        r.route(url)
        running = [group.create_task(r.ask()) for _ in range(2)]
        await r.until_queued(1)
        draining = group.create_task(r.gateway.drain(10.0))
        await asyncio.sleep(0)
        async with r.post() as response:
            assert (await response.json())["error"]["code"] == "Draining"
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert response.headers["Connection"] == "close"
        assert not draining.done()
        engine.gate.set()
        assert await draining is True
        assert [status for status, _ in await asyncio.gather(*running)] == [200, 200]


async def test_draining_has_a_deadline_at_which_what_waits_is_refused() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        r.route()
        waiting = group.create_task(r.ask())
        await r.until_queued(1)
        assert await r.gateway.drain(0.05) is False
        status, text = await waiting
        assert (status, json.loads(text)["error"]["code"]) == (503, "QueueClosing")
        assert r.observed.outcomes == [Outcome.CLOSED]
        stats = r.gateway.stats(CHAT)
        assert (stats.refused, stats.failed) == (0, 1), "it was refused, and not for lack of room"


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
        stats = r.gateway.stats(CHAT)
        assert (stats.refused, stats.failed) == (0, 1)
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
        with pytest.raises(OSError, match="address already in use"):
            async with other.serve("127.0.0.1", int(r.url.rsplit(":", 1)[1])):
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
        _, writer = await asyncio.open_connection("127.0.0.1", int(r.url.rsplit(":", 1)[1]))
        hit(writer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await r.ask())[0] == 200
        assert r.gateway.stats(CHAT).demand == 0


async def test_a_body_that_comes_too_slowly_is_408() -> None:
    async with rig(GatewaySettings(receive_seconds=0.1)) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(r.url.rsplit(":", 1)[1]))
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        async with asyncio.timeout(5):
            assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        await writer.wait_closed()
