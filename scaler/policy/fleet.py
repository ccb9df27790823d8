"""The format `Fleet`: what there is.

Each field's docstring is its reference: meaning, unit, default and why. Numbers are integers with their unit in the
name; what they become in the law is `scaler.policy.compile`'s business.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from scaler.policy.base import (
    Broken,
    Envelope,
    Misshapen,
    Name,
    PolicyModel,
    Unsound,
    as_far_as_sound,
    form,
    integer,
    key,
    sound_entries,
    text,
)
from scaler.policy.repeated import repeated
from scaler.policy.schedules import SeatFloor

MOST_SEATS: Final = 100_000
"""More seats than any fleet has."""
_DAY: Final = 86_400
_MOST_MIB: Final = 1 << 26  # 64 TiB
_TIMESTAMP: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})$"
_PARTS: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?(?:Z|[+-]([0-9]{2}):([0-9]{2}))"
)
_RANGES: Final = (
    *(
        ("year", 1, 9999),
        ("month", 1, 12),
        ("day", 1, 31),
        ("hour", 0, 23),
        ("minute", 0, 59),
        ("second", 0, 59),
    ),
    *(("hour of the offset", 0, 23), ("minute of the offset", 0, 59)),
)

Seats = Annotated[int, integer("seats", 0, MOST_SEATS, example=2)]
Seconds = Annotated[int, integer("seconds", 0, _DAY, example=300)]


def _time_problem(time: str) -> Misshapen | None:
    """Say which part of a timestamp of the right form is none; None for a moment, and for a text of another form."""
    hint = "as 2026-12-24T18:00:00Z, or with an offset as 2026-12-24T18:00:00+01:00"
    found = _PARTS.fullmatch(time)
    if found is None:
        return None
    for number, (name, low, high) in zip(found.groups(default="0"), _RANGES, strict=True):
        if not low <= int(number) <= high:
            return f"there is no such time: the {name} goes from {low} to {high}, and is {int(number)}", hint
    try:
        datetime.fromisoformat(time)
    except ValueError:
        return f"there is no such time: {found[1]}-{found[2]} has fewer than {int(found[3])} days", hint
    return None


class FleetMode(StrEnum):
    """What a fleet's decisions do."""

    ENFORCE = "Enforce"
    """They are carried out."""
    OBSERVE = "Observe"
    """They are published and recorded, and nothing is written."""


class ResizedBy(StrEnum):
    """Who writes the workload's number of replicas. There must be exactly one."""

    EMBERPOOL = "Emberpool"
    """The controller does, through the workload's `/scale`."""
    KEDA = "Keda"
    """A ScaledObject does, with the numbers that the controller publishes; those follow somebody else's wish for a while."""


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
    AUTO = "Auto"
    """It is what the demand of all the fleet's policies together has risen by within one replenish time, as a quantile
    over the look-back."""


class Target(PolicyModel):
    """The workload whose pods are the fleet's seats."""

    api_version: Annotated[
        str,
        text("an API version", pattern=r"^([a-z0-9.-]+/)?v[a-z0-9]+$", longest=253, example="apps/v1"),
    ] = "apps/v1"
    """API group and version. The default is that of a Deployment."""
    kind: Annotated[str, text("a kind", pattern=r"^[A-Z][A-Za-z0-9]*$", longest=63, example="Deployment")] = (
        "Deployment"
    )
    """Kind of the workload: a Deployment, or another kind that can be scaled."""
    name: Name
    """Name of the workload, in the fleet's own namespace."""


class SeatShape(PolicyModel):
    """What one seat of the fleet is made of."""

    gpus: Annotated[int, integer("GPUs", 0, 16, example=1)] = 1
    """GPUs of one seat, which every resident of the seat uses as a whole. The default is one, the usual case; 0 is for
    engines that run on CPU."""
    memory_mib: Annotated[int, integer("MiB", 1, _MOST_MIB, example=144_384)] | None = None
    """Memory of all GPUs of one seat together, of which its residents take no more. By default it is what agents measure; given
    here, `policy lint` can tell before anything runs whether the residents fit."""
    kv_when_paused: KvWhenPaused | None = None
    """Whether a paused resident gives back its KV memory. By default residents that share a seat do, because whoever serves
    needs it, and one that has its seat for itself keeps it, which saves the allocation at promotion."""


