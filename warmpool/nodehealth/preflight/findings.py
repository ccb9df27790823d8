"""From what was read and tested of a GPU to whether an engine may load its weights there. PURE.

What isn't told is unknown and keeps nobody from starting; where there is no GPU at all, that has to be allowed. Counters count by what they grow during the look: what a GPU brings along
from earlier is no fault. A row that waits for a reset is one: the GPU gets no promotion, and is reset when nobody holds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from warmpool.nodehealth.preflight.march import Coverage

REFUSED: Final = 69
"""Exit status of a look that found something: sysexits.h's EX_UNAVAILABLE."""
_MIB, _GIB = 2**20, 2**30


class Outcome(Enum):
    """What came of a look."""

    PASSED = "Passed"
    SKIPPED = "Skipped"
    """Nothing could be looked at, or it is switched off, or there is no GPU and need be none; the engine starts."""
    NO_GPU = "NoGpu"
    """There is no GPU, or no driver."""
    ROW_PENDING = "RowPending"
    """A memory row, or page, waits for a reset."""
    ROW_FAILED = "RowFailed"
    """Replacing a memory row has failed."""
    ERRORS = "MemoryErrors"
    """The GPU has counted memory errors that weren't corrected while it was tested, or ended the test because of one."""
    WRONG = "MemoryWrong"
    """What was read wasn't what had been written."""
    TOO_LITTLE_FREE = "TooLittleFree"
    """Somebody holds memory that the engine needs."""
    DRIVER_FAILED = "DriverFailed"
    """A call of the driver failed."""
    NO_ANSWER = "NoAnswer"
    """A call of the driver did not return."""


STARTS: Final = frozenset({Outcome.PASSED, Outcome.SKIPPED})
"""After these the engine is started."""
OF_THE_GPU: Final = frozenset({Outcome.ERRORS, Outcome.WRONG})
"""These say that the GPU is at fault, and nobody else tells the node agent."""


@dataclass(frozen=True)
class Counters:
    """What a GPU tells of its memory; None where it doesn't.

    Attributes:
        uncorrected: errors that weren't corrected, since the driver was loaded.
        row_pending: a row or page waits for a reset.
        row_failed: replacing a row has failed, ever.
    """

    uncorrected: int | None = None
    row_pending: bool | None = None
    row_failed: bool | None = None


@dataclass(frozen=True)
class Finding:
    """What came of a look at one GPU.

    Attributes:
        outcome: in one word.
        gpu: its UUID; empty where it is about none.
        text: in words.
    """

    outcome: Outcome
    gpu: str
    text: str

    @property
    def line(self) -> str:
        """It as one line of a log, from which `told_in` reads it back."""
        where = f"{self.gpu}: " if self.gpu else ""
        return f"pre-flight: {self.outcome.value}: {where}{' '.join(self.text.split())}"


_LINE: Final = re.compile(r"pre-flight: (\w+): (?:(GPU-[\w-]+): )?([^\n|]*)")


def told_in(text: str) -> Finding | None:
    """Return what a look's lines say, somewhere in a text: the first that keeps an engine from starting, if any does.

    Args:
        text: the end of a process in words, with its last lines parted by bars or new lines.
    """
    names = {each.value for each in Outcome}
    found = [
        Finding(Outcome(name), gpu, words.strip())
        for name, gpu, words in _LINE.findall(text)
        if name in names
    ]
    return next((each for each in found if each.outcome not in STARTS), found[0] if found else None)


def was_refused(ended: str) -> bool:
    """Whether a look kept an engine from starting, as the end of its process in words has it; see `told_in`."""
    found = told_in(ended)
    return found is not None and found.outcome not in STARTS


def of_counters(gpu: str, counters: Counters) -> Finding | None:
    """Say what speaks against a GPU before it is tested; None if nothing does."""
    if counters.row_failed:
        return Finding(Outcome.ROW_FAILED, gpu, "replacing a memory row has failed")
    if counters.row_pending:
        return Finding(Outcome.ROW_PENDING, gpu, "a memory row or page is replaced at the next reset")
    return None


def of_free(gpu: str, free_bytes: int, needed_bytes: int) -> Finding | None:
    """Say that an engine won't find the memory that it needs; None if it will."""
    if free_bytes >= needed_bytes:
        return None
    text = f"{free_bytes // _MIB} MiB are free, and {needed_bytes // _MIB} are needed"
    return Finding(Outcome.TOO_LITTLE_FREE, gpu, text)


def of_march(gpu: str, coverage: Coverage, before: Counters, after: Counters) -> Finding:
    """Say what a test has shown.

    Args:
        gpu: which GPU.
        coverage: what the test has seen.
        before: the GPU's counters before it.
        after: and after it.
    """
    wrong = coverage.wrong
    if wrong is not None:
        text = f"{wrong.words} words were not what had been written, the first at {wrong.first:#x}, in bits {wrong.bits:#018x}"
        return Finding(Outcome.WRONG, gpu, text)
    grown = (after.uncorrected or 0) - (before.uncorrected or 0)
    if before.uncorrected is not None and grown > 0:
        return Finding(Outcome.ERRORS, gpu, f"{grown} uncorrected memory errors while it was tested")
    again = of_counters(gpu, after)
    if again is not None:
        return again
    if coverage.taken_bytes and not coverage.covered_bytes:
        return Finding(Outcome.SKIPPED, gpu, f"nothing was tested in {coverage.seconds:.2f} s")
    return Finding(Outcome.PASSED, gpu, _in_words(coverage, after))


def _in_words(coverage: Coverage, counters: Counters) -> str:
    ecc = "errors are not counted" if counters.uncorrected is None else f"{counters.uncorrected} before"
    return (
        f"{coverage.covered_bytes / _GIB:.1f} of {coverage.taken_bytes / _GIB:.1f} GiB of free memory tested in "
        f"{coverage.seconds:.2f} s, {coverage.patterns} pairs of patterns over all of it (uncorrected memory errors: {ecc})"
    )
