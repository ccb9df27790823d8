"""The ledger: every tick with what the law needs to be run over it again.

A tick becomes one line. Whole records hold inputs, decision and actions: they are written whenever the answer changes, and
at least once a second. Ticks between them hold only which inputs changed, so that the past of the law (its windows, its
rates) can be rebuilt in full. Now and then a whole record also holds the `start` of a replay: the specs in force and what
the law remembered before that tick. So a ledger can be replayed from any such record on, also one that was cut, that
several runs have written to, or whose disk was once too slow.

A tick that looked at a part of all policies and fleets says at which (`looked`), and its line holds nothing of the others:
each island (`scaler.core.islands`) has a history of its own.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from scaler.core.encoding import decode, encode
from scaler.core.islands import Island
from scaler.core.memory import Memory
from scaler.core.model import Decision, FleetSpec, Load, PolicySpec, Reading, Snapshot
from scaler.core.replay import Json, RenderedViews, decision_to_json, snapshot_from_json, snapshot_to_json

RECORD_INTERVAL_SECONDS: Final = 1.0
"""A decision equal to the last one is written whole this often, so that the ledger shows that the loop lives."""
START_INTERVAL_SECONDS: Final = 60.0
"""A replay of a ledger that was cut loses no more than this."""
ORDERED: Final = "order"
"""The cause of ticks that a person's order has woken: they are written whole, so that what was ordered is in the ledger."""
_READINGS: Final = tuple(field.name for field in dataclasses.fields(Load) if field.name != "absent")
_BY_NAME: Final = {
    "loads": "policies",
    "serving_floors": "policies",
    "ordered": "policies",
    "fleets": "fleets",
    "seat_floors": "fleets",
    "frozen": "fleets",
    "one_way": "fleets",
}
"""Inputs of which each policy, or each fleet, has its own: the fields of a snapshot, and whose they are."""
_Subject = tuple[str, str]
"""`policy` or `fleet`, and its name."""


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
        rules: what is in force; the same object for as long as nothing is reloaded.
        on: the policies and fleets that it looked at.
        before: what the law remembered before it, of these at least.
        snapshot: what it looked at.
        decision: what it decided.
        actions: what was begun for it, in words.
    """

    number: int
    at: float
    causes: Mapping[str, int]
    rules: Rules
    on: Island
    before: Memory
    snapshot: Snapshot
    decision: Decision
    actions: Sequence[str]


@dataclass(slots=True)
class _Told:
    """What the ledger says of one policy or fleet.

    Attributes:
        shape: what makes its answers the same.
        recorded_at: when it was last in a whole record.
        started_at: when it was last in the start of a replay.
    """

    shape: object
    recorded_at: float
    started_at: float


class Ledger:
    """Makes the lines of one run."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._inputs = Inputs()
        self._told: dict[_Subject, _Told] = {}
        self._views = RenderedViews()

    def line(self, entry: Entry) -> dict[str, Any]:
        """Return the line of the next tick. A whole record has the key `decision`, a tick between two `changes`."""
        if self._rules is not entry.rules:
            self._rules, self._inputs, self._views = entry.rules, Inputs(), RenderedViews()
            self._told.clear()
        shapes, now = _shapes(entry), entry.decision.at
        told = [self._told.get(subject) for subject in shapes]
        starts = any(one is None or now >= one.started_at + START_INTERVAL_SECONDS for one in told)
        whole = starts or ORDERED in entry.causes
        whole = whole or any(
            one is None or one.shape != shape or now >= one.recorded_at + RECORD_INTERVAL_SECONDS
            for one, shape in zip(told, shapes.values(), strict=True)
        )
        changes = None if whole else self._inputs.changed(entry.on, entry.snapshot)
        self._inputs.put(entry.on, entry.snapshot)
        head = {"at": entry.at, "number": entry.number, "policyHash": entry.rules.hash, **_looked(entry)}
        if changes is not None:
            return {**head, "now": now, "changes": changes}
        for subject, shape in shapes.items():
            known = self._told.get(subject)
            started_at = now if starts or known is None else known.started_at
            self._told[subject] = _Told(shape, now, started_at)
        record = {
            **head,
            "causes": dict(entry.causes),
            "inputs": snapshot_to_json(entry.snapshot, self._views),
            "decision": decision_to_json(entry.decision),
            "actions": list(entry.actions),
        }
        return {**record, "start": _start(entry)} if starts else record


