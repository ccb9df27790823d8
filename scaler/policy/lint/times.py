"""Worst-case times of one policy: from nothing to one resident, from one to many, and back, with every contribution.

They are the worst case of a system in which nothing fails: a promotion that does is given up at its deadline, and the
next seat is taken.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final

from scaler.policy.fleet import Fleet
from scaler.policy.lint.assumptions import (
    BUCKET_SECONDS,
    DECISION_SECONDS,
    KV_SECONDS_PER_GIB,
    MOST_DEMOTIONS,
    MOST_PROMOTIONS,
    SWITCH_DRAIN_SECONDS,
    WAKE_SECONDS,
)
from scaler.policy.lint.codes import Code
from scaler.policy.lint.delays import fastest, slowest
from scaler.policy.lint.findings import SECONDS, Figure, Finding, Place, Severity, Term
from scaler.policy.lint.lending import lendable
from scaler.policy.lint.memory import SeatMemory, seat_memory
from scaler.policy.lint.resizing import Resizing, growing, shrinking
from scaler.policy.lint.subject import Subject, most_serving
from scaler.policy.scaling_policy import EngineType, ScalingPolicy
from warmpool.tiers import Tier

ON_THE_REFERENCE_ENGINE: Final = "measured on the reference engine"
"""What the origin of a promotion's time says where the engine is another one."""
_MIB_PER_GIB: Final = 1024
_BLIND: Final = "no signal sees its requests"
_BORROWS: Final = "beyond serving.min preemptible work only borrows seats"


def policy_times(subject: Subject, policy: ScalingPolicy) -> tuple[Figure, ...]:
    """Return the times of one policy."""
    floor, most = policy.spec.serving.min, most_at_once(subject, policy)
    least = max(1, floor)
    figures = [Figure(name="0→1", unit=SECONDS, never=f"serving.min keeps {floor} serving")]
    if floor == 0:
        figures = [_first_on_spare(subject, policy), _first_on_new(subject, policy)]
    figures += wakes(subject, policy)
    if most > least:
        figures.append(_onto_spares(subject, policy, least, most))
        figures += _onto_neighbours(subject, policy)
        if (new := all_on_new(subject, policy)) is not None:
            figures.append(new)
        figures += _onto_own(subject, policy, least, most)
    if most > floor:
        paused = _paused(subject, policy, most)
        figures += [paused, _deleted(subject, policy, paused)]
    return tuple(figures)


def promotion(
    subject: Subject, policy: ScalingPolicy, fleets: Iterable[Fleet], residents: int = 1
) -> list[Term]:
    """Return what stands between a sample and the first token of promoted residents that need no seat to start.

    Args:
        subject: what is looked at.
        policy: whose residents.
        fleets: where they are.
        residents: how many are promoted; beyond a number at once they wait for each other.
    """
    rounds = math.ceil(residents / MOST_PROMOTIONS)
    seconds = subject.assumptions.promotion_milliseconds / 1000 * rounds
    origin = "assumption promotionMilliseconds"
    if policy.spec.engine.type is not EngineType.REFERENCE and measured_elsewhere(subject):
        origin += f", {ON_THE_REFERENCE_ENGINE}"
    if rounds > 1:
        origin += f" × {rounds}, {MOST_PROMOTIONS} at once"
    terms = [
        Term(name="tick", value=WAKE_SECONDS, unit=SECONDS, origin="scaler.runtime.mailbox.IDLE_SECONDS"),
        Term(name="decision", value=DECISION_SECONDS, unit=SECONDS, origin="BENCHMARKS.md, both drills"),
        Term(name="promotion to first token", value=seconds, unit=SECONDS, origin=origin),
    ]
    kv = policy.spec.engine.kv_mib
    releases = any(subject.releases(fleet) and fleet.spec.seat.gpus for fleet in fleets)
    if kv is not None and releases:
        origin = f"engine.kvMiB {kv} × 0.83 ms per GiB (BENCHMARKS.md, the reference engine)"
        terms.append(
            Term(name="KV memory", value=kv / _MIB_PER_GIB * KV_SECONDS_PER_GIB, unit=SECONDS, origin=origin)
        )
    return terms


