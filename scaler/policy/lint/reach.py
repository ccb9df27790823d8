"""What is written and can't come true, or not when it is needed: bounds, spares, bursts and fallbacks beyond the seats."""

from collections.abc import Iterator
from typing import Final

from scaler.policy.fleet import Fleet, SpareMode
from scaler.policy.lint.codes import Code
from scaler.policy.lint.delays import interval_seconds, sees_demand
from scaler.policy.lint.findings import SEATS, SECONDS, Finding, Place, Severity, Term
from scaler.policy.lint.resizing import starting
from scaler.policy.lint.subject import Subject, highest_floor, most_serving, others_floors
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.signals import EngineMetrics

_HUNDRED: Final = 100


def reach_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what can't be reached, of every fleet and policy."""
    for fleet in subject.policies.fleets.values():
        yield from _unused(subject, fleet)
        yield from _no_room_for_spares(subject, fleet)
        yield from _no_spares_yet(subject, fleet)
    for policy in subject.policies.policies.values():
        yield from _serving_max(subject, policy)
        yield from _fallback(subject, policy)
        yield from _burst(subject, policy)
        yield from _short_window(policy)
        yield from _no_spares(subject, policy)
        yield from _gpu_counts(subject, policy)
    yield from _budget(subject)


def _unused(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    if not subject.policies_on(fleet):
        yield Finding(
            code=Code.FLEET_UNUSED,
            severity=Severity.WARNING,
            place=Place.of(fleet, "metadata", "name"),
            message="no policy names the fleet: its seats serve nobody",
            hint="list it under spec.fleets of a policy, or remove it",
        )


def _no_room_for_spares(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    floors, spares, most = subject.floor_on(fleet), fleet.spec.spare.min, fleet.spec.max_seats
    if floors and spares and floors + spares > most:
        yield Finding(
            code=Code.SPARES_LEAVE_NO_ROOM,
            severity=Severity.WARNING,
            place=Place.of(fleet, "spec", "spare", "min"),
            message=(
                f"{spares} spare seats beside {floors} that always serve here are {floors + spares}, and maxSeats is {most}"
            ),
            hint="raise maxSeats or lower spare.min",
            terms=(
                Term(name="spare seats", value=float(spares), unit=SEATS, origin="spare.min"),
                Term(name="floors on the fleet", value=float(floors), unit=SEATS, origin="serving.min"),
            ),
        )


def _no_spares_yet(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    spare = fleet.spec.spare
    if spare.mode is SpareMode.AUTO and not spare.min and subject.policies_on(fleet):
        yield Finding(
            code=Code.NO_SPARES_YET,
            severity=Severity.WARNING,
            place=Place.of(fleet, "spec", "spare", "min"),
            message="mode Auto has no spare seats until a day of history exists: until then the target is min, which is 0",
            hint="set spare.min to the seats of burst that the first day must bear",
        )


def _serving_max(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    wanted, given = policy.spec.serving.max, most_serving(subject, policy)
    if wanted is None or wanted <= given:
        return
    terms = _seat_terms(subject, policy)
    yield Finding(
        code=Code.SERVING_MAX_UNREACHABLE,
        severity=Severity.WARNING,
        place=Place.of(policy, "spec", "serving", "max"),
        message=f"{wanted} residents never serve: there are seats for {given} at most ({_added(terms)})",
        hint="raise maxSeats, or lower serving.max to what there is",
        terms=terms,
    )


def _fallback(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    wanted, given = policy.spec.fallback.replicas, most_serving(subject, policy)
    if wanted <= given:
        return
    terms = _seat_terms(subject, policy)
    yield Finding(
        code=Code.FALLBACK_UNREACHABLE,
        severity=Severity.WARNING,
        place=Place.of(policy, "spec", "fallback", "replicas"),
        message=f"{wanted} residents never serve: there are seats for {given} at most ({_added(terms)})",
        hint="raise maxSeats, or lower fallback.replicas",
        terms=terms,
    )


def _seat_terms(subject: Subject, policy: ScalingPolicy) -> tuple[Term, ...]:
    """Seats of its fleets, less the floors of others that have no other seats."""
    terms = [
        Term(
            name=f"{fleet.metadata.name} maxSeats",
            value=float(fleet.spec.max_seats),
            unit=SEATS,
            origin="maxSeats",
        )
        for fleet in subject.fleets_of(policy)
    ]
    for other, floor in others_floors(subject, policy):
        name = f"{other.metadata.name} serving.min"
        terms.append(Term(name=name, value=-float(floor), unit=SEATS, origin="serving.min"))
    return tuple(terms)


def _added(terms: tuple[Term, ...]) -> str:
    signed = [(term.value or 0.0, term.name) for term in terms]
    text = " ".join(f"{'−' if value < 0 else '+'} {abs(value):.0f} ({name})" for value, name in signed)
    return text.removeprefix("+ ")


def _burst(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A burst begins when demand reaches threshold × capacity (Knative's panic threshold).

    What only engines tell never gets there where a gateway holds back what exceeds `targetInFlight`: each of them is sent
    that much at most, so that demand reads at most 100 % of the capacity.
    """
    signals = [signal for signal in policy.spec.signals if sees_demand(signal, serving=True)]
    threshold = policy.spec.burst.threshold_percent
    if signals and all(isinstance(signal, EngineMetrics) for signal in signals):
        most = max(share.target_in_flight for share in policy.spec.fleets)
        yield Finding(
            code=Code.BURST_UNREACHABLE,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "burst", "thresholdPercent"),
            message=(
                f"only engines tell of the load; behind the gateway each gets targetInFlight ({most}) requests at most, which"
                f" is 100 % of its capacity, and a burst begins at {threshold} %"
            ),
            hint="add {name: gateway, type: Pushed} to signals, unless requests come past the gateway",
            terms=(
                Term(
                    name="threshold",
                    value=threshold / _HUNDRED,
                    unit="share",
                    origin="burst.thresholdPercent",
                ),
                Term(name="most that is seen", value=1.0, unit="share", origin="fleets[].targetInFlight"),
            ),
        )
    least, most = policy.spec.serving.min, most_serving(subject, policy)
    if least and least >= most:
        yield Finding(
            code=Code.BURST_UNREACHABLE,
            severity=Severity.INFO,
            place=Place.of(policy, "spec", "serving", "min"),
            message=f"{least} residents always serve and no more can: a burst changes nothing",
            hint="raise serving.max or maxSeats, if bursts are to be served",
        )


def _short_window(policy: ScalingPolicy) -> Iterator[Finding]:
    """Between two readings there is nothing that a maximum could be taken of."""
    signals = [signal for signal in policy.spec.signals if sees_demand(signal, serving=True)]
    gap = min((interval_seconds(signal) for signal in signals), default=0.0)
    window = policy.spec.burst.window_seconds
    if gap > window:
        yield Finding(
            code=Code.WINDOW_SHORTER_THAN_SIGNAL,
            severity=Severity.WARNING,
            place=Place.of(policy, "spec", "burst", "windowSeconds"),
            message=f"the burst window of {window} s is shorter than the {gap:.0f} s between two readings of its fastest signal",
            hint="read a signal more often, add one that is pushed, or make the window longer",
            terms=(
                Term(name="burst window", value=float(window), unit=SECONDS, origin="burst.windowSeconds"),
                Term(name="fastest signal", value=gap, unit=SECONDS, origin="the signal's interval"),
            ),
        )


def _no_spares(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """Without spare seats whatever exceeds what serves waits for a seat's start."""
    fleets = subject.fleets_of(policy)
    if policy.spec.preemptible or most_serving(subject, policy) <= policy.spec.serving.min:
        return
    if any(fleet.spec.spare.min or fleet.spec.spare.mode is SpareMode.AUTO for fleet in fleets):
        return
    terms = starting(subject, fleets[0])
    known = sum(term.value or 0.0 for term in terms)
    takes = f"{known:.0f} s at least" if known else "how long isn't known"
    yield Finding(
        code=Code.NO_SPARES_FOR_BURST,
        severity=Severity.WARNING,
        place=Place.of(policy, "spec", "fleets"),
        message=f"no fleet of it has spare seats: a burst beyond what serves waits for new ones ({takes})",
        hint="set spare.min on one of its fleets, or list a fleet of shared spares as the last",
        terms=terms,
    )


def _gpu_counts(subject: Subject, policy: ScalingPolicy) -> Iterator[Finding]:
    """A resident uses all GPUs of its seat, so that another number of them is another engine."""
    first, *later = subject.fleets_of(policy)
    for index, fleet in enumerate(later, start=1):
        if fleet.spec.seat.gpus != first.spec.seat.gpus:
            yield Finding(
                code=Code.GPU_COUNTS_DIFFER,
                severity=Severity.WARNING,
                place=Place.of(policy, "spec", "fleets", index, "name"),
                message=(
                    f"a seat of {fleet.metadata.name} has {fleet.spec.seat.gpus} GPUs and one of {first.metadata.name}"
                    f" {first.spec.seat.gpus}, and a resident uses all of them with the same engine.args"
                ),
                hint="give the model fleets with equal seats, or leave the number of GPUs out of engine.args",
            )


def _budget(subject: Subject) -> Iterator[Finding]:
    """Floors first, then what serves, then spares: so the budget must hold the first and should hold the last."""
    controller = subject.policies.controller
    if controller is None or controller.spec.gpu_budget is None:
        return
    budget, terms, floors = controller.spec.gpu_budget, list[Term](), 0
    for policy in subject.policies.policies.values():
        gpus = subject.fleets_of(policy)[0].spec.seat.gpus
        if gpus and highest_floor(policy):
            floors += highest_floor(policy) * gpus
            name = f"{policy.metadata.name}: {highest_floor(policy)} × {gpus}"
            terms.append(
                Term(
                    name=name,
                    value=float(highest_floor(policy) * gpus),
                    unit="GPUs",
                    origin="floors × seat.gpus",
                )
            )
    for fleet in subject.policies.fleets.values():
        spares, gpus = fleet.spec.spare.min, fleet.spec.seat.gpus
        if spares and gpus:
            name = f"{fleet.metadata.name} spares: {spares} × {gpus}"
            terms.append(
                Term(name=name, value=float(spares * gpus), unit="GPUs", origin="spare.min × seat.gpus")
            )
    needed = sum(term.value or 0.0 for term in terms)
    if needed > budget:
        yield Finding(
            code=Code.BUDGET_TOO_SMALL,
            severity=Severity.ERROR if floors > budget else Severity.WARNING,
            place=Place.of(controller, "spec", "gpuBudget"),
            message=(
                "floors and spares need "
                + " + ".join(f"{term.value:.0f} ({term.name})" for term in terms)
                + f" = {needed:.0f} GPU{'' if needed == 1 else 's'}, and the budget is {budget}"
            ),
            hint="raise gpuBudget, or lower floors or spares: floors come first, spares last",
            terms=tuple(terms),
        )
