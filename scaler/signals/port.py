"""What a source of readings is, and what it hands over.

A source runs until it is cancelled, reads at its own pace, and hands each reading, or why there is none, to a sink. It
decides nothing: how old a reading may be, and what several of them come to, is the board's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from warmpool.seats import PolicyName


class Part(StrEnum):
    """What a number says of a policy's load."""

    REQUESTS = "Requests"
    """Requests that engines have: running and waiting in them, proofs and warm-up requests left out."""
    QUEUED = "Queued"
    """Requests that wait in front of the engines."""
    OLDEST_WAIT_SECONDS = "OldestWaitSeconds"
    """Seconds that the oldest of those has waited."""
    LATE_SHARE = "LateShare"
    """Share of the requests, from 0 to 1, whose first token came later than the objective."""
    BACKLOG = "Backlog"
    """Work that waits in a queue of its own and has not been asked for yet: entries, not requests in flight."""
    BACKLOG_AGE_SECONDS = "BacklogAgeSeconds"
    """Seconds that the oldest entry of that queue has waited."""


@dataclass(frozen=True, slots=True)
class SignalKey:
    """Which signal of which policy.

    Attributes:
        policy: the policy.
        signal: the signal's name in it.
    """

    policy: PolicyName
    signal: str


class Sink(Protocol):
    """Where sources put what they read. Never blocks and never raises."""

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        """Take a reading.

        Args:
            key: whose it is.
            parts: what was read; a part that is missing was not there. Numbers may be anything, NaN included: what is
                no number from 0 up is counted and dropped.
            at: monotonic seconds at which it was true, which for a server's answer is when it was asked.
            lacking: what of it couldn't be read, and why, for people; empty for a whole one.
        """

    def failed(self, key: SignalKey, why: str) -> None:
        """Take note that there was no reading.

        Args:
            key: whose it would have been.
            why: a short sentence for people, without secrets.
        """


class Source(Protocol):
    """Reads one signal, or one kind of signal for several policies."""

    async def run(self, sink: Sink) -> None:
        """Read until cancelled. Failures of whatever is read are told to the sink and never end it."""


_RISE_SHARE = 0.1


def rises(before: float, after: float) -> bool:
    """Whether a count of requests or work has risen by enough for a burst: a tenth of what was there, one at least."""
    return after - before >= max(1.0, _RISE_SHARE * before)


@runtime_checkable
class Paced(Protocol):
    """A source that reads more slowly than it should where it can't keep up."""

    @property
    def interval(self) -> float:
        """Seconds between two readings at present."""
