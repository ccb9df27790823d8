"""YAML documents whose every value knows its place, and faults that point there.

The reader takes ruamel's events and builds plain data from them itself, by the core schema of YAML 1.2: that gives a
position for each value, all duplicate keys at once, and a bound on what anchors can expand to before anything is
expanded. What YAML 1.1 guessed (`on` as true, `1:30` as ninety) stays text here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from scaler.errors import PolicyError, PolicyFault

Path: TypeAlias = tuple[str | int, ...]
"""A place in a document: keys and list indices from its root."""

MAX_BYTES: Final = 1 << 20
"""Largest file: 1 MiB, which is also the most that a ConfigMap holds."""
MAX_NODES: Final = 50_000
"""Values in one file, with aliases counted as often as they are used: far above any real policy, far below a bomb."""
MAX_DEPTH: Final = 50
"""Levels of nesting; the deepest format here needs eight."""
SUFFIXES: Final = frozenset({".yaml", ".yml"})
"""What a directory is searched for."""

# The core schema of YAML 1.2.2, section 10.3.2.
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"([-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
_LONGEST_INTEGER = 18  # digits; every integer up to there fits 64 bits
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class _Node:
    """One value with its place; `weight` and `height` count what it expands to."""

    line: int
    column: int
    value: Any
    weight: int = 1
    height: int = 1

    def plain(self) -> Any:  # noqa: ANN401 - a YAML value may be anything
        """Build the plain tree of dicts, lists and scalars."""
        match self.value:
            case dict():
                return {key: entry.node.plain() for key, entry in self.value.items()}
            case list():
                return [node.plain() for node in self.value]
            case scalar:
                return scalar


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value under a key, with the key's own place."""

    line: int
    column: int
    node: _Node


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a file: plain data, and where each part of it stands.

    Attributes:
        file: the file as it was named to us.
        index: which document of the file it is, from 0.
        data: its content as dicts with text keys, lists, text, numbers, booleans and None.
    """

    file: str
    index: int
    data: dict[str, Any]
    _root: _Node

    def part(self, path: Path) -> "Document":
        """Return the mapping at `path` as a document of its own, for documents that are written inside another.

        Raises:
            KeyError: there is no mapping at `path`.
        """
        node = self._root
        for part in path:
            match node.value, part:
                case dict() as entries, str() if part in entries:
                    node = entries[part].node
                case list() as items, int() if 0 <= part < len(items):
                    node = items[part]
                case _:
                    raise KeyError(dotted(path))
        if not isinstance(node.value, dict):
            raise KeyError(dotted(path))
        return Document(file=self.file, index=self.index, data=node.plain(), _root=node)

    def position(self, path: Path) -> tuple[int, int]:
        """Return line and column (1-based) of the value at `path`: of its key for mappings, lists and what is empty.

        Where the path leads nowhere, its deepest part that exists counts, by its key: a missing key points at the
        mapping that lacks it.
        """
        node, place = self._root, (self._root.line, self._root.column)
        for depth, part in enumerate(path):
            match node.value, part:
                case dict() as entries, str() if part in entries:
                    entry: _Entry = entries[part]
                    node, place = entry.node, (entry.line, entry.column)
                case list() as items, int() if 0 <= part < len(items):
                    node, place = items[part], (items[part].line, items[part].column)
                case _:
                    return place
            if depth == len(path) - 1 and not isinstance(node.value, dict | list | None):
                return node.line, node.column
        return place

    def key_position(self, path: Path) -> tuple[int, int]:
        """Return line and column (1-based) of the key at the end of `path`; of the value where there is no key."""
        node = self._root
        for part in path[:-1]:
            match node.value, part:
                case dict() as entries, str() if part in entries:
                    node = entries[part].node
                case list() as items, int() if 0 <= part < len(items):
                    node = items[part]
                case _:
                    return self.position(path)
        if path and isinstance(node.value, dict) and path[-1] in node.value:
            entry: _Entry = node.value[path[-1]]
            return entry.line, entry.column
        return self.position(path)

    def fault(self, path: Path, message: str, hint: str = "") -> PolicyFault:
        """Make a fault that points at `path` in this document."""
        line, column = self.position(path)
        return PolicyFault(
            file=self.file, line=line, column=column, path=dotted(path), message=message, hint=hint
        )


def dotted(path: Path) -> str:
    """Write a path as people do: `spec.fleets[0].targetInFlight`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def load_documents(paths: Sequence[FilePath]) -> list[Document]:
    """Read YAML files, and the `*.yaml` and `*.yml` of directories (not of their sub-directories), in order.

    A file that is named twice is read once. Documents that hold nothing are skipped.

    Raises:
        PolicyError: with all faults of all files: unreadable or missing files, bad YAML, duplicate keys, tags, merge
            keys, files without any document, documents that aren't mappings.
    """
    documents: list[Document] = []
    faults: list[PolicyFault] = []
    seen: set[FilePath] = set()
    for path in paths:
        for file in _files(path, faults):
            identity = file.resolve()
            if identity not in seen:
                seen.add(identity)
                documents += _read(file, faults)
    if faults:
        raise PolicyError(tuple(faults))
    return documents


