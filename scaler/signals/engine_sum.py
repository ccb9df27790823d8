"""What the engines of one policy say, taken together, so that a silent one never makes the sum too small unseen. PURE.

The rule. The sum holds every engine in rotation, one that is silent with what it last told, and it is as old as the
oldest page in it: the board, which ages it, makes it Stale by itself (may hold or raise, never lowers). However long that
engine stays silent, the others go on being heard: a sum is never stamped so long before its newest page that it would be
Missing while that is fresh. An engine that has never answered is in the sum with nothing, and the sum then is as old as
that engine is in rotation; until that is too old to be Fresh, nothing is told at all. So a sum is Fresh if and only if
every engine in rotation has answered lately. Without an engine in rotation it is 0, and Fresh: that is known.

Late first tokens are counted from an engine's first page in rotation on, for warm-up requests, proofs and the canary came
before it, and anew when its process or its counters have begun anew.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scaler.signals.engine_page import EnginePage, later_than
from scaler.signals.engine_targets import EngineTarget
from scaler.signals.port import Part

LATE_WINDOW_SECONDS: Final = 10.0
"""The first tokens of so many seconds make the share of late ones."""
_STALE_FRESHNESSES: Final = 2.0
"""A sum with a silent engine in it is stamped so many times the time of freshness before its newest page: Stale for sure,
and far from Missing."""
FEWEST_FIRST_TOKENS: Final = 5
"""Of fewer than these no share is told: one late request of two is no half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One reading.

    Attributes:
        parts: what was read.
        at: monotonic seconds at which all of it was true.
    """

    parts: Mapping[Part, float]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine, for people.

    Attributes:
        target: which.
        dialect: whose names its page uses; empty until its first page.
        edge: seconds of the bucket edge that first tokens are held against; None where no share can be told.
        running, waiting, kv_usage: see `EnginePage`; None until its first page.
        age: seconds since its last page was asked for; infinity before the first.
        trouble: why the last attempt brought no page; empty when it did.
    """

    target: EngineTarget
    dialect: str
    edge: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    age: float
    trouble: str


@dataclass(frozen=True, slots=True)
class _Count:
    at: float
    late: float
    every: float


class LateFirstTokens:
    """One engine's first tokens of the last seconds, from counters that may begin anew."""

    def __init__(self) -> None:
        self._counts: deque[_Count] = deque()
        self._started: float | None = None
        self._edge = math.inf

    def add(self, page: EnginePage, objective: float, at: float) -> float | None:
        """Take a page; return the edge that first tokens are held against, or None if it doesn't tell them."""
        told = None if page.first_tokens is None else later_than(page.first_tokens, objective)
        if told is None:
            self._counts.clear()
            return None
        edge, late, every = told
        last = self._counts[-1] if self._counts else None
        another = edge != self._edge or page.started != self._started
        if another or (last is not None and (every < last.every or late < last.late)):
            self._counts.clear()
        self._edge, self._started = edge, page.started
        self._counts.append(_Count(at, late, every))
        while len(self._counts) > 1 and self._counts[1].at <= at - LATE_WINDOW_SECONDS:
            self._counts.popleft()
        return edge

    def within(self) -> tuple[float, float]:
        """Return (late, all) of the window that ends with the last page; (0, 0) of a single one."""
        if not self._counts:
            return 0.0, 0.0
        begin, last = self._counts[0], self._counts[-1]
        return last.late - begin.late, last.every - begin.every


@dataclass(slots=True)
class _Engine:
    """What is known of one engine.

    Attributes:
        at: when its last page was asked for; before the first, when it came into rotation.
    """

    at: float
    page: EnginePage | None = None
    edge: float | None = None
    trouble: str = ""
    first_tokens: LateFirstTokens = field(default_factory=LateFirstTokens)


class EngineSum:
    """The engines of one policy.

    Args:
        objective: seconds within which the first token should be there.
    """

    def __init__(self, objective: float) -> None:
        self._objective = objective
        self._engines: dict[EngineTarget, _Engine] = {}

    def follow(self, targets: Iterable[EngineTarget], now: float) -> None:
        """Keep exactly these engines. One that left and came back begins anew."""
        self._engines = {target: self._engines.get(target) or _Engine(at=now) for target in targets}

    def answered(self, target: EngineTarget, page: EnginePage, asked: float) -> None:
        """Take a page that was asked for at a time; of an engine that has left it is ignored."""
        engine = self._engines.get(target)
        if engine is not None:
            engine.page, engine.at, engine.trouble = page, asked, ""
            engine.edge = engine.first_tokens.add(page, self._objective, asked)

    def silent(self, target: EngineTarget, why: str) -> None:
        """Take note that an engine told nothing, and why."""
        engine = self._engines.get(target)
        if engine is not None:
            engine.trouble = why

    def taken(self, now: float, freshness: float) -> Taken | None:
        """Return the reading, or None while there is nothing to tell.

        Args:
            now: monotonic seconds.
            freshness: seconds up to which the board believes a reading in both directions.
        """
        engines = self._engines.values()
        if not engines:
            return Taken(parts={Part.REQUESTS: 0.0}, at=now)
        pages = [engine.page for engine in engines if engine.page is not None]
        awaited = [engine for engine in engines if engine.page is None]
        if not pages or any(now - engine.at <= freshness for engine in awaited):
            return None
        parts = {Part.REQUESTS: sum(page.requests for page in pages)}
        late = self._late_share(now, freshness)
        if late is not None:
            parts[Part.LATE_SHARE] = late
        newest = max(engine.at for engine in engines if engine.page is not None)
        oldest = min(engine.at for engine in engines)
        return Taken(parts=parts, at=max(oldest, newest - _STALE_FRESHNESSES * freshness))

    def trouble(self) -> str:
        """Say which engines are silent at present, in one short sentence; empty when none is."""
        silent = sorted(
            (str(target), engine.trouble) for target, engine in self._engines.items() if engine.trouble
        )
        if not silent:
            return ""
        (seat, why), more = silent[0], len(silent) - 1
        others = f", and {more} more" if more else ""
        return f"{len(silent)} of {len(self._engines)} engines silent: {seat}: {why}{others}"

    def views(self, now: float) -> Sequence[EngineView]:
        """Return all engines, by seat."""
        return [
            EngineView(
                target=target,
                dialect="" if engine.page is None else engine.page.dialect.name,
                edge=engine.edge,
                running=None if engine.page is None else engine.page.running,
                waiting=None if engine.page is None else engine.page.waiting,
                kv_usage=None if engine.page is None else engine.page.kv_usage,
                age=math.inf if engine.page is None else now - engine.at,
                trouble=engine.trouble,
            )
            for target, engine in sorted(self._engines.items(), key=lambda item: (str(item[0]), item[0].uid))
        ]

    def _late_share(self, now: float, freshness: float) -> float | None:
        """Return the share over all engines that answered lately; None of too few first tokens."""
        return late_share(
            engine.first_tokens.within()
            for engine in self._engines.values()
            if engine.page is not None and now - engine.at <= freshness
        )


def late_share(counts: Iterable[tuple[float, float]]) -> float | None:
    """Return the share of late first tokens over several (late, all); None of too few."""
    told = list(counts)
    late, every = sum(count[0] for count in told), sum(count[1] for count in told)
    return late / every if every >= FEWEST_FIRST_TOKENS else None
