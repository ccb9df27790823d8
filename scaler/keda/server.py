"""The gRPC server that KEDA asks. Every answer comes from memory, and no handler waits for anything but its own caller.

An operator sets no deadline, and holds the ScaledObject's lock while it waits, so an answer must always come. It keeps one
connection for all ScaledObjects of one address and polls those that were created together together: a thousand of them are
three thousand calls at one moment over one connection. grpc cancels most of such a crowd by default, for it takes a queue of
calls that nobody has looked at yet for an attack; hence the options below. What they allow is bounded all the same, and a call
whose request doesn't come is ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from scaler.errors import ScalerError, UserError
from scaler.keda import health
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.answers import TARGET, Answer, Code, Refused, answer, check_known, check_metric
from scaler.keda.asking import Asked, Asking, Requests, Written
from scaler.keda.book import Book, Entry
from scaler.keda.counting import CANCELLED, OK, STREAMS, UNKNOWN, Counting, Uncounted
from scaler.keda.ending import calls_ended
from scaler.keda.heads import BadCall, Heads, parsed
from scaler.keda.health import Health
from scaler.keda.published import Board
from scaler.keda.pushes import Pushes, TooManyStreams
from scaler.keda.reflecting import REFLECTION, Reflecting
from scaler.keda.room import told
from scaler.keda.settings import KedaSettings
from scaler.keda.tls import Certificates
from scaler.keda.trigger import BadTrigger, Trigger, printable

SERVICE: Final = "externalscaler.ExternalScaler"
_WRITE_SECONDS: Final = 30.0
"""A stream that takes no message for so long has nobody who reads it."""
_END_SECONDS: Final = 2.0
"""What calls in hand get when the server ends."""
MOST_CALLS: Final = 16_384
"""Calls and streams in hand at once; what is beyond is refused."""
MOST_CONNECTIONS: Final = 1024
"""Connections at once, of which an operator has one or two; what is beyond is closed at once. Whoever holds them without a call,
or answers no ping, loses them soon, so that nobody keeps an operator out for long."""
_PEER_CHARACTERS: Final = 253
"""What is kept of who asks, by address and certificate."""
_REQUEST_BYTES: Final = 64 * 1024
"""The longest request: a trigger's metadata, with what variables of a container may hold."""
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second process on the same port should fail, not take half of the calls
    ("grpc.max_concurrent_streams", 8192),  # of one connection: 4,096 streams, and as many calls at once
    ("grpc.server.max_pending_requests", MOST_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", 2 * MOST_CALLS),
    ("grpc.max_receive_message_length", _REQUEST_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),  # without a call; with an open stream it isn't idle
    ("grpc.keepalive_time_ms", 20_000),  # finds out that an operator's node is gone
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),  # and who never makes a call
    ("grpc.http2.ping_timeout_ms", 10_000),  # without it a ping is waited for a minute
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
"""Options of the server (grpc/grpc, include/grpc/impl/channel_arg_names.h)."""


