"""What is plainly wrong with a query is told with its place; what may be right is let through."""

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.policy.promql.mistakes import mistake

VALID = [
    # engines
    'sum(vllm:num_requests_waiting{model_name="llama-8b"})',
    'sum by (model_name) (vllm:num_requests_running{namespace="serving", pod=~"chat-.*"})',
    "max(sglang:num_queue_reqs) + max(sglang:num_running_reqs)",
    "avg(avg_over_time(vllm:kv_cache_usage_perc[1m]))",
    "sum(tgi_queue_size) or vector(0)",
    'nv_inference_pending_request_count{model="llama"} > 0',
    # shares over an objective
    (
        '1 - sum(rate(vllm:time_to_first_token_seconds_bucket{le="1.0"}[5m]))'
        " / sum(rate(vllm:time_to_first_token_seconds_count[5m]))"
    ),
    "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
    "histogram_fraction(1, +Inf, sum(rate(ttft_seconds[5m])))",
    'sum(rate(http_requests_total{code!~"5..", path="/v1/completions"}[1m30s]))',
    # joins
    'sum(DCGM_FI_DEV_GPU_UTIL * on (pod, namespace) group_left (label_app) kube_pod_labels{label_app="llm"})',
    "a / ignoring (instance) group_right () b",
    "count(up{job='vllm'} == 1) unless on (job) absent(up)",
    "kube_deployment_status_replicas_available == bool 4",
    # time
    "max_over_time(rate(x[30s])[10m:1m])",
    "rate(x[5m:])",
    "x[5m] offset 1h @ 1609746000",
    "predict_linear(queue_depth[1h], 4 * 3600)",
    "sum(rate(x[5m])) - sum(rate(x[5m] offset 1w))",
    "x @ end()",
    "rate(x[300])",
    "hour() >= 8 and hour() < 18",
    # forms
    '# waiting requests\nsum(\n  x{a="b"}, # all of them\n)',
    "sum(x) by (a,)",
    '{__name__=~"vllm:.*", "quoted.label"="v"}',
    '{"vllm.requests.waiting", model="x"}',
    'x{a="say \\"hi\\" {[(", b=\'it\\\'s\', c=`\\d+`}',
    "-x + +1e-3 - 0x1F * .5",
    "time() - 5m",
    'label_replace(x, "a", "$1", "b", "(.*)")',
    "topk(3, x)",
    'count_values("version", build_info)',
    "Inf > NaN",
    "avg + sum",
    "a AND b UNLESS c OR d",
    "quantile by (pod) (0.9, x)",
    "x @ start() offset -5m",
    "a + b * c ^ d ^ e - f / g % h atan2 i",
    # dialects that servers with Prometheus' API take
    "rate(x)",
    "x[5i]",
    'x{a="b" or c="d"}',
    "sum(x) default 0",
    "running_sum(x) keep_metric_names",
    "(a, b)",
    "sum(x,)",
    "8Ki * x",
    'WITH (f = {a="b"}) sum(x{f})',
    "rate(x[5m * 2])",
    "tempête_requêtes",
]

