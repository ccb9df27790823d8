"""The port to NVML, and its adapter over nvidia-ml-py, which is imported when a driver is first asked for.

Every call blocks its thread and may never return; `warmpool.nodehealth.lanes` is where they are made. Each failure is an
`NvmlError` whose class says what helps. What NVML doesn't tell is None here, and never 0.

Traps that the adapter takes care of, so that nobody else has to:
- A library that has been closed knows none of its handles any more (InvalidArgument), and neither does one whose MIG layout
  has changed. Handles are kept here, and are looked up anew with every listing.
- The functions without a version in their name raise an error that is no `NVMLError` when the driver is too old for them.
- Version 1 of the memory call counts what the driver keeps for itself as used (645 MB of an idle H200).
- A process that computes and draws is in several lists, each time with all of its memory.
- Between the two calls that read a list of processes it may grow: InsufficientSize.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from warmpool.errors import WarmpoolError
from warmpool.nodehealth.nvml_health import WANTED, HealthReader, told_of
from warmpool.nodehealth.readings import GpuReading, Told

_Result = TypeVar("_Result")

_LIST_ATTEMPTS = 5
_MOST_BYTES = 2**62
"""No device has this much; larger figures are NVML's way of saying that it doesn't know (2^64 − 1, all bits set)."""


class NvmlError(WarmpoolError):
    """NVML didn't answer; what it would have said is unknown. Asking again later may help.

    Attributes:
        code: NVML's own number of the error; None where it didn't come from NVML.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class NvmlUnsupported(NvmlError):
    """This device, driver or user never gets an answer to this; asking again doesn't help."""


class NvmlClosed(NvmlError):
    """The library isn't initialised or the driver isn't loaded, as after a reload of the driver: `start` again."""


class NvmlOutdated(NvmlError):
    """Driver and library are of different versions: the driver was replaced. Only a new process loads the new library."""


class NvmlAbsent(NvmlError):
    """There is no NVML on this machine, or nvidia-ml-py isn't installed."""


class DeviceGone(NvmlError):
    """The device is lost, wants a reset, or isn't known by this UUID any more: list again, and tell that it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or one MIG device of it.

    Attributes:
        uuid: its identity, `GPU-…` or `MIG-…`.
        index: the driver's number of the GPU, a MIG device's own GPU's; it may change when a GPU is lost.
        minor: N of its device file /dev/nvidiaN; None if the driver doesn't tell.
        name: the product's name.
        bus_id: its PCI address; empty if the driver doesn't tell.
        parent: UUID of the GPU that a MIG device is a part of; empty for a GPU.
        partitioned: a GPU in MIG mode, whose processes are told by its MIG devices alone.
    """

    uuid: str
    index: int
    minor: int | None = None
    name: str = ""
    bus_id: str = ""
    parent: str = ""
    partitioned: bool = False

    @property
    def gpu(self) -> str:
        """UUID of the GPU that it is, or is a part of."""
        return self.parent or self.uuid


