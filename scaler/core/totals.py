"""How many seats a fleet should have: total = min(max_seats, serving + spare + held), as windows and limits let it.

Up: what serving residents want is asked for at once; spares grow back no faster than `replenish` says, except that a
fleet which is only just being filled is slowed by `max_concurrent` alone. Down: after the smaller total has held for a
whole scale-down window (the highest of the window rules, as in the HPA).

The budget over all fleets is reserved before it is promised: a fleet that shrinks keeps its part until its seats are
really gone, and what is left goes to floors first, then to serving residents, then to spares.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scaler.core.memory import FleetMemory
from scaler.core.model import FleetDecision, FleetSpec, FleetView, Reason, ReasonCode
from scaler.core.placement import COUNT_MAX, count
from scaler.core.reasons import because
from scaler.core.windows import Maxima
from warmpool.seats import FleetName


@dataclass(slots=True, kw_only=True)
class Draft:
    """One fleet's total while it is worked out.

    Attributes:
        spec: the fleet.
        view: what it is made of.
        memory: what is remembered of it, starts older than a minute left out.
        serving: residents wanted on it, all policies together.
        floors: the part of `serving` that is floors.
        last: the total that stands: the last one, or at the start what the fleet is found with.
        target: serving + spare + held, within max_seats.
        total: the answer.
        totals: totals asked for over the scale-down window, this moment included.
        fresh: the fleet is only just being filled.
        reasons: why.
        wakeups: times at which the answer may change by time alone.
    """

    spec: FleetSpec
    view: FleetView
    memory: FleetMemory
    serving: int
    floors: int
    last: int
    target: int
    total: int
    totals: Maxima
    fresh: bool
    reasons: list[Reason] = field(default_factory=list)
    wakeups: list[float] = field(default_factory=list)

    @property
    def existing(self) -> int:
        """Seats that exist and are here to stay."""
        return seats_of(self.view)

    @property
    def held(self) -> int:
        """Seats that take a replica and can serve nobody."""
        return count(self.view.held)

    def upto(self, serving: int) -> int:
        """Return the total that `serving` residents take, without spares."""
        return min(count(self.spec.max_seats), serving + self.held)


def seats_of(view: FleetView) -> int:
    """Return the seats of a view that exist and are here to stay, each part cleaned."""
    parts = (view.serving, view.draining, view.spare, view.lent, view.starting, view.held)
    return sum(count(part) for part in parts)


def first_memory(view: FleetView) -> FleetMemory:
    """Return what is remembered of a fleet on first sight: that it should have what it has, or was asked to have."""
    found = max(seats_of(view), count(view.replicas))
    return FleetMemory(view=view, total=found, filled=seats_of(view) > 0, totals=Maxima())


def draft(spec: FleetSpec, view: FleetView, memory: FleetMemory, wants: tuple[int, int], now: float) -> Draft:
    """Work out one fleet's total as if it were alone.

    Args:
        spec: the fleet.
        view: what it is made of.
        memory: what is remembered of it.
        wants: residents wanted on it, and the part of them that is floors.
        now: the time.
    """
    serving, floors = wants
    limit = count(spec.max_seats)
    target = min(limit, serving + count(spec.spare_target) + count(view.held))
    totals = memory.totals
    if not totals.marks:
        totals = totals.add(now, memory.total, spec.scale_down_window)
    totals = totals.add(now, target, spec.scale_down_window)
    result = Draft(
        spec=spec,
        view=view,
        memory=memory,
        serving=serving,
        floors=floors,
        last=memory.total,
        target=target,
        total=memory.total,
        totals=totals,
        fresh=not memory.filled,
    )
    if serving + count(spec.spare_target) + count(view.held) > limit:
        wanted = serving + count(spec.spare_target) + count(view.held)
        result.reasons.append(because(ReasonCode.SEATS_AT_MAX, wanted=wanted, maxSeats=limit))
    if target > memory.total:
        _grow(result, now)
    else:
        _shrink(result)
    result.total = min(result.total, limit)
    return result


def _grow(fleet: Draft, now: float) -> None:
    starts = fleet.memory.starts.at(now)
    for_serving = max(0, min(fleet.upto(fleet.serving), fleet.target) - fleet.last)
    spares = fleet.target - fleet.last - for_serving
    on_their_way = count(fleet.view.starting) + max(0, fleet.last - fleet.existing)
    room = count(fleet.spec.replenish.max_concurrent) - on_their_way - for_serving
    pace = COUNT_MAX if fleet.fresh else count(fleet.spec.replenish.per_minute) - starts.count - for_serving
    allowed = max(0, min(spares, room, pace))
    fleet.total = fleet.last + for_serving + allowed
    if allowed:
        fleet.reasons.append(
            because(ReasonCode.REPLENISHING, seats=allowed, spareTarget=count(fleet.spec.spare_target))
        )
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


def _shrink(fleet: Draft) -> None:
    fleet.total = min(fleet.last, max(fleet.target, fleet.totals.highest))
    if fleet.total > fleet.target:
        until = fleet.totals.falls_at(fleet.spec.scale_down_window)
        fleet.wakeups.append(until)
        fleet.reasons.append(
            because(
                ReasonCode.SCALE_DOWN_DELAYED,
                until,
                total=fleet.total,
                target=fleet.target,
                windowSeconds=fleet.spec.scale_down_window,
            )
        )


def share_budget(fleets: Sequence[Draft], budget: int | None) -> None:
    """Hold the fleets' totals within a budget of seats: reserve, then commit; decrease before increase; floors first."""
    if budget is None:
        return
    ordered = sorted(fleets, key=lambda fleet: fleet.spec.name)
    wished = {fleet.spec.name: fleet.total for fleet in ordered}
    reserved = sum(
        max(fleet.existing + count(fleet.view.doomed), min(fleet.total, fleet.last)) for fleet in ordered
    )
    left = max(0, count(budget) - reserved)
    for fleet in ordered:
        fleet.total = min(fleet.total, fleet.last)
    stages: tuple[Callable[[Draft], int], ...] = (
        lambda fleet: fleet.upto(fleet.floors),
        lambda fleet: fleet.upto(fleet.serving),
        lambda fleet: COUNT_MAX,  # noqa: ARG005 - the last stage asks for all that was wished
    )
    for stage in stages:
        left = _grant(ordered, wished, stage, left)
    _shed(ordered, count(budget))
    for fleet in ordered:
        if fleet.total < wished[fleet.spec.name]:
            fleet.reasons.append(
                because(
                    ReasonCode.BUDGET_EXHAUSTED,
                    wanted=wished[fleet.spec.name],
                    total=fleet.total,
                    budget=count(budget),
                )
            )


