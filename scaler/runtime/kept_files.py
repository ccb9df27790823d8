"""Keeps what must outlive a controller in three files of a directory.

They are read and written in one thread, since a disk may hang: one after the other, so that a write that nobody waits for any more
doesn't meet the next one in the same file.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from scaler.runtime.clock import Clock
from scaler.runtime.kept import Kept, NotKept
from scaler.store import histories, recordings, standing_orders
from warmpool.seats import FleetName

LEARNED: Final = "learned.json"
"""The file with what fleets have learned."""
EXPECTATIONS: Final = "expectations.json"
"""The file with what residents have agreed on."""
ORDERS: Final = "orders.json"
"""The file with the orders of people that stand."""
_LONGEST_SECONDS: Final = 10.0
"""What reading or writing may take before it is given up."""
_Result = TypeVar("_Result")


class FileArchive:
    """The port `Archive` on a directory.

    Args:
        directory: where the files are.
        clock: what time is taken from.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._learned = directory / LEARNED
        self._expectations = directory / EXPECTATIONS
        self._orders = directory / ORDERS
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "kept-files")

    async def read(self) -> Kept:
        """See `Archive.read`."""
        now, wall = self._clock.monotonic(), self._clock.wall()

        def read() -> Kept:
            return Kept(
                histories=histories.load(self._learned, now, wall),
                recordings=recordings.load(self._expectations),
                orders=standing_orders.load(self._orders),
            )

        return await self._apart(read)

    async def write(self, present: Callable[[], Kept], fleet: FleetName | None = None) -> None:
        """See `Archive.write`; of one fleet the orders alone, with those of the others."""
        kept, now, wall = present(), self._clock.monotonic(), self._clock.wall()

        def write() -> None:
            standing_orders.save(self._orders, kept.orders)
            if fleet is None:
                histories.save(self._learned, kept.histories, now, wall)
                recordings.save(self._expectations, kept.recordings)

        await self._apart(write)

    async def _apart(self, work: Callable[[], _Result]) -> _Result:
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            raise NotKept(f"{self._learned.parent} doesn't answer within {_LONGEST_SECONDS:g} s") from error
        except OSError as error:
            raise NotKept(f"{error.filename or self._learned.parent}: {error.strerror or error}") from error
