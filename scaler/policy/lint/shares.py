"""Whether a query answers with a share, a ratio or a truth value, which is no number of requests however many there are.

Told by what each part of a query is: gauges by their names, functions by what they give, quotients by the units of their
sides. Of what could be anything nothing is said, so that a share that is multiplied by the number of requests that it is a
share of passes for what it then is.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from scaler.policy.promql.tree import (
    COMPARISONS,
    Aggregate,
    Binary,
    Call,
    Expression,
    Number,
    Series,
    parse,
)

_FROM_0_TO_1: Final = re.compile(
    r"(?:^|_)(?:perc|ratio|usage|util|utilization|fraction|share|hit_rate|acceptance_rate)$"
)
"""How gauges of shares are called: those of vLLM, SGLang and TensorRT-LLM, and by Prometheus' own rule for names (`ratio`)."""
_FROM_0_TO_100: Final = re.compile(r"(?:^|_)(?:percent|percentage|pct)$|^DCGM_FI_DEV_\w*UTIL$")
_PERCENT: Final = 100.0
_TRUTHS: Final = frozenset({"absent", "absent_over_time", "present_over_time"})
"""Functions that give 1 or nothing."""
_KEEPS: Final = frozenset(
    {
        "avg_over_time",
        "first_over_time",
        "floor",
        "label_join",
        "label_replace",
        "last_over_time",
        "max_over_time",
        "min_over_time",
        "quantile_over_time",
        "scalar",
        "sort",
        "sort_by_label",
        "sort_by_label_desc",
        "sort_desc",
        "vector",
    }
)
"""Functions that give nothing above what they are given."""
_PICKS: Final = frozenset({"avg", "bottomk", "limit_ratio", "limitk", "max", "min", "quantile", "topk"})
"""Aggregators that do."""
_OVER_TIME: Final = frozenset({"increase", "irate", "rate"})
_UNITS: Final = frozenset({"blocks", "bytes", "milliseconds", "requests", "seconds", "tokens"})
_SAME_UNITS: Final = {"reqs": "requests", "hits": "lookups", "queries": "lookups", "lookups": "lookups"}
"""Words that stand for one unit."""
_JOINED: Final = re.compile(r"(?:_labels|_info)$")
"""Series that are 1, and there only for their labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A number that doesn't grow with what there is to do.

    Attributes:
        what: what makes it one, as a sentence begins.
        most: the largest that it can be, of each series; of a ratio what it is about.
        ratio: it is a quotient of like by like, which may pass `most`.
        summed: series are added, so that the sum is at most `most` for each of them.
        signed: it may be below 0, so that taking it off may give more.
    """

    what: str
    most: float = 1.0
    ratio: bool = False
    summed: bool = False
    signed: bool = False


_Value: TypeAlias = Share | float | None
"""What a part of a query gives: a share, a number that never changes, or anything."""


def share_in(query: str) -> Share | None:
    """Return the share that a query answers with; None for one that answers with something else, or anything."""
    expression = parse(query)
    found = None if expression is None else _value(expression)
    return found if isinstance(found, Share) else None


def _value(expression: Expression) -> _Value:
    match expression:
        case Number(value):
            return value
        case Series(name):
            return _gauge(name)
        case Call():
            return _called(expression)
        case Aggregate():
            return _aggregated(expression)
        case Binary():
            return _combined(expression)
        case _:
            return None


def _gauge(name: str) -> Share | None:
    if _FROM_0_TO_1.search(name):
        return Share(what=f"{name} is a share")
    if _FROM_0_TO_100.search(name):
        return Share(what=f"{name} is a share in percent", most=_PERCENT)
    return None


def _called(call: Call) -> _Value:
    if call.function in _TRUTHS:
        return Share(what=f"{call.function}() gives 1")
    if call.function == "histogram_fraction":
        return Share(what=f"{call.function}() gives a share")
    if not call.arguments:
        return None
    given = _value(call.arguments[-1 if call.function == "quantile_over_time" else 0])
    if call.function in _KEEPS:
        return given
    return _limited(call, given) if isinstance(given, Share) else None


def _limited(call: Call, given: Share) -> Share | None:
    match call.function, call.arguments[1:]:
        case ("clamp_max", (Number(most),)) | ("clamp", (_, Number(most))):
            return replace(given, most=min(given.most, most), signed=given.signed or most < 0.0)
        case "clamp_min", (Number(least),):
            return replace(given, most=max(given.most, least))
        case "ceil" | "round", ():
            return replace(given, most=math.ceil(given.most))
        case "abs", () if not given.signed:
            return given
        case _:
            return None


def _aggregated(aggregate: Aggregate) -> _Value:
    if aggregate.operator == "group":
        return Share(what="group() gives 1")
    value = _value(aggregate.argument)
    if aggregate.operator in _PICKS:
        return value
    return _added(aggregate.argument, value) if aggregate.operator == "sum" else None


def _added(series: Expression, value: _Value) -> _Value:
    """Add up series of a value."""
    if value is None or _is_single(series):
        return value
    again = isinstance(value, Share) and value.summed and not _adds(series)
    return replace(value, summed=True) if isinstance(value, Share) and not again else None


def _adds(expression: Expression) -> bool:
    return isinstance(expression, Aggregate) and expression.operator == "sum"


def _is_single(expression: Expression) -> bool:
    """Whether an expression gives one series at most."""
    match expression:
        case Number() | Call(function="vector" | "scalar"):
            return True
        case Aggregate():
            return expression.single
        case Binary():
            return _is_single(expression.left) and _is_single(expression.right)
        case _:
            return False


