"""Seats that are still starting go before their time, and those that are up don't."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.explain import explain_fleet
from scaler.core.model import FleetView, Pace, ReasonCode, Select
from tests.reports.site import Site
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, simple

BURST, STABLE, WINDOW = 2.0, 10.0, 300.0
WIDE = fleet(max_seats=9, scale_down=Pace(window=WINDOW))


def seen(serving: int, starting: int, *, spare: int = 0, start_seconds: float = 0.0) -> dict[str, FleetView]:
    return {"spares": replace(simple({"a": serving}, spare, starting=starting), start_seconds=start_seconds)}


def burst(run: Run, start_seconds: float) -> None:
    """Five seats of demand where two are up: four more are ordered, a spare one among them."""
    run.hold({"a": load(4)}, seen(1, 0, spare=1, start_seconds=start_seconds), 15.0)
    run.hold({"a": load(40)}, seen(2, 0, start_seconds=start_seconds), 1.0)
    run.hold({"a": load(40)}, seen(2, 4, start_seconds=start_seconds), 1.0)
    assert run.decision.fleets[SPARES].total == 6


def cancelled_after(run: Run, start_seconds: float) -> float:
    """Seconds from the end of the burst until all four starts are cancelled, or until they have gone with the rest."""
    began = run.now + BURST + STABLE
    while run.now < began + 2 * WINDOW and run.decision.fleets[SPARES].total > 2:
        run.step({"a": load(4)}, seen(2, 4, start_seconds=start_seconds), after=0.5)
    return run.now - began


@pytest.mark.parametrize(
    ("start_seconds", "after"),
    [
        pytest.param(20.0, 20.0, id="as long as a start takes"),
        pytest.param(4.0, STABLE, id="a stable window at least"),
        pytest.param(0.0, WINDOW, id="nobody knows how long a start takes"),
        pytest.param(900.0, WINDOW, id="never later than what is up"),
    ],
)
def test_a_start_is_cancelled_once_nothing_has_asked_for_it_for(start_seconds: float, after: float) -> None:
    run = Run([policy()], [WIDE])
    burst(run, start_seconds)
    assert abs(cancelled_after(run, start_seconds) - after) <= 1.0


def test_it_is_said() -> None:
    run = Run([policy()], [WIDE])
    burst(run, 20.0)
    cancelled_after(run, 20.0)
    cancelled = [r for r in run.decision.fleets[SPARES].reasons if r.code is ReasonCode.STARTS_CANCELLED]
    assert cancelled[0].facts == {"seats": 3, "seconds": 20.0}
    assert any("3 starts cancelled" in line for line in explain_fleet(run.decision.fleets[SPARES]))


def test_what_is_up_stays_for_the_scale_down_window() -> None:
    run = Run([policy()], [WIDE])
    burst(run, 20.0)
    run.hold({"a": load(4)}, seen(2, 2, spare=2, start_seconds=20.0), 60.0)
    assert run.decision.fleets[SPARES].total == 4


def test_demand_that_comes_back_within_a_start_cancels_none() -> None:
    run = Run([policy()], [WIDE])
    burst(run, 20.0)
    for _ in range(10):
        run.hold({"a": load(4)}, seen(2, 4, start_seconds=20.0), 17.0)
        run.hold({"a": load(40)}, seen(2, 4, start_seconds=20.0), 1.0)
    assert run.decision.fleets[SPARES].total == 6


def test_seats_that_are_ordered_and_not_there_yet_are_starts_too() -> None:
    run = Run([policy()], [WIDE])
    burst(run, 20.0)
    run.hold({"a": load(4)}, seen(2, 1, start_seconds=20.0), STABLE + 23.0)
    assert run.decision.fleets[SPARES].total == 2


@pytest.mark.parametrize(
    ("pace", "total"),
    [
        pytest.param(Pace(window=WINDOW, select=Select.DISABLED), 6, id="nothing is scaled down"),
        pytest.param(Pace(window=WINDOW, tolerance=0.7), 6, id="it is too little"),
        pytest.param(Pace(window=15.0), 2, id="a shorter window"),
    ],
)
def test_the_rules_for_scaling_down_hold_for_starts_too(pace: Pace, total: int) -> None:
    run = Run([policy()], [fleet(max_seats=9, scale_down=pace)])
    burst(run, 20.0)
    run.hold({"a": load(4)}, seen(2, 4, start_seconds=20.0), 40.0)
    assert run.decision.fleets[SPARES].total == total


def test_nothing_is_cancelled_while_demand_is_unknown() -> None:
    run = Run([policy()], [WIDE])
    burst(run, 20.0)
    run.hold({}, seen(2, 4, start_seconds=20.0), WINDOW)
    assert run.decision.fleets[SPARES].total == 6


def test_the_wakeup_is_when_the_start_is_cancelled() -> None:
    run = Run([policy()], [WIDE])
    burst(run, 20.0)
    run.hold({"a": load(4)}, seen(2, 4, start_seconds=20.0), 15.0)
    assert run.decision.next_wakeup is not None
    while run.decision.fleets[SPARES].total == 6:
        due = run.decision.next_wakeup
        assert due is not None
        run.step({"a": load(4)}, seen(2, 4, start_seconds=20.0), after=due - run.now)
        assert run.now < 1100.0


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([5.0, 25.0]),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.booleans()), min_size=2, max_size=8),
)
def test_a_total_falls_only_to_what_nothing_has_asked_more_than(
    start: float, stretches: Sequence[tuple[int, int, bool]]
) -> None:
    """For as long as a start takes where seats are only starting, and for the whole window where they are up."""
    site = Site(policies=[policy()], fleets=[fleet(max_seats=9, scale_down=Pace(window=60.0))], start=start)
    asked: list[tuple[float, int]] = []
    before = site.step({"a": load(0)}).fleets[SPARES].total
    for demand, seconds, hangs in stretches:
        for _ in range(seconds):
            if hangs:
                for seat in site.place().seats:
                    if seat.ready_at > site.now:
                        seat.ready_at = math.inf
            up = sum(seat.ready_at <= site.now + 1.0 for seat in site.place().seats)
            decided = site.step({"a": load(demand)}).fleets[SPARES]
            target = decided.serving + decided.spare - decided.kept + decided.held
            asked.append((site.now, min(9, target)))
            if decided.total < before:
                calm = 60.0 if decided.total < up else max(start, STABLE)
                assert all(target <= decided.total for at, target in asked if at > site.now - calm)
            before = decided.total
