"""What new seats are made for, where those that exist don't suffice.

A queue that grows because seats are still starting is no reason for more of them: when they are up it drains, and what is
ordered meanwhile comes no earlier. So while a policy is short of seats its order is

    free      during the first burst window: what it needs, whatever that is
    then      the most that it needed in that window, or what the fluid model says, if that is more

The fluid model (`scaler.core.need`) with twice the time that a seat takes to start as T: (q + f + λT) / (1 + μT) admits
what waits and what comes meanwhile. q grows for as long as seats start, and those that were ordered will admit it: one start
time's queue, λT/2, takes half as much again as arrivals keep busy for good, λ/μ (Little: L = λW). Only where nothing of
an order has come in all that time one start time counts: then what was ordered will not admit what waits.

λ is an average over the stable window, and 1/μ one over ten minutes, in which each request that is in flight counts as half
done: while requests begin to be served, completions lag behind them by the time that one takes. A request is taken to last no
longer than half of the time for which requests have been watched: before any is finished, a low rate is no sign of a long
one. What was once ordered stands while the policy is short, and a policy that isn't short is not bound by it.
"""

import math
from typing import Final

from scaler.core.demand import Demand
from scaler.core.memory import Order, Service
from scaler.core.model import PolicySpec
from scaler.core.service import SERVICE_SECONDS

_CATCHING_UP: Final = 2.0
"""Start times within which what waits is to be admitted: one until new seats are up, and one for them to admit it."""
_WATCHED_TIMES: Final = 2.0
"""A request is taken to last no longer than the time for which requests have been watched, by so much: before the first have
ended and others have taken their place, completions lag behind what is in flight."""
_DONE: Final = 0.5
"""What a request that is in flight has behind it of its time, on average."""
_ENOUGH: Final = 1e-9


def horizon(order: Order | None, there: float, start: float, now: float) -> float:
    """Return the seconds within which new seats shall have admitted what waits.

    Args:
        order: the order that is on.
        there: capacity that there is.
        start: seconds that a new seat takes.
        now: the time.
    """
    seconds = _CATCHING_UP * start
    if order is not None and there <= order.there + _ENOUGH and now >= order.since + seconds:
        return start
    return seconds


def fluid(demand: Demand, seen: Service | None, seconds: float) -> float:
    """Return the capacity that admits what waits and what comes within a time; infinity where that isn't known.

    Args:
        demand: what was just measured.
        seen: the averages, from before it.
        seconds: the time.
    """
    if demand.arrivals is None:
        return math.inf
    if seen is None or not seen.seconds > 0.0:
        return 0.0  # nobody has been served yet: the first window's order stands
    done = seen.completions + _DONE * seen.present / min(seen.seconds, SERVICE_SECONDS)
    rate = max(done / seen.busy, _WATCHED_TIMES / seen.seconds)
    return (demand.queued + demand.busy + seen.arrivals * seconds) / (1.0 + rate * seconds)


def is_short(asked: float, there: float) -> bool:
    """Whether a policy needs more capacity than the seats hold that it got."""
    return not asked <= there + _ENOUGH


def follow(
    before: Order | None, asked: float, there: float, bound: float, spec: PolicySpec, now: float
) -> Order | None:
    """Return the order that is on: since when the policy has been short, and what new seats are made for.

    Args:
        before: the order so far.
        asked: capacity that the policy needs.
        there: capacity of the seats that it got.
        bound: what may be ordered after the first window.
        spec: the policy.
        now: the time.
    """
    if not is_short(asked, there):
        return None
    if before is None:
        return Order(now, asked, there)
    more = asked if _free(before, spec, now) else min(asked, bound)
    return before._replace(capacity=more) if more > before.capacity else before


def most(order: Order | None, there: float, spec: PolicySpec, now: float) -> float:
    """Return the capacity that new seats may be made for; infinity while nothing bounds it.

    It is never less than there is: whoever is short by a little has no less than whoever isn't.

    Args:
        order: the order that is on.
        there: capacity of the seats that the policy got.
        spec: the policy.
        now: the time.
    """
    if order is None or _free(order, spec, now):
        return math.inf
    return max(order.capacity, there)


def _free(order: Order, spec: PolicySpec, now: float) -> bool:
    return now < order.since + spec.burst.window