def by_name(devices: Sequence[Device]) -> dict[str, str]:
    """Return the devices' UUIDs by what a device may be called: its UUID, or a GPU's index."""
    return {device.uuid: device.uuid for device in devices} | {
        str(device.index): device.uuid for device in devices if not device.parent
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All devices.

    Attributes:
        devices: in an order that stays: by PCI address, each GPU before its MIG devices.
        unreadable: why GPUs are missing from it, one sentence each.
        silent: how many of those are there and can't be read; the others are lost.
    """

    devices: tuple[Device, ...] = ()
    unreadable: tuple[str, ...] = ()
    silent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of one device.

    Attributes:
        total_bytes: all of it.
        used_bytes: allocated by processes, without what the driver keeps for itself where that is told.
        free_bytes: what can be allocated.
        reserved_bytes: kept by driver and firmware; None from drivers that count it as used.
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that has a context on a device.

    Attributes:
        pid: its process id in the initial PID namespace, or in the reader's, as the driver has it.
        held_bytes: device memory that it holds; None if the driver doesn't tell.
    """

    pid: int
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """What the driver told unasked.

    Attributes:
        uuid: the GPU; empty if it couldn't be found out.
        told: what it is about.
        xid: the code of an error; 0 for others.
    """

    uuid: str
    told: Told
    xid: int = 0


class Nvml(Protocol):
    """NVML as far as it is asked. Every call may block for ever, and every call raises `NvmlError`."""

    def start(self) -> None:
        """Initialise the library; the driver stays initialised until `stop`."""

    def stop(self) -> None:
        """Let go of the driver. Only while no other call is under way."""

    def devices(self) -> Listing:
        """List the devices that there are now. One that can't be read is told of and leaves the others readable."""

    def memory(self, uuid: str) -> DeviceMemory:
        """Read a device's memory."""

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List the processes that have a context on a device, each once, by process id.

        A reader outside the initial PID namespace is told of processes in its own namespace alone, by their ids there, and of
        the others by no error (driver 580; older ones give ids of the initial namespace). An empty list isn't "nobody" there.
        """

    def health(self, uuid: str) -> GpuReading:
        """Read everything of a GPU that tells of its health. What it doesn't have is None; that it is lost is an answer."""

    def watch(self) -> tuple[str, ...]:
        """Have events of all GPUs that were last listed told from now on; those of before are gone.

        Returns:
            Why events of GPUs aren't told, one sentence each.
        """

    def next_events(self, milliseconds: int) -> tuple[DriverEvent, ...]:
        """Wait for an event that is watched for; nothing if none came in time."""


_UNINITIALIZED = 1
"""`NVML_ERROR_UNINITIALIZED` of nvml.h."""

_BY_CODE: Mapping[int, type[NvmlError]] = MappingProxyType(
    {
        _UNINITIALIZED: NvmlClosed,
        2: DeviceGone,  # invalid argument: all that we pass is handles
        3: NvmlUnsupported,
        4: NvmlUnsupported,  # no permission
        6: DeviceGone,  # not found
        9: NvmlClosed,  # driver not loaded
        12: NvmlAbsent,  # no library
        13: NvmlUnsupported,  # no such function: an older driver
        15: DeviceGone,  # GPU is lost
        16: DeviceGone,  # reset required
        18: NvmlOutdated,  # library and driver differ
        25: NvmlUnsupported,  # argument version: an older driver
        28: DeviceGone,  # GPU not found
    }
)
"""What helps against NVML's errors, by nvml.h's `nvmlReturn_t`; against all others, only time may."""


def error_of(code: int, text: str) -> NvmlError:
    """Return the error for NVML's number of it."""
    return _BY_CODE.get(code, NvmlError)(f"{text} (NVML error {code})", code)


def driver() -> "DriverNvml":
    """Return NVML as nvidia-ml-py gives it.

    Raises:
        NvmlAbsent: nvidia-ml-py isn't installed.
    """
    try:
        return DriverNvml(import_module("pynvml"))
    except ImportError as error:
        raise NvmlAbsent("nvidia-ml-py is not installed (it comes with emberpool[node])") from error


class DriverNvml:
    """NVML through a module that has nvidia-ml-py's functions.

    Args:
        library: the module.
    """

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module without types
        self._library = library
        self._handles: Mapping[str, Any] = {}
        self._gpus: Mapping[str, str] = {}
        self._health = HealthReader(library, self._call, NvmlError, NvmlUnsupported)
        self._events: Any = None
        self._started = False

    def start(self) -> None:
        """See `Nvml.start`."""
        self._started = True
        try:
            self._call(self._library.nvmlInit)
        except NvmlError:
            self._started = False
            raise

    def stop(self) -> None:
        """See `Nvml.stop`."""
        self._handles, self._gpus, self._events = {}, {}, None
        try:
            self._call(self._library.nvmlShutdown)
        finally:
            self._started = False

    def devices(self) -> Listing:
        """See `Nvml.devices`."""
        handles: dict[str, Any] = {}
        found: list[tuple[tuple[str, int], Device]] = []
        unreadable, silent = [], 0
        for index in range(self._call(self._library.nvmlDeviceGetCount)):
            try:
                gpu, handle = self._gpu(index)
                parts = self._parts(gpu, handle) if gpu.partitioned else []
            except (NvmlClosed, NvmlOutdated):
                raise
            except NvmlError as error:
                unreadable.append(f"GPU {index}: {error}")
                silent += not isinstance(error, DeviceGone)
                continue
            for place, (device, its_handle) in enumerate([(gpu, handle), *parts]):
                handles[device.uuid] = its_handle
                found.append(((gpu.bus_id, place), device))
        found.sort(key=lambda each: each[0])
        devices = tuple(device for _, device in found)
        self._handles = handles
        self._gpus = {device.uuid: device.bus_id for device in devices if not device.parent}
        return Listing(devices=devices, unreadable=tuple(unreadable), silent=silent)

    def memory(self, uuid: str) -> DeviceMemory:
        """See `Nvml.memory`."""
        read, handle = self._library.nvmlDeviceGetMemoryInfo, self._handle(uuid)
        try:
            info = self._call(read, handle, version=self._library.nvmlMemory_v2)
        except NvmlUnsupported:
            info = self._call(read, handle)
        return DeviceMemory(
            total_bytes=int(info.total),
            used_bytes=int(info.used),
            free_bytes=int(info.free),
            reserved_bytes=int(info.reserved) if hasattr(info, "reserved") else None,
        )

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """See `Nvml.processes`."""
        handle = self._handle(uuid)
        held = dict[int, int | None]()
        for pid, size in self._list("Compute", handle) + self._others(handle):
            held[pid] = max((each for each in (held.get(pid), size) if each is not None), default=None)
        return tuple(GpuProcess(pid, held[pid]) for pid in sorted(held))

    def health(self, uuid: str) -> GpuReading:
        """See `Nvml.health`."""
        return self._health.read(self._handle(uuid), uuid, self._gpus.get(uuid, ""))

    def watch(self) -> tuple[str, ...]:
        """See `Nvml.watch`."""
        library = self._library
        self._free_events()
        events = self._call(library.nvmlEventSetCreate)
        reasons = []
        for uuid in self._gpus:
            try:
                handle = self._handle(uuid)
                mask = self._call(library.nvmlDeviceGetSupportedEventTypes, handle) & WANTED
                if not mask:
                    reasons.append(f"{uuid}: its driver tells of no events")
                    continue
                self._call(library.nvmlDeviceRegisterEvents, handle, mask, events)
            except (NvmlClosed, NvmlOutdated):
                raise
            except NvmlError as error:
                reasons.append(f"{uuid}: {error}")
        self._events = events
        return tuple(reasons)

    def next_events(self, milliseconds: int) -> tuple[DriverEvent, ...]:
        """See `Nvml.next_events`."""
        library, events = self._library, self._events
        if events is None:
            raise NvmlClosed("no events are watched for")
        try:
            found = self._call(library.nvmlEventSetWait_v2, events, milliseconds)
        except NvmlError as error:
            if error.code == library.NVML_ERROR_TIMEOUT:
                return ()
            raise
        kinds = told_of(int(found.eventType))
        uuid = self._gpu_of(found.device)
        return tuple(
            DriverEvent(uuid, told, int(found.eventData) if told is Told.XID else 0) for told in kinds
        )

    def _gpu_of(self, handle: Any) -> str:  # noqa: ANN401 - NVML's handles
        """Return the UUID of an event's GPU; empty where it can't be found out, for it may have just died."""
        try:
            return _text(self._call(self._library.nvmlDeviceGetUUID, handle))
        except NvmlError:
            return ""

    def _free_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with suppress(NvmlError):
                self._call(self._library.nvmlEventSetFree, events)

    # ------------------------------------------------------------------ devices

    def _gpu(self, index: int) -> tuple[Device, Any]:
        library = self._library
        handle = self._call(library.nvmlDeviceGetHandleByIndex, index)
        mode = self._optional(library.nvmlDeviceGetMigMode, handle)
        pci = self._optional(library.nvmlDeviceGetPciInfo, handle)
        device = Device(
            uuid=_text(self._call(library.nvmlDeviceGetUUID, handle)),
            index=index,
            minor=self._optional(library.nvmlDeviceGetMinorNumber, handle),
            name=_text(self._optional(library.nvmlDeviceGetName, handle)),
            bus_id=_text(getattr(pci, "busId", "")),
            partitioned=mode is not None and mode[0] == library.NVML_DEVICE_MIG_ENABLE,
        )
        return device, handle

    def _parts(self, gpu: Device, handle: Any) -> list[tuple[Device, Any]]:  # noqa: ANN401 - NVML's handles
        """Return a GPU's MIG devices, in the order of their instances."""
        library = self._library
        parts = []
        for place in range(self._optional(library.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            try:
                part = self._call(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            except DeviceGone:  # a place that no MIG device is in
                continue
            instances = (
                self._call(library.nvmlDeviceGetGpuInstanceId, part),
                self._call(library.nvmlDeviceGetComputeInstanceId, part),
            )
            device = Device(
                uuid=_text(self._call(library.nvmlDeviceGetUUID, part)),
                index=gpu.index,
                minor=gpu.minor,
                name=_text(self._optional(library.nvmlDeviceGetName, part)),
                bus_id=gpu.bus_id,
                parent=gpu.uuid,
            )
            parts.append((instances, device, part))
        parts.sort(key=lambda each: each[0])
        return [(device, part) for _, device, part in parts]

    def _handle(self, uuid: str) -> Any:  # noqa: ANN401 - NVML's handles
        try:
            return self._handles[uuid]
        except KeyError:
            raise DeviceGone(f"no device {uuid} was there when devices were last listed") from None

    # ------------------------------------------------------------------ processes

    def _others(self, handle: Any) -> list[tuple[int, int | None]]:  # noqa: ANN401 - NVML's handles
        """Return the processes that draw, and those that compute through MPS, where such are known."""
        others = []
        for kind in ("Graphics", "MPSCompute"):
            try:
                others += self._list(kind, handle)
            except NvmlUnsupported:
                continue
        return others

    def _list(self, kind: str, handle: Any) -> list[tuple[int, int | None]]:  # noqa: ANN401 - NVML's handles
        try:
            listed = self._grown(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)
        except NvmlUnsupported:
            listed = self._grown(f"nvmlDeviceGet{kind}RunningProcesses_v2", handle)
        return [(int(each.pid), _known(each.usedGpuMemory)) for each in listed]

    def _grown(self, function: str, handle: Any) -> list[Any]:  # noqa: ANN401 - NVML's handles
        """Read a list, again where it has grown between the two calls that it takes."""
        read = getattr(self._library, function)
        for _ in range(_LIST_ATTEMPTS):
            try:
                return list(self._call(read, handle))
            except NvmlError as error:
                if error.code != self._library.NVML_ERROR_INSUFFICIENT_SIZE:
                    raise
        raise NvmlError(f"{function}: the list grew faster than it could be read")

    # ------------------------------------------------------------------ calls

    def _call(self, function: Callable[..., _Result], *arguments: object, **named: object) -> _Result:
        if not self._started:  # the library counts who uses it: others of this process may hold it open
            raise NvmlClosed("the library isn't open", _UNINITIALIZED)
        try:
            return function(*arguments, **named)
        except self._library.NVMLError as error:
            raise error_of(int(error.value), str(error)) from error

    def _optional(self, function: Callable[..., Any], handle: Any) -> Any:  # noqa: ANN401 - NVML's own types
        """Return what a call that may be unsupported says; None where it is."""
        try:
            return self._call(function, handle)
        except NvmlUnsupported:
            return None


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _known(size: int | None) -> int | None:
    return size if size is not None and 0 <= size < _MOST_BYTES else None