WRONG = [
    ("", "it says nothing"),
    ("# only this", "it says nothing"),
    ("sum(x", "the ( at character 4 is never closed"),
    ("sum(x))", "the ) at character 7 closes nothing"),
    ("sum(rate(x[5m])", "the ( at character 4 is never closed"),
    ('x{a="b"', "the { at character 2 is never closed"),
    ("x}", "the } at character 2 closes nothing"),
    ("rate(x[5m)", "the [ at character 7 is never closed"),
    ("x]", "the ] at character 2 closes nothing"),
    ('x{a="b}', 'the " at character 5 is never closed'),
    ("x{a='b}", "the ' at character 5 is never closed"),
    ("x{a=`b}", "the ` at character 5 is never closed"),
    ("x{a=b}", "what the label a at character 3 is compared with is no text in quotes"),
    ("x{a=1}", "what the label a at character 3 is compared with is no text in quotes"),
    ("x{a=}", "what the label a at character 3 is compared with is no text in quotes"),
    ("x{a}", "the label a at character 3 is compared with nothing"),
    ('x{a=="b"}', "the label a at character 3 is compared with nothing"),
    ('x{="b"}', "= at character 3 stands where a label is wanted"),
    ('x{a="b" c="d"}', "a comma or a } is missing before c at character 9"),
    ('x{a="b",,c="d"}', ", at character 9 stands where a label is wanted"),
    ("{{ template }}", "the { at character 2 stands within the one at character 1"),
    ("x[]", "the range at character 2 is empty"),
    ("x[5]m]", "the ] at character 6 closes nothing"),
    ("x[5minutes]", "5minutes, in the range at character 2, is no duration"),
    ("x[5 m]", "5 m, in the range at character 2, is no duration"),
    ("x[m5]", "m5, in the range at character 2, is no duration"),
    ("x[5m:1q]", "1q, in the range at character 2, is no duration"),
    ("[5m]", "the range at character 1 belongs to no series"),
    ("x + [5m]", "the range at character 5 belongs to no series"),
    ("rate(x[$__rate_interval])", "$ at character 8 stands for nothing outside of a dashboard"),
    ('x{a="$job"} + $threshold', "$ at character 15 stands for nothing outside of a dashboard"),
    ("x +", "nothing stands behind +, its end"),
    ("x and", "nothing stands behind and, its end"),
    ("x offset", "nothing stands behind offset, its end"),
    ("x @", "nothing stands behind @, its end"),
    ("x == bool", "nothing stands behind ==, its end"),
    ("a * on (b)", "nothing stands behind *, its end"),
    ("* x", "nothing stands before * at character 1"),
    ("x / * y", "* at character 5 stands right behind /"),
    ("sum(x +)", "nothing stands behind + at character 7"),
    ("max(x, / y)", "nothing stands before / at character 8"),
    ("x > ()", "nothing stands between the parentheses at character 5"),
    ("clamp(x,, 1)", "nothing stands before the comma at character 9"),
    ("x, y", "the comma at character 2 stands outside of any parentheses"),
    ("x = 1", "= at character 3 stands outside of braces"),
    ("x =~ 1", "=~ at character 3 stands outside of braces"),
    ("x & y", "& at character 3 belongs to no query"),
    ("x;", "; at character 2 belongs to no query"),
    ("x > 5mm", "5mm at character 5 is neither a number nor a duration such as 5m"),
    ("sum by (a=b) (x)", "= at character 10 stands in a list of labels"),
    ("sum by (a (x)", "( at character 11 stands in a list of labels"),
]


@pytest.mark.parametrize("query", VALID)
def test_what_is_right_is_let_through(query: str) -> None:
    assert mistake(query) is None


@pytest.mark.parametrize(("query", "wrong"), WRONG)
def test_what_is_wrong_is_told_with_its_place(query: str, wrong: str) -> None:
    found = mistake(query)
    assert found is not None
    message, hint = found
    assert message == f"is not PromQL: {wrong}"
    assert hint


@pytest.mark.parametrize(("query", "_"), WRONG)
def test_prometheus_own_parser_refuses_it_too(query: str, _: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        promql_parser.parse(query)


PARTS = st.sampled_from(
    [
        *("x", "sum", "rate", "by", "on", "offset", "and", "bool", "avg", "le", "start", "5m", "1", "1e-3"),
        *('"a"', "'b'", "`c`", "(", ")", "{", "}", "[", "]", ",", "=", "=~", "==", "+", "-", "*", "@", ":"),
        *('{a="b"}', "(x)", "[5m]", "[5m:1m]", "# \n", "$"),
    ]
)


@given(st.lists(PARTS, max_size=12))
def test_whatever_prometheus_own_parser_reads_has_no_mistake(parts: list[str]) -> None:
    query = " ".join(parts)
    try:
        promql_parser.parse(query)
    except ValueError:
        mistake(query)  # whatever it is, it is looked at to its end
        return
    assert mistake(query) is None


@given(
    st.sampled_from(VALID),
    st.integers(0, 80),
    st.sampled_from(["", "(", ")", "{", "}", "[", "]", '"', ",", "+", "5", "a"]),
)
def test_a_query_with_a_slip_is_refused_only_where_prometheus_refuses_it(
    query: str, at: int, slip: str
) -> None:
    slipped = query[:at] + slip + query[at + 1 :]
    if mistake(slipped) is not None:
        with pytest.raises(ValueError, match=r".+"):
            promql_parser.parse(slipped)
