"""What the loop, the actuator and the API tell, on one registry that is passed in.

Telling costs little: a tick leaves itself behind for the next scrape and adds a handful of numbers; all else is worked
out when somebody scrapes.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from scaler.core.model import FleetView
from scaler.runtime.metrics import catalogue, last_tick, starts
from scaler.runtime.metrics.last_tick import LastTick, Seen
from scaler.runtime.metrics.reloads import CONTROLLER, ReloadMetrics
from scaler.runtime.metrics.signals import SignalMetrics
from scaler.runtime.metrics.starts import StartMetrics
from scaler.runtime.metrics.tallies import Count, Distribution, HeldTime
from scaler.version import VERSION
from warmpool.healing import Found
from warmpool.metric_families import counter, empty, gauge, histogram
from warmpool.seats import FleetName, Operation, PolicyName, Resident, Seat

if TYPE_CHECKING:  # these import this package
    from scaler.runtime.controller import PolicyTable, Tick
    from scaler.runtime.events import PromotionRecord


class ControllerMetrics:
    """Everything that a controller counts.

    It watches an `EventLog` for what became of promotions, demotions and seats.

    Args:
        registry: where the families are registered.

    Attributes:
        reloads: what became of attempts to reload policies.
        signals: what is counted of each signal.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        build = gauge(catalogue.BUILD_INFO, registry)
        build.labels(VERSION, platform.python_version()).set(1)
        self._leader = gauge(catalogue.LEADER, registry)
        self._tick_seconds = histogram(catalogue.TICK_DURATION, registry)
        self._last_tick_at = gauge(catalogue.TICK_LAST_SUCCESS, registry)
        self._wakeups = counter(catalogue.TICK_WAKEUPS, registry)
        self._samples = counter(catalogue.SIGNAL_SAMPLES, registry)
        self._reports = counter(catalogue.AGENT_REPORTS, registry)
        for cause in catalogue.CAUSES:
            self._wakeups.labels(cause)
        for outcome in catalogue.INTAKE_OUTCOMES:
            self._reports.labels(outcome)
        for way in catalogue.SAMPLE_WAYS:
            for outcome in catalogue.SAMPLE_OUTCOMES:
                self._samples.labels(way, outcome)
        self.reloads = ReloadMetrics(registry, CONTROLLER)
        self._owned = _Owned()
        registry.register(self._owned)
        self.signals = SignalMetrics(registry)

    # -------------------------------------------------------------- told by the controller

    def looked(self, at: float, seconds: float) -> None:
        """Note a tick, whoever leads: Unix time of it, and how long it took."""
        self._tick_seconds.observe(seconds)
        self._last_tick_at.set(at)

    def ticked(self, tick: "Tick", table: "PolicyTable") -> None:
        """Take over what a tick of the leader saw and decided for the policies and fleets of `table`."""
        self._owned.take(tick, table)

    def woke(self, causes: Mapping[str, int]) -> None:
        """Count what has woken the loop, with how often."""
        for cause, count in causes.items():
            self._wakeups.labels(cause if cause in catalogue.CAUSES else "other").inc(count)

    def led(self, *, leading: bool) -> None:
        """Note whether this process leads. While it stands by, what policies and fleets have is the leader's to show."""
        self._leader.set(leading)
        if not leading:
            self._owned.hide()

    # -------------------------------------------------------------- told by the API

    def sampled(self, way: str, outcome: str) -> None:
        """Count a pushed sample; way and outcome are two of the catalogue's."""
        self._samples.labels(way, outcome).inc()

    def reported(self, *, accepted: bool) -> None:
        """Count an agent's report."""
        self._reports.labels("Accepted" if accepted else "Rejected").inc()

    # -------------------------------------------------------------- told by the event log

    def promoted(self, record: "PromotionRecord") -> None:
        """See `Watcher.promoted`."""
        self._owned.promoted(record)

    def answered(self, record: "PromotionRecord", at: float, *, waited: bool) -> None:
        """See `Watcher.answered`; without a request that waited there is nothing to measure."""
        if waited:
            self._owned.answered(record, at)

    def demoted(self, policy: PolicyName, outcome: str) -> None:
        """See `Watcher.demoted`."""
        self._owned.demotions.add(policy, outcome)

    def moved(self, policy: PolicyName, operation: Operation, outcome: str) -> None:
        """See `Watcher.moved`."""
        self._owned.moves.add(policy, operation, outcome)

    def replaced(self, fleet: FleetName) -> None:
        """See `Watcher.replaced`."""
        self._owned.replacements.add(fleet)

    def rested(self, fleet: FleetName) -> None:
        """See `Watcher.rested`."""
        self._owned.rests.add(fleet)

    def restarted(self, policy: PolicyName, times: int) -> None:
        """See `Watcher.restarted`."""
        self._owned.restarts.add(policy, by=times)

    def healed(self, fleet: FleetName, found: Found) -> None:
        """See `Watcher.healed`."""
        self._owned.starts.healed(fleet, found)

    def started(self, seat: Seat, resident: Resident) -> None:
        """See `Watcher.started`."""
        self._owned.starts.started(seat, resident)

    def captured(self, seat: Seat, resident: Resident, seconds: float) -> None:
        """See `Watcher.captured`."""
        self._owned.starts.captured(seat, resident, seconds)


