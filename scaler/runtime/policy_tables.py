"""What the loop makes of a policy set."""

from collections.abc import Iterable, Mapping

from scaler.core.model import FleetSpec
from scaler.policy.compile import PolicySet
from scaler.policy.fleet import HealingAction
from scaler.runtime.controller import PolicyTable
from scaler.runtime.routing import limits
from warmpool.healing import Rule
from warmpool.seats import FleetName


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
        healing=healing_of(policies),
        heeded=policies.heeded,
    )


def healing_of(policies: PolicySet) -> Mapping[FleetName, Rule]:
    """Return when fleets' seats are replaced because their engines don't start as they should."""
    said = {name: fleet.spec.self_healing for name, fleet in policies.fleets.items()}
    return {
        name: Rule(
            init_seconds=float(each.init_duration_seconds),
            consecutive=each.consecutive,
            replaces=each.action is HealingAction.REPLACE_POD,
        )
        for name, each in said.items()
    }
