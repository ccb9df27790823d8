"""What NVML says of the device: which card it is, and how much of its memory is used, by whomever."""

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("torch", "triton", "safetensors", "aiohttp")


def used_bytes() -> int:
    """Memory that is used on the first device, as NVML counts it.

    Raises:
        ImportError: `nvidia-ml-py` isn't installed.
        Exception: NVML's own errors: there is no driver.
    """
    nvml, handle = _handle()
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def used_mebibytes() -> float | None:
    """The same in MiB; None where there is no device to ask, or no package to ask with."""
    try:
        return used_bytes() / 2**20
    except Exception:  # noqa: BLE001 (no package, no driver: there is no device to ask)
        return None


def card() -> dict[str, str]:
    """The card, the driver and the versions of what computes."""
    nvml, handle = _handle()
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {
        "card": str(nvml.nvmlDeviceGetName(handle)),
        "memory": f"{memory.total >> 20} MiB",
        "driver": str(nvml.nvmlSystemGetDriverVersion()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _handle() -> tuple[Any, Any]:
    nvml = import_module("pynvml")
    nvml.nvmlInit()  # counted: asking again is harmless
    return nvml, nvml.nvmlDeviceGetHandleByIndex(0)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
