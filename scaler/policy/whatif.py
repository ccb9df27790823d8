"""What the law would answer to a load that nobody has seen yet.

The law is run in virtual time over a world in which nothing can go wrong: every seat is up, promotions and drains take no
time, and the load stays as it is. Before its first moment the floors (or what is given) served and no request came, for as
long as the law remembers.

Time goes by second by second while the past still moves the answer. Once it says the same all over, the law is asked in
leaps; where an answer differs from the one before the leap, time goes back and walks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias, TypedDict

from scaler.core.decide import decide
from scaler.core.demand import Demand, measure
from scaler.core.memory import Memory, PolicyMemory, Seen, Service
from scaler.core.model import (
    MISSING,
    NO_FLOOR,
    Decision,
    FleetDecision,
    FleetView,
    Floor,
    Load,
    PolicyDecision,
    PolicySpec,
    Quality,
    Reading,
    Snapshot,
    Supply,
)
from scaler.core.need import Capacity, Terms, terms
from scaler.core.placement import beyond
from scaler.core.windows import BUCKET_SECONDS, Bucket, Mark, Maxima, Ring, window_seconds
from scaler.errors import UserError
from scaler.policy.compile import PolicySet, build_set
from warmpool.seats import FleetName, PolicyName

_STEP_SECONDS = 1.0
"""The law is asked at least this often, as the controller does, while something may still change by itself."""
_LEAP_SECONDS = 60.0
"""And this often while nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLoad:
    """The load of one policy, held as it is.

    Attributes:
        in_flight: requests that residents work on.
        queued: requests that wait at the gateway, beside those.
        oldest_wait: seconds that the oldest of them has waited.
        backlog: entries of work queues that nobody has asked an engine for yet; None where nothing reads such a queue.
        backlog_age: seconds that the oldest of those has waited.
        service_seconds: seconds that a resident takes for one request.
    """

    in_flight: float = 0.0
    queued: float = 0.0
    oldest_wait: float = 0.0
    backlog: float | None = None
    backlog_age: float = 0.0
    service_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A load, and where it meets the fleets.

    Attributes:
        loads: per policy; the others have none.
        serving: per policy, residents that serve at the beginning; by default its floor.
        seats: per fleet, seats that are up; by default those that there are at rest: what serves, `spare.min`, and what
            a schedule asks for at that time.
        seconds: for how long the load is held.
        at: moment at which it begins, for schedules and freezes; with a time zone.
    """

    loads: Mapping[PolicyName, GivenLoad]
    serving: Mapping[PolicyName, int] = field(default_factory=dict)
    seats: Mapping[FleetName, int] = field(default_factory=dict)
    seconds: float
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """What the law's terms of one policy came to, and what they are made of.

    Attributes:
        terms: the terms.
        demand: what was measured.
        rate: requests that one busy slot finishes per second; 0 while nobody knows.
    """

    terms: Terms
    demand: Demand
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the law says at one moment.

    Attributes:
        seconds: time since the load began.
        decision: the answer.
        worked: per policy, what the law's terms came to.
        seats: per fleet, seats that were up.
    """

    seconds: float
    decision: Decision
    worked: Mapping[PolicyName, Worked]
    seats: Mapping[FleetName, int]


def what_if(policies: PolicySet, question: Question) -> Iterator[Answer]:
    """Yield the law's answers from the moment at which the load begins, each time that it is asked.

    Raises:
        UserError: more residents shall serve at first than the fleets have seats for.
    """
    world = _World(policies, question)
    moment = _Moment(now=0.0, memory=_calm(policies, question, world), **world.state())
    last: Answer | None = None
    passed: _Moment | None = None  # after a leap, the moment that walking would have come to
    walking_until = 0.0
    while moment.now <= question.seconds:
        world.be(moment)
        answer, memory = _asked(policies, question, world, moment)
        same = last is not None and says(answer) == says(last)
        if passed is not None and not same:
            moment, passed, walking_until = passed, None, moment.now
            continue
        yield answer
        last = answer
        world.follow(answer.decision)
        moment, passed = _Moment(now=_next(answer), memory=memory, **world.state()), None
        if same and _settled(memory) and walking_until < moment.now < question.seconds:
            leap = min(answer.seconds + _LEAP_SECONDS, question.seconds)
            moment, passed = replace(moment, now=leap, memory=_watched(memory, leap)), moment


def _next(answer: Answer) -> float:
    step = answer.seconds + _STEP_SECONDS
    return min(step, answer.decision.next_wakeup or step)


def says(answer: Answer) -> object:
    """Return what an answer says, without the numbers that move with time alone."""
    return (
        [policy_says(policy) for policy in answer.decision.policies.values()],
        [fleet_says(fleet) for fleet in answer.decision.fleets.values()],
    )


def policy_says(policy: PolicyDecision) -> object:
    """Return what an answer says of one policy."""
    return policy.mode, dict(policy.serving), dict(policy.wanted), [reason.code for reason in policy.reasons]


def fleet_says(fleet: FleetDecision) -> object:
    """Return what an answer says of one fleet."""
    return fleet.total, fleet.serving, [reason.code for reason in fleet.reasons]


