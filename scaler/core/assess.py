"""One policy at one moment: what its readings, its past and its supply come to, before seats are handed out."""

import math
from collections.abc import Mapping, Sequence

from scaler.core.allocate import Applicant
from scaler.core.demand import FORGOTTEN_AFTER_SECONDS, PLAUSIBLE_MAX, Demand, measure
from scaler.core.memory import Coming, PolicyMemory, Seen, Service
from scaler.core.model import Burst, FallbackBehavior, Floor, Load, Mode, Ordered, PolicySpec, Quality
from scaler.core.modes import Phase, is_hot, next_phase
from scaler.core.need import Capacity, Terms, terms
from scaler.core.orders import fluid, horizon
from scaler.core.placement import Place, along, bounds, count
from scaler.core.service import watch
from scaler.core.starting import Turn, turn_of
from scaler.core.turns import has_turn
from scaler.core.values import frozen
from scaler.core.waking import awaited
from scaler.core.windows import Maxima, Ring, next_slide
from warmpool.seats import FleetName

_NOTHING_ASKED = Maxima()
_FRESH, _STABLE, _BURST, _HOLD = Quality.FRESH, Mode.STABLE, Mode.BURST, Mode.HOLD
"""By names of their own: looking an enum's members up takes long (`scaler.core.demand`)."""


@frozen()
class Assessment:
    """What is known of one policy before seats are handed out.

    Attributes:
        spec: the policy.
        memory: what was remembered of it.
        places: its fleets, in order, with what they offer it.
        demand: what its readings amount to.
        terms: the terms of the law.
        phase: its mode.
        holding: it is in Hold.
        capacity: C, of usable serving and promoting residents.
        coming: the part of it that isn't ready yet.
        sticky: the answer may not fall: burst is on, or readings are not fresh.
        answer: capacity that the law asks for, before overflow.
        promised: residents that it has whatever others need: its floor, without what only a fallback adds to that.
        floor: residents that serve at least.
        most: residents that serve at most.
        scheduled: what the clock asks for.
        ring: demand of the past, this moment included.
        service: how requests come and how long they take, this moment included.
        seen: when each part of the demand was last known.
        asked: per fleet, the seats asked for over its demote window, this moment included.
        turn: whether it stands in line for a seat to start a resident on; None unless nothing of it is up anywhere.
    """

    spec: PolicySpec
    memory: PolicyMemory
    places: tuple[Place, ...]
    demand: Demand
    terms: Terms
    phase: Phase
    holding: bool
    capacity: float
    coming: tuple[Coming, ...]
    sticky: bool
    answer: float
    promised: int
    floor: int
    most: int
    scheduled: Floor
    ordered: Ordered | None
    ring: Ring
    service: Service | None
    seen: Seen
    asked: Mapping[FleetName, Maxima]
    turn: Turn | None

    @property
    def starts(self) -> bool:
        """Whether what it stands in line for is a seat to start a resident on."""
        return self.turn is not None and self.turn.stands

    @property
    def overflows(self) -> bool:
        """Whether the short window may raise the answer outside burst: demand passes what serves can hold."""
        return self.phase.mode is _STABLE and not self.sticky and self.terms.pressing > self.capacity

    @property
    def need(self) -> float:
        """Capacity for which others may have to give up seats that they don't need themselves.

        Outside burst that is the mean, what it already has and uses, and a queue that has already waited for longer
        than it should take to drain. What goes beyond is worth an idle seat, and not somebody else's.
        """
        if self.holding:
            return 0.0
        wants = self.terms
        if self.phase.mode is _BURST:
            return wants.pressing
        overdue = wants.drain if self.demand.wait > self.spec.queue_drain else 0.0
        aged = wants.backlog if self.demand.backlog_age > self.spec.queue_drain else 0.0
        return max(wants.mean, overdue, aged, min(wants.pressing, self.capacity))

    def fluid(self, now: float) -> float:
        """Return the capacity that new seats are made for at least, once the first window of an order is over."""
        memory = self.memory
        seconds = horizon(memory.order, self.capacity, _start_seconds(self.spec, self.places), now)
        needed = fluid(self.demand, memory.service, seconds)
        return max(needed, self.terms.backlog, self.terms.correction)

    def demote_window(self, index: int) -> float:
        """Seconds for which a smaller answer must have held before a resident of fleet `index` is paused."""
        return _demote_window(self.spec.burst, index)

    def kept(self, index: int) -> int:
        """Seats of fleet `index` that serve and are not up for demotion yet."""
        place = self.places[index]
        if self.sticky:
            return place.own
        return min(place.own, self.asked[place.pool.name].highest)

    def ordered_on(self, place: Place) -> int:
        """Seats of a fleet that serve and that people have ordered to be kept."""
        return (
            0 if self.ordered is None else min(place.own, count(self.ordered.seats.get(place.pool.name, 0)))
        )

    def starving_until(self) -> float | None:
        """When the policy, if it is starving, goes first."""
        since = self.memory.starving_since
        return None if since is None else since + self.spec.burst.stable_window


