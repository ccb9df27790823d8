"""Two sets of policies compared by what they mean: objects by name, defaults filled in, order only where it counts.

What is compared is a plain tree per object in which everything that can be written in two ways stands in one: model names
that default to the policy's own, a time to first token in milliseconds, a rule about several error codes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from scaler.errors import PolicyError
from scaler.policy.base import UNIT, Envelope, Unsound
from scaler.policy.compile import judge_file
from scaler.policy.document import Contents
from scaler.policy.facts import as_yaml
from scaler.policy.files import in_file_order
from scaler.policy.fleet import Fleet
from scaler.policy.meaning import meaning_of
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.wording import schema_at, schema_of
from scaler.policy.xid_table import XidTable

Tree: TypeAlias = dict[str, Any]

_NOUNS: Final = {
    "Fleet": "fleet",
    "ScalingPolicy": "policy",
    "Controller": "controller",
    "XidTable": "Xid table",
}
"""Kinds as sentences call them."""
_ONE_ONLY: Final = frozenset({"Controller", "XidTable"})
"""Kinds that a set has one of at most: they are compared whatever they are called."""
_SHORT_UNITS: Final = {"seconds": "s", "milliseconds": "ms", "percent": "%"}
_NOT_COUNTED: Final = frozenset({"rank", "port", "number of a database"})
"""Units of numbers that count nothing: they say what the number is, and its key does that."""
_ORDERED: Final = frozenset({"ScalingPolicy.spec.fleets"})
"""Lists of named entries whose order means something."""
_SETS: Final = frozenset(
    {"ScalingPolicy.spec.models", "Fleet.spec.scaleUp.policies", "Fleet.spec.scaleDown.policies"}
)
"""Lists without order, whose entries have no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two sets.

    Attributes:
        kind: kind of the object.
        name: its name; the new one if it was renamed.
        path: where, as in the file, with names for indices; empty for an object that is in one set only.
        before: value in the first set, with defaults filled in; None where there is none.
        after: value in the second set.
        meaning: what follows from it.
        sentence: all of this in words.
    """

    kind: str
    name: str
    path: str
    before: Any
    after: Any
    meaning: str
    sentence: str


def check_each(contents: Sequence[Contents]) -> list[Envelope]:
    """Check documents by themselves, and that no object is there twice: all that a comparison needs.

    Args:
        contents: the files that hold them.

    Raises:
        PolicyError: with all faults, in the order of the files.
    """
    files = [judge_file(each) for each in contents]
    faults = [fault for file in files for fault in file.faults]
    found: dict[tuple[str, str], Envelope] = {}
    for judged in (each for file in files for each in file.judged):
        faults += judged.faults
        with suppress(Unsound):
            if judged.item is None:
                continue
            key, kind = _key(judged.item), type(judged.item).__name__
            if key in found:
                message = f"there is another {kind}; a set has one at most"
                if kind not in _ONE_ONLY:
                    message = f"there is another {kind} {judged.item.metadata.name}"
                fault = judged.document.fault(
                    ("metadata", "name"), message, "rename or remove one of the two"
                )
                faults.append(fault)
            found[key] = judged.item
    if faults:
        raise PolicyError(in_file_order(faults, [file.file for file in files]))
    return list(found.values())


def diff(before: Iterable[Envelope], after: Iterable[Envelope]) -> list[Change]:
    """Compare two sets of objects, each of which is right by itself.

    Returns:
        What differs, in the order of the second set; what only the first one has comes last.
    """
    old = {_key(item): item for item in before}
    new = {_key(item): item for item in after}
    renamed = _renamed(old, new)
    changes: list[Change] = []
    for key, item in new.items():
        origin = old.get(key) or renamed.get(key)
        changes += [_whole(item, added=True)] if origin is None else _between(origin, item)
    gone = old.keys() - new.keys() - {_key(origin) for origin in renamed.values()}
    return changes + [_whole(item, added=False) for key, item in old.items() if key in gone]


def _key(item: Envelope) -> tuple[str, str]:
    kind = type(item).__name__
    return kind, "" if kind in _ONE_ONLY else item.metadata.name


def _renamed(
    old: Mapping[tuple[str, str], Envelope], new: Mapping[tuple[str, str], Envelope]
) -> dict[tuple[str, str], Envelope]:
    """Pair each added object with the one removed object that says the same; none where several do."""
    removed = [item for key, item in old.items() if key not in new]
    added = [item for key, item in new.items() if key not in old]
    pairs = {}
    for item in added:
        alike = [other for other in removed if _same_spec(other, item)]
        rivals = [other for other in added if _same_spec(other, item)]
        if len(alike) == len(rivals) == 1:
            pairs[_key(item)] = alike[0]
    return pairs


def _same_spec(one: Envelope, other: Envelope) -> bool:
    return one.kind == other.kind and _dump(one)["spec"] == _dump(other)["spec"]


def _dump(item: Envelope) -> Tree:
    return item.model_dump(mode="json", by_alias=True)


def _whole(item: Envelope, *, added: bool) -> Change:
    tree = item.model_dump(mode="json", by_alias=True, exclude_defaults=True)["spec"]
    meaning = _existence(item, added=added)
    return Change(
        kind=item.kind,
        name=item.metadata.name,
        path="",
        before=None if added else tree,
        after=tree if added else None,
        meaning=meaning,
        sentence=f"{_noun(item)}: {'added' if added else 'removed'} ({meaning})",
    )


def _noun(item: Envelope) -> str:
    return f"{_NOUNS[item.kind]} {item.metadata.name}"


def _existence(item: Envelope, *, added: bool) -> str:
    match item:
        case Fleet() if added:
            return f"up to {item.spec.max_seats} seats, {item.spec.spare.min} of them spare at least"
        case Fleet():
            return "its seats stay as they are, and nobody promotes or counts them any more"
        case ScalingPolicy() if added:
            return f"serves {', '.join(item.models)} on {', '.join(share.name for share in item.spec.fleets)}"
        case ScalingPolicy():
            return (
                f"requests for {', '.join(item.models)} are no longer known; its residents stay as they are"
            )
        case XidTable():
            return "error codes are judged by it" if added else "error codes are judged by the built-in rules"
        case _:
            return "its limits hold over all fleets" if added else "its limits hold no longer"


# ------------------------------------------------------------------ one object


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in an object: as people write it, as the table of meanings knows it, and as its schema is walked."""

    item: Envelope
    path: str
    key: str
    schema: tuple[str | int, ...]

    def child(self, name: str) -> "_Place":
        path = f"{self.path}.{name}" if self.path else name
        return _Place(self.item, path, f"{self.key}.{name}", (*self.schema, name))

    def entry(self, name: str, index: int) -> "_Place":
        return _Place(self.item, f"{self.path}[{name}]", f"{self.key}[]", (*self.schema, index))

    def change(self, before: object, after: object, key: str = "") -> Change:
        row = meaning_of(key or self.key)
        if self.key.endswith("[]") and not key:
            meaning = row.more if before is None else row.less
        else:
            meaning = row.of(before, after)
        return Change(
            kind=self.item.kind,
            name=self.item.metadata.name,
            path=self.path,
            before=before,
            after=after,
            meaning=meaning,
            sentence=f"{_noun(self.item)}: {self._words(before, after, row.unset)} ({meaning})",
        )

    def _words(self, before: object, after: object, unset: str) -> str:
        path, unit = self.path.removeprefix("spec."), _unit(self, after if before is None else before)
        if path == "metadata.name":
            return f"renamed from {before}"
        entry = self.key.endswith("[]") or isinstance(before or after, dict)
        if before is None and entry:
            return f"{path} added: {_value(after)}"
        if after is None and entry:
            return f"{path} removed, was {_value(before)}"
        old, new = (unset if value is None else _value(value) for value in (before, after))
        if self.key in _ORDERED:
            path = f"order of {path}"
        if unit and after is None:
            return f"{path} {_counted(before, unit)} → {new}"
        return f"{path} {old} → {_counted(after, unit) if unit else new}"


