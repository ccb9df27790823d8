"""YAML documents whose every value knows its place, and faults that point there.

The reader takes ruamel's events and builds plain data from them itself, by the core schema of YAML 1.2: that gives a
position for each value, all duplicate keys at once, and a bound on what anchors can expand to before anything is
expanded. What YAML 1.1 guessed (`on` as true, `1:30` as ninety) stays text here.
"""

import re
from bisect import bisect_right
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
from scaler.policy.files import Found, decode, file_fault, find_files, read_bytes

Path: TypeAlias = tuple[str | int, ...]
"""A place in a document: keys and list indices from its root."""

MAX_NODES: Final = 100_000
"""Values in one file, with aliases counted as often as they are used: more than the largest file holds as people write
policies, which is about 90,000, and far below a bomb."""
MAX_LINE: Final = 1 << 17
"""Characters in one line: more than any policy written as JSON in one line has; the parser's time for some of what can
stand in a line grows with the square of its length."""
MAX_FAULTS: Final = 100
"""Faults of one file or document that are told; whoever has more has one fault of another kind."""
MAX_DEPTH: Final = 50
"""Levels of nesting; the deepest format here needs eight."""

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
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_PLAIN_TEXT = re.compile(r"(?:(?! #|,\s)[^\[\]{}\r\n])+")
_HEAD = frozenset({"apiVersion", "kind"})
"""What every document begins with, so that one that repeats it is two."""
_RENDER_FIRST = "is this a template? Render it first, as `helm template` does"
_UNSEEN = re.compile("[\x85\u2028\u2029\ufeff]")
"""YAML 1.2 takes them for letters, many parsers for line breaks or for nothing, and nobody sees them."""


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


@dataclass(slots=True)
class _Node:
    """One value with its place; `weight` and `height` count what it expands to, `text` is a number as it was written."""

    line: int
    column: int
    value: Any
    weight: int = 1
    height: int = 1
    text: str = ""

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
        node = self._at(path)
        if node is None or not isinstance(node.value, dict):
            raise KeyError(dotted(path))
        return Document(file=self.file, index=self.index, data=node.plain(), _root=node)

    def position(self, path: Path) -> tuple[int, int]:
        """Return line and column (1-based) of the value at `path`: of its key for mappings, lists and what is empty.

        Where the path leads nowhere, its deepest part that exists counts, by its key: a missing key points at the
        mapping that lacks it.
        """
        node, place = self._root, (self._root.line, self._root.column)
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
            entry: _Entry = parent.value[path[-1]]
            return entry.line, entry.column
        return self.position(path)

    def written(self, path: Path) -> str:
        """Return a number, a boolean or null as it is written in the file; empty for anything else."""
        node = self._at(path)
        return "" if node is None else node.text

    def _at(self, path: Path) -> _Node | None:
        node: _Node | None = self._root
        for part in path:
            node = None if node is None else _inside(node, part)
        return node

    def fault(self, path: Path, message: str, hint: str = "") -> PolicyFault:
        """Make a fault that points at `path` in this document."""
        line, column = self.position(path)
        return PolicyFault(
            file=self.file, line=line, column=column, path=dotted(path), message=message, hint=hint
        )


def _inside(node: _Node, part: str | int) -> _Node | None:
    """Return the value under a key or an index, or None."""
    match node.value, part:
        case dict() as entries, str() if part in entries:
            entry: _Entry = entries[part]
            return entry.node
        case list() as items, int() if 0 <= part < len(items):
            item: _Node = items[part]
            return item
        case _:
            return None


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
    for found in find_files(paths):
        try:
            documents += _documents_at(found)
        except PolicyError as error:
            faults += error.faults
    if faults:
        raise PolicyError(tuple(faults))
    return documents


def _documents_at(found: Found | PolicyFault) -> list[Document]:
    if isinstance(found, PolicyFault):
        raise PolicyError((found,))
    return documents_of(read_bytes(found.path), str(found.path))


def documents_of(raw: bytes, file: str) -> list[Document]:
    """Read the documents of a file's bytes; `file` is what its faults call it.

    Raises:
        PolicyError: as `load_documents`.
    """
    return parse_documents(decode(raw, file), file)