def wakes(subject: Subject, policy: ScalingPolicy) -> list[Figure]:
    """Return how long a burst waits for a resident that is parked, or that has no engine yet, on a spare seat of each fleet.

    Only where the arithmetic of a fleet's seats says that it may be: one that finds room is paused.
    """
    delay = fastest(policy, subject.assumptions, serving=True)
    figures = []
    for fleet in subject.fleets_of(policy):
        where, depth = _depth(subject, policy, fleet)
        if where and delay is not None and fleet.spec.spare.min:
            terms = (*delay.terms, *depth, *promotion(subject, policy, [fleet]))
            figures.append(Figure(name=f"burst on {fleet.metadata.name}{where}", unit=SECONDS, terms=terms))
    return figures


def _depth(subject: Subject, policy: ScalingPolicy, fleet: Fleet) -> tuple[str, list[Term]]:
    """Return from where a resident at rest is woken on a fleet, as a name goes on, and what that takes; nothing for a paused one."""
    seat = seat_memory(subject, fleet)
    tier = None if seat is None else seat.tiers.get(policy.metadata.name)
    if seat is not None and tier is Tier.PARKED:
        return ", from host memory", _moving(subject, seat, policy.metadata.name)
    if tier is Tier.COLD:
        return ", without an engine", _starting_cold(policy)
    return "", []


def _moving(subject: Subject, seat: SeatMemory, name: str) -> list[Term]:
    """Return how long it takes to park those who make room, one after the other, and to unpark who wakes."""
    moved = [(f"{other} parked", other) for other in seat.displaced.get(name, ())] + [("weights", name)]
    each, gpus = subject.assumptions.move_milliseconds_per_gib, max(1, seat.fleet.spec.seat.gpus)
    terms = []
    for what, resident in moved:
        footprint = seat.footprint(resident)
        size = None if footprint is None else footprint.paused
        if each is None or size is None:
            value, origin = None, "unknown: --assume moveMillisecondsPerGib=N, as measured"
        else:
            value = size / _MIB_PER_GIB / gpus * each / 1000
            origin = f"engine.pausedMiB {size} of {resident} × assumption moveMillisecondsPerGib"
        terms.append(Term(name=what, value=value, unit=SECONDS, origin=origin))
    return terms


def _starting_cold(policy: ScalingPolicy) -> list[Term]:
    seconds = policy.spec.engine.start_seconds
    origin = "engine.startSeconds" if seconds else "unknown: set engine.startSeconds, as measured"
    value = None if seconds is None else float(seconds)
    return [Term(name=f"start of {policy.metadata.name}", value=value, unit=SECONDS, origin=origin)]


def wake_findings(subject: Subject) -> Iterator[Finding]:
    """Yield the wakes from host memory that take longer than the objective allows; what isn't known counts as nothing."""
    for policy in subject.policies.policies.values():
        limit = policy.spec.objectives.ttft.limit_seconds
        for figure in wakes(subject, policy):
            total = figure.total or 0.0
            if total > limit:
                yield Finding(
                    code=Code.WAKE_MISSES_OBJECTIVE,
                    severity=Severity.INFO,
                    place=Place.of(policy, "spec", "objectives", "ttft"),
                    message=(
                        f"{figure.name}: {'more than ' if figure.unknown else ''}{total:.1f} s, and the objective is {limit:g} s."
                        " While it has demand one is kept paused, so this is a burst beyond that"
                    ),
                    hint="more GPU memory or fewer models per seat keep it paused; seats of its own serve its floor",
                    terms=figure.terms,
                )


def measured_elsewhere(subject: Subject) -> bool:
    """Whether the time of a promotion is the default: what was measured, on the reference engine and no other."""
    return "promotion_milliseconds" not in subject.assumptions.model_fields_set