@frozen()
class Sight:
    """What one policy is seen with at one moment.

    Attributes:
        load: its readings.
        scheduled: what the clock asks for.
        serving: whether any of its residents is in rotation.
        ordered: what people have ordered to be kept of it; None without an order.
    """

    load: Load
    scheduled: Floor
    serving: bool
    ordered: Ordered | None = None


def assess(
    spec: PolicySpec, sight: Sight, places: tuple[Place, ...], memory: PolicyMemory, now: float
) -> Assessment:
    """Work out what one policy needs.

    Args:
        spec: the policy.
        sight: what it is seen with.
        places: its fleets, in order.
        memory: what is remembered of it.
        now: the time.
    """
    there = 0
    for place in places:
        there += place.own * place.target
    capacity = float(there)
    coming = awaited(memory.coming, places) if memory.coming else ()
    demand, seen = measure(sight.load, memory.seen, serving=sight.serving, now=now)
    ring = _remember(memory.ring, demand, spec, now)
    before_this = memory.service
    rate = 0.0 if before_this is None else before_this.rate
    wants = terms(demand, ring, rate, spec, Capacity(capacity, coming), now)
    phase = next_phase(memory, demand, hot=is_hot(wants, spec, capacity), spec=spec, now=now)
    sticky = phase.burst is not None or demand.quality is not _FRESH
    before = capacity if memory.needed is None else memory.needed
    answer = wants.stable
    if sticky:
        answer = before if before > wants.pressing else wants.pressing
    if holding := phase.mode is _HOLD:
        answer = before
    promised, most = bounds(spec, sight.scheduled)
    floor = promised
    if holding:
        floor, most = _held_bounds(spec, promised, most)
    service = watch(before_this, demand, now - memory.observed_at, spec.burst.stable_window)
    asked = _remember_asked(spec, memory, places, (max(answer, wants.pressing), most, sticky), now)
    turn = turn_of(places, memory.start, now) if capacity <= 0.0 else None
    return Assessment(  # by place: by name it would take two more microseconds, of some hundred for a whole policy
        spec,
        memory,
        places,
        demand,
        wants,
        phase,
        holding,
        capacity,
        coming,
        sticky,
        answer,
        promised,
        floor,
        most,
        sight.scheduled,
        sight.ordered,
        ring,
        service,
        seen,
        asked,
        turn,
    )


def _start_seconds(spec: PolicySpec, places: Sequence[Place]) -> float:
    """Return what a seat takes to start, on the fleet that is fastest; the stable window while none has been seen to."""
    known = [place.pool.start_seconds for place in places if 0.0 < place.pool.start_seconds <= PLAUSIBLE_MAX]
    return min(known) if known else spec.burst.stable_window


def applicant(assessment: Assessment, now: float) -> Applicant:
    """Return the policy as it stands in line for seats."""
    spec, memory, places = assessment.spec, assessment.memory, assessment.places
    first_turn, starts = assessment.starving_until(), assessment.starts
    need, holding = assessment.need, assessment.holding
    demand, wants = assessment.demand, assessment.terms
    floor, promised, present = assessment.floor, assessment.promised, demand.queued + demand.busy
    return Applicant(  # by place, as an assessment is
        spec.name,
        spec.priority,
        tuple([place.to_start() for place in places]) if starts else places,
        min(1, assessment.most) if starts else assessment.most,
        floor if floor < promised else promised,
        spec.preemptible,  # borrows
        spec.ended_at_once,
        holding,
        need if need < present else present,
        need,
        assessment.answer if assessment.sticky and not holding else 0.0,
        wants.pressing if assessment.overflows else 0.0,
        _keep(assessment),
        wants.at_risk,
        _held(assessment),
        first_turn is not None and now >= first_turn,  # overdue
        math.inf if first_turn is None else first_turn,
        has_turn(memory, spec.burst.stable_window, now),  # sheltered
        floor,  # owed
        memory.fed_since,
        starts,
        () if assessment.ordered is None else [assessment.ordered_on(place) for place in places],
    )


