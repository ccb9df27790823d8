"""The march through free memory: every word is written, read, written with its complement and read again, while there is time. PURE.

Memory is a port and time an argument, so the same march runs on a GPU and, in tests, on host memory with faults in it. A sweep goes
through all of the memory before the next begins, so that what is read has long left the caches. When time is up it ends, and says
how much it has seen: an area counts as covered once each of its bits was read as 0 and as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from warmpool.nodehealth.preflight.patterns import Pattern, pairs


@dataclass(frozen=True)
class Area:
    """Memory that was taken.

    Attributes:
        address: where it begins.
        nbytes: its size, a multiple of 8.
    """

    address: int
    nbytes: int


@dataclass(frozen=True)
class Wrong:
    """Words that were not what had been written.

    Attributes:
        words: how many.
        first: the lowest address of one.
        bits: all bits in which any of them was wrong.
    """

    words: int
    first: int
    bits: int


class Memory(Protocol):
    """Memory that can be taken and swept."""

    def take(self, most_bytes: int) -> Sequence[Area]:
        """Take as much free memory as there is, and no more than `most_bytes`."""

    def sweep(self, area: Area, expected: Pattern | None, written: Pattern | None) -> Wrong | None:
        """Go through an area once: compare each word with what is expected, then write another in its place.

        Args:
            area: which.
            expected: what should be there; None: nothing is compared.
            written: what is written; None: nothing is.

        Returns:
            What was wrong; None if all was right.
        """

    def give(self) -> None:
        """Give back all that was taken."""


@dataclass(frozen=True)
class Coverage:
    """What a march has seen.

    Attributes:
        taken_bytes: memory that it took.
        covered_bytes: how much of that has had each bit read as 0 and as 1.
        patterns: pairs of patterns that went through all of it.
        seconds: how long it took.
        wrong: what was wrong, the first area of that; None if nothing was.
    """

    taken_bytes: int
    covered_bytes: int
    patterns: int
    seconds: float
    wrong: Wrong | None = None


def march(memory: Memory, most_bytes: int, seconds: float, clock: Callable[[], float]) -> Coverage:
    """Take free memory, test it while there is time, and give it back.

    Args:
        memory: the memory.
        most_bytes: how much is taken at most.
        seconds: how long it may take; what is under way when that is over is finished, which takes milliseconds.
        clock: monotonic seconds.
    """
    began = clock()
    try:
        areas = memory.take(most_bytes)
        taken, covered, patterns = sum(area.nbytes for area in areas), 0, 0
        for step in _steps(areas):
            if clock() - began >= seconds:
                break
            wrong = memory.sweep(step.area, step.expected, step.written)
            if wrong is not None:
                return Coverage(taken, covered, patterns, clock() - began, wrong)
            if step.ends_pair:
                covered += step.area.nbytes if not patterns else 0
                patterns += step.area is areas[-1]
        return Coverage(taken, covered, patterns, clock() - began)
    finally:
        memory.give()


@dataclass(frozen=True)
class _Step:
    area: Area
    expected: Pattern | None
    written: Pattern | None
    ends_pair: bool


def _steps(areas: Sequence[Area]) -> Iterator[_Step]:
    """Return what is done with which area: each sweep reads what the one before has written, and writes what comes next."""
    before: Pattern | None = None
    for pattern, complement in pairs():
        for written in (pattern, complement):
            for area in areas:
                yield _Step(area, before, written, ends_pair=before is not None and written is pattern)
            before = written
    for area in areas:
        yield _Step(area, before, None, ends_pair=True)
