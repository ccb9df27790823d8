"""Answers that begin before there is any content, so that clients and middle boxes don't give up while a request waits.

Comments keep the connection alive. They are no content: until some comes, whatever fails is still tried elsewhere. But the status
is out, and it is 200. So what fails for good after that is told by an error event.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from aiohttp import HttpVersion11, web

from scaler.gateway.attempts import ENGINE_FAILED
from scaler.gateway.messages import EXPECTED_WAIT_HEADER, REQUEST_ID_HEADER, SERVER, RequestRefused, error_of
from scaler.gateway.sse import comment, error_event

_Result = TypeVar("_Result")

_FAILED: Final[dict[str, Any]] = {
    "message": "The engine gave no stream.",
    "type": "server_error",
    "param": None,
    "code": ENGINE_FAILED,
}


class Early:
    """One answer that may begin early.

    Args:
        request: the client's request for a stream.
        identity: its id.
        every_seconds: after how long without content the client gets a comment, and how often then.
        expected: returns how many seconds the request is expected to wait, or None.

    Attributes:
        stream: the answer; None while it hasn't begun.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        identity: str,
        every_seconds: float,
        expected: Callable[[], float | None],
    ) -> None:
        self.stream: web.StreamResponse | None = None
        self._request = request
        self._identity = identity
        self._every_seconds = every_seconds
        self._expected = expected

    async def during(self, work: Awaitable[_Result]) -> _Result:
        """Await `work`, and keep the client's connection alive meanwhile.

        Raises:
            RequestRefused: `work` did.
        """

        async def settled() -> _Result | RequestRefused:
            try:
                return await work
            except RequestRefused as refused:
                return refused

        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(settled())
            while not (await asyncio.wait({working}, timeout=self._every_seconds))[0]:
                await self._say()
        result = working.result()
        if isinstance(result, RequestRefused):
            raise result
        return result

    async def _say(self) -> None:
        expected = self._expected()
        if self.stream is None:
            headers = {
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "Server": SERVER,
                REQUEST_ID_HEADER: self._identity,
            }
            if expected is not None:
                headers[EXPECTED_WAIT_HEADER] = str(math.ceil(expected))
            self.stream = web.StreamResponse(headers=headers)
            if self._request.version < HttpVersion11:
                self.stream.force_close()  # nothing else tells where it ends
        about = f", about {math.ceil(expected)} s more" if expected is not None else ""
        with suppress(ConnectionError):  # who has gone away ends the request itself
            if not self.stream.prepared:
                await self.stream.prepare(self._request)
            await self.stream.write(comment(f"waiting{about}"))

    async def fail(self, error: Mapping[str, Any]) -> None:
        """End the answer with an error event."""
        await self._end(error_event(error, self._request.raw_path))

    async def whole(self, status: int, body: bytes) -> None:
        """End the answer with one that an engine gave in one piece: with its error, or with its content as one event."""
        if status >= 300:  # noqa: PLR2004 - HTTP
            await self.fail(error_of(body) or _FAILED)
            return
        try:
            data = json.dumps(json.loads(body), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            await self.fail(_FAILED)
            return
        await self._end(b"data: " + data + b"\n\n")

    async def _end(self, event: bytes) -> None:
        assert self.stream is not None
        with suppress(ConnectionError):
            await self.stream.write_eof(event)
