"""Why, as data: the reasons of a policy's decision, the ruling term first."""

import math
from collections.abc import Sequence

from scaler.core.allocate import Applicant
from scaler.core.assess import Assessment
from scaler.core.demand import Demand
from scaler.core.model import Mode, Ordered, Quality, Reason, ReasonCode
from scaler.core.placement import Place, beyond, count, seats_for
from scaler.core.starting import Turn

_BURST, _FRESH = Mode.BURST, Quality.FRESH
_FLOOR, _CONCURRENCY, _BURST_HELD = ReasonCode.FLOOR, ReasonCode.CONCURRENCY, ReasonCode.BURST_HELD
_SPARES_EXHAUSTED, _ORDER_LIMITED = ReasonCode.SPARES_EXHAUSTED, ReasonCode.ORDER_LIMITED
"""By names of their own: looking an enum's members up takes long (`scaler.core.demand`). Of the reasons the most common."""

_ROUNDING = 1e-9
"""Capacity that nothing is short of: what float sums are off by."""


def because(code: ReasonCode, until: float | None = None, /, **facts: float | str) -> Reason:
    """Return a reason; an `until` that is no time is left out."""
    if until is not None and not math.isfinite(until):
        until = None
    return Reason(code, facts, until)


def reasons_for(
    assessment: Assessment, asker: Applicant, wanted: Sequence[int], needed: float, ordered: float
) -> tuple[Reason, ...]:
    """Return why a policy got what it got.

    Args:
        assessment: what was known before seats were handed out.
        asker: what it got.
        wanted: residents that it wants, per place.
        needed: capacity that the law asks for.
        ordered: capacity that new seats may be made for.
    """
    given, seats = asker.given, sum(wanted)
    mode, quality = _mode(assessment), _quality(assessment)
    ruling = _ruling(assessment, seats, needed, quality + mode)
    reasons = mode + quality
    if assessment.ordered is not None:
        reasons += _ordered(assessment, assessment.ordered, asker.ordered)
    reasons += _kept(assessment, given)
    if assessment.spec.preemptible:
        reasons += _lent(assessment, given, needed)
    else:
        reasons += _supply(assessment, asker, wanted, needed)
        if ordered < needed - _ROUNDING and seats < assessment.most:
            reasons += _limited(assessment, given, needed, ordered)
    if assessment.turn is not None:
        reasons += _starting(assessment, assessment.turn, asker.starting, seats)
    return (ruling, *[reason for reason in reasons if reason.code is not ruling.code])


def _ruling(assessment: Assessment, wanted: int, needed: float, keeping: Sequence[Reason]) -> Reason:
    """The term that gave the answer, or the bound that overruled it, or what is `keeping` it up."""
    places = assessment.places
    first = places[0].target if places else 1
    asked = seats_for(needed, first)
    scheduled = assessment.scheduled
    if asked < assessment.floor and scheduled.value >= assessment.floor > count(assessment.spec.serving_min):
        facts: dict[str, float | str] = {"schedule": scheduled.schedule, "floor": assessment.floor}
        return because(ReasonCode.SCHEDULED, scheduled.changes_at, **facts)
    if asked < assessment.floor or (asked == 0 and wanted == 0):
        return because(_FLOOR, floor=assessment.floor, needed=needed)
    if asked > assessment.most:
        return because(ReasonCode.MAX, max=assessment.most, needed=needed)
    if keeping and assessment.sticky and needed > assessment.terms.pressing + _ROUNDING:
        return keeping[0]  # no term asks for so much any more
    return _term(assessment, needed)


