"""From seats in rotation to the gateway's routes. Pure; called at each change of the cluster."""

from collections.abc import Mapping, Sequence

from scaler.core.model import PolicySpec
from scaler.gateway.routes import Endpoint, PolicyRoutes
from scaler.runtime.observer import serves
from warmpool.seats import PolicyName, Seat


def routes(
    policies: Sequence[PolicySpec], models: Mapping[PolicyName, tuple[str, ...]], seats: Sequence[Seat]
) -> dict[PolicyName, PolicyRoutes]:
    """Return, per policy, its models and the residents that requests may go to.

    Args:
        policies: all policies; a seat takes as many requests as the policy says for its fleet.
        models: model names by policy name.
        seats: all seats.
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
            ttft_seconds=policy.ttft_objective,
        )
        for policy in policies
    }
