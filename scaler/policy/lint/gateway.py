"""What a gateway lets a request wait for, as far as what policies promise depends on it.

A request waits in the gateway's queue until it gets its first slot, and has a deadline for its first content (of what is no
stream: for its whole answer), which counts from the same moment. Whichever comes first ends a wait with 503 and Retry-After (`scaler.gateway.queue`,
`scaler.gateway.proxy`). What has had a slot once is not refused by its age any more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scaler.policy.lint.assumptions import Assumptions
from scaler.policy.lint.findings import SECONDS, Term
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import Pushed

_ASSUMED: Final[Mapping[str, str]] = {"queue": "gatewayQueueSeconds", "cold": "gatewayColdSeconds"}


def queue_term(policy: ScalingPolicy, assumptions: Assumptions, *, cold: bool = False) -> Term:
    """Return how long a request may wait for its first slot.

    Args:
        policy: whose.
        assumptions: what the gateway does with policies that don't say it.
        cold: none of its residents serves when it comes.
    """
    queue = policy.spec.queue
    term = _of("queue", queue.max_age_seconds, "queue.maxAgeSeconds", assumptions.gateway_queue_seconds)
    return max(term, _cold(policy, assumptions), key=_seconds) if cold else term


def deadline_term(policy: ScalingPolicy, assumptions: Assumptions, *, cold: bool = False) -> Term:
    """Return how long a request for a stream may take to its first content; as above."""
    term = _assumed("first token", assumptions.gateway_deadline_seconds, "assumption gatewayDeadlineSeconds")
    return _later(term, policy, assumptions) if cold else term


def answer_term(policy: ScalingPolicy, assumptions: Assumptions, *, cold: bool = False) -> Term:
    """Return how long any other request may take to the end of its answer; as above."""
    term = _assumed("whole answer", assumptions.gateway_answer_seconds, "assumption gatewayAnswerSeconds")
    return _later(term, policy, assumptions) if cold else term


def patience(policy: ScalingPolicy, assumptions: Assumptions, *, cold: bool = False) -> int:
    """Return for how many seconds a request that gets no slot waits before it is refused; as above."""
    return round(_seconds(patience_term(policy, assumptions, cold=cold)))


def patience_term(policy: ScalingPolicy, assumptions: Assumptions, *, cold: bool = False) -> Term:
    """Return the same with its origin."""
    waits = queue_term(policy, assumptions, cold=cold), deadline_term(policy, assumptions, cold=cold)
    return replace(min(waits, key=_seconds), name="refused after")


def _later(term: Term, policy: ScalingPolicy, assumptions: Assumptions) -> Term:
    """Return a deadline as it is for a request that finds nothing serving."""
    cold = _cold(policy, assumptions)
    if not cold.value:
        return term
    return replace(term, value=_seconds(term) + cold.value, origin=f"{term.origin} and {cold.origin}")


def _cold(policy: ScalingPolicy, assumptions: Assumptions) -> Term:
    return _of(
        "cold", policy.spec.queue.max_cold_seconds, "queue.maxColdSeconds", assumptions.gateway_cold_seconds
    )


def _of(name: str, said: int | None, where: str, assumed: int) -> Term:
    """Return what a policy says, or else what is assumed of the gateway."""
    seconds, origin = (assumed, f"assumption {_ASSUMED[name]}") if said is None else (said, where)
    return _assumed(name, seconds, origin)


def _assumed(name: str, seconds: int, origin: str) -> Term:
    return Term(name=name, value=float(seconds), unit=SECONDS, origin=origin)


def _seconds(term: Term) -> float:
    return term.value or 0.0


def through_gateway(policy: ScalingPolicy) -> bool:
    """Whether a policy counts on a gateway's samples, so that its requests can be taken to come through one."""
    return any(isinstance(signal, Pushed) for signal in policy.spec.signals)
