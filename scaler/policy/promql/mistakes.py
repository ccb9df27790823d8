"""What is plainly wrong with a PromQL query, and where: told when the file is read, and not by a server at the first burst.

Only what no dialect takes is told: brackets and quotes that don't match, ranges and numbers that are none, matchers without
a text, operators with nothing to work on. Whatever else Prometheus or a server that is compatible with it may understand is
let through: a query that is refused here and would have been answered is worse than one that fails over there.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from scaler.policy.base import Misshapen

_HINT: Final = "try it on the server's own query page; only what no dialect of PromQL takes is told here"
_TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ | \#[^\n]* )
    | (?P<text> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | `[^`]*` )
    | (?P<quote> ["'`] )
    | (?P<number> (?:[0-9]|\.[0-9]) (?:[eE][-+][0-9]|[0-9a-zA-Z_.])* )
    | (?P<name> (?:[a-zA-Z_:]|[^\x00-\x7f]|\\.) (?:[a-zA-Z0-9_:.]|[^\x00-\x7f]|\\.)* )
    | (?P<sign> =~ | !~ | [!=<>]= | [-+*/%^=<>(){}\[\],@:] )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER: Final = re.compile(
    r"""
      0x[0-9a-f]+
    | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]+)?
    | (?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhdwyi]))+
    | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ki|mi|gi|ti|[kmgt]i?b?)
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Numbers and durations, those of MetricsQL among them (steps as `5i`, sizes as `8Ki`)."""
_BINARY: Final = frozenset({"*", "/", "%", "^", "==", "!=", "<=", ">=", "<", ">"})
_WORDS: Final = frozenset({"and", "or", "unless", "atan2", "offset"})
"""Words that work on something; where nothing stands before them they are names."""
_BEFORE_OPERAND: Final = frozenset({"bool", "on", "ignoring", "group_left", "group_right"})
_LABELLED: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_MATCHING: Final = frozenset({"=", "!=", "=~", "!~"})
_WORDLIKE: Final = re.compile(r"[0-9a-zA-Z_.\s]+")
_CLOSING: Final = {"(": ")", "{": "}", "[": "]"}


def mistake(query: str) -> Misshapen | None:
    """Say what is wrong with a query; None where nothing is found, which is no proof that it is right."""
    tokens = [
        _Token(found.lastgroup or "", found.group(), found.start() + 1) for found in _TOKEN.finditer(query)
    ]
    try:
        _Reader(query, [token for token in tokens if token.kind != "space"]).read()
    except _Wrong as wrong:
        return f"is not PromQL: {wrong}", wrong.hint or _HINT
    return None


class _Wrong(Exception):
    """What is wrong.

    Attributes:
        hint: how to mend it, where that is known.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Token:
    """A word of a query, and the character at which it begins, from 1."""

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "name" else self.text

    @property
    def here(self) -> str:
        """How messages call it."""
        return f"{self.text} at character {self.at}"


_START: Final = _Token("start", "", 0)


@dataclass(slots=True)
class _Reader:
    """Goes through a query from left to right, and remembers what is open.

    Attributes:
        query: the query.
        tokens: its words.
        before: the word before the next one.
        wants: the operator that still wants an operand; None if none does.
        opened: the parentheses that are open, with whether a name stands before each.
    """

    query: str
    tokens: Sequence[_Token]
    before: _Token = _START
    wants: _Token | None = None
    opened: list[tuple[_Token, bool]] = field(default_factory=list)

    def read(self) -> None:
        """Read it all.

        Raises:
            _Wrong: something is wrong.
        """
        words = iter(self.tokens)
        for token in words:
            if token.word == "with" and self.before is _START:
                return  # a template of MetricsQL, in which other rules hold
            self.before = self._read(token, words)
        if self.opened:
            raise _never_closed(self.opened[-1][0])
        if self.wants is not None:
            raise _Wrong(f"nothing stands behind {self.wants.text}, its end")
        if self.before is _START:
            raise _Wrong("it says nothing")

    def _read(self, token: _Token, words: Iterator[_Token]) -> _Token:
        """Read a word, and those that belong to it; return the last of them."""
        match token.kind:
            case "quote":
                raise _never_closed(token)
            case "other":
                raise _stray(token)
            case "number" if not _NUMBER.fullmatch(token.text):
                raise _Wrong(f"{token.here} is neither a number nor a duration such as 5m")
            case "number" | "text":
                self.wants = None
                return token
            case "name":
                self._name(token)
                return token
            case _:
                return self._sign(token, words)

    def _name(self, token: _Token) -> None:
        word = token.word
        if word in _WORDS and self.wants is None and not self._at_start:
            self.wants = token
        elif not (word in _BEFORE_OPERAND and self.wants is not None):
            self.wants = None

    @property
    def _at_start(self) -> bool:
        """Whether nothing of what is being read has been read yet."""
        return self.before is _START or self.before.text in {"(", ","}

    # ------------------------------------------------------------------ signs

    def _sign(self, token: _Token, words: Iterator[_Token]) -> _Token:
        match token.text:
            case "(":
                return self._open(token, words)
            case ")":
                self._close(token)
            case ",":
                self._separate(token)
            case "{":
                self.wants = None
                return _matchers(token, words)
            case "[":
                return self._range(token, words)
            case "}" | "]":
                raise _Wrong(f"the {token.here} closes nothing")
            case "=" | "=~" | "!~":
                hint = '== compares; matchers stand in braces, as in up{job="vllm"}'
                raise _Wrong(f"{token.here} stands outside of braces", hint)
            case sign if sign in _BINARY:
                self._operate(token)
            case _:
                self.wants = token
        return token

    def _operate(self, token: _Token) -> None:
        if self.wants is not None:
            raise _Wrong(f"{token.here} stands right behind {self.wants.text}")
        if self._at_start:
            raise _Wrong(f"nothing stands before {token.here}")
        self.wants = token

    def _open(self, token: _Token, words: Iterator[_Token]) -> _Token:
        named = self.before.kind == "name"
        if named and self.before.word in _LABELLED:
            return _labels(token, words)
        self.opened.append((token, named))
        self.wants = None
        return token

    def _close(self, token: _Token) -> None:
        self._want_nothing()
        if not self.opened:
            raise _Wrong(f"the {token.here} closes nothing")
        opened, call = self.opened.pop()
        if self.before is opened and not call:
            raise _Wrong(f"nothing stands between the parentheses at character {opened.at}")

    def _separate(self, token: _Token) -> None:
        self._want_nothing()
        if not self.opened:
            raise _Wrong(f"the comma at character {token.at} stands outside of any parentheses")
        if self._at_start:
            raise _Wrong(f"nothing stands before the comma at character {token.at}")

    def _want_nothing(self) -> None:
        if self.wants is not None:
            raise _Wrong(f"nothing stands behind {self.wants.here}")

    def _range(self, token: _Token, words: Iterator[_Token]) -> _Token:
        before = self.before
        selects = before.kind == "name" or before.text in {")", "}", "]"}
        if self.wants is not None or not selects:
            raise _Wrong(f"the range at character {token.at} belongs to no series")
        for word in words:
            if word.text == "]":
                _durations(self.query[token.at : word.at - 1], token.at)
                return word
            if word.kind == "quote":
                raise _never_closed(word)
            if word.kind == "other":
                raise _stray(word)
            if word.text in {"[", "{", "}"}:
                raise _Wrong(f"the {token.here} is not closed before the {word.here}", "add the ]")
        raise _never_closed(token)


