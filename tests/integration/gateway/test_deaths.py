"""Engines that die at each step of an answer, before the gateway has read what they had written: who is asked once more?

Each engine writes and dies within one turn of the loop that the gateway runs on, too. So the gateway finds what was written and the
connection's end at the same moment, which is what the death of an engine looks like to a gateway that is busy.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scaler.gateway.bench.engine import answer as streamed
from scaler.gateway.observe import Outcome
from tests.integration.gateway.mortal import Death, Mortal, chunk
from tests.integration.gateway.rig import Rig, rig

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_ROLE, _FIRST, *_REST = streamed(7, 2).split(b"\n\n")[:-1]


def event(data: bytes) -> bytes:
    return chunk(data + b"\n\n")


ROLE, FIRST, REST = event(_ROLE), event(_FIRST), b"".join(map(event, _REST))
END = chunk(b"")
JSON = b'{"choices": [{"index": 0, "text": "t", "finish_reason": "length"}]}'
LONG = b'{"choices": [{"index": 0, "text": "%s"}]}' % (b"t" * 300_000)
_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = _STREAM + ROLE + FIRST + REST + END
OTHER = _STREAM + ROLE + event(_FIRST.replace(b"t7-0", b"other")) + REST + END


@asynccontextmanager
async def two(given: bytes, death: Death) -> AsyncIterator[tuple[Rig, Mortal, Mortal]]:
    """One engine that dies, which is asked first, and one that lives."""
    async with rig() as r, Mortal(given, death).serve() as dying, Mortal(OTHER).serve() as living:
        r.route(dying.url, living.url)
        yield r, dying, living


@pytest.mark.parametrize("death", Death, ids=lambda death: death.value)
@pytest.mark.parametrize(
    ("given", "body"),
    [
        pytest.param(WHOLE, streamed(7, 2), id="stream"),
        pytest.param(_LENGTH % len(JSON) + JSON, JSON, id="whole, by its length"),
        pytest.param(_CHUNKED + chunk(JSON) + END, JSON, id="whole, in chunks"),
        pytest.param(WHOLE.removesuffix(END), streamed(7, 2), id="stream, but for the last chunk's mark"),
    ],
)
async def test_an_answer_that_was_written_whole_is_passed_on_and_nobody_else_is_asked(
    given: bytes, body: bytes, death: Death
) -> None:
    async with two(given, death) as (r, dying, living), r.post() as response:
        assert response.status == 200
        assert await response.read() == body
        assert (dying.asked, living.asked) == (1, 0)
        assert await r.observed.until_outcomes(1) == [Outcome.COMPLETED]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(_LENGTH % len(LONG) + LONG, id="by its length"),
        pytest.param(_CHUNKED + chunk(LONG) + END, id="in chunks"),
    ],
)
async def test_a_long_answer_that_was_written_whole_is_read_to_its_end(given: bytes) -> None:
    """Its reader pauses in the middle, and finds the connection's end behind what it hasn't read yet."""
    async with two(given, Death.ORDERLY) as (r, dying, living), r.post() as response:
        assert await response.read() == LONG
        assert (dying.asked, living.asked) == (1, 0)


@pytest.mark.parametrize("death", Death, ids=lambda death: death.value)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(_STREAM[:30], id="half a head"),
        pytest.param(_STREAM, id="head"),
        pytest.param(_STREAM + ROLE, id="head and announcement"),
        pytest.param(_STREAM + ROLE + FIRST[:20], id="half of the first content"),
        pytest.param(_LENGTH % len(JSON) + JSON[:-1], id="all but the last byte"),
    ],
)
async def test_what_brought_no_content_is_asked_of_another_engine_but_for_who_wants_that_never(
    given: bytes, death: Death
) -> None:
    async with two(given, death) as (r, dying, living):
        async with r.post(headers={"X-Emberpool-Retry": "never"}) as response:
            assert response.status == 502
        assert (dying.asked, living.asked) == (1, 0)
    async with two(given, death) as (r, dying, living):
        status, text = await r.ask()
        assert (status, "other" in text, text.count("[DONE]")) == (200, True, 1)
        assert (dying.asked, living.asked) == (1, 1)


@pytest.mark.parametrize("death", Death, ids=lambda death: death.value)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(_STREAM + ROLE + FIRST, id="first content"),
        pytest.param(_STREAM + ROLE + FIRST + REST[:30], id="half an event"),
        pytest.param((_STREAM + ROLE + FIRST + REST).removesuffix(event(b"data: [DONE]")), id="no end"),
    ],
)
async def test_content_that_came_is_never_asked_for_again(given: bytes, death: Death) -> None:
    async with two(given, death) as (r, dying, living):
        status, text = await r.ask()
        assert status == 200
        assert (dying.asked, living.asked) == (1, 0)
        assert "StreamCut" in text
        assert "[DONE]" not in text
