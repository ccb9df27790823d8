"""How much capacity a policy needs: the terms of the law, in requests in flight.

concurrency   mean demand over the stable window; highest demand over the burst window (Knative's two windows, with a
              maximum in place of the short mean, because a burst is over before a mean has seen it)
drain         what it takes so that what waits is admitted within `queue_drain`
deadline      what it takes so that what waits is admitted before the TTFT objective, once that is at risk
correction    more than there is, while first tokens come too late although nothing seems to wait

Drain and deadline come from one fluid model. K slots of which each finishes μ requests per second, with q requests
queued, f in flight and λ arriving per second, admit (K − f) + μ·K·T within T seconds; q + λ·T have to be admitted. Hence
K = (q + f + λT) / (1 + μT). Where λ isn't known, arrivals are taken to equal what finishes now, λ = μ·f, which gives
K = f + q / (1 + μT). μ comes from Little's law as completions / in flight. Entries of a work queue count into q for the
drain, and nowhere else.
"""

import math
from dataclasses import dataclass

from scaler.core.demand import Demand
from scaler.core.memory import Service
from scaler.core.model import PolicySpec, Quality
from scaler.core.windows import Ring

GROWTH_MAX = 2.0
"""Most by which the arrival rate may raise the answer above the demand that is there: it is measured over few seconds,
and in a stall, when μ goes to 0, the fluid model would ask for a slot per arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of one policy at one moment, as capacities in requests in flight.

    Attributes:
        mean: demand as mean over the stable window.
        peak: demand as maximum over the burst window.
        drain: what the queue's drain takes; 0 when nothing waits.
        backlog: what the drain of queue and work queues together takes; 0 without a backlog.
        deadline: what the objective takes; 0 when it is not at risk.
        correction: what first tokens that come too late take; 0 while they don't.
        at_risk: age of the oldest plus predicted wait passes the TTFT objective.
        predicted_wait: seconds that the queue is predicted to take.
    """

    mean: float
    peak: float
    drain: float
    backlog: float
    deadline: float
    correction: float
    at_risk: bool
    predicted_wait: float

    @property
    def stable(self) -> float:
        """The answer of the stable terms."""
        return max(self.mean, self.drain, self.backlog, self.correction)

    @property
    def pressing(self) -> float:
        """The answer of all terms: what holds in burst, and what may not be cut away in either mode."""
        return max(self.stable, self.peak, self.deadline)


def measure_service(
    previous: Service | None, demand: Demand, elapsed: float, window: float
) -> Service | None:
    """Bring the averages for μ up to date.

    Nothing in flight says nothing about the time a request takes, so it leaves the averages alone (0/0 is idle, and not
    unknown); in flight without completions is a stall and lowers μ.

    Args:
        previous: the averages so far.
        demand: what was just measured.
        elapsed: seconds since the averages were last brought up to date.
        window: time constant of the averages in seconds: the burst window.
    """
    if demand.completions is None or demand.busy <= 0.0 or demand.quality is not Quality.FRESH:
        return previous
    if previous is None:
        return Service(demand.completions, demand.busy)
    if not elapsed > 0.0:
        return previous
    weight = 1.0 - math.exp(-elapsed / window) if window > 0.0 else 1.0
    return Service(
        previous.completions + weight * (demand.completions - previous.completions),
        previous.busy + weight * (demand.busy - previous.busy),
    )


def terms(demand: Demand, ring: Ring, rate: float, spec: PolicySpec, capacity: float, now: float) -> Terms:
    """Work out all terms.

    Args:
        demand: what was just measured.
        ring: demand of the past, this moment included.
        rate: μ, requests per second and busy slot; 0 when unknown.
        spec: the policy.
        capacity: C, of usable serving and promoting residents.
        now: the time.
    """
    present = demand.value or 0.0
    mean = ring.mean(now, spec.burst.stable_window)
    wait = _predicted_wait(demand, rate, capacity)
    at_risk = demand.queued > 0.0 and demand.wait + wait > spec.ttft_objective
    left = max(0.0, spec.ttft_objective - demand.wait) if at_risk else 0.0
    return Terms(
        mean=present if mean is None else mean,
        peak=ring.peak(now, spec.burst.window) or 0.0,
        drain=admitting_capacity(demand, rate, spec.queue_drain) if demand.queued > 0.0 else 0.0,
        backlog=_backlog_capacity(demand, rate, spec, capacity) if demand.backlog > 0.0 else 0.0,
        deadline=max(present, admitting_capacity(demand, rate, left)) if at_risk else 0.0,
        correction=_correction(demand, spec, capacity),
        at_risk=at_risk,
        predicted_wait=wait,
    )


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


def _correction(demand: Demand, spec: PolicySpec, capacity: float) -> float:
    """Return the capacity that there is and as much more as the share of late requests exceeds what may be late.

    It corrects and doesn't lead: a stall silences the histograms that it comes from, and prompts that grew longer make
    requests late that no further seat can help; so it never asks for more than `GROWTH_MAX` times the demand.
    """
    if demand.late is None or not demand.late > spec.late_share:
        return 0.0
    present = demand.queued + demand.busy
    return min(capacity * (1.0 + demand.late - max(0.0, spec.late_share)), GROWTH_MAX * present)


def _predicted_wait(demand: Demand, rate: float, capacity: float) -> float:
    """Seconds until what exceeds the capacity is admitted: queue / completion rate.

    What the capacity holds, residents on their way included, waits for no completion; and as long as something waits
    all of it is busy, so that it completes μ·C per second.
    """
    waiting = min(demand.queued + demand.busy - capacity, demand.queued)
    if waiting <= 0.0:
        return 0.0
    flow = rate * capacity
    return waiting / flow if flow > 0.0 else math.inf
