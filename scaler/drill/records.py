"""What one request of the load came to, and the gaps between tokens as a histogram of bounded size. PURE."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended."""

    OK = "Ok"
    """A whole answer with as many tokens as were asked for."""
    CONNECT = "Connect"
    """No connection could be made, or it broke before anything was sent back."""
    TIMEOUT = "Timeout"
    """No whole answer within the scenario's request timeout."""
    HTTP_4XX = "Http4xx"
    """The answer's status was 400 to 499."""
    HTTP_5XX = "Http5xx"
    """The answer's status was 500 or more."""
    INTERRUPTED = "InterruptedStream"
    """The stream ended in mid-answer, with a clear error event."""
    BROKEN = "BrokenStream"
    """The stream ended in mid-answer without a word, or can't be read."""
    TRUNCATED = "Truncated"
    """The answer ended as if whole, with another number of tokens than asked for, or without usage."""
    NOT_SENT = "NotSent"
    """The generator had too many requests open already; the drill is too large for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request, as the client saw it. Times are seconds after the start of the load.

    Attributes:
        policy, stage: what it belonged to.
        intended: when it was to be sent; latencies count from here.
        sent: when it was sent; None if it never was.
        first: when the first token arrived; None for answers that were not streamed or had none.
        last: when the answer ended, well or not.
        tokens: tokens of the answer according to its usage (of a failed stream: chunks with tokens).
        outcome: how it ended.
        detail: for a failure, what was seen; empty otherwise.
    """

    policy: str
    stage: str
    intended: float
    sent: float | None
    first: float | None
    last: float
    tokens: int
    outcome: Outcome
    detail: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds from the intended time to the first token."""
        return None if self.first is None else self.first - self.intended


_GROWTH = 1.02
"""Ratio of neighbouring bucket edges: figures from the histogram are at most 2 % above the true value."""
_SMALLEST = 1e-5
"""Gaps up to 10 µs share the first bucket."""


@dataclass(slots=True)
class GapHistogram:
    """Times between tokens in buckets that grow by 2 %: bounded memory however long the drill is.

    Attributes:
        buckets: count per bucket index.
        largest: the largest gap, exactly, in seconds.
    """

    buckets: Counter[int] = field(default_factory=Counter)
    largest: float = 0.0

    def add(self, gap: float) -> None:
        """Count one gap, in seconds."""
        self.buckets[_bucket(gap)] += 1
        self.largest = max(self.largest, gap)

    @property
    def count(self) -> int:
        """How many gaps were counted."""
        return self.buckets.total()

    def quantile(self, share: float) -> float:
        """The smallest bucket edge that at least `share` of the gaps are under, by nearest rank; 0.0 when empty."""
        wanted = math.ceil(share * self.count)
        for upper, seen in self._cumulated():
            if seen >= wanted:
                return min(upper, self.largest)
        return 0.0

    def _cumulated(self) -> Iterator[tuple[float, int]]:
        seen = 0
        for index in sorted(self.buckets):
            seen += self.buckets[index]
            yield _SMALLEST * _GROWTH**index, seen


def _bucket(gap: float) -> int:
    return 0 if gap <= _SMALLEST else math.ceil(math.log(gap / _SMALLEST) / math.log(_GROWTH))
