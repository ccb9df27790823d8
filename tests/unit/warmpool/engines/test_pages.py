"""The few numbers of a metrics page, read from recorded pages and from what is none."""

from pathlib import Path

import pytest

from warmpool.engines.pages import SGLANG, VLLM, kv_memory_bytes, parse_load, weights_away
from warmpool.errors import EngineUnfit

PAGES = Path(__file__).resolve().parents[3] / "data/engine-pages"


def test_load_is_summed_over_engines_and_other_metrics_are_skipped() -> None:
    text = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
process_open_fds nonsense
"""
    load = parse_load(text)
    assert (load.running, load.waiting) == (5, 1)


@pytest.mark.parametrize(
    ("page", "names", "running", "waiting"),
    [
        ("vllm-0.32-paused.txt", VLLM, 0, 0),
        ("vllm-0.32-under-load.txt", VLLM, 2, 4),
        ("sglang.txt", SGLANG, 12, 5),
    ],
)
def test_recorded_pages_are_read(page: str, names: tuple[str, str], running: int, waiting: int) -> None:
    load = parse_load((PAGES / page).read_text(), names)
    assert (load.running, load.waiting) == (running, waiting)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "vllm:num_requests_running 1",
        "vllm:num_requests_running what\nvllm:num_requests_waiting 1",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting 1",
        "vllm:num_requests_running +Inf\nvllm:num_requests_waiting 1",
        "vllm:num_requests_running -1\nvllm:num_requests_waiting 1",
    ],
)
def test_what_holds_no_counts_is_no_page(text: str) -> None:
    with pytest.raises(EngineUnfit):
        parse_load(text)


@pytest.mark.parametrize(
    ("text", "away"),
    [
        ("", None),
        ('vllm:engine_sleep_state{sleep_state="awake"} 1', False),
        (
            'vllm:engine_sleep_state{sleep_state="awake"} 0\nvllm:engine_sleep_state{sleep_state="weights_offloaded"} 1',
            True,
        ),
        ('vllm:engine_sleep_state{sleep_state="discard_all"} 1', True),
        ('vllm:engine_sleep_state{sleep_state="kv_cache_released"} 1', False),
    ],
)
def test_weights_are_away_if_the_sleep_state_says_so(text: str, away: bool | None) -> None:  # noqa: FBT001 (a table)
    assert weights_away(text) is away


def test_weights_of_a_recorded_paused_engine_are_there() -> None:
    assert weights_away((PAGES / "vllm-0.32-paused.txt").read_text()) is False


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('vllm:cache_config_info{kv_cache_memory_bytes="1024"} 1', 1024),
        (
            'vllm:cache_config_info{engine="0",kv_cache_memory_bytes="1024"} 1\nvllm:cache_config_info{engine="1",kv_cache_memory_bytes="1"} 1',
            1025,
        ),
        ('vllm:cache_config_info{kv_cache_memory_bytes="None"} 1', None),
        ("vllm:cache_config_info 1", None),
        ("", None),
    ],
)
def test_the_size_of_the_kv_memory_is_read_where_it_was_set(text: str, size: int | None) -> None:
    assert kv_memory_bytes(text) == size