def parse_documents(text: str, file: str) -> list[Document]:
    """Read the documents of a text that is already at hand; `file` is what its faults call it.

    Raises:
        PolicyError: as `load_documents`.
    """
    faults: list[PolicyFault] = []
    documents = _documents(text, file, faults)
    if faults:
        raise PolicyError(tuple(faults))
    return documents


def _files(path: FilePath, faults: list[PolicyFault]) -> list[FilePath]:
    """Resolve what was named to files; a directory without YAML is a fault."""
    if not path.is_dir():
        return [path]
    try:
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.is_dir())
    except OSError as error:
        faults.append(_whole_file(path, f"can't be listed: {error.strerror or error}"))
        return []
    if not files:
        faults.append(
            _whole_file(path, "the directory holds no *.yaml file", "sub-directories are not searched")
        )
    return files


def _whole_file(
    path: FilePath, message: str, hint: str = "", *, line: int = 1, column: int = 1
) -> PolicyFault:
    return PolicyFault(file=str(path), line=line, column=column, path="", message=message, hint=hint)


def _read(path: FilePath, faults: list[PolicyFault]) -> list[Document]:
    """Read one file's documents; what is wrong goes to `faults`."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        faults.append(_whole_file(path, "no such file"))
        return []
    except OSError as error:
        faults.append(_whole_file(path, f"can't be read: {error.strerror or error}"))
        return []
    if len(raw) > MAX_BYTES:
        faults.append(
            _whole_file(
                path,
                f"is larger than {MAX_BYTES // 1024} KiB",
                "a policy file is a few KiB: is this the right file?",
            )
        )
        return []
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        message = f"is not UTF-8: byte 0x{error.object[error.start]:02x} can't be decoded"
        faults.append(
            _whole_file(path, message, "save the file with the encoding UTF-8", line=line, column=column)
        )
        return []
    return _documents(text, str(path), faults)


def _documents(text: str, file: str, faults: list[PolicyFault]) -> list[Document]:
    builder = _Builder(text, file)
    try:
        roots = list(builder.roots())
    except _GiveUp:
        roots = []
    faults += builder.faults
    if builder.faults:
        return []
    filled = [(index, root) for index, root in enumerate(roots) if root.value is not None]
    if not filled:
        hint = "write at least one document with apiVersion, kind, metadata and spec"
        faults.append(_whole_file(FilePath(file), "the file holds no document", hint))
    documents = []
    for index, root in filled:
        if isinstance(root.value, dict):
            documents.append(Document(file=file, index=index, data=root.plain(), _root=root))
        else:
            what = "a list" if isinstance(root.value, list) else "a single value"
            message = f"a document must be a mapping with apiVersion, kind, metadata and spec, is {what}"
            faults.append(_whole_file(FilePath(file), message, line=root.line, column=root.column))
    return documents


class _GiveUp(Exception):
    """What was found leaves nothing sensible to go on with; the faults say why."""


class _Builder:
    """Builds nodes from the parser's events, and collects what is wrong on the way."""

    def __init__(self, text: str, file: str) -> None:
        self.faults: list[PolicyFault] = []
        self._text = text
        self._file = file
        self._events: Iterator[Event] = YAML(typ="safe", pure=True).parse(text)
        self._last = (1, 1)
        self._anchors: dict[str, _Node | None] = {}  # None while the node is still open
        self._nodes = 0

    def roots(self) -> Iterator[_Node]:
        """Yield the root node of each document."""
        while (event := self._next()) is not None:
            if isinstance(event, DocumentStartEvent):
                self._anchors = {}
                if event.version not in {None, (1, 2)}:
                    self._fault(event, "YAML 1.1 is not read here", "remove the %YAML line")
            elif isinstance(event, NodeEvent):
                yield self._node(event, depth=1)

    def _next(self) -> Event | None:
        """Take the parser's next event; None at the end of the stream."""
        try:
            event = next(self._events, None)
        except MarkedYAMLError as error:
            raise self._syntax(error) from error
        except ReaderError as error:
            before = self._text[: error.position]
            place = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
            self._fault(place, f"the character U+{error.character:04X} is not allowed in YAML")
            raise _GiveUp from error
        except (
            Exception
        ) as error:  # on odd input the parser raises Overflow-, Value-, Attribute- and IndexError
            self._fault(self._last, f"is not valid YAML: {error}")
            raise _GiveUp from error
        if event is not None:
            self._last = _place(event)
        return event

    def _inner(self) -> Event:
        """Take the next event inside a collection, which the parser always closes."""
        event = self._next()
        assert event is not None
        return event

    def _node(self, event: Event, depth: int) -> _Node:
        """Build the node that `event` starts."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._fault(event, f"the file holds more than {MAX_NODES:,} values")
            raise _GiveUp
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        if depth > MAX_DEPTH:
            self._fault(event, f"is nested deeper than {MAX_DEPTH} levels")
            raise _GiveUp
        anchor = event.anchor if isinstance(event, NodeEvent) else None
        if anchor is not None:
            self._anchors[anchor] = None
        if (tag := _tag(event)) not in {None, "!"}:  # "!" says only "don't resolve it": text
            self._fault(event, f"the tag {tag} is not understood", "write the value without a tag")
        node = self._content(event, depth)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _content(self, event: Event, depth: int) -> _Node:
        line, column = _place(event)
        match event:
            case ScalarEvent():
                return _Node(line, column, self._scalar(event))
            case SequenceStartEvent():
                return self._weighed(_Node(line, column, self._items(depth)), event)
            case MappingStartEvent():
                return self._weighed(_Node(line, column, self._entries(depth)), event)
            case _:
                raise AssertionError(f"the parser has no other nodes: {event!r}")

    def _items(self, depth: int) -> list[_Node]:
        items = []
        while not isinstance(event := self._inner(), SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return items

    def _entries(self, depth: int) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        while not isinstance(event := self._inner(), MappingEndEvent):
            line, column = _place(event)
            key = self._node(event, depth + 1).value
            value = self._node(self._inner(), depth + 1)
            if not isinstance(key, str):
                self._fault(event, f"a key must be text, is {show(key)}", "put the key into quotes")
            elif key == "<<" and isinstance(event, ScalarEvent) and event.style is None:
                self._fault(event, "merge keys (<<) are no part of YAML 1.2", "write the keys out")
            elif key in entries:
                first = entries[key].line
                self._fault(
                    event, f"the key {show(key)} appears twice, first in line {first}", "keep one of the two"
                )
            else:
                entries[key] = _Entry(line, column, value)
        return entries

    def _alias(self, event: AliasEvent, depth: int) -> _Node:
        """Resolve an alias; what it expands to counts each time, so that a bomb is seen before it goes off."""
        name = event.anchor
        if name not in self._anchors:
            self._fault(event, f"the alias *{name} has no anchor &{name} before it")
            raise _GiveUp
        target = self._anchors[name]
        if target is None:
            self._fault(event, f"the alias *{name} stands inside what it names")
            raise _GiveUp
        if depth + target.height > MAX_DEPTH:
            self._fault(event, f"is nested deeper than {MAX_DEPTH} levels")
            raise _GiveUp
        return target

    def _weighed(self, node: _Node, event: NodeEvent) -> _Node:
        """Add up what a collection expands to."""
        children = (
            [entry.node for entry in node.value.values()] if isinstance(node.value, dict) else node.value
        )
        node.weight = 1 + sum(child.weight for child in children)
        node.height = 1 + max((child.height for child in children), default=0)
        if node.weight > MAX_NODES:
            self._fault(
                event, f"its aliases expand to more than {MAX_NODES:,} values", "write the values out"
            )
            raise _GiveUp
        return node

    def _scalar(self, event: ScalarEvent) -> Any:  # noqa: ANN401 - a YAML value may be anything
        """Resolve a scalar by the core schema; what is quoted is text."""
        text = str(event.value)
        if _SURROGATE.search(text):
            self._fault(
                event, "holds half of a surrogate pair", "write the character itself, or its \\U escape"
            )
        if event.style is not None or _tag(event) is not None:
            return text
        if len(text) > _LONGEST_INTEGER and any(
            form.fullmatch(text) for form in (_DECIMAL, _OCTAL, _HEXADECIMAL)
        ):
            self._fault(event, f"the number has more than {_LONGEST_INTEGER} digits")
            return text
        return _resolve(text)

    def _syntax(self, error: MarkedYAMLError) -> _GiveUp:
        """Turn the parser's error into a fault in plain words."""
        problem = error.problem or "it ends too early"
        mark = error.problem_mark or error.context_mark
        if "end of stream" in problem or "stream end" in problem:
            mark = error.context_mark or mark  # where the bracket or quote was opened
        place = (mark.line + 1, mark.column + 1) if mark else self._last
        message, hint = f"is not valid YAML: {problem}", ""
        for sign, plain, mend in _SYNTAX:
            if sign in problem:
                message, hint = plain or message, mend
                break
        self._fault(place, message, hint)
        return _GiveUp()

    def _fault(self, where: Event | tuple[int, int], message: str, hint: str = "") -> None:
        line, column = where if isinstance(where, tuple) else _place(where)
        fault = PolicyFault(file=self._file, line=line, column=column, path="", message=message, hint=hint)
        self.faults.append(fault)


