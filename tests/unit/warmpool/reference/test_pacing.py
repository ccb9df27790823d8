import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmpool.reference.pacing import Pacer

rates = st.floats(0.5, 1000)
times = st.floats(0, 1e6)
origins = st.floats(0, 1e6)


@given(rates, times, origins)
def test_the_second_token_keeps_the_cap_and_lies_on_the_grid(rate: float, now: float, origin: float) -> None:
    pacer = Pacer(rate, origin)
    due = pacer.due_after_first(now)
    assert pacer.time_of(due) >= now + 0.999 / rate
    assert pacer.time_of(due) <= now + 2.001 / rate


@given(rates, times, origins)
def test_a_tick_is_due_at_its_own_time_and_not_a_period_before(
    rate: float, now: float, origin: float
) -> None:
    pacer = Pacer(rate, origin)
    tick = pacer.due_after(now)
    assert pacer.is_due(tick, pacer.time_of(tick))
    assert not pacer.is_due(tick, pacer.time_of(tick) - 0.9 / rate)


@given(rates, st.integers(0, 10**6), st.floats(0, 5))
def test_ticks_after_a_step_are_later_and_not_caught_up(rate: float, tick: int, late: float) -> None:
    pacer = Pacer(rate)
    now = (tick + late) / rate
    following = pacer.due_after(now)
    assert following > tick
    assert pacer.time_of(following) > now - 1e-5 / rate
    assert pacer.time_of(following) <= now + 1.001 / rate


def test_sequences_that_started_apart_become_due_together() -> None:
    pacer = Pacer(10)
    assert pacer.due_after(pacer.time_of(pacer.due_after_first(5.01))) == pacer.due_after(
        pacer.time_of(pacer.due_after_first(5.09))
    )


def test_engines_that_began_apart_have_their_ticks_apart() -> None:
    one, other = Pacer(10, origin=100.0), Pacer(10, origin=100.04)
    ticks = [pacer.time_of(pacer.due_after(200.0)) for pacer in (one, other)]
    assert ticks == [pytest.approx(200.1), pytest.approx(200.04)]


@pytest.mark.parametrize("now", [0.0, 1.5, 1e9])
def test_without_a_cap_everything_is_due_always(now: float) -> None:
    pacer = Pacer(0)
    assert pacer.is_off
    assert pacer.is_due(pacer.due_after_first(now), now)
    assert pacer.is_due(pacer.due_after(now), now)
