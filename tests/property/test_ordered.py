"""What people order to be kept is kept of what is there, and costs nobody a floor."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import FleetSpec, Floor, Ordered, PolicySpec, Snapshot
from scaler.core.replay import snapshot_from_json, snapshot_to_json
from tests.property.test_law_bounds import FLEETS, NAMES, fleets, policies, sane, seats, snapshots
from warmpool.seats import FleetName, PolicyName

SPECS = policies(st.integers(0, 12), st.floats(0.5, 20))
SHAPES = fleets(st.integers(0, 12), st.floats(0.5, 20))


@settings(max_examples=50, deadline=None)
@given(SPECS, SHAPES, snapshots(sane, seats))
def test_nobody_goes_below_a_floor_for_what_is_kept(
    specs: list[PolicySpec], shapes: list[FleetSpec], snapshot: Snapshot
) -> None:
    memory = Memory.initial(0.0)
    before, _ = decide(specs, shapes, replace(snapshot, ordered={}), memory, 1.0)
    after, _ = decide(specs, shapes, snapshot, memory, 1.0)
    for spec in {spec.name: spec for spec in reversed(specs)}.values():
        most = max(spec.serving_min, spec.serving_max)
        scheduled = snapshot.serving_floors.get(spec.name, Floor()).value
        floor = max(spec.serving_min, min(scheduled, most))
        had, has = [sum(each.policies[spec.name].serving.values()) for each in (before, after)]
        assert has >= min(floor, had)


@settings(max_examples=50, deadline=None)
@given(SPECS, SHAPES, snapshots(sane, seats), st.sampled_from(NAMES), st.sampled_from(FLEETS))
def test_one_alone_keeps_what_was_ordered_of_what_it_has(
    specs: list[PolicySpec],
    shapes: list[FleetSpec],
    snapshot: Snapshot,
    name: PolicyName,
    fleet: FleetName,
) -> None:
    spec = next((each for each in specs if each.name == name), None)
    view = snapshot.fleets.get(fleet)
    if spec is None or view is None or name not in view.supply or all(s.fleet != fleet for s in spec.fleets):
        return
    supply, only = view.supply[name], replace(spec, serving_min=0, serving_max=1000)
    there = min(supply.serving + supply.promoting, view.serving + view.draining + view.spare + view.lent)
    alone = replace(
        snapshot,
        fleets={fleet: replace(view, kinds=())},
        serving_floors={},
        ordered={name: Ordered(seats={fleet: 3}, until=9.0)},
    )
    decision, _ = decide([only], shapes, alone, Memory.initial(0.0), 1.0)
    if all(shape.name != fleet for shape in shapes):
        return
    assert decision.policies[name].serving[fleet] >= min(3, there)
    assert decision.next_wakeup is not None
    assert decision.next_wakeup <= 9.0


@given(snapshots(sane, seats))
def test_what_was_ordered_is_in_the_ledger(snapshot: Snapshot) -> None:
    assert snapshot_from_json(snapshot_to_json(snapshot)).ordered == snapshot.ordered
