"""What all controllers here have in common: caches that wake them, and a loop that looks at everything again."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

import structlog

from scaler.cluster.kube.reflector import Reflector
from scaler.cluster.kube.resources import Kind
from scaler.errors import ClusterError
from tests.fakes.kube_calls import Calls, Object

log = structlog.get_logger(__name__)
_RETRY_SECONDS = 0.1


class Caches:
    """Objects as the watches have told of them, and so now and then behind what has been written.

    Args:
        held: by kind.
    """

    def __init__(self, held: Mapping[Kind, Reflector[Object]]) -> None:
        self._held = held

    def all(self, kind: Kind, namespace: str = "") -> list[Object]:
        """Return all objects of a kind, of one namespace or of all."""
        found = self._held[kind].values()
        return [each for each in found if not namespace or each["metadata"].get("namespace") == namespace]

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._held[kind].get(f"{namespace}/{name}" if namespace else name)


class Controller(Protocol):
    """Brings objects to where they should be.

    Attributes:
        reads: kinds whose changes wake it.
    """

    reads: tuple[Kind, ...]

    async def sync(self, caches: Caches, calls: Calls) -> float | None:
        """Look at everything once; return after how many seconds to look again even if nothing changes.

        Raises:
            ClusterError: something can't be written; it is tried again.
        """


class Loop:
    """Runs one controller."""

    def __init__(self, controller: Controller, calls: Calls) -> None:
        self.controller = controller
        self._calls = calls
        self._woken = asyncio.Event()
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    async def run(self, caches: Caches) -> None:
        """Run until cancelled."""
        again: float | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(again):
                    await self._woken.wait()
            self._woken.clear()
            try:
                again = await self.controller.sync(caches, self._calls)
            except ClusterError as error:
                log.debug("tried again", controller=type(self.controller).__name__, error=str(error))
                again = _RETRY_SECONDS
