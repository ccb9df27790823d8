"""CPU of the whole machine, of `emberpool local` with all that it started, and of the drill itself.

A drill whose engines starve each other measures the scheduler, not the product; so the share is printed, and the report
warns when the hold stages leave too little air.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from scaler.drill.figures import CpuFigures
from scaler.drill.schedule import StageWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSample:
    """CPU over the interval that ended at `at`, in percent of the whole machine (100: all cores busy).

    Attributes:
        at: seconds after the start of the load.
        seconds: length of the interval.
        machine: everything, other programs included.
        product: the child and all its descendants.
        drill: this process.
    """

    at: float
    seconds: float
    machine: float
    product: float
    drill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Processor time over an interval.

    Attributes:
        seconds: length of the interval.
        processor: processor seconds of the child, all its descendants and this process in it.
        others: what all other programs took meanwhile, in percent of the whole machine.
    """

    seconds: float
    processor: float
    others: float = 0.0


@dataclass(slots=True)
class ProcessTree:
    """A child process with everything that it ever started, as far as was seen.

    Descendants are remembered, because what a dead child leaves behind hangs under another parent.
    """

    root: psutil.Process
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    @classmethod
    def of(cls, pid: int) -> "ProcessTree":
        """Follow the process `pid`.

        Raises:
            psutil.NoSuchProcess: it is gone already.
        """
        root = psutil.Process(pid)
        return cls(root, {pid: root})

    def look(self) -> None:
        """Remember the descendants of the moment."""
        try:
            children = self.root.children(recursive=True)
        except psutil.NoSuchProcess:
            return
        for child in children:
            self.seen.setdefault(child.pid, child)

    def alive(self) -> list[psutil.Process]:
        """Every process of the tree that still runs; a reused pid is not mistaken for it, a zombie doesn't run."""
        return [process for process in self.seen.values() if _runs(process)]

    def cpu_seconds(self) -> dict[int, float]:
        """CPU time so far of each process that still runs, by pid."""
        times = {}
        for process in self.seen.values():
            try:
                used = process.cpu_times()
            except psutil.Error:
                continue
            times[process.pid] = used.user + used.system
        return times


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


class CpuMeter:
    """Takes samples of CPU between its calls."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._cores = psutil.cpu_count() or 1
        self._at = time.monotonic()
        self._machine = _machine_times()
        self._product = tree.cpu_seconds()
        self._drill = time.process_time()

    def sample(self, at: float) -> CpuSample:
        """Measure since the call before; `at` is the present on the clock of the load."""
        now, machine, drill = time.monotonic(), _machine_times(), time.process_time()
        self._tree.look()
        product = self._tree.cpu_seconds()
        seconds = max(now - self._at, 1e-6)
        # a process that is new since then used all its CPU time since then; one that ended takes its last bit with it
        used = sum(max(0.0, total - self._product.get(pid, 0.0)) for pid, total in product.items())
        sample = CpuSample(
            at=at,
            seconds=seconds,
            machine=_busy_percent(self._machine, machine),
            product=100 * used / seconds / self._cores,
            drill=100 * (drill - self._drill) / seconds / self._cores,
        )
        self._at, self._machine, self._product, self._drill = now, machine, product, drill
        return sample

    def spent(self) -> Spent:
        """Measure what product and drill took since the call before, of this or of `sample`."""
        sample = self.sample(0.0)
        percent = sample.product + sample.drill
        return Spent(
            seconds=sample.seconds,
            processor=percent / 100 * self._cores * sample.seconds,
            others=max(0.0, sample.machine - percent),
        )


def _machine_times() -> dict[str, float]:
    """Seconds that all cores spent so far, by kind; guests are left out, as they count as user already."""
    times: dict[str, float] = psutil.cpu_times()._asdict()
    return {kind: seconds for kind, seconds in times.items() if kind not in {"guest", "guest_nice"}}


def _busy_percent(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Share of all cores' time that was neither idle nor waiting for a disk."""
    spent = {kind: after[kind] - before[kind] for kind in after}
    total = sum(spent.values())
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return 100 * (1 - idle / total) if total > 0 else 0.0


def stage_cpu(samples: Sequence[CpuSample], plan: Sequence[StageWindow]) -> list[CpuFigures]:
    """Reduce samples to one row per stage; a sample belongs to the stage in which its interval's middle lies."""
    rows = []
    for window in plan:
        mine = [sample for sample in samples if window.start <= sample.at - sample.seconds / 2 < window.end]
        rows.append(
            CpuFigures(
                stage=window.stage.name,
                kind=window.stage.kind,
                mean_percent=_mean([(one.machine, one.seconds) for one in mine]),
                max_percent=round(max(one.machine for one in mine), 1) if mine else None,
                product_percent=_mean([(one.product, one.seconds) for one in mine]),
                drill_percent=_mean([(one.drill, one.seconds) for one in mine]),
            )
        )
    return rows


def _mean(weighted: Sequence[tuple[float, float]]) -> float | None:
    weight = sum(seconds for _, seconds in weighted)
    return round(sum(value * seconds for value, seconds in weighted) / weight, 1) if weight else None


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))