def concerned(
    policies: PolicySet, names: Iterable[PolicyName], fleets: Iterable[FleetName] = ()
) -> PolicySet:
    """Return the part of a set that the answer for some of it depends on: whatever shares fleets with it, and so on.

    A budget over all fleets makes everything depend on everything.

    Args:
        policies: the set.
        names: policies that are asked about.
        fleets: fleets that are asked about.
    """
    if policies.gpu_budget is not None:
        return policies
    wanted, near = set(names), set(fleets)
    while True:
        near |= {share.fleet for name in wanted for share in policies.policy_specs[name].fleets}
        more = {name for fleet in near for name in policies.policies_on(fleet)} - wanted
        if not more:
            break
        wanted |= more
    items = [item for name, item in policies.fleets.items() if name in near]
    return build_set(
        [*items, *(item for name, item in policies.policies.items() if name in wanted), *policies.settings]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """Where the run stands.

    Attributes:
        now: seconds since the load began.
        memory: what the law remembers.
        seats: per fleet, how many are up.
        serving: per fleet and policy, how many residents serve.
        lent: the part of them that is borrowed.
    """

    now: float
    memory: Memory
    seats: Mapping[FleetName, int]
    serving: Mapping[FleetName, Mapping[PolicyName, int]]
    lent: Mapping[FleetName, Mapping[PolicyName, int]]


def _asked(
    policies: PolicySet, question: Question, world: "_World", moment: _Moment
) -> tuple[Answer, Memory]:
    now = moment.now
    snapshot = seen_under(policies, world.snapshot(), question.at.timestamp() + now, now)
    specs = list(policies.policy_specs.values())
    decision, after = decide(specs, list(policies.fleet_specs.values()), snapshot, moment.memory, now)
    found = {spec.name: _worked(spec, snapshot, moment.memory, (after, decision), now) for spec in specs}
    return Answer(seconds=now, decision=decision, worked=found, seats=dict(world.seats)), after


def _watched(memory: Memory, until: float) -> Memory:
    """Return the memory of a law that went on getting fresh readings up to a leap's end: a leap is no gap."""
    policies = {
        name: replace(policy, fresh_at=max(policy.fresh_at, until - _STEP_SECONDS))
        for name, policy in memory.policies.items()
    }
    return replace(memory, policies=policies)


def _settled(memory: Memory) -> bool:
    """Whether no second of the past differs from the present, so that leaving some out changes no mean."""
    return all(policy.ring.flat for policy in memory.policies.values())


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


def _worked(
    spec: PolicySpec, snapshot: Snapshot, before: Memory, outcome: tuple[Memory, Decision], now: float
) -> Worked:
    """Work out the terms behind a decision, which holds only what came of them."""
    after, decision = outcome
    remembered, past = after.policies[spec.name], before.policies[spec.name]
    serving = any(
        view.supply[spec.name].serving for view in snapshot.fleets.values() if spec.name in view.supply
    )
    demand, _ = measure(snapshot.loads[spec.name], past.seen, serving=serving, now=now)
    rate = 0.0 if past.service is None else past.service.rate
    capacity = Capacity(decision.policies[spec.name].capacity)
    found = terms(demand, remembered.ring, rate, spec, capacity, now)
    return Worked(terms=found, demand=demand, rate=rate)


_Counts: TypeAlias = dict[FleetName, dict[PolicyName, int]]
"""Residents per fleet and policy."""


class _State(TypedDict):
    """What of a world changes."""

    seats: dict[FleetName, int]
    serving: _Counts
    lent: _Counts


class _World:
    """Seats that do at once what is decided.

    Attributes:
        seats: per fleet, how many are up.
        serving: per fleet and policy, how many residents serve.
        lent: the part of them that is borrowed: its seats count as spare.
    """

    def __init__(self, policies: PolicySet, question: Question) -> None:
        self._policies = policies
        self._loads = {name: _load(question.loads.get(name)) for name in policies.policy_specs}
        clocked = policies.calendar.at(question.at.timestamp(), 0.0)
        self.serving: _Counts = {
            fleet: dict.fromkeys(policies.policies_on(fleet), 0) for fleet in policies.fleet_specs
        }
        self.lent: _Counts = {fleet: dict.fromkeys(on, 0) for fleet, on in self.serving.items()}
        self.seats = {
            name: question.seats.get(name, spec.max_seats) for name, spec in policies.fleet_specs.items()
        }
        for spec in sorted(policies.policy_specs.values(), key=lambda spec: (-spec.priority, spec.name)):
            floor = max(spec.serving_min, clocked.serving_floors.get(spec.name, NO_FLOOR).value)
            self._place(spec, floor, question.serving.get(spec.name))
        self.seats = self._at_rest(clocked.seat_floors) | dict(question.seats)

    def _place(self, spec: PolicySpec, floor: int, given: int | None) -> None:
        """Let residents serve on the earliest fleets with room; what a borrower has beyond its floor is lent."""
        left = floor if given is None else given
        placed = []
        for share in spec.fleets:
            here = max(0, min(left, self.seats[share.fleet] - sum(self.serving[share.fleet].values())))
            self.serving[share.fleet][spec.name] = here
            placed.append(here)
            left -= here
        if left and given is not None:
            message = f"serving {spec.name}={given}: its fleets have seats for {given - left}"
            raise UserError(message, hint="let fewer serve at first, or give its fleets more seats")
        if spec.preemptible:
            for share, borrowed in zip(spec.fleets, beyond(placed, floor), strict=True):
                self.lent[share.fleet][spec.name] = borrowed

    def _at_rest(self, floors: Mapping[FleetName, Floor]) -> dict[FleetName, int]:
        """Return the seats that there are when nothing has happened for long; spares go first where a budget is short."""
        seats, busy = {}, {}
        for name, spec in self._policies.fleet_specs.items():
            busy[name] = sum(self.serving[name].values())
            borrowed = sum(self.lent[name].values())
            wanted = busy[name] - borrowed + max(spec.spare_target, borrowed)
            scheduled = floors.get(name, NO_FLOOR).value
            seats[name] = max(busy[name], min(spec.max_seats, max(wanted, scheduled)))
        budget = self._policies.gpu_budget
        for name in sorted(seats, reverse=True) if budget is not None else ():
            gpus = self._policies.fleet_specs[name].gpus
            over = sum(self._policies.fleet_specs[each].gpus * count for each, count in seats.items()) - (
                budget or 0
            )
            if gpus and over > 0:
                seats[name] -= min(-(-over // gpus), seats[name] - busy[name])
        return seats

    def state(self) -> "_State":
        """Return what to come back to."""
        return {
            "seats": dict(self.seats),
            "serving": {fleet: dict(counts) for fleet, counts in self.serving.items()},
            "lent": {fleet: dict(counts) for fleet, counts in self.lent.items()},
        }

    def be(self, moment: _Moment) -> None:
        """Come back to a moment."""
        self.seats = dict(moment.seats)
        self.serving = {fleet: dict(counts) for fleet, counts in moment.serving.items()}
        self.lent = {fleet: dict(counts) for fleet, counts in moment.lent.items()}

    def snapshot(self) -> Snapshot:
        """Return what the law would see."""
        return Snapshot(loads=self._loads, fleets={fleet: self._view(fleet) for fleet in self.seats})

    def _view(self, fleet: FleetName) -> FleetView:
        serving, lent = self.serving[fleet], self.lent[fleet]
        borrowed = sum(lent.values())
        owned = sum(serving.values()) - borrowed
        spare = self.seats[fleet] - owned - borrowed
        supply = {
            policy: Supply(
                serving=count,
                promotable=spare + borrowed - lent[policy],
                switchable=owned - (count - lent[policy]),
            )
            for policy, count in serving.items()
        }
        return FleetView(serving=owned, spare=spare, lent=borrowed, replicas=self.seats[fleet], supply=supply)

    def follow(self, decision: Decision) -> None:
        """Promote, pause and delete as decided. No seat is added: what starts takes longer than a load that is held."""
        for policy in decision.policies.values():
            for fleet, count in policy.serving.items():
                self.serving[fleet][policy.policy] = count
                self.lent[fleet][policy.policy] = policy.lent.get(fleet, 0)
        for name, total in decision.fleets.items():
            owned = sum(self.serving[name].values()) - sum(self.lent[name].values())
            self.seats[name] = max(owned, min(self.seats[name], total.total))
            self._reclaim(name, self.seats[name] - owned)

    def _reclaim(self, fleet: FleetName, room: int) -> None:
        """Take back lent seats that are deleted."""
        for policy, borrowed in self.lent[fleet].items():
            kept = min(borrowed, room)
            self.serving[fleet][policy] -= borrowed - kept
            self.lent[fleet][policy] = kept
            room -= kept


def _load(given: GivenLoad | None) -> Load:
    if given is None:
        given = GivenLoad(service_seconds=1.0)
    return Load(
        queued=_fresh(given.queued),
        in_flight=_fresh(given.in_flight),
        oldest_wait=_fresh(given.oldest_wait),
        completions=_fresh(given.in_flight / given.service_seconds),
        backlog=MISSING if given.backlog is None else _fresh(given.backlog),
        backlog_age=MISSING if given.backlog is None else _fresh(given.backlog_age),
    )


def _fresh(value: float) -> Reading:
    return Reading(value=value, age=0.0, quality=Quality.FRESH)


def _service(given: GivenLoad | None) -> Service | None:
    if given is None or not given.in_flight:
        return None
    completions = given.in_flight / given.service_seconds
    return Service(completions, given.in_flight)


def _calm(policies: PolicySet, question: Question, world: _World) -> Memory:
    """Return what the law remembers of a long time without a request; how long one takes it knows all the same."""
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
            service=_service(question.loads.get(spec.name)),
            given=given,
            wanted=given,
            asked={fleet: Maxima((Mark(0.0, count),)) for fleet, count in given.items()},
        )
    return replace(Memory.initial(0.0), policies=memories)
