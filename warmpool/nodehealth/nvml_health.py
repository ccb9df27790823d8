"""Reading one GPU's health through nvidia-ml-py's functions, and naming its events.

What a GPU, a driver or a library doesn't have is None. A call that fails otherwise leaves its part unknown with the reason, and
the others are read: a GPU whose ECC can't be read still tells that it is hot. Only a GPU that answers nothing at all is silent.
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from warmpool.nodehealth.readings import (
    Clocks,
    Contact,
    Ecc,
    Fabric,
    FabricState,
    GpuReading,
    Links,
    Pages,
    Pcie,
    Rows,
    SpareRows,
    Told,
)

_Result = TypeVar("_Result")

FIELDS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "recovery": 230,
        "energy": 83,
        "memory_temperature": 82,
        "retired_corrected": 29,
        "retired_uncorrected": 30,
        "retired_pending": 31,
        "link_failures": 214,
    }
)
"""Values that have a number and no function, by nvml.h's NVML_FI_DEV_…; read in one call."""

LOST, RESET_REQUIRED = 15, 16
INVALID_ARGUMENT = 2
_MOST_LINKS = 36
_ENABLED = 1
_TRUE = 1
_NEVER_WIDER: Final = 2**53

EVENTS: Final[Mapping[int, Told]] = MappingProxyType(
    {
        0x8: Told.XID,
        0x8000: Told.RECOVERY,
        0x4000: Told.UNAVAILABLE,
        0x200: Told.STORM,
        0x2: Told.MEMORY,
        0x400: Told.MEMORY,
        0x800: Told.MEMORY,
        0x1000: Told.MEMORY,
        0x2000: Told.MEMORY,
    }
)
"""What is asked to be told of, by nvml.h's nvmlEventType…; older drivers have the first and the fifth alone."""
WANTED: Final = sum(EVENTS)


