"""One engine process, spoken to over real sockets."""

import asyncio
import io
import json
from typing import Any

import pytest

from scaler.signals.engine_page import read_page

CHUNK_KEYS = ["id", "object", "created", "model", "choices"]
CHOICE_KEYS = [
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids")
]


async def _collect(tools: Any, response: Any) -> list[Any]:
    async with response:
        return [event async for event in tools.events(response)]


async def test_a_stream_has_vllms_shape(client: Any, tools: Any) -> None:
    response = await client.stream(max_tokens=3, stream_options={"include_usage": True})
    assert response.content_type == "text/event-stream"
    *chunks, usage, end = await _collect(tools, response)
    assert [list(chunk) for chunk in chunks] == [CHUNK_KEYS] * 3
    assert [list(chunk["choices"][0]) for chunk in chunks] == [CHOICE_KEYS] * 3
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert list(usage) == [*CHUNK_KEYS, "usage", "system_fingerprint"]
    assert usage["usage"] == {"prompt_tokens": 6, "total_tokens": 9, "completion_tokens": 3}
    assert end == "[DONE]"


async def test_stream_and_whole_answer_agree(client: Any, tools: Any) -> None:
    _, whole = await client.complete(max_tokens=24, return_token_ids=True)
    chunks = (await _collect(tools, await client.stream(max_tokens=24, return_token_ids=True)))[:-1]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["choices"][0]["token_ids"]


async def test_chat_streams_the_role_first(client: Any, tools: Any) -> None:
    url = client.served.public + "/v1/chat/completions"
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    response = await client.session.post(url, json=body | {"ignore_eos": True})
    *chunks, end = await _collect(tools, response)
    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * 3
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert end == "[DONE]"


async def test_an_unknown_model_is_answered_as_vllm_does(client: Any) -> None:
    assert await client.complete(model="nope") == (
        404,
        {
            "error": {
                "message": "The model `nope` does not exist. Valid aliases: tiny.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
        },
    )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"{", 400, id="no-json"),
        pytest.param(b"[]", 400, id="no-object"),
        pytest.param(json.dumps({"model": "tiny", "prompt": "x" * 3000}).encode(), 400, id="too-long"),
        pytest.param(b" " * (9 << 20), 413, id="too-big"),
    ],
)
async def test_bad_bodies_get_an_error_in_openais_form(client: Any, data: bytes, status: int) -> None:
    async with client.session.post(
        client.served.public + "/v1/completions", data=io.BytesIO(data)
    ) as response:
        assert response.status == status
        assert list((await response.json())["error"]) == ["message", "type", "param", "code"]


