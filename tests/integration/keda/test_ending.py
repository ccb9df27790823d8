"""The end of the server: whoever restarts it finds nothing of grpc's in the log."""

import asyncio
import logging

import pytest

from scaler.keda.bench.http2 import Connection, connect
from scaler.keda.server import SERVICE
from tests.integration.keda.conftest import Desk, asker, serving

STREAMS = 300


def stream(connection: Connection, number: int) -> None:
    ref = asker().ref()
    ref.name = f"spares-{number}"
    connection.call(f"/{SERVICE}/StreamIsActive", ref.SerializeToString(), lambda _: None)


async def streams(desk: Desk, connection: Connection) -> None:
    for number in range(STREAMS):
        stream(connection, number)
    async with asyncio.timeout(30):
        while desk.server.open_streams < STREAMS:
            await asyncio.sleep(0.01)


async def ended(*, reads: bool, lost: bool) -> int:
    """End a server that has streams open, and count what is left of them as its loop ends."""
    before = asyncio.all_tasks()
    async with serving() as desk:
        desk.publish(3)
        connection = await connect("127.0.0.1", desk.port, reads=reads)
        await streams(desk, connection)
        if lost:
            connection.close()
    connection.close()
    return len(asyncio.all_tasks() - before)


@pytest.mark.parametrize(
    ("reads", "lost"),
    [
        pytest.param(True, False, id="read"),
        pytest.param(True, True, id="whose-caller-is-gone"),
        pytest.param(
            False, False, id="that-nobody-reads"
        ),  # these get the two seconds that the server gives them
    ],
)
def test_streams_are_ended_without_a_word(
    *, reads: bool, lost: bool, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In a loop of its own, for what is left of a call says so when the loop ends."""
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(ended(reads=reads, lost=lost)) == 0
    assert "Traceback" not in capfd.readouterr().err
    assert not caplog.records
