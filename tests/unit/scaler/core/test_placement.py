import pytest

from scaler.core.model import ReasonCode, Supply
from scaler.core.placement import count, seats_for
from tests.unit.scaler.core.world import Run, fleet, load, policy, served, simple, view, wanted

OWN_AND_SPARES = (("own", 8), ("spares", 8))


def run_on_two(**options: object) -> Run:
    """A policy with an own fleet and shared spares behind it."""
    return Run(
        [policy(fleets=OWN_AND_SPARES, **options)],
        [fleet("own", max_seats=6, spare_target=0), fleet("spares", max_seats=4, spare_target=2)],
    )


def views(own: int, bridge: int = 0, *, own_spare: int = 0, spare: int = 2) -> dict[str, object]:
    return {"own": simple({"a": own}, own_spare), "spares": simple({"a": bridge}, spare)}


@pytest.mark.parametrize(
    ("capacity", "target", "seats"),
    [
        pytest.param(0.0, 8, 0, id="nothing"),
        pytest.param(0.1, 8, 1, id="a little"),
        pytest.param(8.0, 8, 1, id="exactly one"),
        pytest.param(8.0000000001, 8, 1, id="what floats are off by"),
        pytest.param(8.1, 8, 2, id="a little more"),
        pytest.param(float("nan"), 8, 0, id="NaN"),
        pytest.param(1e300, 1, 1_000_000_000, id="huge"),
    ],
)
def test_seats_for(capacity: float, target: int, seats: int) -> None:
    assert seats_for(capacity, target) == seats


def test_counts_are_cut_to_what_can_be_worked_with() -> None:
    assert count(-3) == 0
    assert count(10**400) == 1_000_000_000


def test_a_burst_is_bridged_at_once_and_the_own_fleet_grows_by_the_mean() -> None:
    run = run_on_two()
    run.hold({"a": load(4)}, views(1), 12.0)
    run.hold({"a": load(20)}, views(1), 1.0)
    assert served(run.decision, where="own") == 1
    assert served(run.decision, where="spares") == 2
    run.hold({"a": load(20)}, views(1, 2, spare=0), 12.0)
    assert wanted(run.decision, where="own") == 3
    assert run.decision.fleets["own"].total == 3
    bridged = [r for r in run.decision.policies["a"].reasons if r.code is ReasonCode.BRIDGED]
    assert bridged[0].facts["missing"] == 2


def test_the_bridge_is_given_back_one_stable_window_after_the_own_seats_serve() -> None:
    run = run_on_two()
    run.hold({"a": load(4)}, views(1), 12.0)
    run.hold({"a": load(20)}, views(1, 2, spare=0), 20.0)
    run.step({"a": load(20)}, views(1, 2, own_spare=2, spare=0), after=0.25)
    assert served(run.decision, where="own") == 3
    began = run.now
    while served(run.decision, where="spares") == 2:
        run.step({"a": load(20)}, views(3, 2, spare=0), after=0.25)
        assert served(run.decision, where="own") == 3
    assert 9.5 <= run.now - began <= 11.0
    assert served(run.decision, where="spares") == 0


def test_own_spares_come_before_the_bridge() -> None:
    run = run_on_two()
    run.hold({"a": load(4)}, views(1, own_spare=1), 12.0)
    run.hold({"a": load(14)}, views(1, own_spare=1), 0.5)
    assert served(run.decision, where="own") == 2
    assert served(run.decision, where="spares") == 0


def test_each_fleet_counts_with_its_own_target() -> None:
    run = Run(
        [policy(fleets=(("own", 4), ("spares", 16)))],
        [fleet("own", max_seats=1), fleet("spares", max_seats=4)],
    )
    run.hold({"a": load(20)}, views(1), 1.0)
    assert served(run.decision, where="own") == 1
    assert served(run.decision, where="spares") == 1


def test_what_no_seat_can_carry_is_wanted_where_there_is_room_for_new_seats() -> None:
    run = run_on_two()
    run.hold({"a": load(60)}, views(1), 1.0)
    assert served(run.decision, where="spares") == 2
    assert wanted(run.decision, where="own") == 6
    assert wanted(run.decision, where="spares") == 2
    assert run.decision.fleets["own"].total == 6


@pytest.mark.parametrize(
    ("options", "demand", "expected"),
    [
        pytest.param({"serving_min": 2}, 0, 2, id="floor"),
        pytest.param({"serving_max": 1}, 50, 1, id="ceiling"),
        pytest.param({"serving_min": 3, "serving_max": 1}, 50, 3, id="floor above ceiling: the floor stands"),
        pytest.param({"serving_min": 9}, 0, 9, id="a floor that no fleet has room for is still wanted"),
        pytest.param({"serving_min": -4}, 0, 0, id="a negative floor is none"),
    ],
)
def test_bounds(options: dict[str, object], demand: float, expected: int) -> None:
    run = Run([policy(**options)], [fleet()])
    run.hold({"a": load(demand)}, {"spares": simple({"a": 0}, 3)}, 20.0)
    assert wanted(run.decision) == expected
    assert run.decision.fleets["spares"].total <= 3


def test_a_policy_that_is_not_resident_gets_nothing() -> None:
    run = Run([policy()], [fleet()])
    run.hold({"a": load(12)}, {"spares": view({}, spare=3)}, 1.0)
    assert served(run.decision) == 0
    assert wanted(run.decision) == 2


def test_promotable_limits_what_spare_seats_give() -> None:
    run = Run([policy()], [fleet(max_seats=5)])
    run.hold(
        {"a": load(30)}, {"spares": view({"a": Supply(serving=1, promotable=1)}, serving=1, spare=3)}, 1.0
    )
    assert served(run.decision) == 2
    assert ReasonCode.SPARES_EXHAUSTED in [r.code for r in run.decision.policies["a"].reasons]


def test_a_policy_without_fleets_is_decided_too() -> None:
    run = Run([policy(fleets=())], [fleet()])
    run.hold({"a": load(30)}, {"spares": view({}, spare=3)}, 1.0)
    assert dict(run.decision.policies["a"].wanted) == {}


def test_a_fleet_that_nobody_described_gives_nothing() -> None:
    run = Run([policy(fleets=(("elsewhere", 8),))], [fleet()])
    run.hold({"a": load(30)}, {"spares": view({}, spare=3)}, 1.0)
    assert served(run.decision, where="elsewhere") == 0
