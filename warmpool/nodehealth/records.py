"""What is remembered of each GPU, so that a verdict follows from more than the last reading. PURE.

A verdict is made of latches. A latch says what was found, when, and what clears it: the first reading that says otherwise, a
reset, a boot, or time without another. When a bad one is cleared, the GPU is held for a while as it was (hold), and then tried
(trial): a canary has to pass, or an hour with good readings.

Everything here is values that can be written to a file and read back; times are Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.readings import GpuReading
from warmpool.nodehealth.xids import DAY, DEFAULT_TABLE, XidTable
from warmpool.seats import Verdict

MOST_COUNTS: Final = 256
"""Counts that are remembered of one GPU; the oldest goes first."""
MOST_PROOFS: Final = 64
"""Proofs that are remembered of one node; the one that has not passed for longest goes first."""
MOST_BURSTS: Final = 64
"""Bursts of one error that are remembered of one GPU, or as many as its rule counts; the oldest goes first."""

RANK: Final[Mapping[Verdict, int]] = MappingProxyType({Verdict.OK: 0, Verdict.SUSPECT: 1, Verdict.BAD: 2})
"""How bad a verdict is."""


def worse(first: Verdict, second: Verdict) -> Verdict:
    """Return the worse of two verdicts."""
    return first if RANK[first] >= RANK[second] else second


class Clears(StrEnum):
    """What clears a latch."""

    READING = "Reading"
    """The first reading that says otherwise."""
    SERVICE = "Service"
    """The same, which takes somebody who mends or replaces the hardware."""
    RESET = "Reset"
    """A reset of the GPU, or a boot."""
    BOOT = "Boot"
    """A boot of the node."""
    QUIET = "Quiet"
    """Time without another."""
    HOLD = "Hold"
    """Time: the GPU is held after something bad was cleared."""
    CANARY = "Canary"
    """A canary that passes, or time with good readings."""


class Code(StrEnum):
    """What is found, beside errors of the driver's, which are `Xid` and their code."""

    RECOVERY_ACTION = "RecoveryAction"
    RECOVERY_CHANGED = "RecoveryChanged"
    LOST = "Lost"
    RESET_REQUIRED = "ResetRequired"
    UNAVAILABLE = "Unavailable"
    MISSING = "Missing"
    ROW_FAILURE = "RowRemapFailure"
    ROW_PENDING = "RowRemapPending"
    PAGE_PENDING = "PageRetirementPending"
    REPAIR_PENDING = "RepairPending"
    SRAM_THRESHOLD = "SramThreshold"
    UNCORRECTABLE = "UncorrectableErrors"
    CORRECTABLE = "CorrectableErrors"
    THROTTLED = "Throttled"
    PCIE_NARROW = "PcieNarrow"
    LINKS_DOWN = "LinksDown"
    LINK_FAILURES = "LinkFailures"
    FABRIC = "Fabric"
    CANARY_FAILED = "CanaryFailed"
    HELD = "Held"
    TRIAL = "Trial"


