"""The guard of engines that have none: what it lets through, what it never does, and how it ends what is inside."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.engine_server import Fault, free_port
from tests.fakes.vllm_server import FakeVllm
from warmpool.engines.deadline import Deadline
from warmpool.engines.forwarding import ROUTES, ForwardingGuard, whole_events
from warmpool.errors import EngineUnfit

LISTED = Path(__file__).resolve().parents[2] / "data/engines/vllm-0.32-routes.json"
BODY = {"model": "chat", "prompt": "fox", "max_tokens": 3, "return_token_ids": True}


def soon() -> Deadline:
    return Deadline.after(10)


@dataclass
class Guarded:
    """An engine behind a guard, and a client of it."""

    fake: FakeVllm
    guard: ForwardingGuard
    url: str
    session: aiohttp.ClientSession

    async def post(self, tokens: int = 3, *, stream: bool = False) -> tuple[int, str]:
        body = {**BODY, "max_tokens": tokens, "stream": stream}
        async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
            return response.status, await response.text()

    async def raw(self, target: str, method: str = "POST") -> int:
        """Ask for a target as it is written, for clients tidy up what they send."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"{method} {target} HTTP/1.1\r\nHost: guard\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        status = (await reader.readline()).split()[1]
        writer.close()
        return int(status)


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    port = free_port()
    async with FakeVllm() as fake, aiohttp.ClientSession() as session:
        guard = ForwardingGuard("127.0.0.1", port, fake.url)
        await guard.open(deadline=soon())
        yield Guarded(fake, guard, f"http://127.0.0.1:{port}", session)
        await guard.disconnect()


async def test_an_answer_comes_through_unchanged(guarded: Guarded) -> None:
    direct = guarded.session.post(f"{guarded.fake.url}/v1/completions", json=BODY)
    async with direct as response:
        expected = (response.status, await response.text(), response.headers["Content-Type"])
    async with guarded.session.post(f"{guarded.url}/v1/completions", json=BODY) as response:
        assert (response.status, await response.text(), response.headers["Content-Type"]) == expected


async def test_a_stream_comes_through_as_it_is_made(guarded: Guarded) -> None:
    guarded.fake.token_seconds = 0.02
    body = {**BODY, "max_tokens": 30, "stream": True}
    async with guarded.session.post(f"{guarded.url}/v1/completions", json=body) as response:
        assert (await response.content.readline()).startswith(b"data: ")
        assert guarded.fake.running == 1
    await until(lambda: guarded.fake.running == 0)


async def test_an_error_of_the_engine_comes_through(guarded: Guarded) -> None:
    body = {**BODY, "model": "nobody"}
    async with guarded.session.post(f"{guarded.url}/v1/completions", json=body) as response:
        assert response.status == 404
        assert "nobody" in (await response.json())["error"]["message"]


async def test_no_other_route_of_a_real_vllm_comes_through(guarded: Guarded) -> None:
    listed = json.loads(LISTED.read_text())
    others = [
        each
        for each in listed
        if each["path"] not in ROUTES and "{" not in each["path"] and each["path"] != "/metrics"
    ]
    assert {"/pause", "/resume", "/sleep", "/wake_up", "/release_kv_cache_memory", "/collective_rpc"} <= {
        each["path"] for each in others
    }
    for each in others:
        assert await guarded.raw(each["path"], each["method"]) == 404, each
    assert guarded.fake.calls == []


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../pause",
        "/v1/completions/../../pause",
        "/v1/completions/%2e%2e/%2e%2e/pause",
        "/v1%2f..%2fpause",
        "//pause",
        "/./pause",
        "/v1/completions/../../pause?mode=abort",
        "/v1/responses/../pause",
        "/v1/responses/a/cancel/../../../../pause",
        "/v1\\..\\pause",
        "http://127.0.0.1/pause",
    ],
)
async def test_a_path_that_can_be_read_in_two_ways_is_refused(guarded: Guarded, target: str) -> None:
    assert await guarded.raw(target) in {400, 404}
    assert not [call for call in guarded.fake.calls if "pause" in call]


async def test_one_response_of_the_responses_api_is_a_client_s_route(guarded: Guarded) -> None:
    await guarded.raw("/v1/responses/resp_12ab-c/cancel")
    assert guarded.fake.calls == ["POST /v1/responses/resp_12ab-c/cancel"]


