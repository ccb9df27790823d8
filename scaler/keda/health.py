"""gRPC's health protocol: not serving until something has been decided that can be asked for, and again once the server ends.

grpcio's own servicer keeps a lock for each watcher and ends none of them when the server does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

from scaler.keda.heads import BadCall, Heads, parsed
from scaler.keda.published import Board

SERVICE: Final = str(health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
_MOST_WATCHERS: Final = 64
"""Watches that are open at once; a mesh has one or two."""
_STATUS: Final = health_pb2.HealthCheckResponse
_Answer = Callable[[Any, Any], Awaitable[Any]]
_Handler = Callable[[object, Any], Awaitable[Any]]


class Health:
    """Says whether there are answers.

    Args:
        board: where decisions are put up.
        services: what can be asked about; the empty name is the whole server.
        ended: set once the server ends.
    """

    def __init__(self, board: Board, services: tuple[str, ...], ended: asyncio.Event) -> None:
        self._board = board
        self._services = ("", *services)
        self._ended = ended
        self._watchers: set[asyncio.Event] = set()
        board.subscribe(lambda _: self.look())

    def look(self) -> None:
        """It may have changed."""
        for watcher in self._watchers:
            watcher.set()

    def handlers(self, heads: Heads) -> Any:  # noqa: ANN401 - grpc has no types
        """Return what answers the calls.

        Args:
            heads: wait for the calls' requests.
        """
        unary, streamed = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        writes = _STATUS.SerializeToString
        methods = {
            "Check": unary(self._reading(heads, self._check), None, writes),
            "Watch": streamed(self._reading(heads, self._watch), None, writes),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    @staticmethod
    def _reading(heads: Heads, answer: "_Answer") -> "_Handler":
        async def handle(_: object, context: Any) -> Any:  # noqa: ANN401 - as above
            try:
                request = parsed(await heads.request(context), health_pb2.HealthCheckRequest.FromString)
            except BadCall as error:
                await context.abort(error.status, str(error))
                raise
            return await answer(request, context)

        return handle

    async def _check(self, request: Any, context: Any) -> Any:  # noqa: ANN401 - as above
        status = self._status(request.service)
        if status == _STATUS.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"services: {', '.join(self._services[1:])}")
        return _STATUS(status=status)

    async def _watch(self, request: Any, context: Any) -> None:  # noqa: ANN401 - as above
        if len(self._watchers) >= _MOST_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST_WATCHERS} watch already")
        news, said = asyncio.Event(), None
        self._watchers.add(news)
        try:
            while True:
                news.clear()
                status = self._status(request.service)
                if status != said:
                    said = status
                    await context.write(_STATUS(status=status))
                if self._ended.is_set():
                    return
                await news.wait()
        finally:
            self._watchers.discard(news)

    def _status(self, service: str) -> Any:  # noqa: ANN401 - grpc has no types
        if service not in self._services:
            return _STATUS.SERVICE_UNKNOWN
        serving = self._board.decided and not self._ended.is_set()
        return _STATUS.SERVING if serving else _STATUS.NOT_SERVING
