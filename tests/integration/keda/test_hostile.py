"""Calls that no operator makes: each gets a status or an end, and nobody else notices.

A bystander asks all the time and gets every answer. It shares its process with whoever is hostile here, so how much longer it waits
is for `python -m scaler.keda.bench --hostile` to measure.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.bench.http2 import HEADERS, SETTINGS, Connection, Stream, connect, frame
from scaler.keda.client import CallFailed, connected
from scaler.keda.server import SERVICE
from scaler.keda.trigger import MOST_KEYS
from tests.integration.keda.conftest import Desk, asker

PATH = f"/{SERVICE}/GetMetrics"


@asynccontextmanager
async def bystander(desk: Desk) -> AsyncIterator[list[float]]:
    """Ask on a connection of one's own, one call after the other; the times that it took."""
    took: list[float] = []
    async with connected(f"127.0.0.1:{desk.port}") as client:

        async def ask() -> None:
            while True:
                began = time.perf_counter()
                (metric,) = await client.metrics(asker(), "")
                took.append(time.perf_counter() - began)
                assert metric.value == 3.0
                await asyncio.sleep(0.002)

        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ask())
            while len(took) < 3:
                await asyncio.sleep(0.001)
            yield took
            seen = len(took)
            async with asyncio.timeout(30):
                while len(took) < seen + 3:
                    await asyncio.sleep(0.001)
            asking.cancel()


async def status(port: int, message: bytes, *metadata: tuple[str, str]) -> str:
    """Make a call with any bytes; return how it ended."""
    options = [("grpc.max_metadata_size", 1 << 20)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        try:
            await channel.unary_unary(PATH)(message, timeout=30, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


def request(**fields: str) -> bytes:
    ref = pb.ScaledObjectRef(name=fields.get("name", "spares"), namespace="serving", scalerMetadata=fields)
    return pb.GetMetricsRequest(scaledObjectRef=ref, metricName=fields.get("metric", "")).SerializeToString()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(b"", "INVALID_ARGUMENT", id="nothing"),
        pytest.param(b"\xff" * 100, "INVALID_ARGUMENT", id="no message"),
        pytest.param(b"\x0a\x03\x0a\x01\xff", "INVALID_ARGUMENT", id="text that is no UTF-8"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x0f", "INVALID_ARGUMENT", id="a length beyond the end"),
        pytest.param(os.urandom(4096), "INVALID_ARGUMENT", id="random bytes"),
        pytest.param(request(fleet="x" * 60_000), "INVALID_ARGUMENT", id="a long name"),
        pytest.param(request(fleet="x" * 1_000_000), "RESOURCE_EXHAUSTED", id="a name of 1 MB"),
        pytest.param(request(fleet="spares", junk="x" * 1_000_000), "RESOURCE_EXHAUSTED", id="1 MB of junk"),
        pytest.param(request(fleet="spares", name="n" * 20_000), "OK", id="a long name of the ScaledObject"),
        pytest.param(request(fleet="spares", metric="m" * 20_000), "INVALID_ARGUMENT", id="a long metric"),
        pytest.param(request(fleet="\x00\x1b[31m\u202e"), "NOT_FOUND", id="what terminals obey"),
    ],
)
async def test_a_message_that_no_operator_sends_gets_a_status(
    desk: Desk, message: bytes, expected: str
) -> None:
    async with bystander(desk):
        for _ in range(3):
            assert await status(desk.port, message) == expected


async def test_huge_metadata_gets_a_status(desk: Desk) -> None:
    async with bystander(desk):
        assert await status(desk.port, request(fleet="spares"), ("x", "y" * 100_000)) == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("keys", "expected"), [(MOST_KEYS, "OK"), (MOST_KEYS + 1, "INVALID_ARGUMENT"), (5000, "INVALID_ARGUMENT")]
)
async def test_a_trigger_has_so_many_keys_and_no_more(desk: Desk, keys: int, expected: str) -> None:
    others = {f"k{number:04x}": "" for number in range(keys - 1)}
    async with bystander(desk):
        assert await status(desk.port, request(fleet="spares", **others)) == expected


async def test_names_and_keys_of_any_length_leave_a_page_of_some_kilobytes(desk: Desk) -> None:
    for number in range(8):
        long = {f"\x00{number}-{key}" + "\U0001f525" * 100: "x" for key in range(60)}
        assert (
            await status(desk.port, request(fleet="spares", name=f"{number}" + "\x00" * 4000, **long)) == "OK"
        )
    page = desk.server.book.as_json()
    assert len(page["items"]) == 8
    assert len(json.dumps(page)) < 8 * 8_000


