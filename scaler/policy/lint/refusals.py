"""What is turned away, given up or cut on a request's path because another time is over first."""

import math
from collections.abc import Iterator

from scaler.policy.fleet import SpareMode
from scaler.policy.lint.assumptions import RETRY_AFTER_SECONDS
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import SECONDS, Figure, Finding, Place, Severity, Term
from scaler.policy.lint.gateway import patience, patience_term, through_gateway
from scaler.policy.lint.objectives import objective_place
from scaler.policy.lint.path import DEMOTED, GATEWAY_ENDS, POD_ENDS, SWITCHED, path
from scaler.policy.lint.subject import Subject
from scaler.policy.lint.times import all_on_new, most_at_once, new_seat, ready_seats
from scaler.policy.scaling_policy import ScalingPolicy

_ENDS = {
    DEMOTED: "their resident is demoted",
    SWITCHED: "another model takes their seat",
    POD_ENDS: "their pod ends",
    GATEWAY_ENDS: "their gateway ends",
}
"""What ends an answer, by the stage that says after how long."""


def refusal_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every policy's requests on their path."""
    for policy in subject.policies.policies.values():
        if through_gateway(policy) and not policy.spec.preemptible:
            yield from _cold_start(subject, policy)
        yield from _client(subject, policy)
        yield from _whole_answers(subject, policy)
        yield from _answers_cut(subject, policy)


# ------------------------------------------------------------------ waiting for a new seat


