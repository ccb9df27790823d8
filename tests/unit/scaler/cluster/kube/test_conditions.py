"""What is said of fleets."""

from scaler.cluster.kube.conditions import Condition, Conditions, ConditionType
from warmpool.seats import FleetName

FLEET, OTHER = FleetName("spares"), FleetName("other")
DRIFT, MISSING = ConditionType.SIZE_DRIFTED, ConditionType.WORKLOAD_MISSING


def test_a_condition_is_as_old_as_the_fact_and_says_the_latest() -> None:
    now = [10.0]
    said = Conditions(lambda: now[0])
    assert said.set(FLEET, DRIFT, "4 instead of 3")
    now[0] = 20.0
    assert not said.set(FLEET, DRIFT, "4 instead of 3")
    assert said.set(FLEET, DRIFT, "5 instead of 3")
    assert said.all() == {FLEET: (Condition(type=DRIFT, message="5 instead of 3", since=10.0),)}


def test_what_is_so_no_more_is_not_said() -> None:
    said = Conditions(lambda: 10.0)
    assert not said.set(FLEET, DRIFT, "")
    said.set(FLEET, DRIFT, "so")
    assert said.set(FLEET, DRIFT, "")
    assert said.all() == {}
    assert said.get(FLEET, DRIFT) is None


def test_fleets_that_go_take_their_conditions_along() -> None:
    said = Conditions(lambda: 10.0)
    said.set(FLEET, DRIFT, "so")
    said.set(OTHER, MISSING, "so")
    said.forget({OTHER: None})
    assert list(said.all()) == [OTHER]
