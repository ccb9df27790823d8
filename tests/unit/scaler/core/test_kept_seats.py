"""Residents that serve only out of caution count as spare: no seat is made beside them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaler.core.explain import explain_fleet
from scaler.core.model import FleetDecision, Load, Pace, ReasonCode, Supply
from tests.unit.scaler.core.world import SPARES, Run, fleet, load, policy, simple, view

WIDE = fleet(max_seats=20, spare_target=2, scale_down=Pace(window=1.0))


def of(run: Run) -> FleetDecision:
    return run.decision.fleets[SPARES]


@pytest.mark.parametrize(
    ("demand", "serving", "total"),
    [
        pytest.param(4, 1, 3, id="one is needed, and two are spare"),
        pytest.param(20, 3, 5, id="all three are needed"),
        pytest.param(12, 3, 4, id="one is only kept: one more is enough"),
        pytest.param(4, 3, 3, id="two are only kept: they are the spares"),
        pytest.param(4, 5, 5, id="what is kept beyond the spares stays all the same"),
    ],
)
def test_the_total_needs_no_spare_beside_a_seat_that_is_only_kept(
    demand: int, serving: int, total: int
) -> None:
    """In the burst of the start nothing that serves is given up."""
    run = Run([policy()], [WIDE])
    run.hold({"a": load(demand)}, {"spares": simple({"a": serving}, 20 - serving)}, 5.0)
    assert run.decision.policies["a"].serving[SPARES] == serving
    assert of(run).total == total
    assert of(run).serving + of(run).spare - of(run).kept == total


def test_it_is_said() -> None:
    run = Run([policy()], [WIDE])
    run.hold({"a": load(4)}, {"spares": simple({"a": 3}, 17)}, 5.0)
    assert "3 to serve (2 of them only out of caution, which count as spare)" in explain_fleet(of(run))[0]


def test_a_floor_is_no_spare() -> None:
    run = Run([policy(serving_min=3)], [WIDE])
    run.hold({"a": load(4)}, {"spares": simple({"a": 3}, 17)}, 5.0)
    assert of(run).total == 5


def test_what_is_kept_for_want_of_readings_is_no_spare() -> None:
    run = Run([policy()], [WIDE])
    run.hold({"a": load(20)}, {"spares": simple({"a": 3}, 2)}, 15.0)
    run.hold({"a": Load()}, {"spares": simple({"a": 3}, 2)}, 60.0)
    assert of(run).total == 5


def test_when_readings_cease_what_was_kept_makes_no_seat() -> None:
    run = Run([policy()], [WIDE])
    run.hold({"a": load(4)}, {"spares": simple({"a": 3})}, 5.0)
    assert of(run).total == 3
    run.hold({"a": Load()}, {"spares": simple({"a": 3})}, 60.0)
    assert of(run).total == 3


def test_lent_seats_are_no_seats_that_are_kept() -> None:
    batch = policy("batch", preemptible=True, serving_min=0)
    run = Run([policy(), batch], [WIDE])
    supply = {"a": Supply(serving=1, promotable=3), "batch": Supply(serving=3)}
    for _ in range(20):
        run.step({"a": load(4), "batch": load(1)}, {"spares": view(supply, serving=1, lent=3)}, after=0.25)
    assert (of(run).serving, of(run).spare, of(run).kept) == (1, 2, 0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(0.1, 4)), min_size=1, max_size=30),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_there_is_always_room_for_what_serves_and_for_the_spares_beyond_what_is_needed(
    history: list[tuple[int, int, float]], spare: int, floor: int
) -> None:
    run = Run([policy(serving_min=floor)], [fleet(max_seats=30, spare_target=spare, scale_down=Pace())])
    serving = 1
    for in_flight, queued, step in history:
        seats = simple({"a": serving}, 30 - serving)
        decision = run.step({"a": load(in_flight, queued)}, {"spares": seats}, after=step)
        one, fleet_ = decision.policies["a"], decision.fleets[SPARES]
        needed = max(floor, -(-(in_flight + queued) // 8))
        assert fleet_.serving == one.wanted[SPARES]
        assert 0 <= fleet_.kept <= spare
        assert fleet_.serving - fleet_.kept >= needed
        serving = one.serving[SPARES]


# ------------------------------------------------------------------ seats that serve nobody at present


@pytest.mark.parametrize(
    ("spare", "held", "code"),
    [
        pytest.param(1, 0, None, id="there is room"),
        pytest.param(1, 2, ReasonCode.SEATS_HELD, id="silent seats take the room"),
        pytest.param(3, 0, ReasonCode.SEATS_AT_MAX, id="more is wanted than there may be"),
        pytest.param(3, 2, ReasonCode.SEATS_AT_MAX, id="with silent seats or without"),
    ],
)
def test_a_fleet_is_at_its_most_only_where_more_is_wanted(
    spare: int, held: int, code: ReasonCode | None
) -> None:
    run = Run([policy(serving_min=2)], [fleet(max_seats=4, spare_target=spare)])
    run.step({"a": load(10)}, {"spares": simple({"a": 2}, 4 - 2 - held, held=held)})
    bounds = {ReasonCode.SEATS_HELD, ReasonCode.SEATS_AT_MAX}
    assert [reason.code for reason in of(run).reasons if reason.code in bounds] == ([code] if code else [])
