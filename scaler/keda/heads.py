"""The beginning of calls: their one request, for which nobody waits longer than it takes.

grpc gives a handler its request when it has come, and waits for it without end: whoever sends heads alone would hold all the calls that
the server takes. So handlers here take their request as a stream of one, which is the same on the wire, and read it themselves.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from scaler.errors import ScalerError

_REQUEST_SECONDS: Final = 2.0
"""From the head of a call to its request. Both are in one packet; who sends the one alone is broken, or means harm."""


class BadCall(ScalerError):
    """A call isn't made as it should be.

    Attributes:
        status: what it is answered with.
    """

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status


def parsed(raw: bytes, parse: Callable[[bytes], Any]) -> Any:  # noqa: ANN401 - grpc has no types
    """Read a request.

    Raises:
        BadCall: it is none.
    """
    try:
        return parse(raw)
    except DecodeError as error:
        raise BadCall(grpc.StatusCode.INVALID_ARGUMENT, "the request can't be decoded") from error


class Heads:
    """Calls of which only the head has come. Each of them is ended when its request is late.

    One timer looks at all: a deadline for each would cost a thousand calls at one moment as many timers, of which none is ever due.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], float] = {}  # with the loop's time, the longest first
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def request(self, context: Any) -> bytes:  # noqa: ANN401 - grpc has no types
        """Return the one request of a call.

        Raises:
            BadCall: it doesn't come.
        """
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._waiting[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(_REQUEST_SECONDS, self._look, loop)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            late = task in self._late
            self._late.discard(task)
            if not late or task.uncancel() > 0:
                raise
            message = f"no request within {_REQUEST_SECONDS:g} s"
            raise BadCall(grpc.StatusCode.DEADLINE_EXCEEDED, message) from None
        finally:
            self._waiting.pop(task, None)
        if raw is grpc.aio.EOF:
            raise BadCall(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return bytes(raw)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the calls whose requests are late, and look again when the next would be, if anybody waits."""
        due = loop.time() - _REQUEST_SECONDS
        late = [task for task, since in self._waiting.items() if since <= due]
        for task in late:
            del self._waiting[task]
            self._late.add(task)
            task.cancel()
        oldest = next(iter(self._waiting.values()), None)
        self._timer = None if oldest is None else loop.call_at(oldest + _REQUEST_SECONDS, self._look, loop)
