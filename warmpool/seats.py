"""Seats and residents as everyone reads them, and the one function that says what a seat is worth.

A seat is one pod of a fleet: a set of GPUs on which one or several residents live and one serves at a time. The pod
object is the authority on claim and rotation, the agent on its engines' states; this module holds what both say in
one immutable value. PURE: no I/O, no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, NewType

from warmpool.engines.capabilities import Capabilities, Verification
from warmpool.states import COMPUTING, MOVING, PROMOTABLE, Depth, ResidentState
from warmpool.tiers import Budget
from warmpool.timeline import Stamps, StartFacts

PolicyName = NewType("PolicyName", str)
FleetName = NewType("FleetName", str)
SeatName = NewType("SeatName", str)

SEAT_LABEL = "emberpool.dev/seat"
"""Label that carries the seat's value."""
FLEET_LABEL = "emberpool.dev/fleet"
"""Label on which all watches select."""
SERVING_LABEL_PREFIX = "serving.emberpool.dev/"
"""Prefix of the label that puts one policy's resident into rotation."""
CLAIM_ANNOTATION = "emberpool.dev/claim"
"""Annotation that holds the claim, as JSON."""


class Verdict(StrEnum):
    """What GPU health says of a seat: the worst of its GPUs."""

    OK = "Ok"
    SUSPECT = "Suspect"
    BAD = "Bad"


UNKNOWN = "Unknown"
"""The word on a GPU of which nothing is known at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWord:
    """What is said of one GPU of a seat.

    Attributes:
        uuid: which one.
        word: Ok, Suspect, Bad, or Unknown, which excludes nobody.
        reason: why, in words; empty where there is nothing to say.
        stops: it is Bad, and gone or may compute wrong: what serves there gets no more requests, whether others serve or not.
    """

    uuid: str
    word: str
    reason: str = ""
    stops: bool = False


def worst_of(words: Iterable[GpuWord]) -> Verdict:
    """Return the worst verdict of GPUs; what is unknown is no worse than Ok."""
    found = {each.word for each in words}
    return next((verdict for verdict in (Verdict.BAD, Verdict.SUSPECT) if verdict in found), Verdict.OK)


class Operation(StrEnum):
    """What a claim gives a seat for."""

    PROMOTE = "Promote"
    """Bring a paused or parked resident into rotation; the seat serves nothing."""
    SWITCH = "Switch"
    """Drain one resident and promote another on the same seat."""
    DEMOTE = "Demote"
    """Drain a serving resident and pause it."""
    RECALL = "Recall"
    """Put a draining resident back into rotation."""
    PROVE = "Prove"
    """Resume, compare tokens, pause again; out of rotation."""
    PARK = "Park"
    """Move a paused resident's weights to host memory."""
    UNPARK = "Unpark"
    """Move a parked resident's weights back to device memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The compare-and-swap on a seat by which exactly one controller term gives it to one resident.

    Attributes:
        id: unique; orders to the agent repeat it, so that a repeated order is recognised.
        policy: the resident that gets the seat (for a demotion: the one that leaves).
        operation: what for.
        holder: instance id of the controller.
        epoch: the controller's term; agents refuse a lower one than the highest that they have seen.
        since: Unix time of the claim.
        deadline: Unix time after which anyone may take the claim back.
        leaving: the policy whose resident is drained first (`Switch` only).
        displace: policies whose paused residents may be parked to make room, the first first. None leaves the choice to the
            agent.
    """

    id: str
    policy: PolicyName
    operation: Operation
    holder: str
    epoch: int
    since: float
    deadline: float
    leaving: PolicyName | None = None
    displace: tuple[PolicyName, ...] | None = None


