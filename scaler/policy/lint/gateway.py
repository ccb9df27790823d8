"""What a gateway lets a request wait for, as far as what policies promise depends on it.

A request waits in the gateway's queue until it gets its first slot, and has a deadline for its first content, which counts
from the same moment. Whichever comes first ends a wait with 503 and Retry-After (`scaler.gateway.queue`,
`scaler.gateway.proxy`). What has had a slot once is not refused by its age any more.
"""

from scaler.policy.lint.assumptions import Assumptions
from scaler.policy.lint.findings import SECONDS, Term
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import Pushed


def patience(assumptions: Assumptions) -> int:
    """Return for how many seconds a request that gets no slot waits before it is refused."""
    return min(assumptions.gateway_queue_seconds, assumptions.gateway_deadline_seconds)


def patience_term(assumptions: Assumptions) -> Term:
    """Return the same with its origin."""
    shorter = assumptions.gateway_queue_seconds <= assumptions.gateway_deadline_seconds
    origin = "assumption gatewayQueueSeconds" if shorter else "assumption gatewayDeadlineSeconds"
    return Term(name="refused after", value=float(patience(assumptions)), unit=SECONDS, origin=origin)


def through_gateway(policy: ScalingPolicy) -> bool:
    """Whether a policy counts on a gateway's samples, so that its requests can be taken to come through one."""
    return any(isinstance(signal, Pushed) for signal in policy.spec.signals)
