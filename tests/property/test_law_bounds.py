"""What holds of every decision, whatever comes in: bounds, seats, and that the law is total and pure."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.explain import explain_decision
from scaler.core.memory import Memory
from scaler.core.model import (
    MISSING,
    AutoSpare,
    Burst,
    ChangeLimit,
    Decision,
    FallbackBehavior,
    FleetShare,
    FleetSpec,
    FleetView,
    Floor,
    Kind,
    Load,
    Mode,
    Ordered,
    Pace,
    PolicySpec,
    Quality,
    Reading,
    Replenish,
    Select,
    Snapshot,
    Supply,
)
from scaler.core.placement import count
from scaler.core.replay import decision_to_json

READINGS = [name for name in Load.__slots__ if name != "absent"]
NAMES = ("a", "b", "c")
FLEETS = ("own", "spares")
SEATS = ("serving", "promoting", "draining", "promotable", "switchable", "startable", "blocked", "cramped")

sane = st.floats(0, 200)
spoilt = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, -1e300, 1e300, 1e18])
numbers = st.one_of(sane, spoilt)
waits = st.one_of(st.floats(0, 20), spoilt)
seats = st.integers(0, 8)
wild = st.one_of(st.integers(-3, 12), st.sampled_from([-(10**30), 10**30, 10**400]))


def readings(values: st.SearchStrategy[float]) -> st.SearchStrategy[Reading]:
    return st.one_of(
        st.just(MISSING), st.builds(Reading, value=values, age=st.just(0.1), quality=st.sampled_from(Quality))
    )


def loads(values: st.SearchStrategy[float] = sane) -> st.SearchStrategy[Load]:
    one = readings(values)
    return st.builds(
        Load,
        queued=one,
        in_flight=one,
        engines=one,
        oldest_wait=one,
        peak=one,
        completions=one,
        arrivals=one,
        refused=one,
    )


def supplies(number: st.SearchStrategy[int] = seats) -> st.SearchStrategy[Supply]:
    return st.builds(
        Supply, **dict.fromkeys(SEATS, number), parked=number, paused_wake=waits, parked_wake=waits
    )


def views(number: st.SearchStrategy[int] = seats) -> st.SearchStrategy[FleetView]:
    return st.builds(
        FleetView,
        serving=number,
        draining=number,
        spare=number,
        lent=number,
        starting=number,
        held=number,
        doomed=number,
        replicas=number,
        start_seconds=waits,
        supply=st.dictionaries(st.sampled_from(NAMES), supplies(number)),
        kinds=st.just(()) | st.lists(kinds(number), max_size=4).map(tuple),
    )


def kinds(number: st.SearchStrategy[int] = seats) -> st.SearchStrategy[Kind]:
    some = st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)
    return st.builds(Kind, up=some, starts=some, seats=number)


def policies(
    number: st.SearchStrategy[int], seconds: st.SearchStrategy[float]
) -> st.SearchStrategy[list[PolicySpec]]:
    shares = st.lists(
        st.builds(FleetShare, fleet=st.sampled_from(FLEETS), target_in_flight=number), max_size=3
    )
    one = st.builds(
        PolicySpec,
        name=st.sampled_from(NAMES),
        fleets=shares.map(tuple),
        priority=st.integers(0, 1),
        preemptible=st.booleans(),
        serving_min=number,
        serving_max=number,
        ttft_objective=seconds,
        queue_drain=seconds,
        burst=st.builds(
            Burst, threshold=seconds, window=seconds, stable_window=seconds, demote_after=seconds
        ),
        failure_threshold=number,
        fallback=st.sampled_from(FallbackBehavior),
        fallback_serving=number,
    )
    return st.lists(one, max_size=4)


def fleets(
    number: st.SearchStrategy[int], seconds: st.SearchStrategy[float]
) -> st.SearchStrategy[list[FleetSpec]]:
    one = st.builds(
        FleetSpec,
        name=st.sampled_from(FLEETS),
        max_seats=number,
        spare_target=number,
        replenish=st.builds(Replenish, max_concurrent=number, per_minute=number),
        scale_up=paces(number, seconds),
        scale_down=paces(number, seconds),
        gpus=number,
        resized=st.booleans(),
        observe=st.booleans(),
        auto_spare=st.one_of(st.none(), st.just(AutoSpare())),
    )
    return st.lists(one, max_size=3)


def paces(number: st.SearchStrategy[int], seconds: st.SearchStrategy[float]) -> st.SearchStrategy[Pace]:
    limit = st.builds(ChangeLimit, value=number, percent=st.booleans(), period=seconds)
    limits = st.lists(limit, max_size=2).map(tuple)
    return st.builds(Pace, limits=limits, select=st.sampled_from(Select), tolerance=seconds, window=seconds)


def floors(number: st.SearchStrategy[int], times: st.SearchStrategy[float]) -> st.SearchStrategy[Floor]:
    return st.builds(Floor, value=number, schedule=st.just("night"), changes_at=st.one_of(st.none(), times))


def snapshots(
    values: st.SearchStrategy[float], number: st.SearchStrategy[int]
) -> st.SearchStrategy[Snapshot]:
    return st.builds(
        Snapshot,
        loads=st.dictionaries(st.sampled_from(NAMES), loads(values)),
        fleets=st.dictionaries(st.sampled_from(FLEETS), views(number)),
        serving_floors=st.dictionaries(st.sampled_from(NAMES), floors(number, values)),
        seat_floors=st.dictionaries(st.sampled_from(FLEETS), floors(number, values)),
        frozen=st.dictionaries(st.sampled_from(FLEETS), values),
        ordered=st.dictionaries(
            st.sampled_from(NAMES),
            st.builds(
                Ordered,
                seats=st.dictionaries(st.sampled_from(FLEETS), number),
                until=st.one_of(st.none(), values),
            ),
        ),
        seat_budget=st.one_of(st.none(), number),
        gpu_budget=st.one_of(st.none(), number),
    )


@settings(max_examples=25, deadline=None)
@given(
    policies(wild, numbers),
    fleets(wild, numbers),
    st.lists(st.tuples(snapshots(numbers, wild), numbers), min_size=1, max_size=4),
)
def test_nothing_makes_it_raise_and_the_same_gives_the_same(
    specs: list[PolicySpec], shapes: list[FleetSpec], ticks: list[tuple[Snapshot, float]]
) -> None:
    memory = Memory.initial(0.0)
    for snapshot, now in ticks:
        first = decide(specs, shapes, snapshot, memory, now)
        assert decide(specs, shapes, snapshot, memory, now) == first
        decision, memory = first
        json.dumps(decision_to_json(decision), allow_nan=False)
        assert len(explain_decision(decision)) >= len(decision.policies)
        assert math.isfinite(decision.at)
        assert decision.next_wakeup is None or decision.next_wakeup > decision.at
        for one in decision.policies.values():
            assert math.isfinite(one.needed)
            assert one.needed >= 0.0
            assert all(given >= 0 for given in one.serving.values())
        for fleet in decision.fleets.values():
            assert 0 <= fleet.total <= count(max(s.max_seats for s in shapes if s.name == fleet.fleet)) or (
                fleet.fleet not in snapshot.fleets or fleet.fleet in snapshot.frozen
            )


@settings(max_examples=25, deadline=None)
@given(
    policies(st.integers(0, 12), st.floats(0.5, 20)),
    fleets(st.integers(0, 12), st.floats(0.5, 20)),
    st.lists(st.tuples(snapshots(sane, seats), st.floats(0, 15)), min_size=1, max_size=5),
)
def test_bounds_hold_on_every_path_and_no_seat_is_promised_twice(
    specs: list[PolicySpec], shapes: list[FleetSpec], ticks: list[tuple[Snapshot, float]]
) -> None:
    memory, now = Memory.initial(0.0), 0.0
    by_name = {spec.name: spec for spec in reversed(specs)}
    for snapshot, step in ticks:
        now += step
        decision, memory = decide(specs, shapes, snapshot, memory, now)
        for name, one in decision.policies.items():
            spec = by_name[name]
            most = max(spec.serving_min, spec.serving_max)
            scheduled = snapshot.serving_floors.get(name, Floor()).value
            floor = max(spec.serving_min, min(scheduled, most))
            assert sum(one.serving.values()) <= most
            if spec.fleets:
                assert sum(one.wanted.values()) >= floor
            if len({share.fleet for share in spec.fleets}) == 1:
                assert sum(one.wanted.values()) <= most
            assert all(one.wanted[fleet] >= given for fleet, given in one.serving.items())
            if one.mode is Mode.HOLD and spec.fleets:
                fallback = max(floor, min(spec.fallback_serving, most))
                if spec.fallback in {FallbackBehavior.STATIC, FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER}:
                    assert sum(one.wanted.values()) >= fallback
                if spec.fallback in {FallbackBehavior.STATIC, FallbackBehavior.CURRENT_REPLICAS_IF_LOWER}:
                    assert sum(one.serving.values()) <= fallback
        _is_within_what_there_is(decision, snapshot)


def _is_within_what_there_is(decision: Decision, snapshot: Snapshot) -> None:
    every = decision.policies.values()
    for fleet, view in snapshot.fleets.items():
        usable = view.serving + view.draining + view.spare + view.lent
        assert sum(one.serving.get(fleet, 0) + one.starting.get(fleet, 0) for one in every) <= usable
        for one in every:
            supply = view.supply.get(one.policy, Supply())
            assert one.serving.get(fleet, 0) <= sum(getattr(supply, part) for part in SEATS[:5])
            assert one.starting.get(fleet, 0) <= min(1, supply.startable + supply.blocked)
            assert 0 <= one.warm.get(fleet, 0) <= usable - one.serving.get(fleet, 0)
    for one in every:
        assert sum(one.starting.values()) <= 1
        assert not (sum(one.starting.values()) and sum(one.serving.values()))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(loads(sane), st.floats(0.1, 4)), min_size=1, max_size=8), spoilt, st.integers(0, 7))
def test_what_is_no_number_changes_nothing(ticks: list[tuple[Load, float]], value: float, where: int) -> None:
    """A reading that is none, at any tick, decides the same as none at all."""
    spec = PolicySpec(name="a", fleets=(FleetShare(fleet="spares", target_in_flight=8),), serving_min=1)
    shape = FleetSpec(name="spares", max_seats=6, spare_target=1)
    view = FleetView(serving=1, spare=2, replicas=3, supply={"a": Supply(serving=1, promotable=2)})
    bad = Load(**{field: Reading(value=value, age=0.1, quality=Quality.FRESH) for field in READINGS})
    results = []
    for replacement in (bad, Load()):
        memory, now, decisions = Memory.initial(0.0), 0.0, []
        for index, (load, step) in enumerate(ticks):
            now += step
            one = replacement if index == where else load
            snapshot = Snapshot(loads={"a": one}, fleets={"spares": view})
            decision, memory = decide([spec], [shape], snapshot, memory, now)
            decisions.append(decision)
        results.append(decisions)
    assert results[0] == results[1]
