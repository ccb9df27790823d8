"""What the loop makes of a policy set."""

from collections.abc import Iterable

from scaler.core.model import FleetSpec
from scaler.policy.compile import PolicySet
from scaler.runtime.controller import PolicyTable
from scaler.runtime.routing import limits


def table_of(policies: PolicySet, fleets: Iterable[FleetSpec] | None = None) -> PolicyTable:
    """Return a set's table.

    Args:
        policies: the set.
        fleets: its fleets as far as they can be followed; None: as they are written.
    """
    return PolicyTable(
        policies=tuple(policies.policy_specs.values()),
        fleets=tuple(policies.fleet_specs.values() if fleets is None else fleets),
        hash=policies.short_hash,
        models={name: policy.models for name, policy in policies.policies.items()},
        queues={name: limits(policy.spec.queue) for name, policy in policies.policies.items()},
        calendar=policies.calendar,
        gpu_budget=policies.gpu_budget,
        namespaces={name: fleet.metadata.namespace for name, fleet in policies.fleets.items()},
        health_observed=policies.health_observed,
        gpus_apart=policies.gpus_apart,
        breaker=policies.breaker,
    )
