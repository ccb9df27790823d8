"""The gRPC server that KEDA asks. Every answer comes from memory, and no handler waits for anything but its own caller.

An operator sets no deadline, and holds the ScaledObject's lock while it waits, so an answer must always come. It keeps one
connection for all ScaledObjects of one address and polls those that were created together together: a thousand of them are
three thousand calls at one moment over one connection. grpc cancels most of such a crowd by default, for it takes a queue of
calls that nobody has looked at yet for an attack; hence the options below. What they allow is bounded all the same, and a call
whose request doesn't come is ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection

from scaler.errors import ScalerError, UserError
from scaler.keda import health
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.answers import TARGET, Answer, Code, Refused, answer, check_known, check_metric
from scaler.keda.book import Asker, Book, Entry
from scaler.keda.counting import CANCELLED, OK, UNKNOWN, Counting, Uncounted
from scaler.keda.health import Health
from scaler.keda.published import Board
from scaler.keda.pushes import Pushes, TooManyStreams
from scaler.keda.settings import KedaSettings
from scaler.keda.tls import Certificates
from scaler.keda.trigger import BadTrigger, Trigger, printable, read

SERVICE: Final = "externalscaler.ExternalScaler"
_REQUEST_SECONDS: Final = 2.0
"""From the head of a call to its request. Both are in one packet; who sends the one alone is broken, or means harm."""
_WRITE_SECONDS: Final = 30.0
"""A stream that takes no message for so long has nobody who reads it."""
_END_SECONDS: Final = 2.0
"""What calls in hand get when the server ends."""
_MOST_CALLS: Final = 16_384
"""Calls and streams in hand at once; what is beyond is refused."""
_PEER_CHARACTERS: Final = 253
"""What is kept of who asks, by address and certificate."""
_REQUEST_BYTES: Final = 64 * 1024
"""The longest request: a trigger's metadata, with what variables of a container may hold."""
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second process on the same port should fail, not take half of the calls
    ("grpc.max_concurrent_streams", 8192),  # of one connection: 4,096 streams, and as many calls at once
    ("grpc.server.max_pending_requests", _MOST_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", 2 * _MOST_CALLS),
    ("grpc.max_receive_message_length", _REQUEST_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_allowed_incoming_connections", 1024),  # an operator has one or two
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 300_000),  # one with an open stream isn't idle
    ("grpc.keepalive_time_ms", 30_000),  # finds out that an operator's node is gone
    ("grpc.keepalive_timeout_ms", 10_000),
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
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
        server.add_generic_rpc_handlers((self._handlers(), self._health.handlers()))
        reflection.enable_server_reflection((SERVICE, health.SERVICE, reflection.SERVICE_NAME), server)
        port = _bind(server, settings, certificates)
        await server.start()
        try:
            yield port
        finally:
            self.end()
            await server.stop(_END_SECONDS)

    def end(self) -> None:
        """End all streams with OK, and say that it isn't serving any more; calls are still answered."""
        self._pushes.end()
        self._health.look()

    def _handlers(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return the handlers by name.

        All take their request as a stream of one, which is the same on the wire: so the wait for it can be bounded.
        """
        unary, streamed = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers = {
            "IsActive": unary(self._counted("IsActive", self._is_active)),
            "GetMetricSpec": unary(self._counted("GetMetricSpec", self._metric_spec)),
            "GetMetrics": unary(self._counted("GetMetrics", self._metrics)),
            "StreamIsActive": streamed(self._counted("StreamIsActive", self._stream_is_active)),
        }
        if self._settings.streams_specs:
            handlers["StreamMetricSpec"] = streamed(
                self._counted("StreamMetricSpec", self._stream_metric_spec)
            )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _counted(self, method: str, handler: "_Handler") -> "_Answering":
        """Have a handler's calls counted by how they end, streams when they do."""
        answering, counting, now = _answering(handler), self._counting, self._monotonic

        async def handle(request: object, context: Any) -> bytes | None:  # noqa: ANN401 - grpc has no types
            began, code = now(), UNKNOWN
            try:
                answer, code = await answering(request, context)
            except asyncio.CancelledError:
                code = CANCELLED
                raise
            finally:
                counting.called(method, code, now() - began)
            return answer

        return handle

    # ------------------------------------------------------------------ the calls

    async def _is_active(self, context: Any) -> bytes:  # noqa: ANN401 - grpc has no types
        ref = await _request(context, pb.ScaledObjectRef.FromString)
        entry, trigger = self._entry(ref, "IsActive", context)
        return bytes(pb.IsActiveResponse(result=self._answer(entry, trigger, "").active).SerializeToString())

    async def _metric_spec(self, context: Any) -> bytes:  # noqa: ANN401 - as above
        ref = await _request(context, pb.ScaledObjectRef.FromString)
        entry, trigger = self._entry(ref, "GetMetricSpec", context)
        with self._noted(entry):
            check_known(trigger, self._board.current)
        return _spec(trigger)

    async def _metrics(self, context: Any) -> bytes:  # noqa: ANN401 - as above
        request = await _request(context, pb.GetMetricsRequest.FromString)
        entry, trigger = self._entry(request.scaledObjectRef, "GetMetrics", context)
        answered = self._answer(entry, trigger, request.metricName)
        value = pb.MetricValue(
            metricName=request.metricName or trigger.metric,
            metricValue=answered.rounded_up,
            metricValueFloat=answered.value,
        )
        return bytes(pb.GetMetricsResponse(metricValues=[value]).SerializeToString())

    async def _stream_is_active(self, context: Any) -> None:  # noqa: ANN401 - as above
        ref = await _request(context, pb.ScaledObjectRef.FromString)
        entry, trigger = self._entry(ref, "StreamIsActive", context)
        asker = Asker.of(ref.namespace, ref.name)
        with self._noted(entry), self._pushes.opened(asker, trigger) as push:
            entry.streams += 1
            try:
                async for active in push.states():
                    await _write(context, pb.IsActiveResponse(result=active).SerializeToString())
                    self._counting.pushed(active=active)
            finally:
                entry.streams -= 1

    async def _stream_metric_spec(self, context: Any) -> None:  # noqa: ANN401 - as above
        """Send the specs once: they never change."""
        ref = await _request(context, pb.ScaledObjectRef.FromString)
        entry, trigger = self._entry(ref, "StreamMetricSpec", context)
        with self._noted(entry), self._pushes.counted(Asker.of(ref.namespace, ref.name)):
            check_known(trigger, self._board.current)
            await _write(context, _spec(trigger))
            await self._pushes.ended.wait()

    # ------------------------------------------------------------------ what they share

    def _entry(self, ref: pb.ScaledObjectRef, call: str, context: Any) -> tuple[Entry, Trigger]:  # noqa: ANN401
        """Enter a call into the book, whether or not its metadata asks for anything.

        Raises:
            BadTrigger: it doesn't.
        """
        asker = Asker.of(ref.namespace, ref.name)
        try:
            trigger = read(ref.scalerMetadata)
        except BadTrigger:
            with self._noted(self._called(asker, None, call, context)):
                raise
        return self._called(asker, trigger, call, context), trigger

    def _called(self, asker: Asker, trigger: Trigger | None, call: str, context: Any) -> Entry:  # noqa: ANN401
        entry = self.book.entry(asker, trigger)
        if not entry.calls[call] or call.startswith("Stream"):
            entry.peer = _peer(context)
        entry.calls[call] += 1
        return entry

    def _answer(self, entry: Entry, trigger: Trigger, metric: str) -> Answer:
        with self._noted(entry):
            check_metric(trigger, metric)
            answered = answer(trigger, self._board.current, self._monotonic())
        entry.at, entry.last = self._wall(), answered
        return answered

    @contextmanager
    def _noted(self, entry: Entry) -> Iterator[None]:
        """Note in an entry why what happens inside is refused."""
        try:
            yield
        except _REFUSALS as error:
            entry.refused(self._wall(), _status(error).name, str(error))
            raise


_Handler = Callable[[Any], Awaitable[bytes | None]]
_Answering = Callable[[object, Any], Awaitable[bytes | None]]


def _answering(handler: _Handler) -> Callable[[object, Any], Awaitable[tuple[bytes | None, str]]]:
    """Make what a handler raises the call's status, which is returned beside the answer.

    Not by grpc's own way to abort: its exception stays in a cycle with all frames that it has come through, and a caller who is
    refused a thousand times a second would have the garbage collector stop everybody.
    """

    async def handle(_: object, context: Any) -> tuple[bytes | None, str]:  # noqa: ANN401 - grpc has no types
        try:
            return await handler(context), OK
        except _REFUSALS as error:
            status, message = _status(error), str(error)
        context.set_code(status)
        context.set_details(message)
        return b"", str(status.name)

    return handle


class _BadCall(ScalerError):
    """A call isn't made as it should be.

    Attributes:
        status: what it is answered with.
    """

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


def _spec(trigger: Trigger) -> bytes:
    spec = pb.MetricSpec(metricName=trigger.metric, targetSize=TARGET, targetSizeFloat=float(TARGET))
    return bytes(pb.GetMetricSpecResponse(metricSpecs=[spec]).SerializeToString())


async def _request(context: Any, parse: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - grpc has no types
    """Read the one request of a call.

    Raises:
        _BadCall: it doesn't come, or is none.
    """
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            raw = await context.read()
    except TimeoutError as error:
        message = f"no request within {_REQUEST_SECONDS:g} s"
        raise _BadCall(grpc.StatusCode.DEADLINE_EXCEEDED, message) from error
    if raw is grpc.aio.EOF:
        raise _BadCall(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
    try:
        return parse(raw)
    except DecodeError as error:
        raise _BadCall(grpc.StatusCode.INVALID_ARGUMENT, "the request can't be decoded") from error


async def _write(context: Any, message: bytes) -> None:  # noqa: ANN401 - grpc has no types
    """Send one message of a stream.

    Raises:
        _BadCall: nobody reads it.
    """
    try:
        async with asyncio.timeout(_WRITE_SECONDS):
            await context.write(message)
    except TimeoutError as error:
        message_text = f"nothing was read for {_WRITE_SECONDS:g} s"
        raise _BadCall(grpc.StatusCode.RESOURCE_EXHAUSTED, message_text) from error


_STATUSES: Final = {code: grpc.StatusCode[code.name] for code in Code}
_REFUSALS: Final = (Refused, BadTrigger, TooManyStreams, _BadCall)


def _status(error: ScalerError) -> grpc.StatusCode:
    """Return by which status a call ends that is refused for this."""
    match error:
        case Refused(code=code):
            return _STATUSES[code]
        case _BadCall(status=status):
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
