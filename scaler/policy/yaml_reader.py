"""YAML text to values that know their place: every fault that is found on the way, and all that can be read beside it.

The reader takes ruamel's events and builds values from them itself, by the core schema of YAML 1.2: that gives a
position for each value, all duplicate keys at once, and a bound on what anchors can expand to before anything is
expanded. What YAML 1.1 guessed (`on` as true, `1:30` as ninety) stays text here.

A document that is no YAML says nothing of the next: reading goes on behind the next line of dashes. And a text that only
lacks its quotes (`start: */5 * * * *`) is read as if it had them, so that the rest of its document is looked at, too.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import FileMark, MarkedYAMLError
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
from ruamel.yaml.parser import Parser
from ruamel.yaml.reader import Reader
from ruamel.yaml.scanner import Scanner
from ruamel.yaml.tokens import Token

from scaler.errors import PolicyFault
from scaler.policy.files import MAX_FAULTS, MoreFaults, file_fault
from scaler.policy.visible import UNSEEN, escaped, may_stand, said_of

MAX_NODES: Final = 100_000
"""Values in one file, with aliases counted as often as they are used: more than the largest file holds as people write
policies, which is about 90,000, and far below a bomb."""
MAX_LINE: Final = 1 << 17
"""Characters in one line: more than any policy written as JSON in one line has; the parser's time for some of what can
stand in a line grows with the square of its length."""
MAX_DEPTH: Final = 50
"""Levels of nesting; the deepest format here needs eight."""

_MOST_READ_AGAIN: Final = 1 << 17
"""Characters of a file that are read a second time, because a text before them lacked its quotes: a third of a second."""

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
_DASHES = re.compile(r"(?:(?<=\n)|(?<=\r)|\A)---(?=\s|\Z)")
"""The line that ends a document and begins another, whatever either holds (section 9.1.2)."""
_PLAIN_TEXT = re.compile(r"(?:(?! #|,\s)[^\[\]{}\r\n])+")
_BEFORE_VALUE = re.compile(r"(?:[:\-]\s+|[\[,]\s*)\Z")
_HEAD = frozenset({"apiVersion", "kind"})
"""What every document begins with, so that one that repeats it is two."""
_RENDER_FIRST = "is this a template? Render it first, as `helm template` does"
_BYTE_ORDER_MARK = "\ufeff"
"""What it is as the first character."""
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What YAML 1.2.2 doesn't allow anywhere (section 5.1)."""


@dataclass(slots=True)
class Node:
    """One value with its place.

    Attributes:
        line, column: where it stands (1-based).
        value: a scalar, a list of nodes, or a dict of entries.
        weight: values that it expands to.
        height: levels of nesting of what it expands to.
        text: a number, a boolean or null as it was written.
        doubtful: something was said of it when it was read. Of a mapping: there may be keys that it doesn't have here.
    """

    line: int
    column: int
    value: Any
    weight: int = 1
    height: int = 1
    text: str = ""
    doubtful: bool = False

    def plain(self) -> Any:  # noqa: ANN401 - a YAML value may be anything
        """Build the plain tree of dicts, lists and scalars."""
        match self.value:
            case dict():
                return {key: entry.node.plain() for key, entry in self.value.items()}
            case list():
                return [node.plain() for node in self.value]
            case scalar:
                return scalar


@dataclass(slots=True)
class Entry:
    """A value under a key.

    Attributes:
        line, column: where the key stands (1-based).
        node: the value.
        repeated: the key is there twice, and this is the first.
    """

    line: int
    column: int
    node: Node
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Roots:
    """What a text holds.

    Attributes:
        nodes: the root of each document that could be read; empty documents are among them.
        faults: what is wrong with the text.
        whole: whether each document that there is could be read.
    """

    nodes: Sequence[Node]
    faults: Sequence[PolicyFault]
    whole: bool


def read_roots(text: str, file: str) -> Roots:
    """Read what a text holds; never raises.

    Args:
        text: the text.
        file: what faults call it.
    """
    builder = _Builder(text, file)
    builder.read()
    return Roots(builder.roots, builder.faults, builder.whole)


