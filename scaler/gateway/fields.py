"""Reads the few fields of a request's body that the gateway routes by, piece by piece as the body comes.

A body may hold megabytes of prompts and images, and parsing it whole would hold up every other stream for as long. So nothing but
the outermost object's keys and a few of its values are read; of everything else only the extent is found out. What is wrong inside
of that is for the engine to say. PURE: bytes in, values out.
"""

import json
import re
from collections.abc import Collection, Generator
from typing import Final

WHOLE_BYTES: Final = 16 * 1024
"""A body that is here whole and no larger is parsed: that takes a tenth of a millisecond, and finds every fault."""
MOST_MARKS: Final = 1000
"""Brackets that one call of `more` looks at: less than half a millisecond."""
_DEEPEST: Final = 512
"""Levels of nesting; engines' own parsers take about as many."""
_LONGEST_VALUE: Final = 4096
"""Bytes of a value that is kept."""
_MARKS_OF_KEY: Final = 5
"""What a key and its value cost, in marks."""

_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""As much of a string as there is, up to its end or a lone backslash."""
_INSIDE: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
"""Everything of a nested value up to the next bracket or to a string that isn't whole yet."""
_SCALAR: Final = re.compile(rb"[^\s,}\]]*+")
_NEXT: Final = re.compile(rb"\S")
_QUOTE, _COLON, _COMMA, _CLOSE = b'":,}'
_OPENING, _CLOSING = b"{[", b"}]"

_Scan = Generator[bool, None, None]
_Scanned = Generator[bool, None, int]


class BodyRejected(ValueError):
    """A body is no JSON object, as far as one can tell from outside."""