def _term(assessment: Assessment, needed: float) -> Reason:
    terms, burst = assessment.terms, assessment.spec.burst
    if terms.at_risk and terms.deadline >= max(terms.peak, terms.mean, terms.drain):
        return _deadline(assessment)
    if terms.backlog > max(terms.mean, terms.drain) and terms.backlog >= needed:
        return because(
            ReasonCode.BACKLOG,
            backlog=assessment.demand.backlog,
            oldestSeconds=assessment.demand.backlog_age,
            drainSeconds=assessment.spec.queue_drain,
            needed=terms.backlog,
        )
    if terms.correction > max(terms.mean, terms.drain) and terms.correction >= needed:
        return because(
            ReasonCode.TTFT_LATE,
            latePercent=(assessment.demand.late or 0.0) * 100.0,
            allowedPercent=assessment.spec.late_share * 100.0,
            objectiveSeconds=assessment.spec.ttft_objective,
            needed=terms.correction,
        )
    if terms.drain > terms.mean and terms.drain >= needed:
        return because(
            ReasonCode.QUEUE_DRAIN,
            queued=assessment.demand.queued,
            drainSeconds=assessment.spec.queue_drain,
            needed=terms.drain,
        )
    if needed > terms.mean and terms.peak >= needed:
        window, value, seconds = "burst", terms.peak, burst.window
    else:
        window, value, seconds = "stable", terms.mean, burst.stable_window
    return because(
        _CONCURRENCY,
        window=window,
        demand=value,
        windowSeconds=seconds,
        capacity=assessment.capacity,
    )


def _deadline(assessment: Assessment) -> Reason:
    facts: dict[str, float | str] = {
        "queued": assessment.demand.queued,
        "oldestWaitSeconds": assessment.demand.wait,
        "objectiveSeconds": assessment.spec.ttft_objective,
    }
    if math.isfinite(assessment.terms.predicted_wait):
        facts["predictedWaitSeconds"] = assessment.terms.predicted_wait
    return because(ReasonCode.DEADLINE_AT_RISK, **facts)


def _mode(assessment: Assessment) -> list[Reason]:
    phase, terms, spec = assessment.phase, assessment.terms, assessment.spec
    if phase.ended:
        return [because(ReasonCode.BURST_ENDED, stableWindowSeconds=spec.burst.stable_window)]
    if phase.mode is not _BURST or phase.burst is None:
        return []
    if phase.burst.restarted:
        ends = phase.changes_at if phase.burst.calm_since is not None else None
        return [because(ReasonCode.RESTARTED, ends, stableWindowSeconds=spec.burst.stable_window)]
    if phase.entered:
        found = [
            because(
                ReasonCode.BURST_ENTERED,
                demand=terms.peak,
                capacity=assessment.capacity,
                thresholdPercent=spec.burst.threshold * 100.0,
            )
        ]
        return [*found, _deadline(assessment)] if terms.at_risk else found
    ends = phase.changes_at if phase.burst.calm_since is not None else None
    return [
        because(
            _BURST_HELD,
            ends,
            demand=terms.peak,
            capacity=assessment.capacity,
            stableWindowSeconds=spec.burst.stable_window,
        )
    ]


def _quality(assessment: Assessment) -> list[Reason]:
    demand: Demand = assessment.demand
    if demand.quality is _FRESH:
        return []
    fresh_at = assessment.memory.fresh_at
    if demand.quality is Quality.STALE:
        return [because(ReasonCode.SIGNALS_STALE, source=demand.silent, since=fresh_at)]
    holds_at = fresh_at + count(assessment.spec.failure_threshold)
    return [
        because(
            ReasonCode.SIGNALS_MISSING,
            None if assessment.holding else holds_at,
            source=demand.silent or "all signals",
            since=fresh_at,
            thresholdSeconds=count(assessment.spec.failure_threshold),
            mode=str(assessment.phase.mode),
        )
    ]


def _ordered(assessment: Assessment, ordered: Ordered, kept: Sequence[int]) -> list[Reason]:
    """What people have ordered to be kept, on the first fleet where there is any."""
    for place, seats in zip(assessment.places, kept, strict=True):
        if seats:
            return [because(ReasonCode.ORDERED, ordered.until, fleet=place.pool.name, kept=seats)]
    return []


