"""Coalescing wake-ups: events only say that it is time to look; what they were about is read from the caches.

Ordinary causes wait a moment, so that a flurry of them costs one tick; an urgent one (a sample that may be a burst, a
resident that died) is answered at once.
"""

import asyncio
from collections import Counter

IDLE_SECONDS = 0.02
"""How long an ordinary cause waits for company."""


class Mailbox:
    """Wakes one loop."""

    def __init__(self) -> None:
        self._causes: Counter[str] = Counter()
        self._any = asyncio.Event()
        self._urgent = asyncio.Event()

    def wake(self, cause: str, *, urgent: bool = False) -> None:
        """Ask for a tick. Never blocks; causes of one name are counted, not queued."""
        self._causes[cause] += 1
        self._any.set()
        if urgent:
            self._urgent.set()

    async def wait(self, timeout: float | None) -> Counter[str]:  # noqa: ASYNC109 - a deadline of the law, not of the caller
        """Return the causes that have come, or `deadline` when `timeout` seconds pass first (None: no deadline)."""
        try:
            async with asyncio.timeout(timeout):
                await self._any.wait()
        except TimeoutError:
            self._causes["deadline"] += 1
        else:
            await self._gather_company()
        self._any.clear()
        self._urgent.clear()
        causes, self._causes = self._causes, Counter()
        return causes

    async def _gather_company(self) -> None:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._urgent.wait()
        except TimeoutError:
            return
