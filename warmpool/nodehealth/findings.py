"""What one reading says of a GPU by itself. PURE.

Each finding can be seen in a reading and gone in the next. What a GPU doesn't tell is neither found nor gone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from warmpool.nodehealth.readings import ALARMING, Clocks, FabricState, GpuReading, RecoveryAction
from warmpool.nodehealth.records import Clears, Code, Rules
from warmpool.seats import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a reading shows.

    Attributes:
        code: what.
        verdict: what it says.
        clears: what clears it.
        text: what it is, in words.
    """

    code: Code
    verdict: Verdict
    clears: Clears
    text: str


_S, _B = Verdict.SUSPECT, Verdict.BAD
_ACTIONS: Final[Mapping[int, tuple[Verdict, str]]] = MappingProxyType(
    {
        RecoveryAction.GPU_RESET: (_B, "the driver wants the GPU reset"),
        RecoveryAction.NODE_REBOOT: (_B, "the driver wants the node booted"),
        RecoveryAction.DRAIN_P2P: (_S, "the driver wants traffic between GPUs to end"),
        RecoveryAction.DRAIN_AND_RESET: (_S, "the driver wants the GPU reset when its work has ended"),
        RecoveryAction.RECOVER_IMEX_DOMAIN: (_S, "the driver wants the IMEX domain recovered"),
        RecoveryAction.BUS_RESET: (_B, "the driver wants the GPU's bus reset"),
        RecoveryAction.SYSTEM_REBOOT: (_B, "the driver wants the whole system booted"),
    }
)


@dataclass(frozen=True, slots=True)
class Look:
    """What a reading says of one code.

    Attributes:
        code: which.
        told: whether the GPU tells of it at all.
        finding: what is found; None if nothing is.
        lasts: the rule of how long it must have been so; None: it counts at once.
    """

    code: Code
    told: bool
    finding: Finding | None
    lasts: Callable[[Rules], float] | None = None


def looks(reading: GpuReading, most_links: int | None) -> Iterator[Look]:
    """Look at everything that a reading can show.

    Args:
        reading: the reading.
        most_links: the most links to other GPUs that were ever up; None if none was counted.
    """
    for look in _LOOKS:
        yield look(reading)
    yield _links(reading, most_links)


def is_slowed(reading: GpuReading) -> bool | None:
    """Whether hardware slows the GPU down at this moment; None if it doesn't tell."""
    return None if reading.clocks is None else bool(reading.clocks & ALARMING)


def _recovery(reading: GpuReading) -> Look:
    action = reading.recovery
    if not action:
        return Look(Code.RECOVERY_ACTION, action is not None, None)
    verdict, text = _ACTIONS.get(
        action, (_S, f"the driver wants something of a newer kind (action {action})")
    )
    return Look(
        Code.RECOVERY_ACTION,
        told=True,
        finding=Finding(code=Code.RECOVERY_ACTION, verdict=verdict, clears=Clears.READING, text=text),
    )


def _flag(code: Code, found: bool | None, verdict: Verdict, clears: Clears, text: str) -> Look:  # noqa: FBT001 - private
    finding = Finding(code=code, verdict=verdict, clears=clears, text=text) if found else None
    return Look(code, found is not None, finding)


def _row_failure(reading: GpuReading) -> Look:
    rows = reading.rows
    text = "replacing a memory row has failed"
    return _flag(Code.ROW_FAILURE, None if rows is None else rows.failure, _B, Clears.SERVICE, text)


def _row_pending(reading: GpuReading) -> Look:
    rows = reading.rows
    text = "a memory row is replaced at the next reset"
    return _flag(Code.ROW_PENDING, None if rows is None else rows.pending, _S, Clears.READING, text)


def _page_pending(reading: GpuReading) -> Look:
    text = "a memory page is retired at the next reset"
    return _flag(Code.PAGE_PENDING, reading.pages.pending, _S, Clears.READING, text)


def _repair_pending(reading: GpuReading) -> Look:
    text = "a part is repaired at the next reset"
    return _flag(Code.REPAIR_PENDING, reading.repair_pending, _S, Clears.READING, text)


def _sram(reading: GpuReading) -> Look:
    text = "more errors of on-chip memory than NVIDIA lets pass without inspection"
    return _flag(Code.SRAM_THRESHOLD, reading.ecc.sram_threshold_exceeded, _B, Clears.SERVICE, text)


def _pcie(reading: GpuReading) -> Look:
    width, most = reading.pcie.width, reading.pcie.most_width
    if not width or not most:
        return Look(Code.PCIE_NARROW, told=False, finding=None)
    text = f"{width} of {most} PCIe lanes"
    look = _flag(Code.PCIE_NARROW, width < most, _S, Clears.READING, text)
    return Look(look.code, look.told, look.finding, lambda rules: rules.narrow_seconds)


def _links(reading: GpuReading, most: int | None) -> Look:
    """Look at links that were up before, where a pod spans GPUs: not every board has all its links wired."""
    links = reading.links
    if links is None or reading.shared is None:
        return Look(Code.LINKS_DOWN, told=False, finding=None)
    down = (most or 0) - links.active
    text = f"{down} of {most} links to other GPUs are down"
    return _flag(Code.LINKS_DOWN, bool(reading.shared and down > 0), _S, Clears.READING, text)


def _fabric(reading: GpuReading) -> Look:
    fabric = reading.fabric
    if fabric is None or fabric.state is FabricState.NOT_SUPPORTED or reading.shared is None:
        return Look(Code.FABRIC, told=False, finding=None)
    ills = ", ".join(fabric.ailments)
    joining = fabric.state is not FabricState.COMPLETED
    text = "the GPU has not joined the NVLink fabric" if joining else f"the NVLink fabric says: {ills}"
    look = _flag(Code.FABRIC, bool(reading.shared and (joining or ills)), _S, Clears.READING, text)
    return Look(look.code, look.told, look.finding, lambda rules: rules.fabric_seconds)


_LOOKS: Final[tuple[Callable[[GpuReading], Look], ...]] = (
    *(_recovery, _row_failure, _row_pending, _page_pending, _repair_pending),
    *(_sram, _pcie, _fabric),
)


def notes(reading: GpuReading) -> tuple[str, ...]:
    """Say what is worth knowing and excludes nobody."""
    found = []
    spare, rows = reading.spare_rows, reading.rows
    if spare is not None and spare.none:
        found.append(f"{spare.none} of {spare.all} memory banks have no spare row left")
    if rows is not None and rows.uncorrectable:
        found.append(f"{rows.uncorrectable} memory rows were replaced after uncorrectable errors")
    if reading.ecc.enabled is False:
        found.append("ECC is off: memory errors are not noticed")
    if reading.clocks is not None and reading.clocks & Clocks.SOFTWARE_THERMAL:
        found.append("the driver slows the GPU down because it is hot")
    pcie = reading.pcie
    busy = reading.clocks is not None and not reading.clocks & Clocks.IDLE
    if busy and pcie.generation and pcie.most_generation and pcie.generation < pcie.most_generation:
        found.append(f"PCIe generation {pcie.generation} of {pcie.most_generation} under load")
    return tuple(found)
