"""Policies that are read again and again, of files or of a ConfigMap: what hasn't changed isn't parsed and checked twice.

Nothing here waits or watches. Whoever does asks for the `signature`, which costs a look at each file and no reading, and
reads when it is another one.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.between import Judged
from scaler.policy.compile import JudgedFile, PolicySet, assemble, judge_file
from scaler.policy.document import contents_of
from scaler.policy.files import Found, counts, file_fault, find_files, read_bytes

Signature: TypeAlias = tuple[tuple[str | int, ...], ...]
"""Per file its path, device, inode, time of the last change in nanoseconds, and size; links are followed. It is another
one after a plain write, after a rename over a file, as editors save, and after the swap of a ConfigMap's `..data`."""

_ATTEMPTS = 3
"""How often a set is read that changes meanwhile, before it is taken as it is: the next look will find the change."""


class Place(NamedTuple):
    """Where something stands; line and column count from 1."""

    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A set that can be used, and where it comes from.

    Attributes:
        set: the set.
        files: the files that were read, in order.
        places: where each document's name stands, by kind and name.
    """

    set: PolicySet
    files: Sequence[str]
    places: Mapping[tuple[str, str], Place]

    def fault(self, kind: str, name: str, message: str, hint: str = "") -> PolicyFault:
        """Make a fault that points at a document's name: for what is wrong with it here, though not by itself."""
        file, line, column = self.places[kind, name]
        return PolicyFault(
            file=file, line=line, column=column, path="metadata.name", message=message, hint=hint
        )


@dataclass(frozen=True, slots=True)
class _File:
    """What one file holds, by the digest of its bytes; empty for a file that can't be read."""

    digest: bytes
    judged: JudgedFile


class PolicyFiles:
    """Files and directories that make up one policy set.

    Args:
        paths: files, and directories whose `*.yaml` and `*.yml` count, as for `load_policies`.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._known: dict[str, _File] = {}

    def signature(self) -> Signature:
        """Look at all files without reading any; never raises."""
        return tuple(_signature(found) for found in find_files(self._paths))

    def read(self) -> Reading:
        """Read what has changed since the last call, and put the whole set together.

        Files are told apart by sha256 of their bytes, so a file that was only touched is not parsed again. If files
        change while they are read, they are read once more: half of one version and half of another would be a set that
        nobody wrote.

        Raises:
            PolicyError: with all faults of all files, or between them.
        """
        for _ in range(_ATTEMPTS):
            found = find_files(self._paths)
            before = tuple(map(_signature, found))
            self._known = {_name(each): self._file(each) for each in found}
            if self.signature() == before:
                break
        return _reading(self._known)

    def _file(self, found: Found | PolicyFault) -> _File:
        if isinstance(found, PolicyFault):
            return _unreadable(found.file, (found,))
        name = str(found.path)
        try:
            raw = _read(found)
        except PolicyError as error:
            return _unreadable(name, error.faults)
        return _judged(self._known, name, raw)


class PolicyTexts:
    """A policy set that is handed over with the keys that its texts have, as a ConfigMap has them."""

    def __init__(self) -> None:
        self._known: dict[str, _File] = {}

    def read(self, place: str, texts: Mapping[str, bytes] | None) -> Reading:
        """Judge what has changed since the last call, and put the whole set together.

        Args:
            place: where they are; faults name a text `place/key`.
            texts: those that would count if they were files in a directory are read; None if the place is gone.

        Raises:
            PolicyError: with all faults of all texts, or between them, or the one that there is none.
        """
        if texts is None:
            hint = (
                f"make it with the policies: kubectl create {place.replace('/', ' ')} --from-file=policies/"
            )
            raise PolicyError((file_fault(place, "there is no such ConfigMap", hint),))
        counted = {f"{place}/{key}": texts[key] for key in sorted(texts) if counts(key)}
        if not counted:
            hint = "name its keys as files are named: policies.yaml"
            raise PolicyError(
                (file_fault(place, "the ConfigMap has no key that ends in .yaml or .yml", hint),)
            )
        self._known = {name: _judged(self._known, name, raw) for name, raw in counted.items()}
        return _reading(self._known)


def _judged(known: Mapping[str, _File], name: str, raw: bytes) -> _File:
    """Judge what a file holds, unless that is known."""
    digest = hashlib.sha256(raw).digest()
    before = known.get(name)
    if before is not None and before.digest == digest:
        return before
    return _File(digest, judge_file(contents_of(raw, name)))


def _reading(known: Mapping[str, _File]) -> Reading:
    """Put a set together.

    Raises:
        PolicyError: with all faults.
    """
    files = [each.judged for each in known.values()]
    compiled = assemble(files)
    places = {key: place for file in files for key, place in map(_placed, file.judged)}
    return Reading(set=compiled, files=tuple(known), places=places)


def _unreadable(name: str, faults: Sequence[PolicyFault]) -> _File:
    return _File(b"", JudgedFile(name, (), faults, whole=False))


def _read(found: Found) -> bytes:
    if found.status is not None and not found.regular:
        hint = "write its content into a file, and name that"
        raise PolicyError((file_fault(found.path, "is no regular file, and can't be read again", hint),))
    return read_bytes(found.path)


def _name(found: Found | PolicyFault) -> str:
    return found.file if isinstance(found, PolicyFault) else str(found.path)


def _signature(found: Found | PolicyFault) -> tuple[str | int, ...]:
    if isinstance(found, PolicyFault):
        return (found.file, found.message)
    if found.status is None:
        return (str(found.path),)
    status = found.status
    return (str(found.path), status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _placed(judged: Judged) -> tuple[tuple[str, str], Place]:
    """Return kind and name of a document that is right, and where its name stands."""
    assert judged.item is not None
    line, column = judged.document.position(("metadata", "name"))
    return (judged.item.kind, judged.item.metadata.name), Place(judged.document.file, line, column)
