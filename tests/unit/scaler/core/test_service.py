"""The averages by which all else is predicted: what counts into them, and how fast they follow."""

from dataclasses import replace

import pytest

from scaler.core.demand import Demand, measure
from scaler.core.memory import NEVER_SEEN, Service
from scaler.core.model import Load, Quality
from scaler.core.service import SERVICE_SECONDS, watch
from tests.unit.scaler.core.world import fresh, load

WINDOW = 60.0
BEFORE = Service(completions=4.0, busy=6.0, seconds=30.0, present=6.0, arrivals=5.0, heard=30.0)


def demand(in_flight: float, **more: float) -> Demand:
    return measure(load(in_flight, 0, **more), NEVER_SEEN, serving=True, now=0.0)[0]


def watched(one: Demand, before: Service | None = BEFORE, elapsed: float = 1.0) -> Service:
    after = watch(before, one, elapsed, WINDOW)
    assert after is not None
    return after


def test_the_rate_is_completions_over_in_flight() -> None:
    assert watched(demand(6, completions=4), None).rate == pytest.approx(4 / 6)


def test_engines_alone_give_a_rate_too() -> None:
    one, _ = measure(Load(engines=fresh(6), completions=fresh(3)), NEVER_SEEN, serving=True, now=0.0)
    assert watched(one, None).rate == 0.5


def test_they_are_plain_means_until_their_window_is_full() -> None:
    seen: Service | None = None
    for second, busy in enumerate([10, 20, 30]):
        one = demand(busy, completions=busy / 2, arrivals=4 + second)
        seen = watch(seen, one, 1.0 if second else 0.0, WINDOW)
    assert seen == pytest.approx(Service(12.5, 25.0, 2.0, 30.0, 5.5, 2.0))


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(demand(0, completions=0), id="idle is 0/0"),
        pytest.param(demand(6), id="completions unknown"),
    ],
)
def test_what_says_nothing_of_the_time_in_service_leaves_that_alone(one: Demand) -> None:
    assert watched(replace(one, arrivals=9.0)).rate == BEFORE.rate


def test_arrivals_are_heard_while_nothing_is_in_flight() -> None:
    after = watched(demand(0, completions=0, arrivals=0.0), elapsed=10.0)
    assert after.arrivals == pytest.approx(5.0 * 30.0 / 40.0)
    assert after.seconds == BEFORE.seconds


@pytest.mark.parametrize("quality", [Quality.STALE, Quality.MISSING])
def test_what_is_not_fresh_changes_nothing(quality: Quality) -> None:
    assert (
        watch(BEFORE, replace(demand(6, completions=1, arrivals=1), quality=quality), 1.0, WINDOW) == BEFORE
    )


def test_time_that_stands_still_moves_nothing_but_what_is_in_flight() -> None:
    assert watched(demand(9, completions=1, arrivals=1), elapsed=0.0) == BEFORE._replace(present=9.0)


def test_a_stall_lowers_the_rate() -> None:
    assert watched(demand(6, completions=0)).rate < BEFORE.rate


def test_the_time_in_service_is_remembered_for_minutes_and_arrivals_for_a_window() -> None:
    old = Service(completions=1.0, busy=10.0, seconds=1e6, present=10.0, arrivals=1.0, heard=1e6)
    for _ in range(60):
        old = watched(demand(10, completions=5, arrivals=5), old)
    assert old.completions == pytest.approx(1.0 + 4.0 * (1.0 - (1.0 - 1.0 / SERVICE_SECONDS) ** 60))
    assert old.arrivals == pytest.approx(1.0 + 4.0 * (1.0 - (1.0 - 1.0 / WINDOW) ** 60))
