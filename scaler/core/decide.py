"""The law: one pure function from what is known to what shall be.

    per policy   demand → terms → mode                      (`demand`, `need`, `modes`, put together in `assess`)
    all policies seats that exist are handed out            (`allocate`)
    per policy   what it wants beyond them, and why         (`placement`, `reasons`)
    per fleet    the total                                  (`totals`)

It is total: any numbers in, a decision out. Time never runs backwards in it, and a `now` that is no number is the last
one. It knows no seat by name and keeps nothing between calls but the `Memory` that it returns.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from scaler.core.orders import follow, most
from scaler.core.placement import Place, Pool, beyond, count, floored, homes, place_of, pool_of, wishes
from scaler.core.reasons import reasons_for
from scaler.core.rises import NO_RISES
from scaler.core.totals import Ask, Budget, decided, draft, first_memory, share_budget, soonest
from warmpool.seats import FleetName

LAW_VERSION = "6"
"""Version of the law; goes into every decision, so that a replay knows which rules it has to follow."""
_NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One policy's part of a decision, and what its fleets need of it."""

    decision: PolicyDecision
    memory: PolicyMemory
    wants: Sequence[tuple[FleetName, int, int]]
    """Per fleet: residents wanted, and the part of them that is floor."""


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
    views = {name: view for name in specs if (view := _view(name, snapshot, memory)) is not None}
    pools: dict[FleetName, Pool] = {}
    assessments = [
        _assess(spec, snapshot, memory, _offers(spec, specs, views, pools), at)
        for spec in first_of_each_name(policies)
    ]
    applicants = [applicant(assessment, at) for assessment in assessments]
    allocate(applicants)
    outcomes = [_outcome(a, asker, at) for a, asker in zip(assessments, applicants, strict=True)]
    demands = _demands(assessments)
    totals, remembered, times = _totals(specs, views, snapshot, memory, (outcomes, demands, at))
    for assessment in assessments:
        times += wakeups(assessment, at)
    decision = Decision(
        at=at,
        policies=MappingProxyType({outcome.decision.policy: outcome.decision for outcome in outcomes}),
        fleets=MappingProxyType(totals),
        next_wakeup=soonest(times, at),
        law=LAW_VERSION,
    )
    return decision, Memory(
        at=at,
        policies=MappingProxyType({outcome.decision.policy: outcome.memory for outcome in outcomes}),
        fleets=MappingProxyType(remembered),
        learned=MappingProxyType({n: rises for n, rises in memory.learned.items() if n not in remembered}),
    )


def _view(name: FleetName, snapshot: Snapshot, memory: Memory) -> FleetView | None:
    view = snapshot.fleets.get(name)
    if view is None and name in memory.fleets:
        return memory.fleets[name].view
    return view


def _offers(
    spec: PolicySpec,
    specs: Mapping[FleetName, FleetSpec],
    views: Mapping[FleetName, FleetView],
    pools: dict[FleetName, Pool],
) -> tuple[tuple[Place, ...], bool]:
    """Return the policy's places, and whether any of its residents is in rotation; makes the pools that it meets."""
    places: dict[FleetName, Place] = {}
    serving = False
    for share in spec.fleets:
        name = share.fleet
        if name in places:
            continue
        view = views.get(name)
        if name not in pools:
            pools[name] = pool_of(name, specs.get(name), view)
        supply = NO_SUPPLY if view is None else view.supply.get(spec.name, NO_SUPPLY)
        places[name] = place_of(pools[name], share.target_in_flight, supply)
        serving = serving or supply.serving > 0
    return tuple(places.values()), serving


def _assess(
    spec: PolicySpec, snapshot: Snapshot, memory: Memory, offers: tuple[tuple[Place, ...], bool], now: float
) -> Assessment:
    places, serving = offers
    past = memory.policies.get(spec.name)
    if past is None:
        past = PolicyMemory.initial(now)
    sight = Sight(
        load=snapshot.loads.get(spec.name, _NO_LOAD),
        scheduled=snapshot.serving_floors.get(spec.name, NO_FLOOR),
        serving=serving,
    )
    return assess(spec, sight, places, past, now)


def _outcome(assessment: Assessment, asker: Applicant, now: float) -> _Outcome:
    """Turn what a policy was given into its decision: what it wants beyond that, and why."""
    places, given = assessment.places, asker.given
    lent = beyond(given, assessment.floor) if assessment.spec.preemptible else [0] * len(places)
    needed = assessment.answer
    if asker.overflow > needed and asker.capacity > assessment.terms.stable:
        needed = max(needed, min(asker.overflow, asker.capacity))
    asked = max(assessment.answer, assessment.terms.stable)
    order = follow(assessment.memory.order, asked, asker.capacity, assessment.spec, now)
    ordered = most(order, assessment.fluid, assessment.spec, now)
    wanted = _wanted(assessment, given, ordered)
    fleets = [place.pool.name for place in places]
    decision = PolicyDecision(
        policy=assessment.spec.name,
        mode=assessment.phase.mode,
        demand=assessment.demand.value,
        needed=needed,
        capacity=assessment.capacity,
        wanted=MappingProxyType(dict(zip(fleets, wanted, strict=True))),
        serving=MappingProxyType(dict(zip(fleets, given, strict=True))),
        lent=MappingProxyType({fleet: seats for fleet, seats in zip(fleets, lent, strict=True) if seats}),
        reasons=reasons_for(assessment, given, wanted, needed, ordered),
    )
    floors = floored(places, [0] * len(places), assessment.floor)
    owned = [seats - borrowed for seats, borrowed in zip(wanted, lent, strict=True)]
    return _Outcome(
        decision=decision,
        memory=_next_memory(assessment, decision, asker, (order, now)),
        wants=list(zip(fleets, owned, floors, strict=True)),
    )


