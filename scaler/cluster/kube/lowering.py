"""Whether a workload may be asked for fewer pods now, given which of them would go. PURE.

A ReplicaSet removes first what isn't scheduled, isn't running or isn't Ready, and only among equals the cheapest by
deletion cost, which it reads from a cache of its own. So a lower size waits until all serving pods are Ready, every mark says
what its seat is worth, and the last mark is old enough to have got there. A StatefulSet removes the highest ordinals, whatever
they are worth; of what else makes pods nothing is known, so that any of them may go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scaler.cluster.kube.views import Pod
from warmpool.claim import in_force
from warmpool.seats import DELETION_COST, Operation, Seat, SeatValue
from warmpool.states import ResidentState

MARK_SECONDS: Final = 2.0
"""How old a mark must be before a size is lowered that relies on it."""
_DISPENSABLE = frozenset(
    {SeatValue.DOOMED, SeatValue.HELD, SeatValue.STARTING, SeatValue.SPARE, SeatValue.LENT}
)
_PROMOTIONS = frozenset({Operation.PROMOTE, Operation.SWITCH, Operation.RECALL})
_PHASES = ("Pending", "Unknown", "Running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A seat with what its workload's controller sees of it.

    Attributes:
        pod: its pod.
        seat: the seat.
        marked_at: when its deletion cost was last seen to change, on the clock of `refusal`'s `now`.
    """

    pod: Pod
    seat: Seat
    marked_at: float

    @property
    def rank(self) -> tuple[int, ...]:
        """Where its owner puts it among those that it could remove, the first to go first; all alike where nobody knows."""
        if self.pod.owner == "StatefulSet":
            ordinal = self.pod.seat.name.rpartition("-")[2]
            return (-int(ordinal) if ordinal.isascii() and ordinal.isdigit() else 0,)
        if self.pod.owner != "ReplicaSet":
            return (0,)
        phase = _PHASES.index(self.pod.phase) if self.pod.phase in _PHASES else 0
        return bool(self.pod.seat.node), phase, self.seat.ready, _cost(self.pod)

    @property
    def mirrored(self) -> bool:
        """Whether its mark says what it is worth, or nobody reads it."""
        return self.pod.owner != "ReplicaSet" or _cost(self.pod) == DELETION_COST[self.seat.value]


def _cost(pod: Pod) -> int:
    try:
        return int(pod.cost or 0)
    except ValueError:
        return 0


def refusal(fleet: Sequence[Standing], total: int, *, now: float, wall: float) -> str | None:
    """Say why a fleet may not be asked for `total` pods now; None if it may.

    Args:
        fleet: all its seats.
        total: what it shall be asked for; fewer than at present.
        now: as in `Standing.marked_at`.
        wall: Unix seconds, as in claims.
    """
    if (busy := _promoting(fleet, wall)) is not None:
        return f"a promotion is in flight on seat {busy.seat.name}"
    for each in fleet:
        if each.seat.serving and not each.seat.ready and not each.seat.terminating:
            return f"seat {each.seat.name} serves and its pod isn't Ready, so it would be removed before any other"
    active = sorted((each for each in fleet if not each.seat.terminating), key=lambda each: each.rank)
    going = len(active) - total
    if going <= 0:
        return None
    if len({(each.pod.owner, each.seat.template) for each in active}) > 1:
        return "a rollout is under way, and each of its templates would lose pods of its own"
    last = active[min(going, len(active)) - 1].rank
    for each in active:
        if each.rank <= last and each.seat.value not in _DISPENSABLE:
            return f"seat {each.seat.name} is {each.seat.value}, and could be among the {going} that go"
        if not each.mirrored:
            return f"seat {each.seat.name} is {each.seat.value}, and its deletion cost doesn't say so yet"
        if now - each.marked_at < MARK_SECONDS:
            return f"seat {each.seat.name} was marked less than {MARK_SECONDS:g} s ago"
    return None


def _promoting(fleet: Sequence[Standing], wall: float) -> Standing | None:
    for each in fleet:
        claim = each.seat.claim
        if claim is not None and claim.operation in _PROMOTIONS and in_force(claim, wall):
            return each
        if any(resident.state is ResidentState.PROMOTING for resident in each.seat.residents):
            return each
    return None
