"""From seats in rotation to the gateway's routes. Pure; called at each change of the cluster."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from scaler.core.model import PolicySpec
from scaler.gateway.routes import Endpoint, PolicyLimits, PolicyRoutes
from scaler.policy.scaling_policy import Queue
from scaler.runtime.observer import serves
from warmpool.seats import PolicyName, Seat

_MIB: Final = 1024 * 1024
_UNSAID: Final = PolicyLimits()
_NO_LIMITS: Final[Mapping[PolicyName, PolicyLimits]] = MappingProxyType({})


def limits(queue: Queue) -> PolicyLimits:
    """Return what a policy says of its queue, as gateways take it."""
    return PolicyLimits(
        max_requests=queue.max_requests,
        max_bytes=None if queue.max_mib is None else queue.max_mib * _MIB,
        max_age_seconds=queue.max_age_seconds,
        max_cold_seconds=queue.max_cold_seconds,
    )


def routes(
    policies: Sequence[PolicySpec],
    models: Mapping[PolicyName, tuple[str, ...]],
    seats: Sequence[Seat],
    queues: Mapping[PolicyName, PolicyLimits] = _NO_LIMITS,
) -> dict[PolicyName, PolicyRoutes]:
    """Return, per policy, its models and the residents that requests may go to.

    Args:
        policies: all policies; a seat takes as many requests as the policy says for its fleet.
        models: model names by policy name.
        seats: all seats.
        queues: what policies say of how much may wait.
    """
    slots = {
        policy.name: {share.fleet: share.target_in_flight for share in policy.fleets} for policy in policies
    }
    endpoints: dict[PolicyName, list[Endpoint]] = {name: [] for name in slots}
    for seat in seats:
        for name in seat.serving:
            room = slots.get(name, {}).get(seat.fleet)
            resident = seat.resident(name)
            if room and resident is not None and resident.address and serves(seat, name):
                endpoints[name].append(
                    Endpoint(seat=seat.name, uid=seat.uid, policy=name, url=resident.address, slots=room)
                )
    return {
        policy.name: PolicyRoutes(
            models=models[policy.name],
            endpoints=tuple(endpoints[policy.name]),
            limits=queues.get(policy.name, _UNSAID),
            ttft_seconds=policy.ttft_objective,
        )
        for policy in policies
    }
