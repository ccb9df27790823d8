"""How many seats a fleet should have: total = min(max_seats, serving + spare - kept + held), as windows and limits let it.

Up: what serving residents want is asked for at once; spares grow back no faster than `replenish` says, except that a
fleet which is only just being filled is slowed by `max_concurrent` alone. Down: after the smaller total has held for a
whole scale-down window (the highest of the window rules, as in the HPA). Whoever wants it slower says so (`pace`); a
frozen fleet keeps its size. Seats that serve only out of caution (kept) count as spare, as lent ones do.

Seats that are still starting serve nobody, so they go sooner: once nothing has asked for them for as long as a start takes,
and one stable window at least. That is when to give up what may be wanted again (the ski rental problem: after having paid
for it as much as it costs to have it anew); demand that is back sooner than another seat could be up finds this one. While
nobody knows how long a start takes, they stay for the scale-down window as well.

Where somebody else writes the size, what he wishes beyond that raises the total, and nothing that serves (`wishes`).

The budget over all fleets is reserved before it is promised: a fleet that shrinks keeps its part until its seats are
really gone, and what is left goes to floors first, then to serving residents, then to spares.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scaler.core.memory import FleetMemory
from scaler.core.model import (
    NO_FLOOR,
    AutoSpare,
    Extent,
    FleetDecision,
    FleetSpec,
    FleetView,
    Floor,
    OneWay,
    Pace,
    Reason,
    ReasonCode,
)
from scaler.core.pace import Changes, Minima, highest_total, lowest_total, tolerated
from scaler.core.placement import COUNT_MAX, count, extent_of
from scaler.core.reasons import because
from scaler.core.rises import NO_RISES, Rises
from scaler.core.values import frozen
from scaler.core.windows import Maxima
from scaler.core.wishes import FOLLOWED_SECONDS, NO_WISHES, Wishes, holds

_SEATS_AT_MAX, _SCALE_DOWN_DELAYED = ReasonCode.SEATS_AT_MAX, ReasonCode.SCALE_DOWN_DELAYED
"""By names of their own: looking an enum's members up takes long (`scaler.core.demand`)."""


@dataclass(slots=True)
class Draft:
    """One fleet's total while it is worked out.

    Attributes:
        spec: the fleet.
        view: what it is made of.
        extent: what that comes to.
        memory: what is remembered of it, starts older than a minute left out.
        serving: residents wanted on it, all policies together.
        floors: the part of `serving` that is floors.
        spare: the spare target.
        kept: the part of `serving` that counts as spare.
        calm: seconds for which nothing may have asked for a start that is cancelled.
        rises: how fast demand has risen, this moment included.
        wishes: what was published and wished, this moment included.
        last: the total that stands: the last one, or at the start what the fleet is found with.
        wished: seats that others wish for, within max_seats; 0 for none.
        base: the total that a change is counted from: others have already made the one that they wish for.
        target: serving + spare - kept + held, or what is wished where that is more, within max_seats.
        total: the answer.
        totals: totals asked for over the scale-down window, this moment included.
        lows: totals asked for over the scale-up window, this moment included.
        fresh: the fleet is only just being filled.
        going: seats that go once they are lent no more.
        reasons: why.
        wakeups: times at which the answer may change by time alone.
    """

    spec: FleetSpec
    view: FleetView
    extent: Extent
    memory: FleetMemory
    serving: int
    floors: int
    spare: int
    kept: int
    calm: float
    rises: Rises
    wishes: Wishes
    last: int
    wished: int
    base: int
    target: int
    total: int
    totals: Maxima
    lows: Minima
    fresh: bool
    going: int = 0
    reasons: list[Reason] = field(default_factory=list)
    wakeups: list[float] = field(default_factory=list)

    @property
    def existing(self) -> int:
        """Seats that exist and are here to stay."""
        return self.extent.seats

    @property
    def held(self) -> int:
        """Seats that take a replica and can serve nobody."""
        return self.extent.held

    def upto(self, serving: int) -> int:
        """Return the total that `serving` residents take, without spares."""
        return min(count(self.spec.max_seats), serving + self.extent.held)


def first_memory(view: FleetView, rises: Rises) -> FleetMemory:
    """Return what is remembered of a fleet on first sight: that it should have what it has, or was asked to have.

    Args:
        view: what it is found with.
        rises: what was learned of it before a restart.
    """
    seats = extent_of(view).seats
    found = max(seats, count(view.replicas))
    return FleetMemory(view=view, total=found, filled=seats > 0, totals=Maxima(), rises=rises)


