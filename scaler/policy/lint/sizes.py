"""What a fleet's rules make of its size: changes that are never made, windows that add up, and KEDA's part in it."""

from collections.abc import Iterator

from scaler.policy.fleet import Fleet, FleetMode, ResizedBy, ScalingBehavior, SelectPolicy
from scaler.policy.lint.codes import Code
from scaler.policy.lint.findings import SEATS, SECONDS, Finding, Place, Severity, Term
from scaler.policy.lint.resizing import starting
from scaler.policy.lint.stepping import dead_from, ignored
from scaler.policy.lint.subject import Subject


def size_findings(subject: Subject) -> Iterator[Finding]:
    """Yield what the rules of every fleet's size mean."""
    for fleet in subject.policies.fleets.values():
        yield from _observed(fleet)
        yield from _disabled(fleet)
        yield from _ignored(fleet, "scaleUp", fleet.spec.scale_up)
        yield from _ignored(fleet, "scaleDown", fleet.spec.scale_down)
        yield from _delayed(fleet)
        yield from _hasty(subject, fleet)
        if fleet.spec.resized_by is ResizedBy.KEDA:
            yield from _dead_zone(subject, fleet)
            yield from _added_up(subject, fleet)
            yield from _active(subject, fleet)


def _observed(fleet: Fleet) -> Iterator[Finding]:
    if fleet.spec.mode is FleetMode.OBSERVE:
        yield Finding(
            code=Code.ONLY_OBSERVED,
            severity=Severity.INFO,
            place=Place.of(fleet, "spec", "mode"),
            message="decisions are published and recorded, and no resident is promoted and no seat created: times are what"
            " they would be",
            hint="mode: Enforce carries them out",
        )


def _disabled(fleet: Fleet) -> Iterator[Finding]:
    if fleet.spec.scale_up.select_policy is SelectPolicy.DISABLED:
        spares = "; spares that a burst took don't come back" if fleet.spec.spare.min else ""
        yield Finding(
            code=Code.SCALE_UP_DISABLED,
            severity=Severity.WARNING,
            place=Place.of(fleet, "spec", "scaleUp", "selectPolicy"),
            message=f"the fleet never grows beyond its floors{spares}",
            hint="Max or Min let it grow; `frozen` keeps a size for a while, with an end and a reason",
        )
    if fleet.spec.scale_down.select_policy is SelectPolicy.DISABLED:
        yield Finding(
            code=Code.SCALE_DOWN_DISABLED,
            severity=Severity.WARNING,
            place=Place.of(fleet, "spec", "scaleDown", "selectPolicy"),
            message=f"the fleet never shrinks: after one burst it keeps up to {fleet.spec.max_seats} seats",
            hint="Max or Min let it shrink; `frozen` keeps a size for a while, with an end and a reason",
        )


def _ignored(fleet: Fleet, key: str, behavior: ScalingBehavior) -> Iterator[Finding]:
    """Our own tolerance: the same test as the HPA's, at the fleet's largest total."""
    percent, most = behavior.tolerance_percent, fleet.spec.max_seats
    first, step = dead_from(percent), ignored(most, percent)
    if first is None or not step:
        return
    message = f"from {first} seats on a change of one is ignored, at {most} seats one of up to {step}"
    severity = Severity.INFO
    if key == "scaleDown" and percent == 100:  # noqa: PLR2004 - no total falls by more than all of itself
        message, severity = (
            "no change is ever larger than the tolerance: the fleet never shrinks",
            Severity.WARNING,
        )
    elif key == "scaleUp" and 0 < fleet.spec.spare.min <= step:
        message += f", as many as all its spare seats ({fleet.spec.spare.min})"
        severity = Severity.WARNING
    yield Finding(
        code=Code.CHANGE_IGNORED,
        severity=severity,
        place=Place.of(fleet, "spec", key, "tolerancePercent"),
        message=message,
        hint="0 makes every change: the total is a number of seats that somebody needs, and not a noisy ratio",
        terms=_tolerance_terms(most, percent, f"{key}.tolerancePercent"),
    )