def _kept(assessment: Assessment, given: Sequence[int]) -> list[Reason]:
    """Residents that serve although the stable answer would do without them; a floor is a reason of its own."""
    if assessment.sticky or sum(given) <= assessment.floor:
        return []
    left = assessment.answer
    for index, place in enumerate(assessment.places):
        enough = min(given[index], math.ceil(max(0.0, left) / place.target - _ROUNDING))
        left -= enough * place.target
        kept = min(given[index], place.own) - max(enough, 0)
        if kept <= 0:
            continue
        asked = assessment.asked[place.pool.name]
        facts: dict[str, float | str] = {"fleet": place.pool.name, "kept": kept, "serving": place.own}
        if asked.marks[-1].value >= place.own:
            return [
                because(
                    ReasonCode.SURVIVORS_TOO_FEW,
                    **facts,
                    demand=assessment.terms.pressing,
                    survivors=(place.own - 1) * place.target,
                )
            ]
        window = assessment.demote_window(index)
        return [
            because(ReasonCode.DEMOTE_DELAYED, asked.falls_at(window), **facts, demoteAfterSeconds=window)
        ]
    return []


def _lent(assessment: Assessment, given: Sequence[int], needed: float) -> list[Reason]:
    """What it borrows, or that there is nothing to borrow."""
    lent = sum(beyond(given, assessment.floor))
    capacity = float(_capacity(assessment.places, given))
    if not lent and capacity >= needed:
        return []
    return [because(ReasonCode.LENT, lent=lent, owned=sum(given) - lent, needed=needed, capacity=capacity)]


def _supply(assessment: Assessment, asker: Applicant, wanted: Sequence[int], needed: float) -> list[Reason]:
    places, given, most = assessment.places, asker.given, assessment.most
    reasons, seats = [], asker.seats
    bridged = seats - given[0] if given else 0
    if bridged and wanted[0] > given[0]:
        reasons.append(
            because(
                ReasonCode.BRIDGED,
                fleet=places[0].pool.name,
                missing=wanted[0] - given[0],
                bridged=bridged,
                on=", ".join(p.pool.name for p, seats in zip(places[1:], given[1:], strict=True) if seats),
            )
        )
    if seats >= most:
        return reasons
    capacity = asker.capacity
    if capacity < needed - _ROUNDING or seats < assessment.floor:
        facts = {"wanted": sum(wanted), "given": seats, "needed": needed, "capacity": capacity}
        if [place for place in places if place.pool.fit is not None]:
            facts["up"] = sum([place.reach for place in places])
        reasons.append(because(_SPARES_EXHAUSTED, **facts))
    lost = 0
    for index, place in enumerate(places):
        if given[index] < place.own:  # else there is nothing that it could have lost
            lost += max(0, min(assessment.kept(index), place.own) - given[index])
    if lost:
        reasons.append(because(ReasonCode.PREEMPTED, lost=lost, given=seats))
    return reasons


def _capacity(places: Sequence[Place], given: Sequence[int]) -> int:
    return sum([given[index] * place.target for index, place in enumerate(places)])


def _limited(assessment: Assessment, given: Sequence[int], needed: float, ordered: float) -> list[Reason]:
    """That fewer new seats are made than what waits at present would fill."""
    places = assessment.places
    if not places:
        return []
    held = max(ordered, _capacity(places, given))
    if held >= needed - _ROUNDING:
        return []
    if seats_for(held, places[0].target) >= seats_for(needed, places[0].target):
        return []
    start = max([place.pool.start_seconds for place in places])
    return [because(_ORDER_LIMITED, needed=needed, ordered=held, startSeconds=start)]


def _starting(assessment: Assessment, turn: Turn, starting: Sequence[int], wanted: int) -> list[Reason]:
    """That nothing of it is up, and whether it has a seat for a resident to start on."""
    if not wanted:
        return []
    if seats := sum(starting):
        on = [place.pool.name for index, place in enumerate(assessment.places) if starting[index]]
        return [because(ReasonCode.RESIDENT_STARTING, turn.until, seats=seats, on=", ".join(on))]
    reach = sum([place.to_start().reach for place in assessment.places])
    facts: dict[str, float | str] = {"wanted": wanted, "seats": reach}
    if turn.stands:
        return [because(ReasonCode.RESIDENT_WAITING, **facts)]
    return [because(ReasonCode.RESIDENT_WAITING, turn.until, **facts, aside="yes")]
