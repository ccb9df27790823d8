"""Several policies on one fleet: nobody's state leaks, floors stand, and nobody starves."""

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.decide import decide
from scaler.core.memory import Memory
from scaler.core.model import (
    Burst,
    Decision,
    FleetShare,
    FleetSpec,
    FleetView,
    Load,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)

BURST = Burst(window=2.0, stable_window=10.0, demote_after=3.0)
NAMES = ("a", "b", "c")


def fresh(value: float) -> Reading:
    return Reading(value=float(value), age=0.1, quality=Quality.FRESH)


def gateway(in_flight: float) -> Load:
    return Load(queued=fresh(0), in_flight=fresh(in_flight))


def policy(name: str, fleet: str = "spares", **more: int) -> PolicySpec:
    return PolicySpec(
        name=name,
        fleets=(FleetShare(fleet=fleet, target_in_flight=8),),
        burst=BURST,
        **({"serving_min": 0} | more),
    )


class Fleet:
    """A fleet on which every policy is resident on every seat and decisions are carried out at once."""

    def __init__(self, policies: Sequence[PolicySpec], seats: int) -> None:
        self.policies = policies
        self.seats = seats
        self.serving = {str(p.name): 0 for p in policies}
        self.memory = Memory.initial(0.0)
        self.now = 0.0

    def step(self, demands: Mapping[str, float], after: float) -> Decision:
        self.now += after
        busy = sum(self.serving.values())
        spare = self.seats - busy
        view = FleetView(
            serving=busy,
            spare=spare,
            replicas=self.seats,
            supply={
                name: Supply(serving=own, promotable=spare, switchable=busy - own)
                for name, own in self.serving.items()
            },
        )
        snapshot = Snapshot(
            loads={name: gateway(demand) for name, demand in demands.items()}, fleets={"spares": view}
        )
        shape = FleetSpec(name="spares", max_seats=self.seats)
        decision, self.memory = decide(self.policies, [shape], snapshot, self.memory, self.now)
        self.serving = {str(name): one.serving["spares"] for name, one in decision.policies.items()}
        return decision


ticks = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.floats(0, 2)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=8, deadline=None)
@given(ticks, st.tuples(*[st.integers(0, 2)] * 3), st.tuples(*[st.integers(0, 2)] * 3), st.integers(6, 9))
def test_no_one_falls_below_its_floor_for_anothers_burst(
    history: Sequence[tuple[int, int, int, float]],
    floors: tuple[int, int, int],
    priorities: tuple[int, int, int],
    seats: int,
) -> None:
    policies = [
        policy(name, serving_min=floor, priority=priority)
        for name, floor, priority in zip(NAMES, floors, priorities, strict=True)
    ]
    fleet = Fleet(policies, seats)
    for *demands, step in history:
        fleet.step(dict(zip(NAMES, demands, strict=True)), step)
        assert sum(fleet.serving.values()) <= seats
        for name, floor in zip(NAMES, floors, strict=True):
            assert fleet.serving[name] >= floor


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3), st.lists(st.integers(1, 80), min_size=3, max_size=3))
def test_nobody_starves_under_equal_priority(seats: int, demands: Sequence[int]) -> None:
    """With constant demand everyone serves within each three turns, however few seats there are."""
    fleet = Fleet([policy(name) for name in NAMES], seats)
    fed = dict.fromkeys(NAMES, 0.0)
    for _ in range(120):
        fleet.step(dict(zip(NAMES, demands, strict=True)), 1.0)
        for name in NAMES:
            if fleet.serving[name] > 0:
                fed[name] = fleet.now
            assert fleet.now - fed[name] <= 3 * BURST.stable_window


