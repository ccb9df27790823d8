"""What the law would answer to a load that nobody has seen yet.

The law is run in virtual time over a world in which nothing can go wrong: every seat is up, promotions and drains take no
time, and the load stays as it is. Before its first moment the floors (or what is given) served and no request came, for as
long as the law remembers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from scaler.core.decide import decide
from scaler.core.demand import measure
from scaler.core.memory import Memory, PolicyMemory, Seen
from scaler.core.model import (
    Decision,
    FleetView,
    Load,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)
from scaler.core.need import Terms, terms
from scaler.core.windows import BUCKET_SECONDS, Bucket, Mark, Maxima, Ring, window_seconds
from scaler.policy.compile import PolicySet
from warmpool.seats import FleetName, PolicyName

_STEP_SECONDS = 1.0
"""The law is asked at least this often, as the controller does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLoad:
    """The load of one policy, held as it is.

    Attributes:
        in_flight: requests that residents work on.
        queued: requests that wait at the gateway, beside those.
        oldest_wait: seconds that the oldest of them has waited.
        service_seconds: seconds that a resident takes for one request.
    """

    in_flight: float = 0.0
    queued: float = 0.0
    oldest_wait: float = 0.0
    service_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A load, and where it meets the fleets.

    Attributes:
        loads: per policy; the others have none.
        serving: per policy, residents that serve at the beginning; by default its floor.
        seats: per fleet, seats that are up; by default all that it may have.
        seconds: for how long the load is held.
        at: moment at which it begins, for schedules and freezes; with a time zone.
    """

    loads: Mapping[PolicyName, GivenLoad]
    serving: Mapping[PolicyName, int] = field(default_factory=dict)
    seats: Mapping[FleetName, int] = field(default_factory=dict)
    seconds: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the law says at one moment.

    Attributes:
        seconds: time since the load began.
        decision: the answer.
        terms: per policy, what the law's terms came to.
        seats: per fleet, seats that were up.
    """

    seconds: float
    decision: Decision
    terms: Mapping[PolicyName, Terms]
    seats: Mapping[FleetName, int]


def what_if(policies: PolicySet, question: Question) -> Iterator[Answer]:
    """Yield the law's answers from the moment at which the load begins, each time that it is asked."""
    world = _World(policies, question)
    memory = _calm(policies, world)
    now = 0.0
    while now <= question.seconds:
        snapshot = seen_under(policies, world.snapshot(), question.at.timestamp() + now, now)
        specs = list(policies.policy_specs.values())
        decision, after = decide(specs, list(policies.fleet_specs.values()), snapshot, memory, now)
        found = {spec.name: _terms(spec, snapshot, memory, (after, decision), now) for spec in specs}
        yield Answer(seconds=now, decision=decision, terms=found, seats=dict(world.seats))
        world.follow(decision)
        memory = after
        now = min(now + _STEP_SECONDS, decision.next_wakeup or now + _STEP_SECONDS)


def seen_under(policies: PolicySet, snapshot: Snapshot, wall: float, now: float) -> Snapshot:
    """Return a snapshot with what the policies themselves bring into it: schedules, freezes, and the budget of GPUs.

    Args:
        policies: the policies.
        snapshot: what is seen of load and seats.
        wall: Unix time.
        now: the same moment on the law's clock.
    """
    clocked = policies.calendar.at(wall, now)
    return replace(
        snapshot,
        serving_floors=clocked.serving_floors,
        seat_floors=clocked.seat_floors,
        frozen=clocked.frozen,
        gpu_budget=policies.gpu_budget,
    )