class KedaServer:
    """Answers from a board.

    Args:
        board: where decisions are put up.
        monotonic: the clock of the board's figures, in seconds.
        wall: Unix time.
        settings: how it listens.
        counting: is told of calls.
    """

    def __init__(
        self,
        board: Board,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        settings: KedaSettings,
        counting: Counting | None = None,
    ) -> None:
        self._board = board
        self._monotonic = monotonic
        self._wall = wall
        self._settings = settings
        self._counting = counting or Uncounted()
        self._pushes = Pushes(board, monotonic)
        self._health = Health(board, (SERVICE,), self._pushes.ended)
        self._heads = Heads()
        self._asking = Asking()
        self.book = Book()

    @property
    def open_streams(self) -> int:
        """Streams that are open now."""
        return len(self._pushes)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Listen for as long as the context lasts; yields the port. At its end all streams end with OK.

        Raises:
            UserError: the address is taken, or the certificates can't be used.
        """
        settings = self._settings
        certificates = None if settings.tls is None else Certificates(settings.tls, self._monotonic)
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
        reflecting = Reflecting((SERVICE, health.SERVICE, REFLECTION))
        handlers = (self._handlers(), self._health.handlers(self._heads), reflecting.handlers())
        server.add_generic_rpc_handlers(handlers)
        port = _bind(server, settings, certificates)
        await server.start()
        try:
            async with told(settings.host, port, MOST_CONNECTIONS):
                yield port
        finally:
            self.end()
            await server.stop(_END_SECONDS)
            await calls_ended()

    def end(self) -> None:
        """End all streams with OK, and say that it isn't serving any more; calls are still answered."""
        self._pushes.end()
        self._health.look()

    def _handlers(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return the handlers by name.

        All take their request as a stream of one, which is the same on the wire: so the wait for it can be bounded.
        """
        unary, streamed = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        ref, ask = (Requests(parse, self._asking) for parse in (_reference, _metrics_request))
        handlers = {
            "IsActive": unary(self._answering("IsActive", ref, self._is_active)),
            "GetMetricSpec": unary(self._answering("GetMetricSpec", ref, self._metric_spec)),
            "GetMetrics": unary(self._answering("GetMetrics", ask, self._metrics)),
            "StreamIsActive": streamed(self._answering("StreamIsActive", ref, self._stream_is_active)),
        }
        if self._settings.streams_specs:
            answering = self._answering("StreamMetricSpec", ref, self._stream_metric_spec)
            handlers["StreamMetricSpec"] = streamed(answering)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _answering(self, method: str, requests: Requests, answer: "_Answer") -> "_Handler":
        """Return what reads a call, has it answered, and counts it by how it ends: a stream when it does.

        What is raised becomes the call's status. Not by grpc's own way to abort: its exception stays in a cycle with all frames that
        it has come through, and a caller who is refused a thousand times a second would have the garbage collector stop everybody.
        It is all one step, for a call costs grpc alone some hundred microseconds, and a thousand objects ask at one moment.
        """
        counting, now, heads = self._counting, self._monotonic, self._heads

        async def handle(_: object, context: Any) -> bytes | None:  # noqa: ANN401 - grpc has no types
            began, code, entry = now(), UNKNOWN, None
            try:
                asked, metric = parsed(await heads.request(context), requests.read)
                entry = self._entry(asked, method, context)
                answered = await answer(_Call(asked, entry, asked.wanted(), metric, context))
                code = OK
            except asyncio.CancelledError:
                code = CANCELLED
                raise
            except _REFUSALS as error:
                status = _status(error)
                code = status.name
                if entry is not None:
                    entry.refused(self._wall(), code, str(error))
                context.set_code(status)
                context.set_details(str(error))
                return b""
            finally:
                counting.called(method, code, now() - began)
            return answered

        return handle

    # ------------------------------------------------------------------ the calls

    async def _is_active(self, call: "_Call") -> bytes:
        return _ACTIVITY[self._answer(call).active]

    async def _metric_spec(self, call: "_Call") -> bytes:
        check_known(call.trigger, self._board.current)
        return _spec(call.asked, call.trigger)

    async def _metrics(self, call: "_Call") -> bytes:
        value, before = self._answer(call), call.asked.metrics
        if before is not None and before.metric == call.metric and before.value == value.value:
            return before.text
        text = _metrics(call.metric or call.trigger.metric, value)
        call.asked.metrics = Written(call.metric, value.value, text)
        return text

    async def _stream_is_active(self, call: "_Call") -> None:
        with self._pushes.opened(call.asked.asker, call.trigger) as push:
            call.entry.streams += 1
            try:
                async for active in push.states():
                    await _write(call.context, _ACTIVITY[active])
                    self._counting.pushed(active=active)
            finally:
                call.entry.streams -= 1

    async def _stream_metric_spec(self, call: "_Call") -> None:
        """Send the specs once: they never change."""
        with self._pushes.counted(call.asked.asker):
            check_known(call.trigger, self._board.current)
            await _write(call.context, _spec(call.asked, call.trigger))
            await self._pushes.ended.wait()

    # ------------------------------------------------------------------ what they share

    def _entry(self, asked: Asked, method: str, context: Any) -> Entry:  # noqa: ANN401 - grpc has no types
        """Enter a call into the book, whether or not its metadata asks for anything."""
        entry = asked.entry
        if entry is None or entry.forgotten:
            entry = asked.entry = self.book.under(asked.key, asked.asker, asked.trigger)
        else:
            self.book.again(entry, asked.trigger)
        if not entry.calls[method] or method in STREAMS:
            entry.peer = _peer(context)
        entry.calls[method] += 1
        return entry

    def _answer(self, call: "_Call") -> Answer:
        check_metric(call.trigger, call.metric)
        answered = answer(call.trigger, self._board.current, self._monotonic())
        call.entry.at, call.entry.last = self._wall(), answered
        return answered


class _Call(NamedTuple):
    """A call that was read.

    Attributes:
        asked: who asks for what.
        entry: where that is noted.
        trigger: what is asked for.
        metric: the name of the metric that is asked for; empty where none is.
        context: grpc's own.
    """

    asked: Asked
    entry: Entry
    trigger: Trigger
    metric: str
    context: Any


_Answer = Callable[[_Call], Awaitable[bytes | None]]
_Handler = Callable[[object, Any], Awaitable[bytes | None]]


def _reference(raw: bytes) -> tuple[pb.ScaledObjectRef, str]:
    return pb.ScaledObjectRef.FromString(raw), ""


def _metrics_request(raw: bytes) -> tuple[pb.ScaledObjectRef, str]:
    request = pb.GetMetricsRequest.FromString(raw)
    return request.scaledObjectRef, request.metricName


_ACTIVITY: Final = {
    active: bytes(pb.IsActiveResponse(result=active).SerializeToString()) for active in (False, True)
}
"""Both answers to whether a workload is active."""


def _spec(asked: Asked, trigger: Trigger) -> bytes:
    """Return a trigger's specification, which never changes."""
    if asked.spec is None:
        spec = pb.MetricSpec(metricName=trigger.metric, targetSize=TARGET, targetSizeFloat=float(TARGET))
        asked.spec = bytes(pb.GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString())
    return asked.spec


def _metrics(metric: str, value: Answer) -> bytes:
    told = pb.MetricValue(metricName=metric, metricValue=value.rounded_up, metricValueFloat=value.value)
    return bytes(pb.GetMetricsResponse(metricValues=[told]).SerializeToString())


async def _write(context: Any, message: bytes) -> None:  # noqa: ANN401 - grpc has no types
    """Send one message of a stream.

    Raises:
        BadCall: nobody reads it.
    """
    try:
        async with asyncio.timeout(_WRITE_SECONDS):
            await context.write(message)
    except TimeoutError as error:
        message_text = f"nothing was read for {_WRITE_SECONDS:g} s"
        raise BadCall(grpc.StatusCode.RESOURCE_EXHAUSTED, message_text) from error


_STATUSES: Final = {code: grpc.StatusCode[code.name] for code in Code}
_REFUSALS: Final = (Refused, BadTrigger, TooManyStreams, BadCall)


def _status(error: ScalerError) -> grpc.StatusCode:
    """Return by which status a call ends that is refused for this."""
    match error:
        case Refused(code=code):
            return _STATUSES[code]
        case BadCall(status=status):
            return status
        case TooManyStreams():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case _:
            return grpc.StatusCode.INVALID_ARGUMENT


def _peer(context: Any) -> str:  # noqa: ANN401 - grpc has no types
    names = [name.decode("utf-8", "replace") for name in context.peer_identities() or ()]
    text = f"{context.peer()} ({', '.join(names)})" if names else str(context.peer())
    return printable(text, _PEER_CHARACTERS)


def _bind(server: Any, settings: KedaSettings, certificates: Certificates | None) -> int:  # noqa: ANN401
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.port}"
    try:
        if certificates is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, certificates.credentials()))
    except RuntimeError as error:
        raise UserError(
            f"can't listen on {address} for KEDA",
            hint="something else listens there already, or the address isn't this machine's; see --keda-port",
        ) from error
