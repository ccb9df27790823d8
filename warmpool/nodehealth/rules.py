"""From readings, events and what is remembered to a verdict on each GPU. PURE: the same history gives the same verdict.

- The driver's own verdict ranks first. Where it has one, an error that the table calls Bad makes a GPU Suspect at once, and Bad only
  if the driver doesn't say within seconds that nothing has to be done; if it does, the GPU is tried again soon.
- Silence is not sickness: a GPU that doesn't answer is unknown, keeps what was found before, and gets nothing new.
- Counters count by their differences; what a GPU brings along from earlier is no fault.
- Errors that a program causes never make a GPU Bad. Equal errors in a burst are one; errors of links beside a GPU that has just
  died follow from that; a program's faults on several GPUs at once are the program's.
- There is always a way back: a reading, a reset, a boot or time clears each latch; then the GPU is held, then tried.
- More faults of a GPU never make its verdict better.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth import findings
from warmpool.nodehealth.latching import cleared, latched, put, restated, suspect
from warmpool.nodehealth.readings import Canary, Contact, Event, GpuReading, NodeReading, RecoveryAction, Told
from warmpool.nodehealth.records import (
    MOST_COUNTS,
    MOST_PROOFS,
    RANK,
    XID,
    Baseline,
    Clears,
    Code,
    Count,
    GpuRecord,
    Hold,
    Latch,
    NodeRecord,
    Rules,
)
from warmpool.nodehealth.xid_rules import recovery_changed, with_xid
from warmpool.nodehealth.xids import DAY
from warmpool.seats import Verdict

_HOUR: Final = 3600.0
_SLOWED, _RUNS = "Slowed", "Runs"
_FEWEST_READINGS = 10
_CONFIRMED: Final = frozenset({Code.LOST, Code.RESET_REQUIRED, Code.MISSING, Code.UNAVAILABLE})
"""What the reading after next confirms."""
BACK_SECONDS: Final = 5.0
"""A clock that goes back by more than this was set."""


def with_reading(record: NodeRecord, reading: NodeReading, rules: Rules) -> NodeRecord:
    """Add a reading of all GPUs to what is remembered."""
    now = reading.at
    if now < record.at - BACK_SECONDS:
        record = set_back(record, now - record.at)
    record = advanced(record, now, rules)
    boot = reading.boot or record.boot
    gpus = dict(record.gpus)
    for uuid, read in reading.gpus.items():
        before = gpus.get(uuid) or _first_seen(uuid, now, rules, lost=record.lost)
        if before.boot and before.boot != boot:
            before = after_boot(before, now, rules)
        gpus[uuid] = restated(_with_gpu(replace(before, boot=boot), read, now, rules), now, rules)
    if reading.listed:
        gpus = _with_missing(gpus, reading, record, rules)
    return replace(
        record,
        at=now,
        boot=boot,
        most=max(record.most, len(reading.gpus)),
        gpus=MappingProxyType(gpus),
        lost=record.lost and not reading.gpus,
        reason=reading.reason,
    )


def _first_seen(uuid: str, now: float, rules: Rules, *, lost: bool) -> GpuRecord:
    """Return the record of a GPU that isn't remembered; unknown for a while where that is for want of memory."""
    trial = Hold(verdict=Verdict.OK, since=now, until=now + rules.trial_seconds) if lost else None
    return GpuRecord(uuid=uuid, since=now, forgotten=lost, trial=trial)


def with_event(record: NodeRecord, event: Event, rules: Rules) -> NodeRecord:
    """Add what the driver told unasked; an event of a GPU that isn't known is about none."""
    gpu = record.gpus.get(event.uuid)
    if gpu is None:
        return record
    match event.told:
        case Told.XID:
            after = with_xid(record, gpu, event, rules)
        case Told.RECOVERY:
            after = recovery_changed(gpu, event.at)
        case Told.UNAVAILABLE:
            after = latched(gpu, suspect(Code.UNAVAILABLE, event.at, "the driver says that it can't be used"))
        case Told.STORM:
            text = "very many corrected memory errors"
            after = latched(gpu, suspect(Code.CORRECTABLE, event.at, text, seconds=_HOUR))
        case _:  # of errors of its memory the counters tell how many
            after = gpu
    after = restated(after, max(event.at, record.at), rules)
    return record if after is gpu else _put(record, after)


