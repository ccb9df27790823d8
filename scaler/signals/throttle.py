"""How much may be pushed: so many samples and bytes a second from one source, from one pusher, and from all together.

Reading a sample costs the controller's loop some thirty microseconds for each kilobyte, so what comes is weighed before it is
read. A sample has to fit into three buckets at once: that of its source (who pushes, from which address), of its pusher (a
token, or Redis), and of all. Each holds less than the one above it, so that no source keeps out another and no pusher all
others. What comes too soon may wait for a moment; turns are in the order of coming, so that of several connections of one source
none keeps out another. What would have to wait longer takes nothing from any bucket.

PURE: time is an argument, in seconds of a clock that only goes on.
"""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scaler.errors import SampleRejected

_MIB: Final = 1024 * 1024
_SWEEP_SECONDS: Final = 0.5
"""Sources that have gone quiet are looked for this often, while there is no room for others."""


class TooMuch(SampleRejected):
    """There is more to read than may be; nothing of it was read.

    Attributes:
        scope: whose bound it was: `Source`, `Pusher` or `All`.
        seconds: after so long there is room for it.
    """

    def __init__(self, message: str, scope: str, seconds: float) -> None:
        super().__init__(message)
        self.scope = scope
        self.seconds = seconds


class Source(NamedTuple):
    """Where samples come from.

    Attributes:
        pusher: who pushes.
        address: from which address; empty where there is none, and then its pusher's bucket is the first.
    """

    pusher: str
    address: str = ""


class Weight(NamedTuple):
    """How much comes.

    Attributes:
        samples: that begin with it.
        bytes: of them.
    """

    samples: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What may come.

    Attributes:
        samples: a second.
        bytes: a second.
        at_once: seconds whose samples and bytes may come together after a pause. It bounds how long the loop reads at a
            stretch, and has to hold the largest sample.
    """

    samples: float
    bytes: float
    at_once: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleLimits:
    """What may come from whom.

    The usual ones let a gateway push a hundred times a second, and keep the loop busy with reading for a third of its time at
    most: 4 MiB take 0.12 s, and a thousand requests over HTTP some 0.2 s.

    Attributes:
        source: from one source.
        pusher: from one pusher, all its addresses together.
        all: from everyone.
        most_sources: sources that are told apart; those beyond them share what their pushers have.
    """

    source: Rate = field(default_factory=lambda: Rate(samples=200, bytes=2 * _MIB))
    pusher: Rate = field(default_factory=lambda: Rate(samples=750, bytes=3 * _MIB))
    all: Rate = field(default_factory=lambda: Rate(samples=1000, bytes=4 * _MIB))
    most_sources: int = 1024


class _Bucket:
    """What may still come of one rate; below zero, what was promised ahead of time."""

    __slots__ = ("_at", "_bytes", "_rate", "_samples")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._samples = rate.samples * rate.at_once
        self._bytes = rate.bytes * rate.at_once
        self._at = now

    def fill(self, now: float) -> None:
        rate, passed = self._rate, max(0.0, now - self._at)
        self._samples = min(rate.samples * rate.at_once, self._samples + passed * rate.samples)
        self._bytes = min(rate.bytes * rate.at_once, self._bytes + passed * rate.bytes)
        self._at = now

    def lacking(self, what: Weight) -> float:
        """Return the seconds until there is room."""
        rate = self._rate
        return max(
            0.0, (what.samples - self._samples) / rate.samples, (what.bytes - self._bytes) / rate.bytes
        )

    def take(self, what: Weight) -> None:
        self._samples -= what.samples
        self._bytes -= what.bytes

    def quiet(self, now: float) -> bool:
        """Whether it is as if nothing had ever come."""
        self.fill(now)
        rate = self._rate
        return self._samples >= rate.samples * rate.at_once and self._bytes >= rate.bytes * rate.at_once


class Throttle:
    """Weighs what comes before it is read.

    Args:
        limits: what may come.
    """

    def __init__(self, limits: ThrottleLimits | None = None) -> None:
        self._limits = limits if limits is not None else ThrottleLimits()
        self._all = _Bucket(self._limits.all, 0.0)
        self._pushers: dict[str, _Bucket] = {}
        self._sources: dict[Source, _Bucket] = {}
        self._swept_at = -math.inf

    def charge(self, source: Source, what: Weight, now: float, patience: float = 0.0) -> float:
        """Let samples and bytes come, and return the seconds that they have to wait before.

        Args:
            source: where from.
            what: how much.
            now: the time.
            patience: seconds that they may wait.

        Raises:
            TooMuch: they would have to wait longer; nothing was taken.
        """
        if source.pusher not in self._pushers:
            self._pushers[source.pusher] = _Bucket(self._limits.pusher, now)
        buckets = [
            ("Pusher", source.pusher, self._pushers[source.pusher]),
            ("All", "all who push", self._all),
        ]
        if self._told_apart(source, now):
            if source not in self._sources:
                self._sources[source] = _Bucket(self._limits.source, now)
            buckets.insert(0, ("Source", f"{source.pusher} at {source.address}", self._sources[source]))
        wait = 0.0
        for scope, who, bucket in buckets:
            bucket.fill(now)
            if (seconds := bucket.lacking(what)) > patience:
                raise TooMuch(f"too much of {who}: there is room again in {seconds:.2f} s", scope, seconds)
            wait = max(wait, seconds)
        for _scope, _who, bucket in buckets:
            bucket.take(what)
        return wait

    def _told_apart(self, source: Source, now: float) -> bool:
        """Whether a source has a bucket of its own."""
        if not source.address or source in self._sources:
            return bool(source.address)
        if len(self._sources) >= self._limits.most_sources and now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            for quiet in [each for each, bucket in self._sources.items() if bucket.quiet(now)]:
                del self._sources[quiet]
        return len(self._sources) < self._limits.most_sources