async def test_a_closed_guard_sends_clients_elsewhere(guarded: Guarded) -> None:
    await guarded.guard.close(deadline=soon())
    async with guarded.session.post(f"{guarded.url}/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert response.headers["Connection"] == "close"
        assert (await response.json())["error"]["code"] == "ResidentNotServing"
    assert guarded.fake.calls == []


async def test_the_metrics_can_be_read_while_the_guard_is_closed(guarded: Guarded) -> None:
    await guarded.guard.close(deadline=soon())
    async with guarded.session.get(f"{guarded.url}/metrics") as response:
        assert "vllm:num_requests_running" in await response.text()


async def test_what_is_inside_goes_on_after_the_guard_has_closed(guarded: Guarded) -> None:
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(guarded.post(40))
        await until(lambda: guarded.fake.running == 1)
        assert (await guarded.guard.close(deadline=soon())).in_flight == 1
    assert request.result()[0] == 200
    assert (await guarded.guard.state(deadline=soon())).in_flight == 0


async def test_what_has_no_answer_yet_when_it_is_cut_off_is_sent_elsewhere(guarded: Guarded) -> None:
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(guarded.post(5000))
        await until(lambda: guarded.fake.running == 1)
        await guarded.guard.abort(deadline=soon())
    status, text = request.result()
    assert (status, json.loads(text)["error"]["code"]) == (503, "ResidentNotServing")
    await until(lambda: guarded.fake.hung_up == 1)


async def test_a_stream_that_is_cut_off_ends_with_an_error_event(guarded: Guarded) -> None:
    body = {**BODY, "max_tokens": 5000, "stream": True}
    async with guarded.session.post(f"{guarded.url}/v1/completions", json=body) as response:
        await response.content.readline()
        await guarded.guard.abort(deadline=soon())
        events = [line for line in (await response.text()).splitlines() if line]
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "ResidentNotServing"
    assert events[-1] == "data: [DONE]"
    await until(lambda: guarded.fake.hung_up == 1)


async def test_a_stream_is_never_cut_in_the_middle_of_an_event() -> None:
    async def halves() -> AsyncIterator[bytes]:
        for piece in (b"data: 1\n\ndata: ", b"2", b"\n\n", b"data: 3\r\n\r\ndata: 4"):
            yield piece

    assert [piece async for piece in whole_events(halves())] == [
        b"data: 1\n\n",
        b"data: 2\n\n",
        b"data: 3\r\n\r\n",
        b"data: 4",
    ]


@pytest.mark.parametrize(("fault", "status"), [("cut", 502), ("refuse", 500)])
async def test_an_engine_that_breaks_before_its_answer_is_told_to_the_client(
    guarded: Guarded, fault: str, status: int
) -> None:
    guarded.fake.faults["POST /v1/completions"] = Fault(fault)
    assert (await guarded.post())[0] == status
    assert (await guarded.guard.state(deadline=soon())).in_flight == 0


async def test_a_body_that_the_engine_breaks_off_is_no_whole_answer(guarded: Guarded) -> None:
    guarded.fake.faults["POST /v1/completions"] = Fault("reset")
    with pytest.raises(aiohttp.ClientError):
        await guarded.post()


async def test_an_engine_that_is_gone_is_told_to_the_client() -> None:
    port = free_port()
    guard = ForwardingGuard("127.0.0.1", port, f"http://127.0.0.1:{free_port()}")
    await guard.open(deadline=soon())
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/v1/models") as response,
    ):
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "EngineUnreachable"
    await guard.disconnect()


async def test_a_client_that_hangs_up_ends_its_request_in_the_engine(guarded: Guarded) -> None:
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(guarded.post(5000))
        await until(lambda: guarded.fake.running == 1)
        request.cancel()
    await until(lambda: guarded.fake.hung_up == 1 and guarded.fake.running == 0)
    assert (await guarded.guard.state(deadline=soon())).in_flight == 0


async def test_a_port_that_is_taken_is_named() -> None:
    async with FakeVllm() as fake:
        taken = int(fake.url.rpartition(":")[2])
        with pytest.raises(EngineUnfit, match=f"127.0.0.1:{taken} can't be listened on"):
            await ForwardingGuard("127.0.0.1", taken, fake.url).close(deadline=soon())


async def test_it_begins_closed() -> None:
    guard = ForwardingGuard("127.0.0.1", free_port(), "http://127.0.0.1:1")
    assert not (await guard.state(deadline=soon())).is_open
    await guard.disconnect()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