class Replenish(PolicyModel):
    """How fast spare seats are grown back."""

    max_concurrent: Annotated[int, integer("seats", 1, 1000, example=4)] = 4
    """Seats that may be starting at once. The default of four keeps a shared disk or registry from being the bottleneck
    of all of them."""
    max_per_node: Annotated[int, integer("seats", 1, 1000, example=1)] | None = None
    """Seats that may be starting at once on one node. By default there is no such limit; 1 keeps two starting seats from
    sharing a node's disk and bus."""
    per_minute: Annotated[int, integer("seats", 1, 10_000, example=12)] = 12
    """Seats that may be started within any 60 seconds. The default of twelve bounds what a wrong signal can cost."""


class Parked(PolicyModel):
    """Residents that find no room in a seat's GPU memory wait in its host memory, seconds from serving."""

    host_memory_mib: Annotated[int, integer("MiB", 0, _MOST_MIB, example=262_144)] = 0
    """Host memory of one seat for the weights of parked residents. The default is 0: none are parked, and what finds no room
    in GPU memory waits until there is some. Who is paused and who is parked follows demand: a model that has some is brought
    back to GPU memory ahead of its bursts. The memory limit of the seat's pod has to leave room for it."""


class Spare(PolicyModel):
    """Seats that stand ready with nothing serving on them."""

    mode: SpareMode = SpareMode.FIXED
    """How the target is found. The default is `Fixed`: it is `min`."""
    min: Seats = 0
    """Spare seats that there should be at least. The default is 0, because each of them costs a seat: say how many
    seats' worth of burst must be served before new seats have started."""
    max: Seats | None = None
    """Spare seats that there should be at most, whatever finds the target. By default the fleet's `maxSeats` is the
    only limit; with mode `Fixed` the target is `min`, and `max` only has to leave room for it."""
    quantile: Annotated[int, integer("percent", 50, 100, example=99)] = 99
    """Mode `Auto` only: share of the rises within one replenish time that the spares must be able to take, in percent.
    The default is 99."""
    lookback_seconds: Annotated[int, integer("seconds", 3600, 60 * _DAY, example=604_800)] = 7 * _DAY
    """Mode `Auto` only: seconds of history that rises are taken from. The default is seven days, so that every day of
    the week is in it. Until a day of history exists the target is `min`."""
    replenish: Replenish = Replenish()
    """How fast spare seats are grown back after a burst took them."""
    parked: Parked = Parked()
    """A tier behind the spares: residents in host memory."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that bounds are in order, and that nothing is given for the other mode."""
        yield from as_far_as_sound(self._bounds(), self._of_the_other_mode())

    def _bounds(self) -> Iterator[Broken]:
        if self.max is not None and self.min > self.max:
            message = f"must be ≤ max ({self.min} > {self.max})"
            yield Broken(path=("min",), message=message, hint="raise max or lower min")

    def _of_the_other_mode(self) -> Iterator[Broken]:
        for name in ("quantile", "lookback_seconds") if self.mode is SpareMode.FIXED else ():
            with suppress(Unsound):
                if getattr(self, name) != type(self).model_fields[name].default:
                    message = "is for mode Auto, and mode is Fixed"
                    yield Broken(
                        path=(key(name),), message=message, hint=f"set mode: Auto, or remove {key(name)}"
                    )


class RuleType(StrEnum):
    """What the value of a scaling rule counts."""

    SEATS = "Seats"
    """Seats."""
    PERCENT = "Percent"
    """Percent of the seats that the fleet had when the period began."""


class SelectPolicy(StrEnum):
    """Which of several scaling rules holds."""

    MAX = "Max"
    """The one that allows the most change."""
    MIN = "Min"
    """The one that allows the least."""
    DISABLED = "Disabled"
    """None: the total never changes in this direction."""


class ScalingRule(PolicyModel):
    """How much the total may change within a period, as in HorizontalPodAutoscaler."""

    type: RuleType
    """What `value` counts."""
    value: Annotated[int, integer("seats or percent, as type says", 1, 1_000_000, example=50)]
    """Most change within one period, in seats or percent. A percentage is rounded up, so that it always allows one."""
    period_seconds: Annotated[int, integer("seconds", 1, 1800, example=60)]
    """Seconds over which the change is counted."""


