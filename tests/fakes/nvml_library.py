# ruff: noqa: N802, N815 - the names are nvidia-ml-py's
"""libnvidia-ml in Python: what nvidia-ml-py's functions do, over devices that a test describes, with faults that it scripts.

The real adapter runs over it, so what is faked is the driver alone. Its refusals are nvidia-ml-py's own errors. Handles die when
the library is closed, as real ones do: a later call with one says InvalidArgument. A GPU that a test says nothing about answers as
an H200 with driver 580 did (tests/data/nvml); a test holds the two against each other.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
from pynvml import NVMLError

NOT_SUPPORTED, NOT_FOUND, INVALID, UNINITIALIZED = 3, 6, 2, 1
FUNCTION_NOT_FOUND, TIMEOUT = 13, 10
H200_BYTES, H200_RESERVED = 150_754_820_096, 644_939_776
CONTEXT_BYTES = 545_259_520


@dataclass
class FakeHealth:
    """How a GPU is. None: it doesn't tell; the names are nvidia-ml-py's, by what follows `nvmlDeviceGet`."""

    ecc_mode: list[int] | None = field(default_factory=lambda: [1, 1])
    ecc: dict[tuple[int, int], int] | None = field(
        default_factory=lambda: {(kind, counter): 0 for kind in (0, 1) for counter in (0, 1)}
    )
    """Totals by error type and counter."""
    located: dict[tuple[int, int, int], int] = field(default_factory=lambda: {(1, 0, 2): 0, (1, 0, 7): 0})
    """Counts by error type, counter and location."""
    sram_exceeded: int | None = 0
    rows: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    histogram: tuple[int, int, int, int, int] | None = (3072, 0, 0, 0, 0)
    repair: list[int] | None = field(default_factory=lambda: [0, 0])
    reasons: int | None = 1
    celsius: int | None = 31
    thresholds: dict[int, int] = field(default_factory=lambda: {0: 95, 1: 89, 2: 95, 3: 87})
    milliwatts: int | None = 117_994
    limit_milliwatts: int | None = 700_000
    pcie: tuple[int, int, int, int] | None = (5, 5, 16, 16)
    """Generation now and at most, width now and at most."""
    replays: int | None = 1
    links: list[int] | None = None
    link_errors: int | None = None
    fabric: tuple[int, int, int] | None = None
    """State, status and health mask."""
    fields: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {230: (1, 0), 83: (3, 3_186_864), 82: (1, 31)}
    )
    """Type and value of what has a number; what isn't here is NotSupported."""
    events: int = 65_439


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
    health: FakeHealth = field(default_factory=FakeHealth)

    @property
    def used(self) -> int:
        holders = {**self.graphics, **self.processes}
        return sum(size or 0 for size in holders.values()) + self.beyond


@dataclass(frozen=True)
class _Handle:
    gpu: FakeGpu
    generation: int


class FakeEventSet:
    """What is registered for, by GPU, and what was told."""

    def __init__(self) -> None:
        self.masks: dict[str, int] = {}
        self.told: queue.Queue[tuple[FakeGpu, int, int]] = queue.Queue()


def _field(number: int, told: tuple[int, int] | None) -> Any:
    """Return the value of a field, as the driver fills it in."""
    value = pynvml.c_nvmlFieldValue_t()
    value.fieldId = number
    value.nvmlReturn = 0 if told is not None else NOT_SUPPORTED
    if told is not None:
        value.valueType = told[0]
        setattr(
            value.value, ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[told[0]], told[1]
        )
    return value