def _cold_start(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """What waits for a new seat waits as long as that takes, and the gateway doesn't let it."""
    ready, rests = ready_seats(subject, policy), policy.spec.serving.min == 0
    if rests and not ready and not _learns(subject, policy):
        yield from _after_a_rest(subject, policy, alone=True)
        return
    if rests and ready and _rivals(subject, policy):
        yield from _after_a_rest(subject, policy, alone=False)
    yield from _beyond_ready(subject, policy)


def _after_a_rest(subject: Subject, policy: ScalingPolicy, *, alone: bool) -> Iterator[Finding]:
    """With nothing serving nothing leaves the queue, so that all of it is refused that comes too early."""
    takes, refused = new_seat(subject, policy), patience(policy, subject.assumptions, cold=True)
    if takes.total is None or takes.total <= refused:
        return
    short = takes.total - refused
    again = math.ceil(short / (refused + RETRY_AFTER_SECONDS))
    when = "after a rest" if alone else f"after a rest, while {_rivals(subject, policy)} has the ready seats,"
    yield Finding(
        code=Code.COLD_START_REFUSED,
        severity=Severity.WARNING if alone else Severity.INFO,
        place=Place.of(policy, "spec", "serving", "min"),
        message=(
            f"{when} a new seat takes {_least(takes)}, and the gateway refuses what has waited for {refused} s: requests of"
            f" the first {_seconds(short)} get 503 instead of an answer"
        ),
        hint=(
            f"{'spare.min: 1' if alone else 'one more of spare.min'} on one of its fleets, serving.min: 1, or a longer"
            f" queue.maxColdSeconds; else clients have to try again {'once' if again == 1 else f'{again} times'}"
        ),
        terms=(*takes.terms, patience_term(policy, subject.assumptions, cold=True)),
    )


def _rivals(subject: Subject, policy: ScalingPolicy) -> str:
    """Name the policies that may hold this one's ready seats when it needs one: those that don't have to give them back."""
    names = {
        other.metadata.name: None
        for fleet in subject.fleets_of(policy)
        if fleet.spec.spare.min
        for other in subject.policies_on(fleet)
        if other is not policy and not other.spec.preemptible and other.spec.priority >= policy.spec.priority
    }
    return " or ".join(names)


def _learns(subject: Subject, policy: ScalingPolicy) -> bool:
    """Whether a fleet of it may have more spares than it names."""
    return any(fleet.spec.spare.mode is SpareMode.AUTO for fleet in subject.fleets_of(policy))


def _beyond_ready(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A burst of all that may serve, on the k of N residents that can at once, until new seats serve after T seconds.

    N/k times what is served arrives, and the queue is served in the order of arrival: what leaves it t seconds after the
    burst's begin came at t·k/N, so that it has waited for t·(1 − k/N). The longest wait is T·(1 − k/N).
    """
    takes, refused = all_on_new(subject, policy), patience(policy, subject.assumptions)
    if takes is None or takes.total is None:
        return
    least, most = max(1, policy.spec.serving.min), most_at_once(subject, policy)
    ready = ready_seats(subject, policy)
    at_once = min(most, least + ready)
    waits = takes.total * (1 - at_once / most)
    if waits <= refused:
        return
    enough = math.ceil(most * (1 - refused / takes.total)) - least
    learns = (
        "; mode Auto has them once it has seen such bursts, up to spare.max"
        if _learns(subject, policy)
        else ""
    )
    yield Finding(
        code=Code.COLD_START_REFUSED,
        severity=Severity.WARNING if not ready and not learns else Severity.INFO,
        place=Place.of(policy, "spec", "fleets"),
        message=(
            f"in a burst that needs all {most} residents, {at_once} serve at once, and new seats take {_least(takes)}: requests"
            f" would wait for up to {_seconds(waits)}{'' if takes.exact else ' or more'}, and the gateway refuses what has waited"
            f" for {refused} s"
        ),
        hint=f"{enough} spare seats on its fleets bear it, in place of {ready}, and so does a lower serving.max{learns}",
        terms=(
            *takes.terms,
            Term(
                name="residents at once",
                value=float(at_once),
                unit="residents",
                origin="serving.min and spare seats",
            ),
            Term(
                name="residents at most", value=float(most), unit="residents", origin="serving.max, maxSeats"
            ),
            patience_term(policy, subject.assumptions),
        ),
    )


def _least(figure: Figure) -> str:
    return _seconds(figure.total or 0.0) + ("" if figure.exact else " at least")


def _seconds(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") + " s"


# ------------------------------------------------------------------ what others do


def _client(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """The gateway sends nothing before the first content, so that to a client a wait looks like silence."""
    client, limit = subject.assumptions.client_seconds, policy.spec.objectives.ttft.limit_seconds
    refused = patience(policy, subject.assumptions)
    if client is None or client > max(limit, refused):
        return
    early = client < limit
    yield Finding(
        code=Code.CLIENT_GIVES_UP_FIRST,
        severity=Severity.WARNING if early else Severity.INFO,
        place=objective_place(policy),
        message=(
            f"clients give up after {client} s, before the objective of {limit:g} s is missed"
            if early
            else f"clients give up after {client} s, no later than the gateway's 503 with Retry-After, which comes after"
            f" {refused} s: they see a time-out of their own, and nobody asks them to try again"
        ),
        hint=f"let clients, and proxies before the gateway, wait for more than {refused} s without a byte",
        terms=(
            Term(name="client", value=float(client), unit=SECONDS, origin="assumption clientSeconds"),
            Term(name="objective", value=limit, unit=SECONDS, origin="objectives.ttft"),
            patience_term(policy, subject.assumptions),
        ),
    )


def _whole_answers(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """An engine sends an answer without stream when it is whole; the gateway waits for that as long as it may."""
    assumed = subject.assumptions
    answer, deadline = assumed.answer_seconds, assumed.gateway_answer_seconds
    if answer is None or answer + patience(policy, assumed) <= deadline:
        return
    never = answer >= deadline
    what = "is never there" if never else f"is not there after a wait of more than {deadline - answer} s"
    yield Finding(
        code=Code.WHOLE_ANSWERS_REFUSED,
        severity=Severity.WARNING if never else Severity.INFO,
        place=objective_place(policy),
        message=(
            f"without stream, an answer that takes {answer} s {what}: the gateway gives it up after"
            f" {deadline} s, waiting included"
        ),
        hint='clients of long answers should ask with "stream": true, or give the gateway longer --answer-seconds',
        terms=(
            Term(name="answer", value=float(answer), unit=SECONDS, origin="assumption answerSeconds"),
            Term(
                name="given up after",
                value=float(deadline),
                unit=SECONDS,
                origin="assumption gatewayAnswerSeconds",
            ),
        ),
    )


def _answers_cut(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """No stream is ended for its length; it is when what it comes from, or through, goes."""
    answer = subject.assumptions.answer_seconds
    if answer is None:
        return
    terms = [
        term
        for stage in path(subject, policy)
        if stage.name in _ENDS and not stage.figure.never
        for term in stage.figure.terms
        if term.value is not None and term.value < answer
    ]
    if terms:
        listed = ", ".join(f"{_ENDS[term.name]} ({term.value:.0f} s)" for term in terms)
        yield Finding(
            code=Code.ANSWERS_CUT,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "fleets"),
            message=f"answers of {answer} s are cut when they have longer to go than they get once {listed}",
            hint=(
                "a longer burst.demoteAfterSeconds demotes less often, a fleet of its own is never switched, and gateways take"
                " --drain-seconds; clients have to ask again after an error event"
            ),
            terms=(
                Term(name="answer", value=float(answer), unit=SECONDS, origin="assumption answerSeconds"),
                *terms,
            ),
        )
