"""Whether a policy's residents can bear witness for each other while nothing happens."""

from scaler.policy.compile import PolicySet
from scaler.policy.floors import seats_at_rest
from scaler.policy.proof import ProofSource
from warmpool.expectations import LEAST_WITNESSES
from warmpool.seats import PolicyName


def lacks_witness(policies: PolicySet, policy: PolicyName) -> bool:
    """Whether a policy's residents are to agree on what they answer, and there is no second one at rest."""
    if policies.policies[policy].spec.engine.proof.source is not ProofSource.AGREEMENT:
        return False
    fleets = {share.fleet for share in policies.policy_specs[policy].fleets}
    return sum(seats_at_rest(policies, fleet) for fleet in fleets) < LEAST_WITNESSES
