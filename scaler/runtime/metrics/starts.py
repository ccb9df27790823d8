"""What is counted of residents' starts: their phases, how their weights came, what their first request took."""

from collections.abc import Collection, Iterator
from typing import Final

from prometheus_client.core import Metric

from scaler.runtime.metrics import catalogue
from scaler.runtime.metrics.tallies import Count, Distribution
from warmpool.healing import Cause, Found
from warmpool.metric_families import RowMetric
from warmpool.seats import FleetName, PolicyName, Resident, Seat
from warmpool.timeline import PHASES, Phase, start_timeline

FAMILIES: Final = (
    *(catalogue.STARTUP_PHASE, catalogue.WEIGHT_LOAD_DURATION, catalogue.WEIGHT_LOAD_RATE),
    *(catalogue.FIRST_REQUEST_DURATION, catalogue.ENGINE_CONTEXTS, catalogue.COMPILE_CACHE),
    *(catalogue.AILING, catalogue.CRASH_LOOPS, catalogue.HELD_BACK),
)


class StartMetrics:
    """Counts starts, per policy."""

    def __init__(self) -> None:
        self._phases = Distribution(catalogue.STARTUP_PHASE)
        self._loads = Distribution(catalogue.WEIGHT_LOAD_DURATION)
        self._rates = Distribution(catalogue.WEIGHT_LOAD_RATE)
        self._first = Distribution(catalogue.FIRST_REQUEST_DURATION)
        self._contexts = Count(catalogue.ENGINE_CONTEXTS)
        self._cache = Count(catalogue.COMPILE_CACHE)
        self._found: dict[FleetName, Found] = {}

    def started(self, seat: Seat, resident: Resident) -> None:
        """Count a completed start."""
        policy, start = resident.policy, resident.start
        if start is None:
            return
        for phase, seconds in phases_of(seat, resident).items():
            self._phases.observe(policy, seat.fleet, phase, value=seconds)
        self._contexts.add(policy, "New")
        if start.weights is not None:
            tier = start.weights.listed_tier
            self._loads.observe(policy, tier, value=start.weights.seconds)
            if start.weights.rate is not None:
                self._rates.observe(policy, tier, value=start.weights.rate)
        if start.first_request_seconds is not None:
            self._first.observe(policy, value=start.first_request_seconds)
        if start.compile_cache is not None:
            self._cache.add(policy, "Hit", by=start.compile_cache.hits)
            self._cache.add(policy, "Miss", by=start.compile_cache.misses)

    def captured(self, seat: Seat, resident: Resident, seconds: float) -> None:
        """Count graphs that were captured once a start was over."""
        self._phases.observe(resident.policy, seat.fleet, str(Phase.LATE_CAPTURE), value=seconds)

    def promoted(self, policy: PolicyName) -> None:
        """Count a resident that came to serve with the context that it had."""
        self._contexts.add(policy, "Reused")

    def healed(self, fleet: FleetName, found: Found) -> None:
        """Note which of a fleet's seats don't start their engines as they should."""
        self._found[fleet] = found

    def keep(self, policies: Collection[str], fleets: Collection[str]) -> None:
        """Forget every policy and every fleet but these."""
        for each in self._distributions:
            each.keep(policies)
        for count in (self._contexts, self._cache):
            count.keep(policies)
        self._found = {fleet: found for fleet, found in self._found.items() if fleet in fleets}

    def metrics(self, policies: Collection[str], fleets: Collection[FleetName]) -> Iterator[Metric]:
        """Return what was counted of these policies and fleets."""
        for each in self._distributions:
            yield each.metric(policies)
        for count in (self._contexts, self._cache):
            yield count.metric(policies)
        found = [(fleet, self._found.get(fleet, Found())) for fleet in fleets]
        yield RowMetric(catalogue.AILING, [((fleet,), float(len(each.ailing))) for fleet, each in found])
        yield RowMetric(
            catalogue.CRASH_LOOPS, [((fleet,), float(_crash_loops(each))) for fleet, each in found]
        )
        yield RowMetric(
            catalogue.HELD_BACK, [((fleet,), float(bool(each.held_back))) for fleet, each in found]
        )

    @property
    def _distributions(self) -> tuple[Distribution, ...]:
        return self._phases, self._loads, self._rates, self._first


def _crash_loops(found: Found) -> int:
    return sum(cause in {Cause.CRASH_LOOP, Cause.CANNOT_START} for cause in found.causes.values())


def phases_of(seat: Seat, resident: Resident) -> dict[str, float]:
    """Return the seconds of a completed start's phases: from the pod's creation on, where it is the first one on its seat.

    Phases of a newer agent count as `other`. PURE.
    """
    start, told = resident.start, resident.phases
    if start is not None:
        drawn = start_timeline(seat.stamps, start.at, told, resident.restarts)
        told = {each.phase: each.seconds for each in drawn.spans}
    found: dict[str, float] = {}
    for phase, seconds in told.items():
        name = phase if phase in PHASES else Phase.OTHER
        found[str(name)] = found.get(str(name), 0.0) + seconds
    return found
