# ruff: noqa: N802, N815 - the names are nvidia-ml-py's
"""libnvidia-ml in Python: what nvidia-ml-py's functions do, over devices that a test describes, with faults that it scripts.

The real adapter runs over it, so what is faked is the driver alone. Its refusals are nvidia-ml-py's own errors. Handles die when
the library is closed, as real ones do: a later call with one says InvalidArgument.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
from pynvml import NVMLError

NOT_SUPPORTED, NOT_FOUND, INVALID, UNINITIALIZED = 3, 6, 2, 1
FUNCTION_NOT_FOUND = 13
H200_BYTES, H200_RESERVED = 150_754_820_096, 644_939_776
CONTEXT_BYTES = 545_259_520


@dataclass(eq=False)
class FakeGpu:
    """A GPU or a MIG device."""

    uuid: str
    processes: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    total: int = H200_BYTES
    reserved: int = H200_RESERVED
    beyond: int = 0
    """Memory in use that no process is told to hold."""
    minor: int = 0
    bus_id: str = "00000000:00:06.0"
    name: str = "NVIDIA H200"
    parts: dict[int, "FakeGpu"] = field(default_factory=dict)
    """MIG devices by place; None where MIG mode is off."""
    mig: bool = False
    instance: tuple[int, int] = (0, 0)

    @property
    def used(self) -> int:
        holders = {**self.graphics, **self.processes}
        return sum(size or 0 for size in holders.values()) + self.beyond


@dataclass(frozen=True)
class _Handle:
    gpu: FakeGpu
    generation: int


class FakeLibrary:
    """Has the functions and constants that are used of nvidia-ml-py."""

    NVMLError = NVMLError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    NVML_ERROR_INSUFFICIENT_SIZE = pynvml.NVML_ERROR_INSUFFICIENT_SIZE

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.faults: dict[tuple[str, str], list[int]] = {}
        self.old = False
        """The driver is too old for version 2 of the memory call and version 3 of the lists."""
        self.calls: list[str] = []
        self.most_at_once: dict[str, int] = {}
        self._generation = 0
        self._open = False
        self._hangs: dict[tuple[str, str], threading.Event] = {}
        self._inside: dict[str, int] = {}
        self._lock = threading.Lock()

    # -------------------------------------------------------------- scripts

    def fail(self, function: str, code: int, *, uuid: str = "", times: int = 10_000) -> None:
        """Have a function raise an error; `uuid` empty: for every device, and for functions that take none."""
        self.faults[function, uuid] = [code] * times

    @contextmanager
    def hanging(self, function: str, *, uuid: str = "") -> Iterator[Callable[[], None]]:
        """Have a function not return until the block is left, or the yielded function is called."""
        released = threading.Event()
        self._hangs[function, uuid] = released
        try:
            yield released.set
        finally:
            released.set()
            del self._hangs[function, uuid]

    def reload(self) -> None:
        """Reload the driver under the library's feet."""
        self._open = False

    # -------------------------------------------------------------- functions

    def nvmlInit(self) -> None:
        self._enter("nvmlInit")
        self._generation += 1
        self._open = True

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown", opened=True)
        self._open = False

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount", opened=True)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle:
        gpu = self.gpus[index]
        self._enter("nvmlDeviceGetHandleByIndex", gpu, opened=True)
        return _Handle(gpu, self._generation)

    def nvmlDeviceGetUUID(self, handle: _Handle) -> str:
        return self._of("nvmlDeviceGetUUID", handle).uuid

    def nvmlDeviceGetName(self, handle: _Handle) -> str:
        return self._of("nvmlDeviceGetName", handle).name

    def nvmlDeviceGetMinorNumber(self, handle: _Handle) -> int:
        return self._of("nvmlDeviceGetMinorNumber", handle).minor

    def nvmlDeviceGetPciInfo(self, handle: _Handle) -> Any:
        return SimpleNamespace(busId=self._of("nvmlDeviceGetPciInfo", handle).bus_id)

    def nvmlDeviceGetMigMode(self, handle: _Handle) -> list[int]:
        mode = int(self._of("nvmlDeviceGetMigMode", handle).mig)
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: _Handle) -> int:
        return 7 if self._of("nvmlDeviceGetMaxMigDeviceCount", handle).mig else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: _Handle, place: int) -> _Handle:
        gpu = self._of("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        if place not in gpu.parts:
            raise NVMLError(NOT_FOUND)
        return _Handle(gpu.parts[place], handle.generation)

    def nvmlDeviceGetGpuInstanceId(self, handle: _Handle) -> int:
        return self._of("nvmlDeviceGetGpuInstanceId", handle).instance[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: _Handle) -> int:
        return self._of("nvmlDeviceGetComputeInstanceId", handle).instance[1]

    def nvmlDeviceGetMemoryInfo(self, handle: _Handle, version: int | None = None) -> Any:
        gpu = self._of("nvmlDeviceGetMemoryInfo", handle)
        free = gpu.total - gpu.used - gpu.reserved
        if version is None:
            return SimpleNamespace(total=gpu.total, used=gpu.used + gpu.reserved, free=free)
        if self.old:
            raise NVMLError(FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=gpu.total, used=gpu.used, free=free, reserved=gpu.reserved)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: _Handle) -> list[Any]:
        return self._listed("nvmlDeviceGetComputeRunningProcesses_v3", handle)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: _Handle) -> list[Any]:
        return self._listed("nvmlDeviceGetComputeRunningProcesses_v2", handle)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: _Handle) -> list[Any]:
        return self._listed("nvmlDeviceGetGraphicsRunningProcesses_v3", handle)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: _Handle) -> list[Any]:
        return self._listed("nvmlDeviceGetGraphicsRunningProcesses_v2", handle)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: _Handle) -> list[Any]:
        return self._listed("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle)

    def nvmlDeviceGetMPSComputeRunningProcesses_v2(self, handle: _Handle) -> list[Any]:
        return self._listed("nvmlDeviceGetMPSComputeRunningProcesses_v2", handle)

    # -------------------------------------------------------------- how they behave

    def _listed(self, function: str, handle: _Handle) -> list[Any]:
        gpu = self._of(function, handle)
        if self.old and function.endswith("_v3"):
            raise NVMLError(FUNCTION_NOT_FOUND)
        if gpu.mig:
            raise NVMLError(NOT_SUPPORTED)  # processes of a GPU in MIG mode are its MIG devices'
        held = {} if "MPS" in function else gpu.graphics if "Graphics" in function else gpu.processes
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held.items()]

    def _of(self, function: str, handle: _Handle) -> FakeGpu:
        self._enter(function, handle.gpu, opened=True)
        if handle.generation != self._generation:
            raise NVMLError(INVALID)
        return handle.gpu

    def _enter(self, function: str, gpu: FakeGpu | None = None, *, opened: bool = False) -> None:
        uuid = gpu.uuid if gpu is not None else ""
        with self._lock:
            self.calls.append(function)
            self._inside[uuid] = self._inside.get(uuid, 0) + 1
            self.most_at_once[uuid] = max(self.most_at_once.get(uuid, 0), self._inside[uuid])
        try:
            for key in {(function, uuid), (function, "")}:
                if (hang := self._hangs.get(key)) is not None:
                    hang.wait()
                if faults := self.faults.get(key):
                    raise NVMLError(faults.pop())
            if opened and not self._open:
                raise NVMLError(UNINITIALIZED)
        finally:
            with self._lock:
                self._inside[uuid] -= 1