@frozen()
class Ask:
    """What a fleet is asked for.

    Attributes:
        serving: residents wanted on it, all policies together.
        floors: the part of them that is floors.
        kept: the part of them that serves only out of caution: as good as spare seats.
        calm: seconds of the longest stable window of its policies.
        demand: demand of all its policies together, in its seats; None while a part of it is unknown.
        scheduled: seats that the clock asks for.
        frozen_until: its size shall stay as it is until then; None if it needn't.
        seen: the fleet is there to be seen; else its view is what it was last.
        one_way: the direction in which its size may change though it is frozen; None for neither.
    """

    serving: int
    floors: int
    kept: int = 0
    calm: float = 0.0
    demand: float | None = None
    scheduled: Floor = NO_FLOOR
    frozen_until: float | None = None
    seen: bool = True
    one_way: OneWay | None = None


def draft(spec: FleetSpec, view: FleetView, memory: FleetMemory, ask: Ask, now: float) -> Draft:
    """Work out one fleet's total as if it were alone.

    Args:
        spec: the fleet.
        view: what it is made of.
        memory: what is remembered of it.
        ask: what it is asked for.
        now: the time.
    """
    limit, least, last = count(spec.max_seats), count(spec.spare_target), memory.total
    down, up, extent = spec.scale_down.window, spec.scale_up.window, extent_of(view)
    rises, spare = NO_RISES, least
    if spec.auto_spare is not None:
        rises = _watched(view, memory.rises, ask.demand, now)
        spare = _spare_target(spec.auto_spare, least, rises, now)
    wishes, wish = NO_WISHES, 0
    if follows := _follows(spec):
        wishes = _looked(view, memory, now, seen=ask.seen)
        wish = wishes.at(now, down)
    wished = min(limit, wish) if wish else 0
    kept = min(ask.kept, ask.serving, spare) if ask.kept else 0
    of_use = ask.serving + spare - kept
    wanted = of_use + extent.held
    target = wanted if ask.scheduled is NO_FLOOR else max(wanted, count(ask.scheduled.value))
    target = target if target < limit else limit
    totals, lows = memory.totals, memory.lows
    if not totals.marks:
        totals, lows = totals.add(now, last, down), lows.add(now, last, up)
    calm = max(ask.calm, view.start_seconds) if view.start_seconds > 0.0 else math.inf
    totals, lows = totals.add(now, target, down), lows.add(now, target, up)
    base, target_or_wish = (max(last, wished), max(target, wished)) if wished else (last, target)
    result = Draft(  # by place, as an assessment is
        spec,
        view,
        extent,
        memory,
        ask.serving,
        ask.floors,
        spare,
        kept,
        calm,
        rises,
        wishes,
        last,
        wished,
        base,
        target_or_wish,
        last,  # total
        totals,
        lows,
        not memory.filled,  # fresh
    )
    if spare > least:
        result.reasons.append(_learned(spec, spare))
    if (most := max(wanted, wish)) > limit:
        result.reasons.append(_at_max(result, most, max(of_use, wish)))
    if ask.scheduled is not NO_FLOOR:
        _scheduled(result, ask.scheduled, wanted)
    if follows and ask.seen:
        _told_of_others(result, target, now)
    is_frozen = ask.frozen_until is not None and now < ask.frozen_until
    told = len(result.reasons)
    if not is_frozen or ask.one_way is not None:
        _change(result, limit, now)
    if ask.frozen_until is not None and is_frozen and not _may(result, ask.one_way):
        del result.reasons[told:]  # of a change that isn't made
        _freeze(result, ask.frozen_until, now)
    return result


def _may(fleet: Draft, way: OneWay | None) -> bool:
    """Whether a frozen fleet may have the size that was worked out for it."""
    if way is None:
        return False
    replicas = count(fleet.view.replicas)
    return fleet.total >= replicas if way is OneWay.UP else fleet.total <= replicas


def _change(fleet: Draft, limit: int, now: float) -> None:
    """Let the total follow its target, as windows, rates and tolerance let it."""
    if fleet.target == fleet.base and len(fleet.totals.marks) == 1:
        fleet.total = min(fleet.base, limit)  # nothing to change, and nothing that is only waited for
        return
    if _ignored(fleet):
        return
    if fleet.target > fleet.base:
        _grow(fleet, now)
        _pace_up(fleet, now)
    else:
        _shrink(fleet, now)
        _pace_down(fleet, now)
    fleet.total = min(fleet.total, limit)


def _watched(view: FleetView, rises: Rises, demand: float | None, now: float) -> Rises:
    return rises if demand is None else rises.add(now, demand, view.start_seconds)


