"""How many residents of a policy there are while nothing happens: those that can bear witness for each other."""

from scaler.policy.compile import PolicySet
from scaler.policy.proof import ProofSource
from warmpool.expectations import LEAST_WITNESSES
from warmpool.seats import FleetName, PolicyName


def seats_at_rest(policies: PolicySet, policy: PolicyName) -> int:
    """Return the seats that a policy's fleets have at rest: their spares and what their policies' floors serve on, at most all."""
    return sum(
        _at_rest(policies, name) for name in {share.fleet for share in policies.policy_specs[policy].fleets}
    )


def lacks_witness(policies: PolicySet, policy: PolicyName) -> bool:
    """Whether a policy's residents are to agree on what they answer, and there is no second one at rest."""
    source = policies.policies[policy].spec.engine.proof.source
    return source is ProofSource.AGREEMENT and seats_at_rest(policies, policy) < LEAST_WITNESSES


def _at_rest(policies: PolicySet, fleet: FleetName) -> int:
    written = policies.fleets[fleet].spec
    floors = sum(
        policies.policies[name].spec.serving.min
        for name in policies.policies_on(fleet)
        if policies.policy_specs[name].fleets[0].fleet == fleet
    )
    return min(written.max_seats, written.spare.min + floors)
