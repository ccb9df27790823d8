"""What the clock says of a whole set: floors by schedule, and fleets that are frozen, in the time of the law.

Working out a schedule's next moment takes a fraction of a millisecond, and a set may have hundreds; so each answer is
kept until it may change. A clock that was set back is noticed, and asked again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from scaler.core.model import Floor
from scaler.policy.fleet import Fleet
from scaler.policy.scaling_policy import ScalingPolicy
from scaler.policy.schedules import SeatFloor, ServingFloor, floor_at
from warmpool.seats import FleetName, PolicyName

_SAME_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocked:
    """What the clock says at one moment.

    Attributes:
        serving_floors: per policy with schedules, residents at least.
        seat_floors: per fleet with schedules, seats at least.
        frozen: per fleet that is frozen, the time of the law's clock until which.
    """

    serving_floors: Mapping[PolicyName, Floor]
    seat_floors: Mapping[FleetName, Floor]
    frozen: Mapping[FleetName, float]


class Calendar:
    """The schedules and freezes of a set.

    Args:
        fleets: the fleets.
        policies: the policies.
    """

    def __init__(self, fleets: Sequence[Fleet] = (), policies: Sequence[ScalingPolicy] = ()) -> None:
        self._serving = {
            PolicyName(policy.metadata.name): _Window(policy.spec.schedules)
            for policy in policies
            if policy.spec.schedules
        }
        self._seats = {
            FleetName(fleet.metadata.name): _Window(fleet.spec.schedules)
            for fleet in fleets
            if fleet.spec.schedules
        }
        self._frozen = {
            FleetName(fleet.metadata.name): (fleet.spec.frozen.ends_at.timestamp(), _Moment())
            for fleet in fleets
            if fleet.spec.frozen is not None
        }
        self._fleets = [*dict.fromkeys([*self._seats, *self._frozen])]

    def at(
        self,
        wall: float,
        now: float,
        policies: Iterable[PolicyName] | None = None,
        fleets: Iterable[FleetName] | None = None,
    ) -> Clocked:
        """Return what the clock says.

        Args:
            wall: Unix time.
            now: the same moment on the law's clock.
            policies: the policies that are asked of; None for all.
            fleets: the fleets that are asked of; None for all.
        """
        asked = self._fleets if fleets is None else list(fleets)
        return Clocked(
            serving_floors={
                name: self._serving[name].at(wall, now)
                for name in (self._serving if policies is None else policies)
                if name in self._serving
            },
            seat_floors={name: self._seats[name].at(wall, now) for name in asked if name in self._seats},
            frozen={
                name: self._frozen[name][1].told(now + self._frozen[name][0] - wall)
                for name in asked
                if name in self._frozen and wall < self._frozen[name][0]
            },
        )


class _Moment:
    """A moment on the law's clock, told the same way until it really moves.

    Two clocks are read at each look, and what they differ by wobbles in the last digits; ticks that are otherwise equal
    shall look equal in the ledger.
    """

    def __init__(self) -> None:
        self._told: float | None = None

    def told(self, moment: float) -> float:
        if self._told is None or abs(moment - self._told) >= _SAME_SECONDS:
            self._told = moment
        return self._told


class _Window:
    """The schedules of one policy or fleet, with their last answer."""

    def __init__(self, schedules: Sequence[SeatFloor | ServingFloor]) -> None:
        self._schedules = schedules
        self._asked = self._changes = 0.0
        self._value, self._schedule = 0, ""
        self._moment = _Moment()

    def at(self, wall: float, now: float) -> Floor:
        if not self._asked <= wall < self._changes:
            said = floor_at(self._schedules, datetime.fromtimestamp(wall, UTC))
            self._value, self._schedule, self._asked = said.value, said.schedule, wall
            self._changes = wall if said.changes_at is None else said.changes_at.timestamp()
        return Floor(
            value=self._value,
            schedule=self._schedule,
            changes_at=self._moment.told(now + self._changes - wall),
        )