class Fields:
    """The wanted fields of one JSON object. Feed it each piece, call `more` until it says no, and `end` it after the last.

    Args:
        wanted: keys of the outermost object whose values are kept. Of a key that comes twice the last value counts, as in
            engines' parsers.

    Attributes:
        values: what was found so far; None for an array or an object.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.values: dict[str, object] = {}
        self._wanted = frozenset(wanted)
        self._data = b""
        self._at = 0
        self._marks = 0
        self._whole = False
        self._scan = self._body()

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        self._data = piece if self._at == len(self._data) else self._data[self._at :] + piece
        self._at = 0

    def more(self) -> bool:
        """Look at what there is, and return whether some is left that wasn't looked at yet.

        Raises:
            BodyRejected: it is no JSON object.
        """
        return next(self._scan)

    def end(self) -> None:
        """Say that the body is over.

        Raises:
            BodyRejected: the object isn't.
        """
        if not self._whole:
            raise BodyRejected("it ends in the middle of an object")

    # -------------------------------------------------------------- scanning: False asks for data, True for a rest

    def _body(self) -> _Scan:
        if (yield from self._byte()) != _OPENING[0]:
            raise BodyRejected("it is no object")
        mark = yield from self._byte()
        while mark != _CLOSE:
            if mark != _QUOTE:
                raise BodyRejected("a key must be a string")
            key = yield from self._key()
            if (yield from self._byte()) != _COLON:
                raise BodyRejected("a key must be followed by a colon")
            mark = yield from self._value(key)
            yield from self._rest(_MARKS_OF_KEY)
        self._whole = True
        while True:
            if _NEXT.search(self._data, self._at):
                raise BodyRejected("something follows the object")
            self._at = len(self._data)
            yield False

    def _key(self) -> Generator[bool, None, str | None]:
        """Read a key; None for one that nobody wants."""
        raw = yield from self._string()
        if raw is None:
            return None
        key = _decoded(b'"%s"' % raw) if b"\\" in raw else raw.decode("utf-8", "replace")
        return key if isinstance(key, str) and key in self._wanted else None

    def _value(self, key: str | None) -> _Scanned:
        """Read a value, and return the mark after it: the quote of the next key, or the brace at the end."""
        first = yield from self._byte()
        value: object = None
        if first == _QUOTE:
            raw = yield from self._string()
            if key is not None:
                if raw is None:
                    raise BodyRejected(f"{key} is too long")
                value = _decoded(b'"%s"' % raw)
        elif first in _OPENING:
            yield from self._nested()
        else:
            raw = yield from self._scalar()
            value = _decoded(bytes([first]) + raw) if key is not None else None
        if key is not None:
            self.values[key] = value
        mark = yield from self._byte()
        if mark == _COMMA:
            return (yield from self._byte())
        if mark != _CLOSE:
            raise BodyRejected("a value must be followed by a comma or a brace")
        return mark

    def _byte(self) -> _Scanned:
        """Take the next byte that is no space."""
        while (found := _NEXT.search(self._data, self._at)) is None:
            self._at = len(self._data)
            yield False
        self._at = found.end()
        return found[0][0]

    def _string(self) -> Generator[bool, None, bytes | None]:
        """Take the rest of a string, and its end; None for one that is too long to be wanted."""
        kept: bytes | None = b""
        while True:
            begun, self._at = self._at, self._text_end()
            if kept is not None and len(kept) + self._at - begun <= _LONGEST_VALUE:
                kept += self._data[begun : self._at]
            else:
                kept = None
            if self._at < len(self._data) and self._data[self._at] == _QUOTE:
                self._at += 1
                return kept
            yield False

    def _text_end(self) -> int:
        """Return how far a string goes; without an escape, as images come, that is found much faster."""
        quote = self._data.find(b'"', self._at)
        if self._data.find(b"\\", self._at, quote if quote >= 0 else len(self._data)) < 0:
            return quote if quote >= 0 else len(self._data)
        return _end(_TEXT, self._data, self._at)

    def _scalar(self) -> Generator[bool, None, bytes]:
        """Take the rest of a number or a word."""
        kept = b""
        while True:
            begun, self._at = self._at, _end(_SCALAR, self._data, self._at)
            kept = (kept + self._data[begun : self._at])[:_LONGEST_VALUE]
            if self._at < len(self._data):
                return kept
            yield False

    def _nested(self) -> _Scan:
        """Take the rest of an array or an object."""
        depth = 1
        while depth:
            self._at = _end(_INSIDE, self._data, self._at)
            if self._at == len(self._data):
                yield False
                continue
            mark = self._data[self._at]
            self._at += 1
            if mark in _OPENING:
                depth += 1
                if depth > _DEEPEST:
                    raise BodyRejected("it is nested too deeply")
            elif mark in _CLOSING:
                depth -= 1
            else:
                yield from self._string()
            yield from self._rest(1)

    def _rest(self, marks: int) -> _Scan:
        self._marks += marks
        if self._marks >= MOST_MARKS:
            self._marks = 0
            yield True


def read_whole(body: bytes, wanted: Collection[str]) -> dict[str, object]:
    """Return the wanted fields of a small body.

    Raises:
        BodyRejected: it is no JSON object.
    """
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise BodyRejected(str(error)) from None
    if not isinstance(found, dict):
        raise BodyRejected("it is no object")
    return {
        key: None if isinstance(found[key], list | dict) else found[key] for key in wanted if key in found
    }


def _end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Return where a pattern that matches anywhere ends."""
    found = pattern.match(data, at)
    assert found is not None
    return found.end()


def _decoded(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BodyRejected(str(error)) from None


def multipart_model(content_type: str, body: bytes) -> str | None:
    """Return the field `model` of a form with parts, as uploads of audio and files are; None where there is none.

    Args:
        content_type: the request's, with the boundary.
        body: the form.
    """
    boundary = re.search(r'boundary="?([^\s";,]{1,70})"?', content_type)
    if boundary is None:
        return None
    mark = b"--" + boundary[1].encode()
    found = re.search(
        rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n(.{0,4096}?)\r\n'
        + re.escape(mark),
        body,
        re.IGNORECASE | re.DOTALL,
    )
    try:
        return found[1].decode() if found is not None else None
    except UnicodeDecodeError:
        return None
