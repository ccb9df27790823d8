"""How many seats there are while nothing happens: residents that always serve, and the least spares beside them."""

from collections.abc import Mapping

from scaler.policy.compile import PolicySet
from warmpool.seats import FleetName


def floors(policies: PolicySet) -> Mapping[FleetName, int]:
    """Return the residents that always serve, per fleet: each policy's floor on its fleets in order, as far as there are seats."""
    placed = dict.fromkeys(policies.fleets, 0)
    for policy in policies.policies.values():
        left = policy.spec.serving.min
        for name in (FleetName(share.name) for share in policy.spec.fleets):
            here = max(0, min(left, policies.fleets[name].spec.max_seats - placed[name]))
            placed[name] += here
            left -= here
    return placed


def seats_at_rest(policies: PolicySet, fleet: FleetName) -> int:
    """Return the seats of a fleet at rest: what always serves there and its least spares, at most all."""
    written = policies.fleets[fleet].spec
    return min(written.max_seats, floors(policies)[fleet] + written.spare.min)