LOOPS = "CrashLoopBackOff"
"""The kubelet's word for a container that it starts again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A container of a seat that doesn't come up: whoever starts it tries again and again, or can't even try.

    Attributes:
        container: its name.
        reason: why it waits, in the kubelet's word.
        restarts: how often it has been started again.
        how: how it ended last, or what keeps it from being started, in words; empty if nobody says.
        refused: a pre-flight ended it last, so that nothing is known against what it runs.
    """

    container: str
    reason: str
    restarts: int = 0
    how: str = ""
    refused: bool = False

    def __str__(self) -> str:
        """Say it in one line."""
        times = f" after {self.restarts} restarts" if self.restarts else ""
        return f"container {self.container} is in {self.reason}{times}{f': {self.how}' if self.how else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """One engine of one model on one seat, as its agent last reported it.

    Attributes:
        policy: the policy (= model) that it belongs to.
        state: where it is in its life.
        since: Unix time at which it entered the state.
        address: base URL of its guard, where its requests go; empty until known.
        proven_at: Unix time of the last proof or canary that passed; None before the first.
        kv_released: whether its KV memory is given back at present.
        in_flight: requests that its guard has accepted and not finished.
        restarts: how often its engine has been restarted on this seat.
        failure: why it is Failed, in words; empty otherwise.
        refused: it is Failed because a pre-flight kept its engine from starting, which says nothing against the engine: that is
            tried again for as long as it takes.
        waiting: what its start waits for, in words: room, or a witness of what it answers; empty while it doesn't wait.
        pid: process id of the engine where that means something (local), else None.
        memory_bytes: device memory that it holds (resident memory on CPU), as last measured; None if unknown.
        parked_bytes: host memory that holds its weights; 0 while they have no copy there, None if unknown.
        wake_seconds: per depth, the seconds that its last promotions from there took from the order to the canary's answer, as
            a median; only depths from which it has been promoted.
        phases: seconds that each phase of its last completed start took (`warmpool.timeline`); they add up to all of it.
        start: what else is known of that start; None before the first, and for one that an earlier agent has seen.
        capabilities: what its engine was found to be able to do; None before it was asked.
        verification: what its engine said after the last change that it was told; None before the first.
        checkpoint: where its weights lie, as its node's stage daemon knows it; empty where none is asked.
        stage: where they are in that daemon's memory (`warmpool.agent.ahead.Place`); empty where none is asked, or it wasn't yet.
        stage_reason: why they aren't to be had there; empty if they are, or nobody wants them there.
    """

    policy: PolicyName
    state: ResidentState
    since: float
    address: str = ""
    proven_at: float | None = None
    kv_released: bool = False
    in_flight: int = 0
    restarts: int = 0
    failure: str = ""
    refused: bool = False
    waiting: str = ""
    pid: int | None = None
    memory_bytes: int | None = None
    parked_bytes: int | None = None
    wake_seconds: Mapping[Depth, float] = field(default_factory=lambda: MappingProxyType({}))
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    start: StartFacts | None = None
    capabilities: Capabilities | None = None
    verification: Verification | None = None
    checkpoint: str = ""
    stage: str = ""
    stage_reason: str = ""


class SeatValue(StrEnum):
    """What a seat is worth, from least to most; derived, never stored apart from the label that mirrors it."""

    DOOMED = "Doomed"
    """Terminating."""
    HELD = "Held"
    """Takes a replica and can serve nobody."""
    STARTING = "Starting"
    """No resident can be promoted yet, and one is on its way there."""
    SPARE = "Spare"
    """At least one promotable resident; nothing serving, promoting or draining."""
    LENT = "Lent"
    """Serves borrowed work that may be sent away."""
    DRAINING = "Draining"
    """A resident finishes what it accepted."""
    PROMOTING = "Promoting"
    """A claim is being carried out."""
    SERVING = "Serving"
    """A resident is in rotation."""


_OK, _BAD, _PROVE = Verdict.OK, Verdict.BAD, Operation.PROVE
"""By names of their own, as values and states below: looking an enum's members up was half of what a seat's value costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One pod of a fleet with its residents.

    Attributes:
        name: the pod's name, unique in the cluster's scope.
        uid: the pod's identity; a new pod of the same name has another.
        version: the pod object's resourceVersion, opaque, for compare-and-swap.
        fleet: the fleet that it belongs to.
        node: the machine that it runs on.
        gpus: UUIDs or indices of its GPUs; empty on a machine without any.
        residents: all its residents, in the order in which they start.
        serving: policies whose serving label is set: the residents in rotation.
        claim: the claim in force, or None.
        verdict: the worst verdict of its GPUs that is acted on.
        gpu_words: what is said of each of its GPUs; empty where nobody says anything.
        health_observed: its fleet shows what is said of GPUs, and acts on none of it.
        admitted: the readiness gate: all residents are proven or given up, or one was promoted.
        ready: the pod is Ready.
        reachable: its agent has reported recently.
        terminating: it has a deletion timestamp.
        leaves_by: Unix time at which the grace of a terminating seat ends; None while it isn't terminating, or nobody knows.
        node_leaving: why its node is being emptied, in words (`cordoned`, or somebody's taint); empty while the node stays.
        fenced: the scheduler puts no new pod where this one is, so that a replacement gets another GPU.
        lent: the serving resident only borrows the seat.
        drained: a person has ordered it to take no promotion.
        ailing: why it is being replaced, in words: its engines don't start as they should; empty while it isn't.
        crash: the container of it that doesn't come up; None if none is known.
        created_at: Unix time of creation.
        scheduled_at: Unix time at which a node took it; None where nobody tells. Kubernetes' times are in whole seconds.
        running_at: Unix time at which its containers ran; None before, and where nobody tells.
        template: hash of the pod template that it was made from.
        agent: base URL of its agent; empty until known.
        memory: what its residents take of its memory, as its agent reckons it; None until it is told.
    """

    name: SeatName
    uid: str
    version: str
    fleet: FleetName
    node: str = "localhost"
    gpus: tuple[str, ...] = ()
    residents: tuple[Resident, ...] = ()
    serving: frozenset[PolicyName] = frozenset()
    claim: Claim | None = None
    verdict: Verdict = Verdict.OK
    gpu_words: tuple[GpuWord, ...] = ()
    health_observed: bool = False
    admitted: bool = False
    ready: bool = False
    reachable: bool = True
    terminating: bool = False
    leaves_by: float | None = None
    node_leaving: str = ""
    fenced: bool = False
    lent: bool = False
    drained: bool = False
    ailing: str = ""
    crash: Crash | None = None
    created_at: float = 0.0
    scheduled_at: float | None = None
    running_at: float | None = None
    template: str = ""
    agent: str = ""
    memory: Budget | None = None
    _value: SeatValue | None = field(default=None, init=False, repr=False, compare=False)
    _lives: "Lives | None" = field(default=None, init=False, repr=False, compare=False)

    @property
    def value(self) -> SeatValue:
        """What it is worth: `seat_value`, worked out once, since a seat never changes."""
        value = self._value
        if value is None:
            value = seat_value(self)
            object.__setattr__(self, "_value", value)
        return value

    @property
    def stamps(self) -> Stamps:
        """What is known of its time before its agent began. Who tells when nodes take seats is Kubernetes, in whole seconds."""
        return Stamps(
            created=self.created_at,
            scheduled=self.scheduled_at,
            running=self.running_at,
            whole=self.scheduled_at is not None,
        )

    @property
    def lives(self) -> "Lives":
        """Who is up on it, worked out once."""
        lives = self._lives
        if lives is None:
            lives = _lives_of(self)
            object.__setattr__(self, "_lives", lives)
        return lives

    def resident(self, policy: PolicyName) -> Resident | None:
        """Return the resident of `policy`, or None if the seat has none."""
        for resident in self.residents:
            if resident.policy == policy:
                return resident
        return None

    def promotable(self, policy: PolicyName) -> bool:
        """Whether `policy`'s resident could be promoted here, were the seat free: at once, or after unparking."""
        resident = self.resident(policy)
        return resident is not None and resident.state in PROMOTABLE and self.usable

    def to_start(self, policy: PolicyName) -> Resident | None:
        """Return `policy`'s resident if it isn't up and starts, or would if nothing served here; else None.

        One that waits for room, or for a witness, comes up no sooner for having the seat to itself. One that is proven by
        our order is up.
        """
        resident = self.resident(policy)
        if resident is None or resident.waiting or not isnt_up(self, resident):
            return None
        return resident

    @property
    def usable(self) -> bool:
        """Whether the seat may take a promotion at all: it answers, is here to stay, isn't drained by an order, and starts engines."""
        return (
            self.verdict is _OK
            and self.reachable
            and not self.terminating
            and not self.node_leaving
            and not self.drained
            and not self.ailing
        )

    @property
    def answers(self) -> bool:
        """Whether whoever is in rotation here may be sent requests: reachable, not about to end, and on no GPU that is gone.

        On one that is to be handed over, for its GPU is Suspect or Bad or its node is emptied, that goes on until others serve in
        its place. A GPU that is gone, or may compute wrong, is no place to wait at.
        """
        return self.reachable and not self.terminating and not self._is_stopped

    @property
    def _is_stopped(self) -> bool:
        return self.verdict is _BAD and any(word.stops for word in self.gpu_words)


TO_COME_UP = (
    ResidentState.FAILED,
    ResidentState.STARTING,
    ResidentState.LOADING,
    ResidentState.WARMING,
    ResidentState.PROVING,
)
"""States in which a resident has yet to come up, in the order in which a start passes through them."""


def isnt_up(seat: Seat, resident: Resident) -> bool:
    """Whether a resident has yet to come up on a usable seat: it starts, waits for its start, or will be started anew."""
    if resident.state not in TO_COME_UP or not seat.usable or resident.policy in seat.serving:
        return False
    claim = seat.claim
    return claim is None or claim.policy != resident.policy or claim.operation is not _PROVE


class Lives(NamedTuple):
    """Who is up on a seat, and who isn't.

    Attributes:
        up: policies whose resident serves there, or could if it had the seat.
        starts: policies whose resident isn't up and could start if nobody else had the seat.
    """

    up: tuple[PolicyName, ...]
    starts: tuple[PolicyName, ...]


_UP = COMPUTING | MOVING | PROMOTABLE


def _lives_of(seat: Seat) -> Lives:
    """Say who is up on a seat, whoever has it at present."""
    up, starts = [], []
    for resident in seat.residents:
        if resident.state is _IS_PAUSED:  # as nearly all are: two comparisons less for each of thousands
            up.append(resident.policy)
        elif isnt_up(seat, resident):
            if not resident.waiting:
                starts.append(resident.policy)
        elif resident.state in _UP:
            up.append(resident.policy)
    return Lives(tuple(up), tuple(starts))


DELETION_COST: Mapping[SeatValue, int] = MappingProxyType(
    {
        SeatValue.DOOMED: -100,
        SeatValue.HELD: -50,
        SeatValue.STARTING: 0,
        SeatValue.SPARE: 0,
        SeatValue.LENT: 10,
        SeatValue.DRAINING: 50,
        SeatValue.PROMOTING: 100,
        SeatValue.SERVING: 100,
    }
)
"""The pod-deletion-cost that a workload's controller reads when it has to remove pods."""

_HELD, _STARTING, _SPARE, _DRAINING = SeatValue.HELD, SeatValue.STARTING, SeatValue.SPARE, SeatValue.DRAINING
_PROMOTING, _LENT, _SERVING = SeatValue.PROMOTING, SeatValue.LENT, SeatValue.SERVING
_DOOMED = SeatValue.DOOMED
_DRAINS, _IS_PROMOTED, _SERVES = ResidentState.DRAINING, ResidentState.PROMOTING, ResidentState.SERVING
_IS_PAUSED = ResidentState.PAUSED
_PROMOTIONS = (Operation.PROMOTE, Operation.SWITCH, Operation.RECALL)
_COMING = frozenset(
    {
        ResidentState.STARTING,
        ResidentState.LOADING,
        ResidentState.WARMING,
        ResidentState.PROVING,
        ResidentState.PARKING,
        ResidentState.UNPARKING,
        ResidentState.FAILED,  # the agent restarts it; the controller counts the seat out when it has given up
    }
)


def all_paused(seat: Seat) -> bool:
    """Whether none of a seat's residents is anything but paused: as on nearly all that serve nobody, and so asked first."""
    for resident in seat.residents:  # noqa: SIM110 - a generator for `all` takes twice as long
        if resident.state is not _IS_PAUSED:
            return False
    return True


def seat_value(seat: Seat) -> SeatValue:
    """Derive what a seat is worth from its labels, its claim and its residents' states."""
    if seat.terminating:
        return _DOOMED
    claim = seat.claim
    operation = None if claim is None else claim.operation
    promoting = claim is not None and operation in _PROMOTIONS
    if seat.serving and not promoting:
        return _LENT if seat.lent else _SERVING
    if not promoting and seat.residents and all_paused(seat):
        return _SPARE if seat.usable else _HELD
    states = {resident.state for resident in seat.residents}
    # what an agent told that is silent by now is so until the claim's deadline, and nobody's word after that
    told = seat.reachable or claim is not None
    if promoting or (_IS_PROMOTED in states and told):
        return _PROMOTING
    if (_DRAINS in states or _SERVES in states) and told:
        return _DRAINING  # out of rotation by its label, whatever the agent has got to yet
    if not seat.usable:
        return _HELD
    proving = operation is _PROVE and ResidentState.PROVING in states
    if proving or not PROMOTABLE.isdisjoint(states):  # one that is being proven shows what it can do
        return _SPARE
    if not states or not states.isdisjoint(_COMING):
        return _STARTING
    return _HELD
