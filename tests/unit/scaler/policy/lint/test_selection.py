"""Whose series a query reads."""

import pytest

from scaler.policy.lint.selection import everybodys

OPEN = {
    "sum(q)": ("q",),
    "max(q)": ("q",),
    "sum by (pod) (q)": ("q",),
    "sum(q{})": ("q",),
    'sum(q{le="1"})': ("q",),
    'sum(q{model_name=~".*"})': ("q",),
    'sum(q{model_name=~".+"})': ("q",),
    'sum(q{model_name=""})': ("q",),
    'sum(q{namespace!="kube-system"})': ("q",),
    'sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting{model_name="chat"})': (
        "vllm:num_requests_running",
    ),
    "sum(q + p)": ("q", "p"),
    "sum(q) + sum(q)": ("q",),
    'sum(q or p{namespace="a"})': ("q",),
    'sum(q unless p{namespace="a"})': ("q",),
    'sum(q and on () p{namespace="a"})': ("q",),
    'sum(q * scalar(p{namespace="a"}))': ("q",),
    'sum(q * max(p{namespace="a"}))': ("q",),
    "sum(q > 5)": ("q",),
    "sum(max_over_time(q[5m]))": ("q",),
    "-sum(q)": ("q",),
    "clamp_min(sum(q), 1)": ("q",),
    "sum(q) or vector(0)": ("q",),
}
SELECTED = [
    'sum(q{namespace="serving"})',
    'sum(q{model_name="chat"})',
    'sum(q{model_name=~"chat|chat-small"})',
    'sum(q{policy="chat"})',
    'sum(q{job="chat",le="1"})',
    'sum({__name__="q",team="chat"})',
    'sum(q * on (pod) group_left () kube_pod_labels{label_app="chat"})',
    'sum(q and on (pod) up{job="chat"})',
    'sum(q * on (pod) group_left () max by (pod) (p{namespace="a"}))',
    "sum(chat:requests:sum)",
    "q",
    "max_over_time(q[5m])",
    "vector(1)",
    "no query (",
]


@pytest.mark.parametrize(("query", "names"), OPEN.items(), ids=OPEN.keys())
def test_series_that_nothing_selects_are_everybody_s(query: str, names: tuple[str, ...]) -> None:
    assert everybodys(query) == names


@pytest.mark.parametrize("query", SELECTED)
def test_series_that_something_selects_or_that_nothing_is_added_to_are_not(query: str) -> None:
    assert everybodys(query) == ()
