"""The ledger: every tick with what the law needs to be run over it again.

A tick becomes one line. Whole records hold inputs, decision and actions: they are written whenever the answer changes, and
at least once a second. Ticks between them hold only which inputs changed, so that the past of the law (its windows, its
rates) can be rebuilt in full. Now and then a whole record also holds the `start` of a replay: the specs in force and what
the law remembered before that tick. So a ledger can be replayed from any such record on, also one that was cut, that
several runs have written to, or whose disk was once too slow.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from scaler.core.encoding import decode, encode
from scaler.core.memory import Memory
from scaler.core.model import Decision, FleetSpec, Load, PolicySpec, Reading, Snapshot
from scaler.core.replay import Json, decision_to_json, snapshot_from_json, snapshot_to_json

RECORD_INTERVAL_SECONDS: Final = 1.0
"""A decision equal to the last one is written whole this often, so that the ledger shows that the loop lives."""
START_INTERVAL_SECONDS: Final = 60.0
"""A replay of a ledger that was cut loses no more than this."""
_READINGS: Final = tuple(field.name for field in dataclasses.fields(Load) if field.name != "absent")
_INPUTS: Final = tuple(field.name for field in dataclasses.fields(Snapshot))


class Rules(Protocol):
    """The compiled policies that a decision was made under."""

    @property
    def policies(self) -> Sequence[PolicySpec]:
        """What the models need."""

    @property
    def fleets(self) -> Sequence[FleetSpec]:
        """What there is."""

    @property
    def hash(self) -> str:
        """Which set of policies it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Rules as a ledger holds them.

    Attributes:
        policies: what the models need.
        fleets: what there is.
        hash: which set of policies it is.
        law: version of the law that read them.
    """

    policies: tuple[PolicySpec, ...]
    fleets: tuple[FleetSpec, ...]
    hash: str
    law: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tick, as it goes into the ledger.

    Attributes:
        number: which tick of its run, from 1.
        at: Unix time.
        causes: what woke the loop, with how often.
        rules: what it decided under; the same object for as long as nothing is reloaded.
        before: what the law remembered before it.
        snapshot: what it looked at.
        decision: what it decided.
        actions: what was begun for it, in words.
    """

    number: int
    at: float
    causes: Mapping[str, int]
    rules: Rules
    before: Memory
    snapshot: Snapshot
    decision: Decision
    actions: Sequence[str]


