"""The controller's own numbers, on one registry that is passed in. Labels are bounded: fleets, policies, outcomes."""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from warmpool.seats import SeatValue, seat_value

if TYPE_CHECKING:  # the controller imports this module
    from scaler.runtime.controller import Tick

_TICK_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class ControllerMetrics:
    """What the loop counts.

    Args:
        registry: where the series are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ticks = Histogram(
            "emberpool_tick_duration_seconds",
            "One tick from snapshot to begun actions.",
            buckets=_TICK_BUCKETS,
            registry=registry,
        )
        self._last = Gauge(
            "emberpool_tick_last_success_timestamp_seconds", "When the loop last ticked.", registry=registry
        )
        self._wakeups = Counter("emberpool_tick_wakeups", "What woke the loop.", ["cause"], registry=registry)
        self._demand = Gauge(
            "emberpool_demand_requests", "Demand, counted once.", ["policy"], registry=registry
        )
        self._capacity = Gauge(
            "emberpool_capacity_requests",
            "Requests that serving and promoting residents hold.",
            ["policy"],
            registry=registry,
        )
        self._burst = Gauge(
            "emberpool_policy_mode", "1 for the mode in force.", ["policy", "mode"], registry=registry
        )
        self._serving = Gauge(
            "emberpool_serving_residents",
            "Residents that shall serve.",
            ["policy", "fleet"],
            registry=registry,
        )
        self._total = Gauge(
            "emberpool_fleet_total_seats", "Seats the fleet is asked for.", ["fleet"], registry=registry
        )
        self._seats = Gauge(
            "emberpool_seats", "Seats by what they are worth.", ["fleet", "value"], registry=registry
        )

    def ticked(self, tick: "Tick", seconds: float) -> None:
        """Take over what one tick saw and decided."""
        self._ticks.observe(seconds)
        self._last.set(tick.at)
        for cause, count in tick.causes.items():
            self._wakeups.labels(cause).inc(count)
        for name, policy in tick.decision.policies.items():
            self._capacity.labels(name).set(policy.capacity)
            if policy.demand is not None:
                self._demand.labels(name).set(policy.demand)
            for mode in type(policy.mode):
                self._burst.labels(name, str(mode)).set(mode is policy.mode)
            for fleet, count in policy.serving.items():
                self._serving.labels(name, fleet).set(count)
        for fleet, decided in tick.decision.fleets.items():
            self._total.labels(fleet).set(decided.total)
            values = [seat_value(seat) for seat in tick.seats if seat.fleet == fleet]
            for value in SeatValue:
                self._seats.labels(fleet, str(value)).set(values.count(value))