def _looked(entry: Entry) -> dict[str, Any]:
    """Return what a tick looked at, unless that is everything."""
    if not entry.snapshot.partial:
        return {}
    looked = {
        "policies": [policy.name for policy in entry.on.policies],
        "fleets": [fleet.name for fleet in entry.on.fleets],
    }
    return {"looked": looked}


def _start(entry: Entry) -> dict[str, Any]:
    on = entry.on
    memory = entry.before.part((policy.name for policy in on.policies), (fleet.name for fleet in on.fleets))
    return {
        "law": entry.decision.law,
        "policies": [encode(policy) for policy in on.policies],
        "fleets": [encode(fleet) for fleet in on.fleets],
        "memory": encode(memory),
    }


def _shapes(entry: Entry) -> dict[_Subject, object]:
    """Return what makes two answers the same for the ledger: the answers and the kinds of reasons, not the numbers."""
    decision = entry.decision
    shapes: dict[_Subject, object] = dict.fromkeys(("policy", policy.name) for policy in entry.on.policies)
    shapes |= dict.fromkeys(("fleet", fleet.name) for fleet in entry.on.fleets)
    for name, p in decision.policies.items():
        shapes["policy", name] = (p.mode, p.serving, [reason.code for reason in p.reasons])
    for fleet, f in decision.fleets.items():
        shapes["fleet", fleet] = (f.serving, f.spare, f.total)
    return shapes


# ------------------------------------------------------------------ what changed between two ticks


