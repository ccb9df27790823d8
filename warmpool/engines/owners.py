"""What engines tell of what they run with, in their own words. PURE.

Nobody is asked to tell it, and what is told otherwise than expected counts as unknown: an expectation that says more is then held
against tokens alone.
"""

from collections.abc import Mapping
from typing import Any

from warmpool.expectations import Ownership

_LONGEST = 64


def of_reference(startup: Mapping[str, Any]) -> Ownership:
    """Read the reference engine's `/emberpool/startup`."""
    told = startup.get("ownership")
    if not isinstance(told, dict):
        return Ownership()
    return Ownership(
        weights_digest=_text(told.get("weightsDigest")),
        engine_version=_text(told.get("engineVersion")),
        dtype=_text(told.get("dtype")),
        tensor_parallel_size=_size(told.get("tensorParallelSize")),
    )


def of_vllm(version: str, config: Mapping[str, Any]) -> Ownership:
    """Read vLLM's `/version` and the `vllm_config` of its `/server_info`, which tells the number format as torch writes it."""
    model, parallel = config.get("model_config"), config.get("parallel_config")
    return Ownership(
        engine_version=_text(version),
        dtype=_dtype(model.get("dtype")) if isinstance(model, dict) else "",
        tensor_parallel_size=_size(parallel.get("tensor_parallel_size")) if isinstance(parallel, dict) else 0,
    )


def of_sglang(info: Mapping[str, Any]) -> Ownership:
    """Read SGLang's `/server_info`, which has its arguments beside its version."""
    return Ownership(
        engine_version=_text(info.get("version")),
        dtype=_dtype(info.get("dtype")),
        tensor_parallel_size=_size(info.get("tp_size")),
    )


def _dtype(value: object) -> str:
    """Read a number format; `auto` says that the model's own was taken, and not which that is."""
    name = _text(value).removeprefix("torch.")
    return "" if name == "auto" else name


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _size(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
