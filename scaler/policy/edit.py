"""Edits of a YAML text: what is set is set, and every other byte stays as it is.

To parse a document and dump it again keeps its comments, but re-indents lists, folds long lines and quotes anew, so that
a review shows fifty changed lines for three that matter. Here the parser only says where things stand, and what is new
is spliced into the text. Then the text is read again: an edit that would say anything else than what was meant is
refused, never returned.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from scaler.errors import PolicyError, ScalerError
from scaler.policy.document import Path, parse_documents

Value: TypeAlias = "str | Mapping[str, Value] | Sequence[Value]"
"""What can be set: text, and mappings and lists of it."""

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_RESERVED: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that some reader of YAML, 1.1 or 1.2, takes for something else than text."""
_NULL: Final = "tag:yaml.org,2002:null"
_BLOCK_STYLES: Final = frozenset({"|", ">"})
_BLOCK_SCALAR: Final = re.compile(r"[|>][-+0-9]*")
_DASH: Final = re.compile(r"^[ \t]*-(?=\s|$)", re.MULTILINE)
_ALIAS: Final = re.compile(r"\*[^\s,\[\]{}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One value to set.

    Attributes:
        path: its place. Mappings and lists on the way that are missing, or empty, are made; an index equal to a list's
            length appends.
        value: what shall stand there. Text of several lines becomes a literal block where the document has room for one.
    """

    path: Path
    value: Value


class EditRefused(ScalerError):
    """The text has a form in which the edit can't be made without changing something else.

    Attributes:
        path: where the edit would have been.
        hint: what to do instead.
    """

    def __init__(self, path: Path, message: str, hint: str) -> None:
        super().__init__(message)
        self.path = path
        self.hint = hint


def edited(text: str, index: int, edits: Sequence[Edit]) -> str:
    """Set values in one document of a text.

    Args:
        text: a YAML text that `parse_documents` reads.
        index: which of its documents, as `Document.index` counts them.
        edits: what to set, in order.

    Raises:
        EditRefused: one of the edits can't be made.
    """
    for edit in edits:
        changed = _Editor(text, index).set(edit)
        _verify(text, changed, index, edit)
        text = changed
    return text


def _verify(before: str, after: str, index: int, edit: Edit) -> None:
    """Read both texts, and compare them but for the edit."""
    wanted = {document.index: copy.deepcopy(document.data) for document in parse_documents(before, "before")}
    _place(wanted[index], edit)
    try:
        found = {document.index: document.data for document in parse_documents(after, "after")}
    except PolicyError as error:
        raise _refusal(edit.path) from error
    if found != wanted:
        raise _refusal(edit.path)


def _refusal(path: Path) -> EditRefused:
    message = "can't be written here without changing something else: is it shared through an anchor?"
    return EditRefused(path, message, "write the mappings above it out, one key a line")


def _place(data: Any, edit: Edit) -> None:  # noqa: ANN401 - a YAML value may be anything
    """Set the value in plain data."""
    here = data
    for part, following in zip(edit.path, (*edit.path[1:], None), strict=True):
        new: Any = edit.value if following is None else [] if isinstance(following, int) else {}
        if isinstance(here, list) and part == len(here):
            here.append(new)
        elif following is None or (isinstance(here, dict) and here.get(part) is None):
            here[part] = new
        here = here[part]


class _Editor:
    """One edit of one text."""

    def __init__(self, text: str, index: int) -> None:
        self._text = text
        self._root: Node = list(YAML(typ="safe", pure=True).compose_all(text))[index]
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._json = _is_flow(self._root)
        self._step, self._offset = _indents(self._root)

    def set(self, edit: Edit) -> str:
        """Return the text with the value set."""
        parent, key, here = self._root, None, self._root
        for depth, part in enumerate(edit.path):
            rest = edit.path[depth + 1 :]
            found = _child(here, part)
            if found is None:
                return self._insert(here, part, _nested(rest, edit.value), edit.path[:depth])
            parent, (key, here) = here, found
            if key is not None and here.start_mark.index < key.end_mark.index:
                message = "is an alias of what stands elsewhere"
                raise EditRefused(edit.path[: depth + 1], message, f"write {part} out here")
            if key is not None and rest and here.tag == _NULL:
                return self._fill(parent, key, here, _nested(rest, edit.value))
        if key is None or not isinstance(here, ScalarNode) or not isinstance(edit.value, str):
            raise EditRefused(edit.path, "is not a text", "remove it, and run this again")
        return self._replace(parent, key, here, edit.value)

    # -------------------------------------------------------------- what is new

    def _insert(self, here: Node, part: str | int, value: Value, path: Path) -> str:
        """Add an entry at the end of the mapping or list at `path`."""
        if not isinstance(here, MappingNode if isinstance(part, str) else SequenceNode):
            message = f"must be a {'mapping' if isinstance(part, str) else 'list'}"
            raise EditRefused(path, message, "write it as Kubernetes documents it")
        if _is_flow(here):
            return self._insert_flow(here, part, value)
        first = here.value[0][0] if isinstance(here, MappingNode) else here
        return self._after(self._last_end(here), self._entry(part, value, first.start_mark.column))

    def _insert_flow(self, here: MappingNode | SequenceNode, part: str | int, value: Value) -> str:
        entry = self._flow(value) if isinstance(part, int) else f"{self._flow(part)}: {self._flow(value)}"
        if not here.value:
            return self._splice(here.end_mark.index - 1, here.end_mark.index - 1, entry)
        first = here.value[0][0] if isinstance(here, MappingNode) else here.value[0]
        separate = first.start_mark.line > here.start_mark.line
        gap = self._newline + " " * first.start_mark.column if separate else " "
        end = self._last_end(here)
        return self._splice(end, end, f",{gap}{entry}")

    def _fill(self, parent: Node, key: Node, null: Node, value: Value) -> str:
        """Give a key that says nothing something to say."""
        start, end = self._span(null, key)
        if start < end or _is_flow(parent):
            return self._splice(start, end, self._apart(start, self._flow(value)))
        return self._after(start, self._entry(key.value, value, key.start_mark.column)[1:])

    def _replace(self, parent: Node, key: Node, old: ScalarNode, value: str) -> str:
        """Write another text where one stands; a comment behind it stays."""
        start, end = self._span(old, key)
        if _is_flow(parent):
            return self._splice(start, end, self._apart(start, self._flow(value)))
        head, *body = self._text_lines(value, key.start_mark.column)
        header = _BLOCK_SCALAR.match(self._text, start) if old.style in _BLOCK_STYLES else None
        behind = end if header is None else header.end()
        rest = self._text[behind : self._line_end(behind)]
        new = self._apart(start, head) + rest + self._joined(body, before=True)
        return self._splice(start, max(end, behind + len(rest)), new)

    # -------------------------------------------------------------- how it is written

    def _entry(self, part: str | int, value: Value, column: int) -> list[str]:
        """Write an entry of a mapping or a list as lines, its key or dash in `column`."""
        pad, inner = " " * column, column + self._step
        if isinstance(part, int):
            lines = self._value_lines(value, column + 2)
            return [f"{pad}- {lines[0].lstrip()}", *lines[1:]]
        match value:
            case str():
                head, *body = self._text_lines(value, column)
                return [f"{pad}{_scalar(part)}: {head}", *body]
            case Mapping():
                return [f"{pad}{_scalar(part)}:", *self._value_lines(value, inner)]
            case _:
                return [f"{pad}{_scalar(part)}:", *self._value_lines(value, column + self._offset)]

    def _text_lines(self, text: str, column: int) -> list[str]:
        """Write a text as the value of a key in `column`: what stands behind the colon, and the lines below."""
        if "\n" not in text:
            return [_scalar(text)]
        return ["|-", *(" " * (column + self._step) + line for line in text.split("\n"))]

    def _value_lines(self, value: Value, column: int) -> list[str]:
        match value:
            case str():
                return [" " * column + _scalar(value)]
            case Mapping():
                return [line for key, item in value.items() for line in self._entry(key, item, column)]
            case _:
                return [line for index, item in enumerate(value) for line in self._entry(index, item, column)]

    def _flow(self, value: Value) -> str:
        """Write a value on one line; as JSON where the whole document is."""
        if self._json:
            return json.dumps(value, ensure_ascii=False)
        match value:
            case str():
                return json.dumps(value, ensure_ascii=False) if "\n" in value else _scalar(value)
            case Mapping():
                entries = (f"{self._flow(key)}: {self._flow(item)}" for key, item in value.items())
                return "{" + ", ".join(entries) + "}"
            case _:
                return "[" + ", ".join(map(self._flow, value)) + "]"

    # -------------------------------------------------------------- where it goes

    def _after(self, end: int, lines: Sequence[str]) -> str:
        """Put lines below the line on which `end` is; before the line that begins there, if one does."""
        if end and self._text[end - 1] == "\n":
            return self._splice(end, end, self._joined(lines, before=False))
        place = self._line_end(end)
        return self._splice(place, place, self._joined(lines, before=True))

    def _joined(self, lines: Sequence[str], *, before: bool) -> str:
        """Join lines, with a line break before or behind each."""
        return "".join(self._newline + line if before else line + self._newline for line in lines)

    def _splice(self, start: int, end: int, new: str) -> str:
        return self._text[:start] + new + self._text[end:]

    def _apart(self, start: int, new: str) -> str:
        """Keep a value apart from the colon before it."""
        return f" {new}" if self._text[start - 1] == ":" else new

    def _span(self, value: Node, key: Node) -> tuple[int, int]:
        """Where a key's value begins and ends; both right behind the colon where there is none."""
        if value.start_mark.index == value.end_mark.index:  # the mark of nothing is the next token's
            nothing = self._text.index(":", key.end_mark.index) + 1
            return nothing, nothing
        return value.start_mark.index, self._end(value, key.end_mark.index)

    def _line_end(self, index: int) -> int:
        found = self._text.find("\n", index)
        if found < 0:
            return len(self._text)
        return found - 1 if found > index and self._text[found - 1] == "\r" else found

    def _last_end(self, node: MappingNode | SequenceNode) -> int:
        """Where the last entry of a collection ends."""
        if isinstance(node, MappingNode):
            key, value = node.value[-1]
            return self._end(value, key.end_mark.index)
        end: int = node.start_mark.index + 1  # behind the first dash, or the bracket
        for index, item in enumerate(node.value):
            dash = None if index == 0 or _is_flow(node) else _DASH.search(self._text, end)
            end = self._end(item, end if dash is None else dash.end())  # of an empty item the dash is all
        return end

    def _end(self, node: Node, after: int) -> int:
        """Where a node ends, right behind its last character; `after` is a place before it and behind its key."""
        if node.start_mark.index < after:  # an alias has the marks of what it names
            found = _ALIAS.search(self._text, after)
            return after if found is None else found.end()
        if isinstance(node, MappingNode | SequenceNode) and not _is_flow(node):
            return self._last_end(node)
        start, end = node.start_mark.index, node.end_mark.index
        if start == end:
            return after
        if isinstance(node, ScalarNode) and node.style in _BLOCK_STYLES:
            header = _BLOCK_SCALAR.match(self._text, start)
            kept = header is not None and "+" in header.group()
            return end if kept else len(self._text[:end].rstrip("\r\n"))
        return int(end)


def _child(here: Node, part: str | int) -> tuple[Node | None, Node] | None:
    """Find an entry: its key, which a list's entries don't have, and its value."""
    match here, part:
        case MappingNode(), str():
            return next(((key, value) for key, value in here.value if key.value == part), None)
        case SequenceNode(), int() if part < len(here.value):
            return None, here.value[part]
        case _:
            return None


def _nested(rest: Path, value: Value) -> Value:
    """Wrap a value in the mappings and lists that are still missing."""
    for part in reversed(rest):
        value = [value] if isinstance(part, int) else {part: value}
    return value


def _is_flow(node: Node) -> bool:
    return isinstance(node, MappingNode | SequenceNode) and bool(node.flow_style)


def _indents(root: Node) -> tuple[int, int]:
    """Return how far the document indents mappings, and lists, under their key; two spaces where it has none."""
    steps: list[int] = []
    offsets: list[int] = []
    for key, value in _block_entries(root):
        if isinstance(value, MappingNode):
            steps.append(value.value[0][0].start_mark.column - key.start_mark.column)
        else:
            offsets.append(value.start_mark.column - key.start_mark.column)
    return next((step for step in steps if step > 0), 2), next(
        (offset for offset in offsets if offset >= 0), 2
    )


def _block_entries(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield the entries of block mappings whose values are block collections."""
    entries: Sequence[tuple[Node | None, Node]] = []
    if isinstance(node, MappingNode) and not _is_flow(node):
        entries = node.value
    elif isinstance(node, SequenceNode) and not _is_flow(node):
        entries = [(None, item) for item in node.value]
    for key, value in entries:
        if isinstance(value, MappingNode | SequenceNode) and not _is_flow(value):
            if key is not None and value.start_mark.index > key.start_mark.index:
                yield key, value
            yield from _block_entries(value)


def _scalar(text: str) -> str:
    """Write a text that every reader of YAML takes for text, on one line."""
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    return "'" + text.replace("'", "''") + "'"
