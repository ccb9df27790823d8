"""From verdicts to what should be written on a node: a taint, a condition, and whose they are. PURE.

A node with a Bad GPU gets our taint, which keeps new pods off it; what runs there goes on. Nothing else is written that schedulers
heed, and nothing that somebody else has written is touched: a mark is ours if the annotation beside it says so. Marks follow verdicts:
what was written and isn't wanted any more is taken away, also while the breaker lets nothing new through. A node of which nothing
is known keeps what it has, and so does one of which a GPU that was Bad is unknown.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.breaker import Admission, BreakerLimits, BreakerState, admit, recovered
from warmpool.nodehealth.records import RANK
from warmpool.nodehealth.verdicts import UNKNOWN, GpuVerdict, NodeVerdict
from warmpool.seats import Verdict

TAINT_KEY: Final = "emberpool.dev/gpu-unhealthy"
EFFECT: Final = "NoSchedule"
OWNER_ANNOTATION: Final = "emberpool.dev/gpu-unhealthy-mark"
"""Says, as JSON, that the taint is ours, which value it has, since when and why."""
CONDITION: Final = "EmberpoolGpuHealthy"
LATCHES_ANNOTATION: Final = "emberpool.dev/gpu-latches"
"""A copy of what was found of the node's GPUs, for a node agent that has lost its own (see `copies`)."""
_MOST_MESSAGE: Final = 1024
_MOST_VALUE: Final = 63  # of a taint's value


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMarks:
    """What is written on a node.

    Attributes:
        taint: value of the taint of our key; None: there is none.
        owned: the value that we have written, by the annotation; None: there is no annotation.
        gpus: UUIDs of the GPUs that were Bad then, by the annotation.
        condition: status and reason of our condition; None: there is none.
    """

    taint: str | None = None
    owned: str | None = None
    gpus: frozenset[str] = frozenset()
    condition: tuple[bool, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Our condition on a node.

    Attributes:
        healthy: its status.
        reason: why, in one word.
        message: why, in words.
    """

    healthy: bool
    reason: str
    message: str


class Act(StrEnum):
    """What is to be done about a node."""

    EXCLUDE = "Exclude"
    """Write taint, annotation and condition."""
    RECOVER = "Recover"
    """Take taint and annotation away, and say so in the condition."""
    TELL = "Tell"
    """Write the condition alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marking:
    """One node, and what is to be written on it.

    Attributes:
        node: its name.
        act: what is to be done.
        taint: the taint's value; empty where it is taken away or left.
        annotation: the annotation's value, likewise.
        condition: our condition.
        dry: it is only said what would be done.
        why: for whoever reads it, one sentence.
    """

    node: str
    act: Act
    taint: str = ""
    annotation: str = ""
    condition: Condition
    dry: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be written on all nodes.

    Attributes:
        markings: recoveries first.
        admission: what the breaker says.
        foreign: nodes with a taint of our key that isn't ours, which is left alone.
    """

    markings: tuple[Marking, ...]
    admission: Admission
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is known of all GPU nodes.

    Attributes:
        verdicts: what is said of nodes, by name; a node that is missing, or of which nothing is known, keeps its marks.
        marks: what is written on all GPU nodes, by name.
        since: when each node that has our taint got it, for the annotation.
        spared: nodes that keep their other GPUs: what is Bad there is excluded by itself, and the node isn't tainted.
    """

    verdicts: Mapping[str, NodeVerdict]
    marks: Mapping[str, NodeMarks]
    since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    spared: Collection[str] = ()


def plan_marks(
    fleet: Fleet, state: BreakerState, limits: BreakerLimits, *, now: float, dry: bool = False
) -> tuple[Plan, BreakerState]:
    """Say what is to be written.

    Args:
        fleet: what is known of the nodes.
        state: what the breaker remembers.
        limits: what it allows.
        now: Unix seconds.
        dry: nothing will be written; the plan says what would be.
    """
    foreign = tuple(sorted(name for name, marks in fleet.marks.items() if _is_foreign(marks)))
    known = {
        name: fleet.verdicts[name]
        for name in sorted(fleet.marks)
        if name in fleet.verdicts and name not in foreign
    }
    bad = {name: verdict for name, verdict in known.items() if _is_to_be_tainted(name, verdict, fleet)}
    wanted = sorted(
        (name for name in bad if fleet.marks[name].taint is None), key=lambda name: (_since(bad[name]), name)
    )
    state = recovered(state, fleet.marks.keys())
    admission, state = admit(state, wanted, len(fleet.marks), limits, now)
    markings = [
        marking
        for name, verdict in known.items()
        if (marking := _marking(name, verdict, fleet, admission, now=now, dry=dry)) is not None
    ]
    markings.sort(key=lambda each: (each.act is not Act.RECOVER, each.act is not Act.EXCLUDE, each.node))
    return Plan(markings=tuple(markings), admission=admission, foreign=foreign), state


def _is_to_be_tainted(name: str, verdict: NodeVerdict, fleet: Fleet) -> bool:
    return verdict.verdict is Verdict.BAD and name not in fleet.spared


def _is_foreign(marks: NodeMarks) -> bool:
    """Whether the taint of our key was set by somebody else, or changed after we had."""
    return marks.taint is not None and marks.owned != marks.taint


def _marking(
    name: str, verdict: NodeVerdict, fleet: Fleet, admission: Admission, *, now: float, dry: bool
) -> Marking | None:
    marks, condition = fleet.marks[name], condition_of(verdict)
    bad = _is_to_be_tainted(name, verdict, fleet)
    told = marks.condition == (condition.healthy, condition.reason)
    value = condition.reason[:_MOST_VALUE]
    if bad and (
        name in admission.admitted or (marks.taint is not None and _is_outdated(marks, value, verdict))
    ):
        since = fleet.since.get(name, now)
        return Marking(
            node=name,
            act=Act.EXCLUDE,
            taint=value,
            annotation=ownership(value, since, condition.message, _bad_gpus(verdict)),
            condition=condition,
            dry=dry,
            why=f"{'would be' if dry else 'is'} excluded: {condition.message}",
        )
    if not bad and (marks.taint is not None or marks.owned is not None):
        if any(gpu.word == UNKNOWN and gpu.uuid in marks.gpus for gpu in verdict.gpus):
            return None
        words = "would be" if dry else "is"
        return Marking(
            node=name, act=Act.RECOVER, condition=condition, dry=dry, why=f"{words} no longer excluded"
        )
    if told:
        return None
    waits = name in admission.waiting
    why = "waits to be excluded: too many nodes were within the window" if waits else condition.message
    return Marking(node=name, act=Act.TELL, condition=condition, dry=dry, why=why)


def condition_of(verdict: NodeVerdict) -> Condition:
    """Return the condition that says what a verdict is."""
    worst = sorted(
        (gpu for gpu in verdict.gpus if gpu.verdict is not Verdict.OK),
        key=lambda gpu: (-RANK[gpu.verdict], gpu.since, gpu.uuid),
    )
    if not worst:
        fewer = verdict.listed < verdict.expected
        if fewer and verdict.verdict is not Verdict.OK:
            text = f"{verdict.listed} of {verdict.expected} GPUs are there"
            return Condition(healthy=False, reason="DeviceCount", message=text)
        return Condition(healthy=True, reason="Healthy", message="nothing is said against its GPUs")
    message = "; ".join(map(sentence, worst))
    return Condition(healthy=False, reason=code_of(worst[0]), message=_shortened(message))


def _is_outdated(marks: NodeMarks, value: str, verdict: NodeVerdict) -> bool:
    """Whether a mark says another reason, or names other GPUs; one that names none is of an older version."""
    return marks.taint != value or (bool(marks.gpus) and marks.gpus != frozenset(_bad_gpus(verdict)))


def _bad_gpus(verdict: NodeVerdict) -> Sequence[str]:
    return [gpu.uuid for gpu in verdict.gpus if gpu.verdict is Verdict.BAD]


def ownership(taint: str, since: float, message: str, gpus: Sequence[str] = ()) -> str:
    """Return the annotation that says that a taint is ours, and which GPUs it is for."""
    data: dict[str, object] = {"taint": taint, "since": round(since), "why": _shortened(message)}
    return json.dumps({**data, "gpus": list(gpus)} if gpus else data, sort_keys=True)


def gpus_of(annotation: str | None) -> frozenset[str]:
    """Return the UUIDs of the GPUs that an annotation's taint is for; none where it doesn't say."""
    if annotation is None:
        return frozenset()
    try:
        found = json.loads(annotation)["gpus"]
    except (ValueError, KeyError, TypeError):
        return frozenset()
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def owned_value(annotation: str | None) -> str | None:
    """Return the value of the taint that an annotation calls ours; None if it calls none so."""
    if annotation is None:
        return None
    try:
        found = json.loads(annotation)
    except ValueError:
        return None
    taint = found.get("taint") if isinstance(found, dict) else None
    return taint if isinstance(taint, str) else None


def since_of(annotation: str | None) -> float | None:
    """Return when what an annotation calls ours was set, in Unix seconds; None if it doesn't say."""
    if annotation is None:
        return None
    try:
        return float(json.loads(annotation)["since"])
    except (ValueError, KeyError, TypeError):
        return None


def code_of(gpu: GpuVerdict) -> str:
    """Return why a GPU is what it is, in one word."""
    return gpu.reasons[0].code if gpu.reasons else str(gpu.verdict)


def sentence(gpu: GpuVerdict) -> str:
    """Say what a GPU is, and why."""
    reasons: Sequence[str] = [reason.text for reason in gpu.reasons if reason.verdict is gpu.verdict]
    return f"{gpu.uuid} is {gpu.verdict}: {', '.join(reasons)}"


def _since(verdict: NodeVerdict) -> float:
    return min((gpu.since for gpu in verdict.gpus if gpu.verdict is Verdict.BAD), default=0.0)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_MESSAGE else f"{text[: _MOST_MESSAGE - 1]}…"