@settings(max_examples=8, deadline=None)
@given(ticks)
def test_with_seats_for_all_no_policy_sees_another(history: Sequence[tuple[int, int, int, float]]) -> None:
    """Three policies on three fleets decide as each would alone."""
    shapes = [FleetSpec(name=name, max_seats=9, spare_target=1) for name in NAMES]
    policies = [policy(name, fleet=name) for name in NAMES]
    view = {
        name: FleetView(serving=1, spare=2, replicas=3, supply={name: Supply(serving=1, promotable=2)})
        for name in NAMES
    }
    together, now = Memory.initial(0.0), 0.0
    alone = {name: Memory.initial(0.0) for name in NAMES}
    for *demands, step in history:
        now += step
        loads = {name: gateway(demand) for name, demand in zip(NAMES, demands, strict=True)}
        decision, together = decide(policies, shapes, Snapshot(loads=loads, fleets=view), together, now)
        for index, name in enumerate(NAMES):
            single, alone[name] = decide(
                [policies[index]],
                [shapes[index]],
                Snapshot(loads={name: loads[name]}, fleets={name: view[name]}),
                alone[name],
                now,
            )
            assert decision.policies[name] == single.policies[name]
            assert decision.fleets[name] == single.fleets[name]


@settings(max_examples=8, deadline=None)
@given(ticks, st.permutations(NAMES))
def test_the_order_of_policies_does_not_matter(
    history: Sequence[tuple[int, int, int, float]], order: Sequence[str]
) -> None:
    first, second = Fleet([policy(n) for n in NAMES], 4), Fleet([policy(n) for n in order], 4)
    for *demands, step in history:
        loads = dict(zip(NAMES, demands, strict=True))
        assert dict(first.step(loads, step).policies) == dict(second.step(loads, step).policies)


# ------------------------------------------------------------------ turns


@settings(max_examples=16)
@given(
    st.lists(st.integers(9, 900), min_size=2, max_size=5),
    st.integers(1, 3),
)
def test_equals_take_turns_however_much_each_asks_for(queues: list[int], seats: int) -> None:
    """With fewer seats than policies, each has a seat for about its part of the time."""
    names = [f"p{number}" for number in range(len(queues))]
    seats = min(seats, len(queues) - 1)
    policies = [policy(name, serving_min=0) for name in names]
    only = [FleetSpec(name="spares", max_seats=seats)]
    serving, had, memory = dict.fromkeys(names, 0), dict.fromkeys(names, 0), Memory.initial(0.0)
    rounds = 60 * len(names)
    for second in range(1, rounds + 1):
        supply = {name: Supply(serving=serving[name], switchable=seats - serving[name]) for name in names}
        if second == 1:
            supply = {name: Supply(promotable=seats) for name in names}
        view = FleetView(
            serving=seats if second > 1 else 0,
            spare=0 if second > 1 else seats,
            replicas=seats,
            supply=supply,
        )
        loads = {
            name: Load(queued=fresh(queue), in_flight=fresh(8 * serving[name]), oldest_wait=fresh(5))
            for name, queue in zip(names, queues, strict=True)
        }
        decision, memory = decide(
            policies, only, Snapshot(loads=loads, fleets={"spares": view}), memory, float(second)
        )
        serving = {name: decision.policies[name].serving["spares"] for name in names}
        for name in names:
            had[name] += serving[name] > 0
    assert min(had.values()) >= rounds * seats / len(names) / 3


def test_a_fallback_takes_nothing_that_a_higher_priority_needs() -> None:
    chat, batch = (
        policy("chat", priority=100, serving_min=0),
        policy("batch", serving_min=0, fallback_serving=4),
    )
    fleet = [FleetSpec(name="spares", max_seats=6)]
    supply = {"chat": Supply(serving=6), "batch": Supply(switchable=6)}
    view = FleetView(serving=6, replicas=6, supply=supply)
    memory = Memory.initial(0.0)
    for second in range(1, 12):
        loads = {"chat": Load(queued=fresh(9), in_flight=fresh(48))}  # batch says nothing
        decision, memory = decide(
            [chat, batch], fleet, Snapshot(loads=loads, fleets={"spares": view}), memory, float(second)
        )
    assert decision.policies["batch"].mode == "Hold"
    assert decision.policies["chat"].serving["spares"] == 6
