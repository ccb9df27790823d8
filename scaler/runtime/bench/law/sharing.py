"""Fleets and policies of the arms whose spares are paused: who is resident where, and with how many slots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scaler.core.model import Burst, FleetShare, FleetSpec, PolicySpec
from scaler.runtime.bench.law.case import Case, Model
from scaler.runtime.bench.law.endless import Endless
from scaler.runtime.bench.law.pool import Line, Pool, Shape
from scaler.runtime.bench.law.run import MOST_SEATS, Knobs, Run
from scaler.runtime.bench.law.scalers import LawScaler
from warmpool.seats import FleetName, PolicyName

SHARED: Final = FleetName("shared")
BATCH: Final = PolicyName("batch")
BATCH_SECONDS: Final = 5.0
"""How long one request of the batch work takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Fleets and policies of a pool.

    Attributes:
        policies: the policies.
        fleets: per fleet, its spec and what its seats are like.
        begin: per fleet, the seats that it begins with.
    """

    policies: Sequence[PolicySpec]
    fleets: Mapping[FleetName, tuple[FleetSpec, Shape]]
    begin: Mapping[FleetName, int]


def policy_of(model: Model, fleets: Sequence[tuple[FleetName, int]], knobs: Knobs, case: Case) -> PolicySpec:
    """Return a model's policy: defaults, but for its objective and what the knobs say.

    Args:
        model: the model.
        fleets: where it may serve, in order, and its slots on a seat there.
        knobs: floor and windows.
        case: the objective.
    """
    return PolicySpec(
        name=model.name,
        fleets=tuple(FleetShare(fleet=fleet, target_in_flight=max(1, slots)) for fleet, slots in fleets),
        serving_min=knobs.least,
        serving_max=MOST_SEATS,
        ttft_objective=case.objective,
        burst=Burst(window=knobs.burst, stable_window=knobs.stable, demote_after=knobs.demote),
    )


def pool_of(run: Run, plan: Plan) -> tuple[Pool, LawScaler]:
    """Make the seats of a plan, and put the law in charge of them."""
    shapes = {name: shape for name, (_, shape) in plan.fleets.items()}
    lines: dict[PolicyName, Line] = dict(run.stations)
    lent = [policy.name for policy in plan.policies if policy.preemptible]
    for name in lent:
        lines[name] = Endless(run.timeline, BATCH_SECONDS)
    pool = Pool(run.timeline, run.meter, shapes, lines, frozenset(lent))
    for fleet, seats in plan.begin.items():
        pool.fill(fleet, seats)
    specs = [spec for spec, _ in plan.fleets.values()]
    return pool, LawScaler(run.timeline, run.stations, pool, plan.policies, specs)


def paused(case: Case, group: Sequence[Model], knobs: Knobs) -> Plan:
    """One model, one fleet."""
    (model,) = group
    fleet, slots = FleetName(model.name), case.slots(model)
    return Plan(
        policies=[policy_of(model, [(fleet, slots)], knobs, case)],
        fleets={fleet: _fleet(fleet, knobs, {model.name: slots}, case)},
        begin={fleet: min(knobs.most, max(1, knobs.least + knobs.spares))},
    )


def shared(case: Case, group: Sequence[Model], knobs: Knobs) -> Plan:
    """One fleet for all."""
    slots = case.shared_slots(group)
    return Plan(
        policies=[policy_of(m, [(SHARED, slots[m.name])], knobs, case) for m in group],
        fleets={SHARED: _fleet(SHARED, knobs, slots, case)},
        begin={SHARED: min(knobs.most, max(1, knobs.least * len(group) + knobs.spares))},
    )


def bridge(case: Case, group: Sequence[Model], knobs: Knobs) -> Plan:
    """A fleet for each, and shared spares behind them."""
    return _bridge(case, group, knobs, case.shared_slots(group))


def lending(case: Case, group: Sequence[Model], knobs: Knobs) -> Plan:
    """As bridge, with batch work resident on the shared seats: one model more in their memory."""
    slots = case.shared_slots(group, [group[0].gigabytes])
    batch = replace(group[0], name=BATCH)
    room = max(1, case.slots(batch, [model.gigabytes for model in group]))
    plan = _bridge(case, group, knobs, slots | {BATCH: room})
    borrower = replace(
        policy_of(batch, [(SHARED, room)], replace(knobs, least=0), case),
        preemptible=True,
        ended_at_once=True,
        priority=-10,
    )
    return replace(plan, policies=[*plan.policies, borrower])


def _bridge(case: Case, group: Sequence[Model], knobs: Knobs, slots: Mapping[PolicyName, int]) -> Plan:
    own = {model.name: FleetName(model.name) for model in group}
    alone = replace(knobs, spares=0, most=MOST_SEATS)
    fleets = {own[m.name]: _fleet(own[m.name], alone, {m.name: case.slots(m)}, case) for m in group}
    fleets[SHARED] = _fleet(SHARED, knobs, slots, case)
    policies = [
        policy_of(m, [(own[m.name], case.slots(m)), (SHARED, slots[m.name])], knobs, case) for m in group
    ]
    begin = dict.fromkeys(own.values(), max(1, knobs.least)) | {SHARED: min(knobs.most, knobs.spares)}
    return Plan(policies=policies, fleets=fleets, begin=begin)


def _fleet(
    name: FleetName, knobs: Knobs, slots: Mapping[PolicyName, int], case: Case
) -> tuple[FleetSpec, Shape]:
    spec = FleetSpec(name=name, max_seats=knobs.most, spare_target=knobs.spares)
    return spec, Shape(slots=slots, start=lambda _now: case.start)