def counts(record: NodeRecord, canary: Canary) -> bool:
    """Whether what came of a canary says something of its GPUs.

    One that fails does only if the same proof has passed on this node, and has failed nowhere there since: else the resident, or
    what is expected of it, is wrong wherever it runs.
    """
    return canary.passed or not canary.proof or canary.proof in record.passed


def with_canary(record: NodeRecord, canary: Canary, rules: Rules) -> NodeRecord:
    """Add what came of a canary: a resident was started on GPUs and answered as it should, or otherwise."""
    if not counts(record, canary):
        return record
    of_proof = [each for each in record.passed if each != canary.proof]
    if canary.passed and canary.proof:
        of_proof.append(canary.proof)
    record = replace(record, passed=tuple(of_proof[-MOST_PROOFS:]))
    for uuid in sorted(canary.gpus & record.gpus.keys()):
        gpu = record.gpus[uuid]
        after = _passed(gpu, canary.at, rules) if canary.passed else _failed(gpu, canary, rules)
        record = _put(record, restated(after, max(canary.at, record.at), rules))
    return record


def _passed(gpu: GpuRecord, at: float, rules: Rules) -> GpuRecord:
    if _sum(gpu, Code.CANARY_FAILED, at - DAY) >= rules.repeated and gpu.latch(Code.CANARY_FAILED):
        return gpu  # one that computes wrong now and then is right most of the time
    latches = tuple(each for each in gpu.latches if each.code != Code.CANARY_FAILED)
    return replace(gpu, latches=latches, trial=None, forgotten=False)


def _failed(gpu: GpuRecord, canary: Canary, rules: Rules) -> GpuRecord:
    gpu = _counted(gpu, Code.CANARY_FAILED, 1, canary.at, rules)
    text = canary.fault or "a resident that was started on it answered otherwise than it should"
    return latched(gpu, suspect(Code.CANARY_FAILED, canary.at, text, seconds=rules.quiet_seconds))


def undecided(record: NodeRecord, rules: Rules, now: float) -> bool:
    """Whether the next reading is to come soon, because something is decided by it; no longer than the driver may take."""
    return any(
        (latch.asked is not None and now < latch.asked + rules.word_seconds)
        or (
            latch.code in _CONFIRMED
            and latch.verdict is Verdict.SUSPECT
            and now < latch.since + rules.word_seconds
        )
        for gpu in record.gpus.values()
        for latch in gpu.latches
    )


def advanced(record: NodeRecord, now: float, rules: Rules) -> NodeRecord:
    """Let time pass: what ends by itself ends."""
    if not any(gpu.latches or gpu.hold or gpu.trial for gpu in record.gpus.values()):
        return record  # as nearly always, and each seat asks every second
    gpus = {uuid: restated(_advanced(gpu, now, rules), now, rules) for uuid, gpu in record.gpus.items()}
    if all(gpus[uuid] is gpu for uuid, gpu in record.gpus.items()):
        return record
    return replace(record, gpus=MappingProxyType(gpus))


def _put(record: NodeRecord, gpu: GpuRecord) -> NodeRecord:
    return replace(record, gpus=MappingProxyType({**record.gpus, gpu.uuid: gpu}))


# ---------------------------------------------------------------------- time


def _advanced(gpu: GpuRecord, now: float, rules: Rules) -> GpuRecord:
    if not gpu.latches and gpu.hold is None and gpu.trial is None:
        return gpu
    latches, over = [], []
    for latch in gpu.latches:
        if latch.until is not None and now >= latch.until:
            over.append(latch)
        else:
            latches.append(latch)
    if over:
        gpu = replace(gpu, latches=tuple(latches))
    if any(latch.clears is Clears.QUIET and latch.code.startswith(XID) for latch in over):
        gpu = _tried(gpu, max(latch.until or now for latch in over), rules)
    if gpu.hold is not None and now >= gpu.hold.until:
        gpu = _tried(replace(gpu, hold=None), gpu.hold.until, rules)
    trial = gpu.trial
    if trial is not None and now >= trial.until and (gpu.answered_at or 0.0) > trial.since:
        gpu = replace(gpu, trial=None, forgotten=False)
    return gpu


def _tried(gpu: GpuRecord, since: float, rules: Rules) -> GpuRecord:
    """Have a canary waited for; one that is waited for already is waited for longer."""
    before = gpu.trial
    if before is not None and before.verdict is Verdict.SUSPECT and before.since >= since:
        return gpu
    return replace(gpu, trial=Hold(verdict=Verdict.SUSPECT, since=since, until=since + rules.trial_seconds))


