"""Keeps on disk what fleets have learned: read at the start, written once a minute and at the end.

Whatever goes wrong with the file costs learning and nothing else, and is told once. It is read and written in a thread,
since a disk may hang; no tick waits for it.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from scaler.runtime.clock import Clock
from scaler.store.histories import History, load, save
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

FILE: Final = "learned.json"
"""Name of the file in a state directory."""
_INTERVAL_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 10.0
"""What reading or writing may take before it is given up."""

Learned = Mapping[FleetName, History]


class Learning:
    """One file with what fleets have learned.

    Args:
        directory: where the file is; None keeps nothing.
        clock: what time is taken from.
    """

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self._path = None if directory is None else directory / FILE
        self._clock = clock
        self._failing = False

    async def read(self) -> Learned:
        """Return what was learned before; nothing where there is no file or it can't be read."""
        if self._path is None:
            return {}
        now, wall = self._clock.monotonic(), self._clock.wall()
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                return await asyncio.to_thread(load, self._path, now, wall)
        except (OSError, TimeoutError) as error:
            log.warning("what fleets have learned can't be read", file=str(self._path), error=str(error))
            return {}

    async def keep(self, learned: Callable[[], Learned]) -> None:
        """Write until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)
                await self._write(learned())
        finally:
            await asyncio.shield(self._write(learned()))

    async def _write(self, learned: Learned) -> None:
        if self._path is None:
            return
        now, wall = self._clock.monotonic(), self._clock.wall()
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                await asyncio.to_thread(save, self._path, learned, now, wall)
        except (OSError, TimeoutError) as error:
            if not self._failing:
                log.warning("what fleets learn can't be kept", file=str(self._path), error=str(error))
            self._failing = True
        else:
            self._failing = False
