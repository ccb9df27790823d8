"""What can be told of a query by its text."""

import promql_parser
import pytest

from scaler.policy.lint import Code, lint, queries
from tests.unit.scaler.policy.lint.sets import Tree, findings, fleet, policy, subject


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("sum(q)", None),
        ("rate(q[1m])", 60.0),
        ("rate(q[1h30m]) + rate(p[5m])", 5400.0),
        ("max_over_time(rate(q[30s])[10m:1m])", 600.0),
        ("max_over_time(q[500ms])", 0.5),
        ('q{path=~"[a-z]+[5m]"}', None),
        ("q # [5m]", None),
    ],
)
def test_the_longest_range_is_found(query: str, seconds: float | None) -> None:
    assert queries.longest_range(query) == seconds


@pytest.mark.parametrize("query", ["job:requests:rate5m", "sum(a:b) / 2"])
def test_recorded_series_are_told_by_their_colon(query: str) -> None:
    assert queries.reads_recorded(query)


@pytest.mark.parametrize(
    "query", ["sum(vllm:num_requests_waiting)", "sum(sglang:num_queue_reqs)", 'q{job="a:b"}', "q[5m:1m]"]
)
def test_engines_own_colons_and_those_of_ranges_are_no_recorded_series(query: str) -> None:
    assert not queries.reads_recorded(query)


@pytest.mark.parametrize(
    ("query", "edges"),
    [
        ('q_bucket{le="0.5"}', [0.5]),
        ("q_bucket{le='+Inf', le = \"1\"}", [1.0]),
        ('q{role="1"}', []),
        ('q_bucket{le="."}', []),
    ],
)
def test_buckets_are_found(query: str, edges: list[float]) -> None:
    assert queries.edges(query) == edges


@pytest.mark.parametrize(
    ("query", "gone"),
    [
        ("vllm:gpu_cache_usage_perc", [("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc")]),
        (
            "rate(vllm_time_per_output_token_seconds_bucket[1m])",
            [("vllm_time_per_output_token_seconds_bucket", "vllm_inter_token_latency_seconds")],
        ),
        ("vllm:num_requests_swapped", [("vllm:num_requests_swapped", "")]),
        ("vllm:request_time_per_output_token_seconds_sum", []),
        ("gpu_cache_usage_perc", []),
    ],
)
def test_metrics_that_are_gone_are_found(query: str, gone: list[tuple[str, str]]) -> None:
    assert queries.gone(query) == gone


def test_a_function_in_quotes_is_no_call() -> None:
    assert not queries.calls('q{job="rate(x)"}', "rate")
    assert queries.calls("sum( rate (q[1m]))", "rate")


def test_the_query_that_is_proposed_is_promql_and_finds_no_fault_with_itself() -> None:
    wrong = "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))"
    (found,) = findings(Code.QUERY_IN_SECONDS, fleet(), policy("chat-8b", signals=[share(wrong)]))
    proposed, _, rest = found.hint.partition(", with ")
    assert rest.startswith("kube-state-metrics started with")
    promql_parser.parse(proposed)
    report = lint(
        subject(fleet(), policy("chat-8b", signals=[{"name": "g", "type": "Pushed"}, share(proposed)]))
    )
    assert [each.code for each in report.findings if each.place.path[-1] == "query"] == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("sum(rate(vllm:request_success_total[1m]))", Code.QUERY_IS_RATE),
        ("max(vllm:kv_cache_usage_perc)", Code.QUERY_IS_SHARE),
    ],
)
def test_the_gauge_that_is_proposed_finds_no_fault_with_itself(query: str, code: Code) -> None:
    (found,) = findings(code, fleet(), policy(signals=[requests(query)]))
    proposed = found.hint.partition(": ")[2]
    promql_parser.parse(proposed)
    report = lint(subject(fleet(), policy(signals=[requests(proposed)])))
    assert [each.code for each in report.findings if each.place.path[-1] == "query"] == []


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("vllm:num_requests_running", 'model_name="llama"'),
        ("sglang_num_running_reqs", 'model_name="llama"'),
        ("emberpool_gateway_in_flight_requests", 'policy="chat"'),
        ("tgi_batch_current_size", 'namespace="default"'),
    ],
)
def test_the_label_that_is_proposed_says_whose_series_they_are(metric: str, label: str) -> None:
    whose = [fleet(), policy(models=["llama"], signals=[requests(f"sum({metric})")])]
    (found,) = findings(Code.QUERY_COUNTS_OTHERS, *whose)
    proposed = found.hint.partition("such as ")[2]
    assert proposed == f"{metric}{{{label}}}"
    again = policy(models=["llama"], signals=[requests(f"sum({proposed})")])
    assert findings(Code.QUERY_COUNTS_OTHERS, fleet(), again) == []


def test_a_quotient_of_rates_is_called_a_ratio_and_no_rate() -> None:
    query = 'sum(rate(hits_total{job="a"}[1m])) / sum(rate(queries_total{job="a"}[1m]))'
    report = lint(subject(fleet(), policy(signals=[requests(query)])))
    assert [each.code for each in report.findings if each.place.path[-1] == "query"] == [Code.QUERY_IS_SHARE]


def share(query: str) -> Tree:
    return {**requests(query), "measures": "TtftShareOverObjective"}


def requests(query: str) -> Tree:
    return {
        "name": "prom",
        "type": "Prometheus",
        "server": "http://prometheus:9090",
        "query": query,
        "measures": "Requests",
    }
