"""HorizontalPodAutoscaler's rule as Kubernetes publishes it, to be compared with. PURE: time is an argument.

Each sync (15 s) turns metrics into proposals, takes the highest, stabilises it over the windows, and lets it move the
replicas as far as the rates allow. Sources: kubernetes.io, "Horizontal Pod Autoscaling" (algorithm details, scaling
policies, stabilization window, default behavior); kubernetes/kubernetes, pkg/controller/podautoscaler,
`replica_calculator.go` and `horizontal.go`. None of its arithmetic is shared with `scaler.core`, so that neither can hide
an error of the other; only the words (`Pace`, `ChangeLimit`, `Select`) are.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scaler.core.model import ChangeLimit, Pace, Select

SYNC_SECONDS: Final = 15.0
"""`--horizontal-pod-autoscaler-sync-period`."""
TOLERANCE: Final = 0.1
"""`--horizontal-pod-autoscaler-tolerance`."""
DEFAULT_UP: Final = Pace(
    limits=(
        ChangeLimit(value=100, percent=True, period=15.0),
        ChangeLimit(value=4, percent=False, period=15.0),
    ),
    select=Select.MAX,
    tolerance=TOLERANCE,
    window=0.0,
)
"""The default `behavior.scaleUp`: the larger of 100 % and 4 pods every 15 s, at once."""
DEFAULT_DOWN: Final = Pace(
    limits=(ChangeLimit(value=100, percent=True, period=15.0),),
    select=Select.MAX,
    tolerance=TOLERANCE,
    window=300.0,
)
"""The default `behavior.scaleDown`: 100 % every 15 s, after 300 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hpa:
    """What a HorizontalPodAutoscaler's `spec` says.

    Attributes:
        max_replicas: replicas at most.
        min_replicas: replicas at least; 0 needs the feature gate HPAScaleToZero.
        up: `behavior.scaleUp`, its tolerance included.
        down: `behavior.scaleDown`, likewise.
    """

    max_replicas: int
    min_replicas: int = 1
    up: Pace = DEFAULT_UP
    down: Pace = DEFAULT_DOWN


