"""What the driver's errors (Xids) do to a GPU's record. PURE.

Equal errors in a burst are one, whoever tells of them. What the driver says follows from another error counts for nothing, and so do
errors of links beside a GPU that has just died. Where several of an error make a GPU Suspect, those that other GPUs had at the same
time are a program's.
"""

from dataclasses import replace
from typing import Final

from warmpool.nodehealth.latching import cleared, latched, suspect
from warmpool.nodehealth.readings import Event
from warmpool.nodehealth.records import (
    MOST_BURSTS,
    XID,
    Clears,
    Code,
    GpuRecord,
    Latch,
    NodeRecord,
    Rules,
    Seen,
)
from warmpool.nodehealth.xids import (
    CANCELS,
    DAY,
    OF_LINKS,
    OFF_THE_BUS,
    RECOVERY_CHANGED,
    When,
    XidRule,
    caused_by,
    link_fault,
)
from warmpool.seats import Verdict

_CODES_OF_LINKS: Final = frozenset(f"{XID}{xid}" for xid in OF_LINKS)


def recovery_changed(gpu: GpuRecord, at: float) -> GpuRecord:
    """Note that the driver's verdict has changed, until it is read."""
    if not gpu.driver_judges:
        return gpu
    return latched(
        gpu, suspect(Code.RECOVERY_CHANGED, at, "the driver's verdict has changed and isn't read yet")
    )


def with_xid(record: NodeRecord, gpu: GpuRecord, event: Event, rules: Rules) -> GpuRecord:
    """Add an error to a GPU's record."""
    xid, rule = event.xid, rules.table.rule(event.xid)
    if xid == RECOVERY_CHANGED:
        gpu = recovery_changed(gpu, event.at)
    if xid in CANCELS:
        gpu = cleared(gpu, (f"{XID}{CANCELS[xid]}",), event.at, rules)
    follows = caused_by(event.text) is not None or _sympathetic(record, gpu, event, rules)
    verdict = Verdict.OK if follows else _says(rule, gpu, event)
    if rule.verdict is Verdict.OK:
        return gpu
    bursts = len(gpu.xids)
    gpu = _noted(gpu, Seen(at=event.at, xid=xid, counts=not follows), rules)
    if verdict is Verdict.OK or _occurrences(record, gpu, event, rules) < rule.occurrences:
        return gpu
    latch = _xid_latch(gpu, event, verdict, rules)
    return latched(gpu, replace(latch, count=int(len(gpu.xids) > bursts or gpu.latch(latch.code) is None)))


def _says(rule: XidRule, gpu: GpuRecord, event: Event) -> Verdict:
    """Return what an error says of its GPU, where its rule holds."""
    match rule.when:
        case When.ALWAYS:
            return rule.verdict
        case When.MULTI_GPU:
            if gpu.shared is None:  # a GPU is given up rather late than for nothing
                return Verdict.SUSPECT if rule.verdict is Verdict.BAD else rule.verdict
            return rule.verdict if gpu.shared else Verdict.OK
        case When.SAYS_FATAL:
            fault = link_fault(event.text)
            return rule.verdict if fault is not None and fault.fatal else Verdict.OK


def _xid_latch(gpu: GpuRecord, event: Event, verdict: Verdict, rules: Rules) -> Latch:
    rule, bad = rules.table.rule(event.xid), verdict is Verdict.BAD
    often = len(_bursts(gpu, event.xid, event.at - DAY)) >= max(rules.repeated, rule.occurrences)
    asks = bad and gpu.driver_judges and event.xid != OFF_THE_BUS and not often
    return Latch(
        code=f"{XID}{event.xid}",
        verdict=verdict,
        since=event.at,
        last=event.at,
        clears=Clears.BOOT if event.xid == OFF_THE_BUS else Clears.RESET,
        until=None if bad else event.at + rule.within_seconds,
        asked=event.at if asks else None,
        text=_named(event, rule),
    )


def _named(event: Event, rule: XidRule) -> str:
    """Say in words what an error is, a fault of NVLink 5 with its kind."""
    fault = link_fault(event.text) if rule.when is When.SAYS_FATAL else None
    if fault is None:
        return f"Xid {event.xid}: {rule.note}"
    kind = "" if fault.subcode is None else f".{fault.subcode}"
    return f"Xid {event.xid}{kind}: {rule.note} ({fault.unit}, link {fault.link})"


def _noted(gpu: GpuRecord, seen: Seen, rules: Rules) -> GpuRecord:
    """Remember an error; equal ones within a burst are one, which counts if any of them does."""
    rule = rules.table.rule(seen.xid)
    equal = [each for each in gpu.xids if each.xid == seen.xid]
    others = [each for each in gpu.xids if each.xid != seen.xid]
    for place, each in enumerate(equal):
        if abs(each.at - seen.at) < rules.burst_seconds:
            merged = replace(each, at=min(each.at, seen.at), counts=each.counts or seen.counts)
            if merged == each:
                return gpu
            equal[place] = merged
            break
    else:
        equal = sorted((*equal, seen), key=lambda each: each.at)
    oldest = seen.at - max(DAY, rule.within_seconds)
    equal = [each for each in equal if each.at > oldest][-max(MOST_BURSTS, rule.occurrences) :]
    return replace(gpu, xids=tuple(sorted((*others, *equal), key=lambda each: (each.at, each.xid))))


def _bursts(gpu: GpuRecord, xid: int, after: float) -> list[float]:
    """Return when bursts of an error began that count."""
    return [each.at for each in gpu.xids if each.xid == xid and each.counts and each.at > after]


def _occurrences(record: NodeRecord, gpu: GpuRecord, event: Event, rules: Rules) -> int:
    """Count an error's bursts; where several make a GPU Suspect, those that other GPUs had too are a program's."""
    rule = rules.table.rule(event.xid)
    counted = _bursts(gpu, event.xid, event.at - rule.within_seconds)
    if rule.verdict is not Verdict.SUSPECT or rule.occurrences == 1:
        return len(counted)
    elsewhere = [
        each.at
        for other in record.gpus.values()
        if other.uuid != gpu.uuid
        for each in other.xids
        if each.xid == event.xid
    ]
    return sum(all(abs(at - other) >= rules.burst_seconds for other in elsewhere) for at in counted)


def _sympathetic(record: NodeRecord, gpu: GpuRecord, event: Event, rules: Rules) -> bool:
    """Whether an error of a link follows from the death of another GPU of the node."""
    if event.xid not in OF_LINKS:
        return False
    return any(
        latch.verdict is Verdict.BAD
        and latch.code not in _CODES_OF_LINKS
        and abs(latch.last - event.at) <= rules.burst_seconds
        for uuid, other in record.gpus.items()
        if uuid != gpu.uuid
        for latch in other.latches
    )
