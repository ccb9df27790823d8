"""Deciding a ledger again: does the law still say the same, and what would it have said under other policies?

Both run over the recorded inputs. Under other policies that is a statement about each moment and not a simulation: seats
and queues are those that the recorded policies led to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scaler.core.decide import decide
from scaler.core.islands import Island, islands, together
from scaler.core.ledger import Rules, Step
from scaler.core.memory import Memory
from scaler.core.model import Decision, FleetDecision, Mode, PolicyDecision, Snapshot
from scaler.core.replay import Json, decision_to_json
from warmpool.seats import FleetName, PolicyName

# ------------------------------------------------------------------ the same policies


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a replay first says something else than the ledger.

    Attributes:
        number: which tick.
        at: its Unix time.
        subject: `policy NAME`, `fleet NAME`, or `decision` for what belongs to neither.
        field: which part, as a path in the record; `memory` where the recorded memory isn't what the ticks before it
            lead to.
        recorded: what the ledger says; None where it says nothing.
        replayed: what the law says now.
    """

    number: int
    at: float
    subject: str
    field: str
    recorded: object
    replayed: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a replay under the recorded policies came to.

    Attributes:
        ticks: ticks that were decided again.
        compared: those of them whose decision the ledger holds.
        difference: the first difference; the replay ended there.
    """

    ticks: int
    compared: int
    difference: Difference | None = None


def verify(steps: Iterable[Step]) -> Verdict:
    """Decide every tick again and compare, until the first difference."""
    ticks = compared = 0
    ruled: dict[tuple[str, str], object] = {}
    memory = Memory.initial(0.0)
    for step in steps:
        rules = _specs(step.rules)
        if step.memory is not None:
            follows = not step.begins and all(ruled.get(subject) == spec for subject, spec in rules.items())
            found = _memory_difference(step, memory) if follows else None
            if found is not None:
                return Verdict(ticks=ticks, compared=compared, difference=found)
            memory = _taken_up(memory, step)
        ruled |= rules
        decision, after = decide(step.rules.policies, step.rules.fleets, step.snapshot, memory, step.now)
        memory = memory.joined(after)
        ticks += 1
        if step.decision is None:
            continue
        compared += 1
        found = _decision_difference(step, decision)
        if found is not None:
            return Verdict(ticks=ticks, compared=compared, difference=found)
    return Verdict(ticks=ticks, compared=compared)


def _specs(rules: Rules) -> dict[tuple[str, str], object]:
    policies: dict[tuple[str, str], object] = {("policy", spec.name): spec for spec in rules.policies}
    return policies | {("fleet", spec.name): spec for spec in rules.fleets}


def _taken_up(memory: Memory, step: Step) -> Memory:
    """Return a memory with what the ledger holds of what a tick looked at, and nothing else of that."""
    assert step.memory is not None
    names = [spec.name for spec in step.rules.policies], [spec.name for spec in step.rules.fleets]
    return memory.without(*names).joined(step.memory)


def _decision_difference(step: Step, decision: Decision) -> Difference | None:
    assert step.decision is not None
    for path, recorded, replayed in _differences(_bare(step.decision), _bare(decision_to_json(decision))):
        subject, part = _subject(path)
        return Difference(
            number=step.number,
            at=step.at,
            subject=subject,
            field=part,
            recorded=recorded,
            replayed=replayed,
        )
    return None


def _memory_difference(step: Step, memory: Memory) -> Difference | None:
    assert step.memory is not None
    parts: list[tuple[str, Iterable[str], Mapping[Any, object], Mapping[Any, object]]] = [
        ("policy", [spec.name for spec in step.rules.policies], step.memory.policies, memory.policies),
        ("fleet", [spec.name for spec in step.rules.fleets], step.memory.fleets, memory.fleets),
        ("decision", [""] if not step.snapshot.partial else [], {"": step.memory.at}, {"": memory.at}),
    ]
    for kind, names, recorded, replayed in parts:
        for name in sorted(names):
            if recorded.get(name) != replayed.get(name):
                return Difference(
                    number=step.number,
                    at=step.at,
                    subject=f"{kind} {name}".rstrip(),
                    field="memory",
                    recorded=recorded.get(name),
                    replayed=replayed.get(name),
                )
    return None


def _bare(decision: Json) -> dict[str, Any]:
    """Return a decision without its sentences: wording may change where the law doesn't."""
    bare = {"law": decision.get("law"), **decision}
    for kind in ("policies", "fleets"):
        bare[kind] = {
            name: {**part, "reasons": [_without_sentence(reason) for reason in part.get("reasons", ())]}
            for name, part in decision.get(kind, {}).items()
        }
    return bare