_SYNTAX: Final = (
    (
        "'\\t'",
        "a tab can't be used for indentation",
        "indent with spaces",
    ),
    (
        "mapping values are not allowed",
        "",
        "a text that contains `: ` must be in quotes; else check the indentation of this line",
    ),
    ("expected <block end>", "", "check the indentation of this line and the one before it"),
    ("could not find expected ':'", "", "a key is followed by a colon and a space"),
    ("stream end", "", "close the bracket or brace that opens here"),
    ("end of stream", "a quote is not closed", "close the quote that opens here"),
)
"""Signs in the parser's wording, what to say instead (empty: keep it), and the mend."""


def _tag(event: Event) -> str | None:
    tag = getattr(event, "ctag", None)  # on scalars and the starts of collections
    return None if tag is None else str(tag)


def _place(event: Event) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _resolve(text: str) -> str | int | float | bool | None:
    """Give a plain scalar its value by the core schema."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        return int(text, base=0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def show(value: object) -> str:
    """Show a value from a file as its author would know it; long ones are cut."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true" if value else "false"
        case str():
            short = value if len(value) <= 60 else value[:57] + "…"  # noqa: PLR2004 - what fits a line
            return '"' + short.replace("\n", "\\n") + '"'
        case dict() | list():
            kind = "mapping" if isinstance(value, dict) else "list"
            return f"a {kind}" if value else f"an empty {kind}"
        case _:
            return str(value)
