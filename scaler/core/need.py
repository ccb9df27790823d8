"""How much capacity a policy needs: the terms of the law, in requests in flight.

concurrency   mean demand over the stable window; highest demand over the burst window (Knative's two windows, with a
              maximum in place of the short mean, because a burst is over before a mean has seen it)
drain         what it takes so that what waits is admitted within `queue_drain`
deadline      what it takes so that what waits is admitted before the TTFT objective, once that is at risk
correction    more than there is, while first tokens come too late although nothing seems to wait

Drain and deadline come from one fluid model. K slots of which each finishes μ requests per second, with q requests
queued, f in flight and λ arriving per second, admit (K − f) + μ·K·T within T seconds; q + λ·T have to be admitted. Hence
K = (q + f + λT) / (1 + μT). Where λ isn't known, arrivals are taken to equal what finishes now, λ = μ·f, which gives
K = f + q / (1 + μT). μ comes from Little's law as completions / in flight (`scaler.core.service`). Entries of a work queue
count into q for the drain, and nowhere else.

What waits for a resident that is on its way waits for as long as promotions from its depth have taken (`scaler.core.waking`).
"""

import math

from scaler.core.demand import Demand
from scaler.core.memory import Coming
from scaler.core.model import PolicySpec
from scaler.core.values import frozen
from scaler.core.windows import Ring

GROWTH_MAX = 2.0
"""Most by which the arrival rate may raise the answer above the demand that is there: it is measured over few seconds,
and in a stall, when μ goes to 0, the fluid model would ask for a slot per arrival."""


@frozen()
class Capacity:
    """What there is for a policy, in requests in flight.

    Attributes:
        total: C, of usable serving and promoting residents.
        coming: the part of it that isn't ready yet and when it is expected to be, soonest first.
    """

    total: float
    coming: tuple[Coming, ...] = ()


@frozen()
class Terms:
    """The terms of one policy at one moment, as capacities in requests in flight.

    Attributes:
        mean: demand as mean over the stable window.
        peak: demand as maximum over the burst window.
        drain: what the queue's drain takes; 0 when nothing waits.
        backlog: what the drain of queue and work queues together takes; 0 without a backlog.
        deadline: what the objective takes; 0 when it is not at risk.
        correction: what first tokens that come too late take; 0 while they don't.
        stable: the answer of the stable terms.
        pressing: the answer of all terms: what holds in burst, and what may not be cut away in either mode.
        at_risk: age of the oldest plus predicted wait passes the TTFT objective.
        predicted_wait: seconds that the queue is predicted to take.
    """

    mean: float
    peak: float
    drain: float
    backlog: float
    deadline: float
    correction: float
    stable: float
    pressing: float
    at_risk: bool
    predicted_wait: float


def terms(demand: Demand, ring: Ring, rate: float, spec: PolicySpec, capacity: Capacity, now: float) -> Terms:
    """Work out all terms.

    Args:
        demand: what was just measured.
        ring: demand of the past, this moment included.
        rate: μ, requests per second and busy slot; 0 when unknown.
        spec: the policy.
        capacity: what there is.
        now: the time.
    """
    present = demand.value or 0.0
    mean = ring.mean(now, spec.burst.stable_window)
    mean = present if mean is None else mean
    peak = ring.peak(now, spec.burst.window) or 0.0
    drain = deadline = wait = 0.0
    at_risk = False
    if demand.queued > 0.0:
        wait = _predicted_wait(demand, rate, capacity, now)
        drain = admitting_capacity(demand, rate, spec.queue_drain)
        at_risk = demand.wait + wait > spec.ttft_objective
    if at_risk:
        left = max(0.0, spec.ttft_objective - demand.wait)
        deadline = max(present, admitting_capacity(demand, rate, left))
    backlog = _backlog_capacity(demand, rate, spec, capacity.total) if demand.backlog > 0.0 else 0.0
    correction = 0.0 if demand.late is None else _correction(demand, demand.late, spec, capacity.total)
    stable = max(mean, drain, backlog, correction) if drain or backlog or correction else mean
    pressing = peak if peak > stable else stable
    pressing = deadline if deadline > pressing else pressing
    return Terms(mean, peak, drain, backlog, deadline, correction, stable, pressing, at_risk, wait)


def admitting_capacity(demand: Demand, rate: float, seconds: float) -> float:
    """Return the capacity that admits what waits within `seconds`, from the fluid model above.

    Args:
        demand: what was just measured.
        rate: μ, requests per second and busy slot; 0 when unknown.
        seconds: T; anything that isn't a positive number counts as 0, which gives the demand itself.
    """
    present = demand.queued + demand.busy
    if not (rate > 0.0 and 0.0 < seconds < math.inf):
        return present
    finishing = 1.0 + rate * seconds
    steady = demand.busy + demand.queued / finishing
    if demand.arrivals is None:
        return steady
    growing = (present + demand.arrivals * seconds) / finishing
    return max(steady, min(growing, GROWTH_MAX * present))


def _backlog_capacity(demand: Demand, rate: float, spec: PolicySpec, capacity: float) -> float:
    """Return the capacity that takes queue and backlog within `queue_drain`.

    While nobody knows how long a piece of work takes, it is at most twice what there is, and one seat at the start: the
    rate is known as soon as some of it is done.
    """
    waiting = demand.queued + demand.backlog
    seconds = spec.queue_drain
    if rate > 0.0 and 0.0 < seconds < math.inf:
        return demand.busy + waiting / (1.0 + rate * seconds)
    seat = max((share.target_in_flight for share in spec.fleets[:1]), default=1)
    return min(demand.busy + waiting, max(2.0 * capacity, float(max(1, seat))))


def _correction(demand: Demand, late: float, spec: PolicySpec, capacity: float) -> float:
    """Return the capacity that there is and as much more as the share of late requests exceeds what may be late.

    It corrects and doesn't lead: a stall silences the histograms that it comes from, and prompts that grew longer make
    requests late that no further seat can help; so it never asks for more than `GROWTH_MAX` times the demand.
    """
    if not late > spec.late_share:
        return 0.0
    present = demand.queued + demand.busy
    return min(capacity * (1.0 + late - max(0.0, spec.late_share)), GROWTH_MAX * present)


def _predicted_wait(demand: Demand, rate: float, capacity: Capacity, now: float) -> float:
    """Seconds until the queue is admitted.

    What the capacity holds waits for no completion, but for those residents that are on their way. What exceeds it waits
    for queue / completion rate: as long as something waits all of it is busy, so that it completes μ·C per second.
    """
    waiting = min(demand.queued + demand.busy - capacity.total, demand.queued)
    wait = _until_ready(demand, capacity, now) if capacity.coming else 0.0
    if waiting <= 0.0:
        return wait
    flow = rate * capacity.total
    return max(wait, waiting / flow) if flow > 0.0 else math.inf


def _until_ready(demand: Demand, capacity: Capacity, now: float) -> float:
    """Seconds until so many of the residents on their way are ready that they hold what waits, or until all are."""
    ready = capacity.total - sum(coming.capacity for coming in capacity.coming)
    left, wait = min(demand.queued + demand.busy - ready, demand.queued), 0.0
    for coming in capacity.coming:
        if left <= 0.0:
            break
        left -= coming.capacity
        wait = max(wait, coming.at - now)
    return wait