def _follows(spec: FleetSpec) -> bool:
    """Whether somebody else sizes the workload by what is published; what is only observed, nobody follows."""
    return not spec.resized and not spec.observe


def _looked(view: FleetView, memory: FleetMemory, now: float, *, seen: bool) -> Wishes:
    if not seen:
        return memory.wishes.publish(now, memory.total).pause(now)
    before = max(count(memory.view.replicas), memory.total)
    return memory.wishes.look(now, before, count(view.replicas)).publish(now, memory.total)


def _told_of_others(fleet: Draft, target: int, now: float) -> None:
    """Say what others want of the fleet's size, beyond the `target` that it has of itself."""
    wishes, window = fleet.wishes, fleet.spec.scale_down.window
    replicas = count(fleet.view.replicas)
    if (wish := wishes.at(now, window)) > target:
        facts: dict[str, float | str] = {"replicas": wish, "target": target, "windowSeconds": holds(window)}
        _delayed(fleet, ReasonCode.WISHED, wishes.until(window), **facts)
    elif replicas > (published := wishes.published.highest):
        facts = {"replicas": replicas, "published": published, "seconds": FOLLOWED_SECONDS}
        fleet.reasons.append(because(ReasonCode.KEPT_ABOVE, **facts))


def _spare_target(auto: AutoSpare, least: int, rises: Rises, now: float) -> int:
    """Return the spare target: what was configured, and what history asks for beyond that."""
    learned = rises.quantile(auto.quantile, now, auto.lookback)
    return least if learned is None else max(least, min(learned, count(auto.most)))


def _learned(spec: FleetSpec, spare: int) -> Reason:
    quantile = 0 if spec.auto_spare is None else spec.auto_spare.quantile
    return because(ReasonCode.SPARES_LEARNED, spare=spare, min=count(spec.spare_target), quantile=quantile)


def _at_max(fleet: Draft, wanted: int, of_use: int) -> Reason:
    """Say what the limit leaves no room for: seats that are wanted, or others in place of those that serve nobody now."""
    limit = count(fleet.spec.max_seats)
    if of_use > limit:
        return because(_SEATS_AT_MAX, wanted=wanted, maxSeats=limit)
    return because(ReasonCode.SEATS_HELD, held=fleet.held, wanted=of_use, maxSeats=limit)


def _scheduled(fleet: Draft, floor: Floor, wanted: int) -> None:
    if floor.changes_at is not None:
        fleet.wakeups.append(floor.changes_at)
    if (seats := count(floor.value)) > wanted:
        facts: dict[str, float | str] = {"schedule": floor.schedule, "floor": seats}
        fleet.reasons.append(because(ReasonCode.SCHEDULED, floor.changes_at, **facts))


def _freeze(fleet: Draft, until: float, now: float) -> None:
    """Leave the size as the workload has it, whoever set it; when it thaws, it falls no faster than any other."""
    fleet.total, fleet.going = count(fleet.view.replicas), 0
    fleet.totals = fleet.totals.add(now, max(fleet.total, fleet.target), fleet.spec.scale_down.window)
    fleet.wakeups.append(until)
    fleet.reasons.append(because(ReasonCode.FROZEN, until, total=fleet.total, target=fleet.target))


def _ignored(fleet: Draft) -> bool:
    """Whether the change is too small to be made; what floors need is never too small."""
    pace = fleet.spec.scale_up if fleet.target > fleet.base else fleet.spec.scale_down
    if not tolerated(pace, fleet.base, fleet.target) or fleet.base < fleet.upto(fleet.floors):
        return False
    fleet.total = min(fleet.base, count(fleet.spec.max_seats))
    fleet.reasons.append(
        because(
            ReasonCode.WITHIN_TOLERANCE,
            total=fleet.base,
            target=fleet.target,
            tolerancePercent=pace.tolerance * 100.0,
        )
    )
    return True


def _pace_up(fleet: Draft, now: float) -> None:
    pace, asked = fleet.spec.scale_up, fleet.total
    least = min(asked, max(fleet.base, fleet.upto(fleet.floors)))
    held = max(least, min(asked, fleet.lows.lowest))
    if held < asked:
        until = fleet.lows.rises_at(pace.window)
        _delayed(
            fleet, ReasonCode.SCALE_UP_DELAYED, until, total=held, target=asked, windowSeconds=pace.window
        )
    fleet.total = max(least, min(held, highest_total(pace, fleet.memory.changes, fleet.base, now)))
    if fleet.total < held:
        _paced(fleet, pace, held, now)


