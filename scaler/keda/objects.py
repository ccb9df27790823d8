"""ScaledObjects and the HPAs that KEDA makes of them, read from their JSON as Kubernetes gives it. PURE.

What is read is what decides about a fleet's size: bounds, tolerance, windows, the fallback, and the annotations by which people
stop KEDA. Defaults are KEDA's and the HPA's own (keda.sh, "ScaledObject specification"; kubernetes.io, "Horizontal Pod
Autoscaling").
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scaler.errors import UserError
from scaler.keda.trigger import BadTrigger, Trigger, asks_nothing, read, shown
from scaler.policy.quantity import quantity

Json = Mapping[str, Any]

PREFIX: Final = "autoscaling.keda.sh/"
"""Of the annotations that KEDA acts on."""
DEFAULT_MAX: Final = 100
DEFAULT_COOLDOWN: Final = 300.0
DEFAULT_POLLING: Final = 30.0
DEFAULT_TOLERANCE: Final = 0.1
DEFAULT_DOWN_WINDOW: Final = 300.0
_EXTERNAL: Final = frozenset({"external", "external-push"})
_ADDRESS: Final = "scalerAddress"
_FALLBACKS: Final = ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")
"""What `fallback.behavior` may be; the API server refuses anything else."""
_NUMBERS: Final = (
    "minReplicaCount",
    "maxReplicaCount",
    "idleReplicaCount",
    "pollingInterval",
    "cooldownPeriod",
)
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""What Go reads as false; KEDA takes everything that isn't a boolean for true."""


