"""What a running engine can be told, found out by asking and trying, and what a change that it was told really came to.

PURE: values alone, so that whoever reads a seat can hold them. Each capability has one ground from a closed list, which bounds
the labels of metrics, and a reason in words. Nothing is granted because a version number promises it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Capability(StrEnum):
    """What an engine may be able to do for its seat."""

    SCHEDULER_PAUSE = "SchedulerPause"
    """Stop computing with everything in place, hold what comes meanwhile, and go on."""
    KV_RELEASE = "KvRelease"
    """Give its KV memory back while it is paused, and take it again."""
    WEIGHTS_PARKING = "WeightsParking"
    """Move its weights to host memory and back."""
    DRAIN_WAIT = "DrainWait"
    """Let what runs finish when it is told to pause."""
    DRAIN_ABORT = "DrainAbort"
    """End what runs at once when it is told to pause."""
    LATE_CAPTURE = "LateCapture"
    """Be ready without CUDA graphs, and capture them while it runs."""
    TOKEN_IDS = "TokenIds"  # noqa: S105 (a capability's name)
    """Tell which tokens it generated, without which nothing can be proven."""


class Ground(StrEnum):
    """Why an engine has a capability, or is refused it."""

    TRIED = "Tried"
    """Granted: it was done on this engine, seen to work, and undone."""
    DECLARED = "Declared"
    """Granted: the engine says so of itself; trying couldn't be undone, or would cost what isn't given back."""
    NOT_OF_KIND = "NotOfKind"
    """Refused: engines of this kind don't have it."""
    ROUTE_MISSING = "RouteMissing"
    """Refused: the route isn't there, because a switch is off or the version is older."""
    ROUTE_FAILS = "RouteFails"
    """Refused: the route is there and answers with an error, or not in time."""
    PARAMETER_IGNORED = "ParameterIgnored"
    """Refused: the route answers 200 and does something else than the parameter asks for."""
    SWITCHED_OFF = "SwitchedOff"
    """Refused: the engine says that it was started without what this needs, so that a 200 would mean nothing."""
    CONTRADICTED = "Contradicted"
    """Refused: it answered 200, and its own state or what it computes says otherwise."""
    UNCERTIFIED = "Uncertified"
    """Refused: it was started with something beside which this is known to go wrong."""
    NEEDS_PAUSE = "NeedsPause"
    """Refused: it would need a pause that works."""
    NOT_TRIED = "NotTried"
    """Refused: it could not be found out."""


GRANTING = frozenset({Ground.TRIED, Ground.DECLARED})
"""Grounds on which a capability is granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found out about one capability.

    Attributes:
        ground: why it is granted or refused.
        reason: the same in words, with what was asked and answered.
    """

    ground: Ground
    reason: str

    @property
    def granted(self) -> bool:
        """Whether the engine has it."""
        return self.ground in GRANTING


_UNASKED = Finding(ground=Ground.NOT_TRIED, reason="it was not asked about")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a running engine was found to be able to do.

    Attributes:
        kind: the kind of engine, as policies name it.
        version: its version, as it tells it; empty if it doesn't.
        findings: one for each capability that was looked at.
    """

    kind: str
    version: str = ""
    findings: Mapping[Capability, Finding] = field(default_factory=lambda: MappingProxyType({}))

    def finding(self, capability: Capability) -> Finding:
        """Return what was found out about a capability; one that nobody looked at is refused."""
        return self.findings.get(capability, _UNASKED)

    def has(self, capability: Capability) -> bool:
        """Whether it is granted."""
        return self.finding(capability).granted


class Change(StrEnum):
    """What an engine was told to do to its own state."""

    PAUSE = "Pause"
    """Stop computing, its KV memory in place."""
    RELEASE = "Release"
    """Stop computing and give its KV memory back."""
    RESUME = "Resume"
    """Take its KV memory where that was given back, and compute."""
    PARK = "Park"
    """Move its weights to host memory, and give back what device memory they and its KV memory took."""
    UNPARK = "Unpark"
    """Move its weights back to device memory; its KV memory stays given back."""


class Verdict(StrEnum):
    """What an engine's own state says of a change that it answered with success."""

    VERIFIED = "Verified"
    """It says that the change took place."""
    UNVERIFIED = "Unverified"
    """It has no way to tell, or doesn't tell all of it."""
    CONTRADICTED = "Contradicted"
    """It says that the change did not take place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found when an engine was asked after a change.

    Attributes:
        change: what it had been told.
        verdict: what its own state says of that.
        evidence: what was asked and answered, in words.
    """

    change: Change
    verdict: Verdict
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.change} {self.verdict}: {'; '.join(self.evidence) or 'nothing could be asked'}"
