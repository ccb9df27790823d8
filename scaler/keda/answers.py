"""What KEDA is answered, from what was published and its age. PURE: time is an argument.

Fresh   up to `STALE_SECONDS`: as published. The loop looks at everything each second, so an age of many seconds already
        means that it has nothing to look at, as while the API server is away.
Stale   up to `UNKNOWN_SECONDS`: the fallback. A fleet's total is the last one, or what its policies' fallbacks and its spares
        take, whichever is more, for what is unknown shrinks nothing. A policy's `Serving` is what its own `fallback` says.
        What the signals said then says nothing now.
Unknown an error and no number, upon which KEDA changes nothing between zero and one, the HPA holds, and the ScaledObject's
        own `fallback` decides the rest. A zero would have everything deleted.
"""

import difflib
import heapq
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from scaler.core.model import FallbackBehavior
from scaler.errors import ScalerError
from scaler.keda.published import FleetFigures, Names, PolicyFigures, Published
from scaler.keda.trigger import Subject, Trigger, Value, shown

STALE_SECONDS: Final = 60.0
"""Until then a decision counts as it is: the stable window of the law by default, in which nothing would scale down either."""
UNKNOWN_SECONDS: Final = 600.0
"""From then on nobody should count on it: seats that it asked for have started by now, or never will."""
TARGET: Final = 1
"""What one replica carries of each metric. It never changes, for the HPA would not learn of it: values move instead."""
_LISTED: Final = 5
"""Names that a message lists at most."""
_COMPARED: Final = 50
"""Names that a wrong one is compared with at most: a fraction of a millisecond, whoever asks how often."""


class Code(StrEnum):
    """Why there is no answer; the words are those of gRPC's statuses."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    UNAVAILABLE = "UNAVAILABLE"


class Refused(ScalerError):
    """There is no number to answer with.

    Attributes:
        code: why.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Answer(NamedTuple):
    """One number.

    Attributes:
        value: it; finite, not negative, in whole thousandths.
        age: seconds since it was decided.
        stale: whether it is the fallback.
    """

    value: float
    age: float
    stale: bool = False

    @property
    def active(self) -> bool:
        """Whether the workload may not be at zero: whenever there is anything, so that idle fleets keep their spares."""
        return self.value > 0

    @property
    def rounded_up(self) -> int:
        """The number for operators that know integers alone."""
        return math.ceil(self.value)


def answer(trigger: Trigger, published: Published, now: float) -> Answer:
    """Return the number that a trigger asks for.

    Args:
        trigger: what is asked for.
        published: what is known.
        now: monotonic seconds.

    Raises:
        Refused: there is no such fleet or policy, or nothing is known of it.
    """
    if trigger.subject is Subject.FLEET:
        fleet = published.fleets.get(trigger.name)
        if fleet is None or trigger.namespace:  # what has figures is there
            check_known(trigger, published)
        if fleet is None:
            raise _undecided(trigger)
        age = _age(trigger, fleet.at, now)
        stale = age > STALE_SECONDS
        return Answer(float(_of_fleet(trigger.value, fleet, stale=stale)), age, stale)
    policy = published.policies.get(trigger.name)
    if policy is None or trigger.namespace:
        check_known(trigger, published)
    if policy is None:
        raise _undecided(trigger)
    age = _age(trigger, policy.at, now)
    stale = age > STALE_SECONDS
    return Answer(_thousandths(_of_policy(trigger, policy, stale=stale)), age, stale)


def check_metric(trigger: Trigger, metric: str) -> None:
    """Check that a requested metric is the trigger's own.

    Raises:
        Refused: it isn't.
    """
    if not trigger.names(metric):
        raise Refused(
            Code.INVALID_ARGUMENT,
            f"this trigger's metric is {trigger.metric}, and {shown(metric)} was asked for: a trigger has one metric",
        )


def _of_fleet(value: Value, fleet: FleetFigures, *, stale: bool) -> int:
    if value is Value.TOTAL:
        return max(fleet.total, fleet.fallback) if stale else fleet.total
    return fleet.serving if value is Value.SERVING else fleet.spare


def _of_policy(trigger: Trigger, policy: PolicyFigures, *, stale: bool) -> float:
    if trigger.value is Value.SERVING:
        return _fallback(policy) if stale else policy.serving
    read = {
        Value.QUEUE_DEPTH: policy.queued,
        Value.QUEUE_AGE_SECONDS: policy.oldest_wait,
        Value.PROMOTIONS_IN_FLIGHT: float(policy.promoting),
    }[trigger.value]
    if stale or read is None or not math.isfinite(read) or read < 0:
        why = "the last decision is too old" if stale else "its signals don't say"
        raise Refused(
            Code.UNAVAILABLE,
            f"policy {trigger.name}: {trigger.value} is unknown, for {why}; unknown is not 0",
        )
    return read


def _fallback(policy: PolicyFigures) -> int:
    match policy.fallback:
        case FallbackBehavior.STATIC:
            return policy.fallback_serving
        case FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER:
            return max(policy.serving, policy.fallback_serving)
        case FallbackBehavior.CURRENT_REPLICAS_IF_LOWER:
            return min(policy.serving, policy.fallback_serving)
        case FallbackBehavior.CURRENT_REPLICAS:
            return policy.serving


def _thousandths(value: float) -> float:
    """Round up to what KEDA keeps of a value, so that something never becomes nothing."""
    return math.ceil(round(value * 1000, 6)) / 1000


def _age(trigger: Trigger, at: float, now: float) -> float:
    age = max(0.0, now - at)
    if age > UNKNOWN_SECONDS:
        raise Refused(
            Code.UNAVAILABLE,
            f"{trigger.subject} {trigger.name}: the last decision is {age:.0f} s old, so nothing is known; the"
            " controllers' logs say why nothing newer was decided, emberpool_tick_last_success_timestamp_seconds since when",
        )
    return age


def _undecided(trigger: Trigger) -> Refused:
    return Refused(
        Code.UNAVAILABLE,
        f"{trigger.subject} {trigger.name}: nothing has been decided yet; the controller has just started, or reads no"
        " seats",
    )


def check_known(trigger: Trigger, published: Published) -> None:
    """Check that there is what a trigger asks for, whether or not anything has been decided for it.

    Raises:
        Refused: there isn't.
    """
    names: Names = published.names.get(trigger.subject, {})
    namespace = names.get(trigger.name)
    if namespace is None:
        raise Refused(Code.NOT_FOUND, _unknown(trigger, names))
    if trigger.namespace and trigger.namespace != namespace:
        raise Refused(
            Code.NOT_FOUND,
            f"{trigger.subject} {trigger.name} is in namespace {namespace}, not in {shown(trigger.namespace)}",
        )


def _unknown(trigger: Trigger, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(trigger.name[:64], names, n=1) if len(names) <= _COMPARED else []
    listed = near or heapq.nsmallest(_LISTED, names)
    if near:
        hint = f"did you mean {near[0]}?"
    elif listed:
        more = f" and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
        hint = f"there are {', '.join(listed)}{more}"
    else:
        hint = "the controller has none"
    return f"no policy file has a {trigger.subject} named {shown(trigger.name)}; {hint}"
