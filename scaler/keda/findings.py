"""What is wrong with a ScaledObject and the HPA that KEDA made of it, for the fleet that they are to size. PURE.

The HPA is what acts. KEDA makes it from the ScaledObject, and not always the one that was meant: an operator before 2.20 that can't
ask us at the moment a ScaledObject is applied makes one on CPU and keeps it, and one whose trigger changed may keep the target of
before. So both are looked at.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from scaler.keda.answers import TARGET
from scaler.keda.objects import PREFIX, Behavior, Hpa, HpaMetric, ScaledObject, Target
from scaler.keda.trigger import Subject, Value

_FIRST_WHOLE: Final = (2, 20)
"""The first line of KEDA that fails instead of making an HPA on CPU, and keeps connections of different certificates apart."""
_SCALED_OBJECT: Final = "ScaledObject"
_HPA: Final = "HorizontalPodAutoscaler"


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "Error"
    """The fleet gets another size than it is asked to have, or loses seats."""
    WARNING = "Warning"
    """It may, or does so late."""
    NOTE = "Note"
    """Good to know."""


class Code(StrEnum):
    """What was found: a closed list."""

    NO_TRIGGER = "NoTrigger"
    BAD_TRIGGER = "BadTrigger"
    BAD_FIELD = "BadField"
    OTHER_TRIGGERS = "OtherTriggers"
    FORMULA = "Formula"
    NO_PUSH = "NoPush"
    NOT_THE_TOTAL = "NotTheTotal"
    POLICY_SCALES_FLEET = "PolicyScalesFleet"
    SECOND_WRITER = "SecondWriter"
    OTHER_NAMESPACE = "OtherNamespace"
    WRONG_TARGET = "WrongTarget"
    MAX_BELOW_SEATS = "MaxBelowSeats"
    MIN_BELOW_FLOOR = "MinBelowFloor"
    IDLE_REPLICAS = "IdleReplicas"
    NO_FALLBACK = "NoFallback"
    FALLBACK_BELOW_RUNNING = "FallbackBelowRunning"
    FALLBACK_SHRINKS = "FallbackShrinks"
    FALLBACK_ZERO = "FallbackZero"
    DEAD_ZONE = "DeadZone"
    DISABLED = "Disabled"
    SLOW_SCALE_UP = "SlowScaleUp"
    WINDOWS_ADD_UP = "WindowsAddUp"
    TLS_IN_METADATA = "TlsInMetadata"
    PAUSED = "Paused"
    BAD_ANNOTATION = "BadAnnotation"
    ON_FALLBACK = "OnFallback"
    NOT_READY = "NotReady"
    RESOURCE_METRIC = "ResourceMetric"
    METRIC_MISSING = "MetricMissing"
    NOT_AVERAGE_VALUE = "NotAverageValue"
    TARGET_NOT_ONE = "TargetNotOne"
    NOT_KEDAS = "NotKedas"
    OLD_OPERATOR = "OldOperator"
    NO_SCALED_OBJECT = "NoScaledObject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or good to know.

    Attributes:
        code: what.
        severity: how much it matters.
        path: where, in the object that `object` names.
        object: ScaledObject, HorizontalPodAutoscaler or Fleet.
        message: what is wrong.
        hint: the mend.
    """

    code: Code
    severity: Severity
    path: str
    message: str
    hint: str = ""
    object: str = _SCALED_OBJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a fleet wants of what sizes it.

    Attributes:
        fleet: its name.
        namespace: its namespace.
        workload: what is scaled.
        max_seats: seats at most.
        floor: seats that there always are: floors of its policies and its least spares.
        by_keda: whether KEDA is the one who writes the size.
        down_window: seconds for which a total must have held before it falls.
        running: seats that there are; None while unknown.
    """

    fleet: str
    namespace: str
    workload: Target
    max_seats: int
    floor: int
    by_keda: bool
    down_window: float = 0.0
    running: int | None = None


def check(scaled: ScaledObject, hpa: Hpa | None = None, intent: Intent | None = None) -> tuple[Finding, ...]:
    """List what is found, the gravest first.

    Args:
        scaled: the ScaledObject.
        hpa: the HPA that KEDA made of it; None where it isn't known, or where KEDA is paused.
        intent: the fleet whose workload they are to size; None for companions, which follow some value and no fleet.
    """
    found = [*_triggers(scaled), *_misread(scaled), *_state(scaled, hpa)]
    sizes_fleet = intent is not None and scaled.target == intent.workload
    if intent is not None and sizes_fleet:
        found += [*_subject(scaled, intent), *_bounds(scaled, intent), *_fallback(scaled, intent)]
        found += _pace(scaled, hpa, intent)
    elif intent is not None and (
        scaled.target.name == intent.workload.name
        or any(each.asks.value is Value.TOTAL for each in scaled.own)
    ):
        found.append(_elsewhere(scaled, intent))
    if hpa is not None:
        found += _hpa(scaled, hpa)
        if intent is not None and sizes_fleet:
            found += _about(_HPA, _hpa_bounds(hpa, intent))
    unusable = {each.path for each in found if each.code is Code.BAD_FIELD}
    found = [each for each in found if each.code is Code.BAD_FIELD or each.path not in unusable]
    order = list(Severity)
    return tuple(sorted(found, key=lambda each: order.index(each.severity)))


# ------------------------------------------------------------------ the ScaledObject


def _triggers(scaled: ScaledObject) -> Iterator[Finding]:
    for text in scaled.broken:
        path, _, message = text.partition(": ")
        yield Finding(code=Code.BAD_TRIGGER, severity=Severity.ERROR, path=path, message=message)
    if not scaled.own and not scaled.broken:
        yield Finding(
            code=Code.NO_TRIGGER,
            severity=Severity.ERROR,
            path="spec.triggers",
            message="no trigger asks for a fleet or a policy",
            hint="add one of type external-push with metadata {scalerAddress: …, fleet: NAME}",
        )
    for each in scaled.own:
        path = f"spec.triggers[{each.index}]"
        if each.metric_type != "AverageValue":
            yield Finding(
                code=Code.NOT_AVERAGE_VALUE,
                severity=Severity.ERROR,
                path=f"{path}.metricType",
                message=f"{each.metric_type} makes the HPA multiply the value by the pods that are ready",
                hint="metricType: AverageValue, which is KEDA's default",
            )
        if not each.pushes:
            yield Finding(
                code=Code.NO_PUSH,
                severity=Severity.NOTE,
                path=f"{path}.type",
                message=f"external is only polled, each {scaled.polling:g} s: so late does a workload leave zero",
                hint="type: external-push",
            )
        for key in ("caCert", "tlsClientCert", "tlsClientKey"):
            if key in each.metadata:
                yield Finding(
                    code=Code.TLS_IN_METADATA,
                    severity=Severity.WARNING,
                    path=f"{path}.metadata.{key}",
                    message="KEDA reads certificates from a TriggerAuthentication alone, and their content, not a path",
                    hint="see deploy/keda/trigger-authentication.yaml",
                )
    if scaled.own and scaled.others:
        yield Finding(
            code=Code.OTHER_TRIGGERS,
            severity=Severity.WARNING,
            path="spec.triggers",
            message=f"beside {', '.join(scaled.others)}: one trigger that fails blanks the metrics of all of them",
            hint="give other triggers a ScaledObject and a workload of their own",
        )


def _misread(scaled: ScaledObject) -> Iterator[Finding]:
    for text in scaled.misread:
        path, _, message = text.partition(": ")
        yield Finding(
            code=Code.BAD_FIELD,
            severity=Severity.ERROR,
            path=path,
            message=message,
            hint="it is refused when it is applied, or by KEDA after that: the HPA stays as it was, or is never made",
        )


def _state(scaled: ScaledObject, hpa: Hpa | None) -> Iterator[Finding]:
    if scaled.pause.unreadable:
        yield Finding(
            code=Code.BAD_ANNOTATION,
            severity=Severity.ERROR,
            path=f"metadata.annotations[{PREFIX}paused-replicas]",
            message=f"unreadable value {scaled.pause.unreadable}: KEDA can't use what is no number of replicas",
            hint="a whole number from 0 on, or leave it out",
        )
    for text in scaled.pause.sentences("" if hpa is None else hpa.name):
        yield Finding(code=Code.PAUSED, severity=Severity.NOTE, path="metadata.annotations", message=text)
    if scaled.conditions.get("Fallback") == "True":
        yield Finding(
            code=Code.ON_FALLBACK,
            severity=Severity.ERROR,
            path="status.conditions[Fallback]",
            message="KEDA is on its fallback: what is answered doesn't reach the HPA",
            hint="emberpool keda check --address … shows what KEDA gets",
        )
    if scaled.conditions.get("Ready") == "False":
        yield Finding(
            code=Code.NOT_READY,
            severity=Severity.ERROR,
            path="status.conditions[Ready]",
            message="KEDA can't use the ScaledObject",
            hint=f"kubectl describe scaledobject {scaled.name} -n {scaled.namespace} shows its events",
        )


def _subject(scaled: ScaledObject, intent: Intent) -> Iterator[Finding]:
    if scaled.namespace != intent.namespace:
        yield Finding(
            code=Code.OTHER_NAMESPACE,
            severity=Severity.ERROR,
            path="metadata.namespace",
            message=f"it scales {scaled.target.name} in {scaled.namespace}, and the fleet is in {intent.namespace}",
        )
    if not intent.by_keda:
        yield Finding(
            code=Code.SECOND_WRITER,
            severity=Severity.ERROR,
            path="spec.scaleTargetRef",
            message=f"fleet {intent.fleet} is resized by Emberpool: two would write the replicas of {scaled.target.name}",
            hint="set resizedBy: Keda in the Fleet, or delete the ScaledObject",
        )
    for each in scaled.own:
        path = f"spec.triggers[{each.index}].metadata"
        if each.asks.subject is Subject.POLICY:
            yield Finding(
                code=Code.POLICY_SCALES_FLEET,
                severity=Severity.ERROR,
                path=f"{path}.policy",
                message=f"the workload of fleet {intent.fleet} would follow {each.asks.value} of a policy: it has no spares,"
                " and other policies of the fleet none of their seats",
                hint=f"fleet: {intent.fleet}",
            )
        elif each.asks.name != intent.fleet:
            yield Finding(
                code=Code.WRONG_TARGET,
                severity=Severity.ERROR,
                path=f"{path}.fleet",
                message=f"it scales the workload of fleet {intent.fleet} by the numbers of {each.asks.name}",
            )
        elif each.asks.value is not Value.TOTAL:
            yield Finding(
                code=Code.NOT_THE_TOTAL,
                severity=Severity.ERROR,
                path=f"{path}.value",
                message=f"{each.asks.value} is a part of the fleet: the rest of its seats would be deleted",
                hint="leave value out, or value: Total",
            )
    if scaled.formula:
        yield Finding(
            code=Code.FORMULA,
            severity=Severity.WARNING,
            path="spec.advanced.scalingModifiers.formula",
            message="the formula's value replaces the one that is answered, and decides about zero as well",
            hint="leave scalingModifiers out: the value is the number of replicas",
        )


def _elsewhere(scaled: ScaledObject, intent: Intent) -> Finding:
    other_kind = scaled.target.name == intent.workload.name
    return Finding(
        code=Code.WRONG_TARGET,
        severity=Severity.ERROR if other_kind else Severity.WARNING,
        path=f"spec.scaleTargetRef.{'kind' if other_kind else 'name'}",
        message=f"fleet {intent.fleet} is {intent.workload.kind} {intent.workload.name}, and this scales"
        f" {scaled.target.kind} {scaled.target.name}",
        hint=f"kind: {intent.workload.kind}, or the Fleet's spec.target" if other_kind else "",
    )


def _bounds(scaled: ScaledObject, intent: Intent) -> Iterator[Finding]:
    yield from _max(scaled.maximum, "spec.maxReplicaCount", intent)
    yield from _min(scaled.minimum, "spec.minReplicaCount", intent)
    if scaled.idle is not None:
        yield Finding(
            code=Code.IDLE_REPLICAS,
            severity=Severity.WARNING if intent.floor else Severity.NOTE,
            path="spec.idleReplicaCount",
            message=f"while nothing is active KEDA keeps {scaled.idle} replicas, below minReplicaCount",
            hint="leave it out",
        )


def _max(maximum: int, path: str, intent: Intent) -> Iterator[Finding]:
    if maximum < intent.max_seats:
        yield Finding(
            code=Code.MAX_BELOW_SEATS,
            severity=Severity.ERROR,
            path=path,
            message=f"{maximum} is below the {intent.max_seats} seats that fleet {intent.fleet} may have",
            hint=f"set it to {intent.max_seats}, or lower maxSeats: the law counts on seats that never come",
        )


def _min(minimum: int, path: str, intent: Intent) -> Iterator[Finding]:
    if minimum < intent.floor:
        yield Finding(
            code=Code.MIN_BELOW_FLOOR,
            severity=Severity.ERROR,
            path=path,
            message=f"{minimum} is below the {intent.floor} seats that fleet {intent.fleet} always has (floors and spare.min)",
            hint=f"set it to {intent.floor}: it is what holds while nobody answers",
        )


def _fallback(scaled: ScaledObject, intent: Intent) -> Iterator[Finding]:
    fallback = scaled.fallback
    replicas = max(1, intent.floor)
    hint = f"fallback: {{failureThreshold: 3, replicas: {replicas}, behavior: currentReplicasIfHigher}}"
    if fallback is None:
        yield Finding(
            code=Code.NO_FALLBACK,
            severity=Severity.NOTE,
            path="spec.fallback",
            message="without one the replicas stay as they are while nobody answers, and don't come up to the floor",
            hint=hint,
        )
        return
    if fallback.replicas == 0 and scaled.minimum == 0:
        yield Finding(
            code=Code.FALLBACK_ZERO,
            severity=Severity.ERROR,
            path="spec.fallback.replicas",
            message="with 0 KEDA goes on to zero while nobody answers: it takes unknown for inactive",
            hint=hint,
        )
    running = intent.max_seats if intent.running is None else intent.running
    if fallback.behavior == "static" and fallback.replicas < running:
        known = intent.running is not None
        yield Finding(
            code=Code.FALLBACK_BELOW_RUNNING,
            severity=Severity.ERROR if known else Severity.WARNING,
            path="spec.fallback",
            message=f"a static fallback of {fallback.replicas} deletes seats when nobody answers: the fleet"
            f" {'has' if known else 'may have'} {running}",
            hint=hint,
        )
    elif fallback.behavior == "currentReplicasIfLower":
        yield Finding(
            code=Code.FALLBACK_SHRINKS,
            severity=Severity.WARNING,
            path="spec.fallback.behavior",
            message=f"{fallback.behavior} lowers the fleet to {fallback.replicas} when nobody answers",
            hint=hint,
        )


def _pace(scaled: ScaledObject, hpa: Hpa | None, intent: Intent) -> Iterator[Finding]:
    """Look at the HPA's behavior, or at what the ScaledObject wants it to be."""
    if hpa is None:
        up, down, where = scaled.up, scaled.down, "spec.advanced.horizontalPodAutoscalerConfig.behavior"
        of = _SCALED_OBJECT
    else:
        up, down, where, of = hpa.up, hpa.down, "spec.behavior", _HPA
    found = [*_direction(f"{where}.scaleUp", up, intent), *_direction(f"{where}.scaleDown", down, intent)]
    if up.window > 0 or not up.policies:
        slow = (
            f"a window of {up.window:g} s" if up.window > 0 else "four pods or 100 % each 15 s, its default"
        )
        found.append(
            Finding(
                code=Code.SLOW_SCALE_UP,
                severity=Severity.NOTE,
                path=f"{where}.scaleUp",
                message=f"the HPA holds growth back by {slow}",
                hint=f"policies: [{{type: Pods, value: {intent.max_seats}, periodSeconds: 15}}]; replenish paces it already",
            )
        )
    if down.window > 0 and intent.down_window > 0:
        found.append(
            Finding(
                code=Code.WINDOWS_ADD_UP,
                severity=Severity.NOTE,
                path=f"{where}.scaleDown.stabilizationWindowSeconds",
                message=f"the HPA's window of {down.window:g} s begins when the fleet's own {intent.down_window:g} s have"
                " passed",
                hint="stabilizationWindowSeconds: 0",
            )
        )
    return _about(of, found)


