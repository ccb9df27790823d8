"""Which parked residents are brought back ahead of need: how many of a policy shall stand paused beside those that serve.

A parked resident takes seconds to serve. So as many stand paused as demand has risen by within so many seconds, over the
stable window, where any resident of the fleet is parked or not up; and on a fleet that others share at least one, for as
long as there is any demand, or none is known. A policy whose work can wait needs none. Whose turn it is where not all fit
is the planner's business, in order of priority.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from scaler.core.assess import Assessment
from scaler.core.model import Reason, ReasonCode
from scaler.core.placement import Place, count, seats_for
from scaler.core.reasons import because
from scaler.core.windows import Ring
from warmpool.seats import FleetName


class Warmth(NamedTuple):
    """Which of a policy's residents shall stand paused.

    Attributes:
        seats: how many shall, per fleet that it shares, or of which residents are parked or not up.
        reasons: why, where that brings some back.
    """

    seats: Mapping[FleetName, int]
    reasons: tuple[Reason, ...]


_ALL_STAND_PAUSED: Final = Warmth(MappingProxyType({}), ())


def warm(assessment: Assessment, given: Sequence[int]) -> Warmth:
    """Return how many residents of a policy shall stand paused, and why where that brings some back.

    Args:
        assessment: the policy.
        given: seats that it got, per place.
    """
    for place in assessment.places:
        if place.pool.users > 1 or place.pool.sleepers:
            break
    else:
        return _ALL_STAND_PAUSED
    found: dict[FleetName, int] = {}
    reasons: list[Reason] = []
    waits, covered = assessment.spec.preemptible, 0.0
    for index, place in enumerate(assessment.places):
        pool, seconds, risen = place.pool, 0.0, 0.0
        shared = pool.shared
        if pool.sleepers and not waits:
            seconds = _wake_seconds(assessment, place)
            risen = rise(assessment.ring, seconds)
        elif not shared:
            continue
        least = 1 if shared and not waits and _in_use(assessment) else 0
        here = min(pool.usable - given[index], max(least, seats_for(risen - covered, place.target)))
        covered += here * place.target
        found[pool.name] = here
        if place.supply.parked > 0 and (paused := _paused(place, given[index])) < here:
            facts: dict[str, float | str] = {"fleet": pool.name, "warm": here, "paused": paused}
            reasons.append(because(ReasonCode.WARMED, **facts, risen=risen, wakeSeconds=seconds))
    return Warmth(MappingProxyType(found), tuple(reasons))


def rise(ring: Ring, seconds: float) -> float:
    """Return by how much demand has risen at most within so many seconds, over all that the ring remembers."""
    highest, lows = 0.0, deque[tuple[int, float]]()  # the lowest demand still within reach comes first
    for second, mean, readings, peak in ring.buckets:
        while lows and lows[0][0] < second - seconds:
            lows.popleft()
        low = mean if readings else peak
        while lows and lows[-1][1] >= low:
            lows.pop()
        lows.append((second, low))
        highest = max(highest, peak - lows[0][1])
    return highest


def _wake_seconds(assessment: Assessment, place: Place) -> float:
    """Return what it takes to promote a parked resident there; the burst window while that isn't known."""
    seconds = place.supply.parked_wake
    return seconds if 0.0 < seconds < math.inf else assessment.spec.burst.window


def _in_use(assessment: Assessment) -> bool:
    """Whether anybody has asked for it within the stable window, or nobody knows."""
    return assessment.demand.value is None or assessment.terms.mean > 0.0 or assessment.terms.peak > 0.0


def _paused(place: Place, given: int) -> int:
    """Return how many paused residents are left once those are promoted that were given."""
    supply = place.supply
    promoted = max(0, given - place.own - count(supply.draining))
    return max(0, count(supply.promotable) - count(supply.parked) - promoted)