def _without_sentence(reason: Json) -> dict[str, Any]:
    return {key: value for key, value in reason.items() if key != "sentence"}


def _differences(
    recorded: object, replayed: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object, object]]:
    """Yield the leaves that differ, with their paths."""
    match recorded, replayed:
        case Mapping(), Mapping():
            for key in [*recorded, *(key for key in replayed if key not in recorded)]:
                yield from _differences(recorded.get(key), replayed.get(key), (*path, str(key)))
        case list(), list() if len(recorded) == len(replayed):
            for index, (one, other) in enumerate(zip(recorded, replayed, strict=True)):
                yield from _differences(one, other, (*path, str(index)))
        case _:
            if recorded != replayed:
                yield path, recorded, replayed


def _subject(path: tuple[str, ...]) -> tuple[str, str]:
    match path:
        case "policies", name, *rest:
            return f"policy {name}", ".".join(rest) or "all of it"
        case "fleets", name, *rest:
            return f"fleet {name}", ".".join(rest) or "all of it"
        case _:
            return "decision", ".".join(path)


# ------------------------------------------------------------------ other policies


@dataclass(slots=True)
class Effect:
    """How the answers for one policy or fleet would have differed, as counts and over time.

    Attributes:
        decisions: ticks at which both sets had an answer for it.
        different: those of them at which the answers differ.
        seconds: how long these ticks' answers held.
        different_seconds: how long differing answers held.
        most_more: most residents (seats, of a fleet) more.
        most_fewer: most residents (seats) fewer.
        extra_seconds: resident-seconds (seat-seconds) more, over all; negative if fewer.
        burst_seconds: seconds in burst more, over all; negative if fewer.
        first: the first difference.
    """

    decisions: int = 0
    different: int = 0
    seconds: float = 0.0
    different_seconds: float = 0.0
    most_more: int = 0
    most_fewer: int = 0
    extra_seconds: float = 0.0
    burst_seconds: float = 0.0
    first: Difference | None = None


@dataclass(slots=True)
class Effects:
    """What other policies would have changed.

    Attributes:
        ticks: ticks that were decided under both.
        policies: per policy that both sets have.
        fleets: per fleet that both sets have.
        unknown: objects of the other set that the ledger says nothing of, as `policy NAME` and `fleet NAME`.
        gone: objects of the ledger that the other set lacks.
        laws: versions of the law that wrote the ledger.
    """

    ticks: int = 0
    policies: dict[str, Effect] = field(default_factory=dict)
    fleets: dict[str, Effect] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    laws: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Both:
    """One tick, decided under the recorded rules and under others."""

    step: Step
    recorded: Decision
    other: Decision


def what_if(steps: Iterable[Step], other: Rules, inputs: Callable[[Step], Snapshot]) -> Effects:
    """Decide every tick under the recorded policies and under others, and sum up how the answers differ.

    The other policies take over as a reload would: with what the law remembered at the start of each run.

    Args:
        steps: the ledger.
        other: the other policies.
        inputs: what the law would have seen under them: the tick's snapshot with their schedules, freezes and budget.
    """
    effects, pending = Effects(), dict[tuple[str, str], _Both]()
    recorded: set[str] = set()
    for both in _decided_twice(steps, other, inputs):
        effects.ticks += 1
        effects.laws.add(both.step.rules.law)
        subjects = [
            *(("policy", p) for p in both.recorded.policies),
            *(("fleet", f) for f in both.recorded.fleets),
        ]
        for subject in subjects:
            recorded.add(" ".join(subject))
            if (before := pending.get(subject)) is not None:
                lasted = 0.0 if both.step.begins else max(0.0, both.step.now - before.step.now)
                _add(effects, subject, before, lasted)
            pending[subject] = both
    for subject, both in pending.items():
        _add(effects, subject, both, 0.0)
    there = {f"policy {spec.name}" for spec in other.policies} | {
        f"fleet {spec.name}" for spec in other.fleets
    }
    effects.unknown, effects.gone = there - recorded, recorded - there
    return effects


