"""The planner: counts become seats. It alone names which seat is promoted, switched, demoted, parked, proven or replaced.

`plan` is a total function of what is wanted and what there is: the same arguments give the same plan, nothing is
remembered, and what is in flight counts through the claims on the seats. PURE: no I/O, no clock.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter, is_
from types import MappingProxyType
from typing import NamedTuple

from warmpool.claim import in_force
from warmpool.seats import (
    TO_COME_UP,
    Claim,
    FleetName,
    Operation,
    PolicyName,
    Resident,
    Seat,
    SeatName,
    Verdict,
    all_paused,
)
from warmpool.states import MOVING, ResidentState
from warmpool.warmth import Move, Place, Warmth, moving

# ------------------------------------------------------------------ what is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What was decided, in counts.

    Absent is not zero: a fleet that is missing from `serving` is left alone, and a policy that is missing from its
    fleet's counts is neither promoted nor demoted there.

    Attributes:
        serving: per fleet and policy, the residents that shall be in rotation.
        needed: per fleet and policy, the residents that should be in rotation, whether or not seats exist for them: `serving` alone
            says nothing of a need that no usable seat can meet. A policy that is missing needs what `serving` says.
        order: policies by priority, highest first; policies that it lacks come last, by name.
        totals: per fleet, the seats that its workload shall have.
        replicas: per fleet, the seats that its workload is asked for at present; a fleet that is missing isn't resized.
        frozen: fleets of which no seat is replaced.
        ended_at_once: policies whose requests on a lent seat are ended when the seat is wanted.
        kept: residents in rotation that aren't demoted, switched away or relocated, because a person ordered it.
        warm: per fleet and policy, the residents that shall stand paused, and not parked, on seats that another may yet have;
            a policy that is missing stays as it is.
        starting: per fleet and policy, the seats that are kept free for a resident to start on, of policies of which none is
            up. They are beside those of `serving`: both together are no more than there are.
    """

    serving: Mapping[FleetName, Mapping[PolicyName, int]]
    needed: Mapping[FleetName, Mapping[PolicyName, int]] = field(default_factory=lambda: MappingProxyType({}))
    order: Sequence[PolicyName] = ()
    totals: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    replicas: Mapping[FleetName, int] = field(default_factory=lambda: MappingProxyType({}))
    frozen: frozenset[FleetName] = frozenset()
    ended_at_once: frozenset[PolicyName] = frozenset()
    kept: frozenset[Place] = frozenset()
    warm: Mapping[FleetName, Mapping[PolicyName, int]] = field(default_factory=lambda: MappingProxyType({}))
    starting: Mapping[FleetName, Mapping[PolicyName, int]] = field(
        default_factory=lambda: MappingProxyType({})
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may happen at once, and how patient the planner is.

    Attributes:
        max_promotions: recalls, promotions and switches in flight at once, those already claimed included.
        max_demotions: demotions in flight at once, those already claimed included.
        max_moves: residents of one fleet that are parked or unparked at once, those already claimed included. It is never
            more than half of the fleet's spare seats, but one: such a seat serves nobody for seconds.
        proof_interval_seconds: age at which a spare resident's proof is renewed; infinity for never.
        report_lag_seconds: how long after a settlement an agent's report may still be the one from before it. Agents
            push each change within 20 ms and everything each 2 s.
        give_up_seconds: a resident that has been Failed for longer is not being restarted.
    """

    max_promotions: int = 128
    max_demotions: int = 32
    max_moves: int = 4
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
    """Bring a paused or parked resident of a spare seat into rotation; may supersede the claim of its parking or unparking.

    Attributes:
        displace: residents of the seat that may be parked if it finds no room, the first first.
    """

    policy: PolicyName
    displace: tuple[PolicyName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(SeatAction):
    """Drain the resident of `leaving` and promote the one of `policy` on the same seat.

    Attributes:
        leaving: who leaves.
        policy: who comes.
        at_once: what `leaving` has accepted is ended, with an error that says so, instead of being waited for.
        displace: residents of the seat that may be parked if it finds no room, the first first; `leaving` may be one.
    """

    leaving: PolicyName
    policy: PolicyName
    at_once: bool = False
    displace: tuple[PolicyName, ...] = ()


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
class Unpark(SeatAction):
    """Move a parked resident of a spare seat back to device memory, so that a burst finds it paused.

    Attributes:
        displace: residents of the seat that may be parked if it finds no room, the first first.
    """

    policy: PolicyName
    displace: tuple[PolicyName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Park(SeatAction):
    """Move a paused resident of a spare seat to host memory, so that another can start in its place."""

    policy: PolicyName


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
            replacements, resizes, unparkings, parkings, proofs; within a kind by priority.
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
    left_alone: Collection[Place] = (),
) -> Plan:
    """Name the seats that bring what there is closer to what is wanted.

    Seats with a claim in force are left alone, with three exceptions: a resident under demotion may be recalled, one that
    drains on a lent seat may be ended at once for another where its policy says so, and one that is being parked or unparked
    may be promoted.

    Args:
        wants: what was decided.
        seats: all seats, of all fleets.
        limits: how much may happen at once.
        now: Unix time, as in the seats' claims.
        settled: Unix times at which seats were last settled, as far as the caller knows; while one is younger than
            `limits.report_lag_seconds` its labels are believed over its agent's report, which may be older. None means
            that the caller keeps no such times: labels are then believed wherever a late report could explain the
            difference.
        left_alone: residents that have just failed to be parked, unparked or proven, and are not for a while.

    Returns:
        The plan; it never raises for any seats.
    """
    return Planner().plan(wants, seats, limits, now, settled=settled, left_alone=left_alone)


class Planner:
    """Plans again and again, as `plan` does; a fleet whose seats are as they were isn't sorted anew.

    Its answers depend on nothing that came before. What it keeps of a fleet is what would come out again: its seats are the same
    objects, none of them has a claim, which may run out, and none was settled lately or is left alone. A fleet of which as much is
    wanted as before, and which had all of it, isn't gone through either, until its next proof is due.
    """

    def __init__(self) -> None:
        self._sorted: dict[FleetName, _Sorted] = {}
        self._calm: dict[FleetName, _Draft] = {}

    def plan(
        self,
        wants: Wants,
        seats: Iterable[Seat],
        limits: Limits,
        now: float,
        *,
        settled: Mapping[SeatName, float] | None = None,
        left_alone: Collection[Place] = (),
    ) -> Plan:
        """See the function `plan`."""
        stock: dict[FleetName, list[Seat]] = {name: [] for name in wants.serving}
        for fleet, here in groupby(seats, key=attrgetter("fleet")):  # they come fleet by fleet, nearly always
            if fleet in stock:
                stock[fleet] += here
        return self.plan_fleets(wants, stock, limits, now, settled=settled, left_alone=left_alone)

    def plan_fleets(
        self,
        wants: Wants,
        stock: Mapping[FleetName, Sequence[Seat]],
        limits: Limits,
        now: float,
        *,
        settled: Mapping[SeatName, float] | None = None,
        left_alone: Collection[Place] = (),
    ) -> Plan:
        """Do the same for seats that are sorted by fleet already. A fleet whose sequence is the same object costs no look at them."""
        moment = _Moment(
            now=now,
            limits=limits,
            settled=settled,
            ended_at_once=wants.ended_at_once,
            left_alone=left_alone,
            kept=wants.kept,
        )
        passing = moment.passing()
        rank = {policy: position for position, policy in enumerate(wants.order)}
        drafts = []
        for name in wants.serving:
            found = self._stock(name, stock.get(name, ()), moment, passing)
            draft = self._calm.get(name)
            if draft is None or not draft.stays(found, wants, moment):
                draft = _Draft(found, wants, rank, moment)
                draft.write()
                self._remember(draft)
            drafts.append(draft)
        return _assemble(wants, limits, rank, drafts)

    def _remember(self, draft: "_Draft") -> None:
        if draft.is_calm:
            self._calm[draft.stock.fleet] = draft
        else:
            self._calm.pop(draft.stock.fleet, None)

    def _stock(
        self, fleet: FleetName, seats: Sequence[Seat], moment: "_Moment", passing: Collection[SeatName] | None
    ) -> "_Stock":
        lasting = passing is not None and (not passing or all(seat.name not in passing for seat in seats))
        known = self._sorted.get(fleet)
        if lasting and known is not None and known.of(seats):
            return known.stock
        stock = _Stock(fleet)
        for seat in seats:
            stock.enter(seat, moment)
        if lasting and all(seat.claim is None for seat in seats):
            self._sorted[fleet] = _Sorted(seats, stock)
        else:
            self._sorted.pop(fleet, None)
        return stock


class _Sorted(NamedTuple):
    """A fleet as it was sorted, and would be again at any time."""

    seats: Sequence[Seat]
    stock: "_Stock"

    def of(self, seats: Sequence[Seat]) -> bool:
        """Whether these are the same objects."""
        if self.seats is seats:
            return True
        return len(self.seats) == len(seats) and all(map(is_, self.seats, seats))


# ------------------------------------------------------------------ what there is, sorted once

_PAUSED = ResidentState.PAUSED
_PARKED = ResidentState.PARKED
_SERVING = ResidentState.SERVING
_DRAINING = ResidentState.DRAINING
_BUSY = (ResidentState.WARMING, ResidentState.PROVING, ResidentState.PROMOTING)
"""Computing without being in rotation or on the way out of it. A tuple: `in` then compares by identity first, where a
set would hash an enum member in Python code, which 10,000 seats would feel."""

_RELOCATED_SECONDS = 10.0
"""Whoever was put into rotation so lately isn't asked to make room by going elsewhere: what that was for takes a moment."""
_NOTHING: Mapping[PolicyName, int] = MappingProxyType({})
_SLEEPING = (_PAUSED, _PARKED, *MOVING)


_ON_ITS_WAY = (
    ResidentState.PROMOTING,
    _PAUSED,
    _DRAINING,
    ResidentState.PROVING,
    ResidentState.UNPARKING,
    _PARKED,
)
"""States that a resident in rotation may still be reported in shortly after it got there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """When the plan is made, and what is known about how old reports are."""

    now: float
    limits: Limits
    settled: Mapping[SeatName, float] | None
    ended_at_once: frozenset[PolicyName] = frozenset()
    left_alone: Collection[Place] = ()
    kept: frozenset[Place] = frozenset()

    def just_settled(self, seat: Seat) -> bool:
        """Whether the seat is known to have been settled so lately that its report may be older than that."""
        at = None if self.settled is None else self.settled.get(seat.name)
        return at is not None and self.now - at < self.limits.report_lag_seconds

    def passing(self) -> Collection[SeatName] | None:
        """Return the seats of which what is made now needn't be made later: settled lately, left alone, or kept; None for all."""
        if self.settled is None:
            return None
        lag = self.limits.report_lag_seconds
        settled = {name for name, at in self.settled.items() if self.now - at < lag}
        return settled.union(name for name, _policy in chain(self.left_alone, self.kept))

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
            # What a pre-flight keeps from starting is tried again after minutes, for as long as it takes.
            return not resident.refused and self.now - resident.since > self.limits.give_up_seconds
        return resident.state in {ResidentState.QUARANTINED, ResidentState.TERMINATING}


class _Stock:
    """One fleet's seats, sorted by what can be done with them."""

    __slots__ = (
        "at_hand",
        "beside",
        "clearing",
        "coming",
        "demotions",
        "doomed",
        "dying",
        "fleet",
        "leaving",
        "moves",
        "occupied",
        "parks",
        "pinned",
        "promotions",
        "proofs",
        "recallable",
        "serving",
        "sleepers",
        "spare",
        "stalest",
        "strays",
        "underway",
        "unready",
        "useless",
        "youngest",
    )

    def __init__(self, fleet: FleetName) -> None:
        self.fleet = fleet
        self.youngest: tuple[float, str] = (
            -math.inf,
            "",
        )  # when the youngest seat that stays was made, and of what template
        self.serving: dict[PolicyName, list[Seat]] = {}  # in rotation on a usable seat, free to be demoted
        self.pinned: Counter[PolicyName] = (
            Counter()
        )  # in rotation beside a claim for another resident, or kept by an order
        self.leaving: dict[PolicyName, list[Seat]] = {}  # in rotation on a seat that shall be handed over
        self.coming: dict[PolicyName, list[Seat]] = {}  # claimed and not yet in rotation
        self.recallable: dict[
            PolicyName, list[tuple[Seat, Resident]]
        ] = {}  # leaving, and alone on a usable seat
        self.strays: list[tuple[Seat, Resident]] = []  # resumed, out of rotation, and claimed by nobody
        self.dying: list[tuple[Seat, PolicyName]] = []  # labelled, and not serving
        self.spare: list[Seat] = []
        self.at_hand: Sequence[_AtHand] | None = None  # the spare seats by name, and what they have
        self.beside: list[Seat] = []  # not spare, and its paused residents are soon to be had
        self.clearing: list[Seat] = []  # its resident is under demotion, and nobody else has the seat
        self.occupied: list[tuple[Seat, Claim]] = []  # claimed for a proof or a change of depth
        self.underway: list[tuple[Seat, Claim]] = []  # those of them who change it and could be promoted
        self.stalest: tuple[float, Seat, PolicyName] | None = None  # the spare resident with the oldest proof
        self.useless: list[
            Seat
        ] = []  # nothing serves, computes or changes its depth, and nothing can be promoted
        self.promotions = self.demotions = self.proofs = self.doomed = self.moves = self.parks = 0
        self.unready = False  # a serving pod isn't Ready
        self.sleepers = False  # a spare seat has a resident that is parked or waits for room

    def firm(self, policy: PolicyName) -> int:
        """Residents in rotation on usable seats."""
        return len(self.serving.get(policy, ())) + self.pinned.get(policy, 0)

    def outdated(self, seat: Seat) -> bool:
        """Whether a seat was made from another template than the fleet's youngest: a rollout is about to take it away."""
        return seat.template != self.youngest[1]

    def by_name(self) -> Sequence["_AtHand"]:
        """Return the spare seats, sorted by name, with what they have: worked out once, as long as nothing is sorted in."""
        if self.at_hand is None:
            self.at_hand = [_at_hand(seat) for seat in sorted(self.spare, key=attrgetter("name"))]
        return self.at_hand

    def enter(self, seat: Seat, moment: _Moment) -> None:
        """Sort one seat in."""
        if seat.terminating:
            self.doomed += 1
        else:
            if seat.created_at >= self.youngest[0]:
                self.youngest = max(self.youngest, (seat.created_at, seat.template))
            if seat.serving and not seat.ready:
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
                self.occupied.append((seat, claim))
            case Operation.PARK | Operation.UNPARK:
                self.moves += 1
                self.parks += claim.operation is Operation.PARK
                self.occupied.append((seat, claim))
                if seat.usable and not seat.serving and resident is not None and resident.state in _SLEEPING:
                    self.underway.append((seat, claim))
            case Operation.DEMOTE:
                self.demotions += 1
                self._offer_recall(seat, resident)
                if seat.usable and not seat.serving:
                    self.clearing.append(seat)
            case Operation.PROMOTE | Operation.SWITCH | Operation.RECALL:
                self.promotions += 1
                if seat.usable and resident is not None and _alive(resident):
                    self.coming.setdefault(claim.policy, []).append(seat)
        for policy in seat.serving - {claim.policy}:
            self.pinned[policy] += seat.usable and moment.in_rotation(seat, seat.resident(policy))

    def _enter_serving(self, seat: Seat, moment: _Moment) -> None:
        serving = seat.serving
        if seat.lent and seat.usable:
            self.beside.append(seat)
        usable = seat.usable
        for policy in sorted(serving) if len(serving) > 1 else serving:
            if not moment.in_rotation(seat, seat.resident(policy)):
                self.dying.append((seat, policy))
            elif not usable:
                self.leaving.setdefault(policy, []).append(seat)
            elif moment.kept and (seat.name, policy) in moment.kept:
                self.pinned[policy] += 1
            elif policy in self.serving:
                self.serving[policy].append(seat)
            else:
                self.serving[policy] = [seat]
        for resident in seat.residents:
            state = resident.state
            if (state is _SERVING or state is _DRAINING) and resident.policy not in serving:
                self.strays.append((seat, resident))

    def _enter_out_of_rotation(self, seat: Seat, moment: _Moment) -> None:
        if all_paused(seat):
            self._enter_paused(seat, moment)
            return
        paused, parked, stray, others = _by_state(seat)
        if stray is not None:
            self._offer_recall(seat, stray)
            if not moment.just_settled(seat):
                self.strays.append((seat, stray))
        elif others and any(resident.state in _BUSY for resident in others):
            self.beside.append(seat)
        elif (paused or parked) and seat.usable:
            self.spare.append(seat)  # if its claim has run out, whoever takes the seat takes that over
            if parked or (others and any(resident.waiting for resident in others)):
                self.sleepers = True
            if not others or not any(map(moving, others)):
                self._offer_proof(seat, paused, moment)
        elif any(resident.state in MOVING for resident in others):
            self.beside.append(seat)
        else:
            self.useless.append(seat)

    def _enter_paused(self, seat: Seat, moment: _Moment) -> None:
        """Sort a seat in of which all residents are paused, as are nearly all spare ones, in half the time."""
        if seat.residents and seat.usable:
            self.spare.append(seat)
            self._offer_proof(seat, seat.residents, moment)
        else:
            self.useless.append(seat)

    def _offer_recall(self, seat: Seat, resident: Resident | None) -> None:
        if resident is None or seat.serving or not seat.usable:
            return
        if (resident.state is _SERVING or resident.state is _DRAINING) and _computing(seat) == 1:
            self.recallable.setdefault(resident.policy, []).append((seat, resident))

    def _offer_proof(self, seat: Seat, paused: Iterable[Resident], moment: _Moment) -> None:
        stalest = self.stalest
        for resident in paused:
            if moment.left_alone and (seat.name, resident.policy) in moment.left_alone:
                continue
            proven = -math.inf if resident.proven_at is None else resident.proven_at
            if (
                stalest is None
                or proven < stalest[0]
                or (proven == stalest[0] and seat.name < stalest[1].name)
            ):
                stalest = self.stalest = (proven, seat, resident.policy)


def _by_state(seat: Seat) -> tuple[list[Resident], bool, Resident | None, list[Resident]]:
    """Return the paused residents, whether any is parked, one that is resumed (None if none is), and all others."""
    paused: list[Resident] = []
    others: list[Resident] = []
    parked, resumed = False, None
    for resident in seat.residents:
        state = resident.state
        if state is _PAUSED:
            paused.append(resident)
        elif state is _PARKED:
            parked = True
        elif state is _SERVING or state is _DRAINING:
            resumed = resident
        else:
            others.append(resident)
    return paused, parked, resumed, others


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

    Args:
        candidates: per policy, the positions of the seats that can serve it, best first.
    """

    __slots__ = ("_candidates", "_next", "_owner")

    def __init__(self, candidates: Mapping[PolicyName, Sequence[int]]) -> None:
        self._owner: dict[int, PolicyName] = {}
        self.widen(candidates)

    def widen(self, candidates: Mapping[PolicyName, Sequence[int]]) -> None:
        """Go on with more candidates; those that there were stay."""
        self._candidates = candidates
        self._next = dict.fromkeys(candidates, 0)

    def fill(self, counts: Mapping[PolicyName, int]) -> Mapping[PolicyName, int]:
        """Add seats in the order of `counts` until each policy has so many; return how many each has."""
        has = Counter(self._owner.values())
        for policy, count in counts.items():
            while has[policy] < count and self.add(policy):
                has[policy] += 1
        return {policy: has[policy] for policy in counts}

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

    def pairs(self) -> Iterator[tuple[PolicyName, int]]:
        """Yield who got which position, in the order of the asking."""
        for position, policy in self._owner.items():
            yield policy, position

    def _free(self, policy: PolicyName) -> int | None:
        """Return the policy's best candidate that nobody has yet; once owned, a seat never becomes free again."""
        candidates = self._candidates.get(policy, ())
        position = self._next.get(policy, 0)
        while position < len(candidates) and candidates[position] in self._owner:
            position += 1
        self._next[policy] = position
        return candidates[position] if position < len(candidates) else None


_UNDERWAY: Mapping[Operation, int] = MappingProxyType({Operation.UNPARK: 1, Operation.PARK: 3})
"""How far one that is on the move is from serving, between 0 for a paused and 2 for a parked one."""


class _Here(NamedTuple):
    """What a spare seat has.

    Attributes:
        ready: how many residents could be promoted.
        holding: paused ones that hold KV memory.
        stirring: somebody is being started, parked or unparked by the agent itself, and an order may have to wait.
        move: what it is claimed for, where a move of the resident itself is under way.
    """

    ready: int
    holding: int
    stirring: bool
    move: Operation | None = None


class _AtHand(NamedTuple):
    """A spare seat, the residents of it that could be promoted, and what it has."""

    seat: Seat
    ready: Sequence[Resident]
    here: _Here


def _at_hand(seat: Seat) -> _AtHand:
    ready = [
        resident for resident in seat.residents if resident.state is _PAUSED or resident.state is _PARKED
    ]
    holding = sum([not resident.kv_released for resident in ready if resident.state is _PAUSED])
    return _AtHand(seat, ready, _Here(len(ready), holding, stirring=any(map(moving, seat.residents))))


class _Ranking:
    """The candidates of one policy, while they are being collected."""

    __slots__ = ("_entries", "_now", "_on_node", "_outdated", "_proof_interval", "_seen")

    def __init__(self, stock: _Stock, policy: PolicyName, moment: _Moment) -> None:
        self._now = moment.now
        self._outdated = stock.outdated
        interval = moment.limits.proof_interval_seconds
        self._proof_interval = (
            interval if interval > 0 else 1.0
        )  # proofs younger than one interval are equally good
        present = chain(stock.serving.get(policy, ()), stock.coming.get(policy, ()))
        self._on_node = Counter(seat.node for seat in present)
        self._seen: dict[tuple[int, bool, int, bool, bool, float, str], int] = {}
        self._entries: list[tuple[int, bool, int, bool, bool, float, int, int]] = []

    def enter(self, position: int, seat: Seat, resident: Resident, here: _Here) -> None:
        """Rank a seat."""
        depth = _UNDERWAY[here.move] if here.move is not None else 2 * (resident.state is _PARKED)
        neighbours_hold = here.holding > (depth == 0 and not resident.kv_released)
        proven = resident.proven_at
        age = math.inf if proven is None else (self._now - proven) // self._proof_interval
        node = seat.node
        alike = (depth, self._outdated(seat), here.ready, neighbours_hold, here.stirring, age, node)
        nth = self._seen.get(alike, 0)  # equally good seats alternate between nodes
        self._seen[alike] = nth + 1
        self._entries.append((*alike[:-1], self._on_node.get(node, 0) + nth, position))

    def best_first(self) -> list[int]:
        """Return the positions in order."""
        self._entries.sort()
        return [entry[-1] for entry in self._entries]

    @property
    def awake(self) -> int:
        """How many of them, the first ones, needn't be unparked."""
        return sum([not entry[0] for entry in self._entries])


def _handed_out(
    stock: _Stock,
    missing: Mapping[PolicyName, int],
    moment: _Moment,
    starts: Mapping[PolicyName, Sequence[Seat]],
) -> Iterator[tuple[PolicyName, Seat]]:
    """Yield which spare seat goes to which policy; `missing` is in order of priority.

    A policy of `starts` is one of those that wait for a seat like any other; its seats are those on which it could start, the
    best first.

    A start is lost with its seat, and a parked resident takes seconds where a paused one takes milliseconds. So who gets how
    many is settled first, and then starts get the seats where they are furthest on, and the others are looked for among the
    paused before the parked. A matching that covers some of these residents can always be
    extended to cover all of them, since one that does exists (C. Berge 1957).
    """
    spare = stock.by_name()
    underway = sorted(stock.underway, key=_name)
    rankings = _rankings(stock, [policy for policy in missing if policy not in starts], moment)
    for position, (seat, claim) in enumerate(underway, start=len(spare)):
        resident = seat.resident(claim.policy)
        if resident is not None and (ranking := rankings.get(claim.policy)) is not None:
            ranking.enter(position, seat, resident, _Here(1, 0, stirring=True, move=claim.operation))
    seats = [*(each.seat for each in spare), *(seat for seat, _ in underway)]
    places = _places(seats, starts) if starts else {}
    every = places | {policy: ranking.best_first() for policy, ranking in rankings.items()}
    awake = places | {policy: every[policy][: ranking.awake] for policy, ranking in rankings.items()}
    matching = _Matching(awake)
    if places or (
        matching.fill(missing) != missing and any(len(awake[policy]) < len(every[policy]) for policy in every)
    ):
        counts = _Matching(every).fill(missing)
        matching = _Matching(places)
        for candidates in (places, awake, every):
            matching.widen(candidates)
            matching.fill(counts)
    for policy, position in matching.pairs():
        yield policy, seats[position]


def _places(seats: list[Seat], starts: Mapping[PolicyName, Sequence[Seat]]) -> dict[PolicyName, list[int]]:
    """Return the positions of the seats to start on; those that aren't among `seats` yet are put at its end."""
    positions = {id(seat): position for position, seat in enumerate(seats)}
    found: dict[PolicyName, list[int]] = {}
    for policy, best in starts.items():
        for seat in best:
            if id(seat) not in positions:
                positions[id(seat)] = len(seats)
                seats.append(seat)
        found[policy] = [positions[id(seat)] for seat in best]
    return found


def _start_order(seat: Seat, resident: Resident) -> tuple[int, float, str]:
    """Whoever is furthest on in its start comes first."""
    return -TO_COME_UP.index(resident.state), resident.since, seat.name


def _rankings(stock: _Stock, needy: Iterable[PolicyName], moment: _Moment) -> dict[PolicyName, _Ranking]:
    """Rank, per policy, the spare seats that can serve it.

    Best is: paused before those on their way there, and these before parked, of the newest template, fewest promotable residents
    (versatile seats stay), KV memory free now, nobody else on the move, proven most recently, on a node with few residents of the
    policy, first by name.
    """
    rankings = {policy: _Ranking(stock, policy, moment) for policy in needy}
    for position, (seat, ready, here) in enumerate(stock.by_name() if rankings else ()):
        for resident in ready:
            if (ranking := rankings.get(resident.policy)) is not None:
                ranking.enter(position, seat, resident, here)
    return rankings


# ------------------------------------------------------------------ one fleet's part of the plan


class _Draft:
    """One fleet's part of the plan, while it is being written; every seat is used once."""

    __slots__ = (
        "demotes",
        "kept",
        "missing",
        "moment",
        "needed",
        "order",
        "parks",
        "promotes",
        "proofs",
        "rank",
        "recalls",
        "releases",
        "replaces",
        "starts",
        "stock",
        "surplus",
        "switches",
        "taken",
        "unparks",
        "wanted",
        "warm",
        "warmth",
    )

    def __init__(self, stock: _Stock, wants: Wants, rank: Mapping[PolicyName, int], moment: _Moment) -> None:
        self.stock = stock
        wanted = wants.serving[stock.fleet]
        self.warm = wants.warm.get(stock.fleet, {})
        self.warmth: Warmth | None = None
        self.rank = rank
        self.wanted = {policy: max(count, 0) for policy, count in wanted.items()}
        self.needed = wants.needed.get(stock.fleet, _NOTHING)
        self.order = list(wanted) if len(wanted) == 1 else sorted(wanted, key=self._by_priority)
        self.moment = moment
        self.taken: set[int] = set()  # id() of seats: in a broken cluster names may be doubled
        self.kept: set[int] = (
            set()
        )  # likewise, of seats on which somebody is to start: nobody else is to have them
        self.starts = {
            policy: seats
            for policy, seats in wants.starting.get(stock.fleet, _NOTHING).items()
            if seats > 0 and policy in wanted
        }
        self.missing: dict[PolicyName, int] = {}
        self.surplus: dict[PolicyName, int] = {}
        self.releases: list[Release] = []
        self.recalls: list[Recall] = []
        self.promotes: list[_Chosen] = []
        self.switches: list[Switch] = []
        self.demotes: list[Demote] = []
        self.replaces: list[Replace] = []
        self.unparks: list[Unpark] = []
        self.parks: list[Park] = []
        self.proofs: list[Prove] = []

    def promotion(self, chosen: "_Chosen") -> Promote:
        """Return a promotion as an action, with whom it may displace.

        That is worked out late, for the few that the limits let through. Nothing that was planned since has changed it: a
        fleet that promotes moves nobody.
        """
        displace = self._displaceable(chosen.seat, chosen.policy)
        return Promote(seat=chosen.seat, policy=chosen.policy, displace=displace, why=chosen.why)

    @property
    def is_calm(self) -> bool:
        """Whether no seat is to be used, and nothing but what `stays` looks at can change that."""
        stock = self.stock
        used = self.taken or self.kept or self.missing or self.surplus or self.starts
        return not (used or stock.dying or stock.strays or stock.leaving or stock.useless)

    def stays(self, stock: _Stock, wants: Wants, moment: _Moment) -> bool:
        """Whether a calm draft would come out the same, of the same seats, for what is wanted now."""
        fleet = stock.fleet
        return (
            stock is self.stock
            and self.wanted == wants.serving[fleet]
            and not wants.starting.get(fleet)
            and not (stock.sleepers and wants.warm.get(fleet))
            and (stock.stalest is None or not _proof_is_due(moment, stock.stalest[0]))
        )

    def write(self) -> None:
        """Fill the lists; each step leaves to the next what it couldn't do."""
        self._count()
        stock = self.stock
        if stock.dying:
            self._release_dying()
        if self.missing or self.starts:  # else nothing is wanted that isn't there: as on most fleets
            self._recall()
            self._promote()
            self._make_way()
            self._relocate()
        if stock.strays:
            self._demote_strays()
        if stock.leaving:
            self._hand_over()
        if self.surplus:
            self._demote_surplus()
        if stock.useless:
            self._replace()
        self._move()
        self._prove()

    def _by_priority(self, policy: PolicyName) -> tuple[int, PolicyName]:
        return self.rank.get(policy, len(self.rank)), policy

    @property
    def promoting(self) -> bool:
        """Whether a promotion is in flight or planned here."""
        return bool(self.stock.promotions or self.recalls or self.promotes or self.switches)

    def _count(self) -> None:
        stock = self.stock
        for policy, wanted in self.wanted.items():
            firm = stock.firm(policy)
            if firm > wanted:
                self.surplus[policy] = firm - wanted
            elif (missing := wanted - firm - len(stock.coming.get(policy, ()))) > 0:
                self.missing[policy] = missing
        if self.starts:
            for policy in self.missing:
                self.starts.pop(policy, None)  # it has residents that are up

    def _take(self, seat: Seat) -> bool:
        """Use a seat, unless this plan has used it already."""
        if id(seat) in self.taken:
            return False
        self.taken.add(id(seat))
        return True

    def _is_used(self, seat: Seat) -> bool:
        """Whether this plan has a use for a seat already."""
        return id(seat) in self.taken or id(seat) in self.kept

    def _needed(self) -> list[PolicyName]:
        """Policies that still miss residents, by priority."""
        if not self.missing:
            return []
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
            for seat, resident in sorted(self.stock.recallable.get(policy, ()), key=self._recall_order):
                if policy in self.missing and self._take(seat):
                    self.recalls.append(
                        Recall(seat=seat, policy=policy, why=f"{why}; here it is {resident.state}")
                    )
                    self._found(policy)

    def _recall_order(self, leaving: tuple[Seat, Resident]) -> tuple[bool, int, bool, str]:
        """Whoever has most to finish is furthest from being paused before the recall arrives."""
        seat, resident = leaving
        return resident.state is not _SERVING, -resident.in_flight, self.stock.outdated(seat), seat.name

    def _promote(self) -> None:
        """Hand out the seats that are free, or will be without anybody's leaving: to promote on, and to start on."""
        missing = {policy: self.missing[policy] for policy in self._needed()}
        starts = {policy: self._startable(policy) for policy in self.starts}
        if starts:
            missing |= self.starts
            missing = {policy: missing[policy] for policy in self.order if policy in missing}
        elif not missing:
            return
        why = {policy: self._short(policy) for policy in missing if policy not in starts}
        for policy, seat in _handed_out(self.stock, missing, self.moment, starts):
            if policy in starts:
                self._keep(policy, seat)
                continue
            self._take(seat)
            self._found(policy)
            self.promotes.append(_Chosen(seat, policy, why[policy]))

    def _startable(self, policy: PolicyName) -> Sequence[Seat]:
        """Return the seats on which a policy could start without anybody's leaving for it, the best first."""
        stock = self.stock
        free = chain(stock.spare, stock.beside, (seat for seat, _claim in stock.occupied))
        leaving = chain(stock.clearing, (seat for seat, _stray in stock.strays))
        found = []
        for is_leaving, seat in chain(((False, seat) for seat in free), ((True, seat) for seat in leaving)):
            resident = seat.to_start(policy)
            if resident is not None and not seat.serving and id(seat) not in self.taken:
                found.append((is_leaving, _start_order(seat, resident), seat))
        found.sort(key=lambda each: each[:2])
        return [seat for _leaving, _order, seat in found]

    def _keep(self, policy: PolicyName, seat: Seat) -> None:
        """Let nobody else have a seat, so that a policy's resident starts there."""
        self.kept.add(id(seat))
        _spend(self.starts, policy)

    def _displaceable(
        self, seat: Seat, policy: PolicyName, leaving: PolicyName | None = None
    ) -> tuple[PolicyName, ...]:
        """Return who may be parked on a seat for a promotion of `policy`; a promotion comes before anybody's warmth."""
        return () if len(seat.residents) == 1 else self._counted().displaceable(seat, policy, leaving)

    def _counted(self) -> Warmth:
        """Return who stands paused on the fleet, counted once for a plan."""
        if self.warmth is None:
            self.warmth = Warmth(self.warm, self.rank)
            if self.warm:
                free = ((seat, None) for seat in chain(self.stock.spare, self.stock.beside))
                for seat, claim in chain(free, self.stock.occupied):
                    if seat.usable:
                        self.warmth.enter(seat, claim)
        return self.warmth

    def _make_way(self) -> None:
        """Have those leave who have more than they want, by the priority of whoever comes: to serve, or to start."""
        needed = self._needed()
        sources = self._switchable(needed) if needed else {}
        for policy in self.order if self.starts else needed:
            if policy in self.missing:
                self._switch(policy, sources[policy])
            elif policy in self.starts:
                self._clear_for(policy)

    def _switch(self, policy: PolicyName, sources: Iterable["_Source"]) -> None:
        why = self._short(policy)
        for source in sources:
            if policy not in self.missing:
                return
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
                    displace=self._displaceable(source.seat, policy, source.leaving),
                    why=f"{why} and finds no spare seat; {source.leaving} {reason}",
                )
            )
            self._found(policy)
            if owned:
                _spend(self.surplus, source.leaving)

    def _ended_sooner(self) -> Iterator[tuple[Seat, PolicyName]]:
        """Yield the lent seats that drain for longer than they would if somebody wanted them, and who leaves them."""
        for seat in self.stock.clearing:
            claim = seat.claim
            if seat.lent and claim is not None and claim.policy in self.moment.ended_at_once:
                resident = seat.resident(claim.policy)
                if resident is not None and (resident.state is _SERVING or resident.state is _DRAINING):
                    yield seat, claim.policy

    def _clear_for(self, policy: PolicyName) -> None:
        """Demote others on seats where a policy of which nothing is up could start."""
        found = []
        for leaving in self.surplus:
            for seat in self.stock.serving.get(leaving, ()):
                resident = seat.to_start(policy)
                if resident is not None and len(seat.serving) == 1:
                    step, since, name = _start_order(seat, resident)
                    order = (step, not seat.lent, _in_flight(seat, leaving), since, name)
                    found.append((order, seat, leaving))
        found.sort(key=lambda each: each[0])
        for _order, seat, leaving in found:
            if policy not in self.starts:
                return
            if leaving in self.surplus and self._take(seat):
                why = f"none of {policy} is up, and it starts here; {leaving} has more than the {self.wanted[leaving]} wanted"
                self.demotes.append(Demote(seat=seat, policy=leaving, why=why))
                _spend(self.surplus, leaving)
                _spend(self.starts, policy)

    def _relocate(self) -> None:
        """Promote somebody elsewhere whose seat is the only one for another: it leaves that seat once it serves twice.

        The counts are right then, and the seats aren't.
        """
        if not (self.missing or self.starts) or all(map(self._is_used, self.stock.spare)):
            return
        able = [policy for policy in self.order if self._may_relocate(policy)]
        for policy in self.order:
            if policy in self.missing or policy in self.starts:
                for leaving in able:
                    if self._blocks(leaving, policy) and self._promote_elsewhere(leaving, policy):
                        able.remove(leaving)
                        break

    def _may_relocate(self, policy: PolicyName) -> bool:
        """Whether a policy has just what it wants, all of it in rotation and for a while already."""
        seats = self.stock.serving.get(policy, ())
        if len(seats) != self.wanted[policy] or policy in self.stock.coming or policy in self.stock.pinned:
            return False
        settled = self.moment.now - _RELOCATED_SECONDS
        return all(r is not None and r.since <= settled for r in (seat.resident(policy) for seat in seats))

    def _blocks(self, leaving: PolicyName, policy: PolicyName) -> bool:
        """Whether a policy serves alone on a seat where another could serve, or start, if it weren't there."""
        for seat in self.stock.serving.get(leaving, ()):
            if len(seat.serving) > 1 or self._is_used(seat) or _computing(seat) > 1:
                continue
            if seat.promotable(policy) if policy in self.missing else seat.to_start(policy) is not None:
                return True
        return False

    def _promote_elsewhere(self, leaving: PolicyName, policy: PolicyName) -> bool:
        """Promote `leaving` on the spare seat that is of use to the fewest; False if there is none for it."""
        free = [
            (
                resident.state is _PARKED,
                self.stock.outdated(seat),
                sum(seat.promotable(each.policy) for each in seat.residents),
                seat.name,
                seat,
            )
            for seat in self.stock.spare
            if not self._is_used(seat) and seat.promotable(leaving) and (resident := seat.resident(leaving))
        ]
        if not free:
            return False
        seat = min(free, key=lambda each: each[:4])[-1]
        self._take(seat)
        why = f"{leaving} makes room for {policy}, which can do with its seat and not with this one"
        self.promotes.append(_Chosen(seat, leaving, why))
        return True

    def _switchable(self, needed: Iterable[PolicyName]) -> dict[PolicyName, list["_Source"]]:
        """Return, per policy, the seats that it could have once their resident is drained.

        Those where it is paused come first, then lent and idle ones.
        """
        found: dict[PolicyName, list[tuple[bool, _Source]]] = {policy: [] for policy in needed}
        surplus = ((seat, policy) for policy in self.surplus for seat in self.stock.serving.get(policy, ()))
        strays = (
            (seat, stray.policy) for seat, stray in self.stock.strays if not seat.serving and seat.usable
        )
        for seat, leaving in chain(surplus, strays, self._ended_sooner()):
            if len(seat.serving) > 1 or self._is_used(seat) or _computing(seat) > 1:
                continue
            source = _Source(seat, leaving, outdated=self.stock.outdated(seat))
            for resident in seat.residents:
                parked = resident.state is _PARKED
                if (parked or resident.state is _PAUSED) and resident.policy in found:
                    found[resident.policy].append((parked, source))
        return {
            policy: [source for _, source in sorted(sources, key=lambda each: (each[0], each[1].order))]
            for policy, sources in found.items()
        }

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
            needed = max(self.wanted[policy], self.needed.get(policy, 0))
            dispensable = self.stock.firm(policy) + len(leaving) - needed
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
        warm_elsewhere = not all(map(self._is_used, self.stock.spare))
        for seat in sorted(self.stock.useless, key=attrgetter("name")):
            speaks = seat.reachable or seat.crash is not None  # a seat that doesn't come up never will
            if speaks and (reason := self._useless_because(seat, warm_elsewhere=warm_elsewhere)):
                self._take(seat)
                self.replaces.append(Replace(seat=seat, reason=reason, why=reason))
                return

    def _useless_because(self, seat: Seat, *, warm_elsewhere: bool) -> str:
        """Say why a seat had better be another one; empty if it stays."""
        if seat.ailing and not seat.serving:
            return seat.ailing
        if seat.verdict is Verdict.BAD:  # what isn't fenced off would be its replacement's again, and again
            return "its GPU is Bad, and another seat is warm" if warm_elsewhere and seat.fenced else ""
        if seat.verdict is Verdict.OK and seat.residents and all(map(self.moment.given_up, seat.residents)):
            return "all its residents are given up: " + ", ".join(
                f"{resident.policy} {resident.state}" for resident in seat.residents
            )
        return ""

    def _move(self) -> None:
        """Unpark and park residents of spare seats, while no promotion waits for a seat or is under way."""
        stock = self.stock
        if not self.warm or not stock.sleepers or self.promoting or self.missing:
            return
        half = max(1, (len(stock.spare) + stock.moves) // 2)
        most = min(self.moment.limits.max_moves, half) - stock.moves
        free = [seat for seat in stock.spare if self._may_move(seat)]
        moves = self._counted().moves(free, most, self.moment.left_alone, parks=not stock.parks)
        for move in moves:
            if self._take(move.seat):
                self._plan_move(move)

    def _may_move(self, seat: Seat) -> bool:
        settled = self.moment.just_settled(seat)
        return not settled and not self._is_used(seat) and not any(map(moving, seat.residents))

    def _plan_move(self, move: Move) -> None:
        if move.up:
            self.unparks.append(
                Unpark(seat=move.seat, policy=move.policy, displace=move.displace, why=move.why)
            )
        else:
            self.parks.append(Park(seat=move.seat, policy=move.policy, why=move.why))

    def _prove(self) -> None:
        if self.stock.stalest is None or self.stock.proofs or self.promoting or self.missing:
            return
        proven, seat, policy = self.stock.stalest
        age = self.moment.now - proven
        if id(seat) not in self.kept and _proof_is_due(self.moment, proven) and self._take(seat):
            why = "it was never proven" if math.isinf(age) else f"the last proof is {age:.0f} s old"
            self.proofs.append(Prove(seat=seat, policy=policy, why=why))


def _proof_is_due(moment: _Moment, proven: float) -> bool:
    return moment.now - proven > moment.limits.proof_interval_seconds


class _Chosen(NamedTuple):
    """A promotion that is asked for; it becomes an action if the limits let it through."""

    seat: Seat
    policy: PolicyName
    why: str


class _Source:
    """A seat that another policy could have, and the resident that would have to leave it."""

    __slots__ = ("leaving", "order", "seat")

    def __init__(self, seat: Seat, leaving: PolicyName, *, outdated: bool) -> None:
        self.seat = seat
        self.leaving = leaving
        in_flight = _in_flight(seat, leaving)
        self.order = (not seat.lent, in_flight, leaving in seat.serving, outdated, seat.name)


def _spend(counts: dict[PolicyName, int], policy: PolicyName) -> None:
    """Take one from a count, and the count away when nothing is left."""
    counts[policy] -= 1
    if counts[policy] <= 0:
        del counts[policy]


def _name(entry: tuple[Seat, object]) -> str:
    return entry[0].name


def _hand_over_order(seat: Seat, policy: PolicyName) -> tuple[bool, float, bool, bool, int, str]:
    """Whoever has the least time left comes first: terminating, on a node that is being emptied, on a Bad GPU."""
    leaves_by = math.inf if seat.leaves_by is None else seat.leaves_by
    bad, in_flight = seat.verdict is Verdict.BAD, _in_flight(seat, policy)
    return not seat.terminating, leaves_by, not seat.node_leaving, not bad, in_flight, seat.name


def _demote_order(seat: Seat, policy: PolicyName) -> tuple[bool, bool, int, int, str]:
    """Seats that serve two come first (one of them is too many), then whom nobody is sent to yet, the idle, the versatile."""
    return len(seat.serving) == 1, seat.ready, _in_flight(seat, policy), -len(seat.residents), seat.name


# ------------------------------------------------------------------ all fleets together


def _assemble(wants: Wants, limits: Limits, rank: Mapping[PolicyName, int], drafts: Sequence[_Draft]) -> Plan:
    """Put the fleets' parts into one order, and cut what exceeds the limits."""

    def by_priority(action: Recall | _Chosen | Switch | Unpark) -> int:
        return rank.get(action.policy, len(rank))

    of = {draft.stock.fleet: draft for draft in drafts}
    promotions: list[Recall | _Chosen | Switch] = [
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
            *(
                of[each.seat.fleet].promotion(each) if isinstance(each, _Chosen) else each
                for each in promotions[:may_promote]
            ),
            *demotions[:may_demote],
            *(
                action
                for draft in drafts
                for action in draft.replaces
                if draft.stock.fleet not in wants.frozen
            ),
            *_resizes(wants, of),
            *sorted(chain.from_iterable(draft.unparks for draft in drafts), key=by_priority),
            *(action for draft in drafts for action in draft.parks),
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