def parse_documents(text: str, file: str) -> list[Document]:
    """Read the documents of a text that is already at hand; `file` is what its faults call it.

    Raises:
        PolicyError: as `load_documents`.
    """
    builder = _Builder(text, file)
    try:
        roots = list(builder.roots())
    except _GiveUp:
        roots = []
    if builder.faults:
        raise PolicyError(tuple(builder.faults))
    filled = [(index, root) for index, root in enumerate(roots) if root.value is not None]
    if not filled:
        hint = "write at least one document with apiVersion, kind, metadata and spec"
        raise PolicyError((file_fault(file, "the file holds no document", hint),))
    faults = [_no_mapping(file, root) for _, root in filled if not isinstance(root.value, dict)]
    if faults:
        raise PolicyError(tuple(faults))
    return [Document(file=file, index=index, data=root.plain(), _root=root) for index, root in filled]


def _no_mapping(file: str, root: _Node) -> PolicyFault:
    what = "a list" if isinstance(root.value, list) else "a single value"
    message = f"a document must be a mapping with apiVersion, kind, metadata and spec, is {what}"
    return file_fault(file, message, line=root.line, column=root.column)


class _GiveUp(Exception):
    """What was found leaves nothing sensible to go on with; the faults say why."""


class _Lines:
    """The lines of a text as editors count them: broken by line feed, carriage return, or both."""

    def __init__(self, text: str) -> None:
        self._all = text
        breaks = [match.span() for match in _LINE_BREAK.finditer(text)]
        self._starts = [0, *(end for _, end in breaks)]
        self._ends = [*(start for start, _ in breaks), len(text)]
        if breaks and self._starts[-1] == len(text):  # behind the last line break there is no line
            del self._starts[-1], self._ends[-1]

    def too_long(self) -> int | None:
        """Return the first line that is longer than `MAX_LINE`, or None."""
        lengths = zip(self._starts, self._ends, strict=True)
        return next((line for line, (start, end) in enumerate(lengths, 1) if end - start > MAX_LINE), None)

    def text(self, line: int) -> str:
        """Return a line (1-based) without its end; empty where there is none."""
        if not 1 <= line <= len(self._starts):
            return ""
        return self._all[self._starts[line - 1] : self._ends[line - 1]]

    def place(self, index: int) -> tuple[int, int]:
        """Return line and column (1-based) of a character; the end of the text is behind its last line."""
        line = bisect_right(self._starts, index)
        return line, min(index, self._ends[line - 1]) - self._starts[line - 1] + 1


