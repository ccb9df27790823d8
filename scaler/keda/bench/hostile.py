"""A process that calls as no operator does, in one way, until it is ended: `python -m scaler.keda.bench.hostile PORT KIND`."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.bench.http2 import DATA, Stream, connect, frame
from scaler.keda.server import SERVICE

_PATH = f"/{SERVICE}/GetMetrics"
_STREAM = f"/{SERVICE}/StreamIsActive"
_FRAME = 16_384
"""The longest frame that a server takes by default."""


def _ignore(stream: Stream) -> None:
    del stream


async def _calls(port: int, message: bytes, rate: float, *metadata: tuple[str, str]) -> None:
    connection = await connect("127.0.0.1", port)
    while True:
        if connection.lost.is_set():
            connection = await connect("127.0.0.1", port)
        if metadata:
            connection.open(_PATH, _ignore, *metadata)
        else:
            connection.call(_PATH, message, _ignore)
        await asyncio.sleep(1 / rate)


async def _garbled(port: int) -> None:
    """A thousand calls a second that are no messages."""
    await _calls(port, os.urandom(512), 1000.0)


async def _large(port: int) -> None:
    """Twenty calls a second with a name of 1 MB."""
    ref = pb.ScaledObjectRef(name="a", scalerMetadata={"fleet": "x" * 1_000_000})
    message = pb.GetMetricsRequest(scaledObjectRef=ref).SerializeToString()
    while True:
        connection = await connect("127.0.0.1", port)
        stream = connection.open(_PATH, _ignore)
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        for start in range(0, len(body), _FRAME):
            connection.write(frame(DATA, 0, stream.number, body[start : start + _FRAME]))
        await asyncio.sleep(1 / 20)
        connection.close()


async def _metadata(port: int) -> None:
    """A hundred calls a second with 15 KB of metadata."""
    await _calls(port, b"", 100.0, ("x", "y" * 15_000))


async def _wrong(port: int) -> None:
    """A thousand calls a second for what there isn't."""
    ref = pb.ScaledObjectRef(name="a", namespace="b", scalerMetadata={"fleet": "no-such-fleet"})
    await _calls(port, pb.GetMetricsRequest(scaledObjectRef=ref).SerializeToString(), 1000.0)


async def _half_open(port: int) -> None:
    """Five hundred calls a second whose request never comes."""
    connection = await connect("127.0.0.1", port)
    while True:
        connection.open(_PATH, _ignore)
        await asyncio.sleep(1 / 500)


async def _connects(port: int) -> None:
    """Ten thousand connections, a thousand a second, that say nothing and are dropped a second later."""
    for _ in range(100):
        opened = [asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        writers = [
            done[1]
            for done in await asyncio.gather(*opened, return_exceptions=True)
            if isinstance(done, tuple)
        ]
        loop = asyncio.get_running_loop()
        for writer in writers:
            loop.call_later(1.0, writer.transport.abort)
        await asyncio.sleep(0.1)
    await asyncio.Event().wait()


async def _unread(port: int) -> None:
    """A thousand streams that nobody reads, with closed windows."""
    connection = await connect("127.0.0.1", port, reads=False)
    for number in range(1000):
        ref = pb.ScaledObjectRef(
            name=f"unread-{number}", namespace="b", scalerMetadata={"fleet": f"fleet-{number:04d}"}
        )
        connection.call(_STREAM, ref.SerializeToString(), _ignore)
        await asyncio.sleep(0.001)
    await asyncio.Event().wait()


KINDS: Mapping[str, Callable[[int], Awaitable[None]]] = {
    "garbled": _garbled,
    "large": _large,
    "metadata": _metadata,
    "wrong": _wrong,
    "half-open": _half_open,
    "connects": _connects,
    "unread": _unread,
}


async def _run(port: int, kind: str) -> None:
    await KINDS[kind](port)


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), sys.argv[2]))