class Calls(Protocol):
    """How a function of the library is called: its errors are `NvmlError`s."""

    def __call__(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call it."""


@dataclass(slots=True)
class HealthReader:
    """Reads GPUs.

    Attributes:
        library: nvidia-ml-py.
        call: calls its functions.
        failed: the base of the errors that a call may raise.
        unsupported: the error of what a GPU will never tell.
    """

    library: Any
    call: Calls
    failed: type[Exception]
    unsupported: type[Exception]

    def read(self, handle: Any, uuid: str, bus_id: str) -> GpuReading:  # noqa: ANN401 - NVML's handles
        """Read one GPU.

        Args:
            handle: NVML's.
            uuid: the GPU's.
            bus_id: its PCI address.
        """
        return _Look(self, handle).read(uuid, bus_id)


@dataclass(slots=True)
class _Look:
    """One look at one GPU."""

    by: HealthReader
    handle: Any
    answers: int = 0
    errors: dict[int | None, str] = field(default_factory=dict)

    def read(self, uuid: str, bus_id: str) -> GpuReading:
        fields = self._fields()
        ecc, rows, spare = self._ecc(), self._rows(), self._spare_rows()
        clocks, pcie, links, fabric = self._clocks(), self._pcie(), self._links(fields), self._fabric()
        celsius, slowdown = (
            self._ask("nvmlDeviceGetTemperature", 0),
            self._ask("nvmlDeviceGetTemperatureThreshold", 1),
        )
        watts, limit = self._watts("nvmlDeviceGetPowerUsage"), self._watts("nvmlDeviceGetEnforcedPowerLimit")
        repair = self._ask("nvmlDeviceGetRepairStatus")
        contact, reason = self._contact()
        if contact is not Contact.ANSWERS:
            return GpuReading(uuid=uuid, bus_id=bus_id, contact=contact, reason=reason)
        pending = fields["retired_pending"]
        return GpuReading(
            uuid=uuid,
            bus_id=bus_id,
            reason=reason,
            recovery=fields["recovery"],
            ecc=ecc,
            rows=rows,
            spare_rows=spare,
            pages=Pages(
                corrected=fields["retired_corrected"],
                uncorrected=fields["retired_uncorrected"],
                pending=None if pending is None else bool(pending),
            ),
            repair_pending=None if repair is None else any(repair),
            clocks=clocks,
            celsius=celsius,
            memory_celsius=fields["memory_temperature"],
            slowdown_celsius=slowdown,
            watts=watts,
            limit_watts=limit,
            pcie=pcie,
            links=links,
            fabric=fabric,
            millijoules=fields["energy"],
        )

    def _contact(self) -> tuple[Contact, str]:
        """Return how far the GPU answered: what the driver says of it counts more than that some call went well."""
        reason = "; ".join(dict.fromkeys(self.errors.values()))
        if LOST in self.errors:
            return Contact.LOST, reason
        if RESET_REQUIRED in self.errors:
            return Contact.RESET_REQUIRED, reason
        return (Contact.ANSWERS if self.answers else Contact.SILENT), reason

    # ------------------------------------------------------------------ calls

    def _ask(self, function: str, *arguments: object) -> Any:  # noqa: ANN401 - NVML's own types
        """Return what a call says; None where it can't be had."""
        try:
            found = self.by.call(getattr(self.by.library, function), self.handle, *arguments)
        except AttributeError:  # an older nvidia-ml-py
            return None
        except self.by.unsupported:
            self.answers += 1
            return None
        except self.by.failed as error:
            self.errors[getattr(error, "code", None)] = str(error)
            return None
        self.answers += 1
        return found

    def _fields(self) -> dict[str, int | None]:
        found = self._ask("nvmlDeviceGetFieldValues", list(FIELDS.values()))
        if found is None:
            return dict.fromkeys(FIELDS)
        return {name: _value(each) for name, each in zip(FIELDS, found, strict=True)}

    def _count(self, function: str, *arguments: int) -> int | None:
        found = self._ask(function, *arguments)
        return int(found) if isinstance(found, int) and 0 <= found < _NEVER_WIDER else None

    def _watts(self, function: str) -> float | None:
        milliwatts = self._count(function)
        return None if milliwatts is None else milliwatts / 1000

    # ------------------------------------------------------------------ parts

    def _ecc(self) -> Ecc:
        mode = self._ask("nvmlDeviceGetEccMode")
        total, place = "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMemoryErrorCounter"
        return Ecc(
            enabled=None if mode is None else mode[0] == _ENABLED,
            corrected=self._count(total, 0, 0),
            uncorrected=self._count(total, 1, 0),
            corrected_ever=self._count(total, 0, 1),
            uncorrected_ever=self._count(total, 1, 1),
            dram_uncorrected=self._count(place, 1, 0, 2),
            sram_uncorrected=self._count(place, 1, 0, 7),
            sram_threshold_exceeded=self._sram(),
        )

    def _sram(self) -> bool | None:
        status = self._filled(
            "nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t", "nvmlEccSramErrorStatus_v1"
        )
        return None if status is None else bool(status.bThresholdExceeded)

    def _filled(self, function: str, structure: str, version: str) -> Any:  # noqa: ANN401 - NVML's own types
        """Return a structure that a call fills; None where it can't be had."""
        library = self.by.library
        if not hasattr(library, structure) or not hasattr(library, version):
            return None
        made = getattr(library, structure)()
        made.version = getattr(library, version)
        return None if self._ask(function, byref(made)) is None else made

    def _rows(self) -> Rows | None:
        found = self._ask("nvmlDeviceGetRemappedRows")
        if found is None:
            return None
        correctable, uncorrectable, pending, failure = found
        return Rows(
            correctable=int(correctable),
            uncorrectable=int(uncorrectable),
            pending=bool(pending),
            failure=bool(failure),
        )

    def _spare_rows(self) -> SpareRows | None:
        found = self._ask("nvmlDeviceGetRowRemapperHistogram")
        if found is None:
            return None
        levels = {name: int(getattr(found, name)) for name in ("high", "partial", "low", "none")}
        full = int(found.max)
        return SpareRows(all=full + sum(levels.values()), **levels)

    def _clocks(self) -> Clocks | None:
        found = self._count("nvmlDeviceGetCurrentClocksEventReasons")
        if found is None:
            found = self._count("nvmlDeviceGetCurrentClocksThrottleReasons")
        known = sum(Clocks)
        return None if found is None else Clocks(found & known)

    def _pcie(self) -> Pcie:
        return Pcie(
            width=self._count("nvmlDeviceGetCurrPcieLinkWidth"),
            most_width=self._count("nvmlDeviceGetMaxPcieLinkWidth"),
            generation=self._count("nvmlDeviceGetCurrPcieLinkGeneration"),
            most_generation=self._count("nvmlDeviceGetMaxPcieLinkGeneration"),
            replays=self._count("nvmlDeviceGetPcieReplayCounter"),
        )

    def _links(self, fields: Mapping[str, int | None]) -> Links | None:
        states: list[bool] = []
        errors: int | None = None
        for link in range(_MOST_LINKS):
            known = dict(self.errors)
            state = self._ask("nvmlDeviceGetNvLinkState", link)
            if state is None:
                if INVALID_ARGUMENT not in known:  # there is no such link
                    self.errors.pop(INVALID_ARGUMENT, None)
                break
            states.append(state == _ENABLED)
            replays = self._count("nvmlDeviceGetNvLinkErrorCounter", link, 0)
            errors = errors if replays is None else (errors or 0) + replays
        if not states:
            return None
        return Links(
            active=sum(states),
            inactive=len(states) - sum(states),
            errors=errors,
            failed_recoveries=fields["link_failures"],
        )

    def _fabric(self) -> Fabric | None:
        found = self._filled(
            "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2"
        )
        if found is None:
            return None
        try:
            state = FabricState(found.state)
        except ValueError:
            return None
        return Fabric(state=state, ailments=_ailments(int(found.healthMask), int(found.status), state))


_FLAGS: Final = (
    (0, "degraded bandwidth"),
    (2, "a route is being recovered"),
    (4, "a route is unhealthy"),
    (6, "accesses time out"),
)
_TWO_BITS, _FOUR_BITS, _CONFIGURATION_SHIFT, _CONFIGURATION_FINE = 0x3, 0xF, 8, 1


def _ailments(mask: int, status: int, state: FabricState) -> tuple[str, ...]:
    found = [text for shift, text in _FLAGS if (mask >> shift) & _TWO_BITS == _TRUE]
    configuration = (mask >> _CONFIGURATION_SHIFT) & _FOUR_BITS
    if configuration > _CONFIGURATION_FINE:
        found.append(f"it is configured wrongly (kind {configuration})")
    if state is FabricState.COMPLETED and status:
        found.append(f"joining ended with error {status}")
    return tuple(found)


_PARTS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _value(found: Any) -> int | None:  # noqa: ANN401 - NVML's own types
    """Return the value of a field; None if it has none."""
    if found.nvmlReturn != 0 or not 0 <= found.valueType < len(_PARTS):
        return None
    value = getattr(found.value, _PARTS[found.valueType])
    return int(value) if 0 <= value < _NEVER_WIDER else None


def told_of(kind: int) -> Sequence[Told]:
    """Return what an event of NVML's is about; nothing for kinds that weren't asked for."""
    return [told for bit, told in EVENTS.items() if kind & bit]
