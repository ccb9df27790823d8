"""The signal `EngineMetrics`: reads the metrics pages of one policy's serving engines, each at its own pace.

Every engine in rotation has a task of its own that asks, waits at most `timeout`, and asks again an interval later, with
jitter: a slow engine delays no other, and engines aren't all asked at once. What they say together, and what it is worth
when one is silent, is `engine_sum`'s rule; it is told a few times in each interval, so that a burst is seen as soon as
the first engines show it.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import structlog

from scaler.signals.engine_scrape import EngineScraper, EngineSilent, scrape_session
from scaler.signals.engine_sum import EngineSum, EngineView
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import SignalKey, Sink
from scaler.signals.scrape_pace import ScrapePace
from warmpool.seats import PolicyName

log = structlog.get_logger(__name__)

Targets = Callable[[PolicyName], Sequence[EngineTarget]]
"""Returns the engines of a policy's residents that are in rotation now. Called in each interval: let it look up, not search."""

_FIRST_WITHIN_SECONDS: Final = 0.25
"""An engine that enters rotation is read within this time, whatever the interval, …"""
_FIRST_PER_SECOND: Final = 500
"""… unless more come at once than this: each needs a connection first."""
_FIRST_JITTER: Final = 0.5
"""Share of the interval by which the second reading comes sooner or later: engines that came together part at once."""
_JITTER: Final = 0.05
"""The same for all others."""
_TELLINGS: Final = 4
"""Readings are told at most so often in an interval, however many engines there are."""
_LONGEST_TELLING_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineScrapes:
    """How a policy's engines are read.

    Attributes:
        interval: seconds between two readings of one engine.
        timeout: seconds after which a reading is given up.
        objective: seconds within which the first token should be there.
    """

    interval: float
    timeout: float
    objective: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetricsView:
    """What the source does at present, for people.

    Attributes:
        interval: seconds between two readings of one engine, as it is stretched at present.
        stretch: what the policy's interval is multiplied by, for one core can't read so many; 1 when it can.
        engines: the engines in rotation, by seat.
    """

    interval: float
    stretch: float
    engines: Sequence[EngineView]


class EngineMetricsSource:
    """Reads one policy's engines.

    Args:
        key: the policy and its signal.
        scrapes: how they are read.
        targets: which they are.
        pace: shared by all sources of the event loop.
    """

    def __init__(self, key: SignalKey, scrapes: EngineScrapes, targets: Targets, pace: ScrapePace) -> None:
        self._key = key
        self._scrapes = scrapes
        self._targets = targets
        self._pace = pace
        self._sum = EngineSum(scrapes.objective)
        self._tasks: dict[EngineTarget, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._dialects: set[str] = set()
        self._complained = -math.inf
        self._troubled_since: float | None = None

    @property
    def interval(self) -> float:
        """Seconds between two readings of one engine at present."""
        return self._scrapes.interval * self._pace.stretch

    @property
    def freshness(self) -> float:
        """Seconds up to which a reading is whole: one that is missed and one that takes its time."""
        return 1.5 * self.interval + self._scrapes.timeout

    def describe(self) -> EngineMetricsView:
        """Show what is read, how often, and in which dialects."""
        now = asyncio.get_running_loop().time()
        return EngineMetricsView(
            interval=self.interval, stretch=self._pace.stretch, engines=self._sum.views(now)
        )

    async def run(self, sink: Sink) -> None:
        """Read until cancelled. See `Source.run`."""
        self._tasks = {}
        async with scrape_session() as session, asyncio.TaskGroup() as group:
            group.create_task(self._tell(sink))
            await self._follow(session, group)

    async def _follow(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        """Give each engine in rotation its task, and end those of the others."""
        loop = asyncio.get_running_loop()
        while True:
            targets = dict.fromkeys(self._targets(self._key.policy))
            self._sum.follow(targets, loop.time())
            for target in [target for target in self._tasks if target not in targets]:
                self._tasks.pop(target).cancel()
                self._news.set()
            new = [target for target in targets if target not in self._tasks]
            within = min(self.interval, max(_FIRST_WITHIN_SECONDS, len(new) / _FIRST_PER_SECOND))
            for target in new:
                reading = self._read(EngineScraper(session, target), target, within)
                self._tasks[target] = group.create_task(reading)
            if not targets:
                self._news.set()
            await asyncio.sleep(min(self.interval, _FIRST_WITHIN_SECONDS))

    async def _read(self, scraper: EngineScraper, target: EngineTarget, within: float) -> None:
        """Read one engine again and again, for the first time within so many seconds."""
        loop = asyncio.get_running_loop()
        due = loop.time() + random.uniform(0.0, within)
        jitter = _FIRST_JITTER
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            asked = loop.time()
            self._pace.began(asked - due, self.interval)
            try:
                async with asyncio.timeout(self._scrapes.timeout):
                    page = await scraper.page()
            except TimeoutError:
                self._sum.silent(target, f"no answer within {self._scrapes.timeout:g} s")
            except EngineSilent as error:
                self._sum.silent(target, str(error))
            else:
                self._sum.answered(target, page, asked)
                self._show_dialect(page.dialect.name, target)
            self._news.set()
            step = self.interval * random.uniform(1 - jitter, 1 + jitter)
            jitter = _JITTER
            # from when it was due, so that the rate holds; an engine that takes its time gets a rest all the same
            due = max(due + step, loop.time() + step / 2)

    def _show_dialect(self, dialect: str, target: EngineTarget) -> None:
        if dialect not in self._dialects:
            self._dialects.add(dialect)
            log.info("engine metrics found", policy=self._key.policy, dialect=dialect, seat=str(target))

    async def _tell(self, sink: Sink) -> None:
        """Tell the sink of what is new: at once, and then not again for a moment."""
        loop = asyncio.get_running_loop()
        while True:
            await self._news.wait()
            self._news.clear()
            now = loop.time()
            taken, trouble = self._sum.taken(now, self.freshness), self._sum.trouble()
            if taken is not None:
                sink.observed(self._key, taken.parts, taken.at, trouble)
            self._complain(sink, trouble, now)
            await asyncio.sleep(min(self.interval / _TELLINGS, _LONGEST_TELLING_SECONDS))

    def _complain(self, sink: Sink, trouble: str, now: float) -> None:
        """Tell the sink once a round which engines are silent; log that some are, and that none is any longer."""
        if trouble and now - self._complained >= self.interval:
            self._complained = now
            sink.failed(self._key, trouble)
        if trouble and self._troubled_since is None:
            self._troubled_since = now
            log.warning("engines silent", policy=self._key.policy, signal=self._key.signal, problem=trouble)
        elif not trouble and self._troubled_since is not None:
            seconds = round(now - self._troubled_since, 1)
            self._troubled_since = None
            log.info(
                "all engines answer again",
                policy=self._key.policy,
                signal=self._key.signal,
                after_seconds=seconds,
            )
