"""Asks an external scaler as KEDA does: the same messages, in the same order, over one connection.

For `emberpool keda check`, the benchmark and the tests. It has deadlines, which an operator hasn't.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from scaler.errors import ScalerError
from scaler.keda._pb import externalscaler_pb2 as pb
from scaler.keda.server import SERVICE

UNIMPLEMENTED: Final = "UNIMPLEMENTED"
CONNECT_SECONDS: Final = 5.0
"""For a connection, with its handshake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What the client shows, and whom it believes; all PEM.

    Attributes:
        root: roots of the server's certificate; None: those of the system.
        certificate: its own certificate; None where it shows none.
        key: the key of that.
    """

    root: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


class NotReached(ScalerError):
    """There is no connection to be had at an address."""


class CallFailed(ScalerError):
    """A call ended with another status than OK.

    Attributes:
        code: its name.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Spec:
    """A metric that the HPA is to ask for, and its target as operators read it: the float if it is above 0."""

    name: str
    target: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One value as operators read it, and the integer for old ones."""

    name: str
    value: float
    integer: int


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """On whose behalf is asked."""

    name: str
    namespace: str
    metadata: Mapping[str, str]

    def ref(self) -> pb.ScaledObjectRef:
        """Return the message."""
        return pb.ScaledObjectRef(
            name=self.name, namespace=self.namespace, scalerMetadata=dict(self.metadata)
        )


class KedaClient:
    """An operator's side of one connection.

    Args:
        channel: the connection.
        seconds: how long a call may take.
    """

    def __init__(self, channel: Any, seconds: float = 5.0) -> None:  # noqa: ANN401 - grpc has no types
        self._channel = channel
        self._seconds = seconds

    async def reach(self, seconds: float = CONNECT_SECONDS) -> None:
        """Make the connection.

        Args:
            seconds: how long that may take, the handshake included.

        Raises:
            NotReached: nobody is there, or the handshake fails.
        """
        ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
        try:
            async with asyncio.timeout(seconds):
                while (state := self._channel.get_state(try_to_connect=True)) is not ready:
                    if state is failed:
                        raise NotReached("the connection is refused, or its handshake fails")
                    await self._channel.wait_for_state_change(state)
        except TimeoutError as error:
            raise NotReached(f"no connection within {seconds:g} s") from error

    async def metric_spec(self, asker: ScaledObject) -> list[Spec]:
        """Call `GetMetricSpec`.

        Raises:
            CallFailed: it wasn't answered.
        """
        answer = await self._unary("GetMetricSpec", asker.ref(), pb.GetMetricSpecResponse)
        return _specs(answer)

    async def metrics(self, asker: ScaledObject, metric: str) -> list[Metric]:
        """Call `GetMetrics`.

        Raises:
            CallFailed: it wasn't answered.
        """
        request = pb.GetMetricsRequest(scaledObjectRef=asker.ref(), metricName=metric)
        answer = await self._unary("GetMetrics", request, pb.GetMetricsResponse)
        return [
            Metric(
                each.metricName,
                each.metricValueFloat if each.metricValueFloat > 0 else float(each.metricValue),
                each.metricValue,
            )
            for each in answer.metricValues
        ]

    async def is_active(self, asker: ScaledObject) -> bool:
        """Call `IsActive`.

        Raises:
            CallFailed: it wasn't answered.
        """
        return bool((await self._unary("IsActive", asker.ref(), pb.IsActiveResponse)).result)

    @asynccontextmanager
    async def pushed(self, asker: ScaledObject) -> AsyncIterator[AsyncIterator[bool]]:
        """Open `StreamIsActive` for as long as the context lasts; iterating ends when the server ends it with OK.

        Iterating raises CallFailed where it ends otherwise.
        """
        async with self._stream("StreamIsActive", asker, pb.IsActiveResponse) as messages:
            yield (bool(each.result) async for each in messages)

    @asynccontextmanager
    async def pushed_specs(self, asker: ScaledObject) -> AsyncIterator[AsyncIterator[list[Spec]]]:
        """Open `StreamMetricSpec`, likewise."""
        async with self._stream("StreamMetricSpec", asker, pb.GetMetricSpecResponse) as messages:
            yield (_specs(each) async for each in messages)

    async def _unary(self, call: str, request: Any, answer: Any) -> Any:  # noqa: ANN401 - grpc has no types
        method = self._channel.unary_unary(
            f"/{SERVICE}/{call}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return await method(request, timeout=self._seconds)
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from error

    @asynccontextmanager
    async def _stream(
        self,
        call: str,
        asker: ScaledObject,
        answer: Any,  # noqa: ANN401 - grpc has no types
    ) -> AsyncIterator[AsyncIterator[Any]]:
        method = self._channel.unary_stream(
            f"/{SERVICE}/{call}",
            request_serializer=pb.ScaledObjectRef.SerializeToString,
            response_deserializer=answer.FromString,
        )
        stream = method(asker.ref())
        try:
            yield _read(stream)
        finally:
            stream.cancel()


@asynccontextmanager
async def connected(address: str, tls: Tls | None = None) -> AsyncIterator[KedaClient]:
    """Connect for as long as the context lasts; the connection is made by the first call.

    Args:
        address: host and port.
        tls: None: plaintext.
    """
    if tls is None:
        channel = grpc.aio.insecure_channel(address)
    else:
        credentials = grpc.ssl_channel_credentials(tls.root, tls.key, tls.certificate)
        channel = grpc.aio.secure_channel(address, credentials)
    async with channel:
        yield KedaClient(channel)


async def _read(stream: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - grpc has no types
    try:
        async for message in stream:
            yield message
    except grpc.aio.AioRpcError as error:
        raise _failed(error) from error


def _specs(answer: pb.GetMetricSpecResponse) -> list[Spec]:
    return [
        Spec(each.metricName, each.targetSizeFloat if each.targetSizeFloat > 0 else float(each.targetSize))
        for each in answer.metricSpecs
    ]


def _failed(error: grpc.aio.AioRpcError) -> CallFailed:
    return CallFailed(error.code().name, error.details() or "")