class Mark(NamedTuple):
    """A number and when it was noted: a recommendation, or replicas added or removed."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaMemory:
    """What one sync hands to the next.

    Attributes:
        recommendations: what was proposed over the longer window, before stabilisation.
        added: replicas added over the longest period of the rates.
        removed: replicas removed over it.
    """

    recommendations: tuple[Mark, ...] = ()
    added: tuple[Mark, ...] = ()
    removed: tuple[Mark, ...] = ()


def average_value(rule: Hpa, replicas: int, total: float, target: float) -> int:
    """Return what a metric of type `AverageValue` proposes: ceil(total / target), or `replicas` within tolerance.

    Args:
        rule: whose tolerance counts.
        replicas: pods that the workload's status shows, ready or not.
        total: the metric, all pods together.
        target: what one pod should carry; > 0.
    """
    if replicas > 0 and tolerated(rule, _ratio(total, target * replicas)):
        return replicas
    return math.ceil(_ratio(total, target))


def value(rule: Hpa, replicas: int, ready: int, metric: float, target: float) -> int:
    """Return what a metric of type `Value` or `Utilization` proposes: ceil(ready × metric / target).

    Args:
        rule: whose tolerance counts.
        replicas: what the workload is asked for.
        ready: pods that are ready; without any replicas it is not looked at.
        metric: the metric.
        target: what it should be; > 0.
    """
    ratio = _ratio(metric, target)
    if replicas <= 0:
        return math.ceil(ratio)
    return replicas if tolerated(rule, ratio) else math.ceil(ratio * ready)


def tolerated(rule: Hpa, ratio: float) -> bool:
    """Whether a metric that is `ratio` times its target changes nothing."""
    return 1.0 - rule.down.tolerance <= ratio <= 1.0 + rule.up.tolerance


def sync(
    rule: Hpa, replicas: int, proposals: Sequence[int | None], memory: HpaMemory, now: float
) -> tuple[int, HpaMemory]:
    """Return the replicas after one sync, and what the next one has to know.

    Args:
        rule: the HorizontalPodAutoscaler.
        replicas: what the workload is asked for at present (`spec.replicas`).
        proposals: what its metrics propose; None for one that could not be read.
        memory: from the last sync; `HpaMemory()` at the start.
        now: seconds.
    """
    if replicas <= 0 < rule.min_replicas:
        return replicas, memory  # ScalingDisabled: somebody turned the workload off
    if not memory.recommendations:
        memory = HpaMemory(recommendations=(Mark(now, replicas),), added=memory.added, removed=memory.removed)
    if not rule.min_replicas <= replicas <= rule.max_replicas:
        moved = min(max(replicas, rule.min_replicas), rule.max_replicas)
        return moved, _moved(rule, memory, replicas, moved, now)
    known = [proposal for proposal in proposals if proposal is not None]
    desired = max(known, default=replicas)
    if not known or (len(known) < len(proposals) and desired < replicas):
        return replicas, memory  # what can't be read scales nothing down
    stable, memory = _stabilise(rule, replicas, desired, memory, now)
    after = _within_rates(rule, replicas, stable, memory, now)
    return after, _moved(rule, memory, replicas, after, now)


def _ratio(metric: float, target: float) -> float:
    """Divide as Kubernetes does: both are whole thousandths, so that 3.3 / 1.1 is 3 and no more."""
    return round(metric * 1000.0) / max(1, round(target * 1000.0))


def _stabilise(
    rule: Hpa, replicas: int, desired: int, memory: HpaMemory, now: float
) -> tuple[int, HpaMemory]:
    """Keep within the lowest proposal of the up window and the highest of the down window."""
    lowest = highest = desired
    for at, proposed in memory.recommendations:
        if at > now - rule.up.window:
            lowest = min(lowest, proposed)
        if at > now - rule.down.window:
            highest = max(highest, proposed)
    longest = max(rule.up.window, rule.down.window)
    kept = tuple(mark for mark in memory.recommendations if mark.at > now - longest)
    return min(max(replicas, lowest), highest), HpaMemory(
        recommendations=(*kept, Mark(now, desired)), added=memory.added, removed=memory.removed
    )


def _within_rates(rule: Hpa, replicas: int, desired: int, memory: HpaMemory, now: float) -> int:
    """Move towards `desired` as far as the rates let it; a rate counts from what there was when its period began."""
    if desired == replicas:
        return replicas
    pace = rule.up if desired > replicas else rule.down
    if pace.select is Select.DISABLED:
        return replicas
    starts = [replicas - _net(memory, limit.period, now) for limit in pace.limits]
    if desired > replicas:
        tops = [_grown(limit, start) for limit, start in zip(pace.limits, starts, strict=True)]
        top = _select(max, min, pace, tops, desired)
        return min(desired, max(replicas, top), rule.max_replicas)
    bottoms = [_shrunk(limit, start) for limit, start in zip(pace.limits, starts, strict=True)]
    bottom = _select(min, max, pace, bottoms, desired)
    return max(desired, min(replicas, bottom), rule.min_replicas)


def _select(
    most: Callable[[Sequence[int]], int],
    least: Callable[[Sequence[int]], int],
    pace: Pace,
    reached: Sequence[int],
    otherwise: int,
) -> int:
    """Return what the rates allow: the most change or the least, as `selectPolicy` says; without rates anything."""
    if not reached:
        return otherwise
    return most(reached) if pace.select is Select.MAX else least(reached)


def _grown(limit: ChangeLimit, start: int) -> int:
    return math.ceil(start * (100 + limit.value) / 100) if limit.percent else start + limit.value


def _shrunk(limit: ChangeLimit, start: int) -> int:
    return start * (100 - limit.value) // 100 if limit.percent else start - limit.value


def _net(memory: HpaMemory, period: float, now: float) -> int:
    """Return the replicas that were added within a period, less those removed."""
    added = sum(mark.replicas for mark in _recent(memory.added, period, now))
    return added - sum(mark.replicas for mark in _recent(memory.removed, period, now))


def _moved(rule: Hpa, memory: HpaMemory, before: int, after: int, now: float) -> HpaMemory:
    """Note what was added or removed, and forget what no rate reaches any more."""
    longest = max((limit.period for pace in (rule.up, rule.down) for limit in pace.limits), default=0.0)
    added, removed = _recent(memory.added, longest, now), _recent(memory.removed, longest, now)
    if after > before:
        added = (*added, Mark(now, after - before))
    elif after < before:
        removed = (*removed, Mark(now, before - after))
    return HpaMemory(recommendations=memory.recommendations, added=added, removed=removed)


def _recent(marks: Iterable[Mark], seconds: float, now: float) -> tuple[Mark, ...]:
    return tuple(mark for mark in marks if mark.at > now - seconds)
