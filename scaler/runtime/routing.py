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
    table = {}
    for policy in policies:
        slots = {share.fleet: share.target_in_flight for share in policy.fleets}
        endpoints = []
        for seat in seats:
            resident = seat.resident(policy.name)
            if (
                seat.fleet in slots
                and serves(seat, policy.name)
                and resident is not None
                and resident.address
            ):
                endpoints.append(
                    Endpoint(
                        seat=seat.name,
                        uid=seat.uid,
                        policy=policy.name,
                        url=resident.address,
                        slots=slots[seat.fleet],
                    )
                )
        table[policy.name] = PolicyRoutes(models=models[policy.name], endpoints=tuple(endpoints))
    return table