class NotReadable(UserError):
    """An object isn't what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """How people have stopped KEDA, by annotations.

    Attributes:
        stopped: KEDA doesn't poll, and has deleted the HPA.
        replicas: what it has set the replicas to before; None: they stay.
        scale_in: nothing is scaled down.
        scale_out: nothing is scaled up, activation by a push included.
        forced: the workload counts as active, whatever its triggers say.
        unreadable: `paused-replicas`, where it is no number of replicas; empty otherwise.
    """

    stopped: bool = False
    replicas: int | None = None
    scale_in: bool = False
    scale_out: bool = False
    forced: bool = False
    unreadable: str = ""

    def sentences(self, hpa: str = "") -> Iterator[str]:
        """Say what it means.

        Args:
            hpa: the name of an HPA that is there all the same; empty: none is known.
        """
        still = f"HorizontalPodAutoscaler {hpa} is there all the same, and scales"
        if self.replicas is not None:
            yield f"paused at {self.replicas} replicas: KEDA doesn't ask, and {still if hpa else 'deletes its HPA'}"
        elif self.stopped and hpa:
            yield f"paused: KEDA doesn't ask, and {still}"
        elif self.stopped:
            yield "paused: KEDA doesn't ask and deletes its HPA, and the replicas stay as they are"
        if self.scale_in:
            yield "paused-scale-in: nothing is scaled down"
        if self.scale_out:
            yield "paused-scale-out: nothing is scaled up, and a push activates nothing"
        if self.forced:
            yield "force-activation: it counts as active, whatever is answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTrigger:
    """A trigger that asks for one of our numbers.

    Attributes:
        index: its place among the triggers; KEDA puts `s<index>-` in front of the metric's name.
        pushes: whether KEDA opens streams for it.
        asks: what it asks for.
        metric_type: how the HPA compares the value.
        metadata: all of it.
    """

    index: int
    pushes: bool
    asks: Trigger
    metric_type: str
    metadata: Mapping[str, str]

    @property
    def metric(self) -> str:
        """The metric's name in the HPA."""
        return f"s{self.index}-{self.asks.metric}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What a ScaledObject does while a trigger fails.

    Attributes:
        threshold: checks that must fail, one after the other; it begins with the next.
        replicas: what it speaks of.
        behavior: how.
    """

    threshold: int
    replicas: int
    behavior: str = "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """One direction of an HPA's `behavior`.

    Attributes:
        tolerance: change, as share, up to which nothing is done.
        window: seconds.
        disabled: nothing changes in this direction.
        policies: whether there are others than by default.
    """

    tolerance: float = DEFAULT_TOLERANCE
    window: float = 0.0
    disabled: bool = False
    policies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A workload."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledObject:
    """A ScaledObject, as far as it matters here.

    Attributes:
        name: its name.
        namespace: its namespace.
        target: the workload that it scales.
        minimum: `minReplicaCount`.
        maximum: `maxReplicaCount`.
        idle: `idleReplicaCount`; None where it has none.
        polling: seconds between two polls.
        cooldown: seconds without activity after which KEDA scales to zero.
        fallback: what it does while a trigger fails; None where it says nothing of that.
        up: how its HPA is to grow.
        down: how its HPA is to shrink.
        own: triggers that ask for one of our numbers.
        others: what other triggers are, by type, and external ones with their address.
        broken: what is wrong with triggers that should be ours, each as `path: message`.
        misread: fields that KEDA can't use, likewise; each counts as its default here.
        formula: whether a formula replaces the values.
        pause: how people have stopped KEDA for it.
        conditions: of its status, by type.
    """

    name: str
    namespace: str
    target: Target
    minimum: int
    maximum: int
    idle: int | None
    polling: float
    cooldown: float
    fallback: Fallback | None
    up: Behavior
    down: Behavior
    own: tuple[OwnTrigger, ...]
    others: tuple[str, ...]
    broken: tuple[str, ...]
    misread: tuple[str, ...]
    formula: bool
    pause: Pause
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaMetric:
    """One metric of an HPA.

    Attributes:
        type: External, Resource and others.
        name: its name.
        target_type: Value, AverageValue or Utilization.
        target: the number; None where it isn't one.
    """

    type: str
    name: str
    target_type: str
    target: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hpa:
    """A HorizontalPodAutoscaler, as far as it matters here."""

    name: str
    namespace: str
    target: Target
    minimum: int
    maximum: int
    metrics: tuple[HpaMetric, ...]
    up: Behavior
    down: Behavior
    owner: str
    version: str
    replicas: int | None


def read_scaled_object(data: object) -> ScaledObject:
    """Read a ScaledObject.

    Raises:
        NotReadable: it isn't one.
    """
    spec, meta = _parts(data, "ScaledObject")
    advanced = _map(spec.get("advanced"))
    behavior = _map(_map(advanced.get("horizontalPodAutoscalerConfig")).get("behavior"))
    triggers = [_map(each) for each in _list(spec.get("triggers"))]
    own, strangers, broken = _own(triggers)
    target = _map(spec.get("scaleTargetRef"))
    minimum = _integer(spec, "minReplicaCount", 0)
    status = _map(_map(data).get("status"))
    return ScaledObject(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "default")),
        target=Target(kind=str(target.get("kind") or "Deployment"), name=str(target.get("name", ""))),
        minimum=minimum,
        maximum=_integer(spec, "maxReplicaCount", DEFAULT_MAX),
        idle=_integer(spec, "idleReplicaCount", 0) if spec.get("idleReplicaCount") is not None else None,
        polling=float(_integer(spec, "pollingInterval", int(DEFAULT_POLLING))),
        cooldown=float(_integer(spec, "cooldownPeriod", int(DEFAULT_COOLDOWN))),
        fallback=_fallback(spec.get("fallback")),
        up=_behavior(behavior.get("scaleUp"), 0.0),
        down=_behavior(behavior.get("scaleDown"), DEFAULT_DOWN_WINDOW),
        own=own,
        others=(
            *(str(each.get("type", "")) for each in triggers if each.get("type") not in _EXTERNAL),
            *strangers,
        ),
        broken=broken,
        misread=tuple(_misread(spec)),
        formula=bool(_map(advanced.get("scalingModifiers")).get("formula")),
        pause=read_pause(_map(meta.get("annotations"))),
        conditions={
            str(each.get("type")): str(each.get("status"))
            for each in map(_map, _list(status.get("conditions")))
        },
    )


def read_pause(annotations: Mapping[str, Any]) -> Pause:
    """Read how people have stopped KEDA."""

    def on(key: str) -> bool:
        written = annotations.get(PREFIX + key)
        return written is not None and str(written) not in _FALSE

    written = annotations.get(f"{PREFIX}paused-replicas")
    replicas = _replicas(written)
    return Pause(
        stopped=replicas is not None or on("paused"),
        replicas=replicas,
        scale_in=on("paused-scale-in"),
        scale_out=on("paused-scale-out"),
        forced=on("force-activation"),
        unreadable="" if written is None or replicas is not None else shown(str(written)),
    )


def _replicas(written: object) -> int | None:
    """Return a number of replicas as Go reads a number; None where it is none."""
    text = str(written)
    return int(text) if re.fullmatch(r"\+?[0-9]{1,9}|-0{1,9}", text) else None


def read_hpa(data: object) -> Hpa:
    """Read a HorizontalPodAutoscaler of autoscaling/v2.

    Raises:
        NotReadable: it isn't one.
    """
    spec, meta = _parts(data, "HorizontalPodAutoscaler")
    target, behavior = _map(spec.get("scaleTargetRef")), _map(spec.get("behavior"))
    owners = [_map(each) for each in _list(meta.get("ownerReferences"))]
    owner = next((each for each in owners if each.get("controller")), {})
    status = _map(_map(data).get("status"))
    replicas = status.get("currentReplicas")
    return Hpa(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "default")),
        target=Target(kind=str(target.get("kind", "")), name=str(target.get("name", ""))),
        minimum=_integer(spec, "minReplicas", 1),
        maximum=_integer(spec, "maxReplicas", 0),
        metrics=tuple(_metric(_map(each)) for each in _list(spec.get("metrics"))),
        up=_behavior(behavior.get("scaleUp"), 0.0),
        down=_behavior(behavior.get("scaleDown"), DEFAULT_DOWN_WINDOW),
        owner=f"{owner.get('kind', '')}/{owner.get('name', '')}" if owner else "",
        version=str(_map(meta.get("labels")).get("app.kubernetes.io/version", "")),
        replicas=replicas if isinstance(replicas, int) else None,
    )


def _own(triggers: Sequence[Json]) -> tuple[tuple[OwnTrigger, ...], tuple[str, ...], tuple[str, ...]]:
    """Return external triggers: those of ours, what others beside them are, and what is wrong with any."""
    own, failed, broken = list[OwnTrigger](), list[tuple[int, str, Mapping[str, str], str]](), list[str]()
    for index, each in enumerate(triggers):
        if each.get("type") not in _EXTERNAL:
            continue
        metadata = {str(key): str(value) for key, value in _map(each.get("metadata")).items()}
        try:
            asks = read(metadata)
        except BadTrigger as error:
            failed.append((index, str(each.get("type")), metadata, str(error)))
            continue
        if not metadata.get(_ADDRESS):
            broken.append(
                f"spec.triggers[{index}].metadata.{_ADDRESS}: it is missing, and KEDA has nobody to ask without it"
            )
        own.append(
            OwnTrigger(
                index=index,
                pushes=each.get("type") == "external-push",
                asks=asks,
                metric_type=str(each.get("metricType") or "AverageValue"),
                metadata=metadata,
            )
        )
    ours = {each.metadata.get(_ADDRESS) for each in own}
    strangers = []
    for index, kind, given, why in failed:
        address = given.get(_ADDRESS)
        if own and address and address not in ours and asks_nothing(given):
            strangers.append(f"{kind} of {shown(address)}")
        else:
            broken.append(f"spec.triggers[{index}].metadata: {why}")
    return tuple(own), tuple(strangers), tuple(broken)


def _misread(spec: Json) -> Iterator[str]:
    """Yield what of a ScaledObject's specification KEDA, or the API server before it, refuses."""
    fallback = _map(spec.get("fallback"))
    numbers = {f"spec.{key}": spec.get(key) for key in _NUMBERS}
    numbers |= {f"spec.fallback.{key}": fallback.get(key) for key in ("failureThreshold", "replicas")}
    for path, number in numbers.items():
        if number is not None and not _is_count(number):
            yield f"{path}: {shown(str(number))} is no whole number from 0 on"
    behavior = fallback.get("behavior")
    if behavior and behavior not in _FALLBACKS:
        yield f"spec.fallback.behavior: {shown(str(behavior))} is none; take one of {', '.join(_FALLBACKS)}"
    minimum, maximum = _integer(spec, "minReplicaCount", 0), _integer(spec, "maxReplicaCount", DEFAULT_MAX)
    if minimum > maximum:
        yield f"spec.minReplicaCount: {minimum} is above maxReplicaCount, {maximum}"


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _fallback(data: object) -> Fallback | None:
    if not isinstance(data, Mapping):
        return None
    return Fallback(
        threshold=_integer(data, "failureThreshold", 0),
        replicas=_integer(data, "replicas", 0),
        behavior=str(data.get("behavior") or "static"),
    )