def _direction(path: str, behavior: Behavior, intent: Intent) -> Iterator[Finding]:
    if behavior.disabled:
        yield Finding(
            code=Code.DISABLED,
            severity=Severity.ERROR,
            path=f"{path}.selectPolicy",
            message="the HPA changes nothing in this direction",
        )
    if behavior.tolerance > 0 and (first := math.ceil(1 / behavior.tolerance)) <= intent.max_seats:
        yield Finding(
            code=Code.DEAD_ZONE,
            severity=Severity.WARNING,
            path=f"{path}.tolerance",
            message=f"a tolerance of {behavior.tolerance:.0%} ignores a change of one seat from {first} seats on, and at"
            f" {intent.max_seats} seats of up to {math.floor(intent.max_seats * behavior.tolerance)}",
            hint="tolerance: 0 (by default possible since Kubernetes 1.35), or as many spares",
        )


# ------------------------------------------------------------------ the HPA


def _about(name: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings as ones about an object."""
    return (replace(each, object=name) for each in findings)


def _hpa_bounds(hpa: Hpa, intent: Intent) -> Iterator[Finding]:
    yield from _max(hpa.maximum, "spec.maxReplicas", intent)
    yield from _min(hpa.minimum, "spec.minReplicas", intent)


def _hpa(scaled: ScaledObject, hpa: Hpa) -> Iterator[Finding]:
    if hpa.owner != f"ScaledObject/{scaled.name}" or hpa.target != scaled.target:
        yield _of_hpa(
            Code.NOT_KEDAS,
            "metadata.ownerReferences",
            f"it is owned by {hpa.owner or 'nobody'} and scales {hpa.target.kind} {hpa.target.name}: not the HPA of"
            f" ScaledObject {scaled.name}",
            hint="two HPAs on one workload overwrite each other",
        )
    if old := _old(hpa.version):
        yield _of_hpa(
            Code.OLD_OPERATOR,
            "metadata.labels",
            f"KEDA {hpa.version} is older than 2.20: {old}",
            severity=Severity.WARNING,
            hint="update the operator",
        )
    names = {each.metric for each in scaled.own}
    for index, metric in enumerate(hpa.metrics):
        yield from _metric(f"spec.metrics[{index}]", metric, names)
    if scaled.formula:
        return  # KEDA then asks for one metric of its own making
    for name in sorted(names - {each.name for each in hpa.metrics}):
        yield _of_hpa(
            Code.METRIC_MISSING,
            "spec.metrics",
            f"it doesn't ask for {name}, which the ScaledObject's trigger is",
            hint="kubectl annotate the ScaledObject, or change it, so that KEDA reconciles it",
        )


def _metric(path: str, metric: HpaMetric, own: Collection[str]) -> Iterator[Finding]:
    if metric.type != "External":
        yield _of_hpa(
            Code.RESOURCE_METRIC,
            path,
            f"it scales on {metric.name or metric.type} ({metric.type}): KEDA before 2.20 makes such an HPA when the scaler"
            " doesn't answer as the ScaledObject is applied, and keeps it",
            hint="delete the HPA, and KEDA makes it anew; update KEDA",
        )
        return
    if metric.name not in own:
        return
    if metric.target_type != "AverageValue":
        yield _of_hpa(
            Code.NOT_AVERAGE_VALUE,
            f"{path}.external.target.type",
            f"{metric.target_type} makes the HPA multiply the value by the pods that are ready",
            hint="metricType: AverageValue in the trigger",
        )
    if metric.target != TARGET:
        yield _of_hpa(
            Code.TARGET_NOT_ONE,
            f"{path}.external.target",
            f"the target is {metric.target}, and one replica is worth {TARGET}: an earlier target, which KEDA doesn't replace"
            " until the ScaledObject is reconciled",
            hint="change the ScaledObject's spec, or delete the HPA",
        )


def _of_hpa(
    code: Code, path: str, message: str, *, hint: str, severity: Severity = Severity.ERROR
) -> Finding:
    return Finding(code=code, severity=severity, path=path, message=message, hint=hint, object=_HPA)


def _old(version: str) -> str:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= _FIRST_WHOLE:
        return ""
    return "it makes an HPA on CPU when the scaler doesn't answer at first, and mixes up client certificates"