def set_back(record: NodeRecord, by: float) -> NodeRecord:
    """Move all times: the clock was set back."""
    return replace(
        record,
        at=record.at + by,
        gpus=MappingProxyType({uuid: _moved(gpu, by) for uuid, gpu in record.gpus.items()}),
    )


def _moved(gpu: GpuRecord, by: float) -> GpuRecord:
    def moved(at: float | None) -> float | None:
        return None if at is None else at + by

    def held(hold: Hold | None) -> Hold | None:
        return None if hold is None else replace(hold, since=hold.since + by, until=hold.until + by)

    return replace(
        gpu,
        answered_at=moved(gpu.answered_at),
        counts=tuple(replace(each, at=each.at + by) for each in gpu.counts),
        xids=tuple(replace(each, at=each.at + by) for each in gpu.xids),
        streaks=MappingProxyType({code: at + by for code, at in gpu.streaks.items()}),
        latches=tuple(
            replace(
                each,
                since=each.since + by,
                last=each.last + by,
                until=moved(each.until),
                asked=moved(each.asked),
            )
            for each in gpu.latches
        ),
        hold=held(gpu.hold),
        trial=held(gpu.trial),
        since=gpu.since + by,
    )


# ---------------------------------------------------------------------- readings


def after_boot(gpu: GpuRecord, now: float, rules: Rules) -> GpuRecord:
    """Clear what a boot clears, which is everything: what is still so, the next reading shows."""
    gpu = cleared(gpu, [each.code for each in gpu.latches], now, rules)
    return replace(gpu, forgotten=False, streaks=MappingProxyType({}))


def _with_gpu(gpu: GpuRecord, reading: GpuReading, now: float, rules: Rules) -> GpuRecord:
    match reading.contact:
        case Contact.SILENT:
            return replace(gpu, reason=reading.reason or "it does not answer")
        case Contact.LOST:
            return replace(
                _gone(gpu, Code.LOST, "the driver says that it is lost", now, rules), reason="lost"
            )
        case Contact.RESET_REQUIRED:
            text = "the driver says that it wants a reset"
            return replace(_gone(gpu, Code.RESET_REQUIRED, text, now, rules), reason="wants a reset")
        case Contact.ANSWERS:
            pass
    anew = _initialised_anew(gpu.baseline, reading)
    gpu = cleared(gpu, (Code.LOST, Code.RESET_REQUIRED, Code.MISSING, Code.UNAVAILABLE), now, rules)
    mended = anew or gpu.latch(Code.RECOVERY_ACTION) is not None
    if mended and reading.recovery == RecoveryAction.NONE:
        codes = [each.code for each in gpu.latches if each.clears in {Clears.RESET, Clears.QUIET}]
        gpu = cleared(gpu, codes, now, rules)
    gpu = _with_counters(gpu, reading, now, rules)
    gpu = _with_findings(gpu, reading, now, rules)
    gpu = _with_slowdown(gpu, reading, now, rules)
    gpu = _with_driver(gpu, reading, now, rules)
    return replace(
        gpu,
        answered_boot=gpu.boot,
        answered_at=now,
        reason="",
        bus_id=reading.bus_id or gpu.bus_id,
        shared=reading.shared,
        baseline=_baseline(gpu.baseline, reading),
        reading=reading,
    )


def _gone(gpu: GpuRecord, code: Code, text: str, now: float, rules: Rules) -> GpuRecord:
    """Latch that a GPU is out of reach: Bad when it has been for a moment."""
    before = gpu.latch(code)
    sure = before is not None and now - before.since >= rules.confirm_seconds
    verdict = Verdict.BAD if sure else Verdict.SUSPECT
    return latched(
        gpu,
        Latch(code=code, verdict=verdict, since=now, last=now, clears=Clears.READING, text=text),
    )


def _with_missing(
    gpus: dict[str, GpuRecord], reading: NodeReading, record: NodeRecord, rules: Rules
) -> dict[str, GpuRecord]:
    """Latch GPUs that aren't listed any more; where others are there in their stead, they were replaced and are forgotten.

    In the boot in which it was last seen, a GPU that is missing may still be given to pods. After a boot nobody can be given it,
    and the node's other GPUs lose nothing by it.
    """
    missing = [uuid for uuid in gpus if uuid not in reading.gpus]
    expected = max(record.most, len(reading.gpus)) if rules.expected is None else rules.expected
    if len(reading.gpus) >= expected:
        return {uuid: gpu for uuid, gpu in gpus.items() if uuid in reading.gpus}
    for uuid in missing:
        gpu = gpus[uuid]
        if len(reading.gpus) + reading.silent >= expected:
            gpus[uuid] = replace(gpu, reason="a GPU of the node doesn't say who it is")
            continue
        if gpu.answered_boot == (reading.boot or record.boot):
            gpu = _gone(gpu, Code.MISSING, "the driver doesn't list it any more", reading.at, rules)
        else:
            gpu = _absent(gpu, reading.at)
        gpus[uuid] = restated(replace(gpu, reason="not listed"), reading.at, rules)
    return gpus


