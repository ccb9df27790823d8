"""gRPC's reflection, by which people with `grpcurl` see what can be called.

A stream of it that says nothing would stay for ever, so there are few, and none stays long.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

REFLECTION: Final = str(reflection.SERVICE_NAME)
_MOST_STREAMS: Final = 16
_SECONDS: Final = 10.0
"""How long a stream stays; a tool asks what it wants at once."""


class Reflecting:
    """Tells what can be called.

    Args:
        services: names of what can be.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._servicer = reflection.aio.ReflectionServicer(services)
        self._open = 0

    def handlers(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return what answers the calls."""
        reads = reflection_pb2.ServerReflectionRequest.FromString
        writes = reflection_pb2.ServerReflectionResponse.SerializeToString
        streamed = grpc.stream_stream_rpc_method_handler(self._answer, reads, writes)
        return grpc.method_handlers_generic_handler(REFLECTION, {"ServerReflectionInfo": streamed})

    async def _answer(self, requests: Any, context: Any) -> None:  # noqa: ANN401 - as above
        if self._open >= _MOST_STREAMS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_STREAMS} streams are open already"
            )
        self._open += 1
        try:
            async with asyncio.timeout(_SECONDS):
                async for answer in self._servicer.ServerReflectionInfo(requests, context):
                    await context.write(answer)
        except TimeoutError:
            context.set_code(grpc.StatusCode.DEADLINE_EXCEEDED)
            context.set_details(f"a stream of reflection stays {_SECONDS:g} s")
        finally:
            self._open -= 1