def _combined(binary: Binary) -> _Value:
    if binary.operator in COMPARISONS:
        return _compared(binary)
    left, right = _value(binary.left), _value(binary.right)
    match binary.operator:
        case "and" | "unless":
            return left
        case "or" | "+":
            return _joined(binary.operator, left, right)
        case "-":
            return _less(left, right)
        case "*":
            return _times(left, right)
        case "/":
            return _divided(binary, left, right)
        case _:
            return None


def _compared(binary: Binary) -> _Value:
    """A comparison leaves out series, or answers with 0 or 1."""
    if binary.gives_bool:
        return Share(what=f"{binary.operator} bool gives 0 or 1")
    return _value(binary.right if isinstance(binary.left, Number) else binary.left)


def _joined(operator: str, left: _Value, right: _Value) -> _Value:
    """Add two, or take one where the other isn't there."""
    if left is None or right is None:
        return None
    shares = [each for each in (left, right) if isinstance(each, Share)]
    summed = any(each.summed for each in shares)
    most = [
        each.most if isinstance(each, Share) else max(0.0, each) if summed else each for each in (left, right)
    ]
    limit = math.fsum(most) if operator == "+" else max(most)
    if not shares:
        return limit
    found = _of_all(shares, limit)
    return replace(found, signed=found.signed or _is_negative(left) or _is_negative(right))


def _is_negative(value: _Value) -> bool:
    return isinstance(value, float) and value < 0.0


def _of_all(shares: Sequence[Share], most: float) -> Share:
    """Return what shares give together."""
    return Share(
        what=shares[0].what,
        most=most,
        ratio=any(each.ratio for each in shares),
        summed=any(each.summed for each in shares),
        signed=any(each.signed for each in shares),
    )


def _less(left: _Value, right: _Value) -> _Value:
    """What is never negative takes something off or nothing."""
    match left, right:
        case float(), float():
            return left - right
        case float(), Share(signed=False):
            whole = right.most <= left and not right.summed and not right.ratio
            return Share(what=right.what, most=left, signed=not whole)
        case Share(), float() if right >= 0.0:
            return replace(left, most=left.most if left.summed else left.most - right, signed=True)
        case Share(), Share(signed=False):
            return replace(left, signed=True)
        case _:
            return None


def _times(left: _Value, right: _Value) -> _Value:
    match left, right:
        case float(), float():
            return left * right
        case (Share() as share, float() as factor) | (float() as factor, Share() as share) if factor > 0.0:
            return replace(share, most=share.most * factor)
        case Share(signed=False), Share(signed=False) if not (left.summed and right.summed):
            return _of_all([left, right], left.most * right.most)
        case _:
            return None


def _divided(binary: Binary, left: _Value, right: _Value) -> _Value:
    if isinstance(right, float):
        return _times(left, 1.0 / right) if right else None
    match left, binary:
        case Share(), Binary(left=Aggregate(argument=one), right=Aggregate(operator="count", argument=other)):
            return replace(left, summed=left.summed and one != other)  # their mean
    unit = _unit(binary.left)
    if unit and unit == _unit(binary.right) and _way(binary.left) == _way(binary.right):
        return Share(what=f"{unit} divided by {unit} is a ratio", ratio=True)
    return None


def _way(expression: Expression) -> str:
    """Return how an expression makes one series of many: a sum by a mean is no ratio."""
    match expression:
        case Aggregate():
            return expression.operator
        case Call(arguments=(first, *_)):
            return _way(first)
        case Binary(left=left):
            return _way(left)
        case _:
            return ""


def _unit(expression: Expression) -> str:
    """Return what one of an expression's number is, in a word; empty where that can't be told."""
    match expression:
        case Series(name):
            return _unit_of(name)
        case Aggregate(operator="count" | "count_values" | "group" | "stdvar"):
            return ""
        case Aggregate(argument=argument):
            return _unit(argument)
        case Call(function="histogram_count", arguments=(argument,)):
            return _unit(argument)
        case Call(function=function, arguments=(first, *_)) if function in {
            *_KEEPS,
            *_OVER_TIME,
            "clamp_max",
            "clamp_min",
            "clamp",
        }:
            return _unit(first)
        case Binary():
            return _unit_of_two(expression)
        case _:
            return ""


def _unit_of_two(binary: Binary) -> str:
    left, right = binary.left, binary.right
    if binary.operator in COMPARISONS and not binary.gives_bool:
        return _unit(right if isinstance(left, Number) else left)
    if binary.operator in {"and", "unless"} or isinstance(_value(right), float):
        return _unit(left)
    if binary.operator == "*":
        joined = isinstance(right, Series) and bool(_JOINED.search(right.name))
        return _unit(left) if joined else _unit(right) if isinstance(_value(left), float) else ""
    if binary.operator in {"+", "-", "or"}:
        unit = _unit(left)
        return unit if unit == _unit(right) else ""
    return ""


def _unit_of(name: str) -> str:
    """Tell a unit by a metric's name, as Prometheus' rule for names has it: its last word but for `total` and the like."""
    bare = name.rpartition(":")[2].removesuffix("_total").removesuffix("_created")
    for suffix in ("_bucket", "_count"):
        if bare.endswith(suffix):
            return f"observations of {bare.removesuffix(suffix)}"
    words = bare.removesuffix("_sum").split("_")
    if words[-1] in _UNITS | _SAME_UNITS.keys():
        return _SAME_UNITS.get(words[-1], words[-1])
    counted = [_SAME_UNITS.get(word, word) for word in words]
    return "requests" if "requests" in counted and not bare.endswith("_sum") else bare
