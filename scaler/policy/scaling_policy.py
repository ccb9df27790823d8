"""The format `ScalingPolicy`: what one model needs.

Each field's docstring is its reference: meaning, unit, default and why. Numbers are integers with their unit in the
name; what they become in the law is `scaler.policy.compile`'s business.
"""

from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from scaler.policy.base import (
    Broken,
    Envelope,
    Name,
    PolicyModel,
    Unsound,
    as_far_as_sound,
    integer,
    sound_entries,
    text,
)
from scaler.policy.proof import Proof
from scaler.policy.repeated import repeated
from scaler.policy.schedules import ServingFloor
from scaler.policy.signals import Pushed, Signal
from scaler.policy.warmup import Warmup

_MOST_RESIDENTS: Final = 1_000_000
_DAY: Final = 86_400
_MOST_MIB: Final = 1 << 26  # 64 TiB

Residents = Annotated[int, integer("residents", 0, _MOST_RESIDENTS, example=4)]
ModelName = Annotated[
    str,
    text(
        "a model name (printable ASCII without spaces, at most 256 characters)",
        pattern=r"^[!-~]+$",
        longest=256,
        example="llama-8b-chat",
    ),
]
Argument = Annotated[
    str,
    text(
        "text of at most 4096 characters",
        pattern=r"^[^\x00]*$",
        longest=4096,
        example="--max-model-len=8192",
    ),
]


class FleetShare(PolicyModel):
    """One fleet that a policy may serve on."""

    name: Name
    """Name of the fleet."""
    target_in_flight: Annotated[int, integer("requests in flight", 1, 100_000, example=32)]
    """Requests in flight that one seat of this fleet holds for this policy. There is no default: measure at which
    concurrency the engine still keeps its objective on these GPUs. It is also what the gateway sends there at most."""


class EngineType(StrEnum):
    """Which engine serves the model."""

    REFERENCE = "Reference"
    """Emberpool's own small engine."""
    VLLM = "VLLM"
    """vLLM."""
    SGLANG = "SGLang"
    """SGLang."""
    GENERIC = "Generic"
    """Any server with OpenAI's API. It can't be paused, only kept out of rotation."""


class GraphCapture(StrEnum):
    """When an engine captures its CUDA graphs."""

    AT_START = "AtStart"
    """Before it is ready."""
    WHILE_PAUSED = "WhilePaused"
    """After its proof, whenever nobody wants the seat. Until then it computes operation by operation: sooner ready, slower."""


class Engine(PolicyModel):
    """The engine that serves the model."""

    type: EngineType = EngineType.REFERENCE
    """Which engine. The default is `Reference`, which needs nothing but this project."""
    port: Annotated[int, integer("port", 1, 65_535, example=8001)] | None = None
    """Port at which a resident is reached on its pod, the same on all fleets of the policy. By default the residents'
    annotation on the pods names it."""
    args: tuple[Argument, ...] = ()
    """Arguments that are added to the engine's command, one per entry."""
    paused_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=16_800)] | None = None
    """GPU memory that one resident holds while it is paused and has given back its KV memory. By default agents measure
    it; given here, `policy lint` can tell before anything runs whether the residents of a seat fit."""
    kv_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=40_960)] | None = None
    """GPU memory that one resident takes beyond that while it serves: its KV memory and, unless `activationMiB` says that,
    what computing needs at its peak. By default agents measure it."""
    activation_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=2048)] | None = None
    """GPU memory that computing takes at its peak, beside weights and KV memory. Where it is given, a promotion that holds
    more than all this is noticed and undone. By default that isn't looked at."""
    start_seconds: Annotated[int, integer("seconds", 1, _DAY, example=60)] | None = None
    """Seconds from the start of one resident until it is proven, as you have measured it, for `policy lint`'s arithmetic.
    By default it is not known before the first one has started."""
    proof: Proof = Proof()
    """What residents have to answer before they may serve."""
    warmup: Warmup = Warmup()
    """Which requests residents compute before that, so that no client is the first to need a routine."""
    graph_capture: GraphCapture = GraphCapture.AT_START
    """When the engine captures its CUDA graphs. The default is `AtStart`. `WhilePaused` makes starts shorter by as much, and the first
    promotions after a start may serve without graphs. Of the engines here only `Reference` can do that; others capture at their start
    whatever stands here."""

    @property
    def compute_mib(self) -> int | None:
        """GPU memory that one resident takes beyond what it holds paused, in MiB; None where nobody has said it."""
        return None if self.kv_mib is None else self.kv_mib + (self.activation_mib or 0)


