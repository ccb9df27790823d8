"""The few numbers that are read from an engine's metrics page, in Prometheus' text format. PURE.

Several engines of one server (label `engine` or `dp_rank`) are added up. A page has some 600 lines and a handful are wanted, so the
others are never parsed.
"""

import math
from collections.abc import Iterable
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from warmpool.engines.port import EngineLoad
from warmpool.errors import EngineUnfit

VLLM: Final = ("vllm:num_requests_running", "vllm:num_requests_waiting")
"""What vLLM calls running and waiting requests; the reference engine too."""
SGLANG: Final = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
"""What SGLang calls them."""
_SLEEP_STATE: Final = "vllm:engine_sleep_state"
_COMPONENT_STATE: Final = "vllm:engine_sleep_component_state"
"""What vLLM after 0.32 has beside it: the scheduler, the weights and the KV memory, each with a state of its own."""
_CACHE: Final = "vllm:cache_config_info"
_AWAY: Final = frozenset({"weights_offloaded", "discard_all"})


def parse_load(text: str, names: tuple[str, str] = VLLM) -> EngineLoad:
    """Read running and waiting requests.

    Args:
        text: the page.
        names: how the page calls running and waiting requests.

    Raises:
        EngineUnfit: the metrics aren't there, or it is no such text.
    """
    samples = _samples(text, names)
    running, waiting = ([each.value for each in samples if each.name == name] for name in names)
    if not running or not waiting:
        raise EngineUnfit(f"GET /metrics: {names[0]} or {names[1]} is missing")
    totals = sum(running), sum(waiting)
    if not all(math.isfinite(total) and total >= 0 for total in totals):
        raise EngineUnfit(f"GET /metrics: {totals[0]} running and {totals[1]} waiting are no counts")
    return EngineLoad(running=int(totals[0]), waiting=int(totals[1]))


def weights_away(text: str) -> bool | None:
    """Whether a vLLM page says that weights have left the device's memory; None if it doesn't tell.

    Raises:
        EngineUnfit: it is no such text.
    """
    away = _component_away(text, "weights")
    if away is not None:
        return away
    states = [each for each in _samples(text, (_SLEEP_STATE,)) if each.name == _SLEEP_STATE]
    if not states:
        return None
    return any(each.value > 0 and each.labels.get("sleep_state") in _AWAY for each in states)


def kv_away(text: str) -> bool | None:
    """Whether a vLLM page says that KV memory is given back; None if it doesn't tell, as up to version 0.32.

    Raises:
        EngineUnfit: it is no such text.
    """
    return _component_away(text, "kv_cache")


def _component_away(text: str, component: str) -> bool | None:
    states = {
        each.labels.get("state")
        for each in _samples(text, (_COMPONENT_STATE,))
        if each.name == _COMPONENT_STATE and each.labels.get("component") == component and each.value > 0
    }
    return states != {"resident"} if states else None


def kv_memory_bytes(text: str) -> int | None:
    """Return the size of the KV memory per device that a vLLM page tells, in bytes; None if it was left to vLLM to choose.

    Raises:
        EngineUnfit: it is no such text.
    """
    told = [
        each.labels.get("kv_cache_memory_bytes", "")
        for each in _samples(text, (_CACHE,))
        if each.name == _CACHE
    ]
    sizes = [int(size) for size in told if size.isdecimal()]
    return sum(sizes) if sizes and len(sizes) == len(told) else None


def _samples(text: str, names: Iterable[str]) -> list[Sample]:
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(tuple(names)))
    try:
        return [sample for family in text_string_to_metric_families(wanted) for sample in family.samples]
    except ValueError as error:
        raise EngineUnfit(f"GET /metrics: not Prometheus' text format: {error}") from error
