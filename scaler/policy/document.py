"""YAML documents whose every value knows its place, and faults that point there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from scaler.errors import PolicyError, PolicyFault
from scaler.policy.files import MAX_FAULTS, Found, decode, file_fault, find_files, in_file_order, read_bytes
from scaler.policy.visible import escaped
from scaler.policy.yaml_reader import Entry, Node, read_roots, show

__all__ = [
    "MAX_FAULTS",
    "Contents",
    "Document",
    "Path",
    "contents_of",
    "documents_in",
    "documents_of",
    "dotted",
    "load_contents",
    "load_documents",
    "look_up",
    "parse",
    "parse_documents",
    "show",
]

Path: TypeAlias = tuple[str | int, ...]
"""A place in a document: keys and list indices from its root."""


def look_up(data: object, *path: str | int) -> Any:  # noqa: ANN401 - a YAML value may be anything
    """Follow a path through mappings and lists; None where it leads nowhere."""
    for part in path:
        match data, part:
            case dict(), str():
                data = data.get(part)
            case list(), int() if part < len(data):
                data = data[part]
            case _:
                return None
    return data


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a file: plain data, and where each part of it stands.

    Attributes:
        file: the file as it was named to us.
        index: which document of the file it is, from 0.
        data: its content as dicts with text keys, lists, text, numbers, booleans and None.
        root: the same, with the place of each part.
        clean: nothing was said of any part of it when it was read.
        inside: where it stands in another document; empty for one that stands by itself.
    """

    file: str
    index: int
    data: dict[str, Any]
    root: Node
    clean: bool = True
    inside: Path = ()

    def part(self, path: Path) -> "Document":
        """Return the mapping at `path` as a document of its own, for documents that are written inside another.

        Raises:
            KeyError: there is no mapping at `path`.
        """
        node = self._at(path)
        if node is None or not isinstance(node.value, dict):
            raise KeyError(dotted(path))
        inside = (*self.inside, *path)
        return Document(self.file, self.index, node.plain(), node, clean=self.clean, inside=inside)

    def position(self, path: Path) -> tuple[int, int]:
        """Return line and column (1-based) of the value at `path`: of its key for mappings, lists and what is empty.

        Where the path leads nowhere, its deepest part that exists counts, by its key: a missing key points at the
        mapping that lacks it.
        """
        node, place = self.root, (self.root.line, self.root.column)
        for depth, part in enumerate(path):
            inner = _inside(node, part)
            if inner is None:
                return place
            entry = node.value[part]  # of a list it is the node itself
            node, place = inner, (entry.line, entry.column)
            if depth == len(path) - 1 and not isinstance(node.value, dict | list | None):
                return node.line, node.column
        return place

    def key_position(self, path: Path) -> tuple[int, int]:
        """Return line and column (1-based) of the key at the end of `path`; of the value where there is no key."""
        parent = self._at(path[:-1])
        if path and parent is not None and isinstance(parent.value, dict) and path[-1] in parent.value:
            entry: Entry = parent.value[path[-1]]
            return entry.line, entry.column
        return self.position(path)

    def written(self, path: Path) -> str:
        """Return a number, a boolean or null as it is written in the file; empty for anything else."""
        node = self._at(path)
        return "" if node is None else node.text

    def doubtful(self, *path: str | int) -> bool:
        """Whether something was said of the value at `path`, or of the mapping that may lack it, when it was read."""
        parent, node = self._at(path[:-1]), self._at(path)
        here = parent if node is None else node
        return here is not None and here.doubtful

    def _at(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for part in path:
            node = None if node is None else _inside(node, part)
        return node

    def fault(self, path: Path, message: str, hint: str = "") -> PolicyFault:
        """Make a fault that points at `path` in this document."""
        return self._fault_at(self.position(path), path, message, hint)

    def key_fault(self, path: Path, message: str, hint: str = "") -> PolicyFault:
        """Make a fault that points at the key at the end of `path`."""
        return self._fault_at(self.key_position(path), path, message, hint)

    def where(self, path: Path) -> str:
        """Write `path` as people do, from the beginning of the file's document."""
        return dotted((*self.inside, *path))

    def _fault_at(self, place: tuple[int, int], path: Path, message: str, hint: str) -> PolicyFault:
        line, column = place
        return PolicyFault(
            file=self.file, line=line, column=column, path=self.where(path), message=message, hint=hint
        )


def _inside(node: Node, part: str | int) -> Node | None:
    """Return the value under a key or an index, or None."""
    match node.value, part:
        case dict() as entries, str() if part in entries:
            entry: Entry = entries[part]
            return entry.node
        case list() as items, int() if 0 <= part < len(items):
            item: Node = items[part]
            return item
        case _:
            return None


def dotted(path: Path) -> str:
    """Write a path as people do: `spec.fleets[0].targetInFlight`."""
    text = ""
    for part in path:
        key = part if isinstance(part, int) else escaped(part)
        text += f"[{key}]" if isinstance(part, int) else f".{key}" if text else str(key)
    return text


@dataclass(frozen=True, slots=True)
class Contents:
    """What one file holds, as far as it can be read.

    Attributes:
        file: the file as it was named to us.
        documents: the documents that could be read, without those that hold nothing.
        faults: what is wrong with the file, before anything is known of what it should say.
        whole: whether each document that it holds could be read; if not, there are others.
    """

    file: str
    documents: Sequence[Document] = ()
    faults: Sequence[PolicyFault] = ()
    whole: bool = True


def load_contents(paths: Sequence[FilePath]) -> list[Contents]:
    """Read YAML files, and the `*.yaml` and `*.yml` of directories (not of their sub-directories), in order.

    A file that is named twice is read once. Never raises: what can't be read is a fault of its file.
    """
    return [_contents_at(found) for found in find_files(paths)]


def _contents_at(found: Found | PolicyFault) -> Contents:
    if isinstance(found, PolicyFault):
        return Contents(found.file, faults=(found,), whole=False)
    try:
        raw = read_bytes(found.path)
    except PolicyError as error:
        return Contents(str(found.path), faults=error.faults, whole=False)
    return contents_of(raw, str(found.path))


def contents_of(raw: bytes, file: str) -> Contents:
    """Read a file's bytes as far as that can be done; `file` is what its faults call it."""
    try:
        text = decode(raw, file)
    except PolicyError as error:
        return Contents(file, faults=error.faults, whole=False)
    return parse(text, file)


def parse(text: str, file: str) -> Contents:
    """Read a text that is already at hand, as far as that can be done; `file` is what its faults call it."""
    roots = read_roots(text, file)
    filled = [
        (index, root) for index, root in enumerate(roots.nodes) if root.value is not None or root.doubtful
    ]
    faults = list(roots.faults)
    if not filled and not faults:
        hint = "write at least one document with apiVersion, kind, metadata and spec"
        faults.append(file_fault(file, "the file holds no document", hint))
    faults += (
        _no_mapping(file, root)
        for _, root in filled
        if not isinstance(root.value, dict) and not root.doubtful
    )
    clean = not roots.faults
    documents = [
        Document(file=file, index=index, data=root.plain(), root=root, clean=clean)
        for index, root in filled
        if isinstance(root.value, dict)
    ]
    listed = any(isinstance(root.value, list) and _lists_documents(root) for _, root in filled)
    return Contents(file, documents, in_file_order(faults, [file]), roots.whole and not listed)


def documents_in(contents: Sequence[Contents]) -> list[Document]:
    """Return the documents of files.

    Raises:
        PolicyError: with all faults of all files: unreadable or missing files, bad YAML, duplicate keys, tags, merge
            keys, files without any document, documents that aren't mappings.
    """
    faults = tuple(fault for each in contents for fault in each.faults)
    if faults:
        raise PolicyError(faults)
    return [document for each in contents for document in each.documents]


def load_documents(paths: Sequence[FilePath]) -> list[Document]:
    """Read the documents of files and directories, as `load_contents` does.

    Raises:
        PolicyError: as `documents_in`.
    """
    return documents_in(load_contents(paths))


def documents_of(raw: bytes, file: str) -> list[Document]:
    """Read the documents of a file's bytes; `file` is what its faults call it.

    Raises:
        PolicyError: as `documents_in`.
    """
    return documents_in([contents_of(raw, file)])


def parse_documents(text: str, file: str) -> list[Document]:
    """Read the documents of a text that is already at hand; `file` is what its faults call it.

    Raises:
        PolicyError: as `documents_in`.
    """
    return documents_in([parse(text, file)])


def _lists_documents(root: Node) -> bool:
    """Whether somebody wrote documents as entries of a list."""
    return any(isinstance(node.value, dict) and "kind" in node.value for node in root.value)


def _no_mapping(file: str, root: Node) -> PolicyFault:
    what = "a list" if isinstance(root.value, list) else "a single value"
    message = f"a document must be a mapping with apiVersion, kind, metadata and spec, is {what}"
    return file_fault(file, message, line=root.line, column=root.column)
