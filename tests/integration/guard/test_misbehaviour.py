"""Clients that misbehave: none of them holds the guard, falsifies its count, or reaches what it may not."""

import asyncio
from contextlib import suppress

import pytest

from tests.integration.guard.conftest import COMPLETIONS, FORMS, Guarded, guarded_engine, until

GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    b"\x00" * 1000,
)


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_reaches_nobody(guarded: Guarded, garbage: bytes) -> None:
    async with guarded.raw() as raw:
        await raw.send(garbage)
        raw.writer.write_eof()
        assert b"200 OK" not in await raw.rest()
    await guarded.idle()
    assert guarded.engine.calls == []


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding : chunked",
        "Content-Length: 0x5",
        "Content-Length: 5\r\n : folded",
    ],
)
async def test_a_request_that_could_hide_another_does_not(guarded: Guarded, framing: str) -> None:
    hidden = b"0\r\n\r\nPOST /pause HTTP/1.1\r\nHost: guard\r\nContent-Length: 0\r\n\r\n"
    async with guarded.raw() as raw:
        await raw.send(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\n{framing}\r\n\r\n".encode() + hidden)
        raw.writer.write_eof()
        await raw.rest()
    await guarded.idle()
    assert "/pause" not in guarded.engine.paths()


async def test_a_broken_chunk_ends_the_request(impatient: Guarded) -> None:
    async with impatient.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".encode()
        )
        await until(lambda: impatient.engine.running == 1)
        await raw.send(b"not a length\r\n")
        assert (await raw.head())[0] in {400, 408}
        await impatient.idle()


async def test_a_head_without_end_is_not_inside(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\n".encode())
        with suppress(ConnectionError):  # servers with a limit hang up
            for number in range(200):
                await raw.send(f"X-Header-{number}: {'x' * 4000}\r\n".encode())
        assert await guarded.in_flight() == 0
    assert guarded.engine.calls == []


async def test_a_header_of_eight_kibibytes_passes(guarded: Guarded) -> None:
    async with guarded.post(headers={"Authorization": "Bearer " + "x" * 8192}) as response:
        assert response.status == 200


async def test_header_bytes_that_are_no_text_do_no_harm(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 0\r\nX-Odd: ".encode()
            + b"\xff\xfe\r\n\r\n"
        )
        assert (await raw.head())[0] in {200, 400}
    await guarded.idle()


async def test_a_query_that_is_no_text_does_no_harm(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS}?a=".encode()
            + b"\xff\xfe HTTP/1.1\r\nHost: guard\r\nContent-Length: 0\r\n\r\n"
        )
        assert (await raw.head())[0] in {200, 400}
    await guarded.idle()


async def test_a_head_that_trickles_is_not_inside(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        for byte in f"POST {COMPLETIONS} HTTP/1.1\r\nHost: gu".encode():
            await raw.send(bytes([byte]))
        assert await guarded.in_flight() == 0
    assert guarded.engine.calls == []


async def test_a_body_that_does_not_come_is_given_up(impatient: Guarded) -> None:
    async with impatient.raw() as raw:
        await raw.send(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 99\r\n\r\nabc".encode()
        )
        await until(lambda: impatient.engine.running == 1)
        status, headers = await raw.head()
        assert (status, headers["connection"]) == (408, "close")
        await impatient.idle()


async def test_an_answer_that_is_not_taken_is_given_up(impatient: Guarded) -> None:
    async with impatient.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?do=flood&bytes={2**30}")
        await until(lambda: bool(impatient.engine.calls))
        await impatient.idle()
        assert len(await raw.rest()) < 2**30


async def test_a_client_that_waits_for_the_engine_is_not_given_up(impatient: Guarded) -> None:
    async with impatient.post("do=stream&wait=1&events=1") as response:
        await asyncio.sleep(0.8)  # time is what this is about
        impatient.engine.go.release()
        assert (await response.read()).endswith(b"[DONE]\n\n")


@pytest.mark.wall_clock
@pytest.mark.parametrize("form", FORMS)
async def test_a_body_that_trickles_and_never_stops_for_long_is_taken(form: str) -> None:
    async with guarded_engine(form, silence_seconds=1.0) as guarded, guarded.raw() as raw:
        await guarded.open()
        await raw.send(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: guard\r\nContent-Length: 8\r\n\r\n".encode())
        for _ in range(8):
            await asyncio.sleep(0.15)  # as above
            await raw.send(b"x")
        assert (await raw.head())[0] == 200


async def test_a_client_that_stops_sending_and_listens_on_is_answered_or_ended(guarded: Guarded) -> None:
    async with guarded.raw() as raw:
        await raw.ask(f"{COMPLETIONS}?do=hold")
        raw.writer.write_eof()
        await guarded.idle()


async def test_connections_that_come_and_go_leave_nothing(guarded: Guarded) -> None:
    for number in range(100):
        async with guarded.raw() as raw:
            if number % 3:
                await raw.send(
                    b"POST /v1/compl" if number % 2 else f"POST {COMPLETIONS} HTTP/1.1\r\n".encode()
                )
    await guarded.idle()
    async with guarded.post() as response:
        assert response.status == 200
