"""The board: what each signal said last, how old that is, and what all signals of a policy come to.

Absent is not zero. A part that was never read, that has expired, or that a newer reading no longer has is Missing; a
number that is none is counted and changes nothing else; and what is known beside something that should be known and is
not is a lower bound, and so Stale. PURE: time is an argument, in monotonic seconds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from scaler.core.demand import PLAUSIBLE_MAX
from scaler.core.model import MISSING, Load, Quality, Reading
from scaler.signals.expected import Expectation
from scaler.signals.port import Part, SignalKey, rises
from warmpool.seats import PolicyName

PUSHED: Final = "Pushed"
"""The type of signals that are no source's: others push them."""

_COUNTS: Final = frozenset({Part.REQUESTS, Part.QUEUED, Part.BACKLOG})
_LONGEST_ERROR: Final = 500


class Change(StrEnum):
    """What a reading changed."""

    NOTHING = "Nothing"
    """No number, or none that is newer than what is there."""
    MOVED = "Moved"
    """Numbers, and no burst."""
    RISEN = "Risen"
    """More requests or work, by enough for a burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalState:
    """One signal as the board has it.

    Attributes:
        expectation: what is expected of it.
        parts: what it said last; every part that it may be asked for, and whatever else is known.
        read: readings that had a number, or nothing to say.
        failed: times that there was no reading.
        spoilt: numbers that were none.
        error: why there has been no reading since the last one, or what that one lacks; empty after a whole reading.
        failed_in_a_row: how often since then.
        newest: monotonic seconds at which its newest number was true; None before the first.
    """

    expectation: Expectation
    parts: Mapping[Part, Reading]
    newest: float | None
    read: int
    failed: int
    spoilt: int
    error: str
    failed_in_a_row: int


@dataclass(slots=True)
class _Record:
    """What is known of one signal.

    Attributes:
        name: the signal's name in its policy.
        expectation: what is expected of it.
        numbers: per part when it was true, and the number.
        left_out: per part when the newest reading was true that had none of it.
    """

    name: str
    expectation: Expectation
    numbers: dict[Part, tuple[float, float]] = field(default_factory=dict)
    left_out: dict[Part, float] = field(default_factory=dict)
    read: int = 0
    failed: int = 0
    spoilt: int = 0
    error: str = ""
    failed_in_a_row: int = 0

    def take(self, parts: Mapping[Part, float], at: float, lacking: str) -> Change:
        good = {part: value for part, value in parts.items() if _is_number(part, value)}
        self.spoilt += len(parts) - len(good)
        if not math.isfinite(at):
            self.spoilt += 1
            self._lacks("what was read has no time that can be one")
            return Change.NOTHING
        whole = len(good) == len(parts)
        if whole:
            for part in _PARTS - parts.keys() - self.expectation.parts:
                self.left_out[part] = max(at, self.left_out.get(part, -math.inf))
        if whole or good:
            self.read += 1
            self.error, self.failed_in_a_row = _short(lacking), 0
        else:
            self._lacks("what was read holds no number that can be one")
        return max(
            (self._put(part, value, at) for part, value in good.items()),
            key=_RANK.__getitem__,
            default=Change.NOTHING,
        )

    def fail(self, why: str) -> None:
        self.failed += 1
        self._lacks(why)

    def _lacks(self, why: str) -> None:
        self.error = _short(why)
        self.failed_in_a_row += 1

    def _put(self, part: Part, value: float, at: float) -> Change:
        before = self.numbers.get(part)
        # of two that were true at one moment the larger counts
        if before is not None and (at, value) <= before:
            return Change.NOTHING
        self.numbers[part] = (at, value)
        was = 0.0 if before is None else before[1]
        if part in _COUNTS and rises(was, value):
            return Change.RISEN
        return Change.NOTHING if before is not None and value == was else Change.MOVED

    def reading(self, part: Part, now: float) -> Reading:
        number = self.numbers.get(part)
        if number is None or number[0] < self.left_out.get(part, -math.inf):
            return MISSING
        age = max(0.0, now - number[0])
        if age > self.expectation.expiry_seconds:
            return MISSING
        fresh = age <= self.expectation.fresh_seconds
        return Reading(value=number[1], age=age, quality=Quality.FRESH if fresh else Quality.STALE)

    def state(self, now: float) -> SignalState:
        readings = {part: self.reading(part, now) for part in Part}
        return SignalState(
            expectation=self.expectation,
            parts=MappingProxyType(
                {p: r for p, r in readings.items() if r.known or p in self.expectation.named}
            ),
            newest=max((at for at, _ in self.numbers.values()), default=None),
            read=self.read,
            failed=self.failed,
            spoilt=self.spoilt,
            error=self.error,
            failed_in_a_row=self.failed_in_a_row,
        )


def _short(why: str) -> str:
    return " ".join(why.split())[:_LONGEST_ERROR]


_PARTS: Final = frozenset(Part)
_RANK: Final = {change: rank for rank, change in enumerate(Change)}


def _is_number(part: Part, value: object) -> bool:
    """Whether a number can be one: from 0 up, not above what the law believes, a share not above 1; NaN is neither."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0.0 <= value <= (1.0 if part is Part.LATE_SHARE else PLAUSIBLE_MAX)


