"""What a PromQL query looks like, by its text alone.

The questions here need no parser: which functions and metrics a query names, and over which ranges. Where it matters what
belongs to what, `scaler.policy.promql.tree` reads it as a tree.
"""

import re
from typing import Final

from scaler.policy.promql.tree import duration_seconds

_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`|#[^\n]*')
_RANGE: Final = re.compile(r"\[\s*([0-9a-z]+)\s*(?::[^\]]*)?\]")
_EDGE: Final = re.compile(r"""\ble\s*=\s*["'`]\s*([0-9.eE+-]+)\s*["'`]""")
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ENGINE_PREFIXES: Final = ("vllm:", "sglang:")

RENAMED: Final = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries": "prefix_cache_queries",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
    "time_per_output_token_seconds": "inter_token_latency_seconds",
    "num_requests_swapped": "",
    "cpu_cache_usage_perc": "",
    "time_in_queue_requests": "request_queue_time_seconds",
    "model_forward_time_milliseconds": "",
    "model_execute_time_milliseconds": "",
}
"""Metrics of vLLM that are gone, without their prefix, and what took their place; nothing where nothing did
(vllm-project/vllm, pull requests 15458, 18354, 18837, 24110, 29330)."""


def _bare(query: str) -> str:
    """Return the query without what stands in quotes and comments."""
    return _TEXT.sub('""', query)


def calls(query: str, *functions: str) -> bool:
    """Whether a query calls one of some functions."""
    return re.search(rf"\b(?:{'|'.join(functions)})\s*\(", _bare(query)) is not None


def divides(query: str) -> bool:
    """Whether a query divides."""
    return "/" in _bare(query)


def subtracts(query: str) -> bool:
    """Whether a query takes something off."""
    return "-" in _RANGE.sub(" ", _bare(query))


def names(query: str) -> list[str]:
    """List the words of a query: metrics, functions, labels."""
    return _NAME.findall(_RANGE.sub(" ", _bare(query)))


def edges(query: str) -> list[float]:
    """List the histogram buckets that a query picks by `le="…"`, in seconds."""
    found = []
    for written in _EDGE.findall(query):
        try:
            found.append(float(written))
        except ValueError:
            continue
    return found


def longest_range(query: str) -> float | None:
    """Return the longest range that a query looks back over, in seconds; None if it has none."""
    return max((duration_seconds(written) for written in _RANGE.findall(_bare(query))), default=None)


def reads_recorded(query: str) -> bool:
    """Whether a query reads the series of a recording rule."""
    return any(map(is_recorded, names(query)))


def is_recorded(name: str) -> bool:
    """Whether a name is that of a recording rule, by the convention of a colon in it."""
    return ":" in name and not name.startswith(_ENGINE_PREFIXES)


def gone(query: str) -> list[tuple[str, str]]:
    """List the metrics in a query that vLLM has no more, each with what took its place."""
    found = []
    for name in names(query):
        prefix = next((prefix for prefix in ("vllm:", "vllm_") if name.startswith(prefix)), None)
        if prefix is None:
            continue
        bare = re.sub(r"_(bucket|sum|count|total)$", "", name.removeprefix(prefix))
        if bare in RENAMED:
            found.append((name, prefix + RENAMED[bare] if RENAMED[bare] else ""))
    return found