def _held(assessment: Assessment) -> int:
    """Return the seats that a policy had last time: to start on, or to serve on; at first sight those that it is found on."""
    memory = assessment.memory
    if assessment.starts:
        return 0 if memory.start is None else memory.start.seats
    return sum(memory.given.values()) if memory.given else sum([place.own for place in assessment.places])


def wakeups(assessment: Assessment, now: float) -> list[float]:
    """Return the times at which this policy's answer may change by time alone."""
    spec, memory = assessment.spec, assessment.memory
    times = []
    if not assessment.holding and (assessment.phase.burst is not None or not assessment.ring.flat):
        times += _slides(spec.burst, now)
    if assessment.phase.changes_at is not None:
        times.append(assessment.phase.changes_at)
    for index, place in enumerate(assessment.places):
        asked = assessment.asked[place.pool.name]
        if len(asked.marks) > 1:
            times.append(asked.falls_at(assessment.demote_window(index)))
    if assessment.demand.silent:
        times += [at + FORGOTTEN_AFTER_SECONDS for at in assessment.seen]
    if memory.starving_since is not None:
        times.append(memory.starving_since + spec.burst.stable_window)
    if assessment.scheduled.changes_at is not None:
        times.append(assessment.scheduled.changes_at)
    if assessment.ordered is not None and assessment.ordered.until is not None:
        times.append(assessment.ordered.until)
    if assessment.turn is not None:
        times.append(assessment.turn.until)
    times += [coming.at for coming in assessment.coming]
    return times


def _slides(burst: Burst, now: float) -> list[float]:
    """Return when the windows slide on: with the second where they are of whole seconds, as nearly all are."""
    windows, slides = (burst.window, burst.stable_window), [math.floor(now) + 1.0]
    if windows[0] % 1.0 or windows[1] % 1.0:
        slides += [next_slide(now, window) for window in windows if window % 1.0]
    return slides


def _held_bounds(spec: PolicySpec, floor: int, most: int) -> tuple[int, int]:
    """Floor and ceiling in Hold, where the fallback rules.

    A behavior that may lower what serves (Static, CurrentReplicasIfLower) is the one way in which the unknown scales
    down: somebody chose it by name.
    """
    fallback = max(floor, min(count(spec.fallback_serving), most))
    match spec.fallback:
        case FallbackBehavior.STATIC:
            return fallback, fallback
        case FallbackBehavior.CURRENT_REPLICAS:
            return floor, most
        case FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER:
            return fallback, most
        case FallbackBehavior.CURRENT_REPLICAS_IF_LOWER:
            return floor, fallback


def _remember(ring: Ring, demand: Demand, spec: PolicySpec, now: float) -> Ring:
    if demand.value is None:
        return ring
    counted = demand.value if demand.quality is _FRESH else None
    burst = spec.burst
    window = burst.window if burst.window > burst.stable_window else burst.stable_window
    return ring.add(now, counted, demand.peak, window)


def _remember_asked(
    spec: PolicySpec, memory: PolicyMemory, places: Sequence[Place], ask: tuple[float, int, bool], now: float
) -> dict[FleetName, Maxima]:
    """Remember per fleet how many of its seats the answer would use, so that a smaller one has to last."""
    capacity, most, sticky = ask
    seats = along(places, [place.idle for place in places], capacity, most)
    asked, past, window = {}, memory.asked, spec.burst.demote_after
    for place, used in zip(places, seats):  # noqa: B905 - as in `along`
        if sticky and place.own > used:
            used = place.own  # noqa: PLW2901
        name = place.pool.name
        asked[name] = past.get(name, _NOTHING_ASKED).add(now, used, window)
        window = _demote_window(spec.burst, 1)  # of every other
    return asked


def _demote_window(burst: Burst, index: int) -> float:
    """Return the demote window of a policy's fleet; a bridge (any but the first) is given back after one stable window."""
    return burst.demote_after if index == 0 else max(burst.demote_after, burst.stable_window)


def _keep(assessment: Assessment) -> list[int]:
    """Return the seats per place that a policy keeps for a while longer.

    In Hold it may also have back what it was already given: what it lost since is not given up.
    """
    places, given = assessment.places, assessment.memory.given
    if not assessment.holding:
        return [assessment.kept(index) for index in range(len(places))]
    return [min(place.idle, max(place.own, given.get(place.pool.name, 0))) for place in places]
