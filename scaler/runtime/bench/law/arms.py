"""The arms: the same requests, served by different rules.

hpa      a HorizontalPodAutoscaler a model, on demand as AverageValue, default behavior
kpa      Knative's autoscaler a model, on concurrency
serving  the law, a fleet a model, its spares in rotation like all others
paused   the law, a fleet a model, its spares paused
shared   the law, one fleet for all models of a group
bridge   the law, a fleet a model for its steady load, and one shared fleet of spares behind them
lending  as bridge, and batch work borrows the spares
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from scaler.core.model import FleetSpec
from scaler.runtime.bench.law import hpa, kpa, sharing
from scaler.runtime.bench.law.case import Case, Model
from scaler.runtime.bench.law.replicas import Replicas
from scaler.runtime.bench.law.run import Knobs, Outcome, Part, Run, together
from scaler.runtime.bench.law.scalers import HpaScaler, KpaScaler, ServingSparesScaler
from warmpool.seats import FleetName

Arm = Callable[[Case, Knobs], Outcome]


def _hpa(run: Run, model: Model, knobs: Knobs) -> None:
    rule = hpa.Hpa(min_replicas=knobs.least, max_replicas=max(knobs.least, knobs.most))
    replicas, slots = _replicas(run, model, knobs.least)
    HpaScaler(run.timeline, run.stations[model.name], replicas, rule, knobs.share * slots)


def _kpa(run: Run, model: Model, knobs: Knobs) -> None:
    replicas, slots = _replicas(run, model, knobs.least)
    rule = kpa.Kpa(target=knobs.share * slots, min_scale=knobs.least, max_scale=knobs.most)
    KpaScaler(run.timeline, run.stations[model.name], replicas, rule)


def _serving(run: Run, model: Model, knobs: Knobs) -> None:
    replicas, slots = _replicas(run, model, min(knobs.most, max(1, knobs.least + knobs.spares)))
    name = FleetName(model.name)
    policy = sharing.policy_of(model, [(name, slots)], knobs, run.case)
    fleet = FleetSpec(name=name, max_seats=knobs.most, spare_target=knobs.spares)
    ServingSparesScaler(run.timeline, run.stations[model.name], replicas, policy, fleet)


def _replicas(run: Run, model: Model, begin: int) -> tuple[Replicas, int]:
    slots = max(1, run.case.slots(model))
    replicas = Replicas(run.timeline, run.meter, run.stations[model.name], slots, lambda _: run.case.start)
    replicas.fill(begin)
    return replicas, slots


def _each_alone(prepare: Callable[[Run, Model, Knobs], None], case: Case, knobs: Knobs) -> Outcome:
    """Run each model as if there were no others."""
    parts = []
    for model in case.models:
        run = Run(case, [model])
        prepare(run, model, knobs)
        parts.append(run.finish())
    return together(parts, case.objective)


def _pools(plan: Callable[[Case, Sequence[Model], Knobs], sharing.Plan], case: Case, knobs: Knobs) -> Outcome:
    """Run each group by itself, under the planner."""
    return together([_pool(plan, case, group, knobs) for group in case.groups], case.objective)


def _pool(
    plan: Callable[[Case, Sequence[Model], Knobs], sharing.Plan],
    case: Case,
    group: Sequence[Model],
    knobs: Knobs,
) -> Part:
    run = Run(case, group)
    pool, _ = sharing.pool_of(run, plan(case, group, knobs))
    return run.finish(lambda: pool.promotions)


def _paused(case: Case, knobs: Knobs) -> Outcome:
    return _pools(sharing.paused, replace(case, groups=[[model] for model in case.models]), knobs)


ARMS: Final[Mapping[str, Arm]] = {
    "hpa": partial(_each_alone, _hpa),
    "kpa": partial(_each_alone, _kpa),
    "serving": partial(_each_alone, _serving),
    "paused": _paused,
    "shared": partial(_pools, sharing.shared),
    "bridge": partial(_pools, sharing.bridge),
    "lending": partial(_pools, sharing.lending),
}
"""Arms by name, those without sharing first."""
ALONE: Final = ("hpa", "kpa", "serving", "paused")
"""Arms in which no GPU is shared."""