def _dead_zone(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    """The HPA compares the published total with the replicas; a step of one of n is a ratio within tolerance for n ≥ 1/tolerance.

    At 1/tolerance itself the two formulas that Kubernetes had (|1 − r| ≤ t, and 1 − t ≤ r ≤ 1 + t since tolerances are set
    apart) round differently, so that it counts as dead here.
    """
    percent, most = subject.assumptions.hpa_tolerance_percent, fleet.spec.max_seats
    first, step = dead_from(percent), ignored(most, percent)
    if first is None or not step:
        return
    spares = fleet.spec.spare.min
    swallowed = f", as many as all its spare seats ({spares})" if 0 < spares <= step else ""
    yield Finding(
        code=Code.HPA_DEAD_ZONE,
        severity=_of_foreign(subject, "hpa_tolerance_percent"),
        place=Place.of(fleet, "spec", "resizedBy"),
        message=(
            f"the HPA's tolerance of {percent} %{_guessed(subject, 'hpa_tolerance_percent')} ignores a change of one seat from {first} seats on, at {most} seats one of"
            f" up to {step}{swallowed}"
        ),
        hint=(
            "set behavior.scaleUp.tolerance: 0 and scaleDown.tolerance: 0 in the ScaledObject's"
            " advanced.horizontalPodAutoscalerConfig (Kubernetes 1.35; before that a feature gate), then --assume"
            " hpaTolerancePercent=0; or resizedBy: Emberpool"
        ),
        terms=_tolerance_terms(most, percent, "assumption hpaTolerancePercent"),
    )


def _of_foreign(subject: Subject, assumption: str) -> Severity:
    """Return how much a finding about the ScaledObject's HPA matters: it is only a note while its setting is a guess.

    The policies can't be wrong about what stands in a manifest that wasn't shown; they are once somebody says so.
    """
    told = assumption in subject.assumptions.model_fields_set
    return Severity.WARNING if told else Severity.INFO


def _guessed(subject: Subject, assumption: str) -> str:
    return (
        ""
        if assumption in subject.assumptions.model_fields_set
        else " (its default, unless the ScaledObject says otherwise)"
    )


def _tolerance_terms(most: int, percent: int, origin: str) -> tuple[Term, ...]:
    return (
        Term(name="seats at most", value=float(most), unit=SEATS, origin="maxSeats"),
        Term(name="tolerance", value=percent / 100, unit="share", origin=origin),
    )


def _added_up(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    """Each of them waits for the one before it."""
    ours, assumed = fleet.spec.scale_down.stabilization_window_seconds, subject.assumptions
    windows = [
        ("scaleDown window", ours, "scaleDown.stabilizationWindowSeconds"),
        ("HPA's scaleDown window", assumed.hpa_down_window_seconds, "assumption hpaDownWindowSeconds"),
    ]
    if subject.floor_on(fleet) + fleet.spec.spare.min == 0:
        windows.append(("KEDA's cooldown", assumed.keda_cooldown_seconds, "assumption kedaCooldownSeconds"))
    terms = [
        Term(name=name, value=float(value), unit=SECONDS, origin=origin)
        for name, value, origin in windows
        if value
    ]
    if len(terms) > 1:
        total = sum(term.value or 0.0 for term in terms)
        yield Finding(
            code=Code.WINDOWS_ADD_UP,
            severity=_of_foreign(subject, "hpa_down_window_seconds"),
            place=Place.of(fleet, "spec", "scaleDown", "stabilizationWindowSeconds"),
            message=(
                f"windows come one after the other{_guessed(subject, 'hpa_down_window_seconds')}: "
                + " + ".join(f"{term.value:.0f} s ({term.name})" for term in terms)
                + f" = {total:.0f} s before a seat that nobody needs is deleted"
            ),
            hint=(
                "keep one of them: stabilizationWindowSeconds: 0 in the ScaledObject's HPA behavior and a short"
                " cooldownPeriod, then --assume hpaDownWindowSeconds=0 --assume kedaCooldownSeconds=N"
            ),
            terms=tuple(terms),
        )


def _active(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    always = subject.floor_on(fleet) + fleet.spec.spare.min
    if always:
        yield Finding(
            code=Code.ALWAYS_ACTIVE,
            severity=Severity.INFO,
            place=Place.of(fleet, "spec", "spare", "min"),
            message=(
                f"the published total is never below {always}, so KEDA sees the fleet as active while it is idle: it keeps"
                " its seats, and cooldownPeriod never runs"
            ),
            terms=(
                Term(
                    name="floors on the fleet",
                    value=float(subject.floor_on(fleet)),
                    unit=SEATS,
                    origin="serving.min",
                ),
                Term(name="spare seats", value=float(fleet.spec.spare.min), unit=SEATS, origin="spare.min"),
            ),
        )


def _delayed(fleet: Fleet) -> Iterator[Finding]:
    window = fleet.spec.scale_up.stabilization_window_seconds
    if window:
        yield Finding(
            code=Code.SCALE_UP_DELAYED,
            severity=Severity.INFO,
            place=Place.of(fleet, "spec", "scaleUp", "stabilizationWindowSeconds"),
            message=f"seats that a burst needs are asked for {window} s late; until they have started only spares help",
            hint="0 asks for them at once",
        )


def _hasty(subject: Subject, fleet: Fleet) -> Iterator[Finding]:
    """A seat whose deletion saved less time than its return takes is a seat that a pause in the load costs."""
    window = fleet.spec.scale_down.stabilization_window_seconds
    terms = starting(subject, fleet)
    known = sum(term.value or 0.0 for term in terms)
    if subject.policies_on(fleet) and known > window:
        yield Finding(
            code=Code.SCALE_DOWN_HASTY,
            severity=Severity.WARNING,
            place=Place.of(fleet, "spec", "scaleDown", "stabilizationWindowSeconds"),
            message=f"a seat is deleted after {window} s without need, and a new one takes {known:.0f} s to start at least",
            hint="make the window longer than a seat's start",
            terms=terms,
        )
