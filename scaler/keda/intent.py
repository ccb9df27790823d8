"""What policy files want of the ScaledObject that sizes a fleet. PURE."""

from collections.abc import Mapping

from scaler.errors import UserError
from scaler.keda.findings import Intent
from scaler.keda.objects import ScaledObject, Target
from scaler.keda.trigger import Subject
from scaler.policy.compile import PolicySet
from scaler.policy.fleet import Fleet, ResizedBy
from scaler.policy.floors import seats_at_rest
from warmpool.seats import FleetName

Workloads = Mapping[tuple[str, Target], str]
"""Fleets by namespace and workload."""


def workloads_of(policies: PolicySet) -> Workloads:
    """Return whose workload is whose."""
    return {
        (fleet.metadata.namespace, _workload(fleet)): str(name) for name, fleet in policies.fleets.items()
    }


def fleet_of(policies: PolicySet, scaled: ScaledObject) -> str | None:
    """Return the fleet that a ScaledObject is about: whose workload it scales, else whose total it follows; None for companions."""
    return fleet_among(workloads_of(policies), scaled)


def fleet_among(workloads: Workloads, scaled: ScaledObject) -> str | None:
    """Return what `fleet_of` does, for who asks of many."""
    sized = workloads.get((scaled.namespace, scaled.target))
    if sized is not None:
        return sized
    asked = [each.asks for each in scaled.own if each.asks.subject is Subject.FLEET]
    return asked[0].name if asked else None


def intent_of(policies: PolicySet, fleet: str, running: int | None = None) -> Intent:
    """Return what a fleet wants.

    Args:
        policies: the set.
        fleet: the fleet's name.
        running: its seats at present; None while unknown.

    Raises:
        UserError: there is no such fleet.
    """
    name = FleetName(fleet)
    found = policies.fleets.get(name)
    if found is None:
        known = ", ".join(sorted(policies.fleets)) or "none"
        raise UserError(f"no policy file has a fleet named {fleet}", hint=f"the files have: {known}")
    spec, meta = found.spec, found.metadata
    return Intent(
        fleet=meta.name,
        namespace=meta.namespace,
        workload=_workload(found),
        max_seats=spec.max_seats,
        floor=seats_at_rest(policies, name),
        by_keda=spec.resized_by is ResizedBy.KEDA,
        down_window=float(spec.scale_down.stabilization_window_seconds),
        running=running,
    )


def _workload(fleet: Fleet) -> Target:
    target = fleet.spec.target
    if target is None:
        return Target(kind="Deployment", name=fleet.metadata.name)
    return Target(kind=target.kind, name=target.name)