Rules = Annotated[tuple[ScalingRule, ...], Field(max_length=10)]


class ScalingBehavior(PolicyModel):
    """How the total may change in one direction; the words are HorizontalPodAutoscaler's."""

    policies: Rules = ()
    """Limits of the change. By default there are none."""
    select_policy: SelectPolicy = SelectPolicy.MAX
    """Which of the limits holds where there are several. The default is `Max`, as in HorizontalPodAutoscaler."""
    tolerance_percent: Annotated[int, integer("percent", 0, 100, example=10)] = 0
    """Change of the total, in percent, up to which nothing is done. The default is 0: the total is a number of seats
    that somebody needs, and not a noisy ratio."""


class ScaleUp(ScalingBehavior):
    """When seats are added."""

    stabilization_window_seconds: Annotated[int, integer("seconds", 0, 3600, example=0)] = 0
    """Seconds for which a larger total must have been asked for before seats are added; the lowest total of the window
    counts. The default is 0: a burst doesn't wait."""
    policies: Rules = ()
    """Limits of how fast seats are added. By default there are none: what serving needs is asked for at once, and
    `replenish` paces the spares."""


class ScaleDown(ScalingBehavior):
    """When seats are deleted."""

    stabilization_window_seconds: Annotated[int, integer("seconds", 0, _DAY, example=300)] = 300
    """Seconds for which a smaller total must have held before seats are deleted. The default is five minutes, as in
    HorizontalPodAutoscaler: pausing a resident is quick to undo, deleting a seat is not."""
    policies: Rules = ()
    """Limits of how fast seats are deleted. By default there are none: once the window has passed, all that nobody needs
    goes at once. A limit keeps a wrong signal from costing all of them."""


class HealingAction(StrEnum):
    """What is done about a seat that can't serve."""

    REPLACE_POD = "ReplacePod"
    """Its pod is deleted, and the workload makes a new one; never while anything serves there."""
    NONE = "None"
    """It is reported."""


class SelfHealing(PolicyModel):
    """What is done about a seat whose engines don't start as they should: they fail, or take too long."""

    init_duration_seconds: Annotated[int, integer("seconds", 0, _DAY, example=60)] = 600
    """Seconds that an engine may take from its start until it is ready; a start that takes longer is a bad one. The default is 600."""
    consecutive: Annotated[int, integer("starts", 1, 100, example=3)] = 3
    """Bad starts of a resident in a row after which something is done; one that fails is bad, too. The default is three."""
    action: HealingAction = HealingAction.REPLACE_POD
    """What is done. The default is `ReplacePod`."""


class HealthMode(StrEnum):
    """What verdicts on GPUs do."""

    ENFORCE = "Enforce"
    """A Suspect GPU gets no promotion, a Bad one is excluded and its seat replaced."""
    OBSERVE = "Observe"
    """They are shown and not acted on."""


class HealthScope(StrEnum):
    """What is excluded with a Bad GPU."""

    NODE = "Node"
    """Its node gets no new pods."""
    GPU = "Gpu"
    """It alone: by a taint of the device where the cluster hands GPUs out by DRA, else by the seat that stays there."""


class GpuHealth(PolicyModel):
    """What verdicts on GPUs do."""

    mode: HealthMode = HealthMode.ENFORCE
    """What verdicts do. The default is `Enforce`."""
    scope: HealthScope = HealthScope.NODE
    """What is excluded with a Bad GPU. A node is tainted unless all fleets with seats there say `Gpu`. The default is `Node`."""


class Cost(PolicyModel):
    """What one GPU costs an hour."""

    cents: Annotated[int, integer("hundredths of the currency's unit", 0, 10_000_000, example=250)]
    """Price of one GPU for one hour, in hundredths of the currency's unit."""
    currency: Annotated[
        str, text("a currency's code of three letters", pattern=r"^[A-Z]{3}$", longest=3, example="USD")
    ] = "USD"
    """Code of the currency. The default is US dollars."""


class Frozen(PolicyModel):
    """The fleet's size stays as it is, for maintenance or an investigation, until a moment that must be named."""

    until: Annotated[
        str,
        text(
            "a time as 2026-12-24T18:00:00Z, with Z or an offset",
            pattern=_TIMESTAMP,
            longest=25,
            example="2026-12-24T18:00:00Z",
        ),
        form(_time_problem),
    ]
    """When it ends, as RFC 3339 has it. There is no default: a freeze that nobody ends is an outage to come."""
    reason: Annotated[str, text("a sentence", pattern=r"\S", longest=500, example="driver update")]
    """Why, for whoever finds it at night."""

    @property
    def ends_at(self) -> datetime:
        """When it ends."""
        return datetime.fromisoformat(self.until)


