"""A request's path in numbers: after how long each part of it ends, and what happens then.

From the client through the gateway's queue to the first token, and from there to the end of the answer, whichever of the two
sides ends it. Beside what ends a wait stand the times that a policy makes: its objective, and when a seat answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scaler.policy.lint.assumptions import POD_DRAIN_SECONDS, RETRY_AFTER_SECONDS, SWITCH_DRAIN_SECONDS
from scaler.policy.lint.findings import SECONDS, Figure, Term
from scaler.policy.lint.gateway import answer_term, deadline_term, queue_term
from scaler.policy.lint.subject import Subject
from scaler.policy.lint.times import new_seat, ready_seat
from scaler.policy.scaling_policy import OnReclaim, ScalingPolicy

DEMOTED = "demoted"
"""The stage that ends when its resident is paused."""
SWITCHED = "switched"
"""The stage that ends when another model takes its seat."""
POD_ENDS = "pod ends"
"""The stage that ends with its pod."""
GATEWAY_ENDS = "gateway ends"
"""The stage that ends with its gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One time on a request's path.

    Attributes:
        name: what is over by then, in a word or two.
        figure: after how long, with what that is made of.
        then: what happens then.
    """

    name: str
    figure: Figure
    then: str


def path(subject: Subject, policy: ScalingPolicy) -> tuple[Stage, ...]:
    """Return the stages of a policy's requests, in the order in which a request meets them.

    What somebody would have to say first (how patient clients are, the grace of a pod) is left out until it is known.
    """
    return (
        *_sending(subject),
        Stage(
            name="ready seat",
            figure=ready_seat(subject, policy),
            then="a resident that was paused answers, at worst",
        ),
        Stage(
            name="objective",
            figure=_figure(
                "objective",
                policy.spec.objectives.ttft.limit_seconds,
                "objectives.ttft: from a request received whole",
            ),
            then="the first token is late",
        ),
        *_waiting(subject, policy),
        *_answering(subject),
        *_ending(subject, policy),
    )


def _sending(subject: Subject) -> Iterator[Stage]:
    assumed = subject.assumptions
    if assumed.client_seconds is not None:
        yield Stage(
            name="client",
            figure=_figure("client", assumed.client_seconds, "assumption clientSeconds"),
            then="it gives up where nothing has come back",
        )
    yield Stage(
        name="body",
        figure=_figure("body", assumed.gateway_receive_seconds, "assumption gatewayReceiveSeconds"),
        then="408: the request is not there whole",
    )


def _waiting(subject: Subject, policy: ScalingPolicy) -> Iterator[Stage]:
    assumed, again = subject.assumptions, f"Retry-After {RETRY_AFTER_SECONDS} s or more"
    rests = policy.spec.serving.min == 0
    deadlines = {
        deadline_term(policy, assumed, cold=rests): "no content of a stream has come",
        answer_term(policy, assumed, cold=rests): "an answer without stream isn't whole",
    }
    yield Stage(
        name="queue",
        figure=Figure(name="queue", unit=SECONDS, terms=(queue_term(policy, assumed, cold=rests),)),
        then=f"503 QueueTooOld, {again}: no slot became free",
    )
    yield Stage(
        name="new seat",
        figure=new_seat(subject, policy),
        then="a seat that had to be made answers, at worst",
    )
    yield Stage(
        name="connect",
        figure=_figure("connect", assumed.gateway_connect_seconds, "assumption gatewayConnectSeconds"),
        then="another resident is tried",
    )
    for deadline, missing in deadlines.items():
        yield Stage(
            name=deadline.name,
            figure=_figure(
                deadline.name,
                deadline.value or 0.0,
                f"{deadline.origin}, from a request received whole, waiting and all attempts included",
            ),
            then=f"503 DeadlineExceeded, {again}: {missing}",
        )


def _answering(subject: Subject) -> Iterator[Stage]:
    """What ends an answer that has begun."""
    assumed = subject.assumptions
    yield Stage(
        name="silence",
        figure=_figure("silence", assumed.gateway_idle_seconds, "assumption gatewayIdleSeconds"),
        then="the answer is cut, with error event StreamCut: the engine says nothing",
    )
    yield Stage(
        name="stall",
        figure=_figure("stall", assumed.gateway_stall_seconds, "assumption gatewayStallSeconds"),
        then="the connection is cut: the client takes nothing",
    )


def _ending(subject: Subject, policy: ScalingPolicy) -> Iterator[Stage]:
    """What ends an answer because what it comes from, or through, is wanted elsewhere or goes."""
    assumed = subject.assumptions
    yield Stage(
        name=DEMOTED,
        figure=_figure(DEMOTED, assumed.drain_seconds, "assumption drainSeconds"),
        then="the rest of the answer is ended, with an error event",
    )
    yield Stage(
        name=SWITCHED, figure=_switched(subject, policy), then="the same: another model gets the seat"
    )
    yield Stage(
        name=POD_ENDS,
        figure=_figure(POD_ENDS, POD_DRAIN_SECONDS, "warmpool.agent.seat.DRAIN_AT_END_SECONDS"),
        then="the same: the agent stops its engines",
    )
    graces = [
        each.grace_seconds
        for each in subject.templates
        if any(each.belongs_to(fleet) for fleet in subject.fleets_of(policy))
    ]
    if graces:
        yield Stage(
            name="killed",
            figure=_figure("killed", min(graces), "terminationGracePeriodSeconds, from the pod's SIGTERM on"),
            then="whatever is left of the pod is killed",
        )
    yield Stage(
        name=GATEWAY_ENDS,
        figure=_figure(
            GATEWAY_ENDS, assumed.gateway_drain_seconds, "assumption gatewayDrainSeconds, from its SIGTERM on"
        ),
        then="what waits is refused, and answers are cut",
    )


def _switched(subject: Subject, policy: ScalingPolicy) -> Figure:
    """Any neighbour may take a seat on which this one has more than it wants; a lent seat is wanted back so as well."""
    if all(subject.policies_on(fleet) == (policy,) for fleet in subject.fleets_of(policy)):
        return Figure(name=SWITCHED, unit=SECONDS, never="no other model lives on its seats")
    if policy.spec.preemptible and policy.spec.on_reclaim is OnReclaim.ABORT:
        return _figure(SWITCHED, 0.0, "onReclaim: Abort")
    return _figure(SWITCHED, SWITCH_DRAIN_SECONDS, "scaler.runtime.actuator: half of a promotion's deadline")


def _figure(name: str, seconds: float, origin: str) -> Figure:
    return Figure(
        name=name,
        unit=SECONDS,
        terms=(Term(name=name, value=float(seconds), unit=SECONDS, origin=origin),),
    )
