"""Label and field selectors."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.kube_api.kinds import Kind
from tests.fakes.kube_api.refusals import bad_request

Object = Mapping[str, Any]
Matches = Callable[[Object], bool]
Labels = Mapping[str, str]

_TOKENS = re.compile(r"\s*(==|!=|=|!|,|\(|\)|<|>|[^\s=!,()<>]+)")
_IDENTIFIER = re.compile(r"[^=!,()<>]")


class _Parser:
    """A set selector's grammar: `a`, `!a`, `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, joined by commas."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKENS.findall(text)
        self._at = 0

    def parse(self) -> list[Callable[[Labels], bool]]:
        found: list[Callable[[Labels], bool]] = []
        while self._at < len(self._tokens):
            found.append(self._requirement())
            if self._at < len(self._tokens) and self._take(",") and self._at == len(self._tokens):
                raise bad_request("found '', expected: identifier after ','")
        return found

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str) -> bool:
        if self._next() != expected:
            raise bad_request(f"found '{self._next()}', expected: ',' or 'end of string'")
        self._at += 1
        return True

    def _identifier(self, otherwise: str) -> str:
        token = self._next()
        if not token or not _IDENTIFIER.match(token):
            raise bad_request(f"found '{token}', expected: {otherwise}")
        self._at += 1
        return token

    def _requirement(self) -> Callable[[Labels], bool]:
        if self._next() == "!":
            self._at += 1
            key = self._identifier("identifier")
            return lambda labels: key not in labels
        key = self._identifier("!, identifier, or 'end of string'")
        operator = self._next()
        if operator in {"", ","}:
            return lambda labels: key in labels
        self._at += 1
        if operator in {"=", "=="}:
            wanted = self._value()
            return lambda labels: labels.get(key) == wanted
        if operator == "!=":
            unwanted = self._value()
            return lambda labels: labels.get(key) != unwanted
        if operator in {"in", "notin"}:
            values = self._values()
            if operator == "in":
                return lambda labels: labels.get(key) in values
            return lambda labels: labels.get(key) not in values
        raise bad_request(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _value(self) -> str:
        return "" if self._next() in {"", ","} else self._identifier("identifier")

    def _values(self) -> frozenset[str]:
        self._take("(")
        values = {self._identifier("identifier")}
        while self._next() == ",":
            self._at += 1
            values.add(self._identifier("identifier"))
        self._take(")")
        return frozenset(values)


def label_selector(text: str) -> Matches:
    requirements = _Parser(text).parse()
    return lambda body: all(met(body["metadata"].get("labels") or {}) for met in requirements)


def selects(selector: Object | None, labels: Labels) -> bool:
    """Whether the selector of an object (`matchLabels`, `matchExpressions`) takes labels; none takes nothing, an empty one all."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        holds(each, labels) for each in selector.get("matchExpressions") or ()
    )


def holds(requirement: Object, labels: Labels) -> bool:
    """Whether labels fulfil one requirement of a selector, or of a node's affinity."""
    key, values = requirement["key"], requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return labels.get(key, "").isdigit() and int(labels[key]) > int(values[0])
        case "Lt":
            return labels.get(key, "").isdigit() and int(labels[key]) < int(values[0])
        case other:
            raise bad_request(f"{other} is not a valid label selector operator")


def _read(body: Object, path: str) -> str:
    value: Any = body
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def field_selector(kind: Kind, text: str) -> Matches:
    terms: list[tuple[str, bool, str]] = []
    for term in filter(None, text.split(",")):
        key, equal, wanted = re.fullmatch(r"([^!=]+)(==?|!=)(.*)", term).groups()  # type: ignore[union-attr]
        if key not in {"metadata.name", "metadata.namespace", *kind.fields}:
            raise bad_request(f"field label not supported: {key}")
        terms.append((key, equal != "!=", wanted))
    return lambda body: all((_read(body, key) == wanted) is equal for key, equal, wanted in terms)


def selection(kind: Kind, query: Mapping[str, str]) -> Matches | None:
    """Return the predicate that a request's selectors make; None if it has none."""
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    tests = [label_selector(labels)] if labels else []
    if fields:
        tests.append(field_selector(kind, fields))
    return (lambda body: all(test(body) for test in tests)) if tests else None
