"""Coalescing wake-ups: events only say that it is time to look, and at what; what there is to see is read from the caches.

Ordinary causes wait a moment, so that a flurry of them costs one tick; an urgent one (a sample that may be a burst, a
resident that died) is answered at once.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from warmpool.seats import FleetName, PolicyName

IDLE_SECONDS = 0.02
"""How long an ordinary cause waits for company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """What has woken the loop.

    Attributes:
        causes: the causes, with how often.
        policies: policies of which something is new.
        fleets: fleets of which something is new; what changed in the cluster's cache is seen there.
        everything: all of them are to be looked at.
    """

    causes: Mapping[str, int]
    policies: frozenset[PolicyName] = frozenset()
    fleets: frozenset[FleetName] = frozenset()
    everything: bool = False


@dataclass(slots=True)
class _Gathered:
    causes: Counter[str] = field(default_factory=Counter)
    policies: set[PolicyName] = field(default_factory=set)
    fleets: set[FleetName] = field(default_factory=set)
    everything: bool = False


class Mailbox:
    """Wakes one loop."""

    def __init__(self) -> None:
        self._gathered = _Gathered()
        self._any = asyncio.Event()
        self._urgent = asyncio.Event()

    def wake(
        self,
        cause: str,
        *,
        urgent: bool = False,
        policies: Collection[PolicyName] | None = None,
        fleets: Collection[FleetName] | None = None,
    ) -> None:
        """Ask for a tick. Never blocks; causes of one name are counted, not queued.

        Args:
            cause: why.
            urgent: it waits for nothing.
            policies: those of which something is new.
            fleets: those of which something is new. With neither, everything may be.
        """
        gathered = self._gathered
        gathered.causes[cause] += 1
        if policies is None and fleets is None:
            gathered.everything = True
        gathered.policies.update(policies or ())
        gathered.fleets.update(fleets or ())
        self._any.set()
        if urgent:
            self._urgent.set()

    def ended(self, fleet: FleetName) -> None:
        """Ask for a look at a fleet because an action on one of its seats has ended."""
        self.wake("action ended", urgent=True, fleets=(fleet,))

    async def wait(self, timeout: float | None) -> Wake:  # noqa: ASYNC109 - a deadline of the law, not of the caller
        """Return what has come, or the cause `deadline` when `timeout` seconds pass first (None: no deadline)."""
        try:
            async with asyncio.timeout(timeout):
                await self._any.wait()
        except TimeoutError:
            self._gathered.causes["deadline"] += 1
        else:
            await self._gather_company()
        self._any.clear()
        self._urgent.clear()
        gathered, self._gathered = self._gathered, _Gathered()
        return Wake(
            causes=gathered.causes,
            policies=frozenset(gathered.policies),
            fleets=frozenset(gathered.fleets),
            everything=gathered.everything,
        )

    async def _gather_company(self) -> None:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._urgent.wait()
        except TimeoutError:
            return