class Ledger:
    """Makes the lines of one run."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._snapshot: Snapshot | None = None
        self._shape: object = None
        self._record_at = self._start_at = -math.inf

    def line(self, entry: Entry) -> dict[str, Any]:
        """Return the line of the next tick. A whole record has the key `decision`, a tick between two `changes`."""
        shape, now = _shape(entry.decision), entry.decision.at
        starts = self._rules is not entry.rules or now >= self._start_at + START_INTERVAL_SECONDS
        whole = starts or shape != self._shape or now >= self._record_at + RECORD_INTERVAL_SECONDS
        changes = None if whole else changed(self._snapshot, entry.snapshot)
        self._snapshot = entry.snapshot
        head = {"at": entry.at, "number": entry.number, "policyHash": entry.rules.hash}
        if changes is not None:
            return {**head, "now": now, "changes": changes}
        self._shape, self._record_at = shape, now
        record = {
            **head,
            "causes": dict(entry.causes),
            "inputs": snapshot_to_json(entry.snapshot),
            "decision": decision_to_json(entry.decision),
            "actions": list(entry.actions),
        }
        if not starts:
            return record
        self._rules, self._start_at = entry.rules, now
        return {**record, "start": _start(entry)}


def _start(entry: Entry) -> dict[str, Any]:
    return {
        "law": entry.decision.law,
        "policies": [encode(policy) for policy in entry.rules.policies],
        "fleets": [encode(fleet) for fleet in entry.rules.fleets],
        "memory": encode(entry.before),
    }


def _shape(decision: Decision) -> object:
    """Return what makes two decisions the same for the ledger: the answers and the kinds of reasons, not the numbers."""
    return (
        tuple(
            (p.policy, p.mode, tuple(sorted(p.serving.items())), tuple(reason.code for reason in p.reasons))
            for p in decision.policies.values()
        ),
        tuple((f.fleet, f.serving, f.spare, f.total) for f in decision.fleets.values()),
    )


# ------------------------------------------------------------------ what changed between two ticks


def changed(before: Snapshot | None, after: Snapshot) -> dict[str, Any] | None:
    """Return the inputs that differ between two ticks, as JSON; None where only the whole snapshot can say it.

    Ages pass with time and don't count as a change: the law asks only whether there is one.
    """
    if before is None:
        return None
    different: dict[str, Any] = {}
    for name in _INPUTS:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(new, Mapping):
            if old.keys() - new.keys():
                return None
            alike = _same_load if name == "loads" else _equal
            different[name] = {key: item for key, item in new.items() if not alike(old.get(key), item)}
        else:
            different[name] = new
    found = snapshot_to_json(Snapshot(**different))
    return {key: value for key, value in found.items() if value not in ({}, None)}


def _equal(before: object, after: object) -> bool:
    return before is after or before == after


def _same_load(before: Load | None, after: Load) -> bool:
    if before is after:
        return True
    return (
        before is not None
        and before.absent == after.absent
        and all(_same_reading(getattr(before, name), getattr(after, name)) for name in _READINGS)
    )


def _same_reading(before: Reading, after: Reading) -> bool:
    return before is after or (
        before.value == after.value
        and before.quality is after.quality
        and math.isfinite(before.age) == math.isfinite(after.age)
    )


def _patched(before: Snapshot, changes: Json) -> Snapshot:
    """Return the snapshot of a tick from the one before it and what changed."""
    part = snapshot_from_json({"loads": {}, "fleets": {}, **changes})
    fields: dict[str, Any] = {}
    for name in _INPUTS:
        old, new = getattr(before, name), getattr(part, name)
        fields[name] = {**old, **new} if isinstance(new, Mapping) else new
    return replace(before, **fields)


# ------------------------------------------------------------------ reading


class BadLine(ValueError):
    """A line isn't what a ledger holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One tick of a ledger, ready to be decided again.

    Attributes:
        number: which tick of its run.
        at: Unix time.
        now: time of the law's clock.
        rules: what was in force.
        snapshot: what it looked at.
        memory: what the law remembered before it, where the ledger holds that.
        begins: nothing before it is known, so that a replay has to take up `memory`.
        decision: what was decided, as JSON; None for a tick between two records.
    """

    number: int
    at: float
    now: float
    rules: Recorded
    snapshot: Snapshot
    memory: Memory | None
    begins: bool
    decision: Json | None


class Reader:
    """Reads the lines of a ledger, of one run or several.

    Attributes:
        skipped: ticks without a past to go on from: before the first start, or behind a gap.
        missing: ticks that the ledger lacks.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self.missing = 0
        self._last: Step | None = None

    def steps(self, lines: Iterable[Json]) -> Iterator[Step]:
        """Yield the ticks that can be decided again, in order.

        Raises:
            BadLine: a line isn't what a ledger holds.
        """
        for line in lines:
            try:
                step = self._step(line)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadLine(f"decision {line.get('number')} can't be read: {error}") from error
            self._last = step
            if step is None:
                self.skipped += 1
            else:
                yield step

    def _step(self, line: Json) -> Step | None:
        number, start = int(line["number"]), line.get("start")
        last = self._last
        follows = last is not None and number == last.number + 1
        if last is not None and number > last.number + 1:
            self.missing += number - last.number - 1
        if start is not None:
            rules, memory = _rules(line["policyHash"], start), decode(Memory, start["memory"])
        elif follows and last is not None and line["policyHash"] == last.rules.hash:
            rules, memory = last.rules, None
        else:
            return None
        decision = line.get("decision")
        if decision is not None:
            snapshot, now = snapshot_from_json(line["inputs"]), float(decision["at"])
        else:
            assert last is not None
            snapshot, now = _patched(last.snapshot, line["changes"]), float(line["now"])
        return Step(
            number=number,
            at=float(line["at"]),
            now=now,
            rules=rules,
            snapshot=snapshot,
            memory=memory,
            begins=not follows,
            decision=decision,
        )


def _rules(policy_hash: str, start: Json) -> Recorded:
    return Recorded(
        policies=tuple(decode(PolicySpec, policy) for policy in start["policies"]),
        fleets=tuple(decode(FleetSpec, fleet) for fleet in start["fleets"]),
        hash=policy_hash,
        law=str(start["law"]),
    )