XID: Final = "Xid"
"""What codes of the driver's errors begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """One thing that was found.

    Attributes:
        code: what, of a closed list: `Code`, or `Xid` and a number.
        verdict: what it says: Suspect or Bad.
        since: when it was first found.
        last: when it was last found.
        clears: what clears it.
        until: when it ends by itself; None: never.
        count: how often it was found.
        asked: since when the driver's own word on it is awaited, until which it counts as Suspect; None: it isn't.
        text: what it is, in words.
    """

    code: str
    verdict: Verdict
    since: float
    last: float
    clears: Clears
    until: float | None = None
    count: int = 1
    asked: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A GPU is held as it was, or tried.

    Attributes:
        verdict: how.
        since, until: from when to when.
        text: what was cleared, in words.
    """

    verdict: Verdict
    since: float
    until: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One error, or a burst of the same.

    Attributes:
        at: when the first of it came.
        xid: its code.
        counts: whether it counts; what follows from another error doesn't.
    """

    at: float
    xid: int
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Something that was counted at one moment.

    Attributes:
        at: when.
        code: what.
        amount: how much.
    """

    at: float
    code: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Counters as last read, for differences; None where the GPU doesn't count.

    Attributes:
        millijoules, corrected, uncorrected, link_failures: since the driver was loaded.
        corrected_ever, uncorrected_ever: in the GPU's life.
        links: the most links to other GPUs that were ever up.
    """

    millijoules: int | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    link_failures: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None
    links: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord:
    """What is remembered of one GPU.

    Attributes:
        uuid: which one.
        bus_id: its PCI address, as last read.
        boot: id of the boot that its latches are of; empty if unknown.
        answered_boot: id of the boot in which it last answered; empty if it never did.
        answered_at: when that was; None if it never did.
        reason: why it didn't answer the last time it was asked; empty if it did.
        driver_judges: the driver has told its own verdict on it.
        baseline: its counters.
        counts: what was counted.
        xids: errors that say something, oldest first.
        streaks: since when something has been so at each reading.
        latches: what was found, in the order of their codes.
        hold: it is held.
        trial: it is tried.
        forgotten: what was remembered of it is lost.
        shared: a pod spans it and others; None where nobody knows.
        verdict, since: the verdict, and since when it is that.
        reading: the last one that it answered, for whoever wants to see it.
    """

    uuid: str
    bus_id: str = ""
    boot: str = ""
    answered_boot: str = ""
    answered_at: float | None = None
    reason: str = ""
    driver_judges: bool = False
    baseline: Baseline = Baseline()
    counts: tuple[Count, ...] = ()
    xids: tuple[Seen, ...] = ()
    streaks: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    latches: tuple[Latch, ...] = ()
    hold: Hold | None = None
    trial: Hold | None = None
    forgotten: bool = False
    shared: bool | None = None
    verdict: Verdict = Verdict.OK
    since: float = 0.0
    reading: GpuReading | None = None

    def latch(self, code: str) -> Latch | None:
        """Return the latch of a code, if there is one."""
        return next((each for each in self.latches if each.code == code), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What is remembered of a node.

    Attributes:
        at: when it was last read.
        boot: id of the boot in which that was.
        most: the most GPUs that were ever listed at once.
        gpus: its GPUs, by UUID.
        lost: what was remembered is lost: GPUs that are seen for the first time are unknown.
        passed: proofs that have passed on any of its GPUs and have failed on none since, the latest last.
        reason: why nothing was known at the last reading; empty if something was.
    """

    at: float = 0.0
    boot: str = ""
    most: int = 0
    gpus: Mapping[str, GpuRecord] = field(default_factory=lambda: MappingProxyType({}))
    lost: bool = False
    passed: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What verdicts follow.

    Attributes:
        table: what the driver's errors say.
        expected: GPUs that the node should have; None: as many as it ever had.
        hold_seconds: how long a GPU is held after something bad was cleared.
        trial_seconds: how long a canary is waited for after that.
        burst_seconds: equal errors within this time are one.
        settle_seconds: how long the driver may take to come to its own verdict after an error.
        word_seconds: how long its word is waited for in all.
        silent_seconds: when a GPU that doesn't answer is unknown.
        confirm_seconds: how long a GPU has to be lost or missing before it is Bad.
        quiet_seconds: how long something has to stay away that nothing else clears.
        repeated: errors that would make a GPU Bad, within a day, by which it is Bad although the driver asks for nothing; and
            canaries that fail within a day, after which none that passes makes it well.
        uncorrected_suspect, uncorrected_bad: uncorrected memory errors within a day.
        corrected_per_hour: corrected memory errors within an hour by which a GPU is Suspect.
        throttled_seconds, throttled_percent: hardware slows a GPU down in this share of readings over that time.
        narrow_seconds: how long a PCIe link has lacked lanes.
        fabric_seconds: how long joining the fabric may take.
    """

    table: XidTable = DEFAULT_TABLE
    expected: int | None = None
    hold_seconds: float = 600.0
    trial_seconds: float = 3600.0
    burst_seconds: float = 15.0
    settle_seconds: float = 10.0
    word_seconds: float = 60.0
    silent_seconds: float = 60.0
    confirm_seconds: float = 5.0
    quiet_seconds: float = DAY
    repeated: int = 3
    uncorrected_suspect: int = 2
    uncorrected_bad: int = 10
    corrected_per_hour: int = 10_000
    throttled_seconds: float = 600.0
    throttled_percent: int = 60
    narrow_seconds: float = 600.0
    fabric_seconds: float = 300.0
