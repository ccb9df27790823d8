"""The law: one pure function from what is known to what shall be.

    per policy   demand → terms → mode                      (`demand`, `need`, `modes`, put together in `assess`)
    all policies seats that exist are handed out            (`allocate`)
    per policy   what it wants beyond them, and why         (`orders`, `wants`, `warmth`, `reasons`)
    per fleet    the total                                  (`totals`)

It is total: any numbers in, a decision out. Time never runs backwards in it, and a `now` that is no number is the last
one. It knows no seat by name and keeps nothing between calls but the `Memory` that it returns.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType

from scaler.core.allocate import Applicant, allocate
from scaler.core.assess import Assessment, Sight, applicant, assess, wakeups
from scaler.core.islands import first_of_each_name
from scaler.core.memory import FleetMemory, Memory, Order, PolicyMemory
from scaler.core.model import (
    NO_FLOOR,
    NO_SUPPLY,
    Decision,
    FleetDecision,
    FleetSpec,
    FleetView,
    Load,
    PolicyDecision,
    PolicySpec,
    Quality,
    Snapshot,
)
from scaler.core.orders import follow, is_short, most
from scaler.core.placement import Place, Pool, beyond, count, place_of, pool_of
from scaler.core.reasons import reasons_for
from scaler.core.rises import NO_RISES
from scaler.core.starting import attempt
from scaler.core.totals import Ask, Budget, decided, draft, first_memory, share_budget, soonest
from scaler.core.turns import turn_ends
from scaler.core.values import frozen
from scaler.core.waking import promise
from scaler.core.wants import Want, kept, wanted, wants_of
from scaler.core.warmth import warm
from warmpool.seats import FleetName

LAW_VERSION = "8"
"""Version of the law; goes into every decision, so that a replay knows which rules it has to follow."""
_NO_LOAD = Load()
_FRESH = Quality.FRESH
"""By a name of its own: looking an enum's members up takes long (`scaler.core.demand`)."""
_NONE: Mapping[FleetName, int] = MappingProxyType({})


@frozen()
class _Outcome:
    """One policy's part of a decision, and what its fleets need of it."""

    decision: PolicyDecision
    memory: PolicyMemory
    wants: Sequence[Want]


def decide(
    policies: Sequence[PolicySpec],
    fleets: Sequence[FleetSpec],
    snapshot: Snapshot,
    memory: Memory,
    now: float,
) -> tuple[Decision, Memory]:
    """Decide how many residents of each policy serve where, and how many seats each fleet should have.

    Args:
        policies: what the models need; of two with one name the first counts.
        fleets: what there is; of two with one name the first counts.
        snapshot: what is known at this moment. A policy without a load has unknown demand. A fleet without a view is
            taken as it was last seen and its total is left alone; one that was never seen gets no decision.
        memory: what the last call returned, or `Memory.initial(now)`.
        now: monotonic seconds.

    Returns:
        the decision, and the memory for the next call.
    """
    at = now if math.isfinite(now) and now > memory.at else memory.at
    specs = {fleet.name: fleet for fleet in first_of_each_name(fleets)}
    views = _views(specs, snapshot, memory)
    pools: dict[FleetName, Pool] = {}
    assessments = [
        _assess(spec, snapshot, memory, _offers(spec, specs, views, pools, memory), at)
        for spec in first_of_each_name(policies)
    ]
    applicants = [applicant(assessment, at) for assessment in assessments]
    allocate(applicants)
    outcomes = list(map(_outcome, assessments, applicants, repeat(at)))
    demands = _demands(assessments)
    totals, remembered, times = _totals(specs, views, snapshot, memory, (outcomes, demands, at))
    for assessment in assessments:
        times += wakeups(assessment, at)
    if len(outcomes) > 1:
        times += _changes_of_hands(assessments, outcomes)
    decisions, memories = {}, {}
    for outcome in outcomes:
        name = outcome.decision.policy
        decisions[name], memories[name] = outcome.decision, outcome.memory
    learned = memory.learned
    if learned:
        learned = {name: rises for name, rises in learned.items() if name not in remembered}
    decision = Decision(at, decisions, totals, soonest(times, at), LAW_VERSION)
    return decision, Memory(at, memories, remembered, learned)


def _views(names: Iterable[FleetName], snapshot: Snapshot, memory: Memory) -> dict[FleetName, FleetView]:
    """Return what the fleets are made of: as they are seen, or else as they were seen last."""
    views: dict[FleetName, FleetView] = {}
    seen = snapshot.fleets
    for name in names:
        view = seen.get(name)
        if view is not None:
            views[name] = view
        elif name in memory.fleets:
            views[name] = memory.fleets[name].view
    return views


