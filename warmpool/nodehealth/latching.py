"""What latches do to a GPU's record: found, found again, cleared. PURE."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from warmpool.nodehealth.records import RANK, Clears, GpuRecord, Hold, Latch, Rules, worse
from warmpool.seats import Verdict

_RESETTING: Final = frozenset({Clears.RESET, Clears.BOOT, Clears.QUIET})


def effective(latch: Latch, now: float, rules: Rules) -> Verdict:
    """Return what a latch says now: Suspect while the driver's word on it is awaited, for as long as that may take."""
    awaited = latch.asked is not None and now < latch.asked + rules.word_seconds
    return Verdict.SUSPECT if awaited else latch.verdict


def restated(gpu: GpuRecord, now: float, rules: Rules) -> GpuRecord:
    """Note the verdict; its time stays where only its reasons change."""
    verdict = Verdict.OK
    for latch in gpu.latches:
        verdict = worse(verdict, effective(latch, now, rules))
    if gpu.hold is not None:
        verdict = worse(verdict, gpu.hold.verdict)
    if gpu.trial is not None:
        verdict = worse(verdict, gpu.trial.verdict)
    return gpu if verdict is gpu.verdict else replace(gpu, verdict=verdict, since=now)


def suspect(code: str, at: float, text: str, *, seconds: float | None = None) -> Latch:
    """Return a latch that a reading clears, or time."""
    return Latch(
        code=code,
        verdict=Verdict.SUSPECT,
        since=at,
        last=at,
        clears=Clears.READING if seconds is None else Clears.QUIET,
        until=None if seconds is None else at + seconds,
        text=text,
    )


def latched(gpu: GpuRecord, latch: Latch) -> GpuRecord:
    """Add a latch, or find again what was found before, which never makes it better."""
    before = gpu.latch(latch.code)
    if before is not None:
        worst = worse(before.verdict, latch.verdict)
        decided = before.verdict is Verdict.BAD and before.asked is None
        latch = replace(
            latch,
            verdict=worst,
            clears=before.clears if RANK[before.verdict] > RANK[latch.verdict] else latch.clears,
            since=before.since,
            last=max(before.last, latch.last),
            until=_later(before.until, latch.until)
            if RANK[before.verdict] >= RANK[latch.verdict]
            else latch.until,
            count=before.count + latch.count,
            asked=None if decided or latch.asked is None else (before.asked or latch.asked),
        )
    return put(gpu, latch)


def put(gpu: GpuRecord, latch: Latch) -> GpuRecord:
    """Put a latch in the place of the one of its code."""
    others = [each for each in gpu.latches if each.code != latch.code]
    return replace(gpu, latches=tuple(sorted((*others, latch), key=lambda each: each.code)))


def _later(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)


def cleared(gpu: GpuRecord, codes: Iterable[str], now: float, rules: Rules) -> GpuRecord:
    """Take latches away; after something that was Bad, or that took a reset, the GPU is held as it was."""
    gone = [each for each in gpu.latches if each.code in frozenset(codes)]
    if not gone:
        return gpu
    gpu = replace(gpu, latches=tuple(each for each in gpu.latches if each not in gone))
    grave = [each for each in gone if each.verdict is Verdict.BAD or each.clears in _RESETTING]
    if not grave:
        return gpu
    verdict = Verdict.OK
    for each in grave:
        verdict = worse(verdict, effective(each, now, rules))
    if gpu.hold is not None:
        verdict = worse(verdict, gpu.hold.verdict)
    text = ", ".join(each.code for each in grave)
    return replace(
        gpu, hold=Hold(verdict=verdict, since=now, until=now + rules.hold_seconds, text=text), trial=None
    )