def _value(value: object) -> str:
    """Write a value as it could stand in the file; whole numbers without a point, and nothing of what isn't given."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else as_yaml(_given(value))


def _given(value: object) -> object:
    """Return a value without the keys that have none."""
    match value:
        case dict():
            left = {key: _given(item) for key, item in value.items() if item is not None}
            return {key: item for key, item in left.items() if item != {}}
        case list():
            return [_given(item) for item in value]
        case _:
            return value


def _counted(number: object, unit: str) -> str:
    """Write a number with its unit, `requests in flight` in singular where it is one."""
    if number == 1:
        first, space, rest = unit.partition(" ")
        unit = first.removesuffix("s") + space + rest if len(first) > 1 else unit
    return f"{_value(number)} {unit}"


class _Named(dict[str, Tree]):
    """Entries of a list without names, under names that tell them apart."""


def _between(before: Envelope, after: Envelope) -> Iterator[Change]:
    place = _Place(after, "", after.kind, ())
    return _differences(place, _tree(before), _tree(after))


def _tree(item: Envelope) -> Tree:
    """Return what an object says, in the one way of saying it."""
    tree = _dump(item)
    spec: Tree = tree["spec"]
    match item:
        case Fleet():
            version, kind, name = _target(item)
            spec["target"] = {"apiVersion": version, "kind": kind, "name": name}
        case ScalingPolicy():
            spec["models"] = list(item.models)
            spec["objectives"]["ttft"] = {
                "seconds": item.spec.objectives.ttft.limit_seconds,
                "percent": item.spec.objectives.ttft.percent,
            }
        case XidTable():
            spec["rules"] = _Named(
                {
                    f"Xid {xid}": {key: value for key, value in rule.items() if key != "xids"}
                    for rule in spec["rules"]
                    for xid in rule["xids"]
                }
            )
        case _:
            pass
    for schedule in spec.get("schedules", ()):
        schedule.update({key: " ".join(schedule[key].split()) for key in ("start", "end")})
    return tree


def _target(item: Fleet) -> tuple[str, str, str]:
    """Return the workload; that of a fleet which names none has its name."""
    if item.spec.target is None:
        return "apps/v1", "Deployment", item.metadata.name
    return item.spec.target.api_version, item.spec.target.kind, item.spec.target.name


def _differences(place: _Place, before: object, after: object) -> Iterator[Change]:
    match before, after:
        case _Named(), _Named():
            yield from _entry_differences(place, before, after)
        case dict(), dict() if _type(before) == _type(after):
            for name in [*before, *(name for name in after if name not in before)]:
                yield from _differences(place.child(name), before.get(name), after.get(name))
        case dict(), dict() if "type" in before and place.key.endswith("[]"):
            yield place.change(before, after, f"{place.key}.type")
        case list(), list() if place.key in _SETS:
            yield from _set_differences(place, before, after)
        case list(), list() if _are_named(before) and _are_named(after):
            old, new = ({entry["name"]: entry for entry in entries} for entries in (before, after))
            yield from _entry_differences(place, old, new)
        case _ if before != after:
            yield place.change(before, after)
        case _:
            pass


def _type(tree: Tree) -> object:
    """Return which form of an entry with several forms this is."""
    return tree.get("type") if "name" in tree else None


def _are_named(entries: Sequence[object]) -> bool:
    return all(isinstance(entry, dict) and "name" in entry for entry in entries)


def _entry_differences(place: _Place, old: Mapping[str, Tree], new: Mapping[str, Tree]) -> Iterator[Change]:
    for index, (name, entry) in enumerate(new.items()):
        yield from _differences(place.entry(name, index), old.get(name), entry)
    for index, (name, entry) in enumerate(old.items()):
        if name not in new:
            yield place.entry(name, index).change(entry, None)
    if place.key in _ORDERED and [name for name in old if name in new] != [
        name for name in new if name in old
    ]:
        yield place.change(list(old), list(new))


def _set_differences(place: _Place, before: Sequence[Any], after: Sequence[Any]) -> Iterator[Change]:
    for index, entry in enumerate(before):
        if entry not in after:
            yield _nameless(place, index).change(entry, None)
    for index, entry in enumerate(after):
        if entry not in before:
            yield _nameless(place, index).change(None, entry)


def _nameless(place: _Place, index: int) -> _Place:
    return _Place(place.item, place.path, f"{place.key}[]", (*place.schema, index))


def _unit(place: _Place, value: object) -> str:
    """Return what one of a number is, as the schema says it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    schema = schema_at(schema_of(type(place.item)), place.schema, _dump(place.item))
    found = next((part[UNIT] for part in (schema, *schema.get("anyOf", ())) if UNIT in part), "")
    return "" if found in _NOT_COUNTED else _SHORT_UNITS.get(found, str(found))
