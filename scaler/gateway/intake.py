"""Receives requests' bodies, within the bounds of one and of all together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from scaler.gateway.messages import RequestRefused
from scaler.gateway.observe import Outcome
from scaler.gateway.settings import GatewaySettings


class Body:
    """One request's body, counted among all that are held until it is dropped."""

    def __init__(self, intake: "Intake") -> None:
        self.data = b""
        self._intake = intake
        self._counted = 0

    def count(self, size_bytes: int) -> None:
        """Count more of it.

        Raises:
            RequestRefused: all bodies together would be too large.
        """
        if self._intake.held_bytes + size_bytes > self._intake.max_held_bytes:
            message = "This gateway holds as much as it may; try again."
            raise RequestRefused(503, message, code="TooMuchHeld", outcome=Outcome.OVERLOADED, close=True)
        self._counted += size_bytes
        self._intake.held_bytes += size_bytes

    def drop(self) -> None:
        """Let go of it: nobody will send it again."""
        self.data = b""
        self._intake.held_bytes -= self._counted
        self._counted = 0


class Intake:
    """Receives bodies and knows how much is held.

    Attributes:
        settings: the limits.
        held_bytes: size of all bodies that are held at present.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.held_bytes = 0

    @property
    def max_held_bytes(self) -> int:
        """Size of all bodies that may be held at once."""
        return self.settings.max_held_bytes

    @asynccontextmanager
    async def receive(self, request: web.BaseRequest) -> AsyncIterator[Body]:
        """Receive a request's body, and hold it for as long as the context lasts or until it is dropped.

        Raises:
            RequestRefused: it is too large, too slow, broken or encoded.
        """
        body = Body(self)
        try:
            await self._fill(request, body)
            yield body
        finally:
            body.drop()

    async def _fill(self, request: web.BaseRequest, body: Body) -> None:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            message = "Request bodies must not be encoded; send it without Content-Encoding."
            raise RequestRefused(415, message, code="unsupported_encoding", close=True)
        if (request.content_length or 0) > self.settings.max_body_bytes:
            raise self._too_large()
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.settings.receive_seconds):
                while part := await request.content.readany():
                    size += len(part)
                    if size > self.settings.max_body_bytes:
                        raise self._too_large()
                    body.count(len(part))
                    parts.append(part)
        except TimeoutError:
            message = f"The request was not received within {self.settings.receive_seconds:g} s."
            raise RequestRefused(408, message, code="request_timeout", close=True) from None
        except web.RequestPayloadError as error:
            raise RequestRefused(
                400, f"The request is broken: {error}.", code="broken_request", close=True
            ) from None
        body.data = parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> RequestRefused:
        limit = self.settings.max_body_bytes
        message = f"The request body is larger than {limit} bytes."
        return RequestRefused(413, message, code="request_too_large", close=True)