async def test_calls_and_services_that_there_arent_are_unimplemented(desk: Desk) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{desk.port}") as channel:
        for path in (f"/{SERVICE}/Nothing", "/other.Service/GetMetrics"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@asynccontextmanager
async def raw(desk: Desk, *, reads: bool = True) -> AsyncIterator[Connection]:
    connection = await connect("127.0.0.1", desk.port, reads=reads)
    try:
        yield connection
    finally:
        connection.close()


async def test_calls_whose_request_never_comes_are_ended(desk: Desk) -> None:
    """Takes the two seconds that the server waits for them."""

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    ended: list[Stream] = []
    async with raw(desk) as connection, bystander(desk):
        for path in (PATH, "/grpc.health.v1.Health/Check"):
            for _ in range(250):
                connection.open(path, ended.append)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{desk.port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="no request within 2 s") as caught:
                await channel.stream_unary(PATH)(nothing(), timeout=10)
        async with asyncio.timeout(30):
            while len(ended) < 500:
                await asyncio.sleep(0.01)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert all(stream.ended and stream.ended - stream.began >= 1.9 for stream in ended)


async def test_streams_that_nobody_reads_cost_nothing(desk: Desk) -> None:
    """Their windows are closed: not one message may be sent on them."""
    ref = asker().ref()
    async with raw(desk, reads=False) as connection:
        for number in range(500):
            ref.name = f"spares-{number}"
            connection.call(f"/{SERVICE}/StreamIsActive", ref.SerializeToString(), lambda _: None)
        async with asyncio.timeout(30):
            while desk.server.open_streams < 500:
                await asyncio.sleep(0.01)
        async with bystander(desk):
            for total in (3, 0) * 100:
                desk.publish(total)
            desk.publish(3)
    async with asyncio.timeout(30):
        while desk.server.open_streams:
            await asyncio.sleep(0.01)


async def test_one_scaled_object_cant_take_all_streams(desk: Desk) -> None:
    ended: list[Stream] = []
    async with raw(desk) as connection, bystander(desk):
        for _ in range(100):
            connection.call(f"/{SERVICE}/StreamIsActive", asker().ref().SerializeToString(), ended.append)
        async with asyncio.timeout(30):
            while len([stream for stream in ended if stream.ended]) < 92:
                await asyncio.sleep(0.01)
        assert desk.server.open_streams == 8


GARBAGE: list[Callable[[Connection], None]] = [
    lambda on: on.write(b"\x00" * 100_000),
    lambda on: on.write(b"\xff" * 100_000),
    lambda on: on.write(frame(HEADERS, 4, 1, b"\xff" * 500)),
    lambda on: on.write(frame(SETTINGS, 0, 0, b"\x00") * 1000),
    lambda on: on.close(),
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_what_is_no_http2_ends_its_own_connection(
    desk: Desk, garbage: Callable[[Connection], None]
) -> None:
    async with bystander(desk), raw(desk) as connection:
        garbage(connection)
        async with asyncio.timeout(30):
            await connection.lost.wait()


async def test_thousands_of_connects_pass(desk: Desk) -> None:
    """Opened and dropped, two hundred at a time: each says nothing."""

    async def knock() -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        except OSError:
            return  # refused is an answer
        writer.transport.abort()

    async with bystander(desk):
        for _ in range(10):
            await asyncio.gather(*(knock() for _ in range(200)))


@pytest.mark.wall_clock
async def test_three_thousand_calls_at_once_on_one_connection_are_all_answered(desk: Desk) -> None:
    """By its defaults the server would cancel hundreds of them."""
    names = ("GetMetricSpec", "GetMetrics", "IsActive")
    messages = {name: asker().ref().SerializeToString() for name in names}
    messages["GetMetrics"] = request(fleet="spares")
    ended: list[Stream] = []
    async with raw(desk) as connection, desk.client.pushed(asker()) as pushed:
        await anext(pushed)
        for number in range(3000):
            name = names[number % 3]
            connection.call(
                f"/{SERVICE}/{name}", messages[name], lambda each: ended.append(each) if each.ended else None
            )
        desk.publish(0)
        began = time.perf_counter()
        assert await anext(pushed) is False
        pushed_after = time.perf_counter() - began
        async with asyncio.timeout(20):
            while len(ended) < 3000:
                await asyncio.sleep(0.005)
    assert all(stream.answered for stream in ended)
    assert pushed_after < 1.0


async def test_a_client_that_gives_up_leaves_nothing(desk: Desk) -> None:
    async def give_up(work: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(0.001):
                await work()
        except (TimeoutError, CallFailed):
            pass

    async with bystander(desk):
        await asyncio.gather(*(give_up(lambda: desk.client.metrics(asker(), "")) for _ in range(300)))
    assert desk.server.open_streams == 0


async def test_few_streams_of_reflection_are_open_at_once(desk: Desk) -> None:
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    ended: list[Stream] = []
    async with raw(desk) as connection, bystander(desk):
        for _ in range(20):
            connection.open(path, ended.append)
        async with asyncio.timeout(30):
            while len(ended) < 4:
                await asyncio.sleep(0.01)
        assert len(ended) == 4  # and the others stay until their time is over
