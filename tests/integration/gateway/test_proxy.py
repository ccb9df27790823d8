import asyncio
import io
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs
from yarl import URL

from scaler.gateway.observe import Outcome
from scaler.gateway.routes import PolicyLimits
from scaler.gateway.settings import MIB, GatewaySettings
from tests.fakes import openai_engine
from tests.fakes.openai_engine import Behaviour, Script
from tests.integration.gateway.raw import connected, request
from tests.integration.gateway.rig import CHAT, rig, until

DEAD = "http://127.0.0.1:9"  # the discard port: nobody listens


async def test_a_stream_passes_event_by_event_as_the_engine_makes_it() -> None:
    async with rig() as r:
        engine, url = await r.engine(Script(tokens=5, interval_seconds=0.03))
        r.route(url)
        async with r.post() as response:
            first = await response.content.readuntil(b"\n\n")
            assert engine.in_flight == 1  # it still works while we read
            rest = await response.read()
        events = (first + rest).decode().split("\n\n")
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert [json.loads(event[6:])["choices"][0]["delta"].get("content") for event in events[1:6]] == [
            "t"
        ] * 5
        assert events[-2:] == ["data: [DONE]", ""]
        assert r.gateway.stats(CHAT).totals.completed == 1


async def test_an_answer_in_one_piece_passes_with_its_length() -> None:
    async with rig() as r:
        _, url = await r.engine()
        r.route(url)
        async with r.post({"stream": False}) as response:
            body = await response.read()
        assert json.loads(body)["choices"][0]["message"]["content"] == "ttt"
        assert int(response.headers["Content-Length"]) == len(body)


async def test_the_request_goes_on_unchanged() -> None:
    async with rig() as r:
        engine, url = await r.engine()
        r.route(url)
        body = b'{ "stream":true,\n "model" : "m-chat", "x": "\\u00fc"}'
        url_of_gateway = URL(r.url + "/v1/completions?a=%20b", encoded=True)
        headers = {"Authorization": "Bearer k", "X-Request-Id": "mine-1", "Content-Type": "application/json"}
        async with r.session.post(url_of_gateway, data=body, headers=headers) as response:
            await response.read()
        (seen,) = engine.seen
        assert (seen.body, seen.path) == (body, "/v1/completions?a=%20b")
        assert seen.headers["Authorization"] == "Bearer k"
        assert seen.headers["X-Request-Id"] == response.headers["X-Request-Id"] == "mine-1"


async def test_a_large_body_goes_on_unchanged() -> None:
    async with rig() as r:
        engine, url = await r.engine()
        r.route(url)
        body = json.dumps({"model": "m", "prompt": "x" * 3_000_000}).encode()
        async with r.session.post(r.url + "/v1/completions", data=io.BytesIO(body)) as response:
            assert response.status == 200
        assert engine.seen[0].body == body


async def test_what_waits_goes_to_an_endpoint_that_appears_later() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        first, first_url = await r.engine(Script(gated=True))
        second, second_url = await r.engine()
        r.route(first_url)
        asks = [group.create_task(r.ask()) for _ in range(4)]
        await r.until_queued(3)
        r.route(first_url, second_url, slots=3)
        await second.until(lambda engine: len(engine.seen) == 2)
        first.gate.set()
        assert [status for status, _ in await asyncio.gather(*asks)] == [200] * 4
        assert (len(first.seen), len(second.seen)) == (2, 2)
        assert sum(queued_before > 0 for _, _, _, queued_before in r.observed.first) == 3
        assert all(dispatched <= at for _, dispatched, at, _ in r.observed.first)


async def test_requests_wait_when_there_is_no_endpoint_at_all() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        r.route()
        ask = group.create_task(r.ask())
        await r.until_queued(1)
        _, url = await r.engine()
        r.route(url)
        assert (await ask)[0] == 200