def _absent(gpu: GpuRecord, now: float) -> GpuRecord:
    """Return the record of a GPU that hasn't been listed since the boot; what else was found is for when it comes back."""
    before = gpu.latch(Code.MISSING)
    text = "the driver hasn't listed it since the boot"
    return replace(
        gpu, latches=(suspect(Code.MISSING, before.since if before else now, text),), hold=None, trial=None
    )


def _initialised_anew(baseline: Baseline, reading: GpuReading) -> bool:
    """Whether a counter that only grows while the driver holds the GPU has fallen."""
    pairs = (
        (baseline.millijoules, reading.millijoules),
        (baseline.corrected, reading.ecc.corrected),
        (baseline.uncorrected, reading.ecc.uncorrected),
    )
    return any(before is not None and now is not None and now < before for before, now in pairs)


def _baseline(before: Baseline, reading: GpuReading) -> Baseline:
    """Return the counters as they are now; what isn't told this time stays as it was."""
    ecc, links = reading.ecc, reading.links

    def told(now: int | None, then: int | None) -> int | None:
        return then if now is None else now

    return Baseline(
        millijoules=told(reading.millijoules, before.millijoules),
        corrected=told(ecc.corrected, before.corrected),
        uncorrected=told(ecc.uncorrected, before.uncorrected),
        link_failures=told(None if links is None else links.failed_recoveries, before.link_failures),
        corrected_ever=told(ecc.corrected_ever, before.corrected_ever),
        uncorrected_ever=told(ecc.uncorrected_ever, before.uncorrected_ever),
        links=before.links if links is None else max(before.links or 0, links.active),
    )


def _grown(before: int | None, now: int | None) -> int:
    """Return by how much a counter has grown; one that has fallen began anew."""
    if before is None or now is None:
        return 0
    return now - before if now >= before else now


def _errors(before: tuple[int | None, int | None], now: tuple[int | None, int | None]) -> int:
    """Return how many errors have come, by the count of the GPU's life where there is one, else by the driver's.

    Args:
        before: both counts, the GPU's life's and the driver's, at the reading before.
        now: the same at this one.
    """
    if before[0] is not None and now[0] is not None:
        return max(0, now[0] - before[0])
    return _grown(before[1], now[1])


def _with_counters(gpu: GpuRecord, reading: GpuReading, now: float, rules: Rules) -> GpuRecord:
    ecc, base = reading.ecc, gpu.baseline
    uncorrected = _errors((base.uncorrected_ever, base.uncorrected), (ecc.uncorrected_ever, ecc.uncorrected))
    corrected = _errors((base.corrected_ever, base.corrected), (ecc.corrected_ever, ecc.corrected))
    failures = None if reading.links is None else reading.links.failed_recoveries
    broken = _grown(base.link_failures, failures)
    gpu = _counted(gpu, Code.UNCORRECTABLE, uncorrected, now, rules)
    gpu = _counted(gpu, Code.CORRECTABLE, corrected, now, rules)
    if uncorrected:
        gpu = _many_uncorrected(gpu, now, rules)
    total = _sum(gpu, Code.CORRECTABLE, now - _HOUR)
    if corrected and total >= rules.corrected_per_hour:
        text = f"{total} corrected memory errors within an hour"
        gpu = latched(gpu, suspect(Code.CORRECTABLE, now, text, seconds=_HOUR))
    if broken and reading.shared:
        text = "a link to another GPU did not come back by itself"
        gpu = latched(gpu, suspect(Code.LINK_FAILURES, now, text, seconds=_HOUR))
    return gpu


def _many_uncorrected(gpu: GpuRecord, now: float, rules: Rules) -> GpuRecord:
    total = _sum(gpu, Code.UNCORRECTABLE, now - DAY)
    if total < rules.uncorrected_suspect:
        return gpu
    bad = total >= rules.uncorrected_bad
    latch = Latch(
        code=Code.UNCORRECTABLE,
        verdict=Verdict.BAD if bad else Verdict.SUSPECT,
        since=now,
        last=now,
        clears=Clears.RESET,
        until=None if bad else now + rules.quiet_seconds,
        text=f"{total} uncorrected memory errors within a day",
    )
    return latched(gpu, latch)