def _decided_twice(
    steps: Iterable[Step], other: Rules, inputs: Callable[[Step], Snapshot]
) -> Iterator[_Both]:
    memory = others = Memory.initial(0.0)
    parts = islands(other.policies, other.fleets)
    for step in steps:
        if step.memory is not None:
            memory = _taken_up(memory, step)
            others = _taken_up(others, step) if step.begins else others
        recorded, after = decide(step.rules.policies, step.rules.fleets, step.snapshot, memory, step.now)
        memory = memory.joined(after)
        touched = [part for part in parts if _touches(part, step)]
        snapshot = replace(inputs(step), partial=len(touched) < len(parts))
        on = together(touched)
        decision, after = decide(on.policies, on.fleets, snapshot, others, step.now)
        others = others.joined(after)
        yield _Both(step, recorded, decision)


def _touches(part: Island, step: Step) -> bool:
    """Whether a tick looked at anything of an island of other policies; one that looked at everything did."""
    if not step.snapshot.partial:
        return True
    policies = {spec.name for spec in step.rules.policies}
    fleets = {spec.name for spec in step.rules.fleets}
    return any(spec.name in policies for spec in part.policies) or any(
        spec.name in fleets for spec in part.fleets
    )


def _add(effects: Effects, subject: tuple[str, str], both: _Both, seconds: float) -> None:
    """Count one tick whose answer for a policy or fleet held for so many seconds."""
    kind, name = subject
    if kind == "policy":
        ours, theirs = both.recorded.policies[PolicyName(name)], both.other.policies.get(PolicyName(name))
        if theirs is not None:
            effect = effects.policies.setdefault(name, Effect())
            _count(effect, seconds, _policy_difference(both.step, ours, theirs))
            _weigh(effect, seconds, *_residents(ours, theirs))
            effect.burst_seconds += seconds * _burst_more(ours, theirs)
        return
    total, other = both.recorded.fleets[FleetName(name)], both.other.fleets.get(FleetName(name))
    if other is not None:
        effect = effects.fleets.setdefault(name, Effect())
        _count(effect, seconds, _fleet_difference(both.step, total, other))
        _weigh(effect, seconds, total.total, other.total)


def _count(effect: Effect, seconds: float, difference: Difference | None) -> None:
    effect.decisions += 1
    effect.seconds += seconds
    if difference is not None:
        effect.different += 1
        effect.different_seconds += seconds
        effect.first = effect.first or difference


def _weigh(effect: Effect, seconds: float, recorded: int, other: int) -> None:
    effect.most_more = max(effect.most_more, other - recorded)
    effect.most_fewer = max(effect.most_fewer, recorded - other)
    effect.extra_seconds += seconds * (other - recorded)


def _residents(recorded: PolicyDecision, other: PolicyDecision) -> tuple[int, int]:
    return sum(recorded.serving.values()), sum(other.serving.values())


def _burst_more(recorded: PolicyDecision, other: PolicyDecision) -> int:
    return (other.mode is Mode.BURST) - (recorded.mode is Mode.BURST)


def _policy_difference(step: Step, recorded: PolicyDecision, other: PolicyDecision) -> Difference | None:
    pairs: tuple[tuple[str, object, object], ...] = (
        ("serving", _some(recorded.serving), _some(other.serving)),
        ("mode", str(recorded.mode), str(other.mode)),
        ("wanted", _some(recorded.wanted), _some(other.wanted)),
    )
    return _first(step, f"policy {recorded.policy}", pairs)


def _some(counts: Mapping[FleetName, int]) -> dict[FleetName, int]:
    """Leave out fleets with none, so that a fleet that only one set names is no difference by itself."""
    return {fleet: number for fleet, number in counts.items() if number}


def _fleet_difference(step: Step, recorded: FleetDecision, other: FleetDecision) -> Difference | None:
    pairs = (("total", recorded.total, other.total), ("spare", recorded.spare, other.spare))
    return _first(step, f"fleet {recorded.fleet}", pairs)


def _first(step: Step, subject: str, pairs: Iterable[tuple[str, object, object]]) -> Difference | None:
    for name, recorded, other in pairs:
        if recorded != other:
            return Difference(
                number=step.number, at=step.at, subject=subject, field=name, recorded=recorded, replayed=other
            )
    return None