class _Scanner(Scanner):
    """The library's scanner, without what it asks anew for each character and token: together a third of its time.

    Where no key can begin there is none to be given up, and no token to be held back for it.
    """

    @cached_property
    def reader(self) -> Any:  # noqa: ANN401 - the library says no more
        """What the text is read from."""
        return self.loader.reader

    def check_token(self, *choices: type[Token]) -> bool:
        """Whether the next token is one of these kinds, or there is one at all."""
        while self.need_more_tokens():
            self.fetch_more_tokens()
        return bool(self.tokens) and (not choices or isinstance(self.tokens[0], choices))

    def need_more_tokens(self) -> bool:
        """Whether the next token can't be told yet."""
        if self.tokens and not self.possible_simple_keys:
            return False
        return bool(super().need_more_tokens())

    def stale_possible_simple_keys(self) -> None:
        """Give up what can't be a key any more."""
        if self.possible_simple_keys:
            super().stale_possible_simple_keys()


class _Reader(Reader):
    """The library's reader, likewise: five places are noted for each value, and each is asked for its number alone."""

    def get_mark(self) -> FileMark:
        """Return the place that reading has come to."""
        return FileMark(self.name, self.index, self.line, self.column)


class _Parser(Parser):
    """The library's parser, likewise."""

    @cached_property
    def scanner(self) -> Any:  # noqa: ANN401 - the library says no more
        """Where the tokens come from."""
        return self.loader.scanner


class _GiveUp(Exception):
    """The file leaves nothing sensible to go on with; the faults say why."""