def _wanted(assessment: Assessment, given: Sequence[int], ordered: float) -> list[int]:
    """Return the residents wanted per place: what was given, what belongs there, what is short; floors last.

    Args:
        assessment: what was known before seats were handed out.
        given: seats that it got, per place.
        ordered: capacity that new seats may be made for.
    """
    places, most = assessment.places, assessment.most
    if assessment.spec.preemptible:
        return floored(places, given, assessment.floor)
    if assessment.holding:
        past = assessment.memory.wanted
        wanted = [max(seats, past.get(p.pool.name, 0)) for seats, p in zip(given, places, strict=True)]
        wanted = [min(seats, most) for seats in wanted]
    else:
        belongs = homes(places, min(_steady(assessment), ordered), most)
        base = [max(pair) for pair in zip(given, belongs, strict=True)]
        wanted = wishes(places, base, min(assessment.answer, ordered), most)
    return floored(places, wanted, assessment.floor)


def _steady(assessment: Assessment) -> float:
    """Return what belongs on a policy's own fleets for good.

    Where later fleets bridge, a queue of a moment is theirs: an own seat that was made for it would stay for a whole
    scale-down window.
    """
    wants = assessment.terms
    return wants.stable if len(assessment.places) == 1 else max(wants.mean, wants.backlog, wants.correction)


def _next_memory(
    assessment: Assessment, decision: PolicyDecision, asker: Applicant, moment: tuple[Order | None, float]
) -> PolicyMemory:
    past, (order, now) = assessment.memory, moment
    fresh = assessment.demand.quality is Quality.FRESH
    hungry = asker.seats == 0 and ((asker.need > 0.0 and not asker.borrows) or asker.floor > 0)
    starving = now if past.starving_since is None else past.starving_since
    fed_now = asker.seats > 0 and asker.held == 0
    return PolicyMemory(
        ring=assessment.ring,
        burst=assessment.phase.burst,
        holding=assessment.holding,
        fresh_at=now if fresh else past.fresh_at,
        seen=assessment.seen,
        service=assessment.service,
        throughput=assessment.throughput,
        order=order,
        observed_at=now,
        needed=decision.needed,
        wanted=decision.wanted,
        given=decision.serving,
        asked=assessment.asked,
        starving_since=starving if hungry else None,
        fed_since=now if fed_now else past.fed_since,
    )


def _demands(assessments: Iterable[Assessment]) -> Mapping[FleetName, float | None]:
    """Return per fleet the demand of all its policies together, in its seats; None where a part of it is unknown.

    What was refused counts too: with enough spares it would have been taken.
    """
    demands: dict[FleetName, float | None] = {}
    for assessment in assessments:
        if assessment.spec.preemptible:
            continue  # nobody keeps a spare for work that can wait
        fresh = assessment.demand.quality is Quality.FRESH
        for place in assessment.places:
            name, before = place.pool.name, demands.get(place.pool.name, 0.0)
            known = fresh and before is not None
            seats = (assessment.demand.peak + assessment.demand.refused) / place.target
            demands[name] = (before or 0.0) + seats if known else None
    return demands


def _budgets(snapshot: Snapshot) -> Iterable[Budget]:
    if snapshot.gpu_budget is not None:
        yield Budget(unit="GPUs", amount=snapshot.gpu_budget, of=lambda fleet: count(fleet.gpus))
    if snapshot.seat_budget is not None:
        yield Budget(unit="seats", amount=snapshot.seat_budget, of=lambda _: 1)


def _totals(
    specs: Mapping[FleetName, FleetSpec],
    views: Mapping[FleetName, FleetView],
    snapshot: Snapshot,
    memory: Memory,
    policies: tuple[Iterable[_Outcome], Mapping[FleetName, float | None], float],
) -> tuple[dict[FleetName, FleetDecision], dict[FleetName, FleetMemory], list[float]]:
    """Work out the fleets' totals from the sums of what the policies want."""
    outcomes, demands, now = policies
    wants: dict[FleetName, int] = {}
    floors: dict[FleetName, int] = {}
    for outcome in outcomes:
        for name, wanted, floor in outcome.wants:
            wants[name] = wants.get(name, 0) + wanted
            floors[name] = floors.get(name, 0) + floor
    drafts = []
    for name in sorted(views):
        past = memory.fleets.get(name)
        if past is None:
            past = first_memory(views[name], memory.learned.get(name, NO_RISES))
        ask = Ask(
            serving=count(wants.get(name, 0)),
            floors=count(floors.get(name, 0)),
            demand=demands.get(name, 0.0),
            scheduled=snapshot.seat_floors.get(name, NO_FLOOR),
            frozen_until=snapshot.frozen.get(name),
            seen=name in snapshot.fleets,
        )
        drafts.append(draft(specs[name], views[name], past, ask, now))
        if name not in snapshot.fleets:
            drafts[-1].total = past.total
    for budget in _budgets(snapshot):
        share_budget(drafts, budget, partial=snapshot.partial)
    decisions: dict[FleetName, FleetDecision] = {}
    remembered: dict[FleetName, FleetMemory] = {}
    times: list[float] = []
    for fleet in drafts:
        decisions[fleet.spec.name], remembered[fleet.spec.name] = decided(fleet, now)
        times += fleet.wakeups
    return decisions, remembered, times
