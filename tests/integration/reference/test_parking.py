"""Parking one engine process over its control listener, as vLLM's sleep routes have it."""

import asyncio
import resource
from typing import Any

import psutil
import pytest


@pytest.fixture
async def paused(client: Any) -> Any:
    await client.order("/pause?mode=wait&clear_cache=true")
    yield client
    await client.order("/wake_up")


async def test_it_sleeps_and_wakes_as_vllm_does_and_answers_as_before(client: Any) -> None:
    _, before = await client.complete(max_tokens=20)
    assert await client.order("/sleep?level=1&mode=wait") == (200, {"status": "sleeping", "level": 1})
    assert await client.get("/is_paused") == {"is_paused": True}
    assert await client.get("/is_sleeping") == {"is_sleeping": True}
    assert await client.order("/wake_up?tags=weights") == (200, {"status": "sleeping", "tags": ["weights"]})
    assert await client.get("/is_paused") == {"is_paused": True}
    assert await client.get("/is_sleeping") == {"is_sleeping": True}
    assert await client.order("/wake_up?tags=kv_cache") == (200, {"status": "awake", "tags": ["kv_cache"]})
    assert await client.get("/is_sleeping") == {"is_sleeping": False}
    _, after = await client.complete(max_tokens=20)
    assert after["choices"] == before["choices"]


async def test_waking_up_without_tags_brings_everything_back(client: Any) -> None:
    await client.order("/sleep?level=1&mode=wait")
    assert await client.order("/wake_up") == (200, {"status": "awake", "tags": None})
    assert (await client.complete(max_tokens=2))[0] == 200


async def test_it_tells_where_everything_is_and_what_it_takes(paused: Any) -> None:
    startup = await paused.get("/emberpool/startup")
    held = await paused.get("/emberpool/memory")
    assert (held["weights"], held["kvTakenBytes"], held["cannotPark"]) == ("Held", startup["kvBytes"], "")
    assert held["weightsTakenBytes"] >= startup["weightsBytes"]
    await paused.order("/sleep?level=1&mode=wait")
    assert await paused.get("/emberpool/memory") == {
        "weights": "Parked",
        "weightsTakenBytes": 0,
        "kvTakenBytes": 0,
        "parkedBytes": held["weightsTakenBytes"],
        "cannotPark": "",
    }
    assert (await paused.get("/emberpool/startup"))["parkedBytes"] == held["weightsTakenBytes"]


async def test_its_process_gives_the_weights_memory_back(paused: Any) -> None:
    await paused.order("/release_kv_cache_memory")
    process = psutil.Process(paused.served.pid)
    weights = (await paused.get("/emberpool/startup"))["weightsBytes"]
    held = process.memory_info().rss
    await paused.order("/sleep?level=1&mode=wait")
    assert held - process.memory_info().rss > 0.8 * weights


async def test_the_metrics_tell_parked_from_released(paused: Any) -> None:
    async def states() -> list[float]:
        return [
            await paused.metric(f'engine_sleep_state{{engine="0",model_name="tiny",sleep_state="{state}"}}')
            for state in ("awake", "weights_offloaded")
        ]

    assert await states() == [1.0, 0.0]
    await paused.order("/release_kv_cache_memory")
    assert await states() == [0.0, 0.0]
    await paused.order("/sleep?level=1&mode=wait")
    assert await states() == [0.0, 1.0]
    await paused.order("/wake_up?tags=weights")
    assert await states() == [0.0, 0.0]


async def test_a_host_without_room_refuses_and_nothing_has_moved(tools: Any, checkpoint: Any) -> None:
    served = tools.start(checkpoint, ["--max-num-seqs", "1", "--max-model-len", "64"])
    try:
        pid = served.pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        async with tools.client(served) as client:
            await client.order("/pause?mode=wait")
            status, answer = await client.order("/sleep?level=1&mode=wait")
            assert (status, "TMPDIR" in answer["error"]) == (500, True)
            assert (await client.get("/emberpool/memory"))["weights"] == "Held"
            assert (await client.order("/resume"))[0] == 200
            assert (await client.complete(max_tokens=2))[0] == 200
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert (await client.order("/sleep?level=1&mode=wait"))[0] == 200
    finally:
        assert tools.stop(served) == 0  # also while it is parked


@pytest.mark.parametrize(
    "path",
    ["/sleep?level=2", "/sleep?level=deep", "/sleep?tags=kv_cache&mode=wait", "/sleep?mode=maybe"],
)
async def test_what_would_be_something_else_than_asked_for_is_refused(client: Any, path: str) -> None:
    assert (await client.order(path))[0] == 400
    assert (await client.get("/emberpool/memory"))["weights"] == "Held"


async def test_the_default_sleep_ends_what_runs_as_vllms_does(client: Any, tools: Any) -> None:
    response = await client.stream(max_tokens=1500)
    received = tools.events(response)
    await anext(received)
    assert (await client.order("/sleep"))[0] == 200
    *_, last, _ = [event async for event in received]
    assert last["choices"][0]["finish_reason"] == "abort"
    response.close()
    assert (await client.order("/wake_up"))[0] == 200


async def test_a_sleep_of_level_0_pauses_and_moves_nothing(paused: Any) -> None:
    assert await paused.order("/sleep?level=0&mode=wait") == (200, {"status": "sleeping", "level": 0})
    assert (await paused.get("/emberpool/memory"))["weights"] == "Held"
    assert (await paused.order("/resume"))[0] == 200


async def test_a_parked_engine_holds_requests_and_answers_them_once_it_computes(client: Any) -> None:
    await client.order("/sleep?level=1&mode=wait")
    async with asyncio.TaskGroup() as group:
        held = group.create_task(client.complete(max_tokens=2))
        async with asyncio.timeout(10):
            while not (await client.get("/guard"))["inFlight"]:
                await asyncio.sleep(0.005)
        assert not held.done()
        await client.order("/wake_up")
    assert held.result()[0] == 200
