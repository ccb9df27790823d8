"""What stands between a total that is asked for and the seats that it means: our own rates, KEDA and its HPA, and starting.

KEDA's part follows how it works: from zero its operator activates the workload, from one on the HorizontalPodAutoscaler
that it owns does the rest, and back to zero comes only after that one has gone down to one and a cooldown has passed. The
HPA's stabilisation and KEDA's cooldown are one after the other (kedacore/keda, pkg/scaling/executor/scale_scaledobjects.go).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scaler.core.model import Pace
from scaler.policy.fleet import Fleet, ResizedBy, ScalingBehavior, SelectPolicy
from scaler.policy.lint.assumptions import HPA_DOWN, HPA_UP
from scaler.policy.lint.findings import SECONDS, Figure, Term
from scaler.policy.lint.stepping import ignored, last_start, way
from scaler.policy.lint.subject import Subject
from warmpool.seats import FleetName

_START_HINT: Final = "unknown: set spec.engine.startSeconds of policy {name}, as measured"
_POD_HINT: Final = "unknown: --assume podStartSeconds=N (scheduling, image pull, a new node)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """A change of a fleet's size.

    Attributes:
        fleet: the fleet.
        start: seats before.
        goal: seats after.
    """

    fleet: Fleet
    start: int
    goal: int


def growing(subject: Subject, change: Resizing) -> Figure:
    """Return how long it takes at most until new seats can be promoted, from the moment at which they are asked for."""
    spec = change.fleet.spec
    up = spec.scale_up
    name = f"{change.fleet.metadata.name} {change.start}→{change.goal}"
    if never := _never(change, up, "scaleUp") or _swallowed_by_hpa(subject, change):
        return Figure(name=name, unit=SECONDS, never=never)
    terms = _window(up.stabilization_window_seconds, "scaleUp window", "scaleUp.stabilizationWindowSeconds")
    terms += _rates(change, subject.policies.fleet_specs[_name(change.fleet)].scale_up, "scaleUp.policies")
    if spec.resized_by is ResizedBy.KEDA:
        terms += _keda_up(subject, change)
    return Figure(name=name, unit=SECONDS, terms=(*terms, *starting(subject, change.fleet)))


def shrinking(subject: Subject, fleet: Fleet) -> Figure | None:
    """Return how long it takes at most from seats that nobody needs any more until the last of them is deleted.

    From `maxSeats` down to what is always there: the floors on the fleet, and its spares. None where that is all of
    `maxSeats`.
    """
    spec = fleet.spec
    change = Resizing(
        fleet=fleet,
        start=spec.max_seats,
        goal=min(spec.max_seats, subject.floor_on(fleet) + spec.spare.min),
    )
    name = f"{fleet.metadata.name} {change.start}→{change.goal}"
    if change.start == change.goal:
        return None
    down = spec.scale_down
    if never := _never(change, down, "scaleDown") or _swallowed_by_hpa(subject, change):
        return Figure(name=name, unit=SECONDS, never=never)
    terms = _window(
        down.stabilization_window_seconds, "scaleDown window", "scaleDown.stabilizationWindowSeconds"
    )
    terms += _rates(change, subject.policies.fleet_specs[_name(fleet)].scale_down, "scaleDown.policies")
    if spec.resized_by is ResizedBy.KEDA:
        terms += _keda_down(subject, change)
    return Figure(name=name, unit=SECONDS, terms=tuple(terms))


def starting(subject: Subject, fleet: Fleet) -> tuple[Term, ...]:
    """Return how long one seat takes to start: its pod, and its residents one after the other, the wanted one last."""
    pod = subject.assumptions.pod_start_seconds
    terms = [
        Term(
            name="pod until its containers run",
            value=None if pod is None else float(pod),
            unit=SECONDS,
            origin=_POD_HINT if pod is None else "assumption podStartSeconds",
        )
    ]
    for policy in subject.policies_on(fleet):
        seconds, name = policy.spec.engine.start_seconds, policy.metadata.name
        origin = _START_HINT.format(name=name) if seconds is None else "engine.startSeconds"
        value = None if seconds is None else float(seconds)
        terms.append(Term(name=f"start of {name}", value=value, unit=SECONDS, origin=origin))
    return tuple(terms)


def replenishing(subject: Subject, fleet: Fleet) -> Figure | None:
    """Return how long it takes until the spares are back after a burst took all of them, and nothing else starts.

    None where there are none.
    """
    spare = fleet.spec.spare.min
    if spare == 0:
        return None
    start = subject.floor_on(fleet) + spare
    goal = min(fleet.spec.max_seats, start + spare)
    if goal <= start:
        never = f"maxSeats {fleet.spec.max_seats} leaves no room beside {start} seats"
        return Figure(name=f"{spare} spare seats back", unit=SECONDS, never=never)
    name = f"{goal - start} of {spare} spare seats back"
    grown = growing(subject, Resizing(fleet=fleet, start=start, goal=goal))
    terms = (*_queue(subject, fleet, goal - start), *grown.terms)
    return Figure(name=name, unit=SECONDS, terms=terms, never=grown.never)


def _queue(subject: Subject, fleet: Fleet, seats: int) -> Iterator[Term]:
    """Return how long the last seat waits for its turn; nothing where it needn't."""
    limits, name = fleet.spec.spare.replenish, "waiting for replenish limits"
    start = Figure(name="start", unit=SECONDS, terms=starting(subject, fleet))
    origin = f"replenish.maxConcurrent {limits.max_concurrent}, perMinute {limits.per_minute}"
    if seats > limits.max_concurrent and not start.exact:
        yield Term(
            name=name,
            value=None,
            unit=SECONDS,
            origin=f"unknown: {origin}, and how long a seat takes to start",
        )
        return
    seconds = last_start(
        seats,
        concurrent=limits.max_concurrent,
        per_minute=limits.per_minute,
        start_seconds=start.total or 0.0,
    )
    if seconds:
        yield Term(name=name, value=seconds, unit=SECONDS, origin=origin)


