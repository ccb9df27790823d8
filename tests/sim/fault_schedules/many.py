"""Run schedules of faults without pytest, spread over processes: `python -m tests.sim.fault_schedules 0:1000 --jobs 16`.

Prints a line for each seed that failed, a summary at the end, and exits with 1 if any has. What a failed one tells goes into a file of
its own in `--told`. With `--sockets` the schedules are those over real sockets and processes, each on machines of its own.
"""

import argparse
import asyncio
import logging
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import structlog

from tests.integration.kube import test_fault_schedules as over_sockets
from tests.sim.fault_schedules.running import run_schedule

VIRTUAL_SECONDS, SOCKETS_SECONDS = 300, 600
"""How long one schedule may take: what hangs has failed."""
_TOLD_EVERY_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One seed's run.

    Attributes:
        seed: which.
        failure: what was not as it must be, in one line; empty if nothing.
        told: all that is known of it.
        processor: seconds of processor that it took, with the processes that it has ended.
        wall: seconds that it took.
    """

    seed: int
    failure: str
    told: str
    processor: float
    wall: float


def in_virtual_time(seed: int) -> str:
    """Run a schedule in virtual time; return what was not as it must be, and all that happened."""
    outcome = run_schedule(seed)
    return f"{outcome.failure}\n\n{outcome}" if outcome.failure else ""


def in_real_time(seed: int) -> str:
    """Run a schedule over sockets and processes, as `in_virtual_time`."""
    with tempfile.TemporaryDirectory(prefix="faults-") as directory:
        asyncio.run(over_sockets.run_schedules(Path(directory), range(seed, seed + 1)))
    return ""


def _quietly() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _ran(run: Callable[[int], str], seconds: int, seed: int) -> Ran:
    began, before = time.monotonic(), _processor()
    signal.signal(signal.SIGALRM, partial(_give_up, seconds))
    signal.alarm(seconds)
    try:
        told = run(seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, this seed has failed and the others go on
        told = f"{_first(error)}\n\n{''.join(traceback.format_exception(error))}"
    finally:
        signal.alarm(0)
    return Ran(
        seed=seed,
        failure=told.partition("\n")[0],
        told=told,
        processor=_processor() - before,
        wall=time.monotonic() - began,
    )


def _give_up(seconds: int, _number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"has not ended within {seconds} s")


def _first(error: BaseException) -> str:
    """Say what went wrong in one line; of a group, its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    return range(int(first), int(end)) if colon else range(int(first), int(first) + 1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_all(seeds: range, jobs: int, told: Path | None, *, sockets: bool) -> int:
    """Run seeds, tell of those that failed, and return how many did."""
    run, seconds = (in_real_time, SOCKETS_SECONDS) if sockets else (in_virtual_time, VIRTUAL_SECONDS)
    began = said = time.monotonic()
    done: list[Ran] = []
    # Processes that end and are made anew, so that none grows; concurrent.futures hangs there (python/cpython#115634).
    with multiprocessing.get_context("spawn").Pool(jobs, _quietly, maxtasksperchild=20) as pool:
        for ran in pool.imap_unordered(partial(_ran, run, seconds), seeds):
            done.append(ran)
            if ran.failure:
                _say(f"seed {ran.seed}: {ran.failure}")
                if told is not None:
                    (told / f"seed-{ran.seed}.txt").write_text(ran.told, "utf-8")
            if time.monotonic() - said > _TOLD_EVERY_SECONDS:
                said = time.monotonic()
                _say(f"... {len(done)} of {len(seeds)} seeds after {said - began:.0f} s")
    failed = sorted(ran.seed for ran in done if ran.failure)
    processor = sorted(ran.processor for ran in done)
    _say(
        f"{len(done)} seeds, {len(failed)} failed{f': {failed}' if failed else ''}; {time.monotonic() - began:.0f} s with {jobs} jobs; "
        f"processor seconds a seed: median {processor[len(processor) // 2]:.1f}, most {processor[-1]:.1f}, in all {sum(processor):.0f}"
    )
    return len(failed)


def main() -> None:
    """Do what the command line says."""
    options = argparse.ArgumentParser(prog="python -m tests.sim.fault_schedules", description=__doc__)
    options.add_argument("seeds", type=_seeds, help="N for one, N:M for N up to and without M")
    options.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options.add_argument("--told", type=Path, help="directory for what failed seeds tell")
    options.add_argument("--sockets", action="store_true", help="over real sockets and processes")
    given = options.parse_args()
    if given.told is not None:
        given.told.mkdir(parents=True, exist_ok=True)
    sys.exit(1 if run_all(given.seeds, given.jobs, given.told, sockets=given.sockets) else 0)
