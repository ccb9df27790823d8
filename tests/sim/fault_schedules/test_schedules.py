"""Random schedules of faults over two whole controllers: whatever fails, and however much of it at once, nothing is lost or done twice.

A seed is run alone by `EMBERPOOL_FAULT_SEED=7 pytest tests/sim/fault_schedules/test_schedules.py`, or by `-k seed7-`. `make test-long`
runs all, and `python -m tests.sim.fault_schedules 0:1000 --jobs 16` does so without pytest.
"""

import os

import pytest

from tests.sim.fault_schedules.running import run_schedule
from tests.sim.fault_schedules.schedules import schedule

ALL, SOME = 1000, 4
"""Schedules, and how many of them run each time."""
CHOSEN = os.environ.get("EMBERPOOL_FAULT_SEED", "")


def seeds() -> list[object]:
    if CHOSEN:
        return [pytest.param(int(CHOSEN), id=f"seed{CHOSEN}-")]
    every = range(ALL)
    return [pytest.param(n, id=f"seed{n}-", marks=() if n < SOME else pytest.mark.long) for n in every]


@pytest.mark.parametrize("seed", seeds())
def test_whatever_fails_nothing_is_lost_or_done_twice(seed: int) -> None:
    outcome = run_schedule(seed)
    assert not outcome.failure, f"{outcome.failure}\n\n{outcome}"


def test_a_schedule_follows_from_its_seed() -> None:
    assert schedule(1) == schedule(1) != schedule(2)