def _never_closed(token: _Token) -> _Wrong:
    return _Wrong(f"the {token.here} is never closed", f"add the {_CLOSING.get(token.text, token.text)}")


def _stray(token: _Token) -> _Wrong:
    if token.text == "$":
        hint = "$__interval and its kin are filled in by Grafana alone: write a range such as 1m"
        return _Wrong(f"{token.here} stands for nothing outside of a dashboard", hint)
    return _Wrong(f"{token.here} belongs to no query")


def _durations(text: str, at: int) -> None:
    """Look at what a range holds; arithmetic with durations is left to the server."""
    if not text.strip():
        raise _Wrong(f"the range at character {at} is empty", "say how far back, as in [5m]")
    for part in text.split(":"):
        written = part.strip()
        if _WORDLIKE.fullmatch(written) and not _NUMBER.fullmatch(written):
            hint = "a duration is a number with ms, s, m, h, d, w or y, as in [5m] or [1h30m]"
            raise _Wrong(f"{written}, in the range at character {at}, is no duration", hint)


def _labels(opening: _Token, words: Iterator[_Token]) -> _Token:
    """Go past a list of labels; return what closes it."""
    for word in words:
        if word.text == ")":
            return word
        if word.kind == "quote":
            raise _never_closed(word)
        if word.kind not in {"name", "text"} and word.text not in {",", "*"}:
            raise _Wrong(f"{word.here} stands in a list of labels")
    raise _never_closed(opening)


def _matchers(opening: _Token, words: Iterator[_Token]) -> _Token:
    """Go past what stands in braces: matchers with commas between them, or the name of a metric; return what closes it."""
    for word in words:
        if word.text == "}":
            return word
        if word.kind not in {"name", "text"}:
            raise _no_label(opening, word)
        after = _matcher(opening, word, words)
        if after.text == "}":
            return after
    raise _never_closed(opening)


def _matcher(opening: _Token, label: _Token, words: Iterator[_Token]) -> _Token:
    """Go past one matcher; return what stands behind it."""
    operator = next(words, None)
    if operator is None:
        raise _never_closed(opening)
    if label.kind == "text" and operator.text in {",", "}"}:
        return operator
    if operator.text not in _MATCHING:
        hint = 'a matcher is label="value", with =, !=, =~ or !~'
        raise _Wrong(f"the label {label.here} is compared with nothing", hint)
    value, after = next(words, None), next(words, None)
    if value is not None and value.kind == "quote":
        raise _never_closed(value)
    if value is None or value.kind != "text":
        hint = f'write {label.text}="…"'
        raise _Wrong(f"what the label {label.here} is compared with is no text in quotes", hint)
    if after is None:
        raise _never_closed(opening)
    if after.text not in {",", "}"} and after.word != "or":
        raise _Wrong(f"a comma or a }} is missing before {after.here}")
    return after


def _no_label(opening: _Token, word: _Token) -> _Wrong:
    if word.kind == "quote":
        return _never_closed(word)
    if word.text == "{":
        hint = "this looks like a template: write what it is to become"
        return _Wrong(f"the {word.here} stands within the one at character {opening.at}", hint)
    return _Wrong(f"{word.here} stands where a label is wanted")
