"""Streams whose bytes come in all ways in which a network may bring them: what clients get is the same."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from scaler.gateway.bench.engine import answer as streamed
from scaler.gateway.observe import Outcome
from tests.integration.gateway.mortal import Mortal, chunk
from tests.integration.gateway.raw import connected, request
from tests.integration.gateway.rig import CHAT, Rig, rig

TOKENS = 12
BODY = streamed(7, TOKENS)
_EVENTS = [event + b"\n\n" for event in BODY.split(b"\n\n")[:-1]]
BEGUN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunk(_EVENTS[0])
    + chunk(_EVENTS[1])
)
"""Head, announcement and first content."""
REST = _EVENTS[2:]
END = b"0\r\n\r\n"
LARGE = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 100_000)


class Piecewise(Mortal):
    """An engine that writes the rest of its answer in pieces, each in a turn of the loop of its own."""

    def __init__(self, pieces: Sequence[bytes], *, dies: bool = False) -> None:
        super().__init__(BEGUN)
        self._pieces = pieces
        self._dies = dies

    def answer(self, transport: asyncio.Transport, head: bytes) -> None:
        super().answer(transport, head)
        asyncio.get_running_loop().call_later(0.01, self._write, transport, 0)

    def _write(self, transport: asyncio.Transport, number: int) -> None:
        if number == len(self._pieces):
            if self._dies:
                transport.close()
            return
        transport.write(self._pieces[number])
        asyncio.get_running_loop().call_later(0.0, self._write, transport, number + 1)


@asynccontextmanager
async def behind(engine: Piecewise) -> AsyncIterator[Rig]:
    async with rig() as r, engine.serve():
        r.route(engine.url)
        yield r


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


CHUNKED = b"".join(map(chunk, REST))


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        pytest.param([*map(chunk, REST), END], BODY, id="a chunk a piece"),
        pytest.param([CHUNKED + END], BODY, id="all at once"),
        pytest.param([CHUNKED, END], BODY, id="the end apart"),
        pytest.param(cut(CHUNKED + END, 1), BODY, id="byte by byte"),
        pytest.param(cut(CHUNKED + END, 7), BODY, id="in sevens"),
        pytest.param([chunk(b"".join(REST)), END], BODY, id="all events in one chunk"),
        pytest.param([*map(chunk, cut(b"".join(REST), 11)), END], BODY, id="events in many chunks"),
        pytest.param(
            [chunk(part).replace(b"\r\n", b";a=b\r\n", 1) for part in REST] + [END], BODY, id="extensions"
        ),
        pytest.param(
            [chunk(LARGE) + CHUNKED + END], BODY.replace(REST[0], LARGE + REST[0]), id="a large chunk"
        ),
        pytest.param(
            [*cut(chunk(LARGE), 30_000), CHUNKED, END],
            BODY.replace(REST[0], LARGE + REST[0]),
            id="one in pieces",
        ),
        pytest.param([CHUNKED, b"0\r\nX-A: 1\r\n\r\n"], BODY, id="trailers that nobody wanted"),
        pytest.param(
            [CHUNKED, chunk(b": the last line has no end"), END],
            BODY + b": the last line has no end",
            id="half an event",
        ),
    ],
)
async def test_a_stream_is_the_same_however_its_bytes_come_and_its_connection_serves_the_next(
    pieces: list[bytes], body: bytes
) -> None:
    engine = Piecewise(pieces)
    async with behind(engine) as r:
        for _ in range(2):
            async with r.post() as response:
                assert await response.read() == body
        assert await r.observed.until_outcomes(2) == [Outcome.COMPLETED] * 2
        assert (engine.asked, engine.connections) == (2, 1)
        assert r.gateway.stats(CHAT).totals.gaps >= 1


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        pytest.param([CHUNKED], True, id="all but the last chunk's mark"),
        pytest.param([CHUNKED.removesuffix(b"\r\n")], True, id="all but the last chunk's end"),
        pytest.param([CHUNKED[:-4]], False, id="half of the last event"),
        pytest.param([chunk(REST[0]), chunk(REST[1])], False, id="some"),
        pytest.param([chunk(REST[0]), b"5"], False, id="half a size"),
        pytest.param([], False, id="nothing more"),
    ],
)
async def test_an_engine_that_dies_in_the_middle_is_told_of(pieces: list[bytes], whole: bool) -> None:  # noqa: FBT001
    engine = Piecewise(pieces, dies=True)
    async with behind(engine) as r:
        status, text = await r.ask()
        assert (status, "[DONE]" in text, "StreamCut" in text) == (200, whole, not whole)
        assert whole == (text.encode() == BODY)
        assert await r.observed.until_outcomes(1) == [Outcome.COMPLETED if whole else Outcome.CUT]


@pytest.mark.parametrize("broken", [b"zz\r\n", b"2\r\nabX\r\n", b"-1\r\n\r\n"])
async def test_broken_framing_in_the_middle_is_a_break(broken: bytes) -> None:
    engine = Piecewise([chunk(REST[0]), broken, chunk(REST[1])])
    async with behind(engine) as r:
        _, text = await r.ask()
        assert text.startswith((_EVENTS[0] + _EVENTS[1] + REST[0]).decode())
        assert "StreamCut" in text
        assert "abX" not in text


async def test_a_client_of_http_1_0_gets_the_same_without_chunks() -> None:
    engine = Piecewise([*map(chunk, REST), END])
    async with behind(engine) as r, connected(r.url) as client:
        client.send(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert body == BODY


async def test_a_client_that_goes_away_in_the_middle_ends_its_engine_s_work() -> None:
    engine = Piecewise([chunk(REST[0])])
    async with behind(engine) as r:
        async with r.post() as response:
            await response.content.readexactly(len(_EVENTS[0] + _EVENTS[1] + REST[0]))
        assert await r.observed.until_outcomes(1) == [Outcome.ABANDONED]
        assert r.gateway.stats(CHAT).in_flight == 0
