"""A PromQL query as a tree: which series it reads, and what it does with their numbers.

Prometheus' own parser isn't part of an installation. This one reads expressions as its documentation describes them
(prometheus.io, "Query language") and gives up on everything else: of a query that it can't read, nothing is said. What only
says when a series is read (ranges, subqueries, `offset`, `@`) is passed over.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

AGGREGATORS: Final = frozenset(
    {
        "avg",
        "bottomk",
        "count",
        "count_values",
        "group",
        "limit_ratio",
        "limitk",
        "max",
        "min",
        "quantile",
        "stddev",
        "stdvar",
        "sum",
        "topk",
    }
)
_GIVE_SEVERAL: Final = frozenset({"bottomk", "count_values", "limit_ratio", "limitk", "topk"})
"""Those that give several series of one group."""
COMPARISONS: Final = frozenset({"==", "!=", ">", "<", ">=", "<="})
_RANKS: Final[Mapping[str, int]] = {
    "or": 1,
    **dict.fromkeys(("and", "unless"), 2),
    **dict.fromkeys(COMPARISONS, 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
"""Operators, the weakest first."""
_TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ | \#[^\n]* )
    | (?P<text> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | `[^`]*` )
    | (?P<number> 0[xX][0-9a-fA-F]+
        | (?:[0-9]+(?:ms|[smhdwy]))+ (?![0-9a-zA-Z_])
        | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+) (?:[eE][-+]?[0-9]+)? (?![0-9a-zA-Z_]) )
    | (?P<name> [a-zA-Z_:][a-zA-Z0-9_:]* )
    | (?P<sign> =~ | !~ | [!=<>]= | [-+*/%^=<>(){}\[\],@] )
    """,
    re.VERBOSE,
)
_DURATION: Final = re.compile(r"([0-9]+)(ms|[smhdwy])")
_SECONDS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 31_536_000.0,
}
_NAME_LABEL: Final = "__name__"
_MOST_OPERANDS: Final = 150
"""More than any query has that people write; a tree stays within Python's depth of calls."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or a duration in seconds."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A text, without its quotes."""

    value: str


@dataclass(frozen=True, slots=True)
class Matcher:
    """What a label must be: `operator` is one of `=`, `!=`, `=~`, `!~`."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Series:
    """Series that are read: those of a name, which may be empty, whose labels match."""

    name: str
    matchers: tuple[Matcher, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A function, in lower case, and what it is given."""

    function: str
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One number out of many.

    Attributes:
        operator: how, in lower case.
        argument: of what.
        labels: those that stay (`by`), or go (`without`); none where neither is written.
        without: whether the labels are those that go.
    """

    operator: str
    argument: "Expression"
    labels: tuple[str, ...] = ()
    without: bool = False

    @property
    def single(self) -> bool:
        """Whether it gives one series at most."""
        return not self.labels and not self.without and self.operator not in _GIVE_SEVERAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """Two operands and what is done with them.

    Attributes:
        operator: a sign or a word in lower case.
        left, right: the operands.
        gives_bool: a comparison answers with 0 or 1 instead of leaving series out.
        on: the labels by which series of both sides meet (`on`); None where all do, or all but some (`ignoring`).
    """

    operator: str
    left: "Expression"
    right: "Expression"
    gives_bool: bool = False
    on: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Negated:
    """Minus something."""

    operand: "Expression"


Expression: TypeAlias = Number | Text | Series | Call | Aggregate | Binary | Negated


class _UnreadableError(Exception):
    """What is written isn't what is read here."""


@cache
def parse(query: str) -> Expression | None:
    """Read a query; None if it can't be read."""
    try:
        parser = _Parser(_tokens(query))
        found = parser.expression()
        parser.end()
    except _UnreadableError:
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """What an operator or keyword is known by: names are taken in any case. Empty for what can't be one."""
        return self.text.lower() if self.kind == "name" else self.text if self.kind == "sign" else ""


_END: Final = _Token("end", "")


def _tokens(query: str) -> list[_Token]:
    tokens, at = list[_Token](), 0
    while at < len(query):
        found = _TOKEN.match(query, at)
        if found is None:
            raise _UnreadableError
        at = found.end()
        if found.lastgroup != "space":
            tokens.append(_Token(str(found.lastgroup), found.group()))
    return tokens


