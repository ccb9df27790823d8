"""How many nodes may be excluded within a window, and that storms stop and recoveries don't."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.nodehealth.breaker import BreakerLimits, BreakerState, admit, recovered

T0, WINDOW = 1_800_000_000.0, 600.0
LIMITS = BreakerLimits()


def names(count: int, first: int = 0) -> list[str]:
    return [f"node-{place:03}" for place in range(first, first + count)]


@pytest.mark.parametrize(
    ("nodes", "limits", "allowed"),
    [
        (0, LIMITS, 1),
        (1, LIMITS, 1),
        (2, LIMITS, 1),
        (5, LIMITS, 1),
        (6, LIMITS, 2),
        (100, LIMITS, 20),
        (101, LIMITS, 21),
        (100, BreakerLimits(max_percent=0), 0),
        (1, BreakerLimits(max_percent=0, at_least=5), 0),
        (100, BreakerLimits(max_percent=100), 100),
        (100, BreakerLimits(at_most=3), 3),
        (3, BreakerLimits(at_least=2), 2),
        (3, BreakerLimits(at_least=2, at_most=1), 1),
    ],
)
def test_what_is_allowed(nodes: int, limits: BreakerLimits, allowed: int) -> None:
    assert limits.allowed(nodes) == allowed
    admission, _ = admit(BreakerState(), names(200), nodes, limits, T0)
    assert (len(admission.admitted), admission.tripped) == (allowed, True)


def test_the_most_urgent_go_first_and_the_others_wait_for_the_window() -> None:
    first, state = admit(BreakerState(), names(30), 100, LIMITS, T0)
    assert (first.admitted, first.waiting) == (tuple(names(20)), tuple(names(10, 20)))
    assert (first.used, first.allowed, first.free_at) == (20, 20, T0 + WINDOW)
    again, state = admit(state, names(10, 20), 100, LIMITS, T0 + WINDOW - 1)
    assert again.admitted == ()
    later, state = admit(state, names(10, 20), 100, LIMITS, T0 + WINDOW)
    assert (later.admitted, later.waiting) == (tuple(names(10, 20)), ())


def test_a_window_slides() -> None:
    state = BreakerState()
    for minute in range(5):
        _, state = admit(state, names(1, minute), 15, LIMITS, T0 + minute * 60)
    admission, state = admit(state, names(1, 9), 15, LIMITS, T0 + 300)
    assert (admission.admitted, admission.waiting) == ((), ("node-009",))
    admission, _ = admit(state, names(1, 9), 15, LIMITS, T0 + WINDOW)
    assert admission.admitted == ("node-009",)


def test_a_mark_that_somebody_took_away_is_set_again_and_counted_once() -> None:
    _, state = admit(BreakerState(), names(1), 2, LIMITS, T0)
    admission, state = admit(state, names(2), 2, LIMITS, T0 + 60)
    assert (admission.admitted, admission.waiting, admission.used) == (("node-000",), ("node-001",), 1)


def test_the_cluster_counts_as_it_was_when_the_window_began() -> None:
    _, state = admit(BreakerState(), [], 100, LIMITS, T0 - WINDOW - 60)
    for minute in range(10):
        _, state = admit(state, [], 100 - 10 * minute, LIMITS, T0 + minute * 60)
    admission, _ = admit(state, names(30), 10, LIMITS, T0 + 599)
    assert admission.allowed == 20


def test_a_node_that_flaps_uses_the_window_up_only_once() -> None:
    state = BreakerState()
    for turn in range(10):
        admission, state = admit(state, names(1), 2, LIMITS, T0 + turn)
        assert admission.admitted == ("node-000",)
    assert len(state.excluded) == 1


def test_a_node_that_is_gone_is_forgotten() -> None:
    _, state = admit(BreakerState(), names(1), 2, LIMITS, T0)
    assert recovered(state, names(2, 1)).excluded == {}


def test_a_clock_that_was_set_back_blocks_nothing_for_longer_than_a_window() -> None:
    _, state = admit(BreakerState(), names(1), 2, LIMITS, T0)
    back = T0 - 10**8
    admission, state = admit(state, names(1, 1), 2, LIMITS, back)
    assert admission.admitted == ()
    admission, _ = admit(state, names(1, 1), 2, LIMITS, back + WINDOW)
    assert admission.admitted == ("node-001",)


waves = st.lists(
    st.tuples(st.floats(0, 900), st.lists(st.sampled_from(names(50)), max_size=30, unique=True)), max_size=30
)


@given(waves, st.integers(1, 60), st.integers(0, 100), st.integers(0, 5))
def test_no_window_sees_more_exclusions_than_are_allowed(
    told: Sequence[tuple[float, list[str]]], nodes: int, percent: int, least: int
) -> None:
    limits, state, now = BreakerLimits(max_percent=percent, at_least=least), BreakerState(), T0
    marked: set[str] = set()
    begun: list[tuple[float, str]] = []
    for after, wanted in told:
        now += after
        fresh = [node for node in wanted if node not in marked]
        admission, state = admit(state, fresh, nodes, limits, now)
        assert set(admission.admitted) | set(admission.waiting) == set(fresh)
        begun += [(now, node) for node in admission.admitted]
        marked |= set(admission.admitted)
        within = {node for at, node in begun if at > now - WINDOW}
        assert len(within) <= limits.allowed(nodes)


@given(waves, st.integers(1, 60))
def test_whoever_waits_gets_its_turn(told: Sequence[tuple[float, list[str]]], nodes: int) -> None:
    state, now = BreakerState(), T0
    for after, wanted in told:
        now += after
        _, state = admit(state, wanted, nodes, LIMITS, now)
    left = set(names(50))
    for _ in range(60):
        now += WINDOW
        admission, state = admit(state, sorted(left), nodes, LIMITS, now)
        left -= set(admission.admitted)
    assert not left
