"""What is to be known of a fleet beside its numbers: conditions, as Kubernetes words them, each with its reason and since when."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from warmpool.seats import FleetName


class ConditionType(StrEnum):
    """What can be said of a fleet."""

    PAUSED_RESIDENTS_REACHABLE = "PausedResidentsReachable"
    """A Service could send requests to paused residents: nothing is promoted, no pod becomes Ready, no size is written."""
    SIZE_DRIFTED = "SizeDrifted"
    """Somebody else has written its workload's size lately."""
    WORKLOAD_MISSING = "WorkloadMissing"
    """Its workload isn't there."""
    SEATS_UNSCHEDULABLE = "SeatsUnschedulable"
    """No node has taken some of its pods for long; they count as held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that is so.

    Attributes:
        type: what.
        message: the facts, and the mend.
        since: Unix time since which it is so.
    """

    type: ConditionType
    message: str
    since: float


class Conditions:
    """What is so at present.

    Args:
        wall: Unix seconds.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._all: dict[FleetName, dict[ConditionType, Condition]] = {}

    def set(self, fleet: FleetName, kind: ConditionType, message: str) -> bool:
        """Say that something is so, or with an empty message that it isn't; return whether that, or the message, is new."""
        here = self._all.setdefault(fleet, {})
        before = here.get(kind)
        if not message:
            return here.pop(kind, None) is not None
        if before is not None and before.message == message:
            return False
        here[kind] = Condition(
            type=kind, message=message, since=self._wall() if before is None else before.since
        )
        return True

    def get(self, fleet: FleetName, kind: ConditionType) -> Condition | None:
        """Return one of a fleet's; None where it isn't so."""
        return self._all.get(fleet, {}).get(kind)

    def forget(self, kept: Mapping[FleetName, object]) -> None:
        """Drop what was said of fleets that aren't kept."""
        self._all = {fleet: here for fleet, here in self._all.items() if fleet in kept}

    def all(self) -> Mapping[FleetName, tuple[Condition, ...]]:
        """Return what is so, per fleet; fleets of which there is nothing to say are missing."""
        return {
            fleet: tuple(here[kind] for kind in sorted(here)) for fleet, here in self._all.items() if here
        }