def ready_seat(subject: Subject, policy: ScalingPolicy) -> Figure:
    """Return how long a request that nobody else can serve waits for a resident on a seat that stands ready."""
    if policy.spec.serving.min == 0:
        return _first_on_spare(subject, policy)
    if not ready_seats(subject, policy):
        return Figure(name=f"burst on a {_standing(policy)}", unit=SECONDS, never=_none_ready(policy))
    return burst_on_spare(subject, policy)


def new_seat(subject: Subject, policy: ScalingPolicy) -> Figure:
    """Return how long such a request waits where a seat has to be made: the first after a rest, else the last of a burst."""
    if policy.spec.serving.min == 0:
        return _first_on_new(subject, policy)
    figure = all_on_new(subject, policy)
    if figure is not None:
        return figure
    never = _BORROWS if policy.spec.preemptible else "no seat can be added that it may serve on"
    return Figure(name="on a new seat", unit=SECONDS, never=never)


def ready_seats(subject: Subject, policy: ScalingPolicy) -> int:
    """Return the seats that stand ready for a policy on all its fleets."""
    return sum(_ready(subject, policy, fleet) for fleet in subject.fleets_of(policy))


def _first_on_spare(subject: Subject, policy: ScalingPolicy) -> Figure:
    """0→1 where a seat is spare: signal + tick + promotion."""
    name = f"0→1 on a {_standing(policy)}"
    fleets = [fleet for fleet in subject.fleets_of(policy) if _ready(subject, policy, fleet)]
    delay = fastest(policy, subject.assumptions, serving=False)
    if delay is None or not fleets:
        never = _BLIND if delay is None else _none_ready(policy)
        return Figure(name=name, unit=SECONDS, never=never)
    depths = [_depth(subject, policy, fleet) for fleet in fleets]
    where, terms = min(
        depths, key=lambda depth: bool(depth[0])
    )  # the law takes a paused one where there is one
    terms = [*delay.terms, *terms, *promotion(subject, policy, fleets)]
    return Figure(name=f"{name}{where}", unit=SECONDS, terms=tuple(terms))


def burst_on_spare(subject: Subject, policy: ScalingPolicy) -> Figure:
    """Return how long a burst beside serving residents waits for a spare seat's: signal + tick + promotion."""
    delay = fastest(policy, subject.assumptions, serving=True)
    if delay is None:
        return Figure(name="burst on a spare seat", unit=SECONDS, never=_BLIND)
    fleets = subject.fleets_of(policy)
    terms = (*delay.terms, *promotion(subject, policy, fleets))
    return Figure(name="burst on a spare seat", unit=SECONDS, terms=terms)


def _first_on_new(subject: Subject, policy: ScalingPolicy) -> Figure:
    """0→1 where no seat is spare: a seat has to be made on the first fleet, which is where the law wants it."""
    name = "0→1 on a new seat"
    delay = fastest(policy, subject.assumptions, serving=False)
    if delay is None or policy.spec.preemptible:
        return Figure(name=name, unit=SECONDS, never=_BLIND if delay is None else _BORROWS)
    home = subject.fleets_of(policy)[0]
    floors = subject.floor_on(home)
    grown = growing(subject, Resizing(fleet=home, start=floors, goal=floors + 1))
    terms = (*delay.terms, *grown.terms, *promotion(subject, policy, [home]))
    return Figure(name=name, unit=SECONDS, terms=terms, never=grown.never)


def _onto_spares(subject: Subject, policy: ScalingPolicy, least: int, most: int) -> Figure:
    """As far as the spare seats of its fleets reach, when nobody else wants them."""
    fleets = [fleet for fleet in subject.fleets_of(policy) if _ready(subject, policy, fleet)]
    reach = min(most, least + sum(_ready(subject, policy, fleet) for fleet in fleets))
    if reach == least:
        name = f"{least}→{least + 1} on a {_standing(policy)}"
        return Figure(name=name, unit=SECONDS, never=_none_ready(policy))
    name = f"{least}→{reach} on {_standing(policy)}s"
    delay = fastest(policy, subject.assumptions, serving=True)
    if delay is None:
        return Figure(name=name, unit=SECONDS, never=_BLIND)
    promoting = promotion(subject, policy, fleets, reach - least)
    return Figure(name=name, unit=SECONDS, terms=(*delay.terms, *promoting))