class FakeLibrary:
    """Has the functions and constants that are used of nvidia-ml-py."""

    NVMLError = NVMLError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    NVML_ERROR_INSUFFICIENT_SIZE = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    NVML_ERROR_TIMEOUT = pynvml.NVML_ERROR_TIMEOUT
    c_nvmlEccSramErrorStatus_v1_t = pynvml.c_nvmlEccSramErrorStatus_v1_t
    nvmlEccSramErrorStatus_v1 = pynvml.nvmlEccSramErrorStatus_v1
    c_nvmlGpuFabricInfo_v2_t = pynvml.c_nvmlGpuFabricInfo_v2_t
    nvmlGpuFabricInfo_v2 = pynvml.nvmlGpuFabricInfo_v2

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.faults: dict[tuple[str, str], list[int]] = {}
        self.old = False
        """The driver is too old for version 2 of the memory call and version 3 of the lists."""
        self.calls: list[str] = []
        self.most_at_once: dict[str, int] = {}
        """Calls under way at once, by UUID, and by function and UUID."""
        self._generation = 0
        self._open = False
        self._hangs: dict[tuple[str, str], threading.Event] = {}
        self._inside: dict[str, int] = {}
        self._lock = threading.Lock()
        self._sets: list[FakeEventSet] = []

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
        self._sets = []

    def emit(self, gpu: FakeGpu, kind: int, data: int = 0) -> int:
        """Tell of an event whoever is registered for it; return how many are."""
        told = [each for each in self._sets if each.masks.get(gpu.uuid, 0) & kind]
        for each in told:
            each.told.put((gpu, kind, data))
        return len(told)

    @property
    def watched(self) -> set[str]:
        """UUIDs of GPUs whose events somebody is registered for."""
        return {uuid for each in self._sets for uuid in each.masks}

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

    # -------------------------------------------------------------- health

    def nvmlDeviceGetEccMode(self, handle: _Handle) -> list[int]:
        return self._told("nvmlDeviceGetEccMode", handle, lambda health: health.ecc_mode)

    def nvmlDeviceGetTotalEccErrors(self, handle: _Handle, kind: int, counter: int) -> int:
        name = "nvmlDeviceGetTotalEccErrors"
        return self._told(
            name, handle, lambda health: None if health.ecc is None else health.ecc[kind, counter]
        )

    def nvmlDeviceGetMemoryErrorCounter(self, handle: _Handle, kind: int, counter: int, place: int) -> int:
        name = "nvmlDeviceGetMemoryErrorCounter"
        if place >= pynvml.NVML_MEMORY_LOCATION_COUNT:
            raise NVMLError(INVALID)
        return self._told(name, handle, lambda health: health.located.get((kind, counter, place)))

    def nvmlDeviceGetSramEccErrorStatus(self, handle: _Handle, status: Any) -> int:
        exceeded = self._told("nvmlDeviceGetSramEccErrorStatus", handle, lambda health: health.sram_exceeded)
        made = status._obj
        assert made.version == pynvml.nvmlEccSramErrorStatus_v1
        made.bThresholdExceeded = exceeded
        return 0

    def nvmlDeviceGetRemappedRows(self, handle: _Handle) -> tuple[int, int, int, int]:
        return self._told("nvmlDeviceGetRemappedRows", handle, lambda health: health.rows)

    def nvmlDeviceGetRowRemapperHistogram(self, handle: _Handle) -> Any:
        name = "nvmlDeviceGetRowRemapperHistogram"
        levels = self._told(name, handle, lambda health: health.histogram)
        return SimpleNamespace(**dict(zip(("max", "high", "partial", "low", "none"), levels, strict=True)))

    def nvmlDeviceGetRepairStatus(self, handle: _Handle) -> list[int]:
        return self._told("nvmlDeviceGetRepairStatus", handle, lambda health: health.repair)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: _Handle) -> int:
        if self.old:
            raise NVMLError(FUNCTION_NOT_FOUND)
        return self._told("nvmlDeviceGetCurrentClocksEventReasons", handle, lambda health: health.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetCurrentClocksThrottleReasons", handle, lambda health: health.reasons)

    def nvmlDeviceGetTemperature(self, handle: _Handle, _sensor: int) -> int:
        return self._told("nvmlDeviceGetTemperature", handle, lambda health: health.celsius)

    def nvmlDeviceGetTemperatureThreshold(self, handle: _Handle, which: int) -> int:
        name = "nvmlDeviceGetTemperatureThreshold"
        return self._told(name, handle, lambda health: health.thresholds.get(which))

    def nvmlDeviceGetPowerUsage(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetPowerUsage", handle, lambda health: health.milliwatts)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetEnforcedPowerLimit", handle, lambda health: health.limit_milliwatts)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetCurrPcieLinkGeneration", handle, lambda health: health.pcie)[0]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetMaxPcieLinkGeneration", handle, lambda health: health.pcie)[1]

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetCurrPcieLinkWidth", handle, lambda health: health.pcie)[2]

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetMaxPcieLinkWidth", handle, lambda health: health.pcie)[3]

    def nvmlDeviceGetPcieReplayCounter(self, handle: _Handle) -> int:
        return self._told("nvmlDeviceGetPcieReplayCounter", handle, lambda health: health.replays)

    def nvmlDeviceGetNvLinkState(self, handle: _Handle, link: int) -> int:
        links = self._told("nvmlDeviceGetNvLinkState", handle, lambda health: health.links)
        if link >= len(links):
            raise NVMLError(INVALID)
        return links[link]

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: _Handle, _link: int, _counter: int) -> int:
        return self._told("nvmlDeviceGetNvLinkErrorCounter", handle, lambda health: health.link_errors)

    def nvmlDeviceGetGpuFabricInfoV(self, handle: _Handle, info: Any) -> int:
        told = self._told("nvmlDeviceGetGpuFabricInfoV", handle, lambda health: health.fabric)
        made = info._obj
        assert made.version == pynvml.nvmlGpuFabricInfo_v2
        made.state, made.status, made.healthMask = told
        return 0

    def nvmlDeviceGetFieldValues(self, handle: _Handle, ids: list[int]) -> list[Any]:
        fields = self._told("nvmlDeviceGetFieldValues", handle, lambda health: health.fields)
        return [_field(each, fields.get(each)) for each in ids]

    def _told(self, function: str, handle: _Handle, found: Callable[[FakeHealth], Any]) -> Any:
        told = found(self._of(function, handle).health)
        if told is None:
            raise NVMLError(NOT_SUPPORTED)
        return told

    # -------------------------------------------------------------- events

    def nvmlEventSetCreate(self) -> "FakeEventSet":
        self._enter("nvmlEventSetCreate", opened=True)
        made = FakeEventSet()
        self._sets.append(made)
        return made

    def nvmlEventSetFree(self, events: "FakeEventSet") -> None:
        self._enter("nvmlEventSetFree", opened=True)
        self._sets = [each for each in self._sets if each is not events]

    def nvmlDeviceGetSupportedEventTypes(self, handle: _Handle) -> int:
        return self._of("nvmlDeviceGetSupportedEventTypes", handle).health.events

    def nvmlDeviceRegisterEvents(self, handle: _Handle, mask: int, events: "FakeEventSet") -> None:
        gpu = self._of("nvmlDeviceRegisterEvents", handle)
        if mask & ~gpu.health.events:
            raise NVMLError(NOT_SUPPORTED)
        events.masks[gpu.uuid] = events.masks.get(gpu.uuid, 0) | mask

    def nvmlEventSetWait_v2(self, events: "FakeEventSet", milliseconds: int) -> Any:
        self._enter("nvmlEventSetWait_v2", opened=True)
        try:
            gpu, kind, data = events.told.get(timeout=milliseconds / 1000)
        except queue.Empty:
            raise NVMLError(TIMEOUT) from None
        return SimpleNamespace(device=_Handle(gpu, self._generation), eventType=kind, eventData=data)

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
            for key in (uuid, f"{function} {uuid}"):
                self._inside[key] = self._inside.get(key, 0) + 1
                self.most_at_once[key] = max(self.most_at_once.get(key, 0), self._inside[key])
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
                for key in (uuid, f"{function} {uuid}"):
                    self._inside[key] -= 1