class Ttft(PolicyModel):
    """Within which time the first token should be there, and for how many requests."""

    seconds: Annotated[int, integer("seconds", 1, 3600, example=1)] | None = None
    """Time to first token in seconds. Give either this or `milliseconds`; with neither it is one second, which people
    at a prompt still take for an answer. Choose an edge of the histogram that it is measured with, as
    1, 5, 10 or 20 s are: between two edges a share can only be guessed."""
    milliseconds: Annotated[int, integer("milliseconds", 1, 3_600_000, example=500)] | None = None
    """Time to first token in milliseconds. Edges of histograms are 100, 500 and 750 ms."""
    percent: Annotated[int, integer("percent", 1, 100, example=99)] = 99
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
    """Time to first token. A request that has waited so long that this is at risk begins a burst. Left out, it is one
    second for 99 of 100 requests, and rules as if it were written."""


class Serving(PolicyModel):
    """How many residents serve."""

    min: Residents = 1
    """Residents that always serve: the floor, on every path. The default is one, so that a first request waits for no
    promotion; 0 lets the model rest entirely, which needs the gateway or a queue to see the next request."""
    max: Annotated[int, integer("residents", 1, _MOST_RESIDENTS, example=4)] | None = None
    """Residents that serve at most. It is one at least: a model that may never serve needs no policy. By default only
    the fleets' seats are a limit."""
    queue_drain_seconds: Annotated[int, integer("seconds", 1, 3600, example=2)] = 2
    """Seconds within which what waits should be admitted: a queue that would take longer asks for more residents. The
    default of two seconds answers a burst at once and still rides over a hiccup."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that bounds are in order."""
        if self.max is not None and self.min > self.max:
            message = f"must be ≤ max ({self.min} > {self.max})"
            yield Broken(path=("min",), message=message, hint="raise max or lower min")


class Burst(PolicyModel):
    """When the short window rules, and how slowly things calm down."""

    threshold_percent: Annotated[int, integer("percent", 101, 1000, example=150)] = 150
    """A burst begins when demand over the short window reaches this share of the serving capacity, in percent. The
    default is 150: half as much again as can be served is no fluctuation."""
    window_seconds: Annotated[int, integer("seconds", 1, 600, example=6)] = 6
    """Seconds of the short window, over which the maximum counts. The default is six, a tenth of the stable window, as
    in Knative."""
    stable_window_seconds: Annotated[int, integer("seconds", 1, 3600, example=60)] = 60
    """Seconds of the long window, over which the mean counts; a burst ends after one such window below its threshold.
    The default is 60, as in Knative."""
    demote_after_seconds: Annotated[int, integer("seconds", 0, _DAY, example=60)] = 60
    """Seconds for which a smaller answer must have held before a serving resident is paused. The default is 60; pausing
    only gives the seat back, so it need not be long."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rule that the long window is the longer one."""
        if self.stable_window_seconds < self.window_seconds:
            message = f"must be ≥ windowSeconds ({self.stable_window_seconds} < {self.window_seconds})"
            hint = "raise stableWindowSeconds or lower windowSeconds"
            yield Broken(path=("stableWindowSeconds",), message=message, hint=hint)


class Queue(PolicyModel):
    """How much may wait at each gateway. What isn't given here is as the gateway's own settings say."""

    max_requests: Annotated[int, integer("requests", 0, 1_000_000, example=2048)] | None = None
    """Requests that may wait at once. With 0 none waits: what finds no slot is refused, which wakes a model that nobody serves and
    makes no other one grow."""
    max_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=512)] | None = None
    """Memory that their bodies may take together."""
    max_age_seconds: Annotated[int, integer("seconds", 1, _DAY, example=30)] | None = None
    """Seconds that one may wait for its first slot. Longer than the gateway's `--deadline-seconds` (`--answer-seconds` for what is no
    stream) it has no effect: that ends the wait for the first content, and so this one too."""
    max_cold_seconds: Annotated[int, integer("seconds", 1, _DAY, example=300)] | None = None
    """Seconds that one may wait while none of the model's residents serves, where that is longer; its deadline is later by
    as much. For a policy with `serving.min: 0` that may need a new seat."""


class OnReclaim(StrEnum):
    """What becomes of requests on a lent seat that is wanted back."""

    ABORT = "Abort"
    """They are ended at once, with an error that says so."""
    WAIT = "Wait"
    """They have until the drain's deadline."""


class FallbackBehavior(StrEnum):
    """What to do while nothing is known of the load (KEDA's names)."""

    STATIC = "Static"
    """Serve with `replicas`."""
    CURRENT_REPLICAS = "CurrentReplicas"
    """Keep what serves."""
    CURRENT_REPLICAS_IF_HIGHER = "CurrentReplicasIfHigher"
    """Keep what serves, and serve with at least `replicas`."""
    CURRENT_REPLICAS_IF_LOWER = "CurrentReplicasIfLower"
    """Keep what serves, and serve with at most `replicas`."""


