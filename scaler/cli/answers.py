"""What a controller answers, read leniently: a newer one may say more, and an older one less."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from scaler.cli.failures import Failed
from warmpool.errors import BadOrder
from warmpool.seats import Seat, SeatValue
from warmpool.wire import seat_from_json

Parsed = TypeVar("Parsed")


class Answer(BaseModel):
    """Base of the answers: unknown keys are ignored, what can be missing is optional."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True)


class Reason(Answer):
    """Why a decision is as it is."""

    code: str
    sentence: str = ""
    facts: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def text(self) -> str:
        """The sentence with its code."""
        return f"{self.sentence} [{self.code}]" if self.sentence else self.code


class FleetAnswer(Answer):
    """One fleet."""

    name: str
    namespace: str = ""
    workload: str = ""
    mode: str = ""
    max_seats: int | None = None
    replicas: int | None = None
    total: int | None = None
    spare_target: int | None = None
    seats: Mapping[str, int] = Field(default_factory=dict)
    policies: Sequence[str] = ()
    reasons: Sequence[Reason] = ()
    created_at: float | None = None

    def count(self, *values: SeatValue) -> int:
        """Count the seats with one of these values."""
        return sum(self.seats.get(value, 0) for value in values)


class PolicyAnswer(Answer):
    """One policy."""

    name: str
    models: Sequence[str] = ()
    mode: str = ""
    signals: str = ""
    demand: float | None = None
    needed: float | None = None
    capacity: float | None = None
    wanted: Mapping[str, int] | None = None
    """Residents that the load asks for, by fleet; None where only pods tell of the policy."""
    serving: Mapping[str, int] = Field(default_factory=dict)
    in_rotation: Mapping[str, int] | None = None
    """Residents that have the serving label, by fleet; None where no cluster was asked."""
    queued: float | None = None
    in_flight: float | None = None
    oldest_wait_seconds: float | None = None
    reasons: Sequence[Reason] = ()


class SeatTold(Answer):
    """What is told of a seat beyond the seat itself."""

    value: str = ""
    """What it is worth; empty for what follows from the seat."""
    namespace: str = ""
    phase: str = ""
    """Of its pod; empty without a cluster."""
    declared: Sequence[str] = ()
    """Policies of which its pod's template says that it has residents."""
    reported: bool = True
    """Whether what agents report is known: states of residents, GPUs, memory."""
    unreadable: str = ""
    """Why its claim can't be read; empty if it can."""


@dataclass(frozen=True, slots=True)
class SeatAnswer:
    """One seat, and what is told beyond it."""

    seat: Seat
    told: SeatTold

    @property
    def value(self) -> str:
        """What it is worth."""
        return self.told.value or str(self.seat.value)


class FleetCondition(Answer):
    """What is to be known of a fleet beside its numbers."""

    fleet: str
    type: str
    reason: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """The message with its type, and its reason where that says more."""
        why = f"{self.type}: {self.reason}" if self.reason not in {"", self.type} else self.type
        return f"{self.message} [{why}]"


class Conditions(Answer):
    """What a controller says of its policy files, as far as it is about fleets."""

    conditions: Sequence[FleetCondition] = ()


class NodeTaint(Answer):
    """What keeps pods off a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeCondition(Answer):
    """What is said of a node."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class NodeGpus(Answer):
    """The GPUs of a node, as its device plugin offers them."""

    product: str = ""
    capacity: int = 0
    allocatable: int = 0


class NodeSeat(Answer):
    """A seat on a node."""

    name: str
    namespace: str = ""
    fleet: str = ""
    value: str = ""
    serving: Sequence[str] = ()


class NodeAnswer(Answer):
    """One node."""

    name: str
    ready: bool = False
    cordoned: bool = False
    gpus: NodeGpus = NodeGpus()
    taints: Sequence[NodeTaint] = ()
    conditions: Sequence[NodeCondition] = ()
    seats: Sequence[NodeSeat] = ()
    created_at: float | None = None


class Decided(Answer):
    """What a decision says of one fleet or policy."""

    number: int | None = None
    """The decision that it comes from, where several have been put together."""
    at: float | None = None
    """When that was."""
    reasons: Sequence[Reason] = ()


class FleetDecided(Decided):
    """What a decision says of one fleet."""

    serving: int
    spare: int
    held: int = 0
    total: int


class PolicyDecided(Decided):
    """What a decision says of one policy."""

    mode: str
    demand: float | None = None
    needed: float | None = None
    capacity: float | None = None
    wanted: Mapping[str, int] = Field(default_factory=dict)
    serving: Mapping[str, int] = Field(default_factory=dict)


class DecisionBody(Answer):
    """The decision itself."""

    policies: Mapping[str, PolicyDecided]
    fleets: Mapping[str, FleetDecided]


class Names(Answer):
    """Names of policies and fleets."""

    policies: Sequence[str] = ()
    fleets: Sequence[str] = ()


class DecisionRecord(Answer):
    """One line of the ledger."""

    at: float
    number: int
    causes: Mapping[str, int] = Field(default_factory=dict)
    policy_hash: str = ""
    decision: DecisionBody
    actions: Sequence[str] = ()
    looked: Names | None = None
    """What it looked at; None for everything."""
    of: Names | None = None
    """What everything is, where it looked at a part."""


def parse(
    reader: Callable[[Mapping[str, Any]], Parsed],
    item: Mapping[str, Any],
    source: str = "the controller's answer",
) -> Parsed:
    """Read one object; `source` is what an error calls it.

    Raises:
        Failed: it isn't what it should be.
    """
    try:
        return reader(item)
    except (ValidationError, BadOrder) as error:
        hint = "was it written by another version? -o json shows what it holds"
        raise Failed(f"{source} can't be read: {_first(error)}", hint=hint) from error


def _first(error: ValidationError | BadOrder) -> str:
    if isinstance(error, BadOrder):
        return str(error)
    details = error.errors()[0]
    return f"{'.'.join(map(str, details['loc']))}: {details['msg']}"


def fleet(item: Mapping[str, Any]) -> FleetAnswer:
    """Read a fleet."""
    return FleetAnswer.model_validate(item)


def policy(item: Mapping[str, Any]) -> PolicyAnswer:
    """Read a policy."""
    return PolicyAnswer.model_validate(item)


def seat(item: Mapping[str, Any]) -> SeatAnswer:
    """Read a seat.

    Raises:
        BadOrder: it isn't one.
    """
    return SeatAnswer(seat_from_json(item), SeatTold.model_validate(item))


def node(item: Mapping[str, Any]) -> NodeAnswer:
    """Read a node."""
    return NodeAnswer.model_validate(item)


def decision(item: Mapping[str, Any]) -> DecisionRecord:
    """Read a line of the ledger."""
    return DecisionRecord.model_validate(item)
