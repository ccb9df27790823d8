"""The formats that people write: `Fleet`, what there is, and `ScalingPolicy`, what one model needs.

Each field's docstring is its reference: meaning, unit, default and why. Numbers are integers with their unit in the
name; what they become in the law is `scaler.policy.compile`'s business.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StringConstraints

from scaler.policy.base import EXPECTS, Broken, Envelope, Name, PolicyModel
from scaler.policy.document import Path

_MOST_SEATS: Final = 100_000
_MOST_RESIDENTS: Final = 1_000_000
_DAY: Final = 86_400

Count: TypeAlias = Annotated[int, Field(ge=0, le=_MOST_RESIDENTS)]
ModelName: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=r"^[!-~]+$", max_length=256),
    Field(
        json_schema_extra={EXPECTS: "a model name (printable ASCII without spaces, at most 256 characters)"}
    ),
]
Argument: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=r"^[^\x00]*$", max_length=4096),
    Field(json_schema_extra={EXPECTS: "text of at most 4096 characters"}),
]


# ------------------------------------------------------------------ Fleet


class FleetMode(StrEnum):
    """What a fleet's decisions do."""

    ENFORCE = "Enforce"
    """They are carried out."""
    OBSERVE = "Observe"
    """They are published and recorded, and nothing is written."""


class KvWhenPaused(StrEnum):
    """What a paused resident does with its KV memory."""

    RELEASE = "Release"
    """It gives it back, so that a neighbour on the seat can use it."""
    KEEP = "Keep"
    """It keeps it: a faster promotion, for seats with a single resident."""


class SpareMode(StrEnum):
    """How the number of spare seats is found."""

    FIXED = "Fixed"
    """It is `min`."""


class SeatShape(PolicyModel):
    """What one seat of the fleet is made of."""

    gpus: Annotated[int, Field(ge=0, le=16)] = 1
    """GPUs of one seat, which every resident of the seat uses as a whole. The default is one, the usual case; 0 is for
    engines that run on CPU."""
    kv_when_paused: KvWhenPaused = KvWhenPaused.RELEASE
    """Whether a paused resident gives back its KV memory. The default is `Release`, because seats that several models
    share need it; `Keep` saves the allocation at promotion where a seat has one resident."""


class Replenish(PolicyModel):
    """How fast spare seats are grown back."""

    max_concurrent: Annotated[int, Field(ge=1, le=1000)] = 4
    """Seats that may be starting at once. The default of four keeps a shared disk or registry from being the bottleneck
    of all of them."""
    per_minute: Annotated[int, Field(ge=1, le=10_000)] = 12
    """Seats that may be started within any 60 seconds. The default of twelve bounds what a wrong signal can cost."""


class Spare(PolicyModel):
    """Seats that stand ready with nothing serving on them."""

    mode: SpareMode = SpareMode.FIXED
    """How the target is found. `Fixed`: it is `min`."""
    min: Annotated[int, Field(ge=0, le=_MOST_SEATS)] = 0
    """Spare seats that there should be at least. The default is 0, because each of them costs a seat: say how many
    seats' worth of burst must be served before new seats have started."""
    max: Annotated[int, Field(ge=0, le=_MOST_SEATS)] | None = None
    """Spare seats that there should be at most, whatever finds the target. By default the fleet's `maxSeats` is the
    only limit; with mode `Fixed` the target is `min`, and `max` only has to leave room for it."""
    replenish: Replenish = Replenish()
    """How fast spare seats are grown back after a burst took them."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that bounds are in order."""
        if self.max is not None and self.min > self.max:
            message = f"must be ≤ max ({self.min} > {self.max})"
            yield Broken(path=("min",), message=message, hint="raise max or lower min")


