"""Who of those out of rotation stands paused, and who is parked: the planner's part for a fleet's tiers.

A policy that has fewer paused residents than shall be gets parked ones unparked, the most important policy first. Room for
them is made by policies that have more than they want, the least important first, and by no other. So what lacks shrinks
with every step and nothing that is wanted paused is parked: the same wants, over and over, come to an end and to no
to and fro. A resident that waits for room in order to start at all is given it the same way. PURE: no I/O, no clock.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from warmpool.seats import Claim, Operation, PolicyName, Resident, Seat, SeatName
from warmpool.states import ResidentState

_PAUSED = ResidentState.PAUSED
_PARKED = ResidentState.PARKED
_UNPARKING = ResidentState.UNPARKING
_STARTING = (
    ResidentState.STARTING,
    ResidentState.LOADING,
    ResidentState.WARMING,
    ResidentState.PROVING,
)
_MOVING = (
    ResidentState.STARTING,
    ResidentState.LOADING,
    ResidentState.PARKING,
    ResidentState.UNPARKING,
)

Place: TypeAlias = tuple[SeatName, PolicyName]
"""One resident of one seat."""


def moving(resident: Resident) -> bool:
    """Whether a resident is between two states without computing. One that waits for room goes nowhere."""
    return resident.state in _MOVING and not resident.waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A resident that changes its depth.

    Attributes:
        seat: where.
        policy: whose.
        up: from host memory to device memory, not the other way.
        displace: for a way up, whose residents may be parked to make room, the first first.
        why: the reason, in a few words.
    """

    seat: Seat
    policy: PolicyName
    up: bool
    displace: tuple[PolicyName, ...] = ()
    why: str


