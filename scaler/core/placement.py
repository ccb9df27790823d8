"""From capacity to seats: on which fleets a policy's residents belong, and where they are to be had at once.

A policy names its fleets in order, and what one seat of each holds for it. What the stable answer asks for belongs on
the earlier fleets, which grow for it at their own pace (`homes`). What these can't carry now is taken at once from the
seats that later fleets have (the bridge): that needs no rule of its own, it is what happens when seats are handed out
along the order (`scaler.core.allocate`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import add

from scaler.core.fitting import Fit
from scaler.core.model import Extent, FleetSpec, FleetView, Floor, PolicySpec, Supply
from scaler.core.values import frozen
from warmpool.seats import FleetName

COUNT_MAX = 1_000_000_000
"""Largest count that the law works with; larger ones are cut to it."""
_ROUNDING = 1e-9
"""Capacity that is no reason for one more seat: what float sums are off by."""


def count(number: int) -> int:
    """Return a count of seats as the law can use it: between 0 and `COUNT_MAX`."""
    if 0 <= number <= COUNT_MAX:
        return number
    return 0 if number < 0 else COUNT_MAX


def seats_for(capacity: float, target: int) -> int:
    """Return how many seats hold `capacity`, of which each holds `target`."""
    if not capacity > _ROUNDING:
        return 0
    return min(math.ceil(capacity / target - _ROUNDING), COUNT_MAX)


@dataclass(slots=True)
class Pool:
    """The seats of one fleet while they are handed out.

    Attributes:
        name: the fleet.
        max_seats: seats that it may have.
        usable: seats that can serve: serving, draining, spare, lent.
        left: those of them that are not handed out yet.
        unlent: seats that are never lent: the spares that people asked for.
        going: seats that are lent no more, because the fleet is to have fewer.
        displaced: those handed out that another policy has to leave first.
        start_seconds: seconds that its seats take to start; 0 while unknown.
        sleepers: some residents of its spare seats are parked, or not up.
        fit: who can have which of its seats, where these aren't all alike.
        users: policies that may serve on it.
    """

    name: FleetName
    max_seats: int
    usable: int
    left: int
    unlent: int = 0
    going: int = 0
    displaced: int = 0
    start_seconds: float = 0.0
    sleepers: bool = False
    fit: Fit | None = None
    users: int = 0

    @property
    def shared(self) -> bool:
        """Whether several policies may serve on it."""
        return self.users > 1


def pool_of(name: FleetName, spec: FleetSpec | None, view: FleetView | None, going: int = 0) -> Pool:
    """Return the pool of a fleet; one without a view has no seats, one without a spec may get none.

    Args:
        name: the fleet.
        spec: what was written of it.
        view: what it is made of.
        going: seats that are lent no more.
    """
    extent = _NOWHERE if view is None else extent_of(view)
    if spec is None:
        return Pool(name, 0, extent.usable, extent.usable)
    most, unlent = count(spec.max_seats), count(spec.spare_target)
    if view is None:
        return Pool(name, most, 0, 0, unlent, going)
    return Pool(  # by place, as an assessment is
        name,
        most,
        extent.usable,
        extent.usable,  # left
        unlent,
        going,
        0,  # displaced
        view.start_seconds,
        extent.sleepers,
        Fit(view.kinds) if view.kinds else None,
    )


_NOWHERE = Extent(usable=0, seats=0, up=0, held=0, sleepers=False)


def extent_of(view: FleetView) -> Extent:
    """Return what a view comes to: worked out once, since most fleets are as they were at the look before."""
    extent = view.extent
    if extent is None:
        usable = count(view.serving) + count(view.draining) + count(view.spare) + count(view.lent)
        held = count(view.held)
        extent = Extent(
            usable=usable,
            seats=usable + count(view.starting) + held,
            up=usable + held,
            held=held,
            sleepers=any(supply.parked > 0 or supply.startable > 0 for supply in view.supply.values()),
        )
        object.__setattr__(view, "extent", extent)
    return extent


@frozen()
class Place:
    """One fleet of one policy's order.

    Attributes:
        pool: the fleet's seats.
        target: requests in flight that one seat holds for the policy.
        own: residents serving or on their way into rotation.
        idle: `own`, plus those that could be recalled, plus seats that nobody else holds on which one is promotable.
        reach: `idle`, plus seats that another policy would have to leave.
        supply: what the fleet has for the policy, as it was counted.
    """

    pool: Pool
    target: int
    own: int
    idle: int
    reach: int
    supply: Supply

    def to_start(self) -> "Place":
        """Return this for a policy of which nothing is up: what it could have are seats to start a resident on."""
        idle = min(count(self.supply.startable), self.pool.usable)
        reach = min(idle + count(self.supply.blocked), self.pool.usable)
        return replace(self, own=0, idle=idle, reach=reach)


def place_of(pool: Pool, target: int, supply: Supply) -> Place:
    """Return what a fleet's pool offers one policy."""
    own, idle, reach = supply.reach or _reach_of(supply)
    usable = pool.usable
    if reach > usable:
        own, idle, reach = min(own, usable), min(idle, usable), usable
    pool.users += 1
    return Place(pool, count(target) or 1, own, idle, reach, supply)


