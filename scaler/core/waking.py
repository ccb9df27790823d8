"""When residents that are being promoted will be ready: as long after their order as promotions from their depth have taken.

A fleet says how many residents of a policy are being promoted, and not since when or from how deep. So the law remembers
what it promised itself: of the seats that it gives beyond those that a policy has, the first are taken from residents that
are still draining and compute already, then from paused ones, then from parked ones, then from seats that another has to
leave first. Those that are ready soonest are taken to be the ones that are gone from the fleet's count.
"""

import math
from collections.abc import Iterator, Sequence

from scaler.core.memory import Coming
from scaler.core.placement import Place, count


def awaited(promised: tuple[Coming, ...], places: Sequence[Place]) -> tuple[Coming, ...]:
    """Return what is still on its way of what was promised, soonest first.

    Args:
        promised: what was on its way when seats were last given.
        places: the policy's fleets as they are now.
    """
    if not promised:
        return ()
    left = float(sum(min(count(place.supply.promoting), place.own) * place.target for place in places))
    kept: list[Coming] = []
    for coming in reversed(promised):
        if left <= 0.0:
            break
        kept.append(Coming(coming.at, min(coming.capacity, left)))
        left -= coming.capacity
    return tuple(reversed(kept))


def promise(
    coming: tuple[Coming, ...], places: Sequence[Place], given: Sequence[int], now: float
) -> tuple[Coming, ...]:
    """Return what is on its way once the seats that were given are claimed.

    Args:
        coming: what is on its way already.
        places: the policy's fleets.
        given: seats that it got, per place.
        now: the time.
    """
    new: list[Coming] = []
    for place, seats_given in zip(places, given):  # noqa: B905 - as in `scaler.core.placement.along`
        if seats_given > place.own:
            new += [
                Coming(now + seconds, float(seats * place.target))
                for seats, seconds in _depths(place, seats_given - place.own)
            ]
    return tuple(sorted([*coming, *new])) if new else coming


def _depths(place: Place, seats: int) -> Iterator[tuple[int, float]]:
    """Yield how many of the next seats are taken from each depth, and the seconds that takes."""
    supply = place.supply
    if supply.paused_wake <= 0.0 and supply.parked_wake <= 0.0:
        return
    parked = min(count(supply.parked), count(supply.promotable))
    stages = (
        (count(supply.draining), 0.0),
        (count(supply.promotable) - parked, supply.paused_wake),
        (parked, supply.parked_wake),
        (seats, supply.paused_wake),
    )
    for there, seconds in stages:
        here = min(seats, there)
        if here and 0.0 < seconds < math.inf:
            yield here, seconds
        seats -= here