class Board:
    """All signals of all policies in force: a `Sink` for their sources, and the loads that come of them.

    What is told of a signal that isn't expected is dropped: a source that has just been ended may still say a word.
    """

    def __init__(self) -> None:
        self._records: dict[SignalKey, _Record] = {}
        self._of: dict[PolicyName, list[_Record]] = {}

    def expect(self, signals: Mapping[SignalKey, Expectation]) -> None:
        """Say which signals there are. What is known of those that stay is kept, of others it is forgotten."""
        records: dict[SignalKey, _Record] = {}
        for key, expectation in signals.items():
            record = self._records.get(key) or _Record(key.signal, expectation)
            record.expectation = expectation
            records[key] = record
        self._records, self._of = records, {}
        for key, record in records.items():
            self._of.setdefault(key.policy, []).append(record)

    def forget(self, key: SignalKey) -> None:
        """Forget what a signal said: from now on its number stands for something else."""
        record = self._records.get(key)
        if record is not None:
            record.numbers.clear()
            record.left_out.clear()
            record.error, record.failed_in_a_row = "", 0

    def pace(self, key: SignalKey, interval: float) -> None:
        """Say that a signal is read at another interval at present than its policy has it."""
        record = self._records.get(key)
        if record is not None and record.expectation.interval != interval:
            record.expectation = replace(record.expectation, interval=interval)

    # -------------------------------------------------------------- Sink

    def observed(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> None:
        """See `Sink.observed`."""
        self.take(key, parts, at, lacking)

    def failed(self, key: SignalKey, why: str) -> None:
        """See `Sink.failed`."""
        record = self._records.get(key)
        if record is not None:
            record.fail(why)

    def take(self, key: SignalKey, parts: Mapping[Part, float], at: float, lacking: str = "") -> Change:
        """Take a reading as `observed` does, and return what it changed."""
        record = self._records.get(key)
        return Change.NOTHING if record is None else record.take(parts, at, lacking)

    # -------------------------------------------------------------- what it comes to

    def states(self, now: float) -> Mapping[SignalKey, SignalState]:
        """Return every signal that is expected, in the order in which they were named."""
        return {key: record.state(now) for key, record in self._records.items()}

    def newest(self, policy: PolicyName) -> float | None:
        """Return when the newest number of any signal of a policy was true, or None if there is none."""
        return max(
            (at for record in self._of.get(policy, ()) for at, _ in record.numbers.values()), default=None
        )

    def load(self, policy: PolicyName, pushed: Load, now: float) -> Load:
        """Return what all signals of a policy come to.

        Signals that say the same of the same requests complete each other: the highest counts, so that nothing is
        counted twice. Queues of work are different ones, and add up.

        Args:
            policy: which policy.
            pushed: what was pushed of it.
            now: monotonic seconds.
        """
        records = self._of.get(policy, ())
        read = [record for record in records if record.expectation.type != PUSHED]
        if not read:
            return pushed
        found = _said(read, now)
        for part, name in _FIELDS.items():
            reading = getattr(pushed, name)
            if not reading.known:
                continue
            if part is Part.LATE_SHARE:
                found[part] = [reading]  # it has the waiting in it, which engines don't see
            else:
                found.setdefault(part, []).append(reading)
        if len(read) < len(records) and Part.QUEUED in found and not _knows_anything(pushed):
            found[Part.QUEUED].append(MISSING)
        absent = [record.name for record in read if _silent(record, now)]
        if not _knows_anything(pushed):
            absent += [record.name for record in records if record.expectation.type == PUSHED]
        return replace(
            pushed,
            **{_FIELDS[part]: _together(part, readings) for part, readings in found.items()},
            absent=tuple(absent),
        )


_OF_DEMAND: Final = frozenset({Part.REQUESTS, Part.QUEUED, Part.BACKLOG})


def _silent(record: "_Record", now: float) -> bool:
    """Whether a signal that should say something of the demand says nothing of it."""
    return any(not record.reading(part, now).known for part in record.expectation.parts & _OF_DEMAND)


_FIELDS: Final[Mapping[Part, str]] = MappingProxyType(
    {
        Part.REQUESTS: "engines",
        Part.QUEUED: "queued",
        Part.OLDEST_WAIT_SECONDS: "oldest_wait",
        Part.LATE_SHARE: "late_share",
        Part.BACKLOG: "backlog",
        Part.BACKLOG_AGE_SECONDS: "backlog_age",
    }
)
"""Which field of a load has each part."""


def _said(records: Iterable[_Record], now: float) -> dict[Part, list[Reading]]:
    """Return what signals say, by part: Missing of those that should and don't, nothing of those that needn't."""
    found: dict[Part, list[Reading]] = {}
    for record in records:
        expected = record.expectation.parts
        for part in record.numbers.keys() | expected:
            reading = record.reading(part, now)
            if reading.known or part in expected:
                found.setdefault(part, []).append(reading)
    return found


def _together(part: Part, readings: list[Reading]) -> Reading:
    """Combine what is known; it is a lower bound, and so Stale, where anything is late or unknown."""
    known = [reading for reading in readings if reading.known]
    if len(readings) == len(known) == 1:
        return known[0]
    if not known:
        return MISSING
    values = [reading.value for reading in known]
    fresh = all(reading.quality is Quality.FRESH for reading in readings)
    return Reading(
        value=sum(values) if part is Part.BACKLOG else max(values),
        age=max(reading.age for reading in known),
        quality=Quality.FRESH if fresh else Quality.STALE,
    )


def _knows_anything(load: Load) -> bool:
    return load.queued.known or load.in_flight.known or load.backlog.known
