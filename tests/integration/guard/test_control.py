"""The middleware's control side: for the agent alone, past the guard, and nothing of it on the public side."""

import asyncio
import base64
import stat
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.asgi_engine import DONE, EVENT, AsgiEngine, serving
from tests.fakes.ports import free_port
from tests.integration.guard.conftest import TOKEN, Raw, connected, until
from warmpool.guard_middleware import Guard, Settings


@dataclass
class Controlled:
    """An engine with a guard inside."""

    engine: AsgiEngine
    guard: Guard
    public: str
    control: str
    session: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {TOKEN}"})

    async def ask(self, method: str, path: str, **others: Any) -> tuple[int, Any]:
        others.setdefault("headers", self.headers)
        async with self.session.request(method, f"{self.control}{path}", **others) as response:
            body = await response.read()
            return response.status, await response.json() if response.content_type.endswith("json") else body

    def raw(self) -> AbstractAsyncContextManager[Raw]:
        return connected(self.control)


@pytest.fixture
async def controlled() -> AsyncIterator[Controlled]:
    engine, port = AsgiEngine(), free_port()
    guard = Guard(engine, Settings(control=f"127.0.0.1:{port}", token=TOKEN))
    async with (
        serving(guard) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        yield Controlled(engine, guard, url, f"http://127.0.0.1:{port}", session)


# ---------------------------------------------------------------- who may


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        "Basic !!!",
        "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode(),
    ],
)
@pytest.mark.parametrize("path", ["/guard", "/guard/open", "/pause", "/v1/completions"])
async def test_nobody_without_the_token(controlled: Controlled, shown: str, path: str) -> None:
    headers = {"Authorization": shown} if shown else {}
    assert (await controlled.ask("POST", path, headers=headers))[0] == 401
    assert not controlled.guard.gate.is_open
    assert controlled.engine.calls == []


@pytest.mark.parametrize(
    "shown",
    [f"Bearer {TOKEN}", f"bearer {TOKEN}", "Basic " + base64.b64encode(f"a:{TOKEN}".encode()).decode()],
)
async def test_whoever_has_it_may(controlled: Controlled, shown: str) -> None:
    assert (await controlled.ask("GET", "/guard", headers={"Authorization": shown}))[0] == 200


async def test_the_public_side_knows_no_orders_even_with_the_token(controlled: Controlled) -> None:
    async with controlled.session.post(
        f"{controlled.public}/guard/open", headers=controlled.headers
    ) as answer:
        assert answer.status == 404
    assert not controlled.guard.gate.is_open


async def test_a_socket_is_for_the_engine_s_own_user(tmp_path: Path) -> None:
    path = tmp_path / "guard.sock"
    guard = Guard(AsgiEngine(), Settings(control=f"unix:{path}"))
    async with serving(guard), aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with session.post("http://guard/guard/open") as answer:
            assert await answer.json() == {"open": True, "inFlight": 0}
    assert not path.exists()


async def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "guard.sock"
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), str(path))
    server.close()
    await server.wait_closed()
    assert path.is_socket()
    guard = Guard(AsgiEngine(), Settings(control=f"unix:{path}"))
    async with (
        serving(guard),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.get("http://guard/guard") as answer,
    ):
        assert answer.status == 200


# ---------------------------------------------------------------- orders


async def test_orders_are_answered_with_the_state(controlled: Controlled) -> None:
    assert await controlled.ask("GET", "/guard") == (200, {"open": False, "inFlight": 0})
    assert await controlled.ask("POST", "/guard/open") == (200, {"open": True, "inFlight": 0})
    assert await controlled.ask("POST", "/guard/abort") == (200, {"open": True, "inFlight": 0, "aborted": 0})
    assert await controlled.ask("POST", "/guard/close") == (200, {"open": False, "inFlight": 0})


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/guard"), ("GET", "/guard/open"), ("POST", "/guard/x")]
)
async def test_what_is_no_order_is_none(controlled: Controlled, method: str, path: str) -> None:
    assert (await controlled.ask(method, path))[0] == 404
    assert not controlled.guard.gate.is_open
    assert controlled.engine.calls == []


# ---------------------------------------------------------------- past the guard


async def test_the_agent_reaches_everything_past_a_closed_guard(controlled: Controlled) -> None:
    for path in ("/pause?mode=wait&clear_cache=false", "/v1/completions", "/collective_rpc", "/metrics"):
        status, answer = await controlled.ask("POST", path, data=b"abc")
        assert (status, answer) == (200, {"got": 3})
    assert controlled.engine.calls[0].target == "/pause?mode=wait&clear_cache=false"