def _onto_neighbours(subject: Subject, policy: ScalingPolicy) -> list[Figure]:
    """By switching a seat on which a policy of lower priority serves above its floor, when no seat is spare.

    The one that leaves is taken out of rotation, drains within half of the promotion's deadline, and makes room. Where a
    Service reaches it, requests go on coming until that has settled.
    """
    delay = fastest(policy, subject.assumptions, serving=True)
    if policy.spec.preemptible:
        return []
    fleets = [
        fleet
        for fleet in subject.fleets_of(policy)
        if any(other.spec.priority < policy.spec.priority for other in subject.policies_on(fleet))
    ]
    if delay is None or not fleets:
        return []
    settle = subject.assumptions.settle_milliseconds / 1000
    leaving = (
        Term(name="leaving rotation", value=settle, unit=SECONDS, origin="assumption settleMilliseconds"),
        Term(
            name="drain, at most",
            value=SWITCH_DRAIN_SECONDS,
            unit=SECONDS,
            origin="scaler.runtime.actuator: half of a promotion's deadline",
        ),
    )
    terms = (*delay.terms, *leaving, *promotion(subject, policy, fleets))
    return [Figure(name="+1 on a seat of lower priority", unit=SECONDS, terms=terms)]


def all_on_new(subject: Subject, policy: ScalingPolicy) -> Figure | None:
    """Return how long it takes to all that can ever serve: the fleets grow side by side, and the slowest of them counts.

    None where that takes no new seat.
    """
    least, most = max(1, policy.spec.serving.min), most_at_once(subject, policy)
    if policy.spec.preemptible or most <= least:
        return None
    fleets = subject.fleets_of(policy)
    grown, remaining = [], most - least - sum(fleet.spec.spare.min for fleet in fleets)
    for index, fleet in enumerate(fleets):
        present = subject.floor_on(fleet) + fleet.spec.spare.min
        if index == 0 and policy.spec.serving.min == 0:
            present += 1
        added = min(remaining, fleet.spec.max_seats - present)
        if added > 0:
            grown.append(growing(subject, Resizing(fleet=fleet, start=present, goal=present + added)))
            remaining -= added
    if not grown:
        return None
    name, slow = f"{least}→{most} on new seats", _slowest(grown)
    delay = fastest(policy, subject.assumptions, serving=True)
    if delay is None:
        return Figure(name=name, unit=SECONDS, never=_BLIND)
    terms = (*delay.terms, *slow.terms, *promotion(subject, policy, fleets, most - least))
    return Figure(name=name, unit=SECONDS, terms=terms, never=slow.never and f"{slow.name}: {slow.never}")


def _onto_own(subject: Subject, policy: ScalingPolicy, least: int, most: int) -> list[Figure]:
    """From the bridge back onto its own fleet, which grows for the mean over the stable window and not for the peak.

    So a burst that the spares carry and that is soon over starts no pod (`scaler.core.placement.homes`). What exceeds the
    spares is asked for at once: that is the time on new seats.
    """
    home, *bridge = subject.fleets_of(policy)
    delay = fastest(policy, subject.assumptions, serving=True)
    if policy.spec.preemptible or delay is None or not any(fleet.spec.spare.min for fleet in bridge):
        return []
    floor, present = policy.spec.serving.min, subject.floor_on(home) + home.spec.spare.min
    reach = min(most, least + home.spec.spare.min + sum(fleet.spec.spare.min for fleet in bridge))
    reach = min(reach, floor + home.spec.max_seats - present)
    if reach <= least:
        return []
    grown = growing(subject, Resizing(fleet=home, start=present, goal=present + reach - floor))
    mean = Term(
        name="mean reaches the load",
        value=policy.spec.burst.stable_window_seconds + BUCKET_SECONDS,
        unit=SECONDS,
        origin="burst.stableWindowSeconds and one bucket of 1 s: its own fleet follows the mean",
    )
    terms = (*delay.terms, mean, *grown.terms, *promotion(subject, policy, [home], reach - floor))
    name = f"{least}→{reach} on its own fleet, off the bridge"
    return [Figure(name=name, unit=SECONDS, terms=terms, never=grown.never)]


