"""What new seats are made for, where those that exist don't suffice.

A queue that grows because seats are still starting is no reason for more of them: when they are up it drains, and what is
ordered meanwhile comes no earlier. So while a policy is short of seats its order is

    free      during the first burst window: what it needs, whatever that is
    then      the most that it needed in that window, or what the fluid model says, if that is more

The fluid model (`scaler.core.need`) with the time that a seat takes to start as T: (q + f + λT) / (1 + μT) admits what
waits and what comes meanwhile. λ is an average over the stable window, and μ one over ten minutes, for how long a request takes
changes slowly and may be longer than any window. A request is taken to last no longer than half of the time for which requests
have been watched: before any is finished, a low rate is no sign of a long one. What was once ordered is never
taken back by this rule, and a policy that isn't short is not bound by it.
"""

import math
from typing import Final

from scaler.core.demand import Demand
from scaler.core.memory import Order, Throughput
from scaler.core.model import PolicySpec, Quality

SERVICE_SECONDS: Final = 600.0
"""Over so long the time that a request takes is averaged."""
_WATCHED_TIMES: Final = 2.0
"""A request is taken to last no longer than the time for which requests have been watched, by so much: before the first have
ended and others have taken their place, completions lag behind what is in flight."""
_ENOUGH: Final = 1e-9


def watch(before: Throughput | None, demand: Demand, elapsed: float, window: float) -> Throughput | None:
    """Bring the averages up to date. They are plain means until their window is full, and exponential ones from then on.

    Seconds in which nothing is in flight say nothing of how long a request takes, and are left out.

    Args:
        before: the averages so far.
        demand: what was just measured.
        elapsed: seconds since the averages were last brought up to date.
        window: seconds of the window for arrivals.
    """
    known = demand.completions is not None and demand.arrivals is not None
    if (
        not known
        or demand.busy <= 0.0
        or demand.quality is not Quality.FRESH
        or not 0.0 <= elapsed < math.inf
    ):
        return before
    assert demand.completions is not None
    assert demand.arrivals is not None
    if before is None:
        return Throughput(demand.completions, demand.busy, demand.arrivals, 0.0)
    seconds = before.seconds + elapsed
    slow, quick = _weight(elapsed, seconds, SERVICE_SECONDS), _weight(elapsed, seconds, window)
    return Throughput(
        before.completions + slow * (demand.completions - before.completions),
        before.busy + slow * (demand.busy - before.busy),
        before.arrivals + quick * (demand.arrivals - before.arrivals),
        seconds,
    )


def _weight(elapsed: float, seconds: float, window: float) -> float:
    length = min(seconds, window)
    return min(1.0, elapsed / length) if length > 0.0 else 1.0


def fluid(demand: Demand, seen: Throughput | None, start: float) -> float:
    """Return the capacity that admits what waits and what comes while a seat starts; infinity where that isn't known.

    Args:
        demand: what was just measured.
        seen: the averages.
        start: seconds that a new seat takes.
    """
    if demand.arrivals is None:
        return math.inf
    if seen is None or not seen.seconds > 0.0:
        return 0.0  # nobody has been served yet: the first window's order stands
    rate = max(seen.completions / seen.busy, _WATCHED_TIMES / seen.seconds)
    return (demand.queued + demand.busy + seen.arrivals * start) / (1.0 + rate * start)


def follow(before: Order | None, asked: float, there: float, spec: PolicySpec, now: float) -> Order | None:
    """Return the order that is on: since when the policy has been short, and the most that it asked for at first.

    Args:
        before: the order so far.
        asked: capacity that the policy needs.
        there: capacity of the seats that it got.
        spec: the policy.
        now: the time.
    """
    if asked <= there + _ENOUGH:
        return None
    if before is None:
        return Order(now, asked)
    return Order(before.since, max(before.capacity, asked)) if _free(before, spec, now) else before


def most(order: Order | None, fluid_capacity: float, spec: PolicySpec, now: float) -> float:
    """Return the capacity that new seats may be made for; infinity while nothing bounds it."""
    if order is None or _free(order, spec, now):
        return math.inf
    return max(order.capacity, fluid_capacity)


def _free(order: Order, spec: PolicySpec, now: float) -> bool:
    return now < order.since + spec.burst.window