def _name(fleet: Fleet) -> FleetName:
    return FleetName(fleet.metadata.name)


def _never(change: Resizing, behavior: ScalingBehavior, key: str) -> str:
    if behavior.select_policy is SelectPolicy.DISABLED:
        return f"{key}.selectPolicy is Disabled"
    step = abs(change.goal - change.start)
    if change.start and step <= ignored(change.start, behavior.tolerance_percent):
        return f"{key}.tolerancePercent {behavior.tolerance_percent} ignores {step} of {change.start} seats"
    return ""


def _swallowed_by_hpa(subject: Subject, change: Resizing) -> str:
    percent = subject.assumptions.hpa_tolerance_percent
    step = abs(change.goal - change.start)
    if (
        change.fleet.spec.resized_by is ResizedBy.KEDA
        and change.start
        and step <= ignored(change.start, percent)
    ):
        return f"the HPA's tolerance of {percent} % ignores {step} of {change.start} seats"
    return ""


def _window(seconds: int, name: str, origin: str) -> list[Term]:
    return [Term(name=name, value=float(seconds), unit=SECONDS, origin=origin)] if seconds else []


def _rates(change: Resizing, pace: Pace, origin: str) -> list[Term]:
    """Return what the rates add; an unknown rest where so many changes would be needed that nobody waits for the last.

    At worst a fleet that grows has just grown to what it has, so that the first period is used up already. Down from
    `maxSeats` there can't have been more before.
    """
    found = way(pace, change.start, change.goal, before=0 if change.goal > change.start else None)
    known = Term(name=origin, value=found.seconds, unit=SECONDS, origin=origin)
    if found.reached != change.goal:
        rest = abs(change.goal - found.reached)
        more = f"unknown: {origin} leave {rest} more seats after that; raise their values"
        return [known, Term(name=f"{origin}: the rest", value=None, unit=SECONDS, origin=more)]
    return [known] if found.seconds else []


def _keda_up(subject: Subject, change: Resizing) -> list[Term]:
    """From zero KEDA's activation, at worst with its next poll; then the HPA, at its next look and at its own rate."""
    assumed, terms = subject.assumptions, list[Term]()
    start = change.start
    if start == 0:
        origin = "assumption kedaPollingSeconds; at once while an external-push stream is up"
        terms.append(
            Term(
                name="KEDA activates", value=float(assumed.keda_polling_seconds), unit=SECONDS, origin=origin
            )
        )
        start = 1
    if change.goal > start:
        terms.append(_sync(subject))
        steps = way(HPA_UP, start, change.goal, before=0).seconds
        if steps:
            terms.append(
                Term(
                    name="HPA's rates",
                    value=steps,
                    unit=SECONDS,
                    origin="its default: doubling, or 4 pods, each 15 s",
                )
            )
    return terms


def _keda_down(subject: Subject, change: Resizing) -> list[Term]:
    """The HPA down to one at least, after its window; to zero KEDA, after its cooldown."""
    assumed, terms = subject.assumptions, list[Term]()
    if change.start > max(1, change.goal):
        terms.append(_sync(subject))
        window = float(assumed.hpa_down_window_seconds)
        origin = "assumption hpaDownWindowSeconds"
        terms.append(Term(name="HPA's scaleDown window", value=window, unit=SECONDS, origin=origin))
        steps = way(HPA_DOWN, change.start, max(1, change.goal)).seconds
        if not math.isclose(steps, 0.0):
            terms.append(
                Term(name="HPA's rates", value=steps, unit=SECONDS, origin="its default: 100 % each 15 s")
            )
    if change.goal == 0:
        cooldown, polling = float(assumed.keda_cooldown_seconds), float(assumed.keda_polling_seconds)
        terms.append(
            Term(
                name="KEDA's cooldown", value=cooldown, unit=SECONDS, origin="assumption kedaCooldownSeconds"
            )
        )
        terms.append(
            Term(name="KEDA's poll", value=polling, unit=SECONDS, origin="assumption kedaPollingSeconds")
        )
    return terms


def _sync(subject: Subject) -> Term:
    seconds = float(subject.assumptions.hpa_sync_seconds)
    return Term(name="HPA's sync", value=seconds, unit=SECONDS, origin="assumption hpaSyncSeconds")