def _terms(
    spec: PolicySpec, snapshot: Snapshot, before: Memory, outcome: tuple[Memory, Decision], now: float
) -> Terms:
    """Work out the terms behind a decision, which holds only what came of them."""
    after, decision = outcome
    remembered = after.policies[spec.name]
    serving = any(
        view.supply[spec.name].serving for view in snapshot.fleets.values() if spec.name in view.supply
    )
    demand, _ = measure(snapshot.loads[spec.name], before.policies[spec.name].seen, serving=serving, now=now)
    rate = 0.0 if remembered.service is None else remembered.service.rate
    return terms(demand, remembered.ring, rate, spec, decision.policies[spec.name].capacity, now)


class _World:
    """Seats that do at once what is decided.

    Attributes:
        seats: per fleet, how many are up.
        serving: per fleet and policy, how many residents serve.
    """

    def __init__(self, policies: PolicySet, question: Question) -> None:
        self._policies = policies
        self._loads = {name: _load(question.loads.get(name)) for name in policies.policy_specs}
        self.seats = {
            name: question.seats.get(name, spec.max_seats) for name, spec in policies.fleet_specs.items()
        }
        self.serving: dict[FleetName, dict[PolicyName, int]] = {
            fleet: dict.fromkeys(policies.policies_on(fleet), 0) for fleet in self.seats
        }
        order = sorted(policies.policy_specs.values(), key=lambda spec: (-spec.priority, spec.name))
        for spec in order:
            self._place(spec, question.serving.get(spec.name, spec.serving_min))

    def _place(self, spec: PolicySpec, count: int) -> None:
        """Let residents serve on the earliest fleets with room."""
        for share in spec.fleets:
            here = min(count, self.seats[share.fleet] - sum(self.serving[share.fleet].values()))
            self.serving[share.fleet][spec.name] = here
            count -= here

    def snapshot(self) -> Snapshot:
        """Return what the law would see."""
        return Snapshot(loads=self._loads, fleets={fleet: self._view(fleet) for fleet in self.seats})

    def _view(self, fleet: FleetName) -> FleetView:
        serving = sum(self.serving[fleet].values())
        spare = self.seats[fleet] - serving
        supply = {
            policy: Supply(serving=count, promotable=spare, switchable=serving - count)
            for policy, count in self.serving[fleet].items()
        }
        return FleetView(serving=serving, spare=spare, replicas=self.seats[fleet], supply=supply)

    def follow(self, decision: Decision) -> None:
        """Promote, pause and delete as decided. No seat is added: what starts takes longer than a load that is held."""
        for policy in decision.policies.values():
            for fleet, count in policy.serving.items():
                self.serving[fleet][policy.policy] = count
        for name, total in decision.fleets.items():
            busy = sum(self.serving[name].values())
            self.seats[name] = max(busy, min(self.seats[name], total.total))


def _load(given: GivenLoad | None) -> Load:
    if given is None:
        given = GivenLoad(service_seconds=1.0)
    return Load(
        queued=_fresh(given.queued),
        in_flight=_fresh(given.in_flight),
        oldest_wait=_fresh(given.oldest_wait),
        completions=_fresh(given.in_flight / given.service_seconds),
    )


def _fresh(value: float) -> Reading:
    return Reading(value=value, age=0.0, quality=Quality.FRESH)


def _calm(policies: PolicySet, world: _World) -> Memory:
    """Return what the law remembers of a long time without a request."""
    memories = {}
    for spec in policies.policy_specs.values():
        given = {share.fleet: world.serving[share.fleet][spec.name] for share in spec.fleets}
        window = max(window_seconds(spec.burst.stable_window), window_seconds(spec.burst.window))
        seconds = range(-int(window / BUCKET_SECONDS) - 1, 0)
        memories[spec.name] = replace(
            PolicyMemory.initial(0.0),
            ring=Ring(tuple(Bucket(second, 0.0, 1, 0.0) for second in seconds)),
            burst=None,
            seen=Seen(queued=0.0, in_flight=0.0),
            given=given,
            wanted=given,
            asked={fleet: Maxima((Mark(0.0, count),)) for fleet, count in given.items()},
        )
    return replace(Memory.initial(0.0), policies=memories)
