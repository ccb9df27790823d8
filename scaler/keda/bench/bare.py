"""grpcio's own floor: the same calls with the same options, answered without a look at what is asked.

What that takes no server can do without that is made of grpcio's asyncio server. A process that is measured, as `measured` says.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.bench import measured
from scaler.keda.ending import calls_ended
from scaler.keda.server import MOST_CALLS, OPTIONS, SERVICE

_METRIC = "emberpool-fleet-fleet-0000-total"
_ACTIVE = pb.IsActiveResponse(result=True)
_SPEC = pb.GetMetricSpecResponse(
    metricSpecs=[pb.MetricSpec(metricName=_METRIC, targetSize=1, targetSizeFloat=1.0)]
)
_METRICS = pb.GetMetricsResponse(
    metricValues=[pb.MetricValue(metricName=_METRIC, metricValue=5, metricValueFloat=5.0)]
)


def _always(message: Any) -> Any:  # noqa: ANN401 - grpc has no types
    text = message.SerializeToString()

    async def handle(_: bytes, __: Any) -> bytes:  # noqa: ANN401 - as above
        return bytes(text)

    return grpc.unary_unary_rpc_method_handler(handle)


def _kept_open(ended: asyncio.Event) -> Callable[[bytes, Any], Awaitable[None]]:
    text = _ACTIVE.SerializeToString()

    async def handle(_: bytes, context: Any) -> None:  # noqa: ANN401 - as above
        await context.write(text)
        await ended.wait()

    return handle


async def _serve() -> None:
    ended = asyncio.Event()
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
    handlers = {
        "IsActive": _always(_ACTIVE),
        "GetMetricSpec": _always(_SPEC),
        "GetMetrics": _always(_METRICS),
        "StreamIsActive": grpc.unary_stream_rpc_method_handler(_kept_open(ended)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    measured.say(port)
    async for _ in measured.lines():
        pass
    ended.set()
    await server.stop(1.0)
    await calls_ended()


if __name__ == "__main__":
    asyncio.run(_serve())