class ScaleDown(PolicyModel):
    """When seats are deleted."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=_DAY)] = 300
    """Seconds for which a smaller total must have held before seats are deleted. The default is five minutes, as in
    HorizontalPodAutoscaler: pausing a resident is quick to undo, deleting a seat is not."""


class FleetSpec(PolicyModel):
    """What there is."""

    max_seats: Annotated[int, Field(ge=1, le=_MOST_SEATS)]
    """Seats that the fleet may have at most. There is no default: it is what the fleet may cost."""
    mode: FleetMode = FleetMode.ENFORCE
    """What decisions do. The default is `Enforce`; `Observe` decides, publishes and records what it would do, and
    writes nothing, to look at a policy before trusting it."""
    seat: SeatShape = SeatShape()
    """What one seat is made of."""
    spare: Spare = Spare()
    """Seats that stand ready with nothing serving on them."""
    scale_down: ScaleDown = ScaleDown()
    """When seats are deleted."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that the spares find room."""
        for key, value in (("min", self.spare.min), ("max", self.spare.max)):
            if value is not None and value > self.max_seats:
                message = f"must be ≤ spec.maxSeats ({value} > {self.max_seats})"
                yield Broken(
                    path=("spare", key), message=message, hint=f"raise maxSeats or lower spare.{key}"
                )


class Fleet(Envelope):
    """What there is: the seats of one workload, all with the same GPUs and the same residents."""

    kind: Literal["Fleet"]
    """Which format the document has."""
    spec: FleetSpec
    """What there is."""


# ------------------------------------------------------------------ ScalingPolicy


class FleetShare(PolicyModel):
    """One fleet that a policy may serve on."""

    name: Name
    """Name of the fleet."""
    target_in_flight: Annotated[int, Field(ge=1, le=100_000)]
    """Requests in flight that one seat of this fleet holds for this policy. There is no default: measure at which
    concurrency the engine still keeps its objective on these GPUs. It is also what the gateway sends there at most."""


class EngineType(StrEnum):
    """Which engine serves the model."""

    REFERENCE = "Reference"
    """Emberpool's own small engine."""
    VLLM = "VLLM"
    """vLLM."""


class Engine(PolicyModel):
    """The engine that serves the model."""

    type: EngineType = EngineType.REFERENCE
    """Which engine. The default is `Reference`, which needs nothing but this project."""
    args: tuple[Argument, ...] = ()
    """Arguments that are added to the engine's command, one per entry."""


class Ttft(PolicyModel):
    """Within which time the first token should be there, and for how many requests."""

    seconds: Annotated[int, Field(ge=1, le=3600)] | None = None
    """Time to first token in seconds. Give either this or `milliseconds`; with neither it is one second, which people
    at a prompt still take for an answer."""
    milliseconds: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """Time to first token in milliseconds."""
    percent: Annotated[int, Field(ge=1, le=100)] = 99
    """Share of requests for which it should hold. The default is 99."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that there is one time."""
        if self.seconds is not None and self.milliseconds is not None:
            yield Broken(
                path=("milliseconds",), message="seconds is given as well", hint="keep one of the two"
            )

    @property
    def limit_seconds(self) -> float:
        """The time to first token, in seconds."""
        if self.milliseconds is not None:
            return self.milliseconds / 1000
        return 1.0 if self.seconds is None else float(self.seconds)


class Objectives(PolicyModel):
    """What users of the model may expect."""

    ttft: Ttft = Ttft()
    """Time to first token. A request that has waited so long that this is at risk begins a burst."""


class Serving(PolicyModel):
    """How many residents serve."""

    min: Count = 1
    """Residents that always serve: the floor, on every path. The default is one, so that a first request waits for no
    promotion; 0 lets the model rest entirely, which needs the gateway or a queue to see the next request."""
    max: Count | None = None
    """Residents that serve at most. By default only the fleets' seats are a limit."""
    queue_drain_seconds: Annotated[int, Field(ge=1, le=3600)] = 2
    """Seconds within which what waits should be admitted: a queue that would take longer asks for more residents. The
    default of two seconds answers a burst at once and still rides over a hiccup."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that bounds are in order."""
        if self.max is not None and self.min > self.max:
            message = f"must be ≤ max ({self.min} > {self.max})"
            yield Broken(path=("min",), message=message, hint="raise max or lower min")


