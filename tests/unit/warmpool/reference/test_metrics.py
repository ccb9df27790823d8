from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from warmpool.reference.metrics import Ended, Metrics
from warmpool.reference.sequence import FinishReason, Load

RECORDED = dict(
    line.split() for line in (Path(__file__).parent / "golden" / "vllm_metrics.txt").read_text().splitlines()
)
WANTED = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:engine_sleep_state",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("tiny", 512)


def _types(metrics: Metrics) -> dict[str, str]:
    lines = metrics.text().decode().splitlines()
    return dict(line.split()[2:4] for line in lines if line.startswith("# TYPE vllm:"))


def _values(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_names_and_types_are_vllms(metrics: Metrics) -> None:
    types = _types(metrics)
    assert {name: RECORDED.get(name) for name in types} == types
    assert types.keys() >= WANTED


def test_first_token_buckets_are_vllms(metrics: Metrics) -> None:
    edges = [labels[1] for labels in _values(metrics, "vllm:time_to_first_token_seconds_bucket")]
    below = ["0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0"]
    above = ["2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf"]
    assert edges == below + above


def test_samples_carry_engine_and_model(metrics: Metrics) -> None:
    metrics.load(Load(running=2, waiting=4, kv_usage=0.25))
    assert _values(metrics, "vllm:num_requests_running") == {("0", "tiny"): 2.0}
    assert _values(metrics, "vllm:num_requests_waiting") == {("0", "tiny"): 4.0}
    assert _values(metrics, "vllm:kv_cache_usage_perc") == {("0", "tiny"): 0.25}


def test_a_request_is_counted_once(metrics: Metrics) -> None:
    metrics.first_token(0.05, prompt_tokens=7)
    metrics.next_token(0.01)
    metrics.ended(
        Ended(
            reason=FinishReason.LENGTH,
            prompt_tokens=7,
            generation_tokens=2,
            max_tokens=2,
            arrived=1.0,
            first=1.05,
            last=1.06,
        )
    )
    assert _values(metrics, "vllm:prompt_tokens_total") == {("0", "tiny"): 7.0}
    assert _values(metrics, "vllm:generation_tokens_total") == {("0", "tiny"): 2.0}
    assert _values(metrics, "vllm:request_success_total")["0", "length", "tiny"] == 1.0
    assert _values(metrics, "vllm:e2e_request_latency_seconds_sum")["0", "tiny"] == pytest.approx(0.06)


@pytest.mark.parametrize("parked", [False, True])
def test_sleep_state_tells_parked_from_released(metrics: Metrics, *, parked: bool) -> None:
    metrics.sleep(asleep=True, parked=parked)
    assert _values(metrics, "vllm:engine_sleep_state") == {
        ("0", "tiny", "awake"): 0.0,
        ("0", "tiny", "weights_offloaded"): float(parked),
        ("0", "tiny", "discard_all"): 0.0,
    }


def test_what_is_parked_is_shown(metrics: Metrics) -> None:
    metrics.parked(8192)
    assert _values(metrics, "reference:parked_bytes") == {("0", "tiny"): 8192.0}


def test_taken_kv_memory_and_its_kind_are_shown(metrics: Metrics) -> None:
    metrics.kv_taken(4096, "mapped")
    line = 'reference:kv_taken_bytes{engine="0",memory="mapped",model_name="tiny"} 4096.0'
    assert line in metrics.text().decode().splitlines()
