"""Equals that take turns on too few seats: nobody starves, and hardly any time is lost in changing hands."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.memory import PolicyMemory
from scaler.core.model import Burst
from scaler.core.turns import has_turn, turn_ends
from tests.property.test_law_starts import PROMOTE_SECONDS, STEP, S, Yard, named
from tests.unit.scaler.core.world import load


@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from([2.0, 5.0, 10.0, 30.0]),
    st.sampled_from([0.0, 1.0, 3.0, 6.0]),
    st.lists(st.integers(9, 900), min_size=2, max_size=4),
)
def test_each_has_its_turn_and_a_tenth_of_the_time_is_lost_at_most(
    stable: float, drain: float, queues: list[int]
) -> None:
    """With a window of 2 s a seat changed hands 18 times a minute, or was drained for ever and taken back."""
    burst = Burst(window=2.0, stable_window=stable, demote_after=stable)
    loads = {f"p{number}": load(8, queue, oldest_wait=5.0) for number, queue in enumerate(queues)}
    yard = Yard([named(name, burst=burst) for name in loads], [dict.fromkeys(loads, S.PAUSED)], drain=drain)
    change = drain + PROMOTE_SECONDS + 3 * STEP  # until it is seen, and the steps of this loop
    turn = max(stable, 9.0 * change) + 2.0
    longest = (len(loads) - 1) * (turn + change) + change + stable
    fed, idle = dict.fromkeys(loads, 0.0), 0.0
    while yard.now < 2 * longest:
        yard.step(loads)
        for name in loads:
            if yard.serving(name):
                fed[name] = yard.now
            assert yard.now - fed[name] <= longest
        idle += STEP * (not any(map(yard.serving, loads)))
    switches = yard.counts["Switch"] + yard.counts["Promote"] + yard.counts["Recall"]
    assert switches <= 2 + yard.now / max(stable, 9.0 * drain)
    assert idle <= 2 * change + 0.15 * yard.now + (PROMOTE_SECONDS + 2 * STEP) * switches


@given(st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.floats(0, 1e4))
def test_a_turn_lasts_a_stable_window_at_least_and_is_never_endless(
    fed: float, took: float | None, stable: float
) -> None:
    arrived = None if took is None else fed + took
    memory = PolicyMemory(burst=None, fresh_at=0.0, observed_at=0.0, fed_since=fed, arrived_at=arrived)
    began = fed if arrived is None else arrived
    ends = turn_ends(memory, stable)
    assert began + stable <= ends <= began + max(stable, 60.0)
    for now in (began, ends - 0.5, ends, ends + 0.5, began + 61.0):
        assert has_turn(memory, stable, now) == (now < ends)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 2), st.integers(0, 3), st.integers(2, 4), st.integers(9, 400))
@pytest.mark.long
def test_nobody_starves_where_few_seats_have_their_residents_up(
    few: int, more: int, rivals: int, queue: int
) -> None:
    """Each was given all seats that it is up on, and whoever comes first by name had them for good."""
    names = [f"p{number}" for number in range(rivals)]
    burst = Burst(window=2.0, stable_window=10.0, demote_after=3.0)
    lives = [dict.fromkeys([*names, "a"], S.PAUSED)] * few + [{"a": S.PAUSED}] * more
    yard = Yard([named(name, burst=burst) for name in [*names, "a"]], lives, drain=1.0)
    loads = {name: load(8, queue, oldest_wait=5.0) for name in names} | {"a": load(4)}
    fed = dict.fromkeys(loads, 0.0)
    longest = (rivals + 1) * 30.0
    while yard.now < 2 * longest:
        yard.step(loads)
        for name in loads:
            if yard.serving(name):
                fed[name] = yard.now
            assert yard.now - fed[name] <= longest