class Burst(PolicyModel):
    """When the short window rules, and how slowly things calm down."""

    threshold_percent: Annotated[int, Field(ge=101, le=1000)] = 150
    """A burst begins when demand over the short window reaches this share of the serving capacity, in percent. The
    default is 150: half as much again as can be served is no fluctuation."""
    window_seconds: Annotated[int, Field(ge=1, le=600)] = 6
    """Seconds of the short window, over which the maximum counts. The default is six, a tenth of the stable window, as
    in Knative."""
    stable_window_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Seconds of the long window, over which the mean counts; a burst ends after one such window below its threshold.
    The default is 60, as in Knative."""
    demote_after_seconds: Annotated[int, Field(ge=0, le=_DAY)] = 60
    """Seconds for which a smaller answer must have held before a serving resident is paused. The default is 60; pausing
    only gives the seat back, so it need not be long."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that the long window is the longer one."""
        if self.stable_window_seconds < self.window_seconds:
            message = f"must be ≥ windowSeconds ({self.stable_window_seconds} < {self.window_seconds})"
            hint = "raise stableWindowSeconds or lower windowSeconds"
            yield Broken(path=("stableWindowSeconds",), message=message, hint=hint)


class FallbackBehavior(StrEnum):
    """What to do while nothing is known of the load (KEDA's names)."""

    CURRENT_REPLICAS_IF_HIGHER = "CurrentReplicasIfHigher"
    """Keep what serves, and serve with at least `replicas`."""


class Fallback(PolicyModel):
    """What to do while nothing is known of the load."""

    failure_threshold: Annotated[int, Field(ge=1, le=3600)] = 3
    """Samples in a row that must be missing before the signals count as missing. Samples are due each second, so it is
    also a number of seconds. The default is three, as in KEDA's examples."""
    behavior: FallbackBehavior = FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER
    """What to do then. `CurrentReplicasIfHigher`: keep what serves, and serve with at least `replicas`."""
    replicas: Count = 0
    """Residents that serve at least while signals are missing. The default is 0: what serves goes on serving, and the
    floor `serving.min` holds anyway."""


class ScalingPolicySpec(PolicyModel):
    """What one model needs."""

    fleets: Annotated[tuple[FleetShare, ...], Field(min_length=1)]
    """Fleets that it may serve on, in order: its own first, shared ones after it as the bridge."""
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = None
    """Model names in requests that belong to this policy. The default is the policy's own name. A name belongs to one
    policy only."""
    engine: Engine = Engine()
    """The engine that serves it."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Who goes first when spare seats are short: higher numbers do. The default is 0 for all, which shares fairly."""
    objectives: Objectives = Objectives()
    """What its users may expect."""
    serving: Serving = Serving()
    """How many residents serve."""
    burst: Burst = Burst()
    """When the short window rules, and how slowly things calm down."""
    fallback: Fallback = Fallback()
    """What to do while nothing is known of the load."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules between the parts."""
        yield from _repeated(("fleets",), [share.name for share in self.fleets], "name")
        yield from _repeated(("models",), self.models or ())
        most = self.serving.max
        if most is not None and self.fallback.replicas > most:
            yield Broken(
                path=("fallback", "replicas"),
                message=f"must be ≤ spec.serving.max ({self.fallback.replicas} > {most})",
                hint="raise serving.max or lower fallback.replicas",
            )


class ScalingPolicy(Envelope):
    """What one model needs: objectives, bounds, priority, and the fleets that it may serve on."""

    kind: Literal["ScalingPolicy"]
    """Which format the document has."""
    spec: ScalingPolicySpec
    """What the model needs."""

    @property
    def models(self) -> tuple[str, ...]:
        """The model names that belong to the policy."""
        return self.spec.models or (self.metadata.name,)


def _repeated(path: tuple[str, ...], names: Sequence[str], key: str | None = None) -> Iterator[Broken]:
    """Yield a rule broken for each name that an earlier entry of the list has already."""
    counted = Counter[str]()
    for index, name in enumerate(names):
        counted[name] += 1
        if counted[name] > 1:
            place: Path = (*path, index) if key is None else (*path, index, key)
            yield Broken(path=place, message=f"{name} is listed twice", hint="keep one entry")
