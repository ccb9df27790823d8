"""Which parked residents are brought back ahead of need."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.explain import explain_policy
from scaler.core.model import FleetView, Load, PolicyDecision, ReasonCode, Supply
from scaler.core.warmth import rise
from scaler.core.windows import Ring
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, view
from warmpool.seats import FleetName

WIDE = fleet(max_seats=99, spare_target=9)
ALONE, SHARED = [policy("a")], [policy("a"), policy("b", serving_min=0)]


def ring(*demands: tuple[float, float]) -> Ring:
    made = Ring()
    for at, demand in demands:
        made = made.add(at, demand, demand, 60.0)
    return made


@pytest.mark.parametrize(
    ("one", "seconds", "risen"),
    [
        pytest.param(ring(), 5.0, 0.0, id="nothing known"),
        pytest.param(ring((0, 8), (1, 8), (9, 8)), 5.0, 0.0, id="flat"),
        pytest.param(ring((0, 40), (5, 20), (9, 2)), 5.0, 0.0, id="falling"),
        pytest.param(ring((0, 2), (3, 20), (4, 30)), 5.0, 28.0, id="within the time"),
        pytest.param(ring((0, 2), (3, 20), (9, 40)), 5.0, 18.0, id="the steepest stretch of it"),
        pytest.param(ring((0, 2), (9, 40)), 5.0, 0.0, id="a gap of which nobody knows when it rose"),
        pytest.param(ring((0, 10), (2, 1), (4, 30), (6, 12)), 5.0, 29.0, id="from the lowest before it"),
        pytest.param(Ring().add(0.0, 2.0, 30.0, 60.0), 5.0, 28.0, id="a peak within one second"),
    ],
)
def test_how_far_demand_has_risen_within_a_time(one: Ring, seconds: float, risen: float) -> None:
    assert rise(one, seconds) == pytest.approx(risen)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=40), st.integers(1, 20))
def test_it_is_the_highest_difference_of_any_two_so_close(steps: list[tuple[int, int]], seconds: int) -> None:
    at, made = 0.0, Ring()
    for step, demand in steps:
        at += step
        made = made.add(at, demand, demand, 60.0)
    pairs = [
        later.peak - (earlier.mean if earlier.readings else earlier.peak)
        for position, later in enumerate(made.buckets)
        for earlier in made.buckets[: position + 1]
        if later.second - earlier.second <= seconds
    ]
    assert rise(made, float(seconds)) == pytest.approx(max([0.0, *pairs]))


# ------------------------------------------------------------------ in a decision


def seats(serving: int = 1, spare: int = 6, parked: int = 6, wake: float = 4.0) -> Mapping[str, FleetView]:
    """`a` serves on some; on the spare ones its residents are parked, but for the difference."""
    supply = {
        "a": Supply(serving=serving, promotable=spare, parked=parked, parked_wake=wake),
        "b": Supply(promotable=spare),
    }
    return {"spares": view(supply, serving=serving, spare=spare)}


def warm(run: Run, name: str = "a") -> Mapping[FleetName, int]:
    return run.decision.policies[name].warm


def decided(run: Run) -> PolicyDecision:
    return run.decision.policies["a"]


@pytest.mark.parametrize(
    ("demand", "number"),
    [
        pytest.param(0, 0, id="nobody asks"),
        pytest.param(4, 1, id="one at least, while anybody does"),
    ],
)
def test_on_a_shared_fleet_one_stands_paused_while_there_is_any_demand(demand: int, number: int) -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(demand), "b": load(0)}, seats(), 15.0)
    assert warm(run) == {SPARES: number}
    assert warm(run, "b") == {SPARES: 0}


def test_it_is_one_for_a_stable_window_after_the_last_request() -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(), 15.0)
    run.hold({"a": load(0), "b": load(0)}, seats(), 9.0)
    assert warm(run) == {SPARES: 1}
    run.hold({"a": load(0), "b": load(0)}, seats(), 3.0)
    assert warm(run) == {SPARES: 0}


def test_on_a_fleet_of_its_own_nothing_stands_paused_for_others_sake() -> None:
    run = Run(ALONE, [WIDE])
    run.hold({"a": load(4)}, seats(), 15.0)
    assert warm(run) == {SPARES: 0}


@pytest.mark.parametrize(
    ("wake", "number"),
    [
        pytest.param(4.0, 3, id="20 more within 4 s: three seats"),
        pytest.param(1.0, 2, id="10 more within a second: two seats"),
        pytest.param(0.0, 2, id="not known: the burst window of 2 s"),
    ],
)
def test_as_many_stand_paused_as_demand_rises_by_while_one_is_brought_back(wake: float, number: int) -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(5, wake=wake), 15.0)
    for demand in (14, 14, 24, 24, 24):
        run.step({"a": load(demand), "b": load(0)}, seats(5, wake=wake), after=1.0)
    assert warm(run) == {SPARES: number}


def test_there_are_no_more_than_seats_that_it_does_not_serve_on() -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(5, 3, parked=3), 15.0)
    run.step({"a": load(40), "b": load(0)}, seats(5, 2, parked=2), after=1.0)
    assert warm(run) == {SPARES: 2}


def test_those_that_are_promoted_now_do_not_stand_paused() -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(1, 3, parked=3), 15.0)
    run.step({"a": load(24), "b": load(0)}, seats(1, 3, parked=3), after=1.0)
    assert decided(run).serving[SPARES] == 3
    assert warm(run) == {SPARES: 1}


def test_where_all_stand_paused_one_is_enough() -> None:
    """With none parked and all up there is nothing to be gained by knowing how far demand has risen."""
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(5, parked=0), 15.0)
    run.step({"a": load(36), "b": load(0)}, seats(5, parked=0), after=1.0)
    assert (warm(run), warm(run, "b")) == ({SPARES: 1}, {SPARES: 0})
    assert ReasonCode.WARMED not in [reason.code for reason in decided(run).reasons]


def test_a_model_that_is_not_up_for_want_of_room_is_asked_for_too() -> None:
    """Its demand alone makes room for it: nothing of it could be promoted yet."""
    run = Run(SHARED, [WIDE])
    supply = {"a": Supply(serving=1, promotable=3), "b": Supply(startable=3, blocked=1)}
    for demand in (0, 3):
        run.step(
            {"a": load(4), "b": load(0, demand)}, {"spares": view(supply, serving=1, spare=3)}, after=1.0
        )
        assert warm(run, "b") == {SPARES: 1 if demand else 0}


def test_work_that_can_wait_needs_none() -> None:
    batch = policy("a", preemptible=True, serving_min=0)
    run = Run([batch, policy("b", serving_min=0)], [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(), 15.0)
    assert warm(run) == {SPARES: 0}


def test_unknown_is_not_idle() -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": Load(), "b": Load()}, seats(), 30.0)
    assert warm(run) == {SPARES: 1}


def test_a_rise_is_spread_over_its_fleets_in_order() -> None:
    two = policy("a", fleets=(("own", 8), ("spares", 8)))
    run = Run([two, policy("b", serving_min=0)], [fleet("own", 9), WIDE])
    own = {"own": view({"a": Supply(serving=5, promotable=2, parked=2)}, serving=5, spare=2)}
    run.hold({"a": load(4), "b": load(0)}, {**own, **seats(0)}, 15.0)
    run.step({"a": load(34), "b": load(0)}, {**own, **seats(0)}, after=1.0)
    assert warm(run) == {"own": 2, SPARES: 2}


def test_it_is_said_where_some_are_brought_back() -> None:
    run = Run(SHARED, [WIDE])
    run.hold({"a": load(4), "b": load(0)}, seats(parked=5), 15.0)
    assert ReasonCode.WARMED not in [reason.code for reason in decided(run).reasons]
    run.step({"a": load(4), "b": load(0)}, seats(parked=6), after=1.0)
    assert "others share the fleet" in " ".join(explain_policy(decided(run)))
    run.step({"a": load(26), "b": load(0)}, seats(5, parked=6), after=1.0)
    assert "risen by up to 22 requests within the 4 s" in " ".join(explain_policy(decided(run)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.floats(0.1, 3)), min_size=1, max_size=25),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(0, 20),
)
def test_more_time_to_wake_never_leaves_fewer(
    history: list[tuple[int, float]], spare: int, parked: int, wake: float
) -> None:
    found = []
    for seconds in (wake, wake + 5.0):
        run = Run(SHARED, [WIDE])
        for demand, step in history:
            one = seats(3, spare, min(spare, parked), max(2.0, seconds))
            run.step({"a": load(demand), "b": load(0)}, one, after=step)
            assert warm(run)[SPARES] <= 3 + spare - decided(run).serving[SPARES]
        found.append(warm(run)[SPARES])
    assert found[0] <= found[1]