class _Owned(Collector):
    """What belongs to a policy or a fleet: shown from the first tick that knows its owner until one that doesn't."""

    def __init__(self) -> None:
        self.decisions = Count(catalogue.DECISIONS)
        self.promotions = Count(catalogue.PROMOTIONS_TOTAL)
        self.demotions = Count(catalogue.DEMOTIONS_TOTAL)
        self.moves = Count(catalogue.MOVES_TOTAL)
        self.restarts = Count(catalogue.RESIDENT_RESTARTS)
        self.replacements = Count(catalogue.REPLACEMENTS)
        self.rests = Count(catalogue.SEAT_RESTS)
        self._stages = Distribution(catalogue.PROMOTION_DURATION)
        self._to_rotation = Distribution(catalogue.PROMOTION_TO_ROTATION)
        self._to_first_token = Distribution(catalogue.PROMOTION_TO_FIRST_TOKEN)
        self.starts = StartMetrics()
        self._held = HeldTime(catalogue.SEAT_SECONDS, catalogue.GPU_SECONDS)
        self._gauges = LastTick()
        self._views: dict[FleetName, tuple[float, FleetView]] = {}
        self._seen: Seen | None = None

    @property
    def _by_policy(self) -> tuple[Count, ...]:
        return self.decisions, self.promotions, self.demotions, self.moves, self.restarts

    def take(self, tick: "Tick", table: "PolicyTable") -> None:
        """Take a tick over."""
        before = self._seen
        self._seen = Seen(tick=tick, table=table)
        if before is None or before.table is not table:
            self._forget_others(table)
        for policy in tick.looked.policies:
            self.decisions.add(policy.name, tick.decision.policies[policy.name].mode)
        now = tick.decision.at
        for fleet in tick.looked.fleets:
            known = self._views.get(fleet.name)
            if known is not None:
                self._held.elapse(fleet.name, _counts(known[1]), now - known[0])
            self._views[fleet.name] = (now, tick.snapshot.fleets[fleet.name])

    def hide(self) -> None:
        """Show nothing until the next tick; what was counted stays, and the time until then is nobody's."""
        self._seen = None
        self._views.clear()

    def _forget_others(self, table: "PolicyTable") -> None:
        policies = {policy.name for policy in table.policies}
        fleets = {fleet.name for fleet in table.fleets}
        for count in self._by_policy:
            count.keep(policies)
        for distribution in (self._stages, self._to_rotation, self._to_first_token):
            distribution.keep(policies)
        self.starts.keep(policies, fleets)
        for by_fleet in (self.replacements, self.rests, self._held):
            by_fleet.keep(fleets)
        self._views = {fleet: view for fleet, view in self._views.items() if fleet in fleets}

    def promoted(self, record: "PromotionRecord") -> None:
        """Count a promotion; one that failed has no stages to compare."""
        outcome = "Failed" if record.error else "Promoted"
        self.promotions.add(record.policy, record.operation, outcome)
        if record.error:
            return
        self.starts.promoted(record.policy)
        ends = (
            record.trigger.decision,
            record.claimed,
            record.resumed,
            record.canary,
            record.rotation,
        )
        began = record.trigger.sample
        for stage, ended in zip(catalogue.STAGES, ends, strict=False):
            self._stages.observe(record.policy, record.operation, stage, value=max(0.0, ended - began))
            began = ended
        self._to_rotation.observe(record.policy, value=max(0.0, record.rotation - record.trigger.sample))

    def answered(self, record: "PromotionRecord", at: float) -> None:
        """Measure how long the first request waited for its first content."""
        stage = catalogue.STAGES[-1]
        self._stages.observe(record.policy, record.operation, stage, value=max(0.0, at - record.rotation))
        self._to_first_token.observe(record.policy, value=max(0.0, at - record.trigger.sample))

    # -------------------------------------------------------------- Collector

    def describe(self) -> Iterable[Metric]:
        """Return every family, so that no other may take its name."""
        return [empty(family) for family in _OWNED]

    def collect(self) -> Iterator[Metric]:
        """Return everything of the last tick's policies and fleets; nothing before the first tick."""
        seen = self._seen
        if seen is None:
            return
        policies = [policy.name for policy in seen.table.policies]
        fleets = [fleet.name for fleet in seen.table.fleets]
        yield from self._gauges.metrics(seen)
        for count in self._by_policy:
            yield count.metric(policies)
        for by_fleet in (self.replacements, self.rests):
            yield by_fleet.metric(fleets)
        for distribution in (self._stages, self._to_rotation, self._to_first_token):
            yield distribution.metric(policies)
        yield from self.starts.metrics(policies, fleets)
        yield self._held.metric(fleets)
        census = self._gauges.census
        yield self._held.gpu_metric(census.gpus, fleets, census.take(seen.tick.seats))


_OWNED = (
    *last_tick.FAMILIES,
    *(
        catalogue.DECISIONS,
        catalogue.PROMOTIONS_TOTAL,
        catalogue.DEMOTIONS_TOTAL,
        catalogue.MOVES_TOTAL,
        catalogue.RESIDENT_RESTARTS,
    ),
    *(catalogue.REPLACEMENTS, catalogue.SEAT_RESTS),
    *(catalogue.PROMOTION_DURATION, catalogue.PROMOTION_TO_ROTATION, catalogue.PROMOTION_TO_FIRST_TOKEN),
    *starts.FAMILIES,
    *(catalogue.SEAT_SECONDS, catalogue.GPU_SECONDS),
)

_counts = attrgetter(*(value.lower() for value in catalogue.COUNTED_VALUES))
"""A fleet view's seats, in the order of the label's values; its fields are named for them."""
