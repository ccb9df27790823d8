import math

import pytest

from scaler.runtime.bench.law.grids import PLAIN
from scaler.runtime.bench.law.run import Knobs, Outcome
from scaler.runtime.bench.law.sweep import Point
from scaler.runtime.bench.law.verdicts import cheapest, frontier, plain, saving, times_fewer, verdicts


def point(arm: str, held: float, late: int, knobs: Knobs | None = None) -> Point:
    outcome = Outcome(
        gpu_seconds={"serving": held}, requests=10_000, late=late, worst=0.0, p99=0.0, promotions=0
    )
    return Point(arm=arm, knobs=knobs or Knobs(spares=int(held)), outcome=outcome)


FOUND = [
    point("hpa", 100.0, 2000, PLAIN["hpa"]),
    point("hpa", 200.0, 40),
    point("kpa", 90.0, 3000, PLAIN["kpa"]),
    point("paused", 180.0, 30),
    point("shared", 80.0, 500),
    point("shared", 100.0, 50),
    point("shared", 120.0, 0),
    point("shared", 130.0, 10),
]


def test_the_frontier_leaves_out_what_something_else_beats_in_both() -> None:
    shared = [one for one in FOUND if one.arm == "shared"]
    assert [one.outcome.held for one in frontier(shared)] == [80.0, 100.0, 120.0]


def test_of_two_equally_dear_points_the_better_is_on_the_frontier() -> None:
    assert [one.outcome.late for one in frontier([point("a", 1.0, 5), point("a", 1.0, 3)])] == [3]


def test_the_cheapest_point_serves_well() -> None:
    found = cheapest(FOUND)
    assert found is not None
    assert (found.arm, found.outcome.held) == ("shared", 100.0)
    assert cheapest([point("a", 1.0, 5000)]) is None


def test_a_saving_is_against_the_best_without_sharing() -> None:
    assert saving(FOUND, "shared") == pytest.approx(1.0 - 100.0 / 180.0)
    assert saving(FOUND, "bridge") is None
    assert saving([point("shared", 1.0, 0)], "shared") is None


def test_fewer_late_is_counted_at_no_more_gpu_seconds() -> None:
    assert times_fewer(FOUND, plain(FOUND, "hpa")) == pytest.approx(40.0)
    assert times_fewer(FOUND, plain(FOUND, "kpa")) == pytest.approx(6.0)
    assert times_fewer(FOUND, point("hpa", 125.0, 7)) == math.inf
    assert times_fewer(FOUND, point("hpa", 10.0, 7)) is None


def test_targets_are_judged() -> None:
    judged = verdicts(FOUND)
    assert [one.met for one in judged] == [True, True, False]
    assert judged[0].found == "shared 100 against paused 180: 44% fewer, the aim too"
    assert "40 times fewer" in judged[1].found


def test_a_target_that_nothing_can_be_said_of_is_missed() -> None:
    without = [one for one in FOUND if one.arm != "shared"]
    assert [one.met for one in verdicts(without)] == [False, False, False]