def _pace_down(fleet: Draft, now: float) -> None:
    pace, asked = fleet.spec.scale_down, fleet.total
    if asked >= fleet.base:
        return  # no change has no pace
    fleet.total = max(asked, lowest_total(pace, fleet.memory.changes, fleet.base, now))
    if fleet.total > asked:
        _paced(fleet, pace, asked, now)


def _paced(fleet: Draft, pace: Pace, asked: int, now: float) -> None:
    until = fleet.memory.changes.frees_at([limit.period for limit in pace.limits], now)
    _delayed(fleet, ReasonCode.PACE_LIMITED, until, total=fleet.total, target=asked, select=str(pace.select))


def _delayed(fleet: Draft, code: ReasonCode, until: float, **facts: float | str) -> None:
    fleet.wakeups.append(until)
    fleet.reasons.append(because(code, until, **facts))


def _grow(fleet: Draft, now: float) -> None:
    starts = fleet.memory.starts.at(now)
    for_serving = max(0, min(fleet.upto(fleet.serving), fleet.target) - fleet.base)
    spares = fleet.target - fleet.base - for_serving
    on_their_way = count(fleet.view.starting) + max(0, fleet.base - fleet.existing)
    room = count(fleet.spec.replenish.max_concurrent) - on_their_way - for_serving
    pace = COUNT_MAX if fleet.fresh else count(fleet.spec.replenish.per_minute) - starts.count - for_serving
    allowed = max(0, min(spares, room, pace))
    fleet.total = fleet.base + for_serving + allowed
    if allowed:
        fleet.reasons.append(because(ReasonCode.REPLENISHING, seats=allowed, spareTarget=fleet.spare))
    if allowed < spares:
        paced = pace < room
        until = starts.frees_at if paced else None
        if until is not None:
            fleet.wakeups.append(until)
        fleet.reasons.append(
            because(
                ReasonCode.REPLENISH_LIMITED,
                until,
                lacking=spares - allowed,
                limit="perMinute" if paced else "maxConcurrent",
                value=count(
                    fleet.spec.replenish.per_minute if paced else fleet.spec.replenish.max_concurrent
                ),
                starting=on_their_way,
            )
        )


def _shrink(fleet: Draft, now: float) -> None:
    """Let the total fall: to what any answer of the scale-down window asked for, and seats that are only starting sooner."""
    window, totals = fleet.spec.scale_down.window, fleet.totals
    settled = min(fleet.base, max(fleet.target, totals.highest))
    least = max(fleet.target, fleet.extent.up)
    recent = totals.within(now, fleet.calm)
    lower = min(settled, max(least, recent))
    if recent > least:
        fleet.wakeups.append(totals.falls_within_at(now, fleet.calm))
    fleet.total = _once_lent_seats_are_back(fleet, lower)
    fleet.going = fleet.total - lower
    if lower < settled and fleet.total < settled:
        facts = {"seats": settled - fleet.total, "seconds": fleet.calm}
        fleet.reasons.append(because(ReasonCode.STARTS_CANCELLED, **facts))
    if fleet.going:
        facts = {
            "total": fleet.total,
            "target": lower,
            "lent": count(fleet.view.lent) + count(fleet.view.draining),
        }
        fleet.reasons.append(because(ReasonCode.SCALE_DOWN_DELAYED, **facts))
    elif fleet.total > fleet.target:
        facts = {"total": fleet.total, "target": fleet.target, "windowSeconds": window}
        _delayed(fleet, _SCALE_DOWN_DELAYED, totals.falls_at(window), **facts)


def _once_lent_seats_are_back(fleet: Draft, lower: int) -> int:
    """Return how far the total may fall while seats are lent, or still drain because they were.

    Idle seats are deleted first. Without this the spares that people asked for would go, and what is lent would have to be
    drained for them to be there again.
    """
    view = fleet.view
    if not (view.lent > 0 or (view.draining > 0 and fleet.memory.going > 0)):
        return lower
    idle = max(0, count(view.spare) - count(fleet.spec.spare_target))
    return min(fleet.base, max(lower, fleet.existing - count(view.starting) - idle))


@frozen(kw_only=True)
class Budget:
    """Something of which there is only so much for all fleets together.

    Attributes:
        unit: what it is counted in: `seats` or `GPUs`.
        amount: how much there is.
        of: how much of it one seat of a fleet takes; a fleet that takes none is not limited.
    """

    unit: str
    amount: int
    of: Callable[[FleetSpec], int]


