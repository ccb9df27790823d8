"""How fast a total may change: HorizontalPodAutoscaler's rules."""

import pytest

from scaler.core.model import ChangeLimit, Pace, ReasonCode, Select
from scaler.core.pace import Changes, Minima, highest_total, lowest_total, tolerated
from scaler.core.placement import COUNT_MAX
from tests.unit.scaler.core.world import Run, fleet, load, policy, simple, view

SEATS_4 = ChangeLimit(value=4, percent=False, period=60.0)
PERCENT_50 = ChangeLimit(value=50, percent=True, period=60.0)
PERCENT_100 = ChangeLimit(value=100, percent=True, period=15.0)


@pytest.mark.parametrize(
    ("limits", "select", "total", "highest", "lowest"),
    [
        pytest.param((), Select.MAX, 10, COUNT_MAX, 0, id="no limits"),
        pytest.param((), Select.DISABLED, 10, 10, 10, id="disabled"),
        pytest.param((SEATS_4,), Select.MAX, 10, 14, 6, id="seats"),
        pytest.param((PERCENT_50,), Select.MAX, 10, 15, 5, id="percent"),
        pytest.param((PERCENT_50,), Select.MAX, 3, 5, 1, id="a percentage is rounded towards more change"),
        pytest.param((SEATS_4, PERCENT_50), Select.MAX, 10, 15, 5, id="the most change"),
        pytest.param((SEATS_4, PERCENT_50), Select.MIN, 10, 14, 6, id="the least change"),
        pytest.param((SEATS_4,), Select.MAX, 2, 6, 0, id="never below nothing"),
    ],
)
def test_limits_bound_the_change_of_a_period(
    limits: tuple[ChangeLimit, ...], select: Select, total: int, highest: int, lowest: int
) -> None:
    pace = Pace(limits=limits, select=select)
    assert highest_total(pace, Changes(), total, 100.0) == highest
    assert lowest_total(pace, Changes(), total, 100.0) == lowest


def test_what_was_added_within_the_period_counts_and_later_does_not() -> None:
    pace, grown = Pace(limits=(SEATS_4,)), Changes().add(100.0, 10, 14)
    assert highest_total(pace, grown, 14, 130.0) == 14
    assert grown.frees_at([60.0], 130.0) == 160.0
    assert highest_total(pace, grown, 14, 160.0) == 18
    assert lowest_total(pace, grown, 14, 130.0) == 6, "what was added may go again"


def test_changes_of_one_second_are_kept_together_and_old_ones_go() -> None:
    log = Changes().add(10.2, 1, 3).add(10.8, 3, 2).add(11.0, 2, 2)
    assert log.log == ((10, 2, 1),)
    assert Changes().add(10.0, 1, 3).add(2000.0, 3, 4).log == ((2000, 1, 0),)


def test_minima_are_the_lowest_of_the_window() -> None:
    lows = Minima().add(0.0, 5, 10.0).add(1.0, 3, 10.0).add(2.0, 7, 10.0)
    assert lows.lowest == 3
    assert lows.rises_at(10.0) == 11.0
    assert lows.add(11.0, 9, 10.0).lowest == 7


@pytest.mark.parametrize(
    ("total", "target", "tolerance", "answer"),
    [(20, 22, 0.1, True), (20, 23, 0.1, False), (20, 18, 0.1, True), (0, 1, 1.0, False), (5, 5, 0.1, False)],
)
def test_tolerance_is_a_share_of_the_total(
    total: int, target: int, tolerance: float, *, answer: bool
) -> None:
    assert tolerated(Pace(tolerance=tolerance), total, target) is answer


# ------------------------------------------------------------------ in a decision


def codes(run: Run) -> set[ReasonCode]:
    return {reason.code for reason in run.decision.fleets["spares"].reasons}


def total(run: Run) -> int:
    return run.decision.fleets["spares"].total


def test_a_rate_holds_the_total_back_until_its_period_is_over() -> None:
    run = Run(
        [policy(serving_max=20)],
        [fleet(max_seats=20, spare_target=0, scale_up=Pace(limits=(SEATS_4,)))],
    )
    two = {"spares": simple({"a": 2})}
    run.step({"a": load(16)}, two)
    run.step({"a": load(100)}, two, after=1.0)
    assert total(run) == 6
    assert ReasonCode.PACE_LIMITED in codes(run)
    began = run.now
    while total(run) == 6:
        run.step({"a": load(100)}, two, after=1.0)
    assert total(run) == 10
    assert run.now - began == pytest.approx(60.0, abs=1.1)


def test_a_rate_never_holds_back_a_floor() -> None:
    slow = Pace(limits=(ChangeLimit(value=1, percent=False, period=600.0),))
    run = Run([policy(serving_min=5)], [fleet(max_seats=8, spare_target=0, scale_up=slow)])
    run.step({"a": load(0)}, {"spares": simple({"a": 1})})
    assert total(run) == 5


def test_disabled_deletes_no_seat() -> None:
    fixed = Pace(select=Select.DISABLED)
    run = Run([policy(serving_min=0)], [fleet(max_seats=8, spare_target=0, scale_down=fixed)])
    run.hold({"a": load(0)}, {"spares": view({}, spare=5)}, 120.0)
    assert total(run) == 5
    assert ReasonCode.PACE_LIMITED in codes(run)


def test_a_window_up_waits_for_a_larger_total_to_last() -> None:
    patient = Pace(window=30.0)
    run = Run([policy(serving_max=20)], [fleet(max_seats=20, spare_target=0, scale_up=patient)])
    two = {"spares": simple({"a": 2})}
    run.hold({"a": load(8)}, two, 12.0)
    run.step({"a": load(60)}, two, after=0.25)
    assert total(run) == 2
    assert ReasonCode.SCALE_UP_DELAYED in codes(run)
    began = run.now
    while total(run) == 2:
        run.step({"a": load(60)}, two, after=0.25)
    assert run.now - began == pytest.approx(30.0, abs=0.6)


def test_a_small_change_is_tolerated_and_said() -> None:
    broad = Pace(tolerance=0.25)
    run = Run([policy(serving_max=20)], [fleet(max_seats=20, spare_target=1, scale_up=broad)])
    run.step({"a": load(26)}, {"spares": simple({"a": 4})})
    assert total(run) == 4
    assert ReasonCode.WITHIN_TOLERANCE in codes(run)
    run.step({"a": load(60)}, {"spares": simple({"a": 4})}, after=0.25)
    assert total(run) > 4