class _Builder:
    """Builds nodes from the parser's events, and collects what is wrong on the way."""

    def __init__(self, text: str, file: str) -> None:
        self.faults: list[PolicyFault] = []
        self._file = file
        self._text = text
        self._lines = _Lines(text)
        self._events: Iterator[Event] = YAML(typ="safe", pure=True).parse(text)
        self._last = (1, 1)
        self._anchors: dict[str, _Node | None] = {}  # None while the node is still open
        self._nodes = 0

    def roots(self) -> Iterator[_Node]:
        """Yield the root node of each document."""
        if (line := self._lines.too_long()) is not None:
            hint = "is this the right file? If it is JSON, write it in several lines"
            self._fault((line, 1), f"the line is longer than {MAX_LINE:,} characters", hint)
            raise _GiveUp
        if (
            unseen := _UNSEEN.search(self._text, 1)
        ) is not None:  # as the first character it is a byte order mark
            name = f"U+{ord(unseen[0]):04X}"
            hint = "remove it; if it is meant, write it as an escape between double quotes"
            self._fault(self._lines.place(unseen.start()), f"holds the invisible character {name}", hint)
            raise _GiveUp
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
            place = self._lines.place(error.position)
            hint = "" if error.character else "is the file UTF-16? Save it with the encoding UTF-8"
            self._fault(place, f"the character U+{error.character:04X} is not allowed in YAML", hint)
            raise _GiveUp from error
        except (
            Exception
        ) as error:  # on odd input the parser raises Overflow-, Value-, Attribute- and IndexError
            self._fault(self._last, f"is not valid YAML: {error}")
            raise _GiveUp from error
        if event is not None:
            self._last = self._place(event)
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
        line, column = self._place(event)
        match event:
            case ScalarEvent():
                value = self._scalar(event)
                return _Node(line, column, value, text="" if isinstance(value, str) else str(event.value))
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
        swallowed = (
            ""  # the key with which further documents begin that no line of dashes parts from this one
        )
        while not isinstance(event := self._inner(), MappingEndEvent):
            line, column = self._place(event)
            key = self._node(event, depth + 1).value
            value = self._node(self._inner(), depth + 1)
            if not isinstance(key, str):
                self._fault(event, f"a key must be text, is {show(key)}", self._mend_of_key(event, key))
            elif key == "<<" and isinstance(event, ScalarEvent) and event.style is None:
                self._fault(event, "merge keys (<<) are no part of YAML 1.2", "write the keys out")
            elif key not in entries:
                entries[key] = _Entry(line, column, value)
            elif depth > 1 or not (swallowed or key in _HEAD):
                first = entries[key].line
                self._fault(
                    event, f"the key {show(key)} appears twice, first in line {first}", "keep one of the two"
                )
            elif key == swallowed or not swallowed:
                swallowed = key
                message = f"a second document begins inside the one of line {entries[key].line}: {key} appears twice"
                self._fault(event, message, "is a line with --- missing before it?")
        return entries

    def _mend_of_key(self, event: Event, key: object) -> str:
        if self._text.startswith("{{", max(0, event.start_mark.index - 1)):
            return _RENDER_FIRST
        if key is None:
            return "write a name before the colon"
        return "a key is a single word" if isinstance(key, dict | list) else "put the key into quotes"

    def _alias(self, event: AliasEvent, depth: int) -> _Node:
        """Resolve an alias; what it expands to counts each time, so that a bomb is seen before it goes off."""
        name = event.anchor
        if name not in self._anchors:
            hint = f"a text that begins with * must be in quotes: {self._quoted(event)}"
            self._fault(event, f"the alias *{name} has no anchor &{name} before it", hint)
            raise _GiveUp
        target = self._anchors[name]
        if target is None:
            self._fault(event, f"the alias *{name} stands inside what it names")
            raise _GiveUp
        if depth + target.height > MAX_DEPTH:
            self._fault(event, f"is nested deeper than {MAX_DEPTH} levels")
            raise _GiveUp
        return target

    def _quoted(self, event: AliasEvent) -> str:
        """Return the text that was probably meant, in quotes: to where a comment, a comma or a bracket ends it."""
        begin = event.start_mark.index
        meant = _PLAIN_TEXT.match(self._text, begin)
        return f'"{meant[0].rstrip() if meant else "*"}"'

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
        place = self._lines.place(mark.index) if mark else self._last
        plain_problem = problem.replace(repr("\0"), _END).replace("'<stream end>'", _END)
        message, hint = f"is not valid YAML: {plain_problem}", ""
        if "'\\t'" in problem and mark:
            return self._tab(mark.index, place)
        for sign, plain, mend in _SYNTAX:
            if sign in problem:
                message, hint = plain or message, mend
                break
        hint = _RENDER_FIRST if self._in_template(place[0], mark.line if mark else 0) else hint
        self._fault(place, message, hint)
        return _GiveUp()

    def _in_template(self, *lines: int) -> bool:
        """Whether one of some lines (1-based) has the marks of a template."""
        texts = (self._lines.text(line) for line in lines)
        return any(mark in text for text in texts for mark in ("{{", "{%"))

    def _tab(self, index: int, place: tuple[int, int]) -> _GiveUp:
        indents = not self._text[index - place[1] + 1 : index].strip()
        message = "a tab can't be used for indentation" if indents else "a tab can't stand here"
        self._fault(place, message, "indent with spaces" if indents else "write a space")
        return _GiveUp()

    def _fault(self, where: Event | tuple[int, int], message: str, hint: str = "") -> None:
        line, column = where if isinstance(where, tuple) else self._place(where)
        self.faults.append(file_fault(self._file, message, hint, line=line, column=column))
        if len(self.faults) >= MAX_FAULTS:
            raise _GiveUp

    def _place(self, event: Event) -> tuple[int, int]:
        return self._lines.place(event.start_mark.index)


_END: Final = "the end of the file"
_SYNTAX: Final = (
    (
        "mapping values are not allowed",
        "",
        "a text that contains `: ` must be in quotes; else check the indentation of this line",
    ),
    ("expected <block end>", "", "check the indentation of this line and the one before it"),
    ("could not find expected ':'", "", "a key is followed by a colon and a space"),
    ("stream end", "", "close the bracket or brace that opens here"),
    ("end of stream", "a quote is not closed", "close the quote that opens here"),
    (
        "expected alphabetic or numeric character",
        "",
        "a text that begins with * or & must be in quotes",
    ),
    (
        "that cannot start any token",
        "",
        "a text that begins with this character must be in quotes",
    ),
)
"""Signs in the parser's wording, what to say instead (empty: keep it), and the mend."""


def _tag(event: Event) -> str | None:
    tag = getattr(event, "ctag", None)  # on scalars and the starts of collections
    return None if tag is None else str(tag)


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