class Fallback(PolicyModel):
    """What to do while nothing is known of the load."""

    failure_threshold: Annotated[int, integer("samples", 1, 3600, example=3)] = 3
    """Samples in a row that must be missing before the signals count as missing. Samples are due each second, so it is
    also a number of seconds. The default is three, as in KEDA's examples."""
    behavior: FallbackBehavior = FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER
    """What to do then. The default is `CurrentReplicasIfHigher`: keep what serves, and serve with at least `replicas`."""
    replicas: Residents = 0
    """Residents that `behavior` compares with. The default is 0: what serves goes on serving, and the floor `serving.min`
    holds anyway."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that a number that rules is one that somebody chose, and that no other is given."""
        if self.behavior is FallbackBehavior.CURRENT_REPLICAS and self.replicas:
            message = f"is {self.replicas}, and behavior CurrentReplicas compares with no number"
            hint = "remove replicas, or set behavior: CurrentReplicasIfHigher"
            yield Broken(path=("replicas",), message=message, hint=hint)
        if self.behavior in _BY_NUMBER and not self.replicas:
            message = f"is 0, which behavior {self.behavior} would take for no serving resident at all"
            yield Broken(path=("replicas",), message=message, hint="say with how many residents to serve")


_BY_NUMBER: Final = frozenset({FallbackBehavior.STATIC, FallbackBehavior.CURRENT_REPLICAS_IF_LOWER})


class ScalingPolicySpec(PolicyModel):
    """What one model needs."""

    fleets: Annotated[tuple[FleetShare, ...], Field(min_length=1)]
    """Fleets that it may serve on, in order: its own first, shared ones after it as the bridge."""
    models: Annotated[tuple[ModelName, ...], Field(min_length=1)] | None = None
    """Model names in requests that belong to this policy. The default is the policy's own name. A name belongs to one
    policy only."""
    engine: Engine = Engine()
    """The engine that serves it."""
    priority: Annotated[int, integer("rank", -1_000_000, 1_000_000, example=100)] = 0
    """Who goes first when spare seats are short: higher numbers do. The default is 0 for all, which shares fairly."""
    preemptible: bool = False
    """Whether it is work that can wait, such as a batch queue. The default is false. Such a policy owns its `serving.min`
    residents; beyond those it only borrows spare seats, until somebody wants them. The last `spare.min` seats of a fleet
    are never lent: with spares in mode `Fixed` there are more only while a schedule or the time after a burst keeps
    them."""
    on_reclaim: OnReclaim = OnReclaim.ABORT
    """What becomes of its requests on a borrowed seat that is wanted back. The default is `Abort`: whoever waits for the
    seat has people behind it. Only for a preemptible policy."""
    objectives: Objectives = Objectives()
    """What its users may expect."""
    serving: Serving = Serving()
    """How many residents serve."""
    burst: Burst = Burst()
    """When the short window rules, and how slowly things calm down."""
    queue: Queue = Queue()
    """How much may wait at each gateway, and for how long. By default the gateway's own settings hold for all policies."""
    signals: Annotated[tuple[Signal, ...], Field(min_length=1, max_length=20)] = (
        Pushed(name="gateway", type="Pushed"),
    )
    """Where its load is read from. The default is what the gateway pushes, which is exact and needs no setting. Several
    complete each other: of what they say of the same requests the highest counts, and queues of work add up."""
    schedules: Annotated[tuple[ServingFloor, ...], Field(max_length=50)] = ()
    """Floors of the serving residents by the clock. By default there are none."""
    fallback: Fallback = Fallback()
    """What to do while nothing is known of the load."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules between the parts."""
        yield from as_far_as_sound(
            self._names("fleets"),
            self._names("signals"),
            self._names("schedules"),
            self._model_names(),
            self._reclaim(),
            self._room_for_schedules(),
            self._room_for_fallback(),
        )

    def _names(self, entries: str) -> Iterator[Broken]:
        yield from repeated((entries,), getattr(self, entries), "name")

    def _model_names(self) -> Iterator[Broken]:
        yield from repeated(("models",), self.models or ())

    def _reclaim(self) -> Iterator[Broken]:
        if self.on_reclaim is not OnReclaim.ABORT and not self.preemptible:
            message = "is for preemptible policies, and this one is not"
            yield Broken(
                path=("onReclaim",), message=message, hint="set preemptible: true, or remove onReclaim"
            )

    def _room_for_schedules(self) -> Iterator[Broken]:
        most = self.serving.max
        for index, each in sound_entries(self.schedules):
            with suppress(Unsound):
                if most is not None and each.min_serving > most:
                    message = f"must be ≤ spec.serving.max ({each.min_serving} > {most})"
                    path = ("schedules", index, "minServing")
                    yield Broken(path=path, message=message, hint="raise serving.max or lower minServing")

    def _room_for_fallback(self) -> Iterator[Broken]:
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
