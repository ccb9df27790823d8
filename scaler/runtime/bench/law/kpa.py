"""Knative's pod autoscaler (KPA) as Knative publishes it, to be compared with. PURE: time is an argument.

Every 2 s it divides the mean concurrency of a stable window and of a panic window by what one pod should carry. Demand
for twice the ready pods in the panic window begins a panic, in which the higher of both counts and nothing scales down;
it ends one whole stable window after the last such moment. Sources: knative.dev, "Configuring the Autoscaler" and
"Scale to zero"; knative/serving, pkg/autoscaler/scaling/autoscaler.go, pkg/autoscaler/aggregation and
pkg/reconciler/autoscaling/kpa/scaler.go. Shares no arithmetic with `scaler.core`.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

TICK_SECONDS: Final = 2.0
"""How often it decides (`tick-interval`)."""
TARGET_UTILIZATION: Final = 0.7
"""`container-concurrency-target-percentage`: the share of a pod's limit that it should carry."""
BUCKET_SECONDS: Final = 1.0
"""Width of the buckets of concurrency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kpa:
    """The settings of one revision; the defaults are Knative's.

    Attributes:
        target: requests in flight that one pod should carry, utilisation included.
        min_scale: pods at least.
        max_scale: pods at most.
        stable_window: seconds of the stable window.
        panic_window: seconds of the panic window (a tenth of the stable one).
        panic_threshold: panic begins when the panic window asks for so many times the ready pods.
        max_up: so many times the ready pods at most, in one decision.
        max_down: the ready pods divided by this at least, in one decision.
        grace: seconds for which the last pod stays after nothing was asked for; Knative's upper bound.
    """

    target: float
    min_scale: int = 0
    max_scale: int = 1_000_000
    stable_window: float = 60.0
    panic_window: float = 6.0
    panic_threshold: float = 2.0
    max_up: float = 1000.0
    max_down: float = 2.0
    grace: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KpaMemory:
    """What one decision hands to the next.

    Attributes:
        panic_at: when the panic threshold was last passed; None without a panic.
        panic_pods: the most pods that the panic has asked for.
        idle_since: since when nothing has been asked for; None while something is.
        pods: what was last answered.
    """

    panic_at: float | None = None
    panic_pods: int = 0
    idle_since: float | None = None
    pods: int = 0

    @classmethod
    def initial(cls, ready: int, now: float) -> "KpaMemory":
        """Return the memory of a start, which with several pods ready is a panic: they are kept."""
        return cls(panic_at=now, panic_pods=ready, pods=ready) if ready > 1 else cls(pods=ready)


class Concurrency:
    """Mean concurrency over windows, from one-second buckets; a second without a report is in no mean."""

    def __init__(self, longest: float) -> None:
        """Begin without data; `longest` seconds are remembered."""
        self._longest = longest
        self._buckets: deque[tuple[int, float]] = deque()

    def report(self, second: int, value: float) -> None:
        """Take the mean concurrency of one second; they come in order."""
        self._buckets.append((second, value))
        while self._buckets and self._buckets[0][0] <= second - self._longest / BUCKET_SECONDS:
            self._buckets.popleft()

    def mean(self, window: float, now: float) -> float | None:
        """Return the mean over what is known of the window that ends now; None when that is nothing."""
        first = math.floor(now / BUCKET_SECONDS) - window / BUCKET_SECONDS
        known = [value for second, value in self._buckets if second >= first]
        return sum(known) / len(known) if known else None


def decide(
    rule: Kpa, ready: int, stable: float | None, panic: float | None, memory: KpaMemory, now: float
) -> tuple[int | None, KpaMemory]:
    """Return the pods that there should be, and what the next decision has to know.

    Args:
        rule: the settings.
        ready: pods that are ready.
        stable: mean concurrency over the stable window, all pods together; None without data.
        panic: the same over the panic window.
        memory: from the last decision.
        now: seconds.

    Returns:
        None instead of a number when there is no data: nothing changes then.
    """
    if stable is None or panic is None:
        return None, memory
    pods = max(1, ready)
    wanted_stable, wanted_panic = _pods_for(stable, rule), _pods_for(panic, rule)
    least, most = math.floor(pods / rule.max_down), math.ceil(rule.max_up * pods)
    desired = min(max(wanted_stable, least), most)
    panic_at, panic_pods = memory.panic_at, memory.panic_pods
    if wanted_panic / pods >= rule.panic_threshold:
        panic_at = now
    elif panic_at is not None and panic_at + rule.stable_window < now:
        panic_at, panic_pods = None, 0
    if panic_at is not None:
        panic_pods = max(panic_pods, desired, min(max(wanted_panic, least), most))
        desired = panic_pods
    desired = min(max(desired, rule.min_scale), max(rule.max_scale, rule.min_scale))
    idle_since = None if desired > 0 else now if memory.idle_since is None else memory.idle_since
    if idle_since is not None and _last_stays(rule, ready, memory, now - idle_since):
        desired = 1
    return desired, KpaMemory(panic_at=panic_at, panic_pods=panic_pods, idle_since=idle_since, pods=desired)


def _pods_for(concurrency: float, rule: Kpa) -> int:
    return math.ceil(round(concurrency / rule.target, 6))  # Knative rounds its means to 6 digits


def _last_stays(rule: Kpa, ready: int, memory: KpaMemory, idle: float) -> bool:
    """Whether the last pod, idle for so many seconds, stays: until it is ready, and for its grace."""
    return memory.pods > 0 and (ready == 0 or idle < rule.grace)
