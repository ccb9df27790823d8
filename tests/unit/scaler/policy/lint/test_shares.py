"""What is called a share is one, whatever its series say; and counts are called so by nobody."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaler.policy.lint.shares import share_in
from scaler.policy.promql.tree import Aggregate, Binary, Call, Expression, Negated, Number, Series, parse
from scaler.signals.engine_page import DIALECTS

KV = 'vllm:kv_cache_usage_perc{namespace="serving"}'
WAITING = 'vllm:num_requests_waiting{namespace="serving"}'
RUNNING = "vllm:num_requests_running"

SHARES = {
    f"max({KV})": 1.0,
    f"max({KV}) or vector(0)": 1.0,
    f"avg by (pod) ({KV})": 1.0,
    f"max_over_time({KV}[5m])": 1.0,
    f"100 * avg({KV})": 100.0,
    f"avg({KV} * 100)": 100.0,
    f"1 - min({KV})": 1.0,
    f"avg({KV}) / 2": 0.5,
    f"sum({KV}) / count({KV})": 1.0,
    f"clamp_max(max({KV}), 0.9)": 0.9,
    f"topk(1, {KV} > 0.5)": 1.0,
    "max(sglang:cache_hit_rate)": 1.0,
    "max(DCGM_FI_DEV_GPU_UTIL)": 100.0,
    "avg(nv_gpu_utilization)": 1.0,
    "avg(node_memory_used_percent)": 100.0,
    "histogram_fraction(0, 0.5, rate(request_seconds[1m]))": 1.0,
    f"sum({WAITING}) > bool 5": 1.0,
    f"absent({WAITING})": 1.0,
    f"group({WAITING})": 1.0,
    'label_replace(max(cache_ratio), "a", "b", "", "")': 1.0,
}
SUMS = [f"sum({KV})", f"sum by (pod) ({KV})", f"sum(sum by (pod) ({KV}))", f"sum({WAITING} > bool 0)"]
RATIOS = [
    f"sum({WAITING}) / sum({RUNNING})",
    "sum(kv_used_bytes) / sum(kv_limit_bytes)",
    "100 * max(kv_used_bytes / kv_limit_bytes)",
    'sum(rate(m_seconds_bucket{le="1.0"}[1m])) / sum(rate(m_seconds_count[1m]))',
    'sum(rate(http_requests_total{code=~"5.."}[1m])) / sum(rate(http_requests_total[1m]))',
    "sum(rate(vllm:prefix_cache_hits_total[1m])) / sum(rate(vllm:prefix_cache_queries_total[1m]))",
    "sum(queue_size) / sum(queue_size offset 1h)",
    f"sum({WAITING}) / (sum({RUNNING}) > 0)",
    f"sum({WAITING}) / clamp_min(sum({RUNNING}), 1)",
    "sum(used_blocks * on (pod) group_left () kube_pod_labels) / sum(all_blocks)",
]
COUNTS = [
    f"sum({WAITING})",
    f"sum({WAITING}) + sum({RUNNING})",
    f"sum({RUNNING}) / 4",
    f"max({KV}) * sum({RUNNING})",
    f"sum({KV} * on (pod) group_left () engine_slots)",
    f"count({KV} > 0.8)",
    f"sum({RUNNING}) / count({RUNNING})",
    "sum(kv_used_tokens) / avg(tokens_a_request_tokens)",
    "sum(rate(request_seconds_sum[1m]))",
    "sum(rate(request_seconds_sum[1m])) / sum(rate(request_seconds_count[1m]))",
    "sum(container_memory_usage_bytes)",
    "sum(queue_size) / sum(rate(done_total[1m]))",
    f"max({KV}) or sum({RUNNING})",
    f"max({KV}) + sum({RUNNING})",
    f"sum(rate({KV}[5m]))",
    "vector(3)",
    "no query (",
]


@pytest.mark.parametrize(("query", "most"), SHARES.items(), ids=SHARES.keys())
def test_a_share_is_told_with_the_most_that_it_can_be(query: str, most: float) -> None:
    found = share_in(query)
    assert found is not None
    assert (found.most, found.summed, found.ratio) == (most, False, False)


@pytest.mark.parametrize("query", SUMS)
def test_a_sum_of_shares_is_told(query: str) -> None:
    found = share_in(query)
    assert found is not None
    assert (found.most, found.summed) == (1.0, True)


@pytest.mark.parametrize("query", RATIOS)
def test_a_quotient_of_like_by_like_is_told(query: str) -> None:
    found = share_in(query)
    assert found is not None
    assert found.ratio


@pytest.mark.parametrize("query", COUNTS)
def test_what_may_be_a_count_is_not_called_a_share(query: str) -> None:
    assert share_in(query) is None


def test_every_engine_s_gauge_of_its_kv_memory_is_known() -> None:
    names = [name.decode() for dialect in DIALECTS for name in dialect.kv_usage]
    assert len(names) > 5
    assert [name for name in names if share_in(f"max({name})") is None] == []


# ------------------------------------------------------------------ what the numbers are

PODS = 3
Labels = tuple[str, ...]
Vector = dict[Labels, float]
FUNCTIONS: dict[str, Callable[[float, list[float]], float]] = {
    "abs": lambda value, _: abs(value),
    "ceil": lambda value, _: float(math.ceil(value)),
    "floor": lambda value, _: float(math.floor(value)),
    "round": lambda value, _: float(math.floor(value + 0.5)),
    "clamp_max": lambda value, limits: min(value, limits[0]),
    "clamp_min": lambda value, limits: max(value, limits[0]),
    "max_over_time": lambda value, _: value,
}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other if other else math.nan,
}
COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": lambda one, other: one > other,
    "<=": lambda one, other: one <= other,
}
AGGREGATED: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "avg": lambda values: math.fsum(values) / len(values),
    "max": max,
    "min": min,
    "count": len,
    "group": lambda _: 1.0,
}


@dataclass(frozen=True)
class Server:
    """Answers instant queries over a few pods, as Prometheus does, as far as these tests ask."""

    seed: int

    def of(self, expression: Expression) -> Vector | float:
        match expression:
            case Number(value):
                return value
            case Series(name, matchers):
                return {(f"pod-{pod}",): self.gauge(f"{name}{matchers}", pod) for pod in range(PODS)}
            case Call():
                return self.called(expression)
            case Aggregate():
                return self.aggregated(expression)
            case Binary():
                return self.combined(expression)
            case Negated(operand):
                return self.each(self.of(operand), lambda value: -value)
            case _:
                raise AssertionError(expression)

    def gauge(self, name: str, pod: int) -> float:
        drawn = random.Random(f"{self.seed} {name} {pod}")
        part = drawn.choice([0.0, 1.0, drawn.random()])
        return part if "_perc" in name else 100 * part if "_pct" in name else float(drawn.randrange(1000))

    def each(self, given: Vector | float, change: Callable[[float], float]) -> Vector | float:
        if isinstance(given, dict):
            return {labels: change(value) for labels, value in given.items()}
        return change(given)

    def called(self, call: Call) -> Vector | float:
        given = self.of(call.arguments[0])
        if call.function == "vector":
            assert isinstance(given, float)
            return {(): given}
        if call.function == "scalar":
            assert isinstance(given, dict)
            return next(iter(given.values())) if len(given) == 1 else math.nan
        limits = [each.value for each in call.arguments[1:] if isinstance(each, Number)]
        change = FUNCTIONS[call.function]
        return self.each(given, lambda value: change(value, limits) if math.isfinite(value) else value)

    def aggregated(self, aggregate: Aggregate) -> Vector:
        given = self.of(aggregate.argument)
        assert isinstance(given, dict)
        groups: dict[Labels, list[float]] = {}
        for labels, value in given.items():
            groups.setdefault(labels if aggregate.labels else (), []).append(value)
        return {labels: float(AGGREGATED[aggregate.operator](values)) for labels, values in groups.items()}

    def combined(self, binary: Binary) -> Vector | float:
        left, right = self.of(binary.left), self.of(binary.right)
        if binary.operator == "or":
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            return {**right, **left}
        match left, right:
            case dict(), dict():
                both = {labels: (left[labels], right[labels]) for labels in left.keys() & right.keys()}
                return self.pairs(binary, both, keep=0)
            case dict(), float():
                return self.pairs(binary, {labels: (value, right) for labels, value in left.items()}, keep=0)
            case float(), dict():
                return self.pairs(binary, {labels: (left, value) for labels, value in right.items()}, keep=1)
            case float(), float():
                return self.pairs(binary, {(): (left, right)}, keep=0)[()]
            case _:
                raise AssertionError(binary)

    def pairs(self, binary: Binary, pairs: dict[Labels, tuple[float, float]], *, keep: int) -> Vector:
        if binary.operator in ARITHMETIC:
            return {labels: ARITHMETIC[binary.operator](*pair) for labels, pair in pairs.items()}
        holds = COMPARED[binary.operator]
        if binary.gives_bool:
            return {labels: float(holds(*pair)) for labels, pair in pairs.items()}
        return {labels: pair[keep] for labels, pair in pairs.items() if holds(*pair)}


_NUMBERS = st.sampled_from(["0", "0.5", "1", "2", "-1", "100"])
_VECTORS = st.sampled_from(["a_perc", "b_perc", "c_pct", "requests", 'requests{kind="x"}', "used_bytes"])


def _more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    scalars = _NUMBERS | st.builds("scalar({})".format, inner)
    arithmetic = st.sampled_from(list(ARITHMETIC))
    comparison = st.sampled_from([*COMPARED, *(f"{sign} bool" for sign in COMPARED)])
    aggregator = st.sampled_from(list(AGGREGATED))
    return st.one_of(
        st.builds("({} {} {})".format, inner, arithmetic, inner),
        st.builds("({} {} {})".format, inner, arithmetic, scalars),
        st.builds("({} {} {})".format, scalars, arithmetic, inner),
        st.builds("({} {} {})".format, inner, comparison, scalars),
        st.builds("({} or {})".format, inner, inner),
        st.builds("{}({})".format, aggregator, inner),
        st.builds("{} by (pod) ({})".format, aggregator, inner),
        st.builds(
            "{}({})".format, st.sampled_from(["abs", "ceil", "floor", "round", "max_over_time"]), inner
        ),
        st.builds("{}({}, {})".format, st.sampled_from(["clamp_max", "clamp_min"]), inner, _NUMBERS),
        st.builds("vector({})".format, scalars),
    )


@example("sum(a_perc) * sum(b_perc)", 1)
@example("a_perc - (0.5 - b_perc)", 1)
@example("sum(a_perc + scalar(sum(b_perc)))", 1)
@example("sum(a_perc) - 1", 1)
@example("a_perc - clamp_max(a_perc, -1)", 1)
@example("sum(a_perc) + vector(-1)", 1)
@example("abs(0.5 - c_pct)", 1)
@example("1 - a_perc * -2", 1)
@given(st.recursive(_VECTORS, _more, max_leaves=8), st.integers(0, 1000))
def test_no_answer_passes_what_a_share_is_said_to_reach(query: str, seed: int) -> None:
    found = share_in(query)
    expression = parse(query)
    assert expression is not None
    if found is None or found.ratio:
        return
    answer = Server(seed).of(expression)
    values = answer.values() if isinstance(answer, dict) else [answer]
    limit = found.most
    if found.summed:
        limit = max(limit, limit * PODS)
    assert all(value <= limit + 1e-9 or math.isnan(value) for value in values), (found, answer)