def share_budget(fleets: Sequence[Draft], budget: Budget, *, partial: bool = False) -> None:
    """Hold the fleets' totals within a budget: reserve, then commit; decrease before increase; floors first.

    Args:
        fleets: the fleets that draw on it.
        budget: how much there is.
        partial: others draw on it too. Nobody knows then what is left, so no total rises; seats that exist need no such
            word.
    """
    ordered = sorted((f for f in fleets if budget.of(f.spec) > 0), key=lambda fleet: fleet.spec.name)
    if partial:
        _wait(ordered)
        return
    wished = {fleet.spec.name: fleet.total for fleet in ordered}
    reserved = sum(
        max(fleet.existing + count(fleet.view.doomed), min(fleet.total, fleet.last)) * budget.of(fleet.spec)
        for fleet in ordered
    )
    left = max(0, count(budget.amount) - reserved)
    for fleet in ordered:
        fleet.total = min(fleet.total, max(fleet.last, fleet.existing))
    stages: tuple[Callable[[Draft], int], ...] = (
        lambda fleet: fleet.upto(fleet.floors),
        lambda fleet: fleet.upto(fleet.serving),
        lambda fleet: COUNT_MAX,  # noqa: ARG005 - the last stage asks for all that was wished
    )
    for stage in stages:
        for fleet in ordered:
            more = max(0, min(wished[fleet.spec.name], stage(fleet)) - fleet.total)
            more = min(more, left // budget.of(fleet.spec))
            fleet.total += more
            left -= more * budget.of(fleet.spec)
    _shed(ordered, budget)
    for fleet in ordered:
        if fleet.total < wished[fleet.spec.name]:
            facts = {"wanted": wished[fleet.spec.name], "total": fleet.total, "budget": count(budget.amount)}
            fleet.reasons.append(because(ReasonCode.BUDGET_EXHAUSTED, **facts, unit=budget.unit))


def _wait(fleets: Sequence[Draft]) -> None:
    for fleet in fleets:
        if fleet.total > fleet.last:
            facts: dict[str, float | str] = {"wanted": fleet.total, "total": fleet.last}
            fleet.reasons.append(because(ReasonCode.BUDGET_NOT_SHARED_OUT, **facts))
            fleet.total = fleet.last


def _shed(fleets: Sequence[Draft], budget: Budget) -> None:
    """Give up spares where the budget was cut below what there is; what serves is left alone."""
    over = sum(fleet.total * budget.of(fleet.spec) for fleet in fleets) - count(budget.amount)
    for fleet in reversed(fleets):
        if over <= 0:
            return
        busy = max(fleet.serving, count(fleet.view.serving) + count(fleet.view.draining))
        each = budget.of(fleet.spec)
        cut = min(-(-over // each), max(0, fleet.total - fleet.upto(busy)))
        fleet.total -= cut
        over -= cut * each


def decided(fleet: Draft, now: float) -> tuple[FleetDecision, FleetMemory]:
    """Return the draft as decision and memory."""
    before = max(fleet.last, min(fleet.total, fleet.wished)) if fleet.wished else fleet.last
    started = 0 if fleet.fresh or fleet.total <= before else fleet.total - before
    starts = fleet.memory.starts
    if starts.marks or started:
        starts = starts.at(now).add(now, started)
    wishes = fleet.wishes.publish(now, fleet.total) if _follows(fleet.spec) else fleet.wishes
    if count(fleet.view.replicas) > fleet.total:
        fleet.wakeups.append(wishes.published.falls_at(FOLLOWED_SECONDS))
    decision = FleetDecision(  # by place, as an assessment is; so is what is remembered
        fleet.spec.name,
        fleet.serving,
        fleet.spare,
        fleet.extent.held,
        fleet.total,
        fleet.kept,
        tuple(fleet.reasons),
    )
    memory = FleetMemory(
        fleet.view,
        fleet.total,
        not fleet.fresh or fleet.total >= fleet.target,  # filled
        fleet.totals,
        fleet.lows,
        fleet.memory.changes.add(now, before, fleet.total) if _rated(fleet.spec) else _UNRATED,
        starts,
        fleet.rises,
        wishes,
        fleet.going,
    )
    return decision, memory


_UNRATED = Changes()


def _rated(spec: FleetSpec) -> bool:
    return bool(spec.scale_up.limits or spec.scale_down.limits)


def soonest(times: Iterable[float], now: float) -> float | None:
    """Return the earliest of the times that lies ahead, or None."""
    first = math.inf
    for time in times:
        if now < time < first:
            first = time
    return first if first < math.inf else None
