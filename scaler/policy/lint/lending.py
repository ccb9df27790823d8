"""Work that only borrows seats: whether there is anything to borrow, and what taking it back costs."""

from collections.abc import Iterator

from scaler.policy.fleet import Fleet, SpareMode
from scaler.policy.lint.assumptions import SWITCH_DRAIN_SECONDS
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import SEATS, SECONDS, Finding, Place, Severity, Term
from scaler.policy.lint.subject import Subject
from scaler.policy.scaling_policy import OnReclaim, ScalingPolicy


def lending_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what is to be said of every preemptible policy."""
    for policy in subject.policies.policies.values():
        if policy.spec.preemptible:
            yield from _order(subject, policy)
            yield from _nothing_to_lend(subject, policy)
            yield from _reclaim(subject, policy)


def lendable(subject: Subject, fleet: Fleet) -> int:
    """Return the spare seats that a fleet may ever lend while it rests: those beyond `spare.min` and what always serves.

    The target of mode Fixed is `spare.min` itself, so that only a schedule's floor, or seats that wait to be deleted, go
    beyond it (`scaler.core.allocate`: borrowers come last, and `spare.min` seats are withheld from them).
    """
    spec, kept = fleet.spec, subject.floor_on(fleet) + fleet.spec.spare.min
    seats = max((each.min_seats for each in spec.schedules), default=0)
    if spec.spare.mode is SpareMode.AUTO:
        learned = spec.max_seats if spec.spare.max is None else spec.spare.max
        seats = max(seats, subject.floor_on(fleet) + learned)
    return max(0, min(spec.max_seats, seats) - kept)


def _neighbours(subject: Subject, policy: ScalingPolicy) -> list[ScalingPolicy]:
    """List the policies that are not preemptible and share a fleet with this one."""
    return [
        other
        for other in subject.policies.policies.values()
        if not other.spec.preemptible
        and not {share.name for share in other.spec.fleets}.isdisjoint(
            share.name for share in policy.spec.fleets
        )
    ]


def _order(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    ahead = [other for other in _neighbours(subject, policy) if other.spec.priority <= policy.spec.priority]
    if ahead:
        names = ", ".join(f"{other.metadata.name} ({other.spec.priority})" for other in ahead)
        yield Finding(
            code=Code.PREEMPTIBLE_FIRST,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "priority"),
            message=f"priority {policy.spec.priority} of preemptible work is not below that of {names}",
            hint="give work that can wait a lower priority than everything that it shares seats with",
        )


def _nothing_to_lend(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """Spares up to `spare.min` stay unlent, so that a burst never has to reclaim the first of them."""
    fleets = subject.fleets_of(policy)
    if any(lendable(subject, fleet) for fleet in fleets):
        return
    terms = tuple(
        Term(
            name=f"{fleet.metadata.name}: seats beyond spare.min {fleet.spec.spare.min}",
            value=0.0,
            unit=SEATS,
            origin="spare.mode Fixed, schedules[].minSeats",
        )
        for fleet in fleets
    )
    yield Finding(
        code=Code.NOTHING_TO_LEND,
        severity=Severity.WARNING,
        place=Place.of(policy, "spec", "preemptible"),
        message=(
            "only spares beyond spare.min are lent, and its fleets aim at no more than that: beyond its"
            f" {policy.spec.serving.min} own it gets seats only while they wait to be deleted"
        ),
        hint="spare.mode: Auto with room between min and max, a schedule with minSeats, or serving.min of its own",
        terms=terms,
    )


def _reclaim(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A lent seat comes back by a switch, whose drain is the switch's and not that of a demotion (`warmpool.plan`)."""
    settle, drain = subject.assumptions.settle_milliseconds / 1000, SWITCH_DRAIN_SECONDS
    place = Place.of(policy, "spec", "onReclaim")
    most = max(share.target_in_flight for share in policy.spec.fleets)
    if policy.spec.on_reclaim is OnReclaim.ABORT:
        yield Finding(
            code=Code.RECLAIM_ABORTS,
            severity=Severity.INFO,
            place=place,
            message=f"a seat that is wanted back ends up to {most} requests at once: its clients have to try again",
            hint=(
                f"a lower targetInFlight ends fewer; onReclaim: Wait gives them {SWITCH_DRAIN_SECONDS:.0f} s, and others wait for"
                " it"
            ),
            terms=(
                Term(
                    name="requests ended",
                    value=float(most),
                    unit="requests in flight",
                    origin="fleets[].targetInFlight",
                ),
            ),
        )
        return
    hurried = [
        other
        for other in _neighbours(subject, policy)
        if other.spec.objectives.ttft.limit_seconds < settle + drain
    ]
    if hurried:
        names = ", ".join(
            f"{other.metadata.name} ({other.spec.objectives.ttft.limit_seconds:g} s)" for other in hurried
        )
        yield Finding(
            code=Code.RECLAIM_WAITS,
            severity=Severity.WARNING,
            place=place,
            message=(
                f"a lent seat comes back after {settle + drain:.0f} s at most, later than the objectives of {names}; requests"
                " that take longer are ended all the same"
            ),
            hint="onReclaim: Abort gives it back at once; or keep enough spares unlent with spare.min",
            terms=(
                Term(
                    name="leaving rotation",
                    value=settle,
                    unit=SECONDS,
                    origin="assumption settleMilliseconds",
                ),
                Term(
                    name="drain, at most",
                    value=drain,
                    unit=SECONDS,
                    origin="scaler.runtime.actuator: half of a promotion's deadline",
                ),
            ),
        )