def _behavior(data: object, window: float) -> Behavior:
    found = _map(data)
    tolerance = quantity(found["tolerance"]) if "tolerance" in found else None
    return Behavior(
        tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance,
        window=float(_integer(found, "stabilizationWindowSeconds", int(window))),
        disabled=found.get("selectPolicy") == "Disabled",
        policies=bool(_list(found.get("policies"))),
    )


def _metric(data: Json) -> HpaMetric:
    kind = str(data.get("type", ""))
    body = _map(data.get(kind[:1].lower() + kind[1:]))
    metric, target = _map(body.get("metric")), _map(body.get("target"))
    number = target.get("averageValue", target.get("value", target.get("averageUtilization")))
    return HpaMetric(
        type=kind,
        name=str(metric.get("name") or body.get("name", "")),
        target_type=str(target.get("type", "")),
        target=quantity(number),
    )


def _parts(data: object, kind: str) -> tuple[Json, Json]:
    body = _map(data)
    if body.get("kind") != kind:
        raise NotReadable(
            f"this is no {kind}", hint=f"kubectl get {kind.lower()} NAME -o json prints one, -o yaml too"
        )
    return _map(body.get("spec")), _map(body.get("metadata"))


def _map(data: object) -> Json:
    return data if isinstance(data, Mapping) else {}


def _list(data: object) -> Sequence[Any]:
    return data if isinstance(data, list | tuple) else ()


def _integer(data: Json, key: str, default: int) -> int:
    found = data.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else default
