"""A start's time, in phases: every moment of it belongs to exactly one of them, so that they add up to the whole.

One set of words for all engines: what an engine tells of itself, in its own words or in its log, is put into these phases; what it
doesn't tell stays as `Other`, and never disappears. PURE: time is an argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Phase(StrEnum):
    """The phases of a start, in the order in which they usually come. One that is taken up again adds up."""

    SCHEDULED = "scheduled"
    """From the pod's creation until a node has it."""
    IMAGE = "image"
    """From there until its containers run: images are pulled, volumes mounted."""
    WAITING = "waiting"
    """Nothing is done: others have the seat, there is no room yet, or nobody knows what it should answer."""
    PROCESS = "process"
    """From the order to start its process until that answers, and until its readiness has been noticed."""
    IMPORT = "import"
    """Its libraries are imported."""
    CONTEXT = "context"
    """Its device is initialised, and has a context of its own."""
    WEIGHTS = "weights"
    """Its weights come to where they are computed with."""
    COMPILE = "compile"
    """Kernels are compiled, tuned and loaded; memory is measured and taken."""
    CAPTURE = "capture"
    """Graphs are captured."""
    OTHER = "other"
    """What an engine did between its start and its readiness without telling of it."""
    WARM_UP = "warm-up"
    """Real requests are computed, once its KV memory is there."""
    PROOF = "proof"
    """It answers what is known, and is asked what it can be told."""
    PAUSED = "paused"
    """It is paused, and its memory measured."""
    LATE_CAPTURE = "late-capture"
    """Graphs are captured and the engine is proven with them, once it could be promoted already; nobody waits for that."""


PHASES: Final = tuple(Phase)
OF_ENGINE: Final = (
    Phase.PROCESS,
    Phase.IMPORT,
    Phase.CONTEXT,
    Phase.WEIGHTS,
    Phase.COMPILE,
    Phase.CAPTURE,
    Phase.OTHER,
)
"""What an engine does until it is ready."""
TIERS: Final = ("Attached", "Sibling", "Staged", "Tmpfs", "PageCache", "Disk", "Network", "File")
"""Where weights may come from, the fastest first, as `loader` and engines name it."""
ATTACHED: Final = TIERS[0]
"""The tier of weights that are the stage daemon's own copy on the device."""
OTHER_TIER: Final = "Other"
"""Stands for tiers that aren't listed, and for engines that don't tell."""

_ALIASES: Final[Mapping[str, Phase]] = MappingProxyType(
    {
        "fork": Phase.PROCESS,
        "ready": Phase.PROCESS,
        "warm": Phase.COMPILE,
        "load": Phase.WEIGHTS,
    }
)


def phase_of(name: str) -> Phase:
    """Return the phase that an engine means by a name of its own."""
    if name in _ALIASES:
        return _ALIASES[name]
    return Phase(name) if name in OF_ENGINE else Phase.OTHER


def in_phases(told: Mapping[str, float]) -> dict[Phase, float]:
    """Put what an engine tells, in seconds by names of its own, into phases. What is no time counts as nothing."""
    found: dict[Phase, float] = {}
    for name, seconds in told.items():
        if 0.0 <= seconds < float("inf"):
            phase = phase_of(name)
            found[phase] = found.get(phase, 0.0) + seconds
    return found


