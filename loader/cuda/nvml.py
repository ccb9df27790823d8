"""What a device's memory is used for, by NVML: all that is used, and how much of it by which process.

Asked before and after a context is made, it tells what the context costs, which the CUDA driver itself can't: to ask it, one needs
a context. Names are those of the NVML API reference.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from loader.errors import DeviceUnavailable

_MAX_PROCESSES = 1024
_UNKNOWN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory of a device that is used.

    Attributes:
        nbytes: by whomever.
        by_process: by processes that compute there, where NVML tells; in a container their numbers may be those of the host.
    """

    nbytes: int
    by_process: Mapping[int, int]


class Basis(StrEnum):
    """How a context's cost was found."""

    PROCESS = "Process"
    """NVML's figure for the process that had not been there before."""
    DIFFERENCE = "Difference"
    """By how much the device's used memory grew; others who took or gave back memory at the same time are in it."""
    UNKNOWN = "Unknown"
    """There is no NVML to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCost:
    """What a process's context takes of a device.

    Attributes:
        nbytes: how much; None if unknown.
        basis: how that was found.
    """

    nbytes: int | None
    basis: Basis


def plain_id(name: str) -> str:
    """A device's id in hexadecimal, from the form in which NVML writes it."""
    return name.lower().removeprefix("gpu-").removeprefix("mig-").replace("-", "")


def cost_between(before: Usage | None, after: Usage | None) -> ContextCost:
    """What a context costs that was made between two looks."""
    if before is None or after is None:
        return ContextCost(nbytes=None, basis=Basis.UNKNOWN)
    new = after.by_process.keys() - before.by_process.keys()
    if len(new) == 1:
        # Whatever number it goes by here: it is the one that came.
        return ContextCost(nbytes=after.by_process[new.pop()], basis=Basis.PROCESS)
    return ContextCost(nbytes=max(0, after.nbytes - before.nbytes), basis=Basis.DIFFERENCE)


def usage_of(uuid: str) -> Usage | None:
    """Look at a device; None where NVML isn't there, or doesn't know it.

    Args:
        uuid: its id, in hexadecimal.
    """
    try:
        return _Nvml().usage(uuid)
    except (OSError, AttributeError, DeviceUnavailable):
        return None


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Nvml:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")  # counted by NVML: asking again is harmless

    def usage(self, uuid: str) -> Usage:
        device = self._device(uuid)
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        processes = (_Process * _MAX_PROCESSES)()
        count = ctypes.c_uint(_MAX_PROCESSES)
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), processes)
        known = {each.pid: each.used for each in processes[: count.value] if each.used != _UNKNOWN}
        return Usage(nbytes=memory.used, by_process=known)

    def _device(self, uuid: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
        try:
            self._call("nvmlDeviceGetHandleByUUID", f"GPU-{dashed}".encode(), ctypes.byref(device))
        except DeviceUnavailable:
            self._call("nvmlDeviceGetHandleByUUID", f"MIG-{dashed}".encode(), ctypes.byref(device))
        return device

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceUnavailable(f"{name}: error {code} of NVML")