async def test_what_the_agent_asks_is_not_counted_and_not_aborted(controlled: Controlled) -> None:
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(controlled.ask("POST", "/v1/completions?do=ignore"))
        await until(lambda: controlled.engine.running == 1)
        assert await controlled.ask("POST", "/guard/abort") == (
            200,
            {"open": False, "inFlight": 0, "aborted": 0},
        )
        controlled.engine.go.release()
        assert (await asking)[0] == 200


async def test_a_stream_passes_event_by_event(controlled: Controlled) -> None:
    url = f"{controlled.control}/v1/completions?do=stream&wait=1&events=2"
    async with controlled.session.post(url, headers=controlled.headers) as answer:
        for _ in range(2):
            controlled.engine.go.release()
            assert await answer.content.readuntil(b"\n\n") == EVENT
        assert await answer.read() == DONE


async def test_the_token_stays_with_the_guard(controlled: Controlled) -> None:
    await controlled.ask("POST", "/pause", headers=controlled.headers | {"X-Other": "1"})
    (call,) = controlled.engine.calls
    assert (call.header("authorization"), call.header("x-other")) == ([], ["1"])


async def test_an_agent_that_hangs_up_ends_its_request(controlled: Controlled) -> None:
    async with controlled.raw() as raw:
        await raw.ask("/v1/completions?do=hold", headers=f"Authorization: Bearer {TOKEN}\r\n")
        await until(lambda: controlled.engine.running == 1)
        raw.reset()
        await until(lambda: controlled.engine.running == 0)
    assert controlled.engine.hung_up == 1


async def test_an_agent_that_does_not_read_stops_the_engine(controlled: Controlled) -> None:
    async with controlled.raw() as raw:
        await raw.ask(f"/v1/completions?do=flood&bytes={2**30}", headers=f"Authorization: Bearer {TOKEN}\r\n")
        await until(lambda: bool(controlled.engine.calls))
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert controlled.engine.calls[0].sent < 32 * 2**20


async def test_a_large_body_passes_in_pieces(controlled: Controlled) -> None:
    status, answer = await controlled.ask("POST", "/v1/completions", data=b"x" * 1_000_000)
    assert (status, answer) == (200, {"got": 1_000_000})
    assert controlled.engine.calls[0].pieces > 1


async def test_head_has_the_length_and_no_body(controlled: Controlled) -> None:
    async with controlled.raw() as raw:
        await raw.ask("/v1/models?answer=abc", method="HEAD", headers=f"Authorization: Bearer {TOKEN}\r\n")
        status, headers = await raw.head()
        assert (status, headers["content-length"], await raw.rest()) == (200, "3", b"")


async def test_an_app_that_fails_is_a_500(controlled: Controlled) -> None:
    assert (await controlled.ask("POST", "/v1/completions?do=die-early"))[0] == 500


@pytest.mark.parametrize("query", ["do=die", "do=half&dies=1"])
async def test_an_answer_that_breaks_off_never_looks_whole(controlled: Controlled, query: str) -> None:
    with pytest.raises(aiohttp.ClientError):
        await controlled.ask("POST", f"/v1/completions?{query}")


async def test_a_client_that_asks_first_is_told_to_go_on(controlled: Controlled) -> None:
    async with controlled.raw() as raw:
        head = f"POST /pause HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        await raw.send(head.encode())
        assert (await raw.head())[0] == 100
        await raw.send(b"abc")
        assert (await raw.head())[0] == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /guard\r\n\r\n", 400),
        (b"GET http://x/guard HTTP/1.1\r\n\r\n", 400),
        (b"get /guard HTTP/1.1\r\n\r\n", 400),
        (b"GET /guard HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /guard/open HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /guard/open HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /guard/open HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET /guard HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_request_is_refused(
    controlled: Controlled, request_bytes: bytes, status: int
) -> None:
    async with controlled.raw() as raw:
        await raw.send(request_bytes)
        assert (await raw.head())[0] == status
    assert not controlled.guard.gate.is_open


async def test_connections_that_say_nothing_hold_nothing(controlled: Controlled) -> None:
    async with controlled.raw(), controlled.raw() as second:
        await second.send(b"GET /gua")
        assert (await controlled.ask("GET", "/guard"))[0] == 200
