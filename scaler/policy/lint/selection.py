"""Whose series a query reads: those that a label selects, or everybody's.

One Prometheus scrapes many models, and a query that selects nothing adds them all up. Series are selected by a matcher on a
label that says whose they are, or by being joined with series that are.
"""

import re
from collections.abc import Iterator
from typing import Final

from scaler.policy.lint import queries
from scaler.policy.promql.tree import Aggregate, Binary, Call, Expression, Matcher, Negated, Series, parse

_OF_ONE_SERVER: Final = frozenset(
    {
        "code",
        "dp_rank",
        "engine",
        "finished_reason",
        "handler",
        "le",
        "method",
        "moe_ep_rank",
        "outcome",
        "pp_rank",
        "priority",
        "quantile",
        "reason",
        "result",
        "status",
        "tp_rank",
    }
)
"""Labels that tell apart what one server says. Any other may say whose a series is: its namespace, its model, its job."""
_ANYTHING: Final = re.compile(r"\^?\(*\.[*+]\)*\$?")


def everybodys(query: str) -> tuple[str, ...]:
    """List the metrics that a query aggregates over everybody's series, each once; none for one that can't be read.

    What a recording rule has made (a name with a colon) may be one model's, and isn't listed.
    """
    expression = parse(query)
    found = [] if expression is None else _aggregated(expression)
    return tuple(dict.fromkeys(name for name in found if name and not queries.is_recorded(name)))


def _aggregated(expression: Expression) -> Iterator[str]:
    """Yield what is open below an aggregation. A series that nothing is done with has to be the only one."""
    if isinstance(expression, Aggregate):
        yield from _open(expression.argument)
    else:
        for each in _parts(expression):
            yield from _aggregated(each)


def _open(expression: Expression) -> list[str]:
    """Return the names of series that nothing selects."""
    match expression:
        case Series(name, matchers):
            return [] if any(map(_selects, matchers)) else [name]
        case Binary(operator="unless", left=left):
            return _open(left)
        case Binary():
            return _open_of_two(expression)
        case _:
            return [name for each in _parts(expression) for name in _open(each)]


def _open_of_two(binary: Binary) -> list[str]:
    """Return what is open on both sides. Where series of both sides meet, one side selects for the other."""
    left, right = _open(binary.left), _open(binary.right)
    meet = (
        binary.operator != "or" and binary.on != () and _has_labels(binary.left) and _has_labels(binary.right)
    )
    return [] if meet and not (left and right) else [*left, *right]


def _has_labels(expression: Expression) -> bool:
    """Whether an expression gives series that can be told apart."""
    match expression:
        case Series():
            return True
        case Aggregate():
            return not expression.single
        case Call(function="scalar" | "vector"):
            return False
        case _:
            return any(map(_has_labels, _parts(expression)))


def _parts(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Call(arguments=arguments):
            return arguments
        case Aggregate(argument=argument):
            return (argument,)
        case Binary(left=left, right=right):
            return (left, right)
        case Negated(operand):
            return (operand,)
        case _:
            return ()


def _selects(matcher: Matcher) -> bool:
    """Whether a matcher leaves only the series of somebody."""
    if matcher.label in _OF_ONE_SERVER or not matcher.value:
        return False
    return matcher.operator == "=" or (
        matcher.operator == "=~" and _ANYTHING.fullmatch(matcher.value) is None
    )
