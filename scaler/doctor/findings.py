"""What was found: a closed list of codes, how much each matters, and the command that mends it. PURE."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scaler.keda.findings import Code as KedaCode
from scaler.keda.findings import Severity

__all__ = ["Code", "Finding", "KedaCode", "Severity", "ordered"]


class Code(StrEnum):
    """What was found; what there is to find in a ScaledObject and its HPA is a list of its own (`scaler.keda.findings`)."""

    # what it may do
    RIGHT_MISSING = "RightMissing"
    NOT_LOOKED_AT = "NotLookedAt"
    CONTROLLER_NOT_REACHED = "ControllerNotReached"
    NOTHING_HERE = "NothingHere"
    # who reaches seats, and who may take them away
    PAUSED_RESIDENTS_REACHABLE = "PausedResidentsReachable"
    BUDGETS_OVERLAP = "BudgetsOverlap"
    BUDGET_BLOCKS = "BudgetBlocks"
    BUDGET_KEEPS_UNREADY = "BudgetKeepsUnready"
    BUDGET_MISSING = "BudgetMissing"
    SIZE_IN_MANIFEST = "SizeInManifest"
    NETWORK_BLOCKS = "NetworkBlocks"
    # what seats are made of
    GRACE_TOO_SHORT = "GraceTooShort"
    PROBES = "Probes"
    GATE_MISSING = "GateMissing"
    RESIDENTS_MISSING = "ResidentsMissing"
    RESIDENTS_UNREADABLE = "ResidentsUnreadable"
    NOT_RESIDENT = "NotResident"
    RESIDENT_UNKNOWN = "ResidentUnknown"
    PORT_DIFFERS = "PortDiffers"
    PRIORITIES_DIFFER = "PrioritiesDiffer"
    TOLERATES_EXCLUSION = "ToleratesExclusion"
    CLAIM_UNREADABLE = "ClaimUnreadable"
    # what policies name
    WORKLOAD_MISSING = "WorkloadMissing"
    FLEET_LABEL_MISSING = "FleetLabelMissing"
    FLEET_UNKNOWN = "FleetUnknown"
    # what the controller says of itself
    POLICIES_NOT_LOADED = "PoliciesNotLoaded"
    CONDITION = "Condition"
    # engines
    ENGINE_CANNOT = "EngineCannot"
    # KEDA
    KEDA_MISSING = "KedaMissing"
    SCALER_UNREADABLE = "ScalerUnreadable"
    # nodes
    GPUS_ABSENT = "GpusAbsent"
    GPUS_TOO_FEW = "GpusTooFew"
    GPUS_UNHEALTHY = "GpusUnhealthy"
    CLOCK_DIFFERS = "ClockDiffers"
    NODE_CLOCK_DIFFERS = "NodeClockDiffers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or good to know.

    Attributes:
        code: what.
        severity: how much it matters.
        object: which object, as `Kind namespace/name`.
        path: where in it; empty for all of it.
        message: what is wrong.
        mend: the command that mends it, or shows more.
    """

    code: Code | KedaCode
    severity: Severity
    object: str
    path: str = ""
    message: str
    mend: str = ""


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, the gravest first, then by object."""
    grave = list(Severity)
    distinct = dict.fromkeys(findings)
    return tuple(
        sorted(distinct, key=lambda each: (grave.index(each.severity), each.object, each.code, each.path))
    )
