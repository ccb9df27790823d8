"""A piece of work that may be cut short by someone with a better claim to the seat.

A start-up's warm-up gives way to a promotion, a drain to a recall, a proof to a claim on its resident. The one who wants the
seat asks; the one who works ends at its next await and tidies up itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

_T = TypeVar("_T")


class Interrupted(Exception):
    """The work was cut short because someone asked for it."""


class Interruption:
    """A request to stop, and the work that heeds it. Used once, in one event loop."""

    def __init__(self) -> None:
        self._requested = False
        self._scope: asyncio.Timeout | None = None

    @property
    def requested(self) -> bool:
        """Whether someone has asked."""
        return self._requested

    def request(self) -> None:
        """Ask the work to stop; asking twice is asking once."""
        if self._requested:
            return
        self._requested = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def run(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do `work` unless and until someone asks for its end.

        Raises:
            Interrupted: someone asked; whatever `work` was waiting for has been cancelled.
        """
        if self._requested:
            raise Interrupted
        # A timeout without a time is asyncio's only cancel scope that tells its own cancellation from everyone else's.
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scope = scope
                return await work()
        except TimeoutError:
            if scope.expired():
                raise Interrupted from None
            raise
        finally:
            self._scope = None
