"""Queries are read as Prometheus' own parser reads them, and what it refuses is never taken for something else."""

import math
from typing import Any

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.promql.tree import (
    Aggregate,
    Binary,
    Call,
    Expression,
    Matcher,
    Negated,
    Number,
    Series,
    Text,
    parse,
)

QUERIES = [
    "x",
    "x{}",
    'x{a="b",}',
    'x{a="b", c!="d", e=~"f|g", h!~"i"}',
    "x{a='it\\'s',b=`c`}",
    '{"my.metric", a="b"}',
    '{__name__="x", "quoted label"="b"}',
    'vllm:num_requests_waiting{model_name="chat"} # what waits',
    "sum(x)",
    "SUM(x) BY (a, b)",
    "sum by (a,) (x)",
    "sum without () (x)",
    "topk(3, x)",
    "quantile by (pod) (0.9, x)",
    'count_values("version", x)',
    "rate(x[5m])",
    "max_over_time(rate(x[30s])[10m:1m])",
    "rate(x[5m:])",
    "x[5m] offset 1h @ 1",
    "(x + y)[5m:1m] @ end()",
    "x offset -5m",
    "x @ start()",
    "time()",
    "absent(x)",
    "histogram_fraction(0, 0.5, rate(x[1m]))",
    "label_replace(x, 'a', '$1', 'b', '(.*)')",
    "a + b * c ^ d ^ e - f / g % h atan2 i",
    "a or b and c unless d or e",
    "a > b + c >= d",
    "a == bool b",
    "1 - -2 ^ 2 * +3",
    "-x + 1",
    "a * on (b, c) group_left (d) e",
    "a / ignoring (b) group_right () c",
    "a and on () b",
    "a * on(pod) group_left kube_pod_labels",
    "Inf + nan",
    "1e3 + .5 + 0x1F + 1.",
    "5m + 1h30m",
    "a AND b UNLESS c OR d",
    "avg + sum",
    "rate",
]
BROKEN = [
    "",
    "(x",
    "x)",
    "sum(x",
    "sum by (a (x)",
    "x{a=b}",
    "x{a}x",
    "x y",
    "x +",
    "* x",
    "x[5m",
    'x{a="b}',
    "x offset",
    "x ! y",
    "a + on b",
    "sum()",
    "x{a=~}",
    "5mx",
    "x @ now()",
    "WITH (q = x) q",
]


def of_theirs(expr: Any) -> Expression:
    """Turn what Prometheus' parser gives into what ours does."""
    match type(expr).__name__:
        case "ParenExpr" | "SubqueryExpr":
            return of_theirs(expr.expr)
        case "MatrixSelector":
            return of_theirs(expr.vector_selector if hasattr(expr, "vector_selector") else expr.vs)
        case "NumberLiteral":
            return Number(expr.val)
        case "StringLiteral":
            return Text(expr.val)
        case "VectorSelector":
            return series(expr)
        case "Call":
            return Call(expr.func.name, tuple(of_theirs(each) for each in expr.args))
        case "UnaryExpr":
            operand = of_theirs(expr.expr)
            return Number(-operand.value) if isinstance(operand, Number) else Negated(operand)
        case "AggregateExpr":
            labels = () if expr.modifier is None else tuple(expr.modifier.labels)
            without = expr.modifier is not None and str(expr.modifier.type).endswith("Without")
            return Aggregate(
                operator=str(expr.op), argument=of_theirs(expr.expr), labels=labels, without=without
            )
        case _:
            return binary(expr)


def series(expr: Any) -> Series:
    signs = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    found = [
        Matcher(each.name, signs[str(each.op).rpartition(".")[2]], each.value)
        for each in expr.matchers.matchers
    ]
    named = [each.value for each in found if each.label == "__name__"]
    return Series(
        expr.name or (named[0] if named else ""), tuple(each for each in found if each.label != "__name__")
    )


def binary(expr: Any) -> Binary:
    modifier = expr.modifier
    matching = None if modifier is None else modifier.matching
    on = None
    if matching is not None and str(matching.type).endswith("Include"):
        on = tuple(matching.labels)
    return Binary(
        operator=str(expr.op).strip(),
        left=of_theirs(expr.lhs),
        right=of_theirs(expr.rhs),
        gives_bool=modifier is not None and modifier.return_bool,
        on=on,
    )


def alike(one: Expression | None, other: Expression | None) -> bool:
    """Whether two trees are the same; texts may be written differently, and NaN is NaN."""
    return _plain(one) == _plain(other)


def _plain(value: Any) -> Any:
    match value:
        case Number(number):
            return "NaN" if math.isnan(number) else number
        case Text():
            return "text"
        case Matcher(label, operator, text):
            return (label, operator, text.replace("\\'", "'"))
        case tuple():
            return tuple(_plain(each) for each in value)
        case None | str() | bool():
            return value
        case _:
            fields = [getattr(value, name) for name in type(value).__slots__]
            return (type(value).__name__, *map(_plain, fields))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_read_as_prometheus_own_parser_reads_it(query: str) -> None:
    assert alike(parse(query), of_theirs(promql_parser.parse(query))), parse(query)


@pytest.mark.parametrize("query", BROKEN)
def test_what_is_no_query_is_not_read(query: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        promql_parser.parse(query)
    assert parse(query) is None


def test_a_query_beyond_all_measure_is_not_read() -> None:
    assert parse("(" * 4000 + "x" + ")" * 4000) is None
    assert parse("+".join(["x"] * 4000)) is None


NAMES = st.sampled_from(["x", "a:b", "up", "sum", "rate", "offset_by", "on_it"])
LABELS = st.sampled_from(["", "()", "(a)", "(a, b)"])
SELECTORS = st.builds(
    "{}{}{}{}".format,
    NAMES,
    st.sampled_from(["", "{}", '{a="b"}', '{a=~"b.*",c!="d"}']),
    st.sampled_from(["", " offset 5m", " offset -1h", " @ end()", " @ 12.5"]),
    st.sampled_from(["", " # said so\n"]),
)
NUMBERS = st.sampled_from(["0", "1", "2.5", "1e3", "0x1f", "Inf"])


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "%", "^", "and", "or", "unless", ">", "==", "<="])
    grouping = st.sampled_from(["", "by (a)", "without (a, b)", "by ()"])
    return st.one_of(
        st.builds("({})".format, inner),
        st.builds("-{}".format, inner),
        st.builds("{} {} {}".format, inner, operators, inner),
        st.builds("sum {} ({})".format, grouping, inner),
        st.builds("max({}) {}".format, inner, grouping),
        st.builds("abs({})".format, inner),
        st.builds("clamp({}, 0, 1)".format, inner),
        st.builds("avg_over_time(({})[5m:])".format, inner),
    )


@given(st.recursive(SELECTORS | NUMBERS, _combined, max_leaves=8))
def test_whatever_prometheus_own_parser_reads_is_read_as_it_does(query: str) -> None:
    try:
        theirs = promql_parser.parse(query)
    except ValueError:
        return  # such as `and` between numbers, which only types forbid
    assert alike(parse(query), of_theirs(theirs))