class FleetSpec(PolicyModel):
    """What there is."""

    target: Target | None = None
    """The workload whose pods are the seats. By default a Deployment of the fleet's own name; without a cluster it is
    ignored."""
    mode: FleetMode = FleetMode.ENFORCE
    """What decisions do. The default is `Enforce`; `Observe` decides, publishes and records what it would do, and
    writes nothing, to look at a policy before trusting it."""
    resized_by: ResizedBy = ResizedBy.EMBERPOOL
    """Who writes the number of replicas. The default is `Emberpool`. With `Keda` the controller never writes it and
    publishes the total for a ScaledObject. There others may raise the replicas, a person or another trigger: above the largest
    total published in the last 315 seconds (the HPA's window for scaling down and one sync, by its defaults) that is a wish,
    which the total follows for `scaleDown.stabilizationWindowSeconds`, at least 15 seconds, up to `maxSeats`. Replicas that
    merely stay above what is published, as under `minReplicas`, are none."""
    seat: SeatShape = SeatShape()
    """What one seat is made of."""
    spare: Spare = Spare()
    """Seats that stand ready with nothing serving on them."""
    max_seats: Annotated[int, integer("seats", 1, MOST_SEATS, example=12)]
    """Seats that the fleet may have at most. There is no default: it is what the fleet may cost."""
    cost_per_gpu_hour: Cost | None = None
    """What one GPU costs an hour, for `policy lint`'s arithmetic and the dashboard. By default costs are told in
    GPU-hours."""
    scale_up: ScaleUp = ScaleUp()
    """When seats are added."""
    scale_down: ScaleDown = ScaleDown()
    """When seats are deleted."""
    self_healing: SelfHealing = SelfHealing()
    """What is done about a seat whose residents all fail."""
    gpu_health: GpuHealth = GpuHealth()
    """What verdicts on GPUs do."""
    schedules: Annotated[tuple[SeatFloor, ...], Field(max_length=50)] = ()
    """Floors of the fleet's size by the clock. By default there are none. A schedule only ever raises the total."""
    frozen: Frozen | None = None
    """Keep the fleet's size as it is until a moment: no seat is created or deleted. Residents go on being promoted and
    paused. By default it isn't frozen."""

    def broken_rules(self) -> Iterator[Broken]:
        """Yield the rules that the spares and the schedules find room, and that names are unique."""
        yield from as_far_as_sound(
            self._room_for("min"), self._room_for("max"), self._names(), self._room_for_schedules()
        )

    def _room_for(self, bound: str) -> Iterator[Broken]:
        value = getattr(self.spare, bound)
        if value is not None and value > self.max_seats:
            message = f"must be ≤ spec.maxSeats ({value} > {self.max_seats})"
            hint = f"raise maxSeats or lower spare.{bound}"
            yield Broken(path=("spare", bound), message=message, hint=hint)

    def _names(self) -> Iterator[Broken]:
        yield from repeated(("schedules",), self.schedules, "name")

    def _room_for_schedules(self) -> Iterator[Broken]:
        for index, each in sound_entries(self.schedules):
            with suppress(Unsound):
                if each.min_seats > self.max_seats:
                    message = f"must be ≤ spec.maxSeats ({each.min_seats} > {self.max_seats})"
                    path = ("schedules", index, "minSeats")
                    yield Broken(path=path, message=message, hint="raise maxSeats or lower minSeats")


class Fleet(Envelope):
    """What there is: the seats of one workload, all with the same GPUs and the same residents."""

    kind: Literal["Fleet"]
    """Which format the document has."""
    spec: FleetSpec
    """What there is."""

    @property
    def target(self) -> tuple[str, str, str, str]:
        """Namespace, API group, kind and name of the workload."""
        target = self.spec.target
        if target is None:
            return self.metadata.namespace, "apps", "Deployment", self.metadata.name
        group = target.api_version.rpartition("/")[0]
        return self.metadata.namespace, group, target.kind, target.name
