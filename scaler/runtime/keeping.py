"""Keeps what fleets learn and what residents agree on, while this process leads: read at the start, written once a minute.

Orders of people are written at once, and whoever gave one is answered when that is done: nobody can know by himself that one was lost.
It is never written before it was read: a controller that couldn't read it would put an hour of learning in the place of a week's. What
goes wrong is told once, and no tick waits for any of it.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from scaler.runtime.kept import Archive, Kept, NotKept
from warmpool.seats import FleetName

log = structlog.get_logger(__name__)

INTERVAL_SECONDS: Final = 60.0
"""Between two writes, at least."""
_RETRY_SECONDS: Final = 5.0
"""Between two attempts to read."""


class Keeping:
    """Keeps it in an archive.

    Args:
        archive: where.
        take: gets what was kept before.
        present: returns what is to be kept now.
    """

    def __init__(self, archive: Archive, take: Callable[[Kept], None], present: Callable[[], Kept]) -> None:
        self._archive = archive
        self._take = take
        self._present = present
        self._read = False
        self._wanted = asyncio.Event()
        self._urged: set[FleetName] = set()
        self._any_urged = asyncio.Event()
        self._complaint = ""

    def hurry(self) -> None:
        """Write as soon as may be: something was agreed on that nobody should have to agree on again."""
        self._wanted.set()

    def urge(self, fleet: FleetName) -> None:
        """Write what is kept of a fleet at once: what a person has ordered is so no longer, or is so from now on."""
        self._urged.add(fleet)
        self._any_urged.set()

    async def keep(self, fleet: FleetName) -> None:
        """Write what is kept of a fleet, and return when it is kept.

        Raises:
            NotKept: it isn't; it is written with all else when that can be done again.
        """
        if not self._read:
            raise NotKept("what was kept before has not been read yet")
        await self._archive.write(self._present, fleet)

    async def read(self) -> bool:
        """Take what was kept before, which another may have written since the last time; return whether it could be read."""
        self._read = False
        try:
            kept = await self._archive.read()
        except NotKept as error:
            self._complain("what must outlive a controller can't be read", error)
            return False
        self._read = True
        self._take(kept)
        return True

    async def run(self) -> None:
        """Write each minute until cancelled, and once more then; what couldn't be read is read first."""
        try:
            while not self._read:
                await asyncio.sleep(_RETRY_SECONDS)
                await self.read()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_each_minute())
                tasks.create_task(self._write_what_is_urged())
        finally:
            if self._read:
                await asyncio.shield(self._write())

    async def _write_each_minute(self) -> None:
        loop, written = asyncio.get_running_loop(), -math.inf
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._wanted.wait()
            await asyncio.sleep(max(0.0, written + INTERVAL_SECONDS - loop.time()))
            self._wanted.clear()
            await self._write()
            written = loop.time()

    async def _write_what_is_urged(self) -> None:
        while True:
            await self._any_urged.wait()
            self._any_urged.clear()
            urged, self._urged = self._urged, set()
            for fleet in sorted(urged):
                await self._write(fleet)

    async def _write(self, fleet: FleetName | None = None) -> None:
        try:
            await self._archive.write(self._present, fleet)
        except NotKept as error:
            self._complain("what must outlive a controller can't be kept", error)
        else:
            self._complaint = ""

    def _complain(self, what: str, error: NotKept) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning(what, error=str(error))
