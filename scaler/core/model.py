"""The values that the law reads and writes: specs, readings, supply, decisions.

Durations are floats of seconds and capacities are requests in flight; the YAML edge converts (`scaler.policy`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from scaler.core.values import frozen
from warmpool.seats import FleetName, PolicyName

# ------------------------------------------------------------------ what people wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShare:
    """One entry of a policy's `fleets`: where it may serve, and what one seat there can hold.

    Attributes:
        fleet: the fleet's name.
        target_in_flight: requests in flight that one seat of the fleet holds for this policy; > 0.
    """

    fleet: FleetName
    target_in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """When the short window rules, and how slowly things calm down.

    Attributes:
        threshold: burst begins when burst demand ≥ threshold × capacity (1.5 in YAML is thresholdPercent 150).
        window: seconds of the burst window, over which the maximum counts.
        stable_window: seconds of the stable window, over which the mean counts.
        demote_after: seconds for which a smaller answer must have held before a serving resident is paused.
    """

    threshold: float = 1.5
    window: float = 6.0
    stable_window: float = 60.0
    demote_after: float = 60.0


class FallbackBehavior(StrEnum):
    """What a policy does while its signals are missing (KEDA's names)."""

    STATIC = "Static"
    """It serves with the fallback's residents, whatever served before."""
    CURRENT_REPLICAS = "CurrentReplicas"
    """It keeps what serves."""
    CURRENT_REPLICAS_IF_HIGHER = "CurrentReplicasIfHigher"
    """It keeps what serves, and serves with the fallback's residents at least."""
    CURRENT_REPLICAS_IF_LOWER = "CurrentReplicasIfLower"
    """It keeps what serves, and serves with the fallback's residents at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """What one model needs, compiled from a `ScalingPolicy`.

    Attributes:
        name: the policy's name.
        fleets: where it may serve, in order; the first is its own, later ones are the bridge.
        priority: higher goes first when spares are short.
        preemptible: it owns the residents of its floor; beyond that it borrows spare seats until they are wanted.
        ended_at_once: its requests on a borrowed seat that is wanted are ended instead of being waited for.
        serving_min: residents that always serve (the floor).
        serving_max: residents that serve at most.
        ttft_objective: seconds within which the first token should be there.
        late_share: share of the requests, from 0 to 1, that may miss the objective.
        queue_drain: seconds within which what waits should be admitted.
        burst: windows and thresholds.
        failure_threshold: seconds without a fresh reading after which signals count as missing.
        fallback: what happens while signals are missing.
        fallback_serving: the residents that `fallback` speaks of.
    """

    name: PolicyName
    fleets: tuple[FleetShare, ...]
    priority: int = 0
    preemptible: bool = False
    ended_at_once: bool = False
    serving_min: int = 0
    serving_max: int = 1_000_000
    ttft_objective: float = 1.0
    late_share: float = 0.01
    queue_drain: float = 2.0
    burst: Burst = field(default_factory=Burst)
    failure_threshold: int = 3
    fallback: FallbackBehavior = FallbackBehavior.CURRENT_REPLICAS_IF_HIGHER
    fallback_serving: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replenish:
    """How fast a fleet may grow back its spares.

    Attributes:
        max_concurrent: seats that may be starting at once.
        per_minute: seats that may be started within any 60 s.
    """

    max_concurrent: int = 4
    per_minute: int = 12


class Select(StrEnum):
    """Which of several limits on a change holds."""

    MAX = "Max"
    """The one that allows the most change."""
    MIN = "Min"
    """The one that allows the least."""
    DISABLED = "Disabled"
    """Nothing changes in this direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimit:
    """How much a total may change within a period.

    Attributes:
        value: seats, or percent of what there was when the period began.
        percent: whether `value` is in percent.
        period: seconds.
    """

    value: int
    percent: bool
    period: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a total may change in one direction.

    Attributes:
        limits: what it may change by; none: no limit.
        select: which of them holds.
        tolerance: change, as share of the total, up to which nothing is done.
        window: seconds for which a total must have been asked for.
    """

    limits: tuple[ChangeLimit, ...] = ()
    select: Select = Select.MAX
    tolerance: float = 0.0
    window: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoSpare:
    """Let the number of spares follow how fast demand has risen.

    Attributes:
        quantile: share of the stretches of one replenish time whose rise the spares take, in percent.
        lookback: seconds of history that count.
        most: spares at most.
    """

    quantile: int = 99
    lookback: float = 604_800.0
    most: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """What there is, compiled from a `Fleet`.

    Attributes:
        name: the fleet's name.
        max_seats: seats that the fleet may have at most.
        spare_target: how many spare seats it should have, at least where `auto_spare` is given.
        auto_spare: how many more, from the history of demand; None for mode Fixed.
        replenish: how fast spares are grown back.
        scale_up: how fast the total may rise; what floors need is never held back.
        scale_down: how fast it may fall.
        gpus: GPUs of one seat; they count in the GPU budget.
        resized: whether the controller writes the workload's size; else it only publishes the total.
        observe: decide and publish, and write nothing.
    """

    name: FleetName
    max_seats: int
    spare_target: int = 0
    auto_spare: AutoSpare | None = None
    replenish: Replenish = field(default_factory=Replenish)
    scale_up: Pace = field(default_factory=Pace)
    scale_down: Pace = field(default_factory=lambda: Pace(window=300.0))
    gpus: int = 1
    resized: bool = True
    observe: bool = False


# ------------------------------------------------------------------ what the signals say


class Quality(StrEnum):
    """How far a reading can be believed. Absent is not zero."""

    FRESH = "Fresh"
    """Observed within its source's interval: believed in both directions."""
    STALE = "Stale"
    """Older than that: may hold or raise, never lowers."""
    MISSING = "Missing"
    """Never observed, expired, or not a finite number ≥ 0."""


@frozen(kw_only=True)
class Reading:
    """One number from one source, with its age.

    Attributes:
        value: the number; meaningless (0.0) when `quality` is Missing.
        age: seconds since it was observed; infinity when Missing.
        quality: how far it can be believed.
    """

    value: float = 0.0
    age: float = math.inf
    quality: Quality = Quality.MISSING

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return self.quality is not Quality.MISSING


MISSING = Reading()


@frozen(kw_only=True)
class Load:
    """What a policy's signals say at one moment. Proofs and warm-up requests are in none of them.

    Attributes:
        queued: requests that gateways hold.
        in_flight: requests that gateways have sent and that are not finished.
        engines: running + waiting, summed over the serving engines.
        oldest_wait: seconds that the oldest held request has waited.
        peak: highest demand (queued + in flight) that any sample since the last snapshot reported.
        completions: requests finished per second, over the last seconds.
        arrivals: requests that arrived per second, over the last seconds.
        refused: requests that gateways turned away for lack of room and that wait outside until they are to come again. By
            Little's law that is refusals per second times the seconds after which each was told to come again (60 at most; one
            where nobody says), so that one which is refused again and again counts once, like one that waits.
        late_share: share of the requests, from 0 to 1, whose first token came later than the objective.
        backlog: entries of work queues that nobody has asked an engine for yet.
        backlog_age: seconds that the oldest of those has waited.
        absent: names of the signals that should say something of the demand and don't: what is known without them is a
            lower bound.
    """

    queued: Reading = MISSING
    in_flight: Reading = MISSING
    engines: Reading = MISSING
    oldest_wait: Reading = MISSING
    peak: Reading = MISSING
    completions: Reading = MISSING
    arrivals: Reading = MISSING
    refused: Reading = MISSING
    late_share: Reading = MISSING
    backlog: Reading = MISSING
    backlog_age: Reading = MISSING
    absent: tuple[str, ...] = ()


# ------------------------------------------------------------------ what there is


@frozen(kw_only=True)
class Supply:
    """What one fleet has for one policy, in seats.

    Attributes:
        serving: in rotation on a usable seat.
        promoting: claimed for this policy and not yet in rotation.
        draining: leaving rotation and could be recalled.
        promotable: seats on which its resident could be promoted now and that are spare or lent, paused or parked.
        parked: those of the promotable whose resident is parked.
        switchable: seats on which another policy serves or drains and on which its resident could be promoted once
            that one has left. Without it no seat is taken from another policy.
        startable: spare or lent seats on which its resident isn't up yet and starts, or could start.
        blocked: seats on which another policy serves or drains and on which its resident could start once that one has
            left: a process starts only while nothing serves on its seat.
        cramped: spare or lent seats on which its resident isn't up and waits for memory, or for a witness of what it
            answers: nothing that the law could give it helps there.
        paused_wake: seconds from an order until a paused resident of it serves, as measured; 0 while unknown.
        parked_wake: the same for a parked one.
    """

    serving: int = 0
    promoting: int = 0
    draining: int = 0
    promotable: int = 0
    switchable: int = 0
    startable: int = 0
    blocked: int = 0
    cramped: int = 0
    parked: int = 0
    paused_wake: float = 0.0
    parked_wake: float = 0.0
    reach: tuple[int, int, int] | None = field(default=None, init=False, repr=False, compare=False)
    """What a place of it comes to, kept by `scaler.core.placement`: a supply that stays is worked out once."""


NO_SUPPLY = Supply()


@frozen(kw_only=True)
class Kind:
    """Seats of a fleet that have the same residents up.

    Attributes:
        up: policies whose resident serves there, or could if it had the seat.
        starts: policies whose resident isn't up there and could start if nobody else had the seat.
        seats: how many there are.
    """

    up: tuple[PolicyName, ...]
    starts: tuple[PolicyName, ...]
    seats: int


@frozen()
class Extent:
    """What a view comes to, each of its counts cleaned (`scaler.core.placement.extent_of`).

    Attributes:
        usable: seats that can serve: serving, draining, spare, lent.
        seats: seats that exist and are here to stay.
        up: those of them that aren't only starting.
        held: those that can serve nobody.
        sleepers: some residents of its spare seats are parked, or not up.
    """

    usable: int
    seats: int
    up: int
    held: int
    sleepers: bool


@frozen(kw_only=True)
class FleetView:
    """What a fleet is made of at one moment, in seats; every seat counts once.

    Attributes:
        serving: seats with a resident in rotation that owns its place (Serving, Promoting).
        draining: seats whose resident finishes what it accepted.
        spare: Spare seats.
        lent: Lent seats.
        starting: Starting seats.
        held: Held seats.
        doomed: terminating seats; they are no supply and don't count into `replicas`.
        replicas: what the workload is asked for at present (`spec.replicas`).
        start_seconds: seconds that its seats have taken to start; 0 while none has been seen to.
        supply: per policy, what the fleet has for it.
        kinds: the seats that serve, drain, are spare or lent, by who is up on them; empty where all are alike.
    """

    serving: int = 0
    draining: int = 0
    spare: int = 0
    lent: int = 0
    starting: int = 0
    held: int = 0
    doomed: int = 0
    replicas: int = 0
    start_seconds: float = 0.0
    supply: Mapping[PolicyName, Supply] = field(default_factory=lambda: MappingProxyType({}))
    kinds: tuple[Kind, ...] = ()
    extent: Extent | None = field(default=None, init=False, repr=False, compare=False)
    """What it comes to, kept by `scaler.core.placement`: a view that stays the same is worked out once."""

    @property
    def seats(self) -> int:
        """Seats that exist and are here to stay."""
        return self.serving + self.draining + self.spare + self.lent + self.starting + self.held


@frozen(kw_only=True)
class Floor:
    """What the clock asks for at one moment.

    Attributes:
        value: residents or seats at least; 0 when no window is open.
        schedule: name of the window that asks for them; empty when none is open.
        changes_at: time of the law's clock at which a window opens or closes next; None if none ever does.
    """

    value: int = 0
    schedule: str = ""
    changes_at: float | None = None


NO_FLOOR = Floor()


@frozen(kw_only=True)
class Ordered:
    """What a person's order gives one policy for a while: it keeps what it has there, and is given nothing new.

    Attributes:
        seats: per fleet, the residents of the policy that are kept if they are there.
        until: time of the law's clock at which the order may be over; None while it is being carried out.
    """

    seats: Mapping[FleetName, int]
    until: float | None = None


class OneWay(StrEnum):
    """The direction in which a frozen fleet's size may change all the same."""

    UP = "Up"
    """It may grow; nothing goes."""
    DOWN = "Down"
    """It may shrink; nothing comes."""


@frozen(kw_only=True)
class Snapshot:
    """All that one decision may look at.

    Attributes:
        loads: per policy, what its signals say.
        fleets: per fleet, what it is made of.
        serving_floors: per policy with schedules, what the clock asks for, in residents.
        seat_floors: per fleet with schedules, what the clock asks for, in seats.
        frozen: per fleet whose size shall stay as it is, the time of the law's clock until which.
        one_way: per frozen fleet whose size may change in one direction all the same, in which.
        ordered: per policy, what people have ordered to be kept for a while.
        seat_budget: seats that all fleets together may have; None for no such limit.
        gpu_budget: GPUs that all fleets together may have; None for no such limit.
        partial: there are policies and fleets beside these. A budget can't be shared out then, so with one no total
            rises.
    """

    loads: Mapping[PolicyName, Load]
    fleets: Mapping[FleetName, FleetView]
    serving_floors: Mapping[PolicyName, Floor] = field(default_factory=lambda: MappingProxyType({}))
    seat_floors: Mapping[FleetName, Floor] = field(default_factory=lambda: MappingProxyType({}))
    frozen: Mapping[FleetName, float] = field(default_factory=lambda: MappingProxyType({}))
    one_way: Mapping[FleetName, OneWay] = field(default_factory=lambda: MappingProxyType({}))
    ordered: Mapping[PolicyName, Ordered] = field(default_factory=lambda: MappingProxyType({}))
    seat_budget: int | None = None
    gpu_budget: int | None = None
    partial: bool = False


# ------------------------------------------------------------------ what is decided


class Mode(StrEnum):
    """Which rule a policy is under."""

    STABLE = "Stable"
    """The stable window rules."""
    BURST = "Burst"
    """The short window rules too, and nothing scales down."""
    HOLD = "Hold"
    """Signals are missing: neither up nor down."""


class ReasonCode(StrEnum):
    """Why: the closed list of what a decision can give as a reason."""

    CONCURRENCY = "Concurrency"
    QUEUE_DRAIN = "QueueDrain"
    BACKLOG = "Backlog"
    DEADLINE_AT_RISK = "DeadlineAtRisk"
    TTFT_LATE = "TtftLate"
    FLOOR = "Floor"
    SCHEDULED = "Scheduled"
    ORDERED = "Ordered"
    MAX = "Max"
    BURST_ENTERED = "BurstEntered"
    BURST_HELD = "BurstHeld"
    BURST_ENDED = "BurstEnded"
    RESTARTED = "Restarted"
    SIGNALS_MISSING = "SignalsMissing"
    SIGNALS_STALE = "SignalsStale"
    DEMOTE_DELAYED = "DemoteDelayed"
    SURVIVORS_TOO_FEW = "SurvivorsTooFew"
    BRIDGED = "Bridged"
    SPARES_EXHAUSTED = "SparesExhausted"
    ORDER_LIMITED = "OrderLimited"
    PREEMPTED = "Preempted"
    LENT = "Lent"
    RESIDENT_STARTING = "ResidentStarting"
    RESIDENT_WAITING = "ResidentWaiting"
    WARMED = "Warmed"
    SEATS_AT_MAX = "SeatsAtMax"
    SEATS_HELD = "SeatsHeld"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    BUDGET_NOT_SHARED_OUT = "BudgetNotSharedOut"
    SPARES_LEARNED = "SparesLearned"
    REPLENISHING = "Replenishing"
    REPLENISH_LIMITED = "ReplenishLimited"
    SCALE_UP_DELAYED = "ScaleUpDelayed"
    SCALE_DOWN_DELAYED = "ScaleDownDelayed"
    STARTS_CANCELLED = "StartsCancelled"
    PACE_LIMITED = "PaceLimited"
    WITHIN_TOLERANCE = "WithinTolerance"
    FROZEN = "Frozen"
    WISHED = "Wished"
    KEPT_ABOVE = "KeptAbove"


@frozen()
class Reason:
    """One reason as data; `scaler.core.explain` makes the sentence.

    Attributes:
        code: which reason.
        facts: the numbers and names that belong to it.
        until: time (of the same clock as `now`) at which it may cease to hold; None if no time alone ends it.
    """

    code: ReasonCode
    facts: Mapping[str, float | str] = field(default_factory=lambda: MappingProxyType({}))
    until: float | None = None


@frozen()
class PolicyDecision:
    """How many residents of one policy should serve where.

    Attributes:
        policy: the policy.
        mode: the rule that it is under.
        demand: requests, counted once; None when unknown.
        needed: capacity that the law asks for, in requests in flight.
        capacity: capacity of usable serving plus promoting residents.
        wanted: per fleet, the residents that should serve there, whether or not seats exist for them.
        serving: per fleet, the residents that shall serve there now: what existing seats can give.
        lent: per fleet, how many of those only borrow their seat; such a seat still counts as spare.
        warm: its residents that shall stand paused, and not parked, beside those that serve: per fleet that others may
            serve on too, or of which residents are parked or not up.
        starting: per fleet, the seats that are kept free so that a resident of its can start there; only while none of
            its residents is up anywhere.
        reasons: why, the ruling term first.
    """

    policy: PolicyName
    mode: Mode
    demand: float | None
    needed: float
    capacity: float
    wanted: Mapping[FleetName, int]
    serving: Mapping[FleetName, int]
    lent: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    warm: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    starting: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    reasons: tuple[Reason, ...] = ()


@frozen()
class FleetDecision:
    """How many seats a fleet should have.

    Attributes:
        fleet: the fleet.
        serving: seats that serve or shall serve, all policies together (wants included).
        spare: the spare target.
        held: seats that take a replica and can serve nobody.
        total: what the workload is asked for: min(max_seats, serving + spare - kept + held), as limits and windows let it,
            or what somebody else wishes beyond that.
        kept: those of `serving` that serve only out of caution and count as spare, up to the target.
        reasons: why.
    """

    fleet: FleetName
    serving: int
    spare: int
    held: int
    total: int
    kept: int = 0
    reasons: tuple[Reason, ...] = ()


@frozen()
class Decision:
    """What one tick decided.

    Attributes:
        at: the `now` that it was made with.
        policies: per policy.
        fleets: per fleet.
        next_wakeup: time at which the answer may change by time alone; None if only an event can change it.
        law: version of the law, for replay.
    """

    at: float
    policies: Mapping[PolicyName, PolicyDecision]
    fleets: Mapping[FleetName, FleetDecision]
    next_wakeup: float | None = None
    law: str = "1"
