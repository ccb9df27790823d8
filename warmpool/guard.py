"""The guard's state: whether requests may pass, and how many have passed and not yet ended.

A paused engine would hold a request in silence, so something in front of it must say no; and draining is over only when the
last response has ended. `Gate` is both: a door and the count of those inside. It knows no HTTP, no framework and no engine,
so that the reference engine's middleware and a forwarding port of the agent can share it. It belongs to one event loop.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


class GateClosed(Exception):
    """The gate is closed: answer that the resident isn't serving."""


class Passage:
    """One request's way through the gate, from its admission to the end of its response.

    A context manager: leaving it ends the passage, whatever happened inside.
    """

    def __init__(self, gate: "Gate") -> None:
        self._gate = gate
        self._on_cancel: list[Callable[[], None]] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the gate has asked this request to end early."""
        return self._cancelled

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the gate asks this request to end early; at once if it already has."""
        if self._cancelled:
            callback()
        else:
            self._on_cancel.append(callback)

    def cancel(self) -> None:
        """Ask this request to end early. Asking twice is asking once."""
        if self._cancelled:
            return
        self._cancelled = True
        callbacks, self._on_cancel = self._on_cancel, []
        for callback in callbacks:
            callback()

    def __enter__(self) -> Self:
        """Return the passage itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the passage."""
        self._gate.leave(self)


class Gate:
    """A door for requests, and the count of those inside. It is born closed.

    Closing it stops nobody who is inside: that is what draining means. `cancel_all` does.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self._is_open = is_open
        self._inside: set[Passage] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_open(self) -> bool:
        """Whether the next request may pass."""
        return self._is_open

    @property
    def in_flight(self) -> int:
        """Requests that passed and whose response hasn't ended."""
        return len(self._inside)

    def open(self) -> None:
        """Let requests pass from now on."""
        self._is_open = True

    def close(self) -> None:
        """Refuse requests from now on; those inside go on."""
        self._is_open = False

    def enter(self) -> Passage:
        """Admit one request.

        Returns:
            Its passage, to be used as a context manager around the whole response.

        Raises:
            GateClosed: the gate is closed; nothing was counted.
        """
        if not self._is_open:
            raise GateClosed
        passage = Passage(self)
        self._inside.add(passage)
        self._empty.clear()
        return passage

    def leave(self, passage: Passage) -> None:
        """End a passage; ending it twice is ending it once."""
        self._inside.discard(passage)
        if not self._inside:
            self._empty.set()

    async def wait_drained(self) -> None:
        """Return once nothing is in flight. Put it under the drain's deadline; a gate left open may never drain."""
        while self._inside:
            await self._empty.wait()

    def cancel_all(self) -> int:
        """Ask everything in flight to end early.

        Returns:
            How many requests were asked. They are gone when `wait_drained` returns.
        """
        asked = [passage for passage in self._inside if not passage.cancelled]
        for passage in asked:
            passage.cancel()
        return len(asked)
