"""What a policy's signals promise: how often each should be read, and what it should say.

The one place where the file format's integers and types become what the board goes by. PURE.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scaler.policy.compile import PolicySet
from scaler.policy.signals import (
    EngineMetrics,
    Measures,
    Prometheus,
    Pushed,
    RedisList,
    RedisSortedSet,
    RedisStream,
    Signal,
)
from scaler.signals.port import Part, SignalKey

_FRESH_INTERVALS: Final = 1.5
"""Intervals after which a reading is late: one reading may be lost to jitter, two in a row are a fault."""
_EXPIRY_FACTOR: Final = 10.0
_SHORTEST_EXPIRY_SECONDS: Final = 30.0
_LONGEST_EXPIRY_SECONDS: Final = 300.0

PART_OF: Final[Mapping[Measures, Part]] = MappingProxyType(
    {
        Measures.REQUESTS: Part.REQUESTS,
        Measures.QUEUE_DEPTH: Part.QUEUED,
        Measures.QUEUE_AGE_SECONDS: Part.OLDEST_WAIT_SECONDS,
        Measures.TTFT_SHARE_OVER_OBJECTIVE: Part.LATE_SHARE,
    }
)
"""The part that a number from outside is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is expected of one signal.

    Attributes:
        type: its type, as policies name it.
        interval: seconds between two readings.
        timeout: seconds after which a reading is given up.
        parts: what every good reading says. Whatever else it says may be missing from the next one: without requests
            there is no share of late ones.
        spare: what a good reading may lack of what the signal is for.
    """

    type: str
    interval: float
    timeout: float
    parts: frozenset[Part]
    spare: frozenset[Part] = frozenset()

    @property
    def named(self) -> frozenset[Part]:
        """All that the signal is for; it is shown even while it is Missing."""
        return self.parts | self.spare

    @property
    def fresh_seconds(self) -> float:
        """Age up to which a reading is Fresh: one and a half intervals, and the time that a reading may take."""
        return _FRESH_INTERVALS * self.interval + self.timeout

    @property
    def expiry_seconds(self) -> float:
        """Age above which a reading is Missing.

        Ten times as long as it is Fresh, half a minute at least and five minutes at most. A signal that is read so
        seldom that it is Fresh for longer than that is never Stale.
        """
        longest = max(_EXPIRY_FACTOR * self.fresh_seconds, _SHORTEST_EXPIRY_SECONDS)
        return max(self.fresh_seconds, min(longest, _LONGEST_EXPIRY_SECONDS))


def signals_of(policies: PolicySet) -> dict[SignalKey, Signal]:
    """Return all signals of a set, in the order of the files."""
    return {
        SignalKey(name, signal.name): signal
        for name, policy in policies.policies.items()
        for signal in policy.spec.signals
    }


def expectation(signal: Signal) -> Expectation:
    """Return what is expected of a signal.

    One that is pushed is read by nobody: its samples say themselves how long they hold, and nothing is known beforehand
    of what they will say.
    """
    match signal:
        case Pushed():
            return Expectation(type=signal.type, interval=0.0, timeout=0.0, parts=frozenset())
        case Prometheus():
            part = frozenset({PART_OF[signal.measures]})
            return Expectation(
                type=signal.type,
                interval=float(signal.interval_seconds),
                timeout=float(signal.timeout_seconds),
                parts=part - {Part.LATE_SHARE},
                spare=part & {Part.LATE_SHARE},
            )
        case EngineMetrics() | RedisList() | RedisStream() | RedisSortedSet():
            return Expectation(
                type=signal.type,
                interval=signal.interval_milliseconds / 1000,
                timeout=signal.timeout_milliseconds / 1000,
                parts=frozenset({Part.REQUESTS if isinstance(signal, EngineMetrics) else Part.BACKLOG}),
            )