class Account:
    """Accounts for a start from its beginning on.

    Args:
        at: when it begins, in seconds of some clock that never goes back. It waits until it enters another phase.
    """

    def __init__(self, at: float) -> None:
        self._phase = Phase.WAITING
        self._since = at
        self._seconds: dict[Phase, float] = {}

    def enter(self, phase: Phase, at: float) -> None:
        """Begin a phase, which ends the one before it."""
        before, passed = self._phase, at - self._since
        if passed > 0.0:
            self._seconds[before] = self._seconds.get(before, 0.0) + passed
            self._since = at
        self._phase = phase

    def explain(self, told: Mapping[Phase, float], rest: Phase) -> None:
        """Put what has been `Other` so far into the phases that an engine tells of it, and what is left of it into `rest`.

        An engine that tells of more than there was has measured otherwise, or counts what ran side by side: then its phases share
        what there was.
        """
        whole = self._seconds.pop(Phase.OTHER, 0.0)
        named = sum(told.values())
        share = min(1.0, whole / named) if named > 0.0 else 0.0
        parts = {phase: seconds * share for phase, seconds in told.items()}
        left = whole - sum(parts.values())
        if left > 0.0:
            parts[rest] = parts.get(rest, 0.0) + left
        for phase, seconds in parts.items():
            if seconds > 0.0:
                self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def seconds(self, at: float) -> dict[Phase, float]:
        """Return what each phase took until now, in the order of `Phase`; they add up to all that has passed."""
        found = dict(self._seconds)
        if at > self._since:
            found[self._phase] = found.get(self._phase, 0.0) + at - self._since
        return {phase: found[phase] for phase in PHASES if phase in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A tier that was tried before the one that weights came from, and in vain.

    Attributes:
        tier: which.
        code: why, in one word, as the engine names it.
        reason: why, in words.
    """

    tier: str
    code: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLoad:
    """How weights came.

    Attributes:
        tier: where from; empty if the engine doesn't tell.
        nbytes: how many bytes; 0 if it doesn't tell.
        seconds: how long it took.
        passed_over: faster tiers that were tried in vain, in the order of trying.
    """

    tier: str = ""
    nbytes: int = 0
    seconds: float
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def rate(self) -> float | None:
        """Bytes per second; None if it can't be told."""
        return self.nbytes / self.seconds if self.nbytes and self.seconds > 0.0 else None

    @property
    def listed_tier(self) -> str:
        """Its tier as one of `TIERS`, or `OTHER_TIER`."""
        return self.tier if self.tier in TIERS else OTHER_TIER


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """What a start found in its compile cache.

    Attributes:
        hits: graphs or kernels that it found there.
        misses: those that it compiled.
    """

    hits: int
    misses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What an engine computed before its first proof, beside prompts that were given as text.

    Attributes:
        prompt_tokens: lengths of prompts, in tokens.
        batch_sizes: how many of them were computed at once.
        max_tokens: tokens that each was answered with.
        left_out: requests or batches that the engine refused.
    """

    prompt_tokens: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    max_tokens: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What is known of a resident's last completed start, beside its phases.

    Attributes:
        at: Unix time at which it began.
        told: the engine tells of its whole start, by itself; else its log was read, as far as that says anything.
        weights: how its weights came; None if the engine doesn't tell.
        compile_cache: what it found in its compile cache; None if it doesn't tell.
        first_request_seconds: how long the very first request took; None if none was sent.
        warm_up: what it computed before its first proof; None if it wasn't warmed up.
    """

    at: float
    told: bool = False
    weights: WeightLoad | None = None
    compile_cache: CacheUse | None = None
    first_request_seconds: float | None = None
    warm_up: WarmUp | None = None


def init_seconds(phases: Mapping[str, float]) -> float:
    """Return what a start took of an engine alone, from the order to start its process until it was ready."""
    return sum(seconds for name, seconds in phases.items() if name in OF_ENGINE)


# ------------------------------------------------------------------ a seat's start


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """What is known of a seat's time before its agent began, in Unix seconds; None for what nobody tells.

    Attributes:
        created: its pod was created.
        scheduled: a node took it.
        running: its containers ran, all of them.
        whole: the stamps are in whole seconds, as Kubernetes' are: each may be up to a second too early.
    """

    created: float
    scheduled: float | None = None
    running: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase of a timeline.

    Attributes:
        phase: its name.
        begin: seconds from the timeline's beginning.
        seconds: how long it took.
        uncertain: how far off either may be, in seconds.
    """

    phase: str
    begin: float
    seconds: float
    uncertain: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A start from its beginning to its end.

    Attributes:
        at: Unix time of its beginning.
        spans: its phases, one after the other.
        uncertain: how far off the whole may be, in seconds.
        of_seat: it begins with the seat, and not with the resident.
    """

    at: float
    spans: tuple[Span, ...] = ()
    uncertain: float = 0.0
    of_seat: bool = False

    @property
    def total(self) -> float:
        """What all of it took, in seconds."""
        return sum(span.seconds for span in self.spans)


def resident_timeline(at: float, phases: Mapping[str, float]) -> Timeline:
    """Draw out a resident's start.

    Args:
        at: Unix time of its beginning.
        phases: what each phase took, in seconds.
    """
    return Timeline(at=at, spans=_laid_out([(name, phases[name], 0.0) for name in _ordered(phases)]))


_STAMP_SECONDS: Final = 1.0


def began_with_seat(stamps: Stamps, at: float, restarts: int) -> bool:
    """Whether a resident's start was its first on its seat, so that the seat's own time belongs before it.

    Where somebody tells when nodes take seats, it must be known, too, when the containers ran: those that were started again tell
    of another moment.
    """
    if restarts or stamps.created <= 0.0:
        return False
    return stamps.scheduled is None or (stamps.running is not None and at >= stamps.running - _STAMP_SECONDS)


def seat_timeline(stamps: Stamps, at: float, phases: Mapping[str, float]) -> Timeline:
    """Draw out the start of a seat until one of its residents can be promoted, that resident's first start included.

    What lies between the pod's containers and the resident's own start (its agent comes up) is waiting. Clocks of several
    machines meet here: a moment that seems to lie before the one before it is taken to be the same.

    Args:
        stamps: what is known of the seat's time before.
        at: Unix time at which the resident's start began.
        phases: what each of its phases took, in seconds.
    """
    doubt = _STAMP_SECONDS if stamps.whole else 0.0
    moments = ((Phase.SCHEDULED, stamps.scheduled), (Phase.IMAGE, stamps.running), (Phase.WAITING, at))
    parts: list[tuple[str, float, float]] = []
    passed = stamps.created
    for phase, moment in moments:
        if moment is not None:
            parts.append((phase, max(0.0, moment - passed), doubt))
            passed = max(moment, passed)
    waited = parts.pop()
    waits = waited[1] + phases.get(Phase.WAITING, 0.0)
    own = [(name, phases[name], 0.0) for name in _ordered(phases) if name != Phase.WAITING]
    whole = [*parts, (Phase.WAITING, waits, doubt), *own]
    return Timeline(at=stamps.created, spans=_laid_out(whole), uncertain=doubt, of_seat=True)


def start_timeline(stamps: Stamps, at: float, phases: Mapping[str, float], restarts: int) -> Timeline:
    """Draw out a start from as early on as is known: from the seat's beginning, where it was the first one there.

    Args:
        stamps: what is known of the seat's time before.
        at: Unix time at which the resident's start began.
        phases: what each of its phases took, in seconds.
        restarts: how often the resident had been started before.
    """
    if began_with_seat(stamps, at, restarts):
        return seat_timeline(stamps, at, phases)
    return resident_timeline(at, phases)


def _ordered(phases: Mapping[str, float]) -> list[str]:
    """Return names of phases in the order of `Phase`, those of other versions last."""
    return [
        *(phase for phase in PHASES if phase in phases),
        *(name for name in phases if name not in PHASES),
    ]


def _laid_out(parts: list[tuple[str, float, float]]) -> tuple[Span, ...]:
    spans: list[Span] = []
    begin = 0.0
    for phase, seconds, uncertain in parts:
        spans.append(Span(phase=str(phase), begin=begin, seconds=seconds, uncertain=uncertain))
        begin += seconds
    return tuple(spans)