class Warmth:
    """How many of each policy's residents stand paused on one fleet, against how many shall.

    Args:
        wanted: per policy, the residents that shall stand paused on seats that another may yet have; a policy that is
            missing neither lacks any nor has any to spare.
        rank: place of each policy in the order of priority, 0 first; those that it lacks come last, by name.
    """

    __slots__ = ("_coming", "_have", "_near", "_rank", "_starting", "_wanted")

    def __init__(self, wanted: Mapping[PolicyName, int], rank: Mapping[PolicyName, int]) -> None:
        self._wanted = wanted
        self._rank = rank
        self._have: Counter[PolicyName] = Counter()
        self._coming: Counter[PolicyName] = Counter()
        self._starting: Counter[PolicyName] = Counter()
        self._near: Counter[tuple[PolicyName, str]] = Counter()  # how many of both are on each node

    def enter(self, seat: Seat, claim: Claim | None = None) -> None:
        """Count who stands paused on a seat, or soon will.

        Args:
            seat: a seat that is spare or lent, or claimed for no more than a proof or a change of depth.
            claim: its claim, if that is in force.
        """
        for resident in seat.residents:
            counter = self._counter(resident, claim)
            if counter is not None:
                counter[resident.policy] += 1
                self._near[resident.policy, seat.node] += 1

    def _counter(self, resident: Resident, claim: Claim | None) -> Counter[PolicyName] | None:
        """Return what a resident counts as; None for nothing."""
        policy, state = resident.policy, resident.state
        if claim is not None and policy == claim.policy:
            return None if claim.operation is Operation.PARK else self._coming
        if state is _PAUSED:
            at_risk = claim is not None and policy in (claim.displace or ())
            return None if at_risk else self._have
        if state is _UNPARKING:
            return self._coming
        return self._starting if state in _STARTING and not resident.waiting else None

    def displaceable(
        self, seat: Seat, policy: PolicyName, leaving: PolicyName | None = None
    ) -> tuple[PolicyName, ...]:
        """Return who may be parked for a promotion of `policy` on a seat: whoever is paused there, or `leaving` it.

        Those that nobody would miss come first, then the least important.
        """
        others = [
            resident.policy
            for resident in seat.residents
            if resident.policy != policy and (resident.state is _PAUSED or resident.policy == leaving)
        ]
        others.sort(key=self._by_priority, reverse=True)
        others.sort(key=lambda other: self._spares(other) <= 0)
        return tuple(others)

    def moves(
        self, free: Sequence[Seat], most: int, failed: Collection[Place], *, parks: bool
    ) -> Iterator[Move]:
        """Yield what brings the fleet closer to what is wanted, the most important policy first, a seat once.

        Args:
            free: seats on which something may be moved now.
            most: so many moves at most.
            failed: residents that have just failed to move, and are left alone.
            parks: whether residents may be parked so that others can start.
        """
        asleep = _by_policy(free, _parked)
        waiting = _by_policy(free, _waits) if parks else {}
        used = set(failed)
        for policy in sorted(filter(self._lacks, self._wanted), key=self._by_priority):
            while most > 0 and self._lacks(policy):
                move = self._up(policy, asleep.get(policy, ()), used)
                move = move or self._down(policy, waiting.get(policy, ()), used)
                if move is None:
                    break
                self._note(policy, move)
                used |= {(move.seat.name, resident.policy) for resident in move.seat.residents}
                most -= 1
                yield move

    def _up(self, policy: PolicyName, asleep: Iterable[Seat], used: Collection[Place]) -> Move | None:
        """Return the best seat on which a policy's resident is unparked; None if there is none."""
        seats = [seat for seat in asleep if (seat.name, policy) not in used]
        if not seats:
            return None
        seat = min(seats, key=lambda seat: self._up_order(seat, policy))
        why = f"{policy} has {self._have[policy]} of {self._wanted[policy]} that shall stand paused"
        return Move(seat=seat, policy=policy, up=True, displace=self._room(seat, policy), why=why)

    def _down(self, policy: PolicyName, waiting: Iterable[Seat], used: Collection[Place]) -> Move | None:
        """Return whom to park so that a policy's resident can start; None if nobody can do without, or enough start."""
        if self._lacks(policy) <= self._starting[policy]:
            return None
        for seat in sorted(waiting, key=attrgetter("name")):
            for other in self._room(seat, policy):
                if (seat.name, other) not in used:
                    why = f"{policy} waits for room, and {other} can do without"
                    return Move(seat=seat, policy=other, up=False, why=why)
        return None

    def _note(self, policy: PolicyName, move: Move) -> None:
        if move.up:
            self._coming[policy] += 1
            self._near[policy, move.seat.node] += 1
            for other in move.displace:
                self._have[other] -= 1
        else:
            self._starting[policy] += 1
            self._have[move.policy] -= 1

    def _lacks(self, policy: PolicyName) -> int:
        return max(0, self._wanted.get(policy, 0) - self._have[policy] - self._coming[policy])

    def _spares(self, policy: PolicyName) -> int:
        """Return how many of its paused residents a policy can do without; what is only coming may yet fail."""
        wanted = self._wanted.get(policy)
        return 0 if wanted is None else max(0, self._have[policy] - max(0, wanted))

    def _room(self, seat: Seat, policy: PolicyName) -> tuple[PolicyName, ...]:
        """Return who may make room for `policy`: those that can do without, the least important first."""
        return tuple(other for other in self.displaceable(seat, policy) if self._spares(other) > 0)

    def _up_order(self, seat: Seat, policy: PolicyName) -> tuple[bool, int, int, SeatName]:
        """Seats where room can be made come first, then those where the fewest are in the way; nodes take turns."""
        paused = sum(resident.state is _PAUSED for resident in seat.residents)
        return not self._room(seat, policy), paused, self._near[policy, seat.node], seat.name

    def _by_priority(self, policy: PolicyName) -> tuple[int, PolicyName]:
        return self._rank.get(policy, len(self._rank)), policy


def _parked(resident: Resident) -> bool:
    return resident.state is _PARKED


def _waits(resident: Resident) -> bool:
    return resident.state is ResidentState.STARTING and bool(resident.waiting)


def _by_policy(
    seats: Iterable[Seat], asked: Callable[[Resident], bool]
) -> Mapping[PolicyName, Sequence[Seat]]:
    found: dict[PolicyName, list[Seat]] = {}
    for seat in seats:
        for resident in seat.residents:
            if asked(resident):
                found.setdefault(resident.policy, []).append(seat)
    return found