class _Unreadable(Exception):
    """The document leaves nothing sensible to go on with; the faults say why.

    Attributes:
        index: how far reading came.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Unquoted(Exception):
    """A text lacks its quotes.

    Attributes:
        begin, end: where it stands.
        message, hint: what to say of it.
    """

    def __init__(self, begin: int, end: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.begin, self.end, self.message, self.hint = begin, end, message, hint


class _Lines:
    """The lines of a text as editors count them: broken by line feed, carriage return, or both."""

    def __init__(self, text: str) -> None:
        self._all = text
        breaks = [match.span() for match in _LINE_BREAK.finditer(text)]
        self._starts = [0, *(end for _, end in breaks)]
        self._ends = [*(start for start, _ in breaks), len(text)]
        if breaks and self._starts[-1] == len(text):  # behind the last line break there is no line
            del self._starts[-1], self._ends[-1]

    def too_long(self) -> list[int]:
        """List the lines that are longer than `MAX_LINE`."""
        lengths = zip(self._starts, self._ends, strict=True)
        return [line for line, (start, end) in enumerate(lengths, 1) if end - start > MAX_LINE]

    def text(self, line: int) -> str:
        """Return a line (1-based) without its end; empty where there is none."""
        if not 1 <= line <= len(self._starts):
            return ""
        return self._all[self._starts[line - 1] : self._ends[line - 1]]

    def place(self, index: int) -> tuple[int, int]:
        """Return line and column (1-based) of a character; the end of the text is behind its last line."""
        line = bisect_right(self._starts, index)
        return line, min(index, self._ends[line - 1]) - self._starts[line - 1] + 1


@dataclass(slots=True)
class _Began:
    """Where a document began, to come back to.

    Attributes:
        index: its first character.
        faults, roots, nodes: how many there were.
    """

    index: int = 0
    faults: int = 0
    roots: int = 0
    nodes: int = 0


class _Builder:
    """Builds nodes from the parser's events, and collects what is wrong on the way."""

    def __init__(self, text: str, file: str) -> None:
        self.roots: list[Node] = []
        self.faults: list[PolicyFault] = []
        self.whole = True
        self._file = file
        self._text = text
        self._lines = _Lines(text)
        self._source = text  # what the parser gets: the text, with quotes where they were forgotten
        self._unquoted: dict[int, str] = {}  # those texts by where they begin
        self._read_again = 0
        self._base = self._last = 0
        self._began = _Began()
        self._events: Iterator[Event] = iter(())
        self._anchors: dict[str, Node | None] = {}  # None while the node is still open
        self._nodes = 0

    def read(self) -> None:
        """Read all documents."""
        try:
            self._check_characters()
            begin: int | None = 0
            while begin is not None:
                begin = self._read_from(begin)
        except _GiveUp:
            self.whole = False

    def _check_characters(self) -> None:
        """Look for what keeps a file from being read at all."""
        before = len(self.faults)
        for line in self._lines.too_long():
            hint = "is this the right file? If it is JSON, write it in several lines"
            self._fault((line, 1), f"the line is longer than {MAX_LINE:,} characters", hint)
        for unseen in UNSEEN.finditer(self._text):
            line, column = self._lines.place(unseen.start())
            head = self._lines.text(line)[: column - 1]
            if not may_stand(unseen[0], head) and (unseen.start() or unseen[0] != _BYTE_ORDER_MARK):
                self._fault((line, column), *said_of(unseen[0], head))
        for found in _NOT_ALLOWED.finditer(self._text):
            hint = "" if ord(found[0]) else "is the file UTF-16? Save it with the encoding UTF-8"
            self._fault(found.start(), f"the character U+{ord(found[0]):04X} is not allowed in YAML", hint)
            if hint:  # then there is one in each place
                break
        if len(self.faults) > before:
            raise _GiveUp

    def _read_from(self, begin: int) -> int | None:
        """Read documents until one can't be read as it is; return where to go on, None at the end."""
        self._base = self._last = begin
        yaml = YAML(typ="safe", pure=True)
        yaml.Parser, yaml.Scanner, yaml.Reader = _Parser, _Scanner, _Reader
        self._events = yaml.parse(self._source[begin:])
        try:
            while (event := self._next()) is not None:
                if isinstance(event, DocumentStartEvent):
                    self._begin_document(event)
                elif isinstance(event, NodeEvent):
                    self.roots += self._documents(event)
        except _Unquoted as found:
            return self._quote(found)
        except _Unreadable as lost:
            return self._skip(lost.index)
        return None

    def _begin_document(self, event: DocumentStartEvent) -> None:
        self._anchors = {}
        if event.version not in {None, (1, 2)}:
            self._fault(event, "YAML 1.1 is not read here", "remove the %YAML line")
        self._began = _Began(self._index(event), len(self.faults), len(self.roots), self._nodes)

    def _skip(self, index: int) -> int | None:
        """Return where the next document begins; None if there is none."""
        self.whole = False
        found = _DASHES.search(self._source, max(index, self._began.index + 1, self._base + 1))
        return None if found is None else found.start()

    def _quote(self, found: _Unquoted) -> int | None:
        """Put a text into quotes and go back to the beginning of its document, unless too much is read again by then."""
        self._read_again += found.end - self._began.index
        if self._read_again > _MOST_READ_AGAIN:
            self._fault(found.begin, found.message, found.hint)
            return self._skip(found.end)
        del self.faults[self._began.faults :], self.roots[self._began.roots :]
        self._nodes = self._began.nodes
        self._fault(found.begin, found.message, found.hint)
        length = found.end - found.begin
        self._unquoted[found.begin] = self._text[found.begin : found.end]
        stand_in = "x" if length == 1 else f'"{"x" * (length - 2)}"'
        self._source = self._source[: found.begin] + stand_in + self._source[found.end :]
        return self._began.index

    def _next(self) -> Event | None:
        """Take the parser's next event; None at the end of the stream."""
        try:
            event = next(self._events, None)
        except MarkedYAMLError as error:
            raise self._syntax(error) from error
        except (
            Exception
        ) as error:  # on odd input the parser raises Overflow-, Value-, Attribute- and IndexError
            self._fault(self._last, f"is not valid YAML: {error}")
            raise _Unreadable(self._last) from error
        if event is not None:
            self._last = self._index(event)
        return event

    def _inner(self) -> Event:
        """Take the next event inside a collection, which the parser always closes."""
        event = self._next()
        assert event is not None
        return event

    def _documents(self, event: NodeEvent) -> list[Node]:
        """Build what a root node holds: one document, or several that no line of dashes parts."""
        if isinstance(event, MappingStartEvent) and event.anchor is None and _tag(event) is None:
            self._nodes += 1
            return self._mappings(event)
        return [self._node(event, depth=1)]

    def _node(self, event: Event, depth: int) -> Node:
        """Build the node that `event` starts."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self._fault(event, f"the file holds more than {MAX_NODES:,} values")
            raise _GiveUp
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        if depth > MAX_DEPTH:
            self._fault(event, f"is nested deeper than {MAX_DEPTH} levels")
            raise _Unreadable(self._last)
        anchor = event.anchor if isinstance(event, NodeEvent) else None
        if anchor is not None:
            self._anchors[anchor] = None
        node = self._content(event, depth)
        if (tag := _tag(event)) not in {None, "!"}:  # "!" says only "don't resolve it": text
            self._fault(event, f"the tag {tag} is not understood", "write the value without a tag")
            node.doubtful = True
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _content(self, event: Event, depth: int) -> Node:
        match event:
            case ScalarEvent():
                return self._scalar(event)
            case SequenceStartEvent():
                items = list(self._items(depth))
                return self._weighed(Node(*self._place(event), items), event)
            case MappingStartEvent():
                node = Node(*self._place(event), {})
                for key, entry in self._entries(depth, node):
                    self._add(node, key, entry)
                return self._weighed(node, event)
            case _:
                raise AssertionError(f"the parser has no other nodes: {event!r}")

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := self._inner(), SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _entries(self, depth: int, mapping: Node) -> Iterator[tuple[str, Entry]]:
        """Yield the entries up to the end of a mapping; where one can't be one, the mapping becomes doubtful."""
        while not isinstance(event := self._inner(), MappingEndEvent):
            place = self._place(event)
            key = self._node(event, depth + 1)
            value = self._node(self._inner(), depth + 1)
            if key.doubtful:
                mapping.doubtful = True
            elif not isinstance(key.value, str):
                self._fault(
                    event, f"a key must be text, is {show(key.value)}", self._mend_of_key(event, key.value)
                )
                mapping.doubtful = True
            elif key.value == "<<" and isinstance(event, ScalarEvent) and event.style is None:
                self._fault(event, "merge keys (<<) are no part of YAML 1.2", "write the keys out")
                mapping.doubtful = True
            else:
                yield key.value, Entry(*place, value)

    def _add(self, node: Node, key: str, entry: Entry) -> None:
        """Give a mapping an entry; of a key that is there twice the first counts."""
        first = node.value.setdefault(key, entry)
        if first is not entry:
            first.repeated = True
            message = f"the key {show(key)} appears twice, first in line {first.line}"
            self._fault((entry.line, entry.column), message, "keep one of the two")

    def _mappings(self, event: MappingStartEvent) -> list[Node]:
        """Build a root mapping; where its head is repeated, another document begins."""
        whole = Node(*self._place(event), {})
        parts = [whole]
        for key, entry in self._entries(1, whole):
            here = parts[-1]
            if key in _HEAD and key in here.value:
                here = Node(entry.line, entry.column, {})
                parts.append(here)
            self._add(here, key, entry)
        if whole.doubtful:
            for part in parts:
                part.doubtful = True
        return [self._weighed(node, event) for node in self._told_apart(parts)]

    def _told_apart(self, parts: Sequence[Node]) -> Iterator[Node]:
        """Yield the documents among the parts of a root mapping: a part with nothing but a key again is none."""
        document = parts[0]
        for part in parts[1:]:
            if len(part.value.keys() & document.value.keys()) > 1:
                key = next(iter(part.value))
                line = (parts[0].value.get(key) or document.value[key]).line
                message = f"a second document begins inside the one of line {line}: {key} appears twice"
                self._fault((part.line, part.column), message, "is a line with --- missing before it?")
                yield document
                document = part
            else:
                for key, entry in part.value.items():
                    self._add(document, key, entry)
        yield document

    def _mend_of_key(self, event: Event, key: object) -> str:
        if self._text.startswith("{{", max(0, self._index(event) - 1)):
            return _RENDER_FIRST
        if key is None:
            return "write a name before the colon"
        return "a key is a single word" if isinstance(key, dict | list) else "put the key into quotes"

    def _alias(self, event: AliasEvent, depth: int) -> Node:
        """Resolve an alias; what it expands to counts each time, so that a bomb is seen before it goes off."""
        name = event.anchor
        if name not in self._anchors:
            begin = self._index(event)
            end = self._end_of_text(begin)
            meant = self._text[begin:end] or "*"
            message = f"the alias *{name} has no anchor &{name} before it"
            hint = f'a text that begins with * must be in quotes: "{meant}"'
            if meant != f"*{name}":
                raise self._unquoted_at(begin, message, hint)
            return self._doubtful(event, message, hint)
        target = self._anchors[name]
        if target is None:
            return self._doubtful(event, f"the alias *{name} stands inside what it names")
        if depth + target.height > MAX_DEPTH:
            return self._doubtful(event, f"is nested deeper than {MAX_DEPTH} levels")
        return target

    def _doubtful(self, event: Event, message: str, hint: str = "") -> Node:
        """Say what is wrong with a value, and stand in for it."""
        self._fault(event, message, hint)
        return Node(*self._place(event), None, doubtful=True)

    def _end_of_text(self, begin: int) -> int:
        """Return where a text ends that was meant to begin somewhere: at a comment, a comma or a bracket."""
        found = _PLAIN_TEXT.match(self._text, begin)
        return begin if found is None else begin + len(found[0].rstrip())

    def _unquoted_at(self, begin: int, message: str, hint: str) -> _Unquoted | _Unreadable:
        """Tell of a text that lacks its quotes; where it stands for a value, the rest can be read in spite of it."""
        end = self._end_of_text(begin)
        meant = self._text[begin:end]
        before = self._text[max(0, begin - 20) : begin]
        if meant and ": " not in meant and not meant.endswith(":") and _BEFORE_VALUE.search(before):
            return _Unquoted(begin, end, message, hint)
        self._fault(begin, message, hint)
        return _Unreadable(begin)

    def _weighed(self, node: Node, event: NodeEvent) -> Node:
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

    def _scalar(self, event: ScalarEvent) -> Node:
        """Resolve a scalar by the core schema; what is quoted is text."""
        text = str(event.value)
        node = Node(*self._place(event), text)
        if (meant := self._unquoted.get(self._index(event))) is not None:
            node.value, node.doubtful = meant, True
            return node
        if _SURROGATE.search(text):
            hint = "write the character itself, or its \\U escape"
            self._fault(event, "holds half of a surrogate pair", hint)
            node.value, node.doubtful = _SURROGATE.sub("\ufffd", text), True
            return node
        if event.style is not None or _tag(event) is not None:
            return node
        if len(text) > _LONGEST_INTEGER and any(
            form.fullmatch(text) for form in (_DECIMAL, _OCTAL, _HEXADECIMAL)
        ):
            self._fault(event, f"the number has more than {_LONGEST_INTEGER} digits")
            node.doubtful = True
            return node
        node.value = _resolve(text)
        node.text = "" if isinstance(node.value, str) else text
        return node

    def _syntax(self, error: MarkedYAMLError) -> Exception:
        """Turn the parser's error into a fault in plain words."""
        problem = error.problem or "it ends too early"
        mark = error.problem_mark or error.context_mark
        reached = self._last if mark is None else self._base + mark.index
        if "end of stream" in problem or "stream end" in problem:
            mark = error.context_mark or mark  # where the bracket or quote was opened
        index = self._last if mark is None else self._base + mark.index
        if "'\\t'" in problem and mark:
            return self._tab(index)
        plain_problem = problem.replace(repr("\0"), _END).replace("'<stream end>'", _END)
        message, hint = f"is not valid YAML: {plain_problem}", ""
        for sign, plain, mend in _SYNTAX:
            if sign in problem:
                message, hint = plain or message, mend
                break
        if self._in_template(index, reached):
            hint = _RENDER_FIRST
        elif hint in _UNQUOTED:
            begun = index if error.context_mark is None else self._base + error.context_mark.index
            if self._text[begun : begun + 1] in _INDICATORS:
                return self._unquoted_at(begun, message, hint)
        self._fault(index, message, hint)
        return _Unreadable(reached)

    def _in_template(self, *indices: int) -> bool:
        """Whether the line of one of some characters has the marks of a template."""
        texts = (self._lines.text(self._lines.place(index)[0]) for index in indices)
        return any(mark in text for text in texts for mark in ("{{", "{%"))

    def _tab(self, index: int) -> _Unreadable:
        column = self._lines.place(index)[1]
        indents = not self._text[index - column + 1 : index].strip()
        message = "a tab can't be used for indentation" if indents else "a tab can't stand here"
        self._fault(index, message, "indent with spaces" if indents else "write a space")
        return _Unreadable(index)

    def _fault(self, where: Event | int | tuple[int, int], message: str, hint: str = "") -> None:
        if len(self.faults) >= MAX_FAULTS:
            self.faults.append(MoreFaults(self.faults[-1], 1, counted=False))
            raise _GiveUp
        line, column = where if isinstance(where, tuple) else self._place(where)
        self.faults.append(file_fault(self._file, message, hint, line=line, column=column))

    def _index(self, event: Event) -> int:
        index: int = event.start_mark.index
        return self._base + index

    def _place(self, where: Event | int) -> tuple[int, int]:
        return self._lines.place(where if isinstance(where, int) else self._index(where))


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
_UNQUOTED: Final = frozenset(mend for _, _, mend in _SYNTAX if mend.startswith("a text that begins"))
_INDICATORS: Final = frozenset("*&@`%")
"""What such a text begins with."""


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
            return f'"{escaped(short)}"'
        case dict() | list():
            kind = "mapping" if isinstance(value, dict) else "list"
            return f"a {kind}" if value else f"an empty {kind}"
        case _:
            return str(value)