def _grant(
    fleets: Iterable[Draft], wished: dict[FleetName, int], stage: Callable[[Draft], int], left: int
) -> int:
    for fleet in fleets:
        more = min(left, max(0, min(wished[fleet.spec.name], stage(fleet)) - fleet.total))
        fleet.total += more
        left -= more
    return left


def _shed(fleets: Sequence[Draft], budget: int) -> None:
    """Give up spares where the budget was cut below what there is; what serves is left alone."""
    over = sum(fleet.total for fleet in fleets) - budget
    for fleet in reversed(fleets):
        if over <= 0:
            return
        busy = max(fleet.serving, count(fleet.view.serving) + count(fleet.view.draining))
        cut = min(over, max(0, fleet.total - fleet.upto(busy)))
        fleet.total -= cut
        over -= cut


def decided(fleet: Draft, now: float) -> tuple[FleetDecision, FleetMemory]:
    """Return the draft as decision and memory."""
    started = 0 if fleet.fresh else max(0, fleet.total - fleet.last)
    decision = FleetDecision(
        fleet=fleet.spec.name,
        serving=fleet.serving,
        spare=count(fleet.spec.spare_target),
        held=fleet.held,
        total=fleet.total,
        reasons=tuple(fleet.reasons),
    )
    memory = FleetMemory(
        view=fleet.view,
        total=fleet.total,
        filled=not fleet.fresh or fleet.total >= fleet.target,
        totals=fleet.totals,
        starts=fleet.memory.starts.at(now).add(now, started),
    )
    return decision, memory


def soonest(times: Iterable[float], now: float) -> float | None:
    """Return the earliest of the times that lies ahead, or None."""
    return min((time for time in times if now < time < math.inf), default=None)