class Inputs:
    """What was last seen of every policy and fleet."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, Any]] = {name: {} for name in _BY_NAME}

    def changed(self, on: Island, after: Snapshot) -> dict[str, Any] | None:
        """Return the inputs that have changed, as JSON; None where only the whole snapshot can say it.

        Ages pass with time and don't count as a change: the law asks only whether there is one.
        """
        different: dict[str, Any] = {}
        for name, of in _BY_NAME.items():
            old, new = self._parts[name], getattr(after, name)
            if any(spec.name in old and spec.name not in new for spec in getattr(on, of)):
                return None
            alike = _same_load if name == "loads" else _equal
            different[name] = {key: item for key, item in new.items() if not alike(old.get(key), item)}
        found = snapshot_to_json(replace(after, **different))
        return {key: value for key, value in found.items() if value not in ({}, None)}

    def put(self, on: Island, snapshot: Snapshot) -> None:
        """Take over what is seen now of some policies and fleets."""
        for name, of in _BY_NAME.items():
            part, new = self._parts[name], getattr(snapshot, name)
            for spec in getattr(on, of):
                if spec.name in new:
                    part[spec.name] = new[spec.name]
                else:
                    part.pop(spec.name, None)

    def patch(self, changes: Snapshot) -> None:
        """Take over inputs that have changed."""
        for name in _BY_NAME:
            self._parts[name].update(getattr(changes, name))

    def of(self, on: Island, scalars: Snapshot) -> Snapshot:
        """Return what is seen of some policies and fleets; what belongs to none of them is taken from `scalars`."""
        parts: dict[str, Any] = {
            name: {
                spec.name: self._parts[name][spec.name]
                for spec in getattr(on, of)
                if spec.name in self._parts[name]
            }
            for name, of in _BY_NAME.items()
        }
        return replace(scalars, **parts)

    def all(self, scalars: Snapshot) -> Snapshot:
        """Return what is seen of all; what belongs to nobody is taken from `scalars`."""
        parts: dict[str, Any] = {name: dict(part) for name, part in self._parts.items()}
        return replace(scalars, **parts)


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
        rules: what was in force for the policies and fleets that it looked at; no others are in it.
        snapshot: what it looked at.
        known: what had been seen by then of all policies and fleets.
        memory: what the law remembered of them before it, where the ledger holds that.
        begins: nothing before it is known of them, so that a replay has to take up `memory`.
        decision: what was decided, as JSON; None for a tick between two records.
    """

    number: int
    at: float
    now: float
    rules: Recorded
    snapshot: Snapshot
    known: Snapshot
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
        self._number: int | None = None
        self._past = _Past()
        self._met: set[_Subject] = set()

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
            if step is None:
                self.skipped += 1
            else:
                yield step

    def _step(self, line: Json) -> Step | None:
        number, last = int(line["number"]), self._number
        self._number = number
        if last is None or number != last + 1:
            self.missing += 0 if last is None else max(0, number - last - 1)
            self._past, self._met = _Past(), set()
        if line["policyHash"] != self._past.hash:
            self._past = _Past(hash=str(line["policyHash"]))
        start = line.get("start")
        if start is not None:
            self._past.take_up(start)
        on = self._past.on(line)
        if on is None:
            return None
        met = {("policy", policy.name) for policy in on.policies} | {("fleet", f.name) for f in on.fleets}
        begins = not met <= self._met
        self._met |= met
        return self._read(line, on, begins=begins)

    def _read(self, line: Json, on: Island, *, begins: bool) -> Step:
        past, decision, start = self._past, line.get("decision"), line.get("start")
        if decision is not None:
            scalars, now = snapshot_from_json(line["inputs"]), float(decision["at"])
            past.inputs.put(on, scalars)
        else:
            scalars = snapshot_from_json({"loads": {}, "fleets": {}, **line["changes"]})
            now = float(line["now"])
            past.inputs.patch(scalars)
        return Step(
            number=int(line["number"]),
            at=float(line["at"]),
            now=now,
            rules=Recorded(policies=on.policies, fleets=on.fleets, hash=past.hash, law=past.law),
            snapshot=past.inputs.of(on, scalars),
            known=past.inputs.all(scalars),
            memory=None if start is None else decode(Memory, start["memory"]),
            begins=begins,
            decision=decision,
        )


class _Past:
    """What is known at one point of a ledger: the specs whose past is whole, and what was seen of them."""

    def __init__(self, hash: str = "") -> None:  # noqa: A002 - the word that policies' sets and records use
        self.hash = hash
        self.law = ""
        self.inputs = Inputs()
        self._policies: dict[str, PolicySpec] = {}
        self._fleets: dict[str, FleetSpec] = {}
        self._everything: Island | None = None

    def take_up(self, start: Json) -> None:
        """Take the specs of a start over."""
        self.law = str(start["law"])
        for policy in (decode(PolicySpec, each) for each in start["policies"]):
            self._policies[policy.name] = policy
        for fleet in (decode(FleetSpec, each) for each in start["fleets"]):
            self._fleets[fleet.name] = fleet

    def on(self, line: Json) -> Island | None:
        """Return what a tick looked at; None if its past isn't known."""
        looked, start = line.get("looked"), line.get("start")
        if looked is None:
            if start is not None:
                self._everything = Island(
                    tuple(self._policies[str(each["name"])] for each in start["policies"]),
                    tuple(self._fleets[str(each["name"])] for each in start["fleets"]),
                )
            return self._everything
        policies = [self._policies.get(str(name)) for name in looked["policies"]]
        fleets = [self._fleets.get(str(name)) for name in looked["fleets"]]
        known = [policy for policy in policies if policy is not None]
        there = [fleet for fleet in fleets if fleet is not None]
        if len(known) < len(policies) or len(there) < len(fleets):
            return None
        return Island(tuple(known), tuple(there))
