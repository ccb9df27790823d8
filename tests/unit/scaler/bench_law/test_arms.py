"""The arms have in common what makes them comparable."""

from dataclasses import replace
from functools import cache

import pytest

from scaler.runtime.bench.law.arms import ALONE, ARMS
from scaler.runtime.bench.law.arrivals import synthetic
from scaler.runtime.bench.law.case import Case, Model
from scaler.runtime.bench.law.run import Knobs, Outcome
from warmpool.seats import PolicyName


def tooth(at: float) -> float:
    return 2.0 + 30.0 * (at % 60.0 < 10.0)


def case(models: int = 2, **more: object) -> Case:
    trace = synthetic("tooth", tooth, 120.0, 1600, 10)
    group = [
        Model(name=PolicyName(f"m{number}"), trace=trace.shifted(30.0 * number)) for number in range(models)
    ]
    return replace(Case(groups=[group], start=20.0), **more)  # type: ignore[arg-type]


PLENTY = Knobs(least=1, spares=6)


def run(arm: str, knobs: Knobs = PLENTY, of: Case | None = None) -> Outcome:
    return ARMS[arm](of or case(), knobs)


@cache
def ran(arm: str) -> Outcome:
    """What came of the plain case, run once for all who look at it."""
    return run(arm)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_serves_every_request_once(arm: str) -> None:
    assert ran(arm).requests == sum(len(model.trace.arrivals) for model in case().models)


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_run_twice_gives_the_same(arm: str) -> None:
    assert run(arm) == ran(arm)


@pytest.mark.parametrize("arm", ["hpa", "kpa", "serving", "paused"])
def test_a_fleet_that_never_changes_holds_its_seats_all_the_time(arm: str) -> None:
    fixed = Knobs(least=3, most=3, spares=3)
    assert run(arm, fixed).held == pytest.approx(2 * 3 * case().seconds)


def test_a_shared_fleet_that_never_changes_holds_its_seats_all_the_time() -> None:
    assert run("shared", Knobs(spares=4, most=4)).held == pytest.approx(4 * case().seconds)


def test_with_enough_in_rotation_nobody_waits() -> None:
    for arm in ("hpa", "kpa"):
        assert run(arm, Knobs(least=8)).late == 0


@pytest.mark.parametrize("arm", ["serving", "paused", "shared", "bridge", "lending"])
def test_with_enough_spares_nobody_is_late(arm: str) -> None:
    outcome = ran(arm)
    assert outcome.late == 0
    assert outcome.worst == 0.0


def test_one_model_with_a_fleet_to_itself_is_the_same_shared_or_not() -> None:
    one = case(1)
    assert run("shared", PLENTY, one) == run("paused", PLENTY, one)


@pytest.mark.parametrize("arm", ALONE)
def test_what_is_not_shared_does_not_depend_on_a_neighbour_s_size(arm: str) -> None:
    wide = case()
    big = replace(wide, groups=[[replace(model, gigabytes=60.0) for model in wide.models]])
    assert run(arm, PLENTY, big) == ran(arm)


def test_neighbours_that_leave_little_memory_cost_slots() -> None:
    wide = case()
    big = replace(wide, groups=[[replace(model, gigabytes=68.9) for model in wide.models]])
    few = Knobs(spares=4, most=4)
    assert wide.slots(wide.models[0], [16.0]) == 32
    assert big.slots(big.models[0], [68.9]) < 8
    assert run("shared", few, big).late > run("shared", few, wide).late


def test_batch_work_gets_the_spares_and_delays_nobody() -> None:
    lent = run("lending", replace(PLENTY, stable=10.0, demote=3.0))
    assert lent.gpu_seconds["Lent"] > 100.0
    assert lent.late == 0


def test_slower_starts_never_make_fewer_late() -> None:
    rate = synthetic("once", lambda at: 40.0 if 400.0 <= at < 420.0 else 0.1, 700.0, 1600, 10)
    models = [Model(name=PolicyName("m"), trace=rate)]
    knobs = Knobs(least=1)
    quick, slow = (run("hpa", knobs, Case(groups=[models], start=start)) for start in (5.0, 60.0))
    assert quick.late <= slow.late
    assert slow.late > 0