def _offers(
    spec: PolicySpec,
    specs: Mapping[FleetName, FleetSpec],
    views: Mapping[FleetName, FleetView],
    pools: dict[FleetName, Pool],
    memory: Memory,
) -> tuple[tuple[Place, ...], bool]:
    """Return the policy's places, and whether any of its residents is in rotation; makes the pools that it meets."""
    places: dict[FleetName, Place] = {}
    serving = False
    for share in spec.fleets:
        name = share.fleet
        if name in places:
            continue
        view = views.get(name)
        pool = pools.get(name)
        if pool is None:
            past = memory.fleets.get(name)
            pool = pools[name] = pool_of(name, specs.get(name), view, 0 if past is None else past.going)
        supply = NO_SUPPLY if view is None else view.supply.get(spec.name, NO_SUPPLY)
        places[name] = place_of(pool, share.target_in_flight, supply)
        if supply.serving > 0:
            serving = True
    return tuple(places.values()), serving


def _assess(
    spec: PolicySpec, snapshot: Snapshot, memory: Memory, offers: tuple[tuple[Place, ...], bool], now: float
) -> Assessment:
    places, serving = offers
    past = memory.policies.get(spec.name)
    if past is None:
        past = PolicyMemory.initial(now)
    sight = Sight(
        snapshot.loads.get(spec.name, _NO_LOAD),
        snapshot.serving_floors.get(spec.name, NO_FLOOR),
        serving,
        snapshot.ordered.get(spec.name),
    )
    return assess(spec, sight, places, past, now)


def _outcome(assessment: Assessment, asker: Applicant, now: float) -> _Outcome:
    """Turn what a policy was given into its decision: what it wants beyond that, and why."""
    places, given = assessment.places, asker.given
    lent = beyond(given, assessment.floor) if assessment.spec.preemptible else None
    needed = assessment.answer
    if asker.overflow > needed and asker.capacity > assessment.terms.stable:
        needed = max(needed, min(asker.overflow, asker.capacity))
    stable = assessment.terms.stable
    asked, order, ordered = assessment.answer, None, math.inf
    if stable > asked:
        asked = stable
    if is_short(asked, asker.capacity):  # else what the fluid model says is of no use
        bound = assessment.fluid(now)
        order = follow(assessment.memory.order, asked, asker.capacity, bound, assessment.spec, now)
        ordered = most(order, asker.capacity, assessment.spec, now)
    residents = wanted(assessment, given, ordered)
    warmed = warm(assessment, given)
    fleets = [place.pool.name for place in places]
    decision = PolicyDecision(  # by place, as an assessment is
        assessment.spec.name,
        assessment.phase.mode,
        assessment.demand.value,
        needed,
        assessment.capacity,
        _counts(fleets, residents),  # wanted
        _counts(fleets, given),  # serving
        _NONE if lent is None else _some(fleets, lent),
        warmed.seats,
        _some(fleets, asker.starting) if asker.starts else _NONE,
        reasons_for(assessment, asker, residents, needed, ordered) + warmed.reasons,
    )
    cautious = kept(assessment, asker)
    return _Outcome(
        decision,
        _next_memory(assessment, decision, asker, (order, cautious, now)),
        wants_of(assessment, residents, lent, cautious),
    )


def _changes_of_hands(assessments: Sequence[Assessment], outcomes: Sequence[_Outcome]) -> list[float]:
    """Return when a turn ends that somebody waits for, and when whoever waits goes first: time alone moves a seat then."""
    if all(outcome.memory.starving_since is None for outcome in outcomes):
        return []
    times = []
    for assessment, outcome in zip(assessments, outcomes, strict=True):
        memory, window = outcome.memory, assessment.spec.burst.stable_window
        since = memory.starving_since
        times.append(turn_ends(memory, window) if since is None else since + window)
    return times


def _counts(fleets: Sequence[FleetName], seats: Sequence[int]) -> Mapping[FleetName, int]:
    if len(fleets) == 1:
        return {fleets[0]: seats[0]}
    return dict(zip(fleets, seats))  # noqa: B905 - `strict` takes longer than all else here


def _some(fleets: Sequence[FleetName], seats: Sequence[int]) -> Mapping[FleetName, int]:
    """Return the counts that aren't zero."""
    return {fleet: number for fleet, number in zip(fleets, seats, strict=True) if number}


