"""The planner: counts become seats. It alone names which seat is promoted, switched, demoted, proven or replaced.

`plan` is a total function of what is wanted and what there is: the same arguments give the same plan, nothing is
remembered, and what is in flight counts through the claims on the seats. PURE: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from warmpool.claim import in_force
from warmpool.seats import Claim, FleetName, Operation, PolicyName, Resident, Seat, SeatName, Verdict
from warmpool.states import ResidentState

# ------------------------------------------------------------------ what is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What was decided, in counts.

    Absent is not zero: a fleet that is missing from `serving` is left alone, and a policy that is missing from its
    fleet's counts is neither promoted nor demoted there.

    Attributes:
        serving: per fleet and policy, the residents that shall be in rotation.
        order: policies by priority, highest first; policies that it lacks come last, by name.
        totals: per fleet, the seats that its workload shall have.
        replicas: per fleet, the seats that its workload is asked for at present; a fleet that is missing isn't resized.
        frozen: fleets of which no seat is replaced.
        ended_at_once: policies whose requests on a lent seat are ended when the seat is wanted.
    """

    serving: Mapping[FleetName, Mapping[PolicyName, int]]
    order: Sequence[PolicyName] = ()
    totals: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    replicas: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    frozen: frozenset[FleetName] = frozenset()
    ended_at_once: frozenset[PolicyName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may happen at once, and how patient the planner is.

    Attributes:
        max_promotions: recalls, promotions and switches in flight at once, those already claimed included.
        max_demotions: demotions in flight at once, those already claimed included.
        proof_interval_seconds: age at which a spare resident's proof is renewed; infinity for never.
        report_lag_seconds: how long after a settlement an agent's report may still be the one from before it. Agents
            push each change within 20 ms and everything each 2 s.
        give_up_seconds: a resident that has been Failed for longer is not being restarted.
    """

    max_promotions: int = 128
    max_demotions: int = 32
    proof_interval_seconds: float = 300.0
    report_lag_seconds: float = 3.0
    give_up_seconds: float = 120.0


# ------------------------------------------------------------------ what is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do.

    Attributes:
        why: the reason, in a few words.
    """

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatAction(Action):
    """Something to do on one seat.

    Attributes:
        seat: the seat as the planner saw it; its version guards the write.
    """

    seat: Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(SeatAction):
    """Take a label off whose engine can't serve any more; there is nothing to drain, or nobody to drain it."""

    policy: PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(SeatAction):
    """Put a resident back into rotation that is leaving it; may supersede the claim of its demotion."""

    policy: PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(SeatAction):
    """Bring a paused resident of a spare seat into rotation."""

    policy: PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(SeatAction):
    """Drain the resident of `leaving` and promote the one of `policy` on the same seat.

    Attributes:
        leaving: who leaves.
        policy: who comes.
        at_once: what `leaving` has accepted is ended, with an error that says so, instead of being waited for.
    """

    leaving: PolicyName
    policy: PolicyName
    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Demote(SeatAction):
    """Take a resident out of rotation, drain it and pause it."""

    policy: PolicyName


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(SeatAction):
    """Delete a seat that can serve nobody, so that its workload makes another.

    Attributes:
        reason: why the seat is of no use, for the record of the deletion.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Action):
    """Ask a fleet's workload for another number of seats."""

    fleet: FleetName
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prove(SeatAction):
    """Resume a spare resident out of rotation, compare tokens, pause it again."""

    policy: PolicyName


class InFlight(NamedTuple):
    """What is under way on a fleet already.

    Attributes:
        promotions: recalls, promotions and switches.
        demotions: demotions.
    """

    promotions: int
    demotions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now.

    Attributes:
        actions: at most one per seat, most urgent first: releases, recalls, promotions, switches, demotions,
            replacements, resizes, proofs; within a kind by priority.
        unfilled: per fleet and policy, the residents for which no seat was found; only what is above zero.
        deferred: actions that the limits leave for a later plan.
        in_flight: per fleet what is claimed already; only fleets with any.
    """

    actions: tuple[Action, ...] = ()
    unfilled: Mapping[tuple[FleetName, PolicyName], int] = field(default_factory=lambda: MappingProxyType({}))
    deferred: int = 0
    in_flight: Mapping[FleetName, InFlight] = field(default_factory=lambda: MappingProxyType({}))


def plan(
    wants: Wants,
    seats: Iterable[Seat],
    limits: Limits,
    now: float,
    *,
    settled: Mapping[SeatName, float] | None = None,
) -> Plan:
    """Name the seats that bring what there is closer to what is wanted.

    Seats with a claim in force are left alone, with one exception: a resident under demotion may be recalled.

    Args:
        wants: what was decided.
        seats: all seats, of all fleets.
        limits: how much may happen at once.
        now: Unix time, as in the seats' claims.
        settled: Unix times at which seats were last settled, as far as the caller knows; while one is younger than
            `limits.report_lag_seconds` its labels are believed over its agent's report, which may be older. None means
            that the caller keeps no such times: labels are then believed wherever a late report could explain the
            difference.

    Returns:
        The plan; it never raises for any seats.
    """
    moment = _Moment(now=now, limits=limits, settled=settled, ended_at_once=wants.ended_at_once)
    stocks = {name: _Stock(name) for name in wants.serving}
    for seat in seats:
        stock = stocks.get(seat.fleet)
        if stock is not None:
            stock.enter(seat, moment)
    rank = {policy: position for position, policy in enumerate(wants.order)}
    drafts = [_Draft(stock, wants.serving[name], rank, moment) for name, stock in stocks.items()]
    for draft in drafts:
        draft.write()
    return _assemble(wants, limits, rank, drafts)


# ------------------------------------------------------------------ what there is, sorted once

_PAUSED = ResidentState.PAUSED
_SERVING = ResidentState.SERVING
_DRAINING = ResidentState.DRAINING
_BUSY = (ResidentState.WARMING, ResidentState.PROVING, ResidentState.PROMOTING)
"""Computing without being in rotation or on the way out of it. A tuple: `in` then compares by identity first, where a
set would hash an enum member in Python code, which 10,000 seats would feel."""

_MOVING = (
    ResidentState.STARTING,
    ResidentState.LOADING,
    ResidentState.PARKING,
    ResidentState.UNPARKING,
)
"""Between two states without computing: no hindrance for a promotion, but not the time for a proof."""

_ON_ITS_WAY = (ResidentState.PROMOTING, _PAUSED, _DRAINING, ResidentState.PROVING)
"""States that a resident in rotation may still be reported in shortly after it got there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """When the plan is made, and what is known about how old reports are."""

    now: float
    limits: Limits
    settled: Mapping[SeatName, float] | None
    ended_at_once: frozenset[PolicyName] = frozenset()

    def just_settled(self, seat: Seat) -> bool:
        """Whether the seat is known to have been settled so lately that its report may be older than that."""
        at = None if self.settled is None else self.settled.get(seat.name)
        return at is not None and self.now - at < self.limits.report_lag_seconds

    def in_rotation(self, seat: Seat, resident: Resident | None) -> bool:
        """Whether a resident that has its label can be taken to serve."""
        if resident is None:
            return False
        if resident.state is _SERVING:
            return True
        return resident.state in _ON_ITS_WAY and (self.settled is None or self.just_settled(seat))

    def given_up(self, resident: Resident) -> bool:
        """Whether nobody will bring this resident back."""
        if resident.state is ResidentState.FAILED:
            return self.now - resident.since > self.limits.give_up_seconds
        return resident.state in {ResidentState.QUARANTINED, ResidentState.TERMINATING}


class _Stock:
    """One fleet's seats, sorted by what can be done with them."""

    __slots__ = (
        "coming",
        "demotions",
        "doomed",
        "dying",
        "fleet",
        "leaving",
        "pinned",
        "promotions",
        "proofs",
        "recallable",
        "serving",
        "spare",
        "stalest",
        "strays",
        "unready",
        "useless",
    )

    def __init__(self, fleet: FleetName) -> None:
        self.fleet = fleet
        self.serving: dict[PolicyName, list[Seat]] = {}  # in rotation on a usable seat, free to be demoted
        self.pinned: Counter[PolicyName] = Counter()  # in rotation beside a claim for another resident
        self.leaving: dict[PolicyName, list[Seat]] = {}  # in rotation on a seat that shall be handed over
        self.coming: dict[PolicyName, list[Seat]] = {}  # claimed and not yet in rotation
        self.recallable: dict[
            PolicyName, list[tuple[Seat, Resident]]
        ] = {}  # leaving, and alone on a usable seat
        self.strays: list[tuple[Seat, Resident]] = []  # resumed, out of rotation, and claimed by nobody
        self.dying: list[tuple[Seat, PolicyName]] = []  # labelled, and not serving
        self.spare: list[Seat] = []
        self.stalest: tuple[float, Seat, PolicyName] | None = None  # the spare resident with the oldest proof
        self.useless: list[Seat] = []  # nothing serves or computes, and nothing can be promoted
        self.promotions = self.demotions = self.proofs = self.doomed = 0
        self.unready = False  # a serving pod isn't Ready

    def firm(self, policy: PolicyName) -> int:
        """Residents in rotation on usable seats."""
        return len(self.serving.get(policy, ())) + self.pinned[policy]

    def enter(self, seat: Seat, moment: _Moment) -> None:
        """Sort one seat in."""
        if seat.terminating:
            self.doomed += 1
        elif seat.serving and not seat.ready:
            self.unready = True
        claim = seat.claim
        if claim is not None and in_force(claim, moment.now):
            self._enter_claimed(seat, claim, moment)
        elif seat.serving:
            self._enter_serving(seat, moment)
        else:
            self._enter_out_of_rotation(seat, moment)

    def _enter_claimed(self, seat: Seat, claim: Claim, moment: _Moment) -> None:
        resident = seat.resident(claim.policy)
        match claim.operation:
            case Operation.PROVE:
                self.proofs += 1
            case Operation.DEMOTE:
                self.demotions += 1
                self._offer_recall(seat, resident)
            case Operation.PROMOTE | Operation.SWITCH | Operation.RECALL:
                self.promotions += 1
                if seat.usable and resident is not None and _alive(resident):
                    self.coming.setdefault(claim.policy, []).append(seat)
        for policy in seat.serving - {claim.policy}:
            self.pinned[policy] += seat.usable and moment.in_rotation(seat, seat.resident(policy))

    def _enter_serving(self, seat: Seat, moment: _Moment) -> None:
        serving = seat.serving
        for policy in sorted(serving):
            if not moment.in_rotation(seat, seat.resident(policy)):
                self.dying.append((seat, policy))
            elif seat.usable:
                self.serving.setdefault(policy, []).append(seat)
            else:
                self.leaving.setdefault(policy, []).append(seat)
        for resident in seat.residents:
            state = resident.state
            if (state is _SERVING or state is _DRAINING) and resident.policy not in serving:
                self.strays.append((seat, resident))

    def _enter_out_of_rotation(self, seat: Seat, moment: _Moment) -> None:
        paused, stray, others = _by_state(seat)
        if stray is not None:
            self._offer_recall(seat, stray)
            if not moment.just_settled(seat):
                self.strays.append((seat, stray))
        elif any(state in _BUSY for state in others):
            return
        elif paused and seat.usable:
            self.spare.append(seat)  # if its claim has run out, whoever takes the seat takes that over
            if not any(state in _MOVING for state in others):
                self._offer_proof(seat, paused)
        else:
            self.useless.append(seat)

    def _offer_recall(self, seat: Seat, resident: Resident | None) -> None:
        if resident is None or seat.serving or not seat.usable:
            return
        if (resident.state is _SERVING or resident.state is _DRAINING) and _computing(seat) == 1:
            self.recallable.setdefault(resident.policy, []).append((seat, resident))

    def _offer_proof(self, seat: Seat, paused: Iterable[Resident]) -> None:
        for resident in paused:
            proven = -math.inf if resident.proven_at is None else resident.proven_at
            if self.stalest is None or (proven, seat.name) < (self.stalest[0], self.stalest[1].name):
                self.stalest = (proven, seat, resident.policy)


def _by_state(seat: Seat) -> tuple[list[Resident], Resident | None, list[ResidentState]]:
    """Return the paused residents, one that is resumed (None if none is), and the states of all others."""
    paused: list[Resident] = []
    others: list[ResidentState] = []
    resumed = None
    for resident in seat.residents:
        state = resident.state
        if state is _PAUSED:
            paused.append(resident)
        elif state is _SERVING or state is _DRAINING:
            resumed = resident
        else:
            others.append(state)
    return paused, resumed, others


def _alive(resident: Resident) -> bool:
    """Whether a resident under a promotion's claim can still get into rotation by it."""
    return resident.state is _SERVING or resident.state in _ON_ITS_WAY


def _computing(seat: Seat) -> int:
    """How many residents of the seat may be using its GPUs, as reported."""
    return sum(r.state is _SERVING or r.state is _DRAINING or r.state in _BUSY for r in seat.residents)


def _in_flight(seat: Seat, policy: PolicyName) -> int:
    """Requests that the policy's resident has accepted and not finished."""
    resident = seat.resident(policy)
    return 0 if resident is None else resident.in_flight


# ------------------------------------------------------------------ spare seats to policies


class _Matching:
    """Which spare seat goes to which policy: everyone's best candidates first, and as many residents as can be.

    A policy that finds no free seat may take one from a policy before it, if that one has another (augmenting paths,
    H. Kuhn 1955): no policy loses a resident by it, so priority is kept.
    """

    __slots__ = ("_candidates", "_next", "_owner", "_spare")

    def __init__(self, stock: _Stock, needy: Iterable[PolicyName], moment: _Moment) -> None:
        self._spare = sorted(stock.spare, key=attrgetter("name"))
        self._candidates = _candidates(self._spare, stock, needy, moment)
        self._next = dict.fromkeys(self._candidates, 0)
        self._owner: dict[int, PolicyName] = {}

    def add(self, policy: PolicyName) -> bool:
        """Give one more seat to the policy; False if there is none for it."""
        asked: dict[PolicyName, tuple[PolicyName, int]] = {}  # owner -> who asks it for which of its seats
        queue = [policy]
        for asker in queue:
            seat = self._free(asker)
            if seat is not None:
                while asker != policy:
                    self._owner[seat] = asker
                    asker, seat = asked[asker]  # noqa: PLW2901 -- the walk back ends the search
                self._owner[seat] = policy
                return True
            for candidate in self._candidates.get(asker, ()):
                owner = self._owner[candidate]
                if owner != policy and owner not in asked:
                    asked[owner] = (asker, candidate)
                    queue.append(owner)
        return False

    def pairs(self) -> Iterator[tuple[PolicyName, Seat]]:
        """Yield who got what, in the order of the asking."""
        for position, policy in self._owner.items():
            yield policy, self._spare[position]

    def _free(self, policy: PolicyName) -> int | None:
        """Return the policy's best candidate that nobody has yet; once owned, a seat never becomes free again."""
        candidates = self._candidates.get(policy, ())
        position = self._next.get(policy, 0)
        while position < len(candidates) and candidates[position] in self._owner:
            position += 1
        self._next[policy] = position
        return candidates[position] if position < len(candidates) else None


class _Ranking:
    """The candidates of one policy, while they are being collected."""

    __slots__ = ("_entries", "_now", "_on_node", "_proof_interval", "_seen")

    def __init__(self, stock: _Stock, policy: PolicyName, moment: _Moment) -> None:
        self._now = moment.now
        interval = moment.limits.proof_interval_seconds
        self._proof_interval = (
            interval if interval > 0 else 1.0
        )  # proofs younger than one interval are equally good
        present = chain(stock.serving.get(policy, ()), stock.coming.get(policy, ()))
        self._on_node = Counter(seat.node for seat in present)
        self._seen: dict[tuple[int, bool, float, str], int] = {}
        self._entries: list[tuple[int, bool, float, int, int]] = []

    def enter(self, position: int, seat: Seat, resident: Resident, paused: int, holding: int) -> None:
        """Rank a seat on which `paused` residents could be promoted and `holding` of them hold KV memory."""
        neighbours_hold = holding > (not resident.kv_released)
        proven = resident.proven_at
        age = math.inf if proven is None else (self._now - proven) // self._proof_interval
        node = seat.node
        alike = (paused, neighbours_hold, age, node)
        nth = self._seen.get(alike, 0)  # equally good seats alternate between nodes
        self._seen[alike] = nth + 1
        self._entries.append((paused, neighbours_hold, age, self._on_node.get(node, 0) + nth, position))

    def best_first(self) -> list[int]:
        """Return the positions in order."""
        self._entries.sort()
        return [entry[-1] for entry in self._entries]


def _candidates(
    spare: Sequence[Seat], stock: _Stock, needy: Iterable[PolicyName], moment: _Moment
) -> dict[PolicyName, list[int]]:
    """Return, per policy, the positions of the spare seats that can serve it, best first.

    Best is: fewest promotable residents (versatile seats stay), KV memory free now, proven most recently, on a node with
    few residents of the policy, first in `spare`, which is sorted by name.
    """
    rankings = {policy: _Ranking(stock, policy, moment) for policy in needy}
    if not rankings:
        return {}
    for position, seat in enumerate(spare):
        paused = [resident for resident in seat.residents if resident.state is _PAUSED]
        holding = sum([not resident.kv_released for resident in paused])
        for resident in paused:
            if (ranking := rankings.get(resident.policy)) is not None:
                ranking.enter(position, seat, resident, len(paused), holding)
    return {policy: ranking.best_first() for policy, ranking in rankings.items()}


# ------------------------------------------------------------------ one fleet's part of the plan


class _Draft:
    """One fleet's part of the plan, while it is being written; every seat is used once."""

    __slots__ = (
        "demotes",
        "missing",
        "moment",
        "order",
        "promotes",
        "proofs",
        "recalls",
        "releases",
        "replaces",
        "stock",
        "surplus",
        "switches",
        "taken",
        "wanted",
    )

    def __init__(
        self, stock: _Stock, wanted: Mapping[PolicyName, int], rank: Mapping[PolicyName, int], moment: _Moment
    ) -> None:
        self.stock = stock
        self.wanted = {policy: max(count, 0) for policy, count in wanted.items()}
        self.order = sorted(wanted, key=lambda policy: (rank.get(policy, len(rank)), policy))
        self.moment = moment
        self.taken: set[int] = set()  # id() of seats: in a broken cluster names may be doubled
        self.missing: dict[PolicyName, int] = {}
        self.surplus: dict[PolicyName, int] = {}
        self.releases: list[Release] = []
        self.recalls: list[Recall] = []
        self.promotes: list[Promote] = []
        self.switches: list[Switch] = []
        self.demotes: list[Demote] = []
        self.replaces: list[Replace] = []
        self.proofs: list[Prove] = []

    def write(self) -> None:
        """Fill the lists; each step leaves to the next what it couldn't do."""
        self._count()
        self._release_dying()
        self._recall()
        self._promote()
        self._switch()
        self._demote_strays()
        self._hand_over()
        self._demote_surplus()
        self._replace()
        self._prove()

    @property
    def promoting(self) -> bool:
        """Whether a promotion is in flight or planned here."""
        return bool(self.stock.promotions or self.recalls or self.promotes or self.switches)

    def _count(self) -> None:
        for policy, wanted in self.wanted.items():
            firm = self.stock.firm(policy)
            if (missing := wanted - firm - len(self.stock.coming.get(policy, ()))) > 0:
                self.missing[policy] = missing
            if firm > wanted:
                self.surplus[policy] = firm - wanted

    def _take(self, seat: Seat) -> bool:
        """Use a seat, unless this plan has used it already."""
        if id(seat) in self.taken:
            return False
        self.taken.add(id(seat))
        return True

    def _needed(self) -> list[PolicyName]:
        """Policies that still miss residents, by priority."""
        return [policy for policy in self.order if policy in self.missing]

    def _found(self, policy: PolicyName) -> None:
        _spend(self.missing, policy)

    def _short(self, policy: PolicyName) -> str:
        """Say how short a policy is."""
        return f"{policy} lacks {self.missing[policy]} of {self.wanted[policy]}"

    def _release_dying(self) -> None:
        for seat, policy in sorted(self.stock.dying, key=_name):
            if self._take(seat):
                resident = seat.resident(policy)
                state = "has no resident here" if resident is None else f"is {resident.state}"
                self.releases.append(
                    Release(seat=seat, policy=policy, why=f"{policy} is in rotation and {state}")
                )

    def _recall(self) -> None:
        for policy in self._needed():
            why = self._short(policy)
            for seat, resident in sorted(self.stock.recallable.get(policy, ()), key=_recall_order):
                if policy in self.missing and self._take(seat):
                    self.recalls.append(
                        Recall(seat=seat, policy=policy, why=f"{why}; here it is {resident.state}")
                    )
                    self._found(policy)

    def _promote(self) -> None:
        needed = self._needed()
        why = {policy: self._short(policy) for policy in needed}
        matching = _Matching(self.stock, needed, self.moment)
        for policy in needed:
            while policy in self.missing and matching.add(policy):
                self._found(policy)
        for policy, seat in matching.pairs():
            self._take(seat)
            self.promotes.append(Promote(seat=seat, policy=policy, why=why[policy]))

    def _switch(self) -> None:
        needed = self._needed()
        if not needed:
            return
        sources = self._switchable(needed)
        for policy in needed:
            why = self._short(policy)
            for source in sources[policy]:
                if policy not in self.missing:
                    break
                owned = source.leaving in source.seat.serving
                if (owned and source.leaving not in self.surplus) or not self._take(source.seat):
                    continue
                reason = "has more than it wants" if owned else "is out of rotation"
                self.switches.append(
                    Switch(
                        seat=source.seat,
                        leaving=source.leaving,
                        policy=policy,
                        at_once=source.seat.lent and source.leaving in self.moment.ended_at_once,
                        why=f"{why} and finds no spare seat; {source.leaving} {reason}",
                    )
                )
                self._found(policy)
                if owned:
                    _spend(self.surplus, source.leaving)

    def _switchable(self, needed: Iterable[PolicyName]) -> dict[PolicyName, list["_Source"]]:
        """Return, per policy, the seats that it could have once their resident is drained: lent and idle ones first."""
        found: dict[PolicyName, list[_Source]] = {policy: [] for policy in needed}
        surplus = ((seat, policy) for policy in self.surplus for seat in self.stock.serving.get(policy, ()))
        strays = (
            (seat, stray.policy) for seat, stray in self.stock.strays if not seat.serving and seat.usable
        )
        for seat, leaving in chain(surplus, strays):
            if len(seat.serving) > 1 or id(seat) in self.taken or _computing(seat) > 1:
                continue
            source = _Source(seat, leaving)
            for resident in seat.residents:
                if resident.state is _PAUSED and resident.policy in found:
                    found[resident.policy].append(source)
        for sources in found.values():
            sources.sort(key=attrgetter("order"))
        return found

    def _demote_strays(self) -> None:
        for seat, resident in sorted(self.stock.strays, key=_name):
            if seat.reachable and not seat.terminating and self._take(seat):
                why = f"{resident.policy} is {resident.state} and out of rotation"
                self.demotes.append(Demote(seat=seat, policy=resident.policy, why=why))

    def _hand_over(self) -> None:
        """Take residents on unusable seats out of rotation, as far as others serve in their place."""
        for policy in self.order:
            leaving = self.stock.leaving.get(policy)
            if not leaving:
                continue
            dispensable = self.stock.firm(policy) + len(leaving) - self.wanted[policy]
            leaving.sort(key=lambda seat: _hand_over_order(seat, policy))
            for seat in leaving[: max(dispensable, 0)]:
                if not self._take(seat):
                    continue
                if seat.reachable:
                    why = f"others serve {policy} in place of this seat, which shall go"
                    self.demotes.append(Demote(seat=seat, policy=policy, why=why))
                else:
                    why = f"others serve {policy} in place of this seat, whose agent is silent"
                    self.releases.append(Release(seat=seat, policy=policy, why=why))

    def _demote_surplus(self) -> None:
        for policy in self.order:
            if policy not in self.surplus:
                continue
            why = f"{policy} has {self.surplus[policy]} more than the {self.wanted[policy]} wanted"
            for seat in sorted(
                self.stock.serving.get(policy, ()), key=lambda seat: _demote_order(seat, policy)
            ):
                if policy not in self.surplus:
                    break
                if self._take(seat):
                    self.demotes.append(Demote(seat=seat, policy=policy, why=why))
                    _spend(self.surplus, policy)

    def _replace(self) -> None:
        """Replace one seat at a time: a cause that all share must not take the whole fleet down."""
        if self.stock.doomed:
            return
        warm_elsewhere = any(id(seat) not in self.taken for seat in self.stock.spare)
        for seat in sorted(self.stock.useless, key=attrgetter("name")):
            if seat.reachable and (reason := self._useless_because(seat, warm_elsewhere=warm_elsewhere)):
                self._take(seat)
                self.replaces.append(Replace(seat=seat, reason=reason, why=reason))
                return

    def _useless_because(self, seat: Seat, *, warm_elsewhere: bool) -> str:
        """Say why a seat had better be another one; empty if it stays."""
        if seat.verdict is Verdict.BAD:  # before another seat is warm, the replacement would get the same GPU
            return "its GPU is Bad, and another seat is warm" if warm_elsewhere else ""
        if seat.verdict is Verdict.OK and seat.residents and all(map(self.moment.given_up, seat.residents)):
            return "all its residents are given up: " + ", ".join(
                f"{resident.policy} {resident.state}" for resident in seat.residents
            )
        return ""

    def _prove(self) -> None:
        if self.stock.stalest is None or self.stock.proofs or self.promoting or self.missing:
            return
        proven, seat, policy = self.stock.stalest
        age = self.moment.now - proven
        if age > self.moment.limits.proof_interval_seconds and self._take(seat):
            why = "it was never proven" if math.isinf(age) else f"the last proof is {age:.0f} s old"
            self.proofs.append(Prove(seat=seat, policy=policy, why=why))


class _Source:
    """A seat that another policy could have, and the resident that would have to leave it."""

    __slots__ = ("leaving", "order", "seat")

    def __init__(self, seat: Seat, leaving: PolicyName) -> None:
        self.seat = seat
        self.leaving = leaving
        self.order = (not seat.lent, _in_flight(seat, leaving), leaving in seat.serving, seat.name)


def _spend(counts: dict[PolicyName, int], policy: PolicyName) -> None:
    """Take one from a count, and the count away when nothing is left."""
    counts[policy] -= 1
    if counts[policy] <= 0:
        del counts[policy]


def _name(entry: tuple[Seat, object]) -> str:
    return entry[0].name


def _recall_order(leaving: tuple[Seat, Resident]) -> tuple[bool, int, str]:
    """Whoever has most to finish is furthest from being paused before the recall arrives."""
    seat, resident = leaving
    return resident.state is not _SERVING, -resident.in_flight, seat.name


def _hand_over_order(seat: Seat, policy: PolicyName) -> tuple[bool, bool, int, str]:
    return not seat.terminating, seat.verdict is not Verdict.BAD, _in_flight(seat, policy), seat.name


def _demote_order(seat: Seat, policy: PolicyName) -> tuple[bool, int, int, str]:
    """Seats that serve two come first (one of them is too many), then the idle, then the versatile."""
    return len(seat.serving) == 1, _in_flight(seat, policy), -len(seat.residents), seat.name


# ------------------------------------------------------------------ all fleets together


def _assemble(wants: Wants, limits: Limits, rank: Mapping[PolicyName, int], drafts: Sequence[_Draft]) -> Plan:
    """Put the fleets' parts into one order, and cut what exceeds the limits."""

    def by_priority(action: Recall | Promote | Switch) -> int:
        return rank.get(action.policy, len(rank))

    promotions = [
        *sorted(chain.from_iterable(draft.recalls for draft in drafts), key=by_priority),
        *sorted(chain.from_iterable(draft.promotes for draft in drafts), key=by_priority),
        *sorted(chain.from_iterable(draft.switches for draft in drafts), key=by_priority),
    ]
    demotions = [action for draft in drafts for action in draft.demotes]
    may_promote = max(limits.max_promotions - sum(draft.stock.promotions for draft in drafts), 0)
    may_demote = max(limits.max_demotions - sum(draft.stock.demotions for draft in drafts), 0)
    return Plan(
        actions=(
            *(action for draft in drafts for action in draft.releases),
            *promotions[:may_promote],
            *demotions[:may_demote],
            *(
                action
                for draft in drafts
                for action in draft.replaces
                if draft.stock.fleet not in wants.frozen
            ),
            *_resizes(wants, {draft.stock.fleet: draft for draft in drafts}),
            *(action for draft in drafts for action in draft.proofs),
        ),
        unfilled=MappingProxyType(
            {
                (draft.stock.fleet, policy): count
                for draft in drafts
                for policy, count in draft.missing.items()
            }
        ),
        deferred=max(len(promotions) - may_promote, 0) + max(len(demotions) - may_demote, 0),
        in_flight=MappingProxyType(
            {
                draft.stock.fleet: InFlight(draft.stock.promotions, draft.stock.demotions)
                for draft in drafts
                if draft.stock.promotions or draft.stock.demotions
            }
        ),
    )


def _resizes(wants: Wants, drafts: Mapping[FleetName, _Draft]) -> Iterator[Resize]:
    """Raise at once; lower only while nothing is being promoted and every serving pod is Ready.

    A ReplicaSet removes pods that aren't Ready before it looks at their deletion cost, and reads the cost from a cache.
    """
    for fleet, total in wants.totals.items():
        replicas = wants.replicas.get(fleet)
        if replicas is None or total == replicas:
            continue
        draft = drafts.get(fleet)
        if total > replicas:
            yield Resize(
                fleet=fleet, total=total, why=f"{total - replicas} seats more than the {replicas} there are"
            )
        elif draft is not None and not draft.promoting and not draft.stock.unready:
            yield Resize(
                fleet=fleet, total=total, why=f"{replicas - total} seats fewer than the {replicas} there are"
            )
