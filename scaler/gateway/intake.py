"""Receives requests' bodies, within the bounds of one and of all together, and reads what they are routed by as they come."""

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import HttpVersion11, web

from scaler.gateway.fields import WHOLE_BYTES, BodyRejected, Fields, multipart_model, read_whole
from scaler.gateway.messages import RequestRefused
from scaler.gateway.observe import Outcome
from scaler.gateway.settings import GatewaySettings

_MULTIPART: Final = "multipart/form-data"
_WANTED: Final = ("model", "stream")
_SMALL_PART: Final = 4096
"""Parts below this size are put together."""


class Body:
    """One request's body, counted among all that are held until it is dropped.

    Attributes:
        parts: its bytes, about as they came; not put together, for that would hold them twice.
        model: the model that it names, or None.
        stream: whether it asks for a stream.
    """

    def __init__(self, intake: "Intake") -> None:
        self.parts: list[bytes] = []
        self.model: str | None = None
        self.stream = False
        self._intake = intake
        self._counted = 0

    @property
    def size_bytes(self) -> int:
        """Size of what was received so far."""
        return self._counted

    def add(self, part: bytes) -> None:
        """Take a part.

        Raises:
            RequestRefused: all bodies together would be too large.
        """
        if self._intake.held_bytes + len(part) > self._intake.max_held_bytes:
            message = "This gateway holds as much as it may; try again."
            raise RequestRefused(503, message, code="TooMuchHeld", outcome=Outcome.OVERLOADED, close=True)
        self._counted += len(part)
        self._intake.held_bytes += len(part)
        if self.parts and len(self.parts[-1]) < _SMALL_PART:
            self.parts[-1] += (
                part  # an object for each byte of a body that trickles in would be held, and not counted
            )
        else:
            self.parts.append(part)

    def drop(self) -> None:
        """Let go of it: nobody will send it again."""
        self.parts = []
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

    async def receive(self, request: web.BaseRequest, *, needs_model: bool) -> Body:
        """Receive a request's body, which is held until it is dropped.

        Args:
            request: whose.
            needs_model: refuse one that names no model, as soon as that is clear.

        Raises:
            RequestRefused: it is too large, too slow, broken, encoded or names no model.
        """
        body = Body(self)
        try:
            await self._fill(request, body, needs_model=needs_model)
            if needs_model and body.model is None:
                raise _nameless(None)
        except BaseException:
            body.drop()
            raise
        return body

    async def _fill(self, request: web.BaseRequest, body: Body, *, needs_model: bool) -> None:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            message = "Request bodies must not be encoded; send it without Content-Encoding."
            raise RequestRefused(415, message, code="unsupported_encoding", close=True)
        if (request.content_length or 0) > self.settings.max_body_bytes:
            raise self._too_large()
        expects = request.headers.get("Expect", "").lower() == "100-continue"
        if expects and request.version >= HttpVersion11:  # older clients know none (RFC 9110, section 10.1.1)
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        try:
            if request.content.is_eof():  # all of it is here
                await self._receive(request, body, needs_model=needs_model)
                return
            async with asyncio.timeout(self.settings.receive_seconds):
                await self._receive(request, body, needs_model=needs_model)
        except TimeoutError:
            message = f"The request was not received within {self.settings.receive_seconds:g} s."
            raise RequestRefused(408, message, code="request_timeout", close=True) from None
        except web.RequestPayloadError:
            message = "The request's body is broken: it isn't framed as its head says."
            raise RequestRefused(400, message, code="broken_request", close=True) from None

    async def _receive(self, request: web.BaseRequest, body: Body, *, needs_model: bool) -> None:
        if request.content_type == _MULTIPART:
            await self._receive_rest(request, body)
            body.model = multipart_model(request.headers["Content-Type"], b"".join(body.parts)) or None
            return
        try:
            values = await self._receive_object(request, body)
        except BodyRejected as error:
            if needs_model:
                raise _nameless(error) from None
            await self._receive_rest(request, body)  # it may be for somebody who wants no object
            return
        model = values.get("model")
        body.model = model if isinstance(model, str) and model else None
        body.stream = values.get("stream") is True

    async def _receive_object(self, request: web.BaseRequest, body: Body) -> Mapping[str, object]:
        part = await self._part(request, body)
        if request.content.at_eof() and len(part) <= WHOLE_BYTES:
            return read_whole(part, _WANTED)
        fields = Fields(_WANTED)
        while part:
            fields.feed(part)
            while fields.more():  # noqa: ASYNC110 - nothing is waited for
                await asyncio.sleep(0)  # others' turn
            part = await self._part(request, body)
        fields.end()
        return fields.values

    async def _receive_rest(self, request: web.BaseRequest, body: Body) -> None:
        while await self._part(request, body):
            pass

    async def _part(self, request: web.BaseRequest, body: Body) -> bytes:
        """Take the next part of a body; empty at its end."""
        part = await request.content.readany()
        if body.size_bytes + len(part) > self.settings.max_body_bytes:
            raise self._too_large()
        if part:
            body.add(part)
        return part

    def _too_large(self) -> RequestRefused:
        limit = self.settings.max_body_bytes
        message = f"The request body is larger than {limit} bytes."
        return RequestRefused(413, message, code="request_too_large", close=True)


def _nameless(error: BodyRejected | None) -> RequestRefused:
    """Return the 400 for a body that names no model."""
    if error is not None:
        message = f"The request body is not valid JSON: {error}."
        return RequestRefused(400, message, code="invalid_json", close=True)
    message = "The request body must be a JSON object, or a form, with a `model`."
    return RequestRefused(400, message, code="missing_model", param="model")