def _next_memory(
    assessment: Assessment,
    decision: PolicyDecision,
    asker: Applicant,
    moment: tuple[Order | None, Mapping[FleetName, int], float],
) -> PolicyMemory:
    past, (order, cautious, now) = assessment.memory, moment
    fresh = assessment.demand.quality is _FRESH
    seats, start, starving = asker.seats, None, None
    if seats == 0 and ((asker.need > 0.0 and not asker.borrows) or asker.floor > 0):
        starving = now if past.starving_since is None else past.starving_since
        start = attempt(assessment.places, assessment.turn, past.start, sum(asker.starting), now)
    fed_now = seats > 0 and asker.held == 0
    return PolicyMemory(  # by place, as an assessment is
        assessment.phase.burst,
        now if fresh else past.fresh_at,
        now,  # observed_at
        now if fed_now else past.fed_since,
        assessment.ring,
        assessment.holding,
        assessment.seen,
        assessment.service,
        promise(assessment.coming, assessment.places, asker.given, now),
        order,
        start,
        decision.needed,
        decision.wanted,
        decision.serving,  # given
        cautious,  # kept
        assessment.asked,
        starving,
        None if fed_now else _arrived(assessment, now) if past.arrived_at is None else past.arrived_at,
    )


def _arrived(assessment: Assessment, now: float) -> float | None:
    """Return since when a policy has been in rotation that wasn't before, of the time since it was last given a first seat."""
    return now if any(place.supply.serving > 0 for place in assessment.places) else None


def _demands(assessments: Iterable[Assessment]) -> Mapping[FleetName, float | None]:
    """Return per fleet the demand of all its policies together, in its seats; None where a part of it is unknown.

    What was refused counts too: with enough spares it would have been taken.
    """
    demands: dict[FleetName, float | None] = {}
    for assessment in assessments:
        if assessment.spec.preemptible:
            continue  # nobody keeps a spare for work that can wait
        fresh = assessment.demand.quality is _FRESH
        for place in assessment.places:
            name, before = place.pool.name, demands.get(place.pool.name, 0.0)
            known = fresh and before is not None
            seats = (assessment.demand.peak + assessment.demand.refused) / place.target
            demands[name] = (before or 0.0) + seats if known else None
    return demands


def _budgets(snapshot: Snapshot) -> Iterable[Budget]:
    if snapshot.gpu_budget is None and snapshot.seat_budget is None:
        return ()
    budgets = []
    if snapshot.gpu_budget is not None:
        budgets.append(Budget(unit="GPUs", amount=snapshot.gpu_budget, of=lambda fleet: count(fleet.gpus)))
    if snapshot.seat_budget is not None:
        budgets.append(Budget(unit="seats", amount=snapshot.seat_budget, of=lambda _: 1))
    return budgets


def _sums(wants: Sequence[Want]) -> tuple[int, int, int, float]:
    """Return what is wanted of one fleet: residents, floors, what serves only out of caution, and the longest calm."""
    residents = floors = cautious = 0
    longest = 0.0
    for _fleet, seats, floor, kept_seats, calm in wants:  # quicker than by their names
        residents += seats
        floors += floor
        cautious += kept_seats
        if calm > longest:
            longest = calm
    return count(residents), count(floors), count(cautious), longest


def _totals(
    specs: Mapping[FleetName, FleetSpec],
    views: Mapping[FleetName, FleetView],
    snapshot: Snapshot,
    memory: Memory,
    policies: tuple[Iterable[_Outcome], Mapping[FleetName, float | None], float],
) -> tuple[dict[FleetName, FleetDecision], dict[FleetName, FleetMemory], list[float]]:
    """Work out the fleets' totals from the sums of what the policies want."""
    outcomes, demands, now = policies
    wants: dict[FleetName, list[Want]] = {name: [] for name in views}
    for outcome in outcomes:
        for want in outcome.wants:
            if want.fleet in views:
                wants[want.fleet].append(want)
    drafts = []
    scheduled, frozen, seen = snapshot.seat_floors, snapshot.frozen, snapshot.fleets
    for name in sorted(views):
        past = memory.fleets.get(name)
        if past is None:
            past = first_memory(views[name], memory.learned.get(name, NO_RISES))
        ask = Ask(
            *_sums(wants[name]),
            demands.get(name, 0.0),
            scheduled.get(name, NO_FLOOR),
            frozen.get(name),
            name in seen,
            snapshot.one_way.get(name),
        )
        drafts.append(draft(specs[name], views[name], past, ask, now))
        if not ask.seen:
            drafts[-1].total = past.total
    for budget in _budgets(snapshot):
        share_budget(drafts, budget, partial=snapshot.partial)
    decisions: dict[FleetName, FleetDecision] = {}
    remembered: dict[FleetName, FleetMemory] = {}
    times: list[float] = []
    for fleet in drafts:
        name = fleet.spec.name
        decisions[name], remembered[name] = decided(fleet, now)
        times += fleet.wakeups
    return decisions, remembered, times