class _Parser:
    """Goes through the tokens of a query from left to right."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._operands = 0

    def end(self) -> None:
        """Refuse what is left over."""
        if self._peek() is not _END:
            raise _UnreadableError

    def expression(self, weakest: int = 1) -> Expression:
        """Read operands for as long as operators bind as strongly as `weakest`."""
        left = self._operand()
        while (rank := _RANKS.get(self._peek().word, 0)) >= weakest:
            left = self._binary(left, self._next().word, rank)
        return left

    # ------------------------------------------------------------------ tokens

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _next(self) -> _Token:
        token = self._peek()
        if token is _END:
            raise _UnreadableError
        self._at += 1
        return token

    def _take(self, *words: str) -> bool:
        """Go past the next token if it is one of these."""
        if self._peek().word not in words:
            return False
        self._at += 1
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise _UnreadableError

    # ------------------------------------------------------------------ operators and operands

    def _binary(self, left: Expression, operator: str, rank: int) -> Binary:
        gives_bool = self._take("bool")
        on = self._labels() if self._take("on") else None
        if self._take("ignoring"):
            self._labels()
        if self._take("group_left", "group_right") and self._peek().word == "(":
            self._labels()
        right = self.expression(rank if operator == "^" else rank + 1)
        return Binary(operator=operator, left=left, right=right, gives_bool=gives_bool, on=on)

    def _operand(self) -> Expression:
        self._operands += 1
        if self._operands > _MOST_OPERANDS:
            raise _UnreadableError
        if self._take("+"):
            return self.expression(_RANKS["^"])
        if self._take("-"):
            operand = self.expression(_RANKS["^"])
            return Number(-operand.value) if isinstance(operand, Number) else Negated(operand)
        found = self._bare()
        while self._moved():
            pass
        return found

    def _moved(self) -> bool:
        """Go past a range, a subquery, `offset` or `@`; return whether there was one."""
        if self._take("["):
            while not self._take("]"):
                self._next()
            return True
        if self._take("offset", "@"):
            self._take("-", "+")
            moved_to = self._next()
            if moved_to.word in {"start", "end"}:
                self._expect("(")
                self._expect(")")
            elif moved_to.kind != "number":
                raise _UnreadableError
            return True
        return False

    def _bare(self) -> Expression:
        token = self._next()
        if token.kind == "number":
            return Number(_number(token.text))
        if token.kind == "text":
            return Text(token.text[1:-1])
        if token.word == "(":
            inner = self.expression()
            self._expect(")")
            return inner
        if token.word == "{":
            return self._series("")
        if token.kind != "name":
            raise _UnreadableError
        if token.word in AGGREGATORS and self._peek().word in {"(", "by", "without"}:
            return self._aggregate(token.word)
        if self._take("("):
            return Call(token.word, self._arguments())
        if token.word in {"inf", "nan"} and self._peek().word != "{":
            return Number(float(token.word))
        if self._take("{"):
            return self._series(token.text)
        return Series(token.text)

    def _aggregate(self, operator: str) -> Aggregate:
        labels, without = self._grouping()
        self._expect("(")
        arguments = self._arguments()
        if not arguments:
            raise _UnreadableError
        if not labels and not without:
            labels, without = self._grouping()
        return Aggregate(operator=operator, argument=arguments[-1], labels=labels, without=without)

    def _grouping(self) -> tuple[tuple[str, ...], bool]:
        if self._peek().word not in {"by", "without"}:
            return (), False
        without = self._next().word == "without"
        return self._labels(), without

    def _labels(self) -> tuple[str, ...]:
        self._expect("(")
        labels = list[str]()
        while not self._take(")"):
            labels.append(self._label())
            if not self._take(",") and self._peek().word != ")":
                raise _UnreadableError
        return tuple(labels)

    def _label(self) -> str:
        token = self._next()
        if token.kind not in {"name", "text"}:
            raise _UnreadableError
        return token.text[1:-1] if token.kind == "text" else token.text

    def _arguments(self) -> tuple[Expression, ...]:
        """Read what stands between a parenthesis that is read already and the one that ends it."""
        arguments = list[Expression]()
        while not self._take(")"):
            arguments.append(self.expression())
            if not self._take(",") and self._peek().word != ")":
                raise _UnreadableError
        return tuple(arguments)

    def _series(self, name: str) -> Series:
        """Read what stands between a brace that is read already and the one that ends it."""
        matchers = list[Matcher]()
        while not self._take("}"):
            label = self._label()
            if self._peek().word not in {"=", "!=", "=~", "!~"}:
                name = label  # {"a name that needs quotes", label="…"}
            else:
                operator, value = self._next().word, self._next()
                if value.kind != "text":
                    raise _UnreadableError
                matchers.append(Matcher(label, operator, value.text[1:-1]))
            if not self._take(",") and self._peek().word != "}":
                raise _UnreadableError
        named = (each.value for each in matchers if each.label == _NAME_LABEL and each.operator == "=")
        return Series(name or next(named, ""), tuple(each for each in matchers if each.label != _NAME_LABEL))


def duration_seconds(text: str) -> float:
    """Return the seconds of a duration such as `1h30m`; 0 of what is none."""
    return sum(int(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _number(text: str) -> float:
    if text[:2].lower() == "0x":
        return float(int(text, 16))
    return duration_seconds(text) if _DURATION.search(text) else float(text)