def _reach_of(supply: Supply) -> tuple[int, int, int]:
    """Return `own`, `idle` and `reach` of a supply as if every seat could be used: worked out once."""
    own = count(supply.serving) + count(supply.promoting)
    idle = own + count(supply.draining) + count(supply.promotable)
    found = own, idle, idle + count(supply.switchable)
    object.__setattr__(supply, "reach", found)
    return found


def bounds(spec: PolicySpec, scheduled: Floor) -> tuple[int, int]:
    """Return how many residents serve at least and at most.

    Where the two contradict each other, the floor stands; the clock raises it as far as the ceiling lets it.
    """
    floor = count(spec.serving_min)
    most = max(floor, count(spec.serving_max))
    if not scheduled.value:
        return floor, most  # as nearly always
    return max(floor, min(count(scheduled.value), most)), most


def along(places: Sequence[Place], limits: Sequence[int], capacity: float, most: int) -> list[int]:
    """Return seats per place that hold `capacity`, taken in order, at most `limits` each and `most` together."""
    if len(places) == 1:  # as most policies have it: in half of the time
        return [holding(places[0].target, limits[0], capacity, most)]
    seats = []
    for place, limit in zip(places, limits):  # noqa: B905 - `strict` takes longer than a turn of this loop
        here = holding(place.target, limit, capacity, most)
        seats.append(here)
        capacity -= here * place.target
        most -= here
    return seats


def holding(target: int, limit: int, capacity: float, most: int) -> int:
    """Return how many seats of one fleet hold `capacity`, at most `limit` and `most`."""
    if most <= 0 or not capacity > _ROUNDING:
        return 0
    if limit * target > capacity - _ROUNDING or limit > COUNT_MAX:  # else it takes all that may be had
        limit = min(math.ceil(capacity / target - _ROUNDING), limit, COUNT_MAX)
    return limit if limit < most else most


def homes(places: Sequence[Place], stable: float, most: int) -> list[int]:
    """Return where the stable answer belongs, whether or not these seats exist yet."""
    if not stable > _ROUNDING:
        return [0] * len(places)
    return along(places, [place.pool.max_seats for place in places], stable, most)


def beyond(given: Sequence[int], floor: int) -> list[int]:
    """Return how many of the seats per place lie beyond a floor, which the earliest of them make up."""
    found, rest = [], floor
    for seats in given:
        found.append(seats if rest <= 0 else seats - rest if seats > rest else 0)
        rest -= seats
    return found


def wishes(places: Sequence[Place], base: Sequence[int], answer: float, most: int) -> list[int]:
    """Return `base` plus the seats that the rest of the answer takes, on the earliest fleets that may grow.

    `base` is what was handed out and what belongs somewhere; together they are supply that is there or on its way.
    """
    capacity, left = 0, most
    for place, seats in zip(places, base):  # noqa: B905 - as in `along`
        capacity += seats * place.target
        left -= seats
    if left <= 0 or not answer - capacity > _ROUNDING:
        return list(base)  # it suffices, as nearly always
    if len(places) == 1:
        room = places[0].pool.max_seats - base[0]
        return [base[0] + holding(places[0].target, max(0, room), answer - capacity, left)]
    rooms = [max(0, place.pool.max_seats - base[index]) for index, place in enumerate(places)]
    return list(map(add, base, along(places, rooms, answer - capacity, left)))


def floored(places: Sequence[Place], wanted: Sequence[int], floor: int) -> list[int]:
    """Return `wanted` raised to the floor: on the earliest fleets with room, and on the first if none has any."""
    raised = list(wanted)
    missing = floor - sum(raised)
    if missing <= 0:
        return raised
    if len(places) == 1:
        return [floor]  # with room or without
    for index, place in enumerate(places):
        room = place.pool.max_seats - raised[index]
        if room > 0:
            more = room if room < missing else missing
            raised[index] += more
            missing -= more
            if missing <= 0:
                return raised
    if raised:
        raised[0] += missing
    return raised