def _paused(subject: Subject, policy: ScalingPolicy, most: int) -> Figure:
    """From all serving to the floor, after a burst: the last of them is paused.

    The short window has to run out of the burst, then a whole stable window has to stay below it; then a smaller answer
    has to hold for `demoteAfterSeconds`, on a bridge for a stable window at least (`scaler.core.modes`, `scaler.core.assess`).
    """
    burst, floor = policy.spec.burst, policy.spec.serving.min
    name = f"{most}→{floor}, paused"
    delay = slowest(policy, subject.assumptions)
    if delay is None:
        return Figure(name=name, unit=SECONDS, never=_BLIND)
    bridged = len(policy.spec.fleets) > 1 and burst.stable_window_seconds > burst.demote_after_seconds
    hold = burst.stable_window_seconds if bridged else burst.demote_after_seconds
    rounds = math.ceil((most - floor) / MOST_DEMOTIONS)
    origin = "assumption drainSeconds" + (f" × {rounds}, {MOST_DEMOTIONS} at once" if rounds > 1 else "")
    parts = (
        (
            "burst window runs out",
            burst.window_seconds + BUCKET_SECONDS,
            "burst.windowSeconds and one bucket of 1 s",
        ),
        ("calm for a stable window", burst.stable_window_seconds, "burst.stableWindowSeconds"),
        (
            "smaller answer holds",
            hold,
            "burst.stableWindowSeconds, on a bridge" if bridged else "burst.demoteAfterSeconds",
        ),
        ("tick and decision", WAKE_SECONDS + DECISION_SECONDS, "scaler.runtime.mailbox, BENCHMARKS.md"),
        ("drain, at most", subject.assumptions.drain_seconds * rounds, origin),
    )
    terms = [
        Term(name=part, value=float(value), unit=SECONDS, origin=source) for part, value, source in parts
    ]
    return Figure(name=name, unit=SECONDS, terms=(*delay.terms, *terms))


def _deleted(subject: Subject, policy: ScalingPolicy, paused: Figure) -> Figure:
    """The same until the seats that nobody needs any more are deleted, on the fleet where that takes longest."""
    name = paused.name.replace("paused", "seats deleted")
    shrunk = [
        figure for fleet in subject.fleets_of(policy) if (figure := shrinking(subject, fleet)) is not None
    ]
    if not shrunk:
        return Figure(name=name, unit=SECONDS, never="floors and spares are all of maxSeats")
    slow = _slowest(shrunk)
    never = paused.never or (slow.never and f"{slow.name}: {slow.never}")
    return Figure(name=name, unit=SECONDS, terms=(*paused.terms, *slow.terms), never=never)


def most_at_once(subject: Subject, policy: ScalingPolicy) -> int:
    """Return the residents that can serve at once; of work that borrows, what it owns and what may be lent."""
    most = most_serving(subject, policy)
    if not policy.spec.preemptible:
        return most
    return min(
        most, policy.spec.serving.min + sum(lendable(subject, fleet) for fleet in subject.fleets_of(policy))
    )


def _ready(subject: Subject, policy: ScalingPolicy, fleet: Fleet) -> int:
    """Return the seats that stand ready for a policy on a fleet: its spares; for work that only borrows, those it lends."""
    return lendable(subject, fleet) if policy.spec.preemptible else fleet.spec.spare.min


def _standing(policy: ScalingPolicy) -> str:
    return "lent seat" if policy.spec.preemptible else "spare seat"


def _none_ready(policy: ScalingPolicy) -> str:
    return (
        "no fleet of it aims at spares beyond spare.min"
        if policy.spec.preemptible
        else "spare.min is 0 on all its fleets"
    )


def _slowest(figures: Iterable[Figure]) -> Figure:
    return max(figures, key=lambda figure: (bool(figure.never), figure.total or 0.0, len(figure.unknown)))
