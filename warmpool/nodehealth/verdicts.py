"""What is said of GPUs and of their node: verdicts with reasons, since when, until when, and what would clear them. PURE."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.findings import notes
from warmpool.nodehealth.latching import effective
from warmpool.nodehealth.records import RANK, Clears, Code, GpuRecord, Latch, NodeRecord, Rules, worse
from warmpool.nodehealth.rules import advanced
from warmpool.seats import Verdict

UNKNOWN: Final = "Unknown"
"""What is said of a GPU of which nothing is known: it doesn't answer, or what was found of it before is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that was found.

    Attributes:
        code: what, of a closed list.
        verdict: what it says.
        since: when it was first found, in Unix seconds.
        until: when it ends by itself; None: never.
        count: how often it was found.
        text: what it is, in words.
        clears: what would clear it, in words.
    """

    code: str
    verdict: Verdict
    since: float
    until: float | None
    count: int
    text: str
    clears: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVerdict:
    """What is said of one GPU.

    Attributes:
        uuid: which one.
        verdict: the verdict.
        known: whether anything is known: an Ok that isn't known is none.
        since: since when it is that, in Unix seconds; it stays where only reasons change.
        until: when it will be better by itself, at the latest; None: never.
        age_seconds: how long ago it last answered; None if it never did.
        reasons: what was found, the worst first.
        notes: what is worth knowing and excludes nobody.
    """

    uuid: str
    verdict: Verdict
    known: bool
    since: float
    until: float | None
    age_seconds: float | None
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]

    @property
    def word(self) -> str:
        """The verdict in one word: Ok, Unknown, Suspect or Bad."""
        return UNKNOWN if self.verdict is Verdict.OK and not self.known else str(self.verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """What is said of a node.

    Attributes:
        at: when, in Unix seconds.
        boot: id of the node's boot.
        verdict: the worst of its GPUs; its other GPUs stay as good as they are.
        gpus: its GPUs, or those that were asked for.
        expected, listed: GPUs that it should have, and that the driver lists.
        reason: why nothing is known at present; empty if something is.
    """

    at: float
    boot: str
    verdict: Verdict
    gpus: tuple[GpuVerdict, ...]
    expected: int
    listed: int
    reason: str

    def gpu(self, uuid: str) -> GpuVerdict | None:
        """Return what is said of one GPU; None if it isn't known."""
        return next((each for each in self.gpus if each.uuid == uuid), None)


def judge(record: NodeRecord, rules: Rules, now: float, only: Collection[str] | None = None) -> NodeVerdict:
    """Say what follows from what is remembered.

    Args:
        record: what is remembered.
        rules: what verdicts follow.
        now: Unix seconds.
        only: UUIDs of the GPUs that are told of; None: all are. The node's own verdict is from all of them anyway.
    """
    record = advanced(record, now, rules)
    told = record.gpus if only is None else record.gpus.keys() & set(only)
    gpus = tuple(_gpu(record.gpus[uuid], rules, now) for uuid in sorted(told))
    listed = sum(gpu.latch(Code.MISSING) is None for gpu in record.gpus.values())
    expected = record.most if rules.expected is None else rules.expected
    verdict = Verdict.OK
    for gpu in record.gpus.values():
        verdict = worse(verdict, gpu.verdict)
    if record.at and not record.reason and listed < expected:
        verdict = worse(verdict, Verdict.SUSPECT)
    return NodeVerdict(
        at=now,
        boot=record.boot,
        verdict=verdict,
        gpus=gpus,
        expected=expected,
        listed=listed,
        reason=record.reason,
    )


def _gpu(gpu: GpuRecord, rules: Rules, now: float) -> GpuVerdict:
    age = None if gpu.answered_at is None else max(0.0, now - gpu.answered_at)
    fresh = age is not None and age < rules.silent_seconds
    reasons = sorted(_reasons(gpu, rules, now), key=lambda each: (-RANK[each.verdict], each.since, each.code))
    level = [each.until for each in reasons if each.verdict is gpu.verdict]
    ends = [until for until in level if until is not None]
    told = () if gpu.reading is None else notes(gpu.reading)
    return GpuVerdict(
        uuid=gpu.uuid,
        verdict=gpu.verdict,
        known=fresh and not gpu.forgotten,
        since=gpu.since,
        until=max(ends) if ends and len(ends) == len(level) else None,
        age_seconds=age,
        reasons=tuple(reasons),
        notes=(*told, *_unknown(gpu)),
    )


def _unknown(gpu: GpuRecord) -> tuple[str, ...]:
    found = []
    if gpu.reason:
        found.append(f"it can't be read: {gpu.reason}")
    if gpu.forgotten:
        found.append("what was found of it before is not known")
    return tuple(found)


def _reasons(gpu: GpuRecord, rules: Rules, now: float) -> list[Reason]:
    found = [_reason(latch, rules, now) for latch in gpu.latches]
    if gpu.hold is not None:
        found.append(
            Reason(
                code=Code.HELD,
                verdict=gpu.hold.verdict,
                since=gpu.hold.since,
                until=gpu.hold.until,
                count=1,
                text=f"held after {gpu.hold.text}",
                clears=f"ends by itself at {_time(gpu.hold.until)}",
            )
        )
    if gpu.trial is not None and gpu.trial.verdict is not Verdict.OK:
        found.append(
            Reason(
                code=Code.TRIAL,
                verdict=gpu.trial.verdict,
                since=gpu.trial.since,
                until=gpu.trial.until,
                count=1,
                text="what was found is over, and no resident has shown since that the GPU computes right",
                clears=f"a resident that starts on it and passes its proof, or good readings until {_time(gpu.trial.until)}",
            )
        )
    return found


def _reason(latch: Latch, rules: Rules, now: float) -> Reason:
    first = "" if latch.asked is None else "the driver's word that nothing has to be done, or "
    end = "" if latch.until is None else f", or by itself at {_time(latch.until)}"
    return Reason(
        code=latch.code,
        verdict=effective(latch, now, rules),
        since=latch.since,
        until=latch.until,
        count=latch.count,
        text=latch.text,
        clears=f"{first}{_CLEARS[latch.clears]}{end}".removeprefix(", or "),
    )


_CLEARS: Final[Mapping[Clears, str]] = MappingProxyType(
    {
        Clears.READING: "the first reading that says otherwise",
        Clears.SERVICE: "service: the hardware has to be mended or replaced",
        Clears.RESET: "a reset of the GPU, or a boot of the node",
        Clears.BOOT: "a boot of the node",
        Clears.QUIET: "",
    }
)


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
