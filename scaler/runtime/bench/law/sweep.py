"""Runs every arm of every scenario over its knobs, on as many processes as there are to spare.

A run that two scenarios have in common is made once: where no GPU is shared, a model's size changes nothing as long as
its slots are the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from scaler.runtime.bench.law.arms import ALONE, ARMS
from scaler.runtime.bench.law.case import Case
from scaler.runtime.bench.law.grids import PLAIN
from scaler.runtime.bench.law.run import Knobs, Outcome
from scaler.runtime.bench.law.scenarios import case_of, scenarios


class Job(NamedTuple):
    """One run."""

    scenario: str
    arm: str
    knobs: Knobs
    quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What an arm came to with some knobs."""

    arm: str
    knobs: Knobs
    outcome: Outcome


Points = Mapping[str, Sequence[Point]]
"""Per scenario, what was found."""


def sweep(names: Sequence[str], *, quick: bool, jobs: int, done: Callable[[int, int], None]) -> Points:
    """Run everything.

    Args:
        names: the scenarios.
        quick: whether they are the quick ones.
        jobs: processes; with one, everything runs in this one.
        done: called with how many runs are done and how many there are.
    """
    wanted = [job for name in names for job in _jobs(name, quick=quick)]
    unique: dict[object, Job] = {}
    for job in wanted:
        unique.setdefault(_key(job), job)
    outcomes: dict[object, Outcome] = {}
    for key, outcome in zip(unique, _outcomes(list(unique.values()), jobs), strict=True):
        outcomes[key] = outcome
        done(len(outcomes), len(unique))
    found: dict[str, list[Point]] = {name: [] for name in names}
    for job in wanted:
        found[job.scenario].append(Point(arm=job.arm, knobs=job.knobs, outcome=outcomes[_key(job)]))
    return found


def _jobs(name: str, *, quick: bool) -> Iterator[Job]:
    for arm, grid in scenarios(quick=quick)[name].grids.items():
        for knobs in dict.fromkeys([PLAIN[arm], *grid]):
            yield Job(name, arm, knobs, quick)


def _outcomes(todo: Sequence[Job], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(run, todo)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, todo)


def run(job: Job) -> Outcome:
    """Make one run."""
    return ARMS[job.arm](case_of(job.scenario, quick=job.quick), job.knobs)


def _key(job: Job) -> object:
    case = case_of(job.scenario, quick=job.quick)
    common = (job.arm, job.knobs, case.start, case.objective, case.service, case.seconds, case.packed)
    if job.arm in ALONE:
        return (*common, tuple((model.trace.name, case.slots(model)) for model in case.models))
    return (*common, case.gpu, _groups(case))


def _groups(case: Case) -> tuple[tuple[tuple[str, float], ...], ...]:
    return tuple(tuple((m.trace.name, m.gigabytes) for m in group) for group in case.groups)