def _counted(gpu: GpuRecord, code: str, amount: int, now: float, rules: Rules) -> GpuRecord:
    if not amount:
        return gpu
    oldest = now - max(DAY, rules.throttled_seconds)
    kept = [each for each in gpu.counts if each.at > oldest][-MOST_COUNTS + 1 :]
    return replace(gpu, counts=(*kept, Count(at=now, code=code, amount=amount)))


def _sum(gpu: GpuRecord, code: str, after: float) -> int:
    return sum(each.amount for each in gpu.counts if each.code == code and each.at > after)


def _with_findings(gpu: GpuRecord, reading: GpuReading, now: float, rules: Rules) -> GpuRecord:
    streaks = dict(gpu.streaks)
    for look in findings.looks(reading, gpu.baseline.links):
        if not look.told:
            continue
        if look.finding is None:
            streaks.pop(look.code, None)
            gpu = cleared(gpu, (look.code,), now, rules)
            continue
        since = now
        if look.lasts is not None:
            since = streaks.setdefault(look.code, now)
            if now - since < look.lasts(rules):
                continue
        found, before = look.finding, gpu.latch(look.code)
        latch = Latch(
            code=found.code,
            verdict=found.verdict,
            since=since if before is None else before.since,
            last=now,
            clears=found.clears,
            count=1 if before is None else before.count + 1,
            text=found.text,
        )
        if before is not None and RANK[before.verdict] > RANK[latch.verdict]:
            gpu = cleared(gpu, (look.code,), now, rules)
        gpu = put(gpu, latch)
    return replace(gpu, streaks=MappingProxyType(streaks))


def _with_slowdown(gpu: GpuRecord, reading: GpuReading, now: float, rules: Rules) -> GpuRecord:
    slowed = findings.is_slowed(reading)
    if slowed is None:
        return gpu
    others = [each for each in gpu.counts if each.code not in {_SLOWED, _RUNS}]
    recent = [
        each
        for each in gpu.counts
        if each.code in {_SLOWED, _RUNS} and each.at > now - rules.throttled_seconds
    ]
    recent.append(Count(at=now, code=_SLOWED if slowed else _RUNS, amount=1))
    recent = recent[-MOST_COUNTS:]
    if slowed or any(each.code == _SLOWED for each in recent):
        gpu = replace(gpu, counts=(*others, *recent))
    elif len(others) < len(gpu.counts):
        return cleared(replace(gpu, counts=tuple(others)), (Code.THROTTLED,), now, rules)
    slow = sum(each.code == _SLOWED for each in recent)
    share = 100 * slow / len(recent)
    spans = len(recent) >= _FEWEST_READINGS and now - recent[0].at >= rules.throttled_seconds / 2
    if spans and share >= rules.throttled_percent:
        text = f"hardware slowed it down in {slow} of {len(recent)} readings: heat, or power"
        return latched(gpu, suspect(Code.THROTTLED, now, text))
    return cleared(gpu, (Code.THROTTLED,), now, rules)


def _with_driver(gpu: GpuRecord, reading: GpuReading, now: float, rules: Rules) -> GpuRecord:
    """Hear the driver's own word on what was found before."""
    if reading.recovery is None:
        return gpu
    gpu = cleared(replace(gpu, driver_judges=True), (Code.RECOVERY_CHANGED,), now, rules)
    asks = reading.recovery != RecoveryAction.NONE
    latches = []
    for latch in gpu.latches:
        if latch.asked is None or now < latch.asked + rules.settle_seconds:
            latches.append(latch)
        elif asks:
            latches.append(replace(latch, asked=None))
        else:
            latches.append(
                replace(
                    latch,
                    verdict=Verdict.SUSPECT,
                    asked=None,
                    clears=Clears.QUIET,
                    until=max(now, latch.last) + rules.hold_seconds,
                    text=f"{latch.text}; the driver asks for nothing",
                )
            )
    known = gpu.forgotten and not asks
    return replace(
        gpu,
        latches=tuple(latches),
        forgotten=gpu.forgotten and not known,
        trial=None if known and gpu.trial is not None and gpu.trial.verdict is Verdict.OK else gpu.trial,
    )
