"""How requests end: counted from their admission to the end of their response, whoever ends them."""

import asyncio
import json
from urllib.parse import urlencode

import aiohttp
import pytest

from tests.fakes.asgi_engine import DONE, EVENT
from tests.integration.guard.conftest import COMPLETIONS, Guarded, error_of, until

# ---------------------------------------------------------------- the count


async def test_a_whole_answer_is_counted_until_its_end(guarded: Guarded) -> None:
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(text_of(guarded, "do=ignore"))
        await until(lambda: guarded.engine.running == 1)
        assert await guarded.in_flight() == 1
        guarded.engine.go.release()
        assert (await request)[0] == 200
    await guarded.idle()


async def test_a_stream_is_counted_until_its_end(guarded: Guarded) -> None:
    async with guarded.post("do=stream&wait=1&events=2") as response:
        guarded.engine.go.release()
        await response.content.readuntil(b"\n\n")
        assert await guarded.in_flight() == 1
        guarded.engine.go.release()
        await response.read()
    await guarded.idle()


@pytest.mark.parametrize("query", ["do=hold", "do=stream&wait=1", "do=half"])
async def test_a_client_that_hangs_up_ends_its_request_in_the_engine(guarded: Guarded, query: str) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?{query}")
        await until(lambda: guarded.engine.running == 1)
        assert await guarded.in_flight() == 1
        raw.reset()
        await guarded.idle()
    assert guarded.engine.hung_up == 1


@pytest.mark.parametrize("sent", ["", "3\r\nabc\r\n", "3\r\nab"])
async def test_a_client_that_hangs_up_while_it_sends_ends_its_request(guarded: Guarded, sent: str) -> None:
    async with guarded.raw() as raw:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nTransfer-Encoding: chunked\r\n\r\n"
        await raw.send((head + sent).encode())
        await guarded.holds(1)
        raw.reset()
        await guarded.idle()
    assert guarded.engine.hung_up == len(guarded.engine.calls)


@pytest.mark.parametrize("query", ["do=die-early", "do=die", "do=half&dies=1"])
async def test_an_engine_that_fails_ends_its_request(guarded: Guarded, query: str) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?{query}")
        await raw.rest_or_answer()
    await guarded.idle()


async def test_many_on_one_connection_are_counted_one_by_one(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        for _ in range(3):
            await raw.ask(f"{COMPLETIONS}?do=whole")
        for _ in range(3):
            status, headers = await raw.head()
            assert status == 200
            await raw.reader.readexactly(int(headers["content-length"]))
    await guarded.idle()
    assert guarded.engine.most_running == 1


# ---------------------------------------------------------------- closing


async def test_what_is_inside_goes_on_after_the_guard_has_closed(guarded: Guarded) -> None:
    async with guarded.post("do=stream&wait=1&events=2") as inside:
        assert await guarded.close() == 1
        async with guarded.post() as refused:
            assert refused.status == 503
        guarded.engine.go.release()
        guarded.engine.go.release()
        assert await inside.read() == 2 * EVENT + DONE
    await guarded.idle()


async def test_a_body_that_is_still_coming_is_inside(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 6\r\n\r\nabc".encode())
        await until(lambda: guarded.engine.running == 1)
        assert await guarded.close() == 1
        await raw.send(b"def")
        assert (await raw.head())[0] == 200
    assert guarded.engine.calls[0].body == b"abcdef"


# ---------------------------------------------------------------- aborting


async def test_what_has_no_answer_yet_is_sent_elsewhere(guarded: Guarded) -> None:
    async with asyncio.TaskGroup() as tasks:
        request = tasks.create_task(text_of(guarded, "do=hold"))
        await until(lambda: guarded.engine.running == 1)
        await guarded.abort()
        status, text, headers = await request
    assert (status, error_of(text)["code"]) == (503, "ResidentNotServing")
    assert (headers["Retry-After"], headers["Connection"]) == ("1", "close")
    await guarded.idle()
    assert guarded.engine.hung_up == 1


async def test_a_stream_ends_with_an_error_event_and_nothing_after_it(guarded: Guarded) -> None:
    async with guarded.post("do=stream&wait=1&events=9") as response:
        guarded.engine.go.release()
        assert await response.content.readuntil(b"\n\n") == EVENT
        await guarded.abort()
        (event,) = events_of(await response.read())
    assert error_of(event)["code"] == "ResidentNotServing"
    await guarded.idle()
    assert guarded.engine.hung_up == 1


async def test_a_stream_is_never_cut_in_the_middle_of_an_event(guarded: Guarded) -> None:
    async with guarded.post(urlencode({"do": "stream", "events": "1", "piece": 'data: {"hal'})) as response:
        assert await response.content.readuntil(b"\n\n") == EVENT
        await until(lambda: guarded.engine.calls[0].sent > len(EVENT))
        await guarded.abort()
        (event,) = events_of(await response.read())
    assert error_of(event)["code"] == "ResidentNotServing"


@pytest.mark.parametrize("query", ["do=half", "do=half&chunked=1"])
async def test_half_an_answer_never_looks_whole(guarded: Guarded, query: str) -> None:
    async with guarded.post(query) as response:
        assert await response.content.readany() == b'{"half": '
        await guarded.abort()
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await guarded.idle()


async def test_a_body_that_is_still_coming_is_cut_off_too(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 99\r\n\r\nabc".encode()
        )
        await until(lambda: guarded.engine.running == 1)
        await guarded.abort()
        assert (await raw.head())[0] == 503
        await guarded.idle()


async def test_a_client_that_does_not_read_holds_no_abort(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?do=flood&bytes={2**30}&type=text/event-stream")
        await until(lambda: bool(guarded.engine.calls))
        await guarded.abort()
        await guarded.idle()


async def test_aborting_stops_what_is_inside_and_not_the_guard(guarded: Guarded) -> None:
    await guarded.abort()
    async with guarded.post() as response:
        assert response.status == 200


async def test_health_and_metrics_are_not_aborted(guarded: Guarded) -> None:
    async with guarded.session.get(f"{guarded.url}/metrics?do=stream&wait=1&events=1") as response:
        await guarded.abort()
        guarded.engine.go.release()
        assert await response.read() == EVENT + DONE


# ---------------------------------------------------------------- engines that break


async def test_a_stream_whose_engine_dies_ends_with_an_error_event(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?do=die&events=2")
        assert (await raw.head())[0] == 200
        text = await raw.rest()
    assert text.count(EVENT) == 2
    assert DONE not in text
    assert b'"code":"EngineBrokeOff"' in text
    assert raw.reader.at_eof(), "the connection ends with it"


@pytest.mark.parametrize("query", ["do=half&dies=1", "do=half&dies=1&chunked=1"])
async def test_a_body_whose_engine_dies_is_no_whole_answer(guarded: Guarded, query: str) -> None:
    async with guarded.post(query) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_an_engine_s_own_error_passes(guarded: Guarded) -> None:
    async with guarded.post("do=die-early") as response:
        assert (response.status, await response.text()) == (500, "Internal Server Error")


async def text_of(guarded: Guarded, query: str) -> tuple[int, str, dict[str, str]]:
    async with guarded.post(query) as response:
        return response.status, await response.text(), dict(response.headers)


def events_of(stream: bytes) -> list[str]:
    """The data of a stream's events; it has to be well-formed to its last byte."""
    assert stream.endswith(b"\n\n")
    events = stream.decode().removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    for event in events:
        json.loads(event.removeprefix("data: "))
    return [event.removeprefix("data: ") for event in events]