async def test_the_model_list_has_vllms_keys(client: Any) -> None:
    models = await client.get("/v1/models")
    assert list(models) == ["object", "data"]
    card = models["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 2048)
    assert set(card) == {
        *("id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission")
    }


@pytest.mark.parametrize("path", ["/pause", "/guard/open", "/emberpool/startup", "/v2/x", "/healthz"])
async def test_the_public_listener_has_no_other_paths(client: Any, path: str) -> None:
    for method in ("GET", "POST"):
        async with client.session.request(method, client.served.public + path) as response:
            assert response.status == 404


@pytest.mark.parametrize("order", ["/guard/open", "/guard/close"])
async def test_the_metrics_page_is_public_whatever_the_gate_and_never_in_flight(
    client: Any, order: str
) -> None:
    await client.order(order)
    async with client.session.get(client.served.public + "/metrics") as response:
        page = read_page(await response.read())
    assert (response.status, page.dialect.name, page.requests) == (200, "vLLM (vllm:)", 0)
    assert page.first_tokens is not None
    assert (await client.get("/guard"))["inFlight"] == 0


async def test_a_part_of_the_metrics_page_says_what_the_whole_page_does(client: Any) -> None:
    url = client.served.public + "/metrics"
    async with client.session.get(url) as response:
        whole = await response.read()
    names = {"name[]": [name.decode() for name in read_page(whole).dialect.names]}
    async with client.session.get(url, params=names) as response:
        part = await response.read()
    assert read_page(part) == read_page(whole)
    assert len(part) < len(whole) / 3


async def test_over_the_limit_requests_wait(client: Any, tools: Any) -> None:
    streams = [await client.stream(max_tokens=1500) for _ in range(2)]
    await client.metric_becomes("num_requests_running", 2)
    async with asyncio.TaskGroup() as group:
        third = group.create_task(client.complete(max_tokens=2))
        await client.metric_becomes("num_requests_waiting", 1)
        assert not third.done()
        streams[0].close()
    assert third.result()[0] == 200
    streams[1].close()


async def test_a_client_that_goes_away_frees_its_place(client: Any, tools: Any) -> None:
    response = await client.stream(max_tokens=2000)
    await anext(tools.events(response))
    await client.metric_becomes("num_requests_running", 1)
    response.close()
    await client.metric_becomes("num_requests_running", 0)
    guard = await client.get("/guard")
    assert guard["inFlight"] == 0


async def test_a_closed_guard_refuses_and_closes_the_connection(client: Any) -> None:
    await client.order("/guard/close")
    for path in ("/v1/models", "/health"):
        async with client.session.get(client.served.public + path) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert response.headers["Connection"] == "close"
            assert response.headers["Server"] == "emberpool"
            assert (await response.json())["error"]["code"] == "ResidentNotServing"
    status, _ = await client.complete(public=False)
    assert status == 200


async def test_the_guard_counts_streams_until_they_end(client: Any, tools: Any) -> None:
    response = await client.stream(max_tokens=400)
    received = tools.events(response)
    await anext(received)
    assert await client.order("/guard/close") == (200, {"open": False, "inFlight": 1})
    rest = [event async for event in received]
    assert rest[-2]["choices"][0]["finish_reason"] == "length"
    async with asyncio.timeout(10):
        while (await client.get("/guard"))["inFlight"]:
            await asyncio.sleep(0.005)
    response.close()


async def test_aborting_ends_streams_with_an_error_event_and_nothing_after_it(
    client: Any, tools: Any
) -> None:
    response = await client.stream(max_tokens=2000)
    received = tools.events(response)
    await anext(received)
    async with asyncio.TaskGroup() as group:
        whole = group.create_task(client.complete(max_tokens=2000))
        await client.metric_becomes("num_requests_running", 2)
        status, answer = await client.order("/guard/abort")
    assert (status, answer["aborted"]) == (200, 2)
    *_, error = [event async for event in received]
    assert error["error"]["code"] == "ResidentNotServing"
    assert (whole.result()[0], whole.result()[1]["error"]["code"]) == (503, "ResidentNotServing")
    response.close()


async def test_a_request_to_a_paused_engine_is_held_and_answered_after_resume(client: Any) -> None:
    assert await client.order("/pause?mode=wait&clear_cache=false") == (200, {"status": "paused"})
    assert await client.get("/is_paused") == {"is_paused": True}
    async with asyncio.TaskGroup() as group:
        held = group.create_task(client.complete(max_tokens=2))
        async with asyncio.timeout(10):
            while not (await client.get("/guard"))["inFlight"]:
                await asyncio.sleep(0.005)
        async with client.session.get(client.served.public + "/health") as response:
            assert response.status == 200
        assert await client.metric("num_requests_waiting") == 0
        assert not held.done()
        assert await client.order("/resume") == (200, {"status": "resumed"})
    assert held.result()[0] == 200


async def test_the_default_pause_aborts(client: Any, tools: Any) -> None:
    response = await client.stream(max_tokens=2000)
    received = tools.events(response)
    await anext(received)
    assert (await client.order("/pause"))[0] == 200
    *_, last, end = [event async for event in received]
    assert (last["choices"][0]["finish_reason"], end) == ("abort", "[DONE]")
    response.close()


async def test_kv_memory_is_released_after_a_pause_only_and_comes_back(client: Any) -> None:
    _, before = await client.complete(max_tokens=20)
    status, answer = await client.order("/release_kv_cache_memory")
    assert status == 500
    assert "paused" in answer["error"]
    await client.order("/pause?mode=wait&clear_cache=true")
    assert (await client.order("/release_kv_cache_memory"))[0] == 200
    assert await client.get("/is_sleeping") == {"is_sleeping": True}
    assert (await client.order("/resume"))[0] == 500
    assert (await client.order("/wake_up?tags=kv_cache"))[0] == 200
    assert await client.get("/is_sleeping") == {"is_sleeping": False}
    assert await client.get("/is_paused") == {"is_paused": False}
    _, after = await client.complete(max_tokens=20)
    assert after["choices"] == before["choices"]


@pytest.mark.parametrize("path", ["/pause?mode=stop", "/pause?clear_cache=maybe", "/wake_up?tags=everything"])
async def test_orders_that_make_no_sense_are_refused(client: Any, path: str) -> None:
    assert (await client.order(path))[0] == 400
    assert await client.get("/is_paused") == {"is_paused": False}


async def test_the_start_is_accounted_for(client: Any) -> None:
    facts = await client.get("/emberpool/startup")
    assert list(facts["phases"]) == ["fork", "process", "context", "weights", "compile", "capture", "ready"]
    seconds = [phase["seconds"] for phase in facts["phases"].values()]
    assert seconds == sorted(seconds)
    assert 0 < seconds[0] < seconds[-1] < 120
    assert facts["pid"] == client.served.pid
    assert facts["phases"]["weights"]["bytes"] == 3394944
    assert facts["kvBytes"] > 0
    assert facts["weightsBytes"] == 2 * 3394944


async def test_the_event_loop_answers_while_the_engine_computes(client: Any) -> None:
    streams = [await client.stream(max_tokens=1500) for _ in range(2)]
    await client.metric_becomes("num_requests_running", 2)
    async with asyncio.timeout(20):
        for _ in range(20):
            await client.get("/guard")
    assert await client.metric("num_requests_running") == 2
    for response in streams:
        response.close()
