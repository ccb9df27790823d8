"""How fast demand rises, and the spares that follow from it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler.core.model import AutoSpare, ReasonCode, Supply
from scaler.core.rises import DAY_SECONDS, MOST_DAYS, Rises
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, simple, view

REPLENISH = 60.0


def played(steps: list[tuple[float, float]], replenish: float = REPLENISH) -> Rises:
    """Return the history of (time, demand in seats)."""
    rises = Rises()
    for at, seats in steps:
        rises = rises.add(at, seats, replenish)
    return rises


def of_day(rise_at: dict[int, float], *, days: int = 2, base: float = 2.0) -> Rises:
    """Return the history of days of flat demand in which every so many-th minute rises by so many seats."""
    rises = Rises()
    for minute in range(days * 1440):
        more = max((seats for every, seats in rise_at.items() if minute % every == every - 1), default=0.0)
        rises = rises.add(minute * 60.0, base, REPLENISH)
        rises = rises.add(minute * 60.0 + 30.0, base + more, REPLENISH)
        rises = rises.add(minute * 60.0 + 50.0, base, REPLENISH)
    return rises


def test_without_a_day_of_history_nothing_is_said() -> None:
    rises = played([(minute * 60.0, minute % 7) for minute in range(1439)])
    assert rises.quantile(99, 1439 * 60.0, 7 * DAY_SECONDS) is None


def test_a_flat_demand_never_rises() -> None:
    assert of_day({}).quantile(100, 2 * DAY_SECONDS, 7 * DAY_SECONDS) == 0


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 0), (95, 3), (99, 3), (100, 8)], ids=["median", "p95", "p99", "all"]
)
def test_the_quantile_is_of_the_stretches(percent: int, expected: int) -> None:
    rises = of_day({10: 3.0, 720: 8.0})
    assert rises.quantile(percent, 2 * DAY_SECONDS, 7 * DAY_SECONDS) == expected


def test_a_rise_is_counted_from_the_lowest_within_one_replenish_time() -> None:
    slow = played([(second, second / 60.0) for second in range(600)])
    assert slow.highest == pytest.approx(1.0, abs=0.1), "a seat a minute, and a seat takes a minute"
    fast = played([(0.0, 1.0), (30.0, 5.0), (59.0, 9.0)])
    assert fast.highest == 8.0


def test_a_longer_start_makes_the_same_demand_rise_further() -> None:
    steps = [(float(second), second / 60.0) for second in range(1200)]
    assert played(steps, 300.0).highest > played(steps, 60.0).highest * 4


def test_days_beyond_the_lookback_are_forgotten() -> None:
    rises = of_day({720: 8.0}, days=1)
    for minute in range(1440, 4 * 1440):
        rises = rises.add(minute * 60.0, 2.0, REPLENISH)
    assert rises.quantile(100, 4 * DAY_SECONDS, 7 * DAY_SECONDS) == 8
    assert rises.quantile(100, 4 * DAY_SECONDS, 2 * DAY_SECONDS) == 0


def test_the_history_is_bounded() -> None:
    source, rises = random.Random(1), Rises()
    for hour in range(24 * (MOST_DAYS + 10)):
        rises = rises.add(hour * 3600.0, source.expovariate(1e-4), 3600.0)
    assert len(rises.days) <= MOST_DAYS
    assert len(rises.lows) <= 40
    assert max(len(day.bins) for day in rises.days) <= 24


@given(st.floats(0, 1e7, allow_nan=False))
def test_a_bin_is_never_below_the_rise_and_at_most_an_eighth_above(rise: float) -> None:
    rises = played([(0.0, 0.0), (1.0, rise), (61.0, 0.0)])
    (seats,) = rises.days[-1].bins
    assert rise - 1e-6 <= seats <= max(64, math.ceil(rise) * 1.125 + 1)


def test_a_history_moves_to_another_clock() -> None:
    rises = of_day({10: 3.0})
    moved = rises.moved(-1_000 * DAY_SECONDS)
    now = 2 * DAY_SECONDS
    assert moved.quantile(99, now - 1_000 * DAY_SECONDS, 7 * DAY_SECONDS) == rises.quantile(
        99, now, 7 * DAY_SECONDS
    )


# ------------------------------------------------------------------ in a decision

AUTO = AutoSpare(quantile=99, lookback=7 * DAY_SECONDS, most=4)


def test_a_fleet_learns_its_spares_from_the_rise_of_all_its_policies_together() -> None:
    both = [policy("a", serving_max=9), policy("b", serving_max=9)]
    run = Run(both, [fleet(max_seats=12, spare_target=1, auto_spare=AUTO)])
    seats = {
        "spares": view(
            {"a": Supply(serving=1, promotable=4), "b": Supply(serving=1, promotable=4)}, serving=2, spare=4
        )
    }
    for minute in range(1500):
        burst = 12 if minute % 10 == 9 else 0
        run.step({"a": load(2), "b": load(2)}, seats, after=30.0)
        run.step({"a": load(2 + burst), "b": load(2 + burst)}, seats, after=30.0)
    decided = run.decision.fleets["spares"]
    assert decided.spare == 3, "24 requests more, 8 a seat"
    assert ReasonCode.SPARES_LEARNED in {reason.code for reason in decided.reasons}


def test_what_was_refused_is_part_of_the_rise_and_serves_nobody() -> None:
    """A queue that holds 8 turns 16 more away: with three spares all of them would have been taken."""
    run = Run([policy(serving_max=9)], [fleet(max_seats=12, spare_target=1, auto_spare=AUTO)])
    seats = {"spares": view({"a": Supply(serving=1, promotable=4)}, serving=1, spare=4)}
    wanted = set()
    for minute in range(1500):
        refused = 16 if minute % 10 == 9 else 0
        run.step({"a": load(8, refused=0)}, seats, after=30.0)
        run.step({"a": load(8, refused=refused)}, seats, after=30.0)
        wanted.add(run.decision.policies["a"].wanted["spares"])
    assert run.decision.fleets["spares"].spare == 2
    assert wanted == {1}


@pytest.mark.parametrize(
    "unknown", [pytest.param({}, id="an older gateway"), pytest.param({"refused": math.nan}, id="no number")]
)
def test_refusals_that_nobody_tells_of_teach_nothing_and_spoil_nothing(unknown: dict[str, float]) -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=2, auto_spare=AUTO)])
    seats = {"spares": simple({"a": 1}, 2)}
    run.step({"a": load(8, **unknown)}, seats)
    run.step({"a": load(24, **unknown)}, seats, after=5.0)
    assert run.memory.fleets["spares"].rises.highest == 2.0


def test_before_a_day_of_history_the_minimum_holds() -> None:
    run = Run([policy()], [fleet(max_seats=9, spare_target=2, auto_spare=AUTO)])
    run.hold({"a": load(8)}, {"spares": simple({"a": 1}, 2)}, 30.0)
    assert run.decision.fleets["spares"].spare == 2
    assert served(run.decision) == 1


def test_an_unknown_demand_teaches_nothing() -> None:
    run = Run([policy(), policy("b")], [fleet(max_seats=9, spare_target=2, auto_spare=AUTO)])
    seats = {"spares": simple({"a": 1, "b": 1}, 2)}
    run.step({"a": load(8), "b": load(1)}, seats)
    before = run.memory.fleets["spares"].rises
    run.step({"a": load(80)}, seats, after=5.0)
    assert run.memory.fleets["spares"].rises == before
