"""What a controller and the process that reads its policies say to each other.

Requests are lines: `look HASH`, `read HASH`, or `take HASH` with the texts themselves in a frame behind it, where HASH is the set in
force. An answer is a frame (a length and a pickled
`Answer`); where it announces a new set, that follows in pieces, each small enough to be unpickled between two other things
that a busy loop does.
"""

import dataclasses
import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from scaler.errors import PolicyFault
from scaler.policy.compile import PolicySet
from scaler.policy.reading import Place

Piece: TypeAlias = tuple[str, Any]
"""A part of a set: the name of a field, and its value or a part of it."""

LENGTH: Final = Struct("!I")
"""What stands before each frame: how many bytes it has."""
MOST_FAULTS: Final = 200
"""Faults that are told: whoever breaks 500 files in one way need not read all of it, and the loop not carry it."""
_ITEMS_A_PIECE: Final = 16
"""Policies or fleets in one piece: about a millisecond of unpickling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How one set differs from another, as sorted `Kind/name`.

    Attributes:
        added: documents that only the new one has.
        changed: documents that mean something else in the new one.
        removed: documents that only the old one has.
    """

    added: Sequence[str] = ()
    changed: Sequence[str] = ()
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """Policies that aren't in files.

    Attributes:
        place: where they are, as faults name it.
        texts: what is there, by key; None if the place is gone.
    """

    place: str
    texts: Mapping[str, bytes] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request.

    Attributes:
        read: whether the files were read; if not, nothing has changed, or something is being written just now.
        hash: the set that was read; empty if it can't be used.
        files: the files that were read.
        faults: why it can't be used, the first `MOST_FAULTS` of them.
        more_faults: how many there are beyond those.
        places: where its documents stand, by kind and name.
        pieces: pieces of the set that follow; none if it can't be used or is the set in force.
    """

    read: bool = False
    hash: str = ""
    files: Sequence[str] = ()
    faults: Sequence[PolicyFault] = ()
    more_faults: int = 0
    places: Mapping[tuple[str, str], Place] = field(default_factory=dict)
    pieces: int = 0


def changes(before: PolicySet, after: PolicySet) -> Changes:
    """Compare two sets; cheap where what hasn't changed is the same object, as `joined` makes it."""
    old, new = _documents(before), _documents(after)
    both = new.keys() & old.keys()
    return Changes(
        added=sorted(new.keys() - old.keys()),
        changed=sorted(key for key in both if new[key] is not old[key] and new[key] != old[key]),
        removed=sorted(old.keys() - new.keys()),
    )


def _documents(of: PolicySet) -> dict[str, object]:
    items = (*of.fleets.values(), *of.policies.values(), *of.settings)
    return {f"{item.kind}/{item.metadata.name}": item for item in items}


# ------------------------------------------------------------------ frames


def frame(value: object) -> bytes:
    """Write one value as a frame."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return LENGTH.pack(buffer.tell()) + buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles read-only mappings too, which the standard library can't."""

    def reducer_override(self, value: Any) -> Any:  # noqa: ANN401 - pickle's own signature
        if isinstance(value, MappingProxyType):
            return read_only, (dict(value),)
        return NotImplemented


def read_only(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    """Make a read-only mapping; unpickling calls it by its name."""
    return MappingProxyType(mapping)


def pieces_of(new: PolicySet, old: PolicySet | None) -> list[Piece]:
    """Take a set apart: per field its value, or, where it is a mapping, its keys and then what `old` has not.

    Args:
        new: the set.
        old: the set that the receiver has, if that is known.
    """
    return [piece for each in dataclasses.fields(new) for piece in _pieces(each.name, new, old)]


def _pieces(name: str, new: PolicySet, old: PolicySet | None) -> Iterator[Piece]:
    value = getattr(new, name)
    if not isinstance(value, Mapping):
        yield name, value
        return
    known: Mapping[Any, Any] = {} if old is None else getattr(old, name)
    items = ((key, item) for key, item in value.items() if key not in known or known[key] != item)
    yield name, _Keys(value)
    while part := dict(islice(items, _ITEMS_A_PIECE)):
        yield name, part


class _Keys(tuple[Any, ...]):
    """The keys of a mapping, in their order."""

    __slots__ = ()


def joined(pieces: Iterable[Piece], old: PolicySet) -> PolicySet:
    """Put a set together again, with what has not changed taken from the set that was there before."""
    fields: dict[str, Any] = {}
    for name, value in pieces:
        match value:
            case _Keys():
                known = getattr(old, name)
                fields[name] = {key: known.get(key) for key in value}
            case dict():
                fields[name].update(value)
            case _:
                fields[name] = value
    whole: dict[str, Any] = {k: read_only(v) if isinstance(v, dict) else v for k, v in fields.items()}
    return PolicySet(**whole)
