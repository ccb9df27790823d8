"""In how many seconds one more resident of a policy will serve, as gateways tell their clients. PURE: time is an argument.

It comes from what the law has decided and what starts and wakes have taken here: a resident that is being promoted, or that the
decision gives a seat, serves once it has woken; a seat that starts has what is left of the usual start before it, and then a wake.
Where nothing of this was ever measured nobody knows, and nothing is said; nor is it of a wake that takes longer than usual, as it
does while a neighbour drains. The time is told in coarse steps, rounded up, for each step is a message to every gateway.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from scaler.core.model import FleetView, PolicyDecision, Supply
from scaler.runtime.controller import Tick
from warmpool.seats import FleetName, PolicyName, SeatValue

STEPS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0)
"""What is told, in seconds: each at most two and a half times the one before. What takes longer isn't foretold."""


class _Wanted(NamedTuple):
    """Since when one more resident of a policy has been given a seat of a fleet, and how many served there then."""

    at: float
    serving: int


class Coming:
    """What is on its way, as of the last ticks. What was foretold holds until it is over, or something comes sooner."""

    def __init__(self) -> None:
        self._at: dict[PolicyName, float] = {}
        self._wanted: dict[PolicyName, dict[FleetName, _Wanted]] = {}

    def take(self, tick: Tick) -> None:
        """Look at what a tick looked at."""
        first: dict[FleetName, float | None] = {}
        for spec in tick.looked.policies:
            decision = tick.decision.policies.get(spec.name)
            seconds = None if decision is None else min(self._waits(decision, tick, first), default=None)
            if seconds is None:
                self._at.pop(spec.name, None)
                continue
            at, before = tick.at + seconds, self._at.get(spec.name, 0.0)
            self._at[spec.name] = before if tick.at < before < at else at

    def steps(self, wall: float) -> Mapping[PolicyName, float]:
        """Return what gateways are to be told now, in seconds, of the policies of which something is known; what is overdue isn't.

        Args:
            wall: Unix time.
        """
        places = {name: bisect_left(STEPS, at - wall) for name, at in self._at.items() if at >= wall}
        return {name: STEPS[place] for name, place in places.items() if place < len(STEPS)}

    def _waits(
        self, decision: PolicyDecision, tick: Tick, first: dict[FleetName, float | None]
    ) -> Iterator[float]:
        """Yield the seconds until each fleet that shall have one more resident of a policy has it, as far as anybody knows."""
        before = self._wanted.pop(decision.policy, {})
        for fleet, wanted in decision.wanted.items():
            view = tick.snapshot.fleets.get(fleet)
            supply = None if view is None else view.supply.get(decision.policy)
            if view is None or supply is None or wanted <= supply.serving:
                continue
            if supply.promoting or decision.serving.get(fleet, 0) > supply.serving:
                since = before.get(fleet)
                if since is None or since.serving != supply.serving:
                    since = _Wanted(tick.at, supply.serving)
                self._wanted.setdefault(decision.policy, {})[fleet] = since
                wake = _wake(supply)
                left = since.at + max(wake, STEPS[0]) - tick.at
                if wake > 0.0 and left > 0.0:
                    yield left
            elif view.starting and view.start_seconds > 0.0:
                began = _began(fleet, view, tick, first)
                if began is not None:
                    yield began + view.start_seconds - tick.at + supply.paused_wake


def _wake(supply: Supply) -> float:
    """Return how long the next promotion takes; 0 while none was ever seen."""
    paused = supply.promotable > supply.parked or supply.switchable > 0
    return (supply.paused_wake if paused else 0.0) or supply.parked_wake or supply.paused_wake


def _began(
    fleet: FleetName, view: FleetView, tick: Tick, first: dict[FleetName, float | None]
) -> float | None:
    """Return when the first seat began to start that isn't late yet; None if all are: then nobody knows."""
    if fleet not in first:
        times = [
            seat.created_at
            for seat in tick.stock.get(fleet, ())
            if seat.value is SeatValue.STARTING and tick.at - seat.created_at < view.start_seconds
        ]
        first[fleet] = min(times, default=None)
    return first[fleet]
