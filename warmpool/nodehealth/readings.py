"""What was read of the GPUs, and what was told of them. PURE.

A reading has what one GPU said at one moment; what it didn't say is None and never 0, because a GPU without ECC and one without
errors are two things. An event is what the driver told unasked. Times are Unix seconds, because what follows from them outlives
a process and a boot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from types import MappingProxyType
from typing import Final


class Contact(StrEnum):
    """How far a GPU answered."""

    ANSWERS = "Answers"
    SILENT = "Silent"
    """It did not answer, whatever the reason: nothing is known, and nothing follows."""
    LOST = "Lost"
    """The driver says that it is lost."""
    RESET_REQUIRED = "ResetRequired"
    """The driver says that it wants a reset before anything else."""


class RecoveryAction(IntEnum):
    """What the driver says has to be done with a GPU, by nvml.h's `nvmlDeviceGpuRecoveryAction_t`."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class Clocks(IntFlag):
    """Why clocks are what they are, as far as it matters, by nvml.h's `nvmlClocksEventReason…`."""

    IDLE = 0x1
    POWER_CAP = 0x4
    HARDWARE_SLOWDOWN = 0x8
    SOFTWARE_THERMAL = 0x20
    HARDWARE_THERMAL = 0x40
    POWER_BRAKE = 0x80


ALARMING: Final = Clocks.HARDWARE_SLOWDOWN | Clocks.HARDWARE_THERMAL | Clocks.POWER_BRAKE
"""Reasons that a cooled and powered GPU doesn't have; a power cap is normal."""


class FabricState(IntEnum):
    """How far a GPU has joined its NVLink fabric, by nvml.h's `nvmlGpuFabricState_t`."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ecc:
    """Counts of memory errors; None where the GPU doesn't count.

    Attributes:
        enabled: whether ECC is on.
        corrected, uncorrected: since the driver was loaded.
        corrected_ever, uncorrected_ever: in the GPU's life.
        dram_uncorrected, sram_uncorrected: since the driver was loaded, by location.
        sram_threshold_exceeded: NVIDIA's own threshold for inspecting the hardware was passed.
    """

    enabled: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None
    dram_uncorrected: int | None = None
    sram_uncorrected: int | None = None
    sram_threshold_exceeded: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Memory rows that were replaced by spare ones (Ampere and later).

    Attributes:
        correctable, uncorrectable: rows replaced, by which errors.
        pending: a replacement waits for a reset.
        failure: a replacement has failed, ever.
    """

    correctable: int
    uncorrectable: int
    pending: bool
    failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareRows:
    """How many memory banks have how many spare rows left."""

    all: int
    high: int
    partial: int
    low: int
    none: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Memory pages that were retired (before Ampere).

    Attributes:
        corrected, uncorrected: pages retired, by which errors.
        pending: a retirement waits for a reset.
    """

    corrected: int | None = None
    uncorrected: int | None = None
    pending: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie:
    """The link to the host: lanes and generation, now and at most; generations fall at rest, lanes don't.

    Attributes:
        width, most_width: lanes.
        generation, most_generation: of PCIe.
        replays: packets sent again.
    """

    width: int | None = None
    most_width: int | None = None
    generation: int | None = None
    most_generation: int | None = None
    replays: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links to other GPUs.

    Attributes:
        active, inactive: how many are up and down.
        errors: errors of all of them, since the driver was loaded; None where none are counted.
        failed_recoveries: times that a link did not come back, likewise.
    """

    active: int
    inactive: int
    errors: int | None = None
    failed_recoveries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The NVLink fabric that the GPU is a part of.

    Attributes:
        state: how far it has joined.
        ailments: what the fabric says is wrong with the GPU's part of it, in words.
    """

    state: FabricState
    ailments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What one GPU said at one moment.

    Attributes:
        uuid: which one.
        bus_id: its PCI address; empty if unknown.
        contact: how far it answered; where it didn't answer, nothing else is set.
        reason: why something isn't known, in words.
        recovery: what the driver says has to be done with it; None where the driver has no such word.
        ecc, rows, spare_rows, pages: its memory.
        repair_pending: parts wait for a repair at the next reset.
        clocks: why clocks are what they are.
        celsius, memory_celsius, slowdown_celsius: temperatures, and the one at which hardware slows down.
        watts, limit_watts: power, and its limit.
        pcie, links, fabric: its connections.
        millijoules: energy used since the driver was loaded: when it falls, the GPU was initialised anew.
        shared: a pod spans it and other GPUs; None where nobody knows.
    """

    uuid: str
    bus_id: str = ""
    contact: Contact = Contact.ANSWERS
    reason: str = ""
    recovery: int | None = None
    ecc: Ecc = Ecc()
    rows: Rows | None = None
    spare_rows: SpareRows | None = None
    pages: Pages = Pages()
    repair_pending: bool | None = None
    clocks: Clocks | None = None
    celsius: int | None = None
    memory_celsius: int | None = None
    slowdown_celsius: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    pcie: Pcie = Pcie()
    links: Links | None = None
    fabric: Fabric | None = None
    millijoules: int | None = None
    shared: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """What all GPUs of a node said.

    Attributes:
        at: when, in Unix seconds.
        boot: id of the kernel's boot; empty if unknown.
        listed: the driver has listed its GPUs, so that a GPU that isn't among `gpus` is missing.
        gpus: by UUID.
        silent: GPUs that are there and don't say who they are.
        reason: why nothing is known of any; empty if something is.
    """

    at: float
    boot: str
    listed: bool = True
    gpus: Mapping[str, GpuReading] = field(default_factory=lambda: MappingProxyType({}))
    silent: int = 0
    reason: str = ""


class Told(StrEnum):
    """What an event is about."""

    XID = "Xid"
    RECOVERY = "Recovery"
    """The driver's own verdict has changed."""
    UNAVAILABLE = "Unavailable"
    """The GPU can't be used at present."""
    MEMORY = "Memory"
    """An error of its memory that wasn't corrected."""
    STORM = "Storm"
    """Very many corrected errors of its memory."""


class Source(StrEnum):
    """Who told of an event."""

    NVML = "Nvml"
    KERNEL = "Kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the driver told unasked.

    Attributes:
        at: when, in Unix seconds.
        uuid: the GPU; empty where it couldn't be found out, and then it is about no GPU.
        told: what it is about.
        xid: the code of an error; 0 for others.
        text: the driver's message, where there is one.
        source: who told.
    """

    at: float
    uuid: str
    told: Told = Told.XID
    xid: int = 0
    text: str = ""
    source: Source = Source.NVML


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What came of a resident that was started on GPUs and asked something of which the answer is known.

    Attributes:
        at: when, in Unix seconds.
        gpus: UUIDs of the GPUs that it computes on.
        passed: whether it answered as it should.
        proof: stands for its engine and what that should answer, so that equal ones can be compared; empty where nobody says.
        fault: what was found of the GPUs before any weights were loaded, in words; empty for what an engine answered.
    """

    at: float
    gpus: frozenset[str]
    passed: bool
    proof: str = ""
    fault: str = ""