@pytest.mark.parametrize(
    "behaviour",
    [
        *(Behaviour.ERROR, Behaviour.GUARD_CLOSED, Behaviour.RESET, Behaviour.HEADERS_THEN_RESET),
        None,
    ],
    ids=lambda behaviour: behaviour.value if behaviour else "NoListener",
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_what_fails_before_the_first_content_is_tried_elsewhere(
    behaviour: Behaviour | None,
    stream: bool,  # noqa: FBT001
) -> None:
    async with rig() as r:
        good, good_url = await r.engine()
        bad_url = DEAD if behaviour is None else (await r.engine(Script(behaviour=behaviour)))[1]
        r.route(bad_url, good_url)
        for _ in range(4):
            assert (await r.ask({"stream": stream}))[0] == 200
        assert len(good.seen) == 4
        assert r.gateway.stats(CHAT).in_flight == 0
        assert b"emberpool_gateway_retries_total{" in generate_latest(r.registry)


@asynccontextmanager
async def engine_process(*arguments: str) -> AsyncIterator[tuple[int, str]]:
    command = [sys.executable, str(Path(openai_engine.__file__)), *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            url = (await process.stdout.readline()).decode().strip()
        yield process.pid, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        transport = process._transport  # type: ignore[attr-defined]
        transport.close()


async def test_a_killed_engine_costs_nothing_before_the_first_content_and_an_error_event_after() -> None:
    arguments = ["--tokens", "1000", "--interval", "0.02"]
    async with (
        rig() as r,
        engine_process("--behaviour", "Hang") as (silent, silent_url),
        engine_process(*arguments) as (talking, talking_url),
        asyncio.TaskGroup() as group,
    ):
        _, good_url = await r.engine(Script(tokens=7))
        r.route(silent_url)
        ask = group.create_task(r.ask())
        await until(lambda: r.gateway.stats(CHAT).in_flight == 1)
        r.route(silent_url, good_url, slots=1)
        os.kill(silent, signal.SIGKILL)
        status, text = await ask
        assert (status, text.count('"content": "t"')) == (200, 7)

        r.route(talking_url)
        async with r.post() as response:
            received = await response.content.readuntil(b"\n\n")
            os.kill(talking, signal.SIGKILL)
            received += await response.read()
        events = received.decode().split("\n\n")
        assert json.loads(events[-2][6:])["error"]["code"] == "StreamCut"
        assert "[DONE]" not in received.decode()
        assert r.observed.outcomes == [Outcome.COMPLETED, Outcome.CUT]


async def test_a_stream_cut_in_the_middle_of_an_event_ends_with_whole_events_only() -> None:
    async with rig() as r:
        _, url = await r.engine(Script(behaviour=Behaviour.DIE, tokens=2))
        r.route(url)
        status, text = await r.ask()
        events = [json.loads(event[6:]) for event in text.split("\n\n") if event]
        assert status == 200
        assert [next(iter(event)) for event in events] == ["choices", "choices", "choices", "error"]
        assert r.gateway.stats(CHAT).totals.failed == 1


async def test_another_answer_that_is_cut_ends_with_its_connection() -> None:
    async with rig() as r:
        _, url = await r.engine(Script(behaviour=Behaviour.DIE_WHOLE))
        r.route(url)
        with pytest.raises(aiohttp.ClientError):
            await r.ask({"stream": False})
        assert await r.observed.until_outcomes(1) == [Outcome.CUT]


async def test_a_clients_mistake_passes_untouched_and_is_not_tried_again() -> None:
    async with rig() as r:
        engine, url = await r.engine(Script(behaviour=Behaviour.BAD_REQUEST))
        r.route(url)
        status, text = await r.ask()
        assert (status, json.loads(text)["error"]["message"]) == (400, "max_tokens is wrong")
        assert len(engine.seen) == 1
        assert r.observed.first == []


async def test_an_error_of_all_engines_reaches_the_client_after_three_attempts() -> None:
    async with rig() as r:
        engines = [await r.engine(Script(behaviour=Behaviour.ERROR)) for _ in range(4)]
        r.route(*(url for _, url in engines))
        status, text = await r.ask()
        assert (status, json.loads(text)["error"]["message"]) == (500, "broken")
        assert sum(len(engine.seen) for engine, _ in engines) == 3
        assert r.observed.outcomes == [Outcome.ENGINE_ERROR]


async def test_a_request_that_kills_engines_kills_three_at_most() -> None:
    async with rig() as r:
        engines = [await r.engine(Script(behaviour=Behaviour.RESET)) for _ in range(5)]
        r.route(*(url for _, url in engines))
        status, text = await r.ask()
        assert (status, json.loads(text)["error"]["code"]) == (502, "EngineFailed")
        assert sum(len(engine.seen) for engine, _ in engines) == 3


async def test_a_client_that_goes_away_stops_its_engine_and_frees_the_slot() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        engine, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        response = await r.post()
        await response.content.readany()
        engine.script = Script()
        ask = group.create_task(r.ask())
        await r.until_queued(1)
        response.close()
        assert (await ask)[0] == 200
        assert engine.disconnected == 1
        assert sorted(await r.observed.until_outcomes(2)) == [Outcome.ABANDONED, Outcome.COMPLETED]


async def test_a_client_that_goes_away_while_it_waits_leaves_the_queue() -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        r.route()
        ask = group.create_task(r.ask())
        await r.until_queued(1)
        ask.cancel()
        assert await r.observed.until_outcomes(1) == [Outcome.ABANDONED]
        assert r.gateway.stats(CHAT).queued == 0


@pytest.mark.parametrize("engines", [pytest.param(0, id="in the queue"), pytest.param(1, id="at an engine")])
async def test_a_client_that_waits_longer_than_promised_and_goes_away_is_told_from_a_whim(
    engines: int,
) -> None:
    async with rig() as r, asyncio.TaskGroup() as group:
        r.ttft_seconds = 0.001
        r.route(*[(await r.engine(Script(behaviour=Behaviour.HANG)))[1] for _ in range(engines)])
        began = time.monotonic()
        ask = group.create_task(r.ask())
        await r.until_demand(1)
        await until(lambda: time.monotonic() - began > 0.1)
        ask.cancel()
        assert await r.observed.until_outcomes(1) == [Outcome.ABANDONED_WAITING]


async def test_a_client_that_goes_away_in_mid_answer_has_not_waited() -> None:
    async with rig() as r:
        r.ttft_seconds = 0.0
        _, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        response = await r.post()
        await response.content.readany()
        response.close()
        assert await r.observed.until_outcomes(1) == [Outcome.ABANDONED]


async def test_a_slow_reader_holds_its_engine_back() -> None:
    async with rig() as r:
        engine, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        async with r.post() as response:
            await response.content.readany()
            sent = -1
            while engine.sent_bytes != sent:  # until the engine is blocked
                sent = engine.sent_bytes
                await asyncio.sleep(0.3)
            assert sent < 32 * 1024**2  # what kernel buffers on loopback take, and no more
            while engine.sent_bytes == sent:
                await response.content.readany()


async def test_an_engine_that_falls_silent_in_the_middle_of_its_answer_is_a_break() -> None:
    """However long the deadline is: that is over with the first content."""
    async with rig(GatewaySettings(stream_idle_seconds=0.2, deadline_seconds=60.0)) as r:
        engine, url = await r.engine(Script(tokens=2, interval_seconds=30.0))
        r.route(url)
        status, text = await r.ask()
        assert (status, text.count("StreamCut"), text.count("[DONE]")) == (200, 1, 0)
        assert await r.observed.until_outcomes(1) == [Outcome.CUT]
        await engine.until(lambda engine: engine.in_flight == 0)


async def test_a_client_s_slowness_is_no_silence_of_its_engine() -> None:
    async with rig(GatewaySettings(stream_idle_seconds=0.1)) as r:
        engine, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        async with r.post() as response:
            await response.content.readany()
            sent = -1
            while engine.sent_bytes != sent:  # until the engine is blocked
                sent = engine.sent_bytes
                await asyncio.sleep(0.3)
            while engine.sent_bytes == sent:
                assert b"StreamCut" not in await response.content.readany()


async def test_a_reader_that_takes_nothing_is_cut_off_in_the_end() -> None:
    async with rig(GatewaySettings(client_stall_seconds=0.2)) as r:
        _, url = await r.engine(Script(behaviour=Behaviour.FLOOD))
        r.route(url)
        async with r.post() as response:
            await response.content.readany()
            assert await r.observed.until_outcomes(1) == [Outcome.STALLED]
        assert r.gateway.stats(CHAT).in_flight == 0


async def test_whole_answers_that_nobody_reads_are_cut_off_in_the_end_too() -> None:
    """The first few lie in the system's buffers; what comes after them would wait for ever."""
    async with rig(GatewaySettings(client_stall_seconds=0.2)) as r, connected(r.url) as client:
        _, url = await r.engine(Script(tokens=MIB - 4096, whole=True))
        r.route(url)
        cast("asyncio.ReadTransport", client.writer.transport).pause_reading()
        client.send(b"".join(request(body=b'{"model": "m"}') for _ in range(16)))
        while Outcome.STALLED not in r.observed.outcomes:
            await r.observed.until_outcomes(len(r.observed.outcomes) + 1)
        await until(lambda: r.gateway.state()["connections"] == 0)


async def test_a_full_queue_answers_503_with_retry_after() -> None:
    async with rig(limits=PolicyLimits(max_requests=1)) as r, asyncio.TaskGroup() as group:
        r.route()
        waiting = group.create_task(r.ask())
        await r.until_queued(1)
        async with r.post() as response:
            error = (await response.json())["error"]
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        assert error["code"] == "QueueTooMany"
        assert r.gateway.stats(CHAT).totals.refused == 1
        _, url = await r.engine()
        r.route(url)
        assert (await waiting)[0] == 200


async def test_what_waits_too_long_gets_503() -> None:
    async with rig(limits=PolicyLimits(max_age_seconds=0.1)) as r:
        r.route()
        status, text = await r.ask()
        assert (status, json.loads(text)["error"]["code"]) == (503, "QueueTooOld")
        assert r.observed.outcomes == [Outcome.EXPIRED]


async def test_an_engine_that_says_nothing_costs_503_at_the_deadline_and_its_slot_is_free() -> None:
    async with rig(GatewaySettings(deadline_seconds=0.2)) as r:
        engine, url = await r.engine(Script(behaviour=Behaviour.HANG))
        r.route(url)
        async with r.post() as response:
            error = (await response.json())["error"]
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert error["code"] == "DeadlineExceeded"
        assert error["message"] == "The engine gave no content within 0.2 s; try again."
        assert r.gateway.stats(CHAT).in_flight == 0
        await engine.until(lambda engine: engine.disconnected == 1)


async def test_a_silent_engine_gets_no_second_request_while_another_one_answers() -> None:
    async with rig(GatewaySettings(answer_seconds=0.5)) as r:
        silent, silent_url = await r.engine(Script(behaviour=Behaviour.HANG))
        _, good_url = await r.engine()
        r.route(silent_url, good_url)
        with capture_logs() as logs:
            statuses = [
                (await r.ask({"stream": False}, headers={"X-Request-Id": "x-1"}))[0] for _ in range(5)
            ]
        assert statuses == [503, 200, 200, 200, 200]
        assert len(silent.seen) == 1
        endpoints = r.gateway.routes.state(CHAT, time.monotonic())
        assert cast("float", endpoints[0]["leftAloneSeconds"]) > 0
        told = [(each["event"], each["url"], each.get("request"), each.get("outcome")) for each in logs]
        assert told == [
            ("a resident is left alone", silent_url, None, None),
            ("a request failed", silent_url, "x-1", "DeadlineExceeded"),
        ]


@pytest.mark.parametrize(
    ("script", "alone"),
    [
        pytest.param(Script(first_seconds=5.0), 0, id="it computes and says that it is well"),
        pytest.param(Script(behaviour=Behaviour.FREEZE), 1, id="it says nothing any more"),
    ],
)
async def test_an_engine_that_answered_before_is_left_alone_for_a_late_answer_only_if_it_says_nothing_at_all(
    script: Script, alone: int
) -> None:
    async with rig(GatewaySettings(answer_seconds=0.3, connect_seconds=0.5)) as r:
        slow, slow_url = await r.engine()
        _, other_url = await r.engine()
        r.route(slow_url, other_url)
        assert [(await r.ask({"stream": False}))[0] for _ in range(2)] == [200, 200]
        slow.script = script
        with capture_logs() as logs:
            assert (await r.ask({"stream": False}))[0] == 503
        assert r.gateway.routes.standing(time.monotonic()) == {CHAT: (2 - alone, alone)}
        assert sum(each["event"] == "a resident is left alone" for each in logs) == alone


async def test_an_engine_that_gives_others_anything_is_not_left_alone_for_a_late_answer() -> None:
    async with rig(GatewaySettings(answer_seconds=0.5)) as r:
        busy, url = await r.engine()
        r.route(url, slots=2)
        busy.plan.extend([Script(behaviour=Behaviour.HANG), Script()])
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(r.ask({"stream": False}))
            await busy.until(lambda engine: len(engine.seen) == 1)
            assert (await r.ask({"stream": False}))[0] == 200
        assert late.result()[0] == 503
        assert r.gateway.routes.standing(time.monotonic()) == {CHAT: (1, 0)}


async def test_a_request_that_only_waited_is_told_so_and_no_engine_is_blamed() -> None:
    async with rig(GatewaySettings(deadline_seconds=0.1)) as r:
        r.route()
        status, text = await r.ask()
        error = json.loads(text)["error"]
        assert (status, error["code"]) == (503, "QueueTooOld")
        assert error["message"] == "No capacity became free within 0.1 s; try again."
        assert r.observed.outcomes == [Outcome.EXPIRED]
        assert r.gateway.stats(CHAT).totals.refused == 1


async def test_a_request_that_failed_once_and_then_waited_is_told_both() -> None:
    async with rig(GatewaySettings(deadline_seconds=0.3)) as r, asyncio.TaskGroup() as tasks:
        full, full_url = await r.engine(Script(behaviour=Behaviour.HANG))
        _, bad_url = await r.engine(Script(behaviour=Behaviour.RESET))
        r.route(full_url)
        tasks.create_task(r.ask({"stream": False}))
        await full.until(lambda engine: len(engine.seen) == 1)
        r.route(full_url, bad_url)
        status, text = await r.ask()
        error = json.loads(text)["error"]
        assert (status, error["code"]) == (503, "DeadlineExceeded")
        assert error["message"].startswith("1 attempt failed, and no other capacity became free within 0.3 s")
        full.gate.set()
        r.route()
        await r.gateway.drain(0.0)


async def test_what_waits_at_an_engine_that_hangs_is_answered_by_another_long_before_its_deadline() -> None:
    async with rig(GatewaySettings(silence_seconds=0.2)) as r:
        hung, hung_url = await r.engine(Script(behaviour=Behaviour.HANG))
        _, good_url = await r.engine()
        r.route(hung_url, good_url, slots=4)
        answers = await asyncio.gather(*(r.ask({"stream": number != 2}) for number in range(4)))
        assert [status for status, _ in answers] == [200] * 4
        assert len(hung.seen) == 2, "one stream, and one that is none"
        await hung.until(lambda engine: engine.disconnected == 2)
        assert r.gateway.routes.standing(time.monotonic()) == {CHAT: (1, 1)}
        retries = "emberpool_gateway_retries_total"
        assert r.registry.get_sample_value(retries, {"policy": "chat", "failure": "Silent"}) == 2
        assert (await r.ask())[0] == 200
        assert len(hung.seen) == 2


@pytest.mark.parametrize(
    ("engines", "body", "headers"),
    [
        pytest.param(1, {}, {}, id="there is no other"),
        pytest.param(2, {"stream": False}, {}, id="no stream has to begin there"),
        pytest.param(2, {}, {"X-Emberpool-Retry": "never"}, id="its client wants no second attempt"),
    ],
)
async def test_who_may_only_take_long_is_waited_for(
    engines: int, body: dict[str, Any], headers: dict[str, str]
) -> None:
    async with rig(GatewaySettings(silence_seconds=0.05)) as r:
        slow = Script(first_seconds=0.5)
        there = [await r.engine(slow) for _ in range(engines)]
        r.route(*(url for _, url in there))
        assert (await r.ask(body, headers=headers))[0] == 200
        assert sum(len(engine.seen) for engine, _ in there) == 1


async def test_an_engine_that_sends_others_anything_does_not_hang() -> None:
    async with rig(GatewaySettings(silence_seconds=0.4)) as r:
        stream = Script(tokens=24, interval_seconds=0.05)
        busy, url = await r.engine()
        _, other = await r.engine(stream)
        busy.plan.extend([stream, Script(first_seconds=0.8)])
        r.route(url, other, slots=2)
        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(r.ask()) for _ in range(2)]
            await busy.until(lambda engine: len(engine.seen) == 1)
            await r.until_demand(2)
            slow = tasks.create_task(r.ask())
        assert {task.result()[0] for task in (*streams, slow)} == {200}
        assert len(busy.seen) == 2, "nothing was tried elsewhere"


async def test_who_asked_for_no_stream_is_told_that_the_answer_took_too_long() -> None:
    async with rig(GatewaySettings(answer_seconds=0.2)) as r:
        _, url = await r.engine(Script(behaviour=Behaviour.HANG))
        r.route(url)
        _, text = await r.ask({"stream": False})
        message = json.loads(text)["error"]["message"]
        assert "took longer than the 0.2 s" in message
        assert "--answer-seconds" in message


async def test_an_answer_that_is_no_stream_may_take_longer_than_a_streams_first_content() -> None:
    async with rig(GatewaySettings(deadline_seconds=0.1, answer_seconds=60.0)) as r:
        _, url = await r.engine(Script(first_seconds=0.4))
        r.route(url)
        assert (await r.ask({"stream": False}))[0] == 200
        assert (await r.ask())[0] == 503


async def test_the_slots_of_an_endpoint_are_never_exceeded_and_no_request_is_lost() -> None:
    async with rig() as r:
        engines = [await r.engine(Script(tokens=2, first_seconds=0.005)) for _ in range(3)]
        r.route(*(url for _, url in engines), slots=4)
        answers = await asyncio.gather(*(r.ask() for _ in range(200)))
        assert {status for status, _ in answers} == {200}
        assert all(text.endswith("data: [DONE]\n\n") for _, text in answers)
        assert [engine.highest_in_flight for engine, _ in engines] == [4, 4, 4]
        assert sum(len(engine.seen) for engine, _ in engines) == 200
        assert r.gateway.stats(CHAT).totals.completed == 200


async def test_first_tokens_and_gaps_are_measured() -> None:
    async with rig() as r:
        _, url = await r.engine(Script(tokens=4, first_seconds=0.06, interval_seconds=0.02))
        r.route(url)
        await r.ask()
        read = r.registry.get_sample_value
        labels = {"policy": "chat"}
        ttft = read("emberpool_gateway_time_to_first_token_seconds_sum", labels)
        gaps = read("emberpool_gateway_inter_token_latency_seconds_count", labels)
        assert ttft is not None
        assert 0.06 <= ttft < 1.0
        assert gaps is not None
        assert gaps >= 3
        assert read("emberpool_gateway_requests_total", {**labels, "outcome": "Completed"}) == 1
        assert read("emberpool_gateway_in_flight_requests", labels) == 0
