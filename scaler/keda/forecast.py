"""What KEDA and the HPA make of an answer. PURE.

The rules are theirs: kedacore/keda, pkg/scaling/executor/scale_scaledobjects.go and pkg/fallback; Kubernetes' documentation of
HorizontalPodAutoscaler, "Algorithm details". A value of which one replica carries one is a number of replicas; what stands
between it and the workload are tolerance, bounds, windows and rates.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from scaler.keda.answers import TARGET
from scaler.keda.findings import Code, Finding
from scaler.keda.objects import (
    DEFAULT_COOLDOWN,
    DEFAULT_DOWN_WINDOW,
    DEFAULT_MAX,
    Behavior,
    Fallback,
    Hpa,
    Pause,
    ScaledObject,
)

_OTHER_ARITHMETIC: Final = frozenset(
    {Code.NOT_AVERAGE_VALUE, Code.RESOURCE_METRIC, Code.METRIC_MISSING, Code.TARGET_NOT_ONE}
)
"""Findings with which the HPA computes from something else than the value and a target of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What stands between an answer and the replicas.

    Attributes:
        minimum: `minReplicaCount`.
        maximum: `maxReplicaCount`.
        cooldown: seconds without activity after which KEDA scales to zero.
        fallback: what happens while answers fail.
        up: how the HPA grows.
        down: how it shrinks.
        pause: how people have stopped KEDA.
        known: whether there is a ScaledObject that all this is of; otherwise nobody knows whether it has a fallback.
        unforecast: why nothing can be said of what KEDA does; empty if it can.
        hpa_unforecast: why nothing can be said of what the HPA does; empty if it can.
    """

    minimum: int = 0
    maximum: int = DEFAULT_MAX
    cooldown: float = DEFAULT_COOLDOWN
    fallback: Fallback | None = None
    up: Behavior = field(default_factory=Behavior)
    down: Behavior = field(default_factory=lambda: Behavior(window=DEFAULT_DOWN_WINDOW))
    pause: Pause = field(default_factory=Pause)
    known: bool = True
    unforecast: str = ""
    hpa_unforecast: str = ""


def rules_of(scaled: ScaledObject | None, hpa: Hpa | None, findings: Iterable[Finding] = ()) -> Rules:
    """Return the rules of objects; KEDA's and the HPA's defaults where they aren't known.

    Args:
        scaled: the ScaledObject.
        hpa: the HPA that KEDA made of it.
        findings: what is wrong with them.
    """
    if scaled is None:
        return (
            Rules(known=False)
            if hpa is None
            else Rules(maximum=hpa.maximum, up=hpa.up, down=hpa.down, known=False)
        )
    misfits = dict.fromkeys(str(each.code) for each in findings if each.code in _OTHER_ARITHMETIC)
    return Rules(
        minimum=scaled.minimum,
        maximum=scaled.maximum if hpa is None else hpa.maximum,
        cooldown=scaled.cooldown,
        fallback=scaled.fallback,
        up=scaled.up if hpa is None else hpa.up,
        down=scaled.down if hpa is None else hpa.down,
        pause=scaled.pause,
        unforecast="scalingModifiers.formula" if scaled.formula else "",
        hpa_unforecast=", ".join(misfits),
    )


def proposed(rules: Rules, value: float, replicas: int | None) -> int:
    """Return the replicas that the HPA asks for: ceil(value / target), or those that there are within tolerance.

    Args:
        rules: tolerance and bounds.
        value: the metric, all replicas together.
        replicas: what there is; None while unknown: then tolerance is left out.
    """
    wanted = replicas if replicas and _tolerated(rules, value, replicas) else _wanted(value)
    return max(rules.minimum, 1, min(rules.maximum, wanted))


def _wanted(value: float) -> int:
    """Return the replicas that a value asks for by itself."""
    return math.ceil(_ratio(value, 1))


def _tolerated(rules: Rules, value: float, replicas: int) -> bool:
    """Whether the HPA leaves the replicas as they are, although the value says something else."""
    return 1 - rules.down.tolerance <= _ratio(value, replicas) <= 1 + rules.up.tolerance


def _ratio(value: float, replicas: int) -> float:
    """Return a value as a share of what replicas carry; Kubernetes keeps whole thousandths of it."""
    return round(value * 1000) / (TARGET * replicas * 1000)


def at_an_answer(rules: Rules, value: float, *, active: bool, replicas: int | None) -> Iterator[str]:
    """Say what follows from an answer, one sentence for KEDA and one for the HPA."""
    if rules.pause.stopped:
        yield "KEDA: nothing, it is paused"
        return
    if rules.unforecast:
        yield f"KEDA: not forecast: {rules.unforecast}"
        yield f"HPA:  not forecast: {rules.unforecast}"
        return
    yield f"KEDA: {_keda(rules, active=active or rules.pause.forced, replicas=replicas)}"
    if rules.hpa_unforecast:
        yield f"HPA:  not forecast: {rules.hpa_unforecast}"
    else:
        yield f"HPA:  {_hpa(rules, value, replicas)}"


def at_an_error(rules: Rules) -> Iterator[str]:
    """Say what follows from calls that fail."""
    if rules.pause.stopped:
        yield "KEDA: nothing, it is paused"
        return
    yield "KEDA: changes nothing between zero and one, and asks again at the next poll"
    fallback = rules.fallback
    if not rules.known:
        yield "HPA:  holds the replicas as they are, unless the ScaledObject has a fallback: --scaled-object FILE tells"
        return
    if fallback is None:
        yield "HPA:  holds the replicas as they are; the ScaledObject has no fallback"
        return
    what = {
        "static": f"{fallback.replicas} replicas, whatever there is",
        "currentReplicas": "the replicas that there are",
        "currentReplicasIfHigher": f"the replicas that there are, and {fallback.replicas} at least",
        "currentReplicasIfLower": f"the replicas that there are, and {fallback.replicas} at most",
    }.get(fallback.behavior, fallback.behavior)
    yield f"HPA:  holds, and after more than {fallback.threshold} failures in a row gets {what}"


def _keda(rules: Rules, *, active: bool, replicas: int | None) -> str:
    floor = max(1, rules.minimum)
    if active:
        if rules.pause.scale_out:
            return "active, and paused-scale-out lets nothing start from zero"
        if replicas == 0:
            return f"active: it sets the replicas from 0 to {floor}"
        unknown = f"; from 0 it would set them to {floor}" if replicas is None else ""
        return f"active: it leaves the replicas to the HPA{unknown}"
    if rules.minimum > 0:
        return f"not active: it leaves the replicas to the HPA, {rules.minimum} at least (minReplicaCount)"
    if rules.pause.scale_in:
        return "not active, and paused-scale-in keeps it from zero"
    return f"not active: {rules.cooldown:g} s after it was active last it sets the replicas to 0"


def _hpa(rules: Rules, value: float, replicas: int | None) -> str:
    if replicas == 0:
        return "nothing: at 0 replicas it is off"
    wanted, after = _wanted(value), proposed(rules, value, replicas)
    text = f"{value:g} of which one replica carries {TARGET}: it asks for {after}"
    if replicas and wanted != replicas == after and _tolerated(rules, value, replicas):
        return f"{text}, because {wanted} is within its tolerance of the {replicas} that there are"
    if after != wanted:
        bound = "maxReplicaCount" if wanted > after else "its minimum"
        text += f", for {wanted} is beyond {bound}"
    if replicas is None:
        return text
    if after > replicas and rules.pause.scale_out:
        return f"{text}, and paused-scale-out keeps {replicas}"
    if after < replicas:
        if rules.pause.scale_in:
            return f"{text}, and paused-scale-in keeps {replicas}"
        held = f"once that has held for {rules.down.window:g} s" if rules.down.window > 0 else "at once"
        return f"{text} in place of {replicas}, {held}"
    return f"{text} in place of {replicas}" if after != replicas else f"{text}, as there are"
